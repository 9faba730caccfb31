"""What each operator becomes in ONNX; imported only where onnxscript is installed.

The functions take what the operators take, with ONNX values for tensors, and each call on `op` adds
a node to the graph. A value made here has no dtype yet, so the dtype is passed along.
"""

import math

import torch
from onnxscript import ir, opset19
from onnxscript import opset18 as op

from .. import checks
from .._register.overloads import overloads

DType = ir.DataType
FLOAT8 = (DType.FLOAT8E4M3FN, DType.FLOAT8E5M2)
FLOATING = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT, DType.DOUBLE, *FLOAT8)

# Dtypes that runtimes do not compare, and those that hold their values exactly.
COMPARED_AS = {
    DType.BOOL: DType.UINT8,
    DType.INT16: DType.INT32,
    DType.UINT16: DType.INT32,
    DType.UINT32: DType.INT64,
    DType.FLOAT16: DType.FLOAT,
    DType.BFLOAT16: DType.FLOAT,
    DType.FLOAT8E4M3FN: DType.FLOAT,
    DType.FLOAT8E5M2: DType.FLOAT,
}
# With a mask: runtimes have Where for fewer.
MASKED_AS = {**COMPARED_AS, DType.INT8: DType.INT32, DType.UINT64: DType.INT64}
INDEX_DTYPES = {
    torch.int64: DType.INT64,
    torch.int32: DType.INT32,
    torch.uint16: DType.UINT16,
    torch.uint8: DType.UINT8,
}


def table():
    functions = {"softmax_max": softmax_max}
    for extreme in ("min", "max"):
        arg, values_and_indices, scaled, scaled_and_indices = _functions(extreme)
        functions |= {
            f"arg{extreme}": arg,
            extreme: values_and_indices,
            f"scale_{extreme}": scaled,
            f"_scale_{extreme}_indices": scaled_and_indices,
            f"conv2d_scale_{extreme}": _convolved(extreme, scaled),
        }
    return {
        overload: function for name, function in functions.items() for overload in overloads(name)
    }


def softmax_max(self, dim, keepdim=False):
    rank, dtype = len(self.shape), self.dtype
    axis = checks.wrap_dim("softmax_max", rank, dim)
    wide = DType.DOUBLE if dtype == DType.DOUBLE else DType.FLOAT
    x = op.Cast(_at_least_1d(self), to=wide)
    index = _index("max", x, dtype, axis)
    powers = op.Exp(op.Sub(x, op.GatherElements(x, index, axis=axis)))
    probability = op.Reciprocal(op.ReduceSum(powers, [axis], keepdims=1))
    probability = op.Cast(probability, to=dtype)
    return tuple(_restore(result, rank, axis, keepdim) for result in (probability, index))


def _functions(extreme):
    """The four forms of an operator, for "min" or "max"."""

    def arg(self, dim=None, keepdim=False, mask=None, index_dtype=None):
        rank, x = len(self.shape), _comparable(_at_least_1d(self), self.dtype)
        dims = checks.wrap_dims(f"arg{extreme}", rank, dim) or [0]
        mask = _expanded(mask, x)
        if len(dims) > 1:
            index = _index_of_several(extreme, x, self.dtype, rank, dims, keepdim, mask)
        else:
            index = _index(extreme, x, self.dtype, dims[0], mask)
            index = _restore(index, rank, dims[0], keepdim)
        return _converted(index, index_dtype)

    def values_and_indices(self, dim, keepdim=False, mask=None, index_dtype=None):
        values, index = _select(extreme, self, _at_least_1d(self), dim, keepdim, mask)
        return values, _converted(index, index_dtype)

    def scaled_and_indices(self, scale, dim=1, keepdim=True):
        return _select(extreme, self, _product(_at_least_1d(self), scale, self.dtype), dim, keepdim)

    def scaled(self, scale, dim=1, keepdim=True):
        return scaled_and_indices(self, scale, dim, keepdim)[0]

    return arg, values_and_indices, scaled, scaled_and_indices


