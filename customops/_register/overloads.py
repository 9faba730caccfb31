"""The operators, and their overloads, as csrc/library.cpp has them."""

from typing import Any

import torch

from .. import libraries

REDUCTIONS = (
    *("argmin", "argmax", "min", "max", "softmax_max", "scale_min", "scale_max"),
    *("_scale_min_indices", "_scale_max_indices"),
)
CONVOLUTIONS = ("conv2d_scale_min", "conv2d_scale_max")
INTERNAL = (
    *("_conv2d_scale_extreme", "_conv2d_scale_channels"),
    *("_one_shot", "_pairs", "_unpack"),
    *(f"_{end}{name}_autograd" for end in ("min", "max") for name in ("", "_options")),
    *(f"_scale_{end}{name}_autograd" for end in ("min", "max") for name in ("", "_indices")),
    *("_conv2d_scale_min_autograd", "_conv2d_scale_max_autograd", "_softmax_max_autograd"),
)


def check() -> None:
    """ImportError where the library lacks one: it is of other sources, as after a `git pull`."""
    names = (*REDUCTIONS, *CONVOLUTIONS, *INTERNAL)
    if lacks := [name for name in names if not hasattr(torch.ops.reduceops, name)]:
        raise ImportError(
            f"customops: {libraries.cpu.path} is of another version and lacks {', '.join(lacks)}: "
            "build it again, with `make build` in a checkout, or install the package again"
        )


def overloads(operator: str) -> list[Any]:
    packet = getattr(torch.ops.reduceops, operator)
    return [getattr(packet, name) for name in packet.overloads()]


def public_name(operator: str) -> str:
    """What errors call it."""
    return operator.removeprefix("_").removesuffix("_indices")
