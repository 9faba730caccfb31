"""Whether an expression of Inductor's may be a negative zero.

Its own minimum of floats gives a zero of either sign where there are both. Of what is never a
negative zero it gives the first.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch._inductor import ir
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.virtualized import OpsValue, V


@dataclass(frozen=True)
class May:
    """What an expression may be: below zero, a negative zero. All it may be are multiples of a
    power of two, or it is 0 if none is known."""

    below: bool
    zero: bool
    multiple: float = 0.0

    @property
    def unsigned(self) -> bool:
        return not self.below and not self.zero


ANY, WHOLE, UNSIGNED = May(True, True), May(True, False), May(False, False)
# What is as large is rounded to no zero, even where denormals count as zeros.
_LEAST = {
    torch.float16: 2.0**-24,  # (not counted so by the instructions that round to it)
    **{dtype: torch.finfo(dtype).tiny for dtype in (torch.bfloat16, torch.float32, torch.float64)},
}
# Of the elements in memory. Those of float32 and float64 may be denormals.
_MULTIPLES = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}


class _Constant(float):
    """A number in an expression."""


def _of(x: Any) -> May:
    x = x.value if isinstance(x, OpsValue) else x
    if isinstance(x, _Constant):
        return May(x < 0, x == 0 and math.copysign(1, x) < 0)
    return x


def _multiple(number: float) -> float:
    """The largest power of two that it is a multiple of."""
    if number == 0 or not math.isfinite(number):
        return math.inf if number == 0 else 0.0
    numerator, denominator = number.as_integer_ratio()
    return (numerator & -numerator) / denominator


def _keeps_small(src_dtype: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether what is not zero stays so."""
    if not src_dtype.is_floating_point or src_dtype == dtype:
        return True
    if not dtype.is_floating_point:
        return False
    src, to = torch.finfo(src_dtype), torch.finfo(dtype)
    return to.tiny * to.eps <= src.tiny * src.eps


def _is_no_zero(may: May, dtype: torch.dtype) -> bool:
    """Of what is not zero, rounded to `dtype`."""
    return may.multiple >= _LEAST.get(dtype, math.inf)


class _Signs(DefaultHandler):
    """Computes with what is known of signs. Operations that are not listed give anything. With
    `multiples` also what numbers are multiples of, which nobody has looked into on GPUs."""

    def __init__(self, multiples: bool) -> None:
        self._loaded: dict[str, May] = {}
        self._multiples = multiples

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
        dtype = V.graph.get_dtype(name)
        multiple = _MULTIPLES.get(dtype, 0.0) if self._multiples else 0.0
        return May(True, True, multiple) if dtype.is_floating_point else WHOLE

    def indirect_indexing(self, *args: Any, **kwargs: Any) -> sympy.Expr:
        return sympy.Integer(0)

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> May:
        return WHOLE

    def constant(self, value: Any, dtype: torch.dtype) -> _Constant:
        return _Constant(value)

    def to_dtype(self, x, dtype, src_dtype=None, use_compute_types=True):
        if src_dtype is not None and _keeps_small(src_dtype, dtype):
            return x
        may = _of(x)
        # What is small may be rounded to zero.
        return replace(may, zero=may.zero or may.below and not _is_no_zero(may, dtype))

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
        multiple = self._multiple_of_sum(a, b)
        a, b = _of(a), _of(b)
        return May(a.below or b.below, a.zero and b.zero, multiple)  # opposites add up to 0.0

    def sub(self, a, b):
        if isinstance(b, _Constant):
            return self.add(a, _Constant(-b))
        return May(True, _of(a).zero, self._multiple_of_sum(a, b))

    def _multiple_of_sum(self, a, b) -> float:
        if not self._multiples:
            return 0.0
        found, least = math.inf, 0.0
        for x in (a, b):
            constant = isinstance(x, _Constant)
            found = min(found, _multiple(x) if constant else _of(x).multiple)
            if constant and x != 0 and math.isfinite(x):
                # What is near its opposite has at most twice as many digits, if it is a product.
                least = 2.0 ** (math.frexp(x)[1] - 108)
        return max(found, least)

    def mul(self, a, b):
        if isinstance(a, _Constant):
            a, b = b, a
        if isinstance(b, _Constant) and b >= 1:  # no product is too small
            return replace(_of(a), multiple=0.0)
        return UNSIGNED if _of(a).unsigned and _of(b).unsigned else ANY

    def truediv(self, a, b):
        return UNSIGNED if _of(a).unsigned and _of(b).unsigned else ANY


def may_be_negative_zero(
    load: Callable, size: Sequence[sympy.Expr], scale: float, dtype: torch.dtype, multiples: bool
) -> bool:
    """Whether a product of an expression with `scale` may be one, in `dtype`."""
    index = [sympy.Symbol(f"i{d}", integer=True, nonnegative=True) for d in range(len(size))]
    signs = _Signs(multiples)
    with V.set_ops_handler(signs), patch.object(ir.FlexibleLayout, "allow_indexing", True):
        may = _of(load(index))
    rounds = scale < 1 or dtype.itemsize < 4
    if rounds and scale > 0 and may.multiple:  # the element is rounded, too
        rounds = not _is_no_zero(replace(may, multiple=may.multiple * min(scale, 1.0)), dtype)
    return not scale > 0 or may.zero or may.below and rounds
