"""Whether an expression of Inductor's may be a negative zero.

Its own minimum of floats gives a zero of either sign where there are both. Of what is never a
negative zero it gives the first.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch._inductor import ir
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.virtualized import OpsValue, V


@dataclass(frozen=True)
class May:
    """What an expression may be: below zero, a negative zero."""

    below: bool
    zero: bool

    @property
    def unsigned(self) -> bool:
        return not self.below and not self.zero


ANY, WHOLE, UNSIGNED = May(True, True), May(True, False), May(False, False)


class _Constant(float):
    """A number in an expression."""


def _of(x: Any) -> May:
    x = x.value if isinstance(x, OpsValue) else x
    if isinstance(x, _Constant):
        return May(x < 0, x == 0 and math.copysign(1, x) < 0)
    return x


class _Signs(DefaultHandler):
    """Computes with what is known of signs. Operations that are not listed give anything."""

    def __init__(self) -> None:
        self._loaded: dict[str, May] = {}

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return ANY

    def load(self, name: str, index: sympy.Expr) -> May:
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> May:
        if name in V.graph.mutated_buffers:  # there is something else in it by now
            return ANY
        data = getattr(V.graph.try_get_buffer(name), "data", None)
        kind = getattr(data, "reduction_type", None)
        if kind == "online_softmax_reduce":
            return UNSIGNED if data.output_index == 1 else ANY  # the sum of exponentials
        if kind == "sum" or isinstance(data, ir.Pointwise):
            return _of(data.inner_fn(*data.inner_fn_args()))
        return ANY if V.graph.get_dtype(name).is_floating_point else WHOLE

    def indirect_indexing(self, *args: Any, **kwargs: Any) -> sympy.Expr:
        return sympy.Integer(0)

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> May:
        return WHOLE

    def constant(self, value: Any, dtype: torch.dtype) -> _Constant:
        return _Constant(value)

    def to_dtype(self, x, dtype, src_dtype=None, use_compute_types=True):
        known = src_dtype is not None
        if known and (src_dtype.itemsize <= dtype.itemsize or not src_dtype.is_floating_point):
            return x
        may = _of(x)
        return May(may.below, may.zero or may.below)  # what is small may be rounded to zero

    def exp(self, x):
        return UNSIGNED

    exp2 = sigmoid = abs = square = exp

    def relu(self, x):
        """Of a zero and a negative one eager mode and Inductor may take either, here and below."""
        return UNSIGNED

    def maximum(self, a, b):
        a, b = _of(a), _of(b)
        return UNSIGNED if a.unsigned or b.unsigned else May(a.below and b.below, a.zero or b.zero)

    def add(self, a, b):
        a, b = _of(a), _of(b)
        return May(a.below or b.below, a.zero and b.zero)  # opposites add up to 0.0

    def sub(self, a, b):
        return self.add(a, _Constant(-b)) if isinstance(b, _Constant) else May(True, _of(a).zero)

    def mul(self, a, b):
        if isinstance(a, _Constant):
            a, b = b, a
        if isinstance(b, _Constant) and b >= 1:  # no product is too small
            return _of(a)
        return UNSIGNED if _of(a).unsigned and _of(b).unsigned else ANY

    def truediv(self, a, b):
        return UNSIGNED if _of(a).unsigned and _of(b).unsigned else ANY


def may_be_negative_zero(
    load: Callable, size: Sequence[sympy.Expr], scale: float, dtype: torch.dtype
) -> bool:
    """Whether a product of an expression with `scale` may be one, in `dtype`."""
    index = [sympy.Symbol(f"i{d}", integer=True, nonnegative=True) for d in range(len(size))]
    with V.set_ops_handler(_Signs()), patch.object(ir.FlexibleLayout, "allow_indexing", True):
        may = _of(load(index))
    rounds = scale < 1 or dtype.itemsize < 4
    return not scale > 0 or may.zero or may.below and rounds
