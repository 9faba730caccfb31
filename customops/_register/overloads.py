"""The operators, and their overloads, as csrc/library.cpp has them."""

from typing import Any

import torch

REDUCTIONS = (
    *("argmin", "argmax", "min", "max", "softmax_max", "scale_min", "scale_max"),
    *("_scale_min_indices", "_scale_max_indices"),
)
CONVOLUTIONS = ("conv2d_scale_min", "conv2d_scale_max")


def overloads(operator: str) -> list[Any]:
    packet = getattr(torch.ops.reduceops, operator)
    return [getattr(packet, name) for name in packet.overloads()]


def public_name(operator: str) -> str:
    """What errors call it."""
    return operator.removeprefix("_").removesuffix("_indices")
