"""The public functions: `torch.ops.reduceops.*` with types, documentation and IndexError.

Semantics, on every device and in every mode:

- Ties go to the lowest index; ``-0.0`` and ``0.0`` are equal.
- NaN is smaller than everything for a min, larger than everything for a max; the first NaN wins.
- Integers compare exactly. Results are contiguous; inputs of any strides are read in place. A 0-d
  tensor has the dims 0 and -1.

``argmin``, ``argmax``, ``min`` and ``max`` take two options:

- ``mask``, a bool tensor on the device of `self`, of a shape that broadcasts to that of `self` and
  of any strides, read in place: only elements where it is True take part, NaNs too. Where none
  does, the index is 0 and the value what every element beats: for a min the largest value of the
  dtype, for a max the smallest (infinite if the dtype has infinities; True and False for bool).
  An element of that value that takes part wins over those that do not. A mask has no gradient.
- ``index_dtype``, that of the indices: int64, int32, uint16 or uint8. The elements that are reduced
  to one may be as many as it has non-negative values.

Dtypes: bool, (u)int8 to (u)int64, float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2;
the ``scale_*`` functions and ``softmax_max`` take the first four floating-point ones.

Errors: IndexError for a dim out of range or a reduced dim of size 0, RuntimeError for a dim named
twice, for a dtype, layout or device that is not supported, for a mask or an index_dtype that is
not as above or that does not fit, and where a GPU's memory is not enough torch.OutOfMemoryError
(before torch 2.13 RuntimeError).
"""

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from . import checks

# Calls on tiny tensors are to cost no more than torch's own. So the functions call what calling an
# overload calls, which saves a Python frame, and pass no default, which would have to be parsed.
# torch.compile knows the overloads only.
_traced = torch.compiler.is_dynamo_compiling
_ONE_OR_ALL = (int, type(None))  # not made anew for every call
_INT64 = torch.int64


def _with_direct(packet):
    overload = packet.default
    return overload, getattr(overload, "_op", overload)


_argmin, _direct_argmin = _with_direct(torch.ops.reduceops.argmin)
_argmax, _direct_argmax = _with_direct(torch.ops.reduceops.argmax)
_argmin_dims = torch.ops.reduceops.argmin.dims
_argmax_dims = torch.ops.reduceops.argmax.dims
_min, _direct_min = _with_direct(torch.ops.reduceops.min)
_max, _direct_max = _with_direct(torch.ops.reduceops.max)
_argmin_options = torch.ops.reduceops.argmin.options
_argmax_options = torch.ops.reduceops.argmax.options
_argmin_dims_options = torch.ops.reduceops.argmin.dims_options
_argmax_dims_options = torch.ops.reduceops.argmax.dims_options
_min_options = torch.ops.reduceops.min.options
_max_options = torch.ops.reduceops.max.options
_softmax_max, _direct_softmax_max = _with_direct(torch.ops.reduceops.softmax_max)
_scale_min, _direct_scale_min = _with_direct(torch.ops.reduceops.scale_min)
_scale_max, _direct_scale_max = _with_direct(torch.ops.reduceops.scale_max)


def _raise(error: RuntimeError, op: str, self: Tensor, dim: int | Sequence[int] | None) -> NoReturn:
    """Raises `error`, or the IndexError or OutOfMemoryError that it is: C++ can only raise
    RuntimeError, and torch's own operators raise IndexError for a wrong dim."""
    if "CUDA out of memory" in str(error):
        raise torch.OutOfMemoryError(str(error)) from error
    try:
        checks.check_not_empty(op, self.shape, checks.wrap_dims(op, self.dim(), dim))
    except Exception as found:
        if isinstance(found, IndexError) and str(found) == str(error):
            raise found from error
    raise error


def argmin(
    self: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    mask: Tensor | None = None,
    index_dtype: torch.dtype = _INT64,
) -> Tensor:
    """Index of the smallest element of `self` over `dim`.

    `dim` is one dim, several, or None (or an empty sequence) for all. The result has the shape of
    `self` without `dim`, or with size 1 there if `keepdim`. Over several dims the index is that
    into these dims flattened in ascending order: ``torch.unravel_index(result, [self.size(d) for
    d in sorted(dim)])`` gives the coordinates. `mask` and `index_dtype`: see this module.
    """
    try:
        if mask is not None or index_dtype is not _INT64:
            op, options = _argmin_options, {"mask": mask, "index_dtype": index_dtype}
            if not isinstance(dim, _ONE_OR_ALL) and isinstance(dim, Sequence):
                op, dim = _argmin_dims_options, list(dim)
            return op(self, dim, keepdim, **options)
        op = _argmin if _traced() else _direct_argmin
        if dim is None and not keepdim:
            return op(self)
        if not isinstance(dim, _ONE_OR_ALL) and isinstance(dim, Sequence):
            return _argmin_dims(self, list(dim), keepdim)
        return op(self, dim, keepdim) if keepdim else op(self, dim)
    except RuntimeError as error:
        _raise(error, "argmin", self, dim)


