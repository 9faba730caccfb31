"""A reduction as a loop of Inductor's, fused with what comes before and after it."""

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import config, ir, lowering
from torch._inductor.virtualized import V, ops
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from .. import checks, libraries
from .choice import Choice, Facts, choose
from .keys import (
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    SUPPORTED,
    Order,
    Packed,
    Zeros,
    largest_zero,
    number,
    rounded,
    sign_of_zeros,
)
from .signs import may_be_negative_zero

_BACKENDS = {"cpu": "cpp", "cuda": "triton"}


class NoLoop(Exception):
    """Why a kernel has to be called."""


def _keeps_order(scale: float, dtype: torch.dtype) -> bool:
    """Whether products are in the order of what is multiplied, or in the reverse."""
    factor = scale if dtype == FLOAT64 else ctypes.c_float(scale).value
    return math.isfinite(factor) and factor != 0


def _hint(size) -> int:
    """A number that a size may be: that of the example, if it has one."""
    variables = V.graph.sizevars
    # (The second name is that of torch 2.10 to 2.12.)
    hint = getattr(variables, "optimization_hint", None) or variables.size_hint
    return hint(size, fallback=1 << 10)


def is_view(target: Any) -> bool:
    if target is torch.ops.aten._unsafe_view.default:
        return True
    returns = target._schema.returns if isinstance(target, torch._ops.OpOverload) else ()
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _is_written(node: torch.fx.Node) -> bool:
    """Whether the input of a reduction is a result of the graph, or read by a library."""
    others = [user for user in node.args[0].users if user is not node]
    for user in others:
        if user.op == "output" or user.target in lowering.fallbacks:
            return True
        if is_view(user.target):
            others.extend(user.users)
    return False


