"""The order of elements as integers, in Inductor's operations (compare csrc/order.h).

The element chosen is the one with the smallest key. A key and a position packed into one integer
make an arg-reduction one minimum of integers, which Inductor splits, fuses and vectorizes as any
other, and of which equal keys give the lowest position whatever order a loop runs in.
"""

import ctypes
import math
import struct
from dataclasses import dataclass

import torch
from torch._inductor.virtualized import ops

from .. import checks

INT32, INT64, FLOAT32, FLOAT64 = torch.int32, torch.int64, torch.float32, torch.float64
_INTEGER = {1: torch.int8, 2: torch.int16, 4: INT32, 8: INT64}  # by the bytes of an element
_UNSIGNED = (torch.uint8, torch.uint16, torch.uint32)
# The bits of infinity, or where there is none, of the largest number.
_LARGEST = {
    torch.float64: 0x7FF0000000000000,
    torch.float32: 0x7F800000,
    torch.float16: 0x7C00,
    torch.bfloat16: 0x7F80,
    torch.float8_e5m2: 0x7C,
    torch.float8_e4m3fn: 0x7E,
}


def constant(value, dtype):
    return ops.constant(value, dtype)


def number(value: float, dtype: torch.dtype):
    """A constant float32 or float64. (As a number it could lose the sign of a zero, and a NaN.)"""
    if dtype == FLOAT64:
        bits = struct.unpack("q", struct.pack("d", value))[0]
        return ops.to_dtype_bitcast(constant(bits, INT64), FLOAT64, INT64)
    bits = ctypes.c_int32.from_buffer(ctypes.c_float(value)).value
    return ops.to_dtype_bitcast(constant(bits, INT32), FLOAT32, INT32)


def index(position, word: torch.dtype):
    """Of Inductor's indices, which some kernels compute in other integers."""
    return ops.to_dtype(ops.index_expr(position, word), word)


def rounded(value, dtype: torch.dtype):
    """An expression of `dtype`, which Inductor computes in float32 if that is 16 bits wide."""
    if dtype.itemsize != 2:
        return value
    bits = ops.to_dtype_bitcast(value, torch.int16, dtype)
    return ops.to_dtype_bitcast(bits, dtype, torch.int16)


class _InWord:
    """What is computed in integers of `word`."""

    word: torch.dtype

    def _constant(self, value: int):
        return constant(value, self.word)


@dataclass(frozen=True)
class Order(_InWord):
    """Of the elements of `dtype`; with `largest` the largest comes first."""

    dtype: torch.dtype
    largest: bool

    @property
    def floating(self) -> bool:
        return self.dtype.is_floating_point

    @property
    def width(self) -> int:
        """How many bits a key has."""
        return 8 * self.dtype.itemsize

    @property
    def word(self) -> torch.dtype:
        """The integers that keys are computed in."""
        return INT64 if self.width == 64 or self.dtype == torch.uint32 else INT32

    def _bits(self, value):
        """Of a floating-point number, with its sign extended."""
        integer = _INTEGER[self.dtype.itemsize]
        bits = ops.to_dtype_bitcast(value, integer, self.dtype)
        return bits if integer == self.word else ops.to_dtype(bits, self.word)

    def key(self, value):
        """An integer of `word`, smaller for an element that comes earlier, and whether it is a
        negative zero if it is a zero. Zeros are equal, and so are NaNs, which come first."""
        if not self.floating:
            key = value if self.dtype == self.word else ops.to_dtype(value, self.word)
            if self.dtype in _UNSIGNED:
                key = ops.sub(key, self._constant(1 << self.width - 1))
            return (ops.bitwise_not(key) if self.largest else key), None
        bits, largest = self._bits(value), _LARGEST[self.dtype]
        sign = ops.bitwise_right_shift(bits, self._constant(self.width - 1))
        magnitude = ops.bitwise_and(bits, self._constant((1 << self.width - 1) - 1))
        flip = ops.bitwise_not(sign) if self.largest else sign
        key = ops.sub(ops.bitwise_xor(magnitude, flip), flip)
        is_nan = ops.gt(magnitude, self._constant(largest))
        return ops.where(is_nan, self._constant(-largest - 1), key), sign

    @property
    def compared(self) -> torch.dtype:
        """What `comparable` gives: a float, or else a key."""
        if not self.floating:
            return self.word
        return FLOAT32 if self.dtype.itemsize == 1 else self.dtype

    @property
    def extreme(self) -> str:
        """Inductor's reduction to the first of what `comparable` gives."""
        return "max" if self.floating and self.largest else "min"

    def comparable(self, value):
        if not self.floating:
            return self.key(value)[0]
        return rounded(ops.to_dtype(value, self.compared), self.dtype)

    def comes_before(self, one, other):
        """Whether one is chosen though it comes later, both as `comparable` gives them."""
        if not self.floating:
            return ops.lt(one, other)
        # Unordered, too: that is, unless the other is a NaN, if one is.
        not_later = ops.le(one, other) if self.largest else ops.ge(one, other)
        return ops.logical_and(ops.logical_not(not_later), ops.eq(other, other))

    def where(self, condition, one, other):
        """One of two floats, by their bits: of eight Inductor has no `where`."""
        integer = _INTEGER[self.dtype.itemsize]
        bits = (ops.to_dtype_bitcast(value, integer, self.dtype) for value in (one, other))
        return ops.to_dtype_bitcast(ops.where(condition, *bits), self.dtype, integer)

    def value(self, key, negative_zero=None):
        """The element whose key this is; of a NaN, any."""
        if not self.floating:
            key = ops.bitwise_not(key) if self.largest else key
            if self.dtype in _UNSIGNED:
                key = ops.add(key, self._constant(1 << self.width - 1))
            return key if self.dtype == self.word else ops.to_dtype(key, self.dtype)
        largest, zero = _LARGEST[self.dtype], self._constant(0)
        is_nan = ops.eq(key, self._constant(-largest - 1))
        key = ops.neg(key) if self.largest else key
        negative = ops.logical_or(
            ops.lt(key, zero), ops.logical_and(ops.eq(key, zero), negative_zero)
        )
        sign = ops.where(negative, self._constant(-(1 << self.width - 1)), zero)
        bits = ops.bitwise_or(ops.where(ops.lt(key, zero), ops.neg(key), key), sign)
        bits = ops.where(is_nan, self._constant((1 << self.width - 1) - 1), bits)
        integer = _INTEGER[self.dtype.itemsize]
        bits = bits if integer == self.word else ops.to_dtype(bits, integer)
        return ops.to_dtype_bitcast(bits, self.dtype, integer)

    def element(self, compared):
        """What was made comparable."""
        return ops.to_dtype(compared, self.dtype) if self.floating else self.value(compared)

    def key_of(self, compared):
        """As `key`, of what `comparable` gives."""
        return self.key(self.element(compared)) if self.floating else (compared, None)

    @property
    def last(self) -> int:
        """The largest key."""
        if self.dtype == torch.bool:
            return -1 if self.largest else 1
        return _LARGEST.get(self.dtype, (1 << self.width - 1) - 1)

    @property
    def last_element(self) -> float:
        """That of the largest key, of what has all numbers of its width."""
        if self.floating:
            return -math.inf if self.largest else math.inf
        limits = torch.iinfo(self.dtype)
        return limits.min if self.largest else limits.max


