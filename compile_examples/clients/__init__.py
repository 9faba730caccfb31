"""Code of other libraries that calls these operators without knowing of them, with small inputs.

python -m compile_examples.clients    # make clients installs what they need
"""

# Modules of this package, and what each needs.
CLIENTS = {"segmentation": "torchvision", "generation": "transformers", "clustering": "sklearn"}