def _convolved(extreme, scaled):
    """A convolution and then `scaled`."""

    def convolved_and_scaled(
        input, weight, bias, scale, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1, dim=1,
        keepdim=True,
    ):  # fmt: skip
        both = [list(pair) * (3 - len(pair)) for pair in (stride, padding, dilation)]
        options = {"strides": both[0], "pads": both[1] * 2, "dilations": both[2], "group": groups}
        is_padded_before = not _are_numbers(both[1])
        if not _are_numbers((*both[0], *both[2], groups)):
            raise RuntimeError(
                f"reduceops::conv2d_scale_{extreme}: ONNX has no convolution whose stride, "
                "dilation or groups depend on sizes"
            )
        batched, dtype = len(input.shape) == 4, input.dtype
        x = input if batched else op.Unsqueeze(input, [0])
        if dtype == DType.BFLOAT16:  # for which there is no Conv
            x, weight, bias = (t and op.Cast(t, to=DType.FLOAT) for t in (x, weight, bias))
        if is_padded_before:  # by what depends on sizes, which is no attribute
            x, options["pads"] = _padded(x, both[1]), [0, 0, 0, 0]
        y = op.Conv(x, weight, bias, **options)
        y = op.Cast(y, to=dtype) if dtype == DType.BFLOAT16 else y
        y = y if batched else op.Squeeze(y, [0])
        y.dtype, y.shape = dtype, ir.Shape([None] * len(input.shape))  # a value made here has none
        return scaled(y, scale, dim, keepdim)

    return convolved_and_scaled


def _are_numbers(values):
    return all(isinstance(value, int) for value in values)


def _padded(x, padding):
    """Of four dims, the last two with so many zeros on each side."""
    one = op.Constant(value_ints=[1])
    sides = [
        op.Constant(value_ints=[p]) if isinstance(p, int) else op.Reshape(p, one) for p in padding
    ]
    ends = op.Concat(op.Constant(value_ints=[0, 0]), *sides, axis=0)
    return op.Pad(x, op.Concat(ends, ends, axis=0))


def _select(extreme, self, x, dim, keepdim, mask=None):
    """(values, indices) of `x`, which has the dtype of `self` and its shape if not 0-d."""
    dtype, rank = self.dtype, len(self.shape)
    axis = checks.wrap_dim(extreme, rank, dim)
    comparable = _comparable(x, dtype)
    mask = _expanded(mask, comparable)  # runtimes have no Shape of some dtypes
    index = _index(extreme, comparable, dtype, axis, mask)
    # Runtimes have nothing but conversions for float8.
    values = op.GatherElements(comparable if dtype in FLOAT8 else x, index, axis=axis)
    if mask is not None:
        of = DType.FLOAT if dtype in FLOAT8 else dtype
        none = ir.tensor([_least(extreme, dtype)], dtype=of)
        values = _or_else(op.GatherElements(mask, index, axis=axis), values, none)
    values = _restore(values, rank, axis, keepdim)
    if dtype in FLOAT8:
        values = opset19.Cast(values, to=dtype, saturate=0)  # infinity stays infinity
    return values, _restore(index, rank, axis, keepdim)


def _index(extreme, x, dtype, axis, mask=None):
    """The index of the extreme of `x`, a comparable form of a tensor of `dtype`; `axis` is kept.

    ArgMin and ArgMax give the first of several extremes, as the operators do, but ONNX leaves open
    what they do with NaN. So where there is a NaN, its index is found apart.
    """
    nan = op.IsNaN(x) if dtype in FLOATING else None
    if mask is not None:
        # Of those that equal the extreme the first that takes part is chosen: of none, index 0.
        nan = op.And(mask, nan) if nan is not None else None
        x = _masked(extreme, x, dtype, mask)
    index = (op.ArgMax if extreme == "max" else op.ArgMin)(x, axis=axis, keepdims=1)
    if mask is not None:
        equal = op.And(mask, op.Equal(x, op.GatherElements(x, index, axis=axis)))
        index = op.ArgMax(op.Cast(equal, to=DType.UINT8), axis=axis, keepdims=1)
    if nan is None:
        return index
    first_nan = op.ArgMax(op.Cast(nan, to=DType.UINT8), axis=axis, keepdims=1)
    return op.Where(op.GatherElements(nan, first_nan, axis=axis), first_nan, index)


