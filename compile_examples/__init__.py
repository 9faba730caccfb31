"""KernelBench problems with reduceops in place of torch's own reductions, one file per problem.

Beside them: programs of their own (`greedy_decoding`, `kmeans`, `segmentation`, run as
`python -m compile_examples.kmeans`), `sharded_decoding`, which several processes run together,
`kernelbench`, which runs KernelBench's own harness over the problems, `whole_model`, which measures
time and memory of the level 2 problem, training included, `aoti_cpp`, a model that runs without
Python, and `clients`, which run code of other libraries.

A problem's file has what the KernelBench harness looks for: `Model`, the problem as published;
`ModelNew`, its replacement; `get_inputs` and `get_init_inputs`, with the published sizes for
defaults.
"""

from . import (
    level1_49_max,
    level1_51_argmax,
    level1_52_argmin,
    level1_53_min,
    level2_32_conv_scale_min,
)

EXAMPLES = (
    level1_49_max,
    level1_51_argmax,
    level1_52_argmin,
    level1_53_min,
    level2_32_conv_scale_min,
)

# What `python -m compile_examples.NAME` runs. Of the first the demo runs each, with small inputs.
PROGRAMS = {
    "greedy_decoding": "the tokens of a small transformer, step by step",
    "kmeans": "Lloyd's algorithm: the nearest centroid of each point",
    "segmentation": "the class of each pixel, from upsampled logits",
}
MORE_PROGRAMS = {
    "kernelbench": "what KernelBench's own harness says of the files above, on a GPU",
    "whole_model": "time and peak memory of the level 2 problem, training included",
    "sharded_decoding": "several processes, by torch.distributed.run",
    "aoti_cpp.export": "a model for the C++ program beside it",
    "clients": "torchvision, transformers and k-means as in scikit-learn (make clients)",
}
