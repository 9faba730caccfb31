"""The public functions: `torch.ops.reduceops.*` with types, documentation and torch's exceptions.

Semantics, on every device and in every mode:

- Ties go to the lowest index; ``-0.0`` and ``0.0`` are equal.
- NaN is smaller than everything for a min, larger than everything for a max; the first NaN wins.
- Integers compare exactly. Results are contiguous; inputs of any strides are read in place. A 0-d
  tensor has the dims 0 and -1.

Dtypes: bool, (u)int8 to (u)int64, float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2;
the ``scale_*`` functions and ``softmax_max`` take the first four floating-point ones.

``dim`` may be called ``axis`` and ``keepdim`` ``keepdims``, as in torch; an argument that is given
by both names is a TypeError.

Errors, of which each names the operator, what was given and what is taken:

- TypeError for an argument of another type;
- IndexError for a dim out of range or a reduced dim of size 0;
- RuntimeError for a dim named twice, for a dtype, layout or device that is not supported, and for a
  mask or an index_dtype that does not fit;
- torch.OutOfMemoryError where a GPU's memory is not enough (before torch 2.13 RuntimeError).
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, overload

import torch
from torch import Tensor
from typing_extensions import Unpack  # which torch requires

from . import arguments, checks, errors
from ._torch_private import direct, with_direct
from .arguments import FALSE, HAVE_OPTIONS, NONE, ONE, REQUIRED, TRUE, Default
from .results import ProbabilityIndex, ValuesIndices

Dims = int | Sequence[int] | None


class Keepdims(TypedDict, total=False):
    """The other name of `keepdim`."""

    keepdims: bool


class Names(Keepdims, total=False):
    """Other names of `dim` and `keepdim`."""

    axis: int


class Axis(Keepdims):
    """In place of a `dim` that has to be given."""

    axis: int


class Masked(Keepdims, total=False):
    mask: Tensor | None
    index_dtype: torch.dtype | None


class MaskedAxis(Masked):
    axis: int


class Options(Names, Masked, total=False):
    """What `min` and `max` take by keyword."""


class DimsOptions(Masked, total=False):
    """What `argmin` and `argmax` take by keyword."""

    axis: Dims


# A call on a tiny tensor is to cost no more than torch's own. So the usual arguments have a path of
# their own in each function: it calls what an overload calls (one Python frame less), and passes no
# default (torch would parse it). Other types and keywords go through _general, errors through
# _in_python. torch.compile knows the overloads only.
_traced = torch.compiler.is_dynamo_compiling
_new_tuple = tuple.__new__

_ops = torch.ops.reduceops
_argmin, _direct_argmin = with_direct(_ops.argmin.default)
_argmax, _direct_argmax = with_direct(_ops.argmax.default)
_min, _direct_min = with_direct(_ops.min.default)
_max, _direct_max = with_direct(_ops.max.default)
_softmax_max, _direct_softmax_max = with_direct(_ops.softmax_max.default)
_scale_min, _direct_scale_min = with_direct(_ops.scale_min.default)
_scale_max, _direct_scale_max = with_direct(_ops.scale_max.default)


def argmin(
    input: Tensor, dim: Dims = NONE, keepdim: bool = FALSE, **options: Unpack[DimsOptions]
) -> Tensor:
    """The index of the smallest element of `input` over `dim`.

    Args:
        input: A tensor of any shape and strides, read in place.
        dim: One dim, several, or None (or an empty sequence) for all; negative ones count from the
            end. Over several the index is that into these dims flattened in ascending order:
            ``torch.unravel_index(result, [input.size(d) for d in sorted(dim)])`` gives the
            coordinates. Also `axis`.
        keepdim: Whether the result has `dim`, with size 1; also `keepdims`.
        mask: A bool tensor on the device of `input`, of a shape that broadcasts to that of `input`
            and of any strides. Only elements where it is True take part; where none does, the index
            is 0.
        index_dtype: The dtype of the indices: int64 (the default), int32, uint16 or uint8. The
            elements that are reduced to one may be as many as it has non-negative values.

    Returns:
        The indices, of `index_dtype`, in the shape of `input` without `dim` (size 1 there with
        `keepdim`).

    Raises:
        TypeError: An argument is of another type.
        IndexError: A dim is out of range, or has size 0.
        RuntimeError: A dim is named twice; a dtype, layout or device is not supported; `mask` or
            `index_dtype` does not fit.

    Example:
        >>> x = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 0.0]])
        >>> customops.argmin(x, 1)
        tensor([1, 0])
        >>> customops.argmin(x, (0, 1))
        tensor(3)
        >>> customops.argmin(x, axis=1, mask=x > 1, index_dtype=torch.int32)
        tensor([2, 1], dtype=torch.int32)
    """
    try:
        if (keepdim is FALSE or keepdim is False) and not options:
            op = _argmin if _traced() else _direct_argmin
            if type(dim) is int:
                return op(input, dim)
            if dim is None or isinstance(dim, Default):
                return op(input)
        return _general("argmin", input, dim, keepdim, options)
    except Exception as error:
        errors.throw(_in_python(error, "argmin", input, dim, options))


def argmax(
    input: Tensor, dim: Dims = NONE, keepdim: bool = FALSE, **options: Unpack[DimsOptions]
) -> Tensor:
    """The index of the largest element of `input` over `dim`.

    Args:
        input: A tensor of any shape and strides, read in place.
        dim: One dim, several, or None for all, as of `argmin`; also `axis`.
        keepdim: Whether the result has `dim`, with size 1; also `keepdims`.
        mask: As of `argmin`.
        index_dtype: As of `argmin`.

    Returns:
        The indices, of `index_dtype`, in the shape of `input` without `dim` (size 1 there with
        `keepdim`).

    Raises:
        TypeError: An argument is of another type.
        IndexError: A dim is out of range, or has size 0.
        RuntimeError: A dim is named twice; a dtype, layout or device is not supported; `mask` or
            `index_dtype` does not fit.

    Example:
        >>> customops.argmax(torch.tensor([[3, 9, 9], [7, 7, 1]]), dim=-1, keepdim=True)
        tensor([[1],
                [0]])
    """
    try:
        if (keepdim is FALSE or keepdim is False) and not options:
            op = _argmax if _traced() else _direct_argmax
            if type(dim) is int:
                return op(input, dim)
            if dim is None or isinstance(dim, Default):
                return op(input)
        return _general("argmax", input, dim, keepdim, options)
    except Exception as error:
        errors.throw(_in_python(error, "argmax", input, dim, options))


@overload
def min(
    input: Tensor, dim: int, keepdim: bool = False, **options: Unpack[Masked]
) -> ValuesIndices: ...
@overload
def min(
    input: Tensor, *, keepdim: bool = False, **options: Unpack[MaskedAxis]
) -> ValuesIndices: ...
def min(
    input: Tensor, dim: int = REQUIRED, keepdim: bool = FALSE, **options: Unpack[Options]
) -> ValuesIndices:
    """The smallest elements of `input` over `dim`, and their indices.

    The gradient of a value goes to the element chosen, and to none where a `mask` leaves none; a
    backward needs the indices only.

    Args:
        input: A tensor of any shape and strides, read in place.
        dim: The dim that is reduced; it has to be given. Also `axis`.
        keepdim: Whether the results have `dim`, with size 1; also `keepdims`.
        mask: A bool tensor on the device of `input`, of a shape that broadcasts to that of `input`.
            Only elements where it is True take part. Where none does, the index is 0 and the value
            what every element beats: the largest value of the dtype, infinite if it has infinities.
        index_dtype: The dtype of the indices: int64 (the default), int32, uint16 or uint8.

    Returns:
        A named tuple ``(values, indices)``. The values are elements of `input`, a NaN's bits
        included, the indices are of `index_dtype`; both in the shape of `input` without `dim`
        (size 1 there with `keepdim`).

    Raises:
        TypeError: An argument is of another type.
        IndexError: `dim` is out of range, or has size 0.
        RuntimeError: A dtype, layout or device is not supported; `mask` or `index_dtype` does not
            fit.

    Example:
        >>> values, indices = customops.min(torch.tensor([[3.0, 1.0], [0.0, 5.0]]), 1)
        >>> values
        tensor([1., 0.])
        >>> customops.min(torch.tensor([[3.0, 1.0], [0.0, 5.0]]), dim=0).indices
        tensor([1, 0])
    """
    try:
        if (keepdim is FALSE or keepdim is False) and type(dim) is int and not options:
            if _traced():
                return ValuesIndices(*_min(input, dim))
            found = _direct_min(input, dim)
            if type(found) is tuple and len(found) == 2:
                return _new_tuple(ValuesIndices, found)
            return _pair(ValuesIndices, found)
        return _pair(ValuesIndices, _general("min", input, dim, keepdim, options))
    except Exception as error:
        errors.throw(_in_python(error, "min", input, dim, options))


@overload
def max(
    input: Tensor, dim: int, keepdim: bool = False, **options: Unpack[Masked]
) -> ValuesIndices: ...
@overload
def max(
    input: Tensor, *, keepdim: bool = False, **options: Unpack[MaskedAxis]
) -> ValuesIndices: ...
def max(
    input: Tensor, dim: int = REQUIRED, keepdim: bool = FALSE, **options: Unpack[Options]
) -> ValuesIndices:
    """The largest elements of `input` over `dim`, and their indices; gradients as of `min`.

    Args:
        input: A tensor of any shape and strides, read in place.
        dim: The dim that is reduced; it has to be given. Also `axis`.
        keepdim: Whether the results have `dim`, with size 1; also `keepdims`.
        mask: As of `min`. Where no element takes part, the index is 0 and the value the
            smallest of the dtype, infinite if it has infinities.
        index_dtype: The dtype of the indices: int64 (the default), int32, uint16 or uint8.

    Returns:
        A named tuple ``(values, indices)``, as of `min`.

    Raises:
        TypeError: An argument is of another type.
        IndexError: `dim` is out of range, or has size 0.
        RuntimeError: A dtype, layout or device is not supported; `mask` or `index_dtype` does not
            fit.

    Example:
        >>> customops.max(torch.tensor([[3, 9, 9], [7, 7, 1]]), 1)
        ValuesIndices(values=tensor([9, 7]), indices=tensor([1, 0]))
    """
    try:
        if (keepdim is FALSE or keepdim is False) and type(dim) is int and not options:
            if _traced():
                return ValuesIndices(*_max(input, dim))
            found = _direct_max(input, dim)
            if type(found) is tuple and len(found) == 2:
                return _new_tuple(ValuesIndices, found)
            return _pair(ValuesIndices, found)
        return _pair(ValuesIndices, _general("max", input, dim, keepdim, options))
    except Exception as error:
        errors.throw(_in_python(error, "max", input, dim, options))


@overload
def softmax_max(
    input: Tensor, dim: int, keepdim: bool = False, **names: Unpack[Keepdims]
) -> ProbabilityIndex: ...
@overload
def softmax_max(
    input: Tensor, *, keepdim: bool = False, **names: Unpack[Axis]
) -> ProbabilityIndex: ...
def softmax_max(
    input: Tensor, dim: int = REQUIRED, keepdim: bool = FALSE, **names: Unpack[Names]
) -> ProbabilityIndex:
    """``torch.softmax(input, dim).max(dim, keepdim)`` in one pass. The gradient is torch's.

    Args:
        input: A float16, bfloat16, float32 or float64 tensor of any shape and strides.
        dim: The dim that is reduced; it has to be given. Also `axis`.
        keepdim: Whether the results have `dim`, with size 1; also `keepdims`.

    Returns:
        A named tuple ``(probability, index)`` in the shape of `input` without `dim` (size 1 there
        with `keepdim`). The index, int64, is that of the largest element: the lowest of several,
        the first NaN. The probability, ``1 / sum(exp(input - largest))``, is accumulated in float32
        (float64 for float64) and has the dtype of `input`. It is NaN where an element is NaN or the
        largest one is infinite.

    Raises:
        TypeError: An argument is of another type.
        IndexError: `dim` is out of range, or has size 0.
        RuntimeError: A dtype, layout or device is not supported.

    Example:
        >>> probability, index = customops.softmax_max(torch.tensor([[0.0, 0.0], [-1e9, 4.0]]), 1)
        >>> probability, index
        (tensor([0.5000, 1.0000]), tensor([0, 1]))
    """
    try:
        if (keepdim is FALSE or keepdim is False) and type(dim) is int and not names:
            if _traced():
                return ProbabilityIndex(*_softmax_max(input, dim))
            found = _direct_softmax_max(input, dim)
            if type(found) is tuple and len(found) == 2:
                return _new_tuple(ProbabilityIndex, found)
            return _pair(ProbabilityIndex, found)
        return _pair(ProbabilityIndex, _general("softmax_max", input, dim, keepdim, names))
    except Exception as error:
        errors.throw(_in_python(error, "softmax_max", input, dim, names))


def scale_min(
    input: Tensor,
    scale: float | Tensor,
    dim: int = ONE,
    keepdim: bool = TRUE,
    **names: Unpack[Names],
) -> Tensor:
    """``torch.min(input * scale, dim, keepdim)[0]``, bit for bit, without the product in memory.

    The gradient is `scale` times that of the result, for the element chosen.

    Args:
        input: A float16, bfloat16, float32 or float64 tensor of any shape and strides.
        scale: What each element is multiplied by: a number, as a float, or a 0-d floating-point
            tensor, whose gradient is the sum of that of the result times the element chosen. With a
            tensor it is one pass where that is on a CPU, needs no gradient, and neither it nor
            `input` is of a subclass or under a transform; else, if it is not in a compiled graph,
            the product is computed in memory first.
        dim: The dim that is reduced; also `axis`.
        keepdim: Whether the result has `dim`, with size 1; also `keepdims`.

    Returns:
        The values, of the dtype of `input`, in its shape with size 1 at `dim` (without `dim` where
        `keepdim` is False).

    Raises:
        TypeError: An argument is of another type.
        IndexError: `dim` is out of range, or has size 0.
        RuntimeError: A dtype, layout or device is not supported.

    Example:
        >>> customops.scale_min(torch.tensor([[3.0, 1.0], [0.0, 5.0]]), -2.0)
        tensor([[ -6.],
                [-10.]])
    """
    try:
        if not names:
            dim = 1 if isinstance(dim, Default) else dim
            keepdim = True if isinstance(keepdim, Default) else keepdim
            if type(dim) is int and type(keepdim) is bool:
                op = _scale_min if _traced() else _direct_scale_min
                return op(input, scale, dim, keepdim)
        return _general("scale_min", input, dim, keepdim, names, scale)
    except Exception as error:
        errors.throw(_in_python(error, "scale_min", input, dim, names, scale))


def scale_max(
    input: Tensor,
    scale: float | Tensor,
    dim: int = ONE,
    keepdim: bool = TRUE,
    **names: Unpack[Names],
) -> Tensor:
    """``torch.max(input * scale, dim, keepdim)[0]``; in all else as `scale_min`.

    Args:
        input: A float16, bfloat16, float32 or float64 tensor of any shape and strides.
        scale: What each element is multiplied by: a number, as a float, or a 0-d floating-point
            tensor, whose gradient is the sum of that of the result times the element chosen. With a
            tensor it is one pass where that is on a CPU, needs no gradient, and neither it nor
            `input` is of a subclass or under a transform; else, if it is not in a compiled graph,
            the product is computed in memory first.
        dim: The dim that is reduced; also `axis`.
        keepdim: Whether the result has `dim`, with size 1; also `keepdims`.

    Returns:
        The values, of the dtype of `input`, in its shape with size 1 at `dim` (without `dim` where
        `keepdim` is False).

    Raises:
        TypeError: An argument is of another type.
        IndexError: `dim` is out of range, or has size 0.
        RuntimeError: A dtype, layout or device is not supported.

    Example:
        >>> customops.scale_max(torch.tensor([[3.0, 1.0], [0.0, 5.0]]), 2.0, keepdim=False)
        tensor([ 6., 10.])
    """
    try:
        if not names:
            dim = 1 if isinstance(dim, Default) else dim
            keepdim = True if isinstance(keepdim, Default) else keepdim
            if type(dim) is int and type(keepdim) is bool:
                op = _scale_max if _traced() else _direct_scale_max
                return op(input, scale, dim, keepdim)
        return _general("scale_max", input, dim, keepdim, names, scale)
    except Exception as error:
        errors.throw(_in_python(error, "scale_max", input, dim, names, scale))


def _pair(kind: Any, found: Any) -> Any:
    """Two results as the named tuple, those of a proxy of torch.fx too. What else stands for a
    tensor may return anything."""
    if isinstance(found, torch.fx.Proxy):
        return kind(found[0], found[1])  # type: ignore[index]
    return kind(*found) if isinstance(found, (tuple, list)) and len(found) == 2 else found


_NAMES = (*HAVE_OPTIONS, "softmax_max", "scale_min", "scale_max")
_direct_calls = {
    (op, name): direct(getattr(getattr(_ops, op), name))
    for op in _NAMES
    for name in getattr(_ops, op).overloads()
}


def _general(
    op: str,
    input: Tensor,
    dim: Any,
    keepdim: bool,
    options: Mapping[str, Any],
    *scale: float | Tensor,
) -> Any:
    """A call of whatever the functions take, by its parts."""
    # What needs no more than a schema's checks.
    if not scale and not _traced() and type(plain := arguments.value_of(keepdim)) is bool:
        if not options and type(dim) is int:
            return _direct_calls[op, "default"](input, dim, plain)
        if not options and op in arguments.SEVERAL and arguments.are_ints(dim):
            return _direct_calls[op, "dims"](input, dim, plain)
        if options and op in HAVE_OPTIONS and type(dim) is int and arguments.fit_schema(options):
            return _direct_calls[op, "options"](input, dim, plain, **options)
    takes = ("mask", "index_dtype") if op in HAVE_OPTIONS else ("scale",) * len(scale)
    dim, keepdim, rest = arguments.rename(op, options, takes, dim, keepdim)
    arguments.check_input(op, input)
    dim, keepdim = arguments.as_dim(op, dim), arguments.as_keepdim(op, keepdim)
    name = "dims" if isinstance(dim, list) else "default"
    if rest:
        rest = {"mask": None, "index_dtype": None, **rest}
        arguments.check_options(op, **rest)
        name = "dims_options" if isinstance(dim, list) else "options"
    call = getattr(getattr(_ops, op), name) if _traced() else _direct_calls[op, name]
    return call(input, *scale, dim, keepdim, **rest)


def _in_python(
    error: Exception,
    op: str,
    input: Tensor,
    dim: Any,
    options: Mapping[str, Any],
    *scale: float | Tensor,
) -> Exception:
    """`error`, or what it is in Python: of the types of arguments torch says that no schema fits,
    and C++ can only raise RuntimeError where torch's own operators raise IndexError."""
    if isinstance(error, TypeError) and not arguments.is_masked(input):
        return error
    try:
        arguments.check_input(op, input)
        for number in scale:
            arguments.check_scale(op, number)
    except TypeError as found:
        return error if str(found) == str(error) else errors.caused(found, error)
    if errors.is_out_of_memory(error):
        return errors.caused(torch.OutOfMemoryError(str(error)), error)
    dims: Any = None
    try:
        dims = arguments.as_dim(op, arguments.one_of(op, "dim", dim, "axis", dict(options)))
        checks.check_not_empty(op, input.shape, checks.wrap_dims(op, input.dim(), dims))
    except Exception as found:
        same = str(found) == str(error)  # of ints that do not fit torch has an error
        if isinstance(found, IndexError) and (same or not arguments.fit_int64(dims)):
            return errors.caused(found, error)
    return error
