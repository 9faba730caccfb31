"""The operators beside other libraries, with small inputs: in models of torchvision and of
transformers, which do not know of them, and in an estimator for scikit-learn, which calls argmin.

python -m compile_examples.clients    # make clients installs what they need
"""

# Modules of this package, and what each needs.
CLIENTS = {"segmentation": "torchvision", "generation": "transformers", "clustering": "sklearn"}
