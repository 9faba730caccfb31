"""KernelBench problems with reduceops in place of torch's own reductions, one file per problem.

Beside them: programs of their own (`greedy_decoding`, `kmeans`, `segmentation`, run as
`python -m compile_examples.kmeans`), `sharded_decoding`, which several processes run together,
`whole_model`, which measures time and memory of the level 2 problem, training included, and
`aoti_cpp`, a model that runs without Python.

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

PROGRAMS = ("greedy_decoding", "kmeans", "segmentation")
