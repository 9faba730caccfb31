"""What each operator becomes in ONNX; imported only where onnxscript is installed.

The functions take what the operators take, with ONNX values for tensors, and each call on `op` adds
a node to the graph. A value made here has no dtype yet, so the dtype is passed along.
"""

import torch
from onnxscript import ir, opset19
from onnxscript import opset18 as op

from . import checks

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


def table():
    ops = torch.ops.reduceops
    functions = {}
    for extreme in ("min", "max"):
        arg, values_and_indices, scaled, scaled_and_indices = _functions(extreme)
        functions[getattr(ops, f"arg{extreme}").default] = arg
        functions[getattr(ops, f"arg{extreme}").dims] = arg
        functions[getattr(ops, extreme).default] = values_and_indices
        functions[getattr(ops, f"scale_{extreme}").default] = scaled
        functions[getattr(ops, f"_scale_{extreme}_indices").default] = scaled_and_indices
    return functions


def _functions(extreme):
    """The four forms of an operator, for "min" or "max"."""

    def arg(self, dim=None, keepdim=False):
        rank, x = len(self.shape), _comparable(_at_least_1d(self), self.dtype)
        dims = checks.wrap_dims(f"arg{extreme}", rank, dim) or [0]
        if len(dims) > 1:
            return _index_of_several(extreme, x, self.dtype, rank, dims, keepdim)
        return _restore(_index(extreme, x, self.dtype, dims[0]), rank, dims[0], keepdim)

    def values_and_indices(self, dim, keepdim=False):
        return _select(extreme, self, _at_least_1d(self), dim, keepdim)

    def scaled_and_indices(self, scale, dim=1, keepdim=True):
        return _select(extreme, self, _product(_at_least_1d(self), scale, self.dtype), dim, keepdim)

    def scaled(self, scale, dim=1, keepdim=True):
        return scaled_and_indices(self, scale, dim, keepdim)[0]

    return arg, values_and_indices, scaled, scaled_and_indices


def _select(extreme, self, x, dim, keepdim):
    """(values, indices) of `x`, which has the dtype of `self` and its shape if not 0-d."""
    dtype, rank = self.dtype, len(self.shape)
    axis = checks.wrap_dim(extreme, rank, dim)
    comparable = _comparable(x, dtype)
    index = _index(extreme, comparable, dtype, axis)
    # Runtimes have nothing but conversions for float8.
    values = op.GatherElements(comparable if dtype in FLOAT8 else x, index, axis=axis)
    values = _restore(values, rank, axis, keepdim)
    if dtype in FLOAT8:
        values = opset19.Cast(values, to=dtype, saturate=0)  # infinity stays infinity
    return values, _restore(index, rank, axis, keepdim)


def _index(extreme, x, dtype, axis):
    """The index of the extreme of `x`, a comparable form of a tensor of `dtype`; `axis` is kept.

    ArgMin and ArgMax give the first of several extremes, as the operators do, but ONNX leaves open
    what they do with NaN. So where there is a NaN, its index is found apart.
    """
    index = (op.ArgMax if extreme == "max" else op.ArgMin)(x, axis=axis, keepdims=1)
    if dtype not in FLOATING:
        return index
    nan = op.IsNaN(x)
    first_nan = op.ArgMax(op.Cast(nan, to=DType.UINT8), axis=axis, keepdims=1)
    return op.Where(op.GatherElements(nan, first_nan, axis=axis), first_nan, index)


def _index_of_several(extreme, x, dtype, rank, dims, keepdim):
    """The index into `dims` flattened: they are moved to the end and become one dim."""
    kept = [d for d in range(rank) if d not in dims]
    x = op.Transpose(x, perm=kept + dims)
    shape = op.ReduceProd(op.Shape(x, start=len(kept)))
    if kept:
        shape = op.Concat(op.Shape(x, end=len(kept)), shape, axis=0)
    x = op.Reshape(x, shape, allowzero=1)
    index = op.Squeeze(_index(extreme, x, dtype, len(kept)), [len(kept)])
    return op.Unsqueeze(index, dims) if keepdim else index


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
    return self if len(self.shape) else op.Reshape(self, [1])


def _restore(x, rank, axis, keepdim):
    """Without `axis` if that is asked for, or if the input was 0-d."""
    return x if keepdim and rank else op.Squeeze(x, [axis])
