"""What Inductor makes of `scale_min` and `scale_max`, which are otherwise kernels that it calls.

What a kernel reads must be in memory. An input that Inductor has as an expression only (the sum of
a convolution and its bias, an activation) it would write for the kernel alone. There the product
and its extreme value become part of Inductor's loop, with the bits of eager mode. Everywhere else
the kernel is called as if nothing were registered here.

Should Inductor's internals be others than those it was written for, the kernel is called as well.

Imported when Inductor is (see _register/fake.py).
"""

import ctypes
import functools
import hashlib
import logging
from pathlib import Path

import torch
from torch._inductor import config, ir, lowering
from torch._inductor.virtualized import V, ops

from .. import libraries

INT32, FLOAT32 = torch.int32, torch.float32
SIGN, INFINITY = -(1 << 31), 0x7F800000  # the bits of -0.0 and of infinity

# The devices where every float32 product that is a NaN is the same NaN, and the backend that makes
# code for them. On a CPU, and on a GPU in float64, it keeps bits of the NaN that was multiplied,
# and a key (below) has no room for them.
_BACKENDS = {"cuda": "triton"} if libraries.cuda.loaded else {}
_NAN = 0x7FFFFFFF
# The patterns of NaNs, as many as the keys that zeros may take, two for each position.
_TURN = _NAN - INFINITY
_MAX_EXTENT = _TURN // 2


_log = logging.getLogger(__name__)


def register() -> None:
    for end in ("min", "max"):
        _register(getattr(torch.ops.reduceops, f"scale_{end}").default, end == "max")


@functools.cache
def _version(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def tell_caches() -> None:
    """Keeps Inductor's caches from serving what another version of this file has made."""
    tag = f"customops.lowering={_version(__file__)};"
    if tag not in torch.compiler.config.cache_key_tag:
        torch.compiler.config.cache_key_tag += tag


def _register(op: torch._ops.OpOverload, largest: bool) -> None:
    # As Inductor does with an operator unknown to it. (Realized inputs: an expression of several
    # reads that others use, too, is in memory.)
    call = lowering.fallback_handler(op)
    lowering.add_needs_realized_inputs(op)

    @lowering.register_lowering(op, type_promotion_kind=None)
    def lower(self, scale, dim=1, keepdim=True):
        try:
            if _is_fusible(self, dim):
                return _scaled_extreme(self, scale, dim, keepdim, largest)
        except Exception:
            _log.warning("%s is not fused: this Inductor is not known here", op, exc_info=True)
        return call(self, scale, dim, keepdim)


def _is_fusible(self: ir.TensorBox, dim: int) -> bool:
    device = self.get_device().type
    return (
        device in _BACKENDS
        and getattr(config, f"{device}_backend") == _BACKENDS[device]
        and self.get_dtype() == FLOAT32
        and not ir.is_storage_and_layout(self)
        and len(self.get_size()) > 0
        and V.graph.sizevars.statically_known_leq(self.get_size()[dim], _MAX_EXTENT)
    )


def _scaled_extreme(
    self: ir.TensorBox, scale: float, dim: int, keepdim: bool, largest: bool
) -> ir.TensorBox:
    """The minimum of int32 keys: NaNs, negative numbers, zeros by their position, positive numbers.

    Eager mode gives the element of lowest index, so a zero has the sign of the first zero. A
    maximum is the minimum of the products with the negated scale, negated. The bits of a product
    that is not negative are turned round the circle of integers until infinity is the highest, so
    that NaNs are the lowest; those of negative ones are turned over below the zeros."""
    load = self.make_loader()
    dim %= len(self.get_size())
    factor = _bits_of(-scale if largest else scale)
    least_zero = _TURN - 2 * self.get_size()[dim]  # odd

    def constant(value):
        return ops.constant(value, INT32)

    def integer(expression):
        return ops.index_expr(expression, INT32)

    def key(index):
        value = ops.mul(load(index), ops.to_dtype_bitcast(constant(factor), FLOAT32, INT32))
        bits = ops.to_dtype_bitcast(value, INT32, FLOAT32)
        negative = ops.lt(bits, constant(0))
        below = ops.sub(ops.add(integer(least_zero), constant(SIGN)), bits)
        number = ops.where(negative, below, ops.add(bits, constant(_TURN)))
        position = least_zero + 2 * index[dim]
        zero = ops.where(negative, integer(position + 1), integer(position))
        is_zero = ops.eq(value, ops.constant(0.0, FLOAT32))
        # Some kernels compute indices as int64.
        return ops.to_dtype(ops.where(is_zero, zero, number), INT32)

    def value(index):
        key = load_key(index)
        negative, positive = ops.lt(key, integer(least_zero)), ops.gt(key, constant(_TURN))
        magnitude = ops.where(positive, ops.sub(key, constant(_TURN)), constant(0))
        magnitude = ops.where(negative, ops.sub(integer(least_zero), key), magnitude)
        even = ops.eq(ops.bitwise_and(key, constant(1)), constant(0))  # a negative zero's
        minus, plus = map(constant, (0, SIGN) if largest else (SIGN, 0))
        sign = ops.where(positive, plus, ops.where(ops.logical_or(negative, even), minus, plus))
        is_nan = ops.lt(key, integer(least_zero - INFINITY))
        bits = ops.where(is_nan, constant(_NAN), ops.bitwise_or(magnitude, sign))
        return ops.to_dtype_bitcast(ops.to_dtype(bits, INT32), FLOAT32, INT32)

    def pointwise(dtype, inner, size):
        device = self.get_device()
        return ir.Pointwise.create(device=device, dtype=dtype, inner_fn=inner, ranges=size)

    minimum = lowering.lowerings[torch.ops.aten.amin.default]
    keys = minimum(pointwise(INT32, key, self.get_size()), [dim], keepdim)
    if ir.is_storage_and_layout(keys):
        # Nobody else reads them. Padded strides would only keep Inductor from seeing how contiguous
        # a loop is that never writes them.
        with config.patch(comprehensive_padding=False):
            ir.as_storage_and_layout(keys, freeze=True)
    load_key = keys.make_loader()
    return pointwise(FLOAT32, value, keys.get_size())


def _bits_of(value: float) -> int:
    """Of a float32. (A constant as a number could lose the sign of a zero and a NaN.)"""
    return ctypes.c_int32.from_buffer(ctypes.c_float(value)).value