@dataclass(frozen=True)
class Packed(_InWord):
    """(key, position) in one integer: the key above, and below it the position and, where the
    value of a float is wanted, whether it is a negative zero."""

    order: Order
    word: torch.dtype
    with_sign: bool

    @classmethod
    def of(
        cls, order: Order, extent: int | None, with_values: bool, masked: bool = False
    ) -> "Packed | None":
        """The narrowest that has room for positions below `extent`, which is None if unknown, and
        with `masked` for `none`."""
        with_sign = with_values and order.floating
        for word in (INT32, INT64):
            room = 8 * word.itemsize - order.width - with_sign
            if extent is not None and room > 0 and extent + masked <= 1 << room:
                return cls(order, word, with_sign)
        return None

    @property
    def _shift(self):
        return constant(8 * self.word.itemsize - self.order.width, self.word)

    def none(self):
        """That of an element that does not take part: more than any other."""
        return self._constant((1 << 8 * self.word.itemsize - 1) - 1)

    def is_none(self, packed):
        return ops.eq(packed, self.none())

    def pack(self, key, sign, position):
        """What `Order.key` gives, and an integer of `word`."""
        below = position
        key = key if self.order.word == self.word else ops.to_dtype(key, self.word)
        if self.with_sign:
            sign = ops.bitwise_and(sign, constant(1, self.order.word))
            sign = sign if self.order.word == self.word else ops.to_dtype(sign, self.word)
            # Not twice the position first: that is an index to Inductor, of 32 bits in Triton.
            below = ops.add(ops.add(below, sign), below)
        return ops.bitwise_or(ops.bitwise_left_shift(key, self._shift), below)

    def position(self, packed, masked=False):
        mask = (1 << 8 * self.word.itemsize - self.order.width) - 1
        below = ops.bitwise_and(packed, self._constant(mask))
        if self.with_sign:
            below = ops.bitwise_right_shift(below, self._constant(1))
        if masked:
            below = ops.where(self.is_none(packed), self._constant(0), below)
        return below

    def value(self, packed, masked=False):
        """With `masked` there may be none: the value is then what every element beats."""
        key = ops.bitwise_right_shift(packed, self._shift)
        minus = None
        if self.with_sign:
            minus = ops.ne(ops.bitwise_and(packed, self._constant(1)), self._constant(0))
        key = key if self.order.word == self.word else ops.to_dtype(key, self.order.word)
        if masked:
            last = constant(self.order.last, self.order.word)
            key = ops.where(self.is_none(packed), last, key)
        return self.order.value(key, minus)


def sign(value, dtype: torch.dtype, word: torch.dtype):
    """1 of what has its sign set, else 0: of float32 or float64, in `word`."""
    integer = _INTEGER[dtype.itemsize]
    bits = ops.to_dtype_bitcast(value, integer, dtype)
    below_zero = ops.lt(bits, constant(0, integer))
    return ops.where(below_zero, constant(1, word), constant(0, word))


SUPPORTED = tuple(dtype for dtype in checks.SUPPORTED if dtype != torch.uint64)