def argmax(
    self: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    mask: Tensor | None = None,
    index_dtype: torch.dtype = _INT64,
) -> Tensor:
    """Index of the largest element of `self` over `dim`; see :func:`argmin`."""
    try:
        if mask is not None or index_dtype is not _INT64:
            op, options = _argmax_options, {"mask": mask, "index_dtype": index_dtype}
            if not isinstance(dim, _ONE_OR_ALL) and isinstance(dim, Sequence):
                op, dim = _argmax_dims_options, list(dim)
            return op(self, dim, keepdim, **options)
        op = _argmax if _traced() else _direct_argmax
        if dim is None and not keepdim:
            return op(self)
        if not isinstance(dim, _ONE_OR_ALL) and isinstance(dim, Sequence):
            return _argmax_dims(self, list(dim), keepdim)
        return op(self, dim, keepdim) if keepdim else op(self, dim)
    except RuntimeError as error:
        _raise(error, "argmax", self, dim)


def min(
    self: Tensor,
    dim: int,
    keepdim: bool = False,
    *,
    mask: Tensor | None = None,
    index_dtype: torch.dtype = _INT64,
) -> tuple[Tensor, Tensor]:
    """The smallest elements of `self` over `dim` and their indices: ``(values, indices)``.

    Values have the dtype of `self` and are its elements, a NaN's bits included. The gradient of a
    value goes to the element chosen, and to none where a `mask` leaves none; a backward needs the
    indices only. `mask` and `index_dtype`: see this module.
    """
    try:
        if mask is not None or index_dtype is not _INT64:
            return _min_options(self, dim, keepdim, mask=mask, index_dtype=index_dtype)
        op = _min if _traced() else _direct_min
        return op(self, dim, keepdim) if keepdim else op(self, dim)
    except RuntimeError as error:
        _raise(error, "min", self, dim)


def max(
    self: Tensor,
    dim: int,
    keepdim: bool = False,
    *,
    mask: Tensor | None = None,
    index_dtype: torch.dtype = _INT64,
) -> tuple[Tensor, Tensor]:
    """The largest elements of `self` over `dim` and their indices; see :func:`min`."""
    try:
        if mask is not None or index_dtype is not _INT64:
            return _max_options(self, dim, keepdim, mask=mask, index_dtype=index_dtype)
        op = _max if _traced() else _direct_max
        return op(self, dim, keepdim) if keepdim else op(self, dim)
    except RuntimeError as error:
        _raise(error, "max", self, dim)


def softmax_max(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """``torch.softmax(self, dim).max(dim, keepdim)`` in one pass: ``(probability, index)``.

    The index, int64, is that of the largest element: the lowest of several, the first NaN. The
    probability, ``1 / sum(exp(self - largest))``, is accumulated in float32 (float64 for float64)
    and has the dtype of `self`: float16, bfloat16, float32 or float64. It is NaN where an element
    is NaN or the largest one is infinite. The gradient is torch's; a backward needs `self`.
    """
    try:
        op = _softmax_max if _traced() else _direct_softmax_max
        return op(self, dim, keepdim) if keepdim else op(self, dim)
    except RuntimeError as error:
        _raise(error, "softmax_max", self, dim)


def scale_min(self: Tensor, scale: float, dim: int = 1, keepdim: bool = True) -> Tensor:
    """``torch.min(self * scale, dim, keepdim)[0]``, bit for bit, without the product in memory.

    `self` is float16, bfloat16, float32 or float64. The gradient is `scale` times that of the
    result, for the element chosen.
    """
    if type(scale) is not float and isinstance(scale, Tensor):
        checks.check_scale("scale_min", scale)
    try:
        op = _scale_min if _traced() else _direct_scale_min
        return op(self, scale, dim, keepdim)
    except RuntimeError as error:
        _raise(error, "scale_min", self, dim)


def scale_max(self: Tensor, scale: float, dim: int = 1, keepdim: bool = True) -> Tensor:
    """``torch.max(self * scale, dim, keepdim)[0]``; see :func:`scale_min`."""
    if type(scale) is not float and isinstance(scale, Tensor):
        checks.check_scale("scale_max", scale)
    try:
        op = _scale_max if _traced() else _direct_scale_max
        return op(self, scale, dim, keepdim)
    except RuntimeError as error:
        _raise(error, "scale_max", self, dim)
