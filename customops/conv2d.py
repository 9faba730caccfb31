"""A convolution, scaled, and its smallest or largest channel: `customops.conv2d_scale_min` and
`conv2d_scale_max`.

On a GPU they are one kernel of cuDNN, which never writes the convolution's result, where cuDNN has
one for the shapes and torch's settings allow it; see docs/gpu.md. Elsewhere they are a convolution
of torch, on a CPU over slices that stay in cache, and :func:`customops.scale_min`.
"""

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from ._register import conv2d as register
from .ops import _traced, _with_direct

_scale_min, _direct_scale_min = _with_direct(torch.ops.reduceops.conv2d_scale_min)
_scale_max, _direct_scale_max = _with_direct(torch.ops.reduceops.conv2d_scale_max)


def conv2d_scale_min(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: float,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    dim: int = 1,
    keepdim: bool = True,
) -> Tensor:
    """``torch.min(torch.nn.functional.conv2d(...) * scale, dim, keepdim)[0]``, NaN included.

    The gradient is that of the two operators it stands for; a backward needs `input`, `weight` and
    the indices of the channels chosen.

    Args:
        input: `(batch, channels, height, width)`, or without the batch; float16, bfloat16, float32
            or float64.
        weight: `(filters, channels / groups, height, width)`, of the dtype and device of `input`.
        bias: `(filters,)`, likewise, or None.
        scale: A number.
        stride: One number or two, as `padding` and `dilation`.
        padding: Also "valid" or "same", as for ``conv2d``.
        dilation: The distance of neighbours in the kernel.
        groups: Into how many the channels and filters are divided.
        dim: The dim of the convolution's result that is reduced.
        keepdim: Whether the result has `dim`, with size 1.

    Returns:
        The smallest products, of the dtype of `input`, in the precision that torch's settings give
        a convolution (TF32 included).

    Raises:
        IndexError: `dim` is out of range, or has size 0.
        RuntimeError: The shapes do not convolve; a dtype, layout or device is not supported.

    Example:
        >>> x, weight = torch.ones(1, 2, 3, 3), torch.ones(4, 2, 3, 3)
        >>> customops.conv2d_scale_min(x, weight, None, 0.5, keepdim=False)
        tensor([[[9.]]])
    """
    how = _how("conv2d_scale_min", input, weight, stride, padding, dilation)
    input, rest = how[0], (*how[1:], groups, dim, keepdim)
    try:
        op = _scale_min if _traced() else _direct_scale_min
        return op(input, weight, bias, scale, *rest)
    except RuntimeError as error:
        _raise(error, "conv2d_scale_min", input, weight, bias, *rest[:-1])


def conv2d_scale_max(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: float,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    dim: int = 1,
    keepdim: bool = True,
) -> Tensor:
    """``torch.max(torch.nn.functional.conv2d(...) * scale, dim, keepdim)[0]``, NaN included.

    Args, Returns, Raises: as of :func:`conv2d_scale_min`.
    """
    how = _how("conv2d_scale_max", input, weight, stride, padding, dilation)
    input, rest = how[0], (*how[1:], groups, dim, keepdim)
    try:
        op = _scale_max if _traced() else _direct_scale_max
        return op(input, weight, bias, scale, *rest)
    except RuntimeError as error:
        _raise(error, "conv2d_scale_max", input, weight, bias, *rest[:-1])


def _how(op, input, weight, stride, padding, dilation) -> tuple[Tensor, list, list, list]:
    """The input and the numbers of the schema; "same" may pad one side more, as a copy."""
    stride, dilation = ([x] * 2 if isinstance(x, int) else x for x in (stride, dilation))
    if not isinstance(padding, str):
        return input, stride, [padding] * 2 if isinstance(padding, int) else padding, dilation
    if padding == "valid":
        return input, stride, [0, 0], dilation
    if padding != "same":
        raise RuntimeError(f"reduceops::{op}: padding must be numbers, 'valid' or 'same', got "
                           f"{padding!r}")  # fmt: skip
    if any(step != 1 for step in stride):
        raise RuntimeError(f"reduceops::{op}: padding='same' needs a stride of 1, got {stride}")
    factors = register.pair(op, "dilation", dilation, 1)
    if weight.dim() != 4:
        raise RuntimeError(f"reduceops::{op}: weight must be 4-d, got shape {list(weight.shape)}")
    total = [d * (size - 1) for d, size in zip(factors, weight.shape[2:], strict=True)]
    if any(size % 2 for size in total):
        height, width = (size % 2 for size in total)
        input = torch.nn.functional.pad(input, (0, width, 0, height))
    return input, stride, [size // 2 for size in total], dilation


def _raise(error: RuntimeError, op: str, *arguments) -> NoReturn:
    """Raises `error`, or the IndexError or OutOfMemoryError that it is; see ops.py."""
    if "CUDA out of memory" in str(error):
        raise torch.OutOfMemoryError(str(error)) from error
    try:
        register.check(op, *arguments)
    except Exception as found:
        if isinstance(found, IndexError) and str(found) == str(error):
            raise found from error
    raise error
