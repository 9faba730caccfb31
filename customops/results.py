"""What operators with two results return: named tuples, as torch's."""

from typing import NamedTuple

from torch import Tensor

from ._torch_private import register_namedtuple


class ValuesIndices(NamedTuple):
    """What ``min`` and ``max`` return."""

    values: Tensor
    indices: Tensor


class ProbabilityIndex(NamedTuple):
    """What ``softmax_max`` returns."""

    probability: Tensor
    index: Tensor  # type: ignore[assignment]  # which hides tuple's method


# So that torch.export.save() takes a program that returns one.
for _type in (ValuesIndices, ProbabilityIndex):
    register_namedtuple(_type, serialized_type_name=f"customops.{_type.__name__}")
