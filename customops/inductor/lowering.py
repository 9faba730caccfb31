"""What Inductor makes of the operators: a loop of its own, or a kernel that it calls.

What a kernel reads must be in memory. In a loop what comes before the reduction, and what comes
after it, is computed where it is needed. choice.py decides; where nothing of Inductor fits, or its
internals are others than those this was written for, the kernel is called.

Imported when Inductor is (see _register/fake.py).
"""

import ctypes
import functools
import hashlib
import logging
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sympy
import torch
from torch._inductor import config, ir, lowering
from torch._inductor.virtualized import V, ops
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .. import checks, libraries
from . import report, vectors
from .choice import Facts, choose
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

_BACKENDS = {"cpu": "cpp", "cuda": "triton"}

log = logging.getLogger(__name__)


class NoLoop(Exception):
    """Why a kernel has to be called."""


@functools.cache
def version() -> str:
    """Of the code that decides what Inductor generates."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def preference() -> str:
    from .. import inductor

    return inductor.prefer


def tell_caches() -> None:
    """Keeps Inductor's caches from serving what another version of this code, or another
    preference, has made."""
    tag = f"customops.inductor={version()},{preference()};"
    others = re.sub(r"customops\.inductor=[^;]*;", "", torch.compiler.config.cache_key_tag)
    if torch.compiler.config.cache_key_tag != others + tag:
        torch.compiler.config.cache_key_tag = others + tag


def register() -> None:
    vectors.improve()
    operators = torch.ops.reduceops
    for end in ("min", "max"):
        largest = end == "max"
        for overload in ("default", "dims", "options", "dims_options"):
            op = getattr(getattr(operators, f"arg{end}"), overload)
            _register(op, functools.partial(_arg, largest))
        for overload in ("default", "options"):
            op = getattr(getattr(operators, end), overload)
            _register(op, functools.partial(_extreme, largest))
        _register(getattr(operators, f"scale_{end}").default, functools.partial(_scaled, largest))
        op = getattr(operators, f"_scale_{end}_indices").default
        _register(op, functools.partial(_scaled_with_indices, largest))


def _register(op: torch._ops.OpOverload, loop: Callable) -> None:
    # As Inductor does with an operator unknown to it.
    call = lowering.fallback_handler(op, add_to_fallback_set=False)

    @lowering.register_lowering(op, type_promotion_kind=None)
    def lower(self, *args, **options):
        try:
            return loop(op, self, *args, **options)
        except NoLoop as reason:
            report.chosen(op, self, f"kernel ({reason})")
        except Exception:
            log.warning("%s is not fused: this Inductor is not known here", op, exc_info=True)
        return call(self, *args, **options)


def _arg(largest, op, self, dim=None, keepdim=False, *, mask=None, index_dtype=None):
    loop = Loop(op, self, dim, keepdim, largest, mask, index_dtype, values=False)
    return loop.results()[1]


def _extreme(largest, op, self, dim, keepdim=False, *, mask=None, index_dtype=None):
    return Loop(op, self, dim, keepdim, largest, mask, index_dtype).results()


def _scaled(largest, op, self, scale, dim=1, keepdim=True):
    loop = Loop(op, self, dim, keepdim, largest, scale=scale, indices=False)
    return loop.native_value() if loop.device.type == "cpu" else loop.packed_value()


def _scaled_with_indices(largest, op, self, scale, dim, keepdim):
    return Loop(op, self, dim, keepdim, largest, scale=scale).results()


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


def _is_written(node: torch.fx.Node) -> bool:
    """Whether the input of a reduction is a result of the graph, or read by a library."""
    producer = node.args[0]
    return any(
        user.op == "output" or user.target in lowering.fallbacks
        for user in producer.users
        if user is not node
    )


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
        self.device, self.size = x.get_device(), list(x.get_size())
        if getattr(config, f"{self.device.type}_backend", None) != _BACKENDS.get(self.device.type):
            raise NoLoop("no backend of Inductor that is known here")
        if self.device.type == "cuda" and not libraries.cuda.loaded:
            raise NoLoop("the CUDA library is not loaded")
        if x.get_dtype() not in SUPPORTED:
            raise NoLoop(f"no loop for {x.get_dtype()}")
        if not self.size:
            raise NoLoop("it has no dims")
        self.dims = checks.wrap_dims(op._opname, len(self.size), dim)
        self.order = Order(x.get_dtype(), largest)
        self.extent = sympy.prod([self.size[d] for d in self.dims])
        limit = checks.INDEX_LIMITS[self.index_dtype]
        if index_dtype not in (None, INT64) and not self._is_at_most(limit):
            raise NoLoop("its extent may not fit the index_dtype")
        self.form = self._form()
        if not indices and self.device.type == "cpu" and not _keeps_order(scale, self.order.dtype):
            raise NoLoop("products with this scale are not in the order of what is multiplied")
        self.decide(op)

    def _is_at_most(self, limit: int) -> bool:
        return V.graph.sizevars.statically_known_leq(self.extent, limit)

    def _bound(self) -> int | None:
        """A power of two that the extent does not exceed."""
        bounds = (1 << n for n in (8, 15, 16, 23, 24, 31, 32))
        return next(filter(self._is_at_most, bounds), None)

    def _form(self) -> Packed | None:
        """How an element and its position become an integer; None where no position is wanted."""
        if not self.indices:
            return None
        form = Packed.of(self.order, self._bound(), self.values)
        if form is None:
            raise NoLoop("no integer holds its elements and their positions")
        return form

    def decide(self, op) -> None:
        choice = choose(self.facts(op), preference())
        if not choice.loop:
            raise NoLoop(choice.reason)
        report.chosen(op, self.x, str(choice))

    def facts(self, op) -> Facts:
        inner = self.x.data
        while isinstance(inner, (ir.BaseView, ir.MutableBox)):
            inner = inner.data
        # What Inductor has made a buffer of is fused with what reads it, if it is a loop.
        computed = isinstance(inner, ir.ComputedBuffer) and isinstance(inner.data, ir.Pointwise)
        groups = sympy.prod([n for d, n in enumerate(self.size) if d not in self.dims])
        return Facts(
            device=self.device.type,
            groups=_hint(groups),
            extent=_hint(self.extent),
            itemsize=self.order.dtype.itemsize,
            floating=self.order.floating,
            stored=not computed and not isinstance(inner, ir.Pointwise),
            written=_is_written(V.graph.current_node),
            indices=self.indices,
        )

    def results(self) -> tuple[Any, Any]:
        """The values and the indices, of which one may be None."""
        load, mask = self.x.make_loader(), None
        if self.mask is not None:
            size = [*self.size]
            mask = lowering.expand(self.mask, size).make_loader()

        def packed(index):
            value = load(index)
            if self.scale is not None:
                value = self._product(value)
            packed = self.form.pack(value, self._position(index))
            return packed if mask is None else ops.where(mask(index), packed, self.form.none())

        least = self._reduce(self._pointwise(self.form.word, packed, self.size))
        load_least, size, masked = least.make_loader(), least.get_size(), mask is not None
        values = indices = None
        if self.values:

            def value(index):
                return self.form.value(load_least(index), masked)

            values = self._pointwise(self.order.dtype, value, size)
        if self.indices:

            def position(index):
                position = self.form.position(load_least(index), masked)
                return ops.to_dtype(position, self.index_dtype)

            indices = self._pointwise(self.index_dtype, position, size)
        return values, indices

    def packed_value(self) -> ir.TensorBox:
        """The values alone, by one minimum of integers."""
        load, dtype = self.x.make_loader(), self.order.dtype
        wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
        form = Zeros(wide, self.order.largest, self.extent)
        if not self.extent.is_number or not form.fits:
            raise NoLoop("its extent may be too large")

        def packed(index):
            product = rounded(self._product(load(index)), dtype)
            return form.pack(ops.to_dtype(product, wide), self._position(index))

        least = self._reduce(self._pointwise(form.word, packed, self.size))
        load_least = least.make_loader()

        def value(index):
            return ops.to_dtype(form.value(load_least(index)), dtype)

        return self._pointwise(dtype, value, least.get_size())

    def native_value(self) -> ir.TensorBox:
        """The values alone, as Inductor's own minimum of floats, which vectorizes better than one
        of integers. The order of products is that of the numbers multiplied, so these are
        compared, and the extreme one is rounded and multiplied. Besides, the sign of the first
        zero, which that minimum does not give."""
        load, dtype = self.x.make_loader(), self.order.dtype
        wide, word = (FLOAT64, INT64) if dtype == FLOAT64 else (FLOAT32, INT32)
        with unset_fake_temporarily():
            least_bits = largest_zero(self.scale, dtype)
        turned = self.scale < 0

        def number_of(index):
            return ops.to_dtype(load(index), wide)

        def sign(index):
            return sign_of_zeros(number_of(index), self._position(index), wide, least_bits)

        if not self._is_at_most(1 << 30):
            raise NoLoop("its extent may be too large")
        own = "amax" if self.order.largest != turned else "amin"
        values = self._reduce(self._pointwise(wide, number_of, self.size), own)
        signs = self._reduce(self._pointwise(word, sign, self.size))
        load_value, load_sign = values.make_loader(), signs.make_loader()

        def value(index):
            narrow = ops.to_dtype(load_value(index), dtype)
            product = rounded(self._product(narrow), dtype)
            one, odd = ops.constant(1, word), ops.constant(0 if turned else 1, word)
            negative = ops.eq(ops.bitwise_and(load_sign(index), one), odd)
            zero = ops.where(negative, number(-0.0, wide), number(0.0, wide))
            is_zero = ops.eq(product, ops.constant(0.0, dtype))
            return ops.where(is_zero, ops.to_dtype(zero, dtype), product)

        return self._pointwise(dtype, value, values.get_size())

    def _product(self, value):
        dtype = self.order.dtype
        wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
        return ops.mul(rounded(value, dtype), number(self.scale, wide))

    def _position(self, index):
        """Into the reduced dims, flattened in ascending order."""
        position = sympy.Integer(0)
        for d in self.dims:
            position = position * self.size[d] + index[d]
        return position

    def _pointwise(self, dtype, inner, size):
        return ir.Pointwise.create(device=self.device, dtype=dtype, inner_fn=inner, ranges=size)

    def _reduce(self, x: ir.TensorBox, name: str = "amin") -> ir.TensorBox:
        least = lowering.lowerings[getattr(torch.ops.aten, name).default](
            x, self.dims, self.keepdim
        )
        if ir.is_storage_and_layout(least):
            # Nobody else reads them. Padded strides would only keep Inductor from seeing how
            # contiguous a loop is that never writes them.
            with config.patch(comprehensive_padding=False):
                ir.as_storage_and_layout(least, freeze=True)
        return least