class Loop:
    """One reduction of an expression of Inductor's; NoLoop where a kernel is to be called."""

    def __init__(
        self,
        op: torch._ops.OpOverload,
        x: ir.TensorBox,
        dim: int | Sequence[int] | None,
        keepdim: bool,
        largest: bool,
        mask: ir.TensorBox | None = None,
        index_dtype: torch.dtype | None = None,
        *,
        scale: float | None = None,
        values: bool = True,
        indices: bool = True,
    ):
        self.x, self.scale, self.mask = x, scale, mask
        self.keepdim, self.values, self.indices = keepdim, values, indices
        self.index_dtype = index_dtype or INT64
        self.device, self.size = x.get_device(), [sympy.sympify(n) for n in x.get_size()]
        kind = self.device.type
        if kind not in _BACKENDS or getattr(config, f"{kind}_backend", None) != _BACKENDS[kind]:
            raise NoLoop("no backend of Inductor that is known here")
        if kind == "cuda" and not libraries.cuda.loaded:
            raise NoLoop("the CUDA library is not loaded")
        if x.get_dtype() not in SUPPORTED:
            raise NoLoop(f"no loop for {x.get_dtype()}")
        if not self.size:
            raise NoLoop("it has no dims")
        self.dims = checks.wrap_dims(op._opname, len(self.size), dim)
        self.order = Order(x.get_dtype(), largest)
        self.extent = sympy.prod([self.size[d] for d in self.dims])
        self.groups = sympy.prod([n for d, n in enumerate(self.size) if d not in self.dims])
        limit = checks.INDEX_LIMITS[self.index_dtype]
        if index_dtype not in (None, INT64) and not self._is_at_most(limit):
            raise NoLoop("its extent may not fit the index_dtype")

    def choose(self, preference: str) -> Choice:
        return choose(self._facts(), preference)

    def results(self) -> tuple[Any, Any]:
        """The values and the indices, of which one may be None."""
        if self.indices:
            return self._packed()
        if not self._may_be_negative_zero():
            return self._value_alone(), None
        if self.device.type == "cpu":
            return self._product_of_the_extreme(), None
        return self._value_with_zeros(), None

    # What is reduced.

    def _load(self) -> Callable:
        load = self.x.make_loader()
        if self.scale is None:
            return load
        return lambda index: self._product(load(index))

    def _product(self, value):
        dtype = self.order.dtype
        wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
        return ops.mul(rounded(value, dtype), number(self.scale, wide))

    def _rounded_product(self, value):
        return rounded(self._product(value), self.order.dtype)

    def _position(self, index):
        """Into the reduced dims, flattened in ascending order."""
        position = sympy.Integer(0)
        for d in self.dims:
            position = position * self.size[d] + index[d]
        return position

    def _may_be_negative_zero(self) -> bool:
        return may_be_negative_zero(self.x.make_loader(), self.size, self.scale, self.order.dtype)

    # The forms of the loop.

    def _value_alone(self) -> ir.TensorBox:
        """Inductor's own minimum of what has zeros of one sign only."""
        own = "max" if self.order.largest else "min"
        load = self.x.make_loader()
        load_value, size = self._reduce(
            lambda index: self._rounded_product(load(index)), self.order.dtype, own
        )
        return self._result(size, load_value)

    def _packed(self) -> tuple[Any, Any]:
        """The minimum of integers that hold a key and a position."""
        masked, load = self.mask is not None, self._load()
        form = Packed.of(self.order, self._bound(), self.values, masked)
        if form is None:
            raise NoLoop("no integer holds its elements and their positions")
        mask = lowering.expand(self.mask, [*self.size]).make_loader() if masked else None

        def packed(index):
            packed = form.pack(load(index), self._position(index))
            return ops.where(mask(index), packed, form.none()) if masked else packed

        load_least, size = self._reduce(packed, form.word, "min")
        return (
            self._result(size, lambda index: form.value(load_least(index), masked)),
            self._indices(size, lambda index: form.position(load_least(index), masked)),
        )

    def _value_with_zeros(self) -> ir.TensorBox:
        """The values alone, by one minimum of integers."""
        load, dtype = self.x.make_loader(), self.order.dtype
        wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
        form = Zeros(wide, self.order.largest, self.extent)
        if not self.extent.is_number or not form.fits:
            raise NoLoop("its extent may be too large")

        def packed(index):
            product = self._rounded_product(load(index))
            return form.pack(ops.to_dtype(product, wide), self._position(index))

        load_least, size = self._reduce(packed, form.word, "min")
        return self._result(size, lambda index: ops.to_dtype(form.value(load_least(index)), dtype))

    def _product_of_the_extreme(self) -> ir.TensorBox:
        """The values alone, as Inductor's own minimum of floats, which vectorizes better than one
        of integers. The order of products is that of the numbers multiplied, so these are
        compared, and the extreme one is rounded and multiplied. Besides, the sign of the first
        zero, which that minimum does not give."""
        load, dtype = self.x.make_loader(), self.order.dtype
        if not _keeps_order(self.scale, dtype):
            raise NoLoop("products with this scale are not in the order of what is multiplied")
        wide, word = (FLOAT64, INT64) if dtype == FLOAT64 else (FLOAT32, INT32)
        with unset_fake_temporarily():
            least_bits = largest_zero(self.scale, dtype)
        turned = self.scale < 0

        def number_of(index):
            return ops.to_dtype(load(index), wide)

        def sign(index):
            return sign_of_zeros(number_of(index), self._position(index), wide, least_bits)

        if not self._fits(1 << 30):
            raise NoLoop("its extent may be too large")
        own = "max" if self.order.largest != turned else "min"
        load_value, size = self._reduce(number_of, wide, own)
        load_sign, _ = self._reduce(sign, word, "min")

        def value(index):
            product = self._rounded_product(ops.to_dtype(load_value(index), dtype))
            one, odd = ops.constant(1, word), ops.constant(0 if turned else 1, word)
            negative = ops.eq(ops.bitwise_and(load_sign(index), one), odd)
            zero = ops.where(negative, number(-0.0, wide), number(0.0, wide))
            is_zero = ops.eq(product, ops.constant(0.0, dtype))
            return ops.where(is_zero, ops.to_dtype(zero, dtype), product)

        return self._result(size, value)

    # What loops are made of.

    def _pointwise(self, dtype, inner, size):
        return ir.Pointwise.create(device=self.device, dtype=dtype, inner_fn=inner, ranges=size)

    def _result(self, size, value) -> ir.TensorBox | None:
        return self._pointwise(self.order.dtype, value, size) if self.values else None

    def _indices(self, size, position) -> ir.TensorBox | None:
        if not self.indices:
            return None
        cast = lambda index: ops.to_dtype(position(index), self.index_dtype)  # noqa: E731
        return self._pointwise(self.index_dtype, cast, size)

    def _size_of_results(self) -> list[sympy.Expr]:
        one = sympy.Integer(1)
        return [
            one if d in self.dims else n
            for d, n in enumerate(self.size)
            if self.keepdim or d not in self.dims
        ]

    def _reduce(self, load, dtype, kind):
        """What gives the result for a group's index, and the sizes of all results."""
        kept = [d for d in range(len(self.size)) if d not in self.dims]

        def element(index, reduced):
            if self.keepdim:
                index = [index[d] for d in kept]
            place = dict(zip((*kept, *self.dims), (*index, *reduced), strict=True))
            return load([place[d] for d in range(len(self.size))])

        results = self._size_of_results()
        least = ir.Reduction.create(
            device=self.device,
            dst_dtype=dtype,
            src_dtype=dtype,
            inner_fn=element,
            ranges=results,
            reduction_ranges=[self.size[d] for d in self.dims],
            reduction_type=kind,
        )
        if isinstance(least.data.data, ir.Reduction):  # and not code for each of few elements
            least.realize()
            # Nobody else reads it. Padded strides would only keep Inductor from seeing how
            # contiguous a loop is that never writes it.
            with config.patch(comprehensive_padding=False):
                ir.as_storage_and_layout(least, freeze=True)
        return least.make_loader(), results

    # What is known of it.

    def _is_at_most(self, limit: int) -> bool:
        return V.graph.sizevars.statically_known_leq(self.extent, limit)

    def _fits(self, limit: int) -> bool:
        """Whether the extent is at most as large. If it is a symbol, a guard makes sure of it; on
        a GPU that is not tested."""
        if self._is_at_most(limit):
            return True
        if self.device.type != "cpu":
            return False
        symbols = self.extent.free_symbols
        if not symbols or free_unbacked_symbols(self.extent) or _hint(self.extent) > limit:
            return False
        V.graph.sizevars.check_leq(self.extent, sympy.Integer(limit))
        return True

    def _bound(self) -> int | None:
        """A power of two that the extent does not exceed."""
        bounds = (1 << n for n in (8, 15, 16, 23, 24))
        known = next(filter(self._is_at_most, bounds), None)
        return known or next((1 << n for n in (31, 32) if self._fits(1 << n)), None)

    def _facts(self) -> Facts:
        inner = self.x.data
        while isinstance(inner, (ir.BaseView, ir.MutableBox)):
            inner = inner.data
        # What Inductor has made a buffer of is fused with what reads it, if it is a loop.
        computed = isinstance(inner, ir.ComputedBuffer) and isinstance(inner.data, ir.Pointwise)
        return Facts(
            device=self.device.type,
            groups=_hint(self.groups),
            extent=_hint(self.extent),
            itemsize=self.order.dtype.itemsize,
            floating=self.order.floating,
            stored=not computed and not isinstance(inner, ir.Pointwise),
            written=_is_written(V.graph.current_node),
            indices=self.indices,
        )