def _index_of_several(extreme, x, dtype, rank, dims, keepdim, mask=None):
    """The index into `dims` flattened: they are moved to the end and become one dim."""
    kept = [d for d in range(rank) if d not in dims]

    def flattened(x):
        x = op.Transpose(x, perm=kept + dims)
        shape = op.ReduceProd(op.Shape(x, start=len(kept)))
        if kept:
            shape = op.Concat(op.Shape(x, end=len(kept)), shape, axis=0)
        return op.Reshape(x, shape, allowzero=1)

    mask = None if mask is None else flattened(mask)
    index = op.Squeeze(_index(extreme, flattened(x), dtype, len(kept), mask), [len(kept)])
    return op.Unsqueeze(index, dims) if keepdim else index


def _expanded(mask, x):
    """In the shape of `x`, for it is gathered from."""
    return None if mask is None else op.Expand(mask, op.Shape(x))


def _converted(index, index_dtype):
    if index_dtype in (None, torch.int64, DType.INT64):
        return index
    return op.Cast(index, to=INDEX_DTYPES.get(index_dtype, index_dtype))


def _least(extreme, dtype):
    """What every element of `dtype` beats."""
    if dtype == DType.BOOL:
        return extreme == "min"
    if dtype in FLOATING:
        value = 448.0 if dtype == DType.FLOAT8E4M3FN else math.inf  # it has no infinity
        return value if extreme == "min" else -value
    info = torch.iinfo(getattr(torch, dtype.name.lower()))
    return info.max if extreme == "min" else info.min


def _masked(extreme, x, dtype, mask):
    """`x`, a comparable form of a tensor of `dtype`, with what every element beats where it takes
    no part. (Zeros may lose their sign.)"""
    x = op.Cast(x, to=DType.INT32) if dtype == DType.INT8 else x
    # The sign bit of uint64 is flipped.
    least = _least(extreme, dtype) - (dtype == DType.UINT64) * (1 << 63)
    least = ir.tensor(least, dtype=MASKED_AS.get(dtype, dtype))
    return op.Where(mask, x, op.Constant(value=least))


def _or_else(condition, x, other):
    """`x` where the condition holds, else the one element of `other`. Runtimes have Where for few
    dtypes, and not for the sign of a zero."""
    elements = op.Concat(op.Reshape(x, [-1]), op.Constant(value=other), axis=0)
    count = op.Size(condition)
    places = op.Reshape(op.Range(0, count, 1), op.Shape(condition))
    return op.Gather(elements, op.Where(condition, places, count), axis=0)


def _comparable(x, dtype):
    """`x` in a dtype that runtimes compare, with the same order."""
    if dtype == DType.UINT64:
        # With its sign bit flipped, and read as int64.
        flipped = op.BitwiseXor(x, ir.tensor(1 << 63, dtype=dtype))
        return op.Cast(flipped, to=DType.INT64)
    return op.Cast(x, to=COMPARED_AS[dtype]) if dtype in COMPARED_AS else x


def _product(x, scale, dtype):
    """`x` * `scale`, computed as torch does: 16-bit floats in float32, and then rounded."""
    wide = DType.DOUBLE if dtype == DType.DOUBLE else DType.FLOAT
    factor = op.Constant(value=ir.tensor(scale, dtype=wide))
    if dtype == wide:
        return op.Mul(x, factor)
    return op.Cast(op.Mul(op.Cast(x, to=wide), factor), to=dtype)


def _at_least_1d(self):
    if len(self.shape):
        return self
    # Runtimes reshape no float8.
    return op.Reshape(op.Cast(self, to=DType.FLOAT) if self.dtype in FLOAT8 else self, [1])


def _restore(x, rank, axis, keepdim):
    """Without `axis` if that is asked for, or if the input was 0-d."""
    return x if keepdim and rank else op.Squeeze(x, [axis])
