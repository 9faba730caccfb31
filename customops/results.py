"""What operators with two results return: named tuples, as torch's."""

from typing import NamedTuple

from torch import Tensor

from ._torch_private import register_namedtuple


class ValuesIndices(NamedTuple):
    """What `min` and `max` return.

    Attributes:
        values: The smallest or largest elements, of the dtype of the input.
        indices: Where they are along the dim, of `index_dtype`, in the same shape.
    """

    values: Tensor
    indices: Tensor


class ProbabilityIndex(NamedTuple):
    """What `softmax_max` returns.

    Attributes:
        probability: The largest probabilities, of the dtype of the input.
        index: Where the largest elements are along the dim, int64, in the same shape.
    """

    probability: Tensor
    index: Tensor  # type: ignore[assignment]  # which hides tuple's method


# So that torch.export.save() takes a program that returns one.
for _type in (ValuesIndices, ProbabilityIndex):
    register_namedtuple(_type, serialized_type_name=f"customops.{_type.__name__}")
