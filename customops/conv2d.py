"""A convolution, scaled, and its smallest or largest channel: `customops.conv2d_scale_min` and
`conv2d_scale_max`.

On a GPU they are one kernel of cuDNN, which never writes the convolution's result, where cuDNN has
one for the shapes and torch's settings allow it; see docs/gpu.md. Elsewhere they are a convolution
of torch, on a CPU over slices that stay in cache, and `customops.scale_min`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack  # which torch requires

from . import arguments, errors
from ._register import conv2d as register
from ._torch_private import with_direct
from .arguments import ONE, TRUE, Default
from .ops import Names

Numbers = int | Sequence[int]

_TAKEN = ("scale", *register.How._fields[:4])  # by keyword, beside dim and keepdim
_OPS_MIN = with_direct(torch.ops.reduceops.conv2d_scale_min.default)
_OPS_MAX = with_direct(torch.ops.reduceops.conv2d_scale_max.default)


def conv2d_scale_min(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: float | Tensor,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    dim: int = ONE,
    keepdim: bool = TRUE,
    **names: Unpack[Names],
) -> Tensor:
    """``torch.min(torch.nn.functional.conv2d(...) * scale, dim, keepdim)[0]``, NaN included.

    The gradient is that of the two operators it stands for. A GPU may compute both in one kernel:
    of channels that are equal once they are rounded, it is then that of the most extreme before
    rounding. A backward needs `input`, `weight` and what names the channels chosen.

    Args:
        input: `(batch, channels, height, width)`, or without the batch (then see `dim`); float16,
            bfloat16, float32 or float64.
        weight: `(filters, channels / groups, height, width)`, of the dtype and device of `input`.
        bias: `(filters,)`, likewise, or None.
        scale: A number, or a 0-d floating-point tensor, which gets a gradient.
        stride: One number or two, as `padding` and `dilation`.
        padding: Also "valid" or "same", as for ``conv2d``.
        dilation: The distance of neighbours in the kernel.
        groups: Into how many the channels and filters are divided.
        dim: The dim of the convolution's result that is reduced; also `axis`. The channels are dim
            -3. Without the batch, dim 1 is the height.
        keepdim: Whether the result has `dim`, with size 1; also `keepdims`.

    Returns:
        The smallest products, of the dtype of `input`, in the precision that torch's settings give
        a convolution (TF32 included): ``(batch, 1, height, width)`` of the convolution's result for
        ``dim=1, keepdim=True``, without that dim where `keepdim` is False.

    Raises:
        TypeError: An argument is of another type.
        IndexError: `dim` is out of range, or has size 0.
        RuntimeError: The shapes do not convolve; a dtype, layout or device is not supported.

    Example:
        >>> x, weight = torch.ones(1, 2, 3, 3), torch.ones(4, 2, 3, 3)
        >>> customops.conv2d_scale_min(x, weight, None, 0.5, keepdim=False)
        tensor([[[9.]]])
    """
    how = (stride, padding, dilation, groups, dim, keepdim)
    return _call("conv2d_scale_min", _OPS_MIN, (input, weight, bias), scale, how, names)


def conv2d_scale_max(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: float | Tensor,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    dim: int = ONE,
    keepdim: bool = TRUE,
    **names: Unpack[Names],
) -> Tensor:
    """``torch.max(torch.nn.functional.conv2d(...) * scale, dim, keepdim)[0]``, NaN included.

    In all else as `conv2d_scale_min`, gradients too.

    Args:
        input: This and the others as of `conv2d_scale_min`.
        weight: `(filters, channels / groups, height, width)`.
        bias: `(filters,)` or None.
        scale: A number, or a 0-d floating-point tensor, which gets a gradient.
        stride: One number or two, as `padding` and `dilation`.
        padding: Also "valid" or "same".
        dilation: The distance of neighbours in the kernel.
        groups: Into how many the channels and filters are divided.
        dim: As of `conv2d_scale_min`: without the batch, dim 1 is the height. Also `axis`.
        keepdim: Whether the result has `dim`, with size 1; also `keepdims`.

    Returns:
        The largest products, of the dtype of `input`, in the shape that `conv2d_scale_min` gives.

    Raises:
        TypeError: An argument is of another type.
        IndexError: `dim` is out of range, or has size 0.
        RuntimeError: The shapes do not convolve; a dtype, layout or device is not supported.

    Example:
        >>> x, weight = torch.ones(1, 2, 3, 3), torch.ones(4, 2, 3, 3)
        >>> customops.conv2d_scale_max(x, weight, None, 0.5, keepdim=False)
        tensor([[[9.]]])
    """
    how = (stride, padding, dilation, groups, dim, keepdim)
    return _call("conv2d_scale_max", _OPS_MAX, (input, weight, bias), scale, how, names)


def _call(
    name: str,
    ops: tuple[Callable[..., Tensor], Callable[..., Tensor]],
    tensors: tuple[Tensor, Tensor, Tensor | None],
    scale: float | Tensor,
    how: Sequence[Any],
    names: Mapping[str, Any],
) -> Tensor:
    """Calls the operator: under torch.compile its overload, else what that calls."""
    op, direct_op = ops
    stride, padding, dilation, groups, dim, keepdim = how
    if isinstance(dim, Default) and isinstance(keepdim, Default) and not names:
        dim, keepdim = 1, True
    else:
        dim, keepdim, _ = arguments.rename(name, names, _TAKEN, dim, keepdim)
        dim, keepdim = arguments.as_dim(name, dim), arguments.as_keepdim(name, keepdim)
    stride = arguments.as_ints(name, "stride", stride)
    dilation = arguments.as_ints(name, "dilation", dilation)
    groups = arguments.as_int(name, "groups", groups)
    if isinstance(padding, str):
        tensors, padding = _pad(name, tensors, stride, padding, dilation)
    else:
        padding = arguments.as_ints(name, "padding", padding, ", 'valid' or 'same'")
    how = (stride, padding, dilation, groups, dim, keepdim)
    try:
        if torch.compiler.is_dynamo_compiling():
            return op(*tensors, scale, *how)
        return direct_op(*tensors, scale, *register.without_defaults(how))
    except Exception as error:
        errors.throw(_in_python(error, name, tensors, scale, how))


def _in_python(
    error: Exception,
    name: str,
    tensors: tuple[Tensor, Tensor, Tensor | None],
    scale: float | Tensor,
    how: Sequence[Any],
) -> Exception:
    """`error`, or what Python raises for it."""
    if errors.is_out_of_memory(error):
        return errors.caused(torch.OutOfMemoryError(str(error)), error)
    numbers = how[:4]
    try:
        for of, tensor in zip(("input", "weight", "bias"), tensors, strict=True):
            if of != "bias" or tensor is not None:
                arguments.check_input(name, tensor, of)
        arguments.check_scale(name, scale)
        for of, number in zip(("stride", "padding", "dilation", "groups"), numbers, strict=True):
            arguments.check_ints(name, of, number)
    except TypeError as found:
        return errors.caused(found, error)
    try:
        register.check(name, *tensors, *how[:-1])
    except Exception as found:
        same = str(found) == str(error)  # of ints that do not fit torch has an error
        if isinstance(found, IndexError) and (same or not arguments.fit_int64(how[4])):
            return errors.caused(found, error)
    return error


def _pad(
    name: str,
    tensors: tuple[Tensor, Tensor, Tensor | None],
    stride: Sequence[int],
    padding: str,
    dilation: Sequence[int],
) -> tuple[tuple[Tensor, Tensor, Tensor | None], Sequence[int]]:
    """The tensors, of which "same" may pad the input on one side, and the numbers of a word."""
    input, weight, bias = tensors
    if padding == "valid":
        return tensors, [0, 0]
    if padding != "same":
        raise RuntimeError(
            f"reduceops::{name}: padding must be numbers, 'valid' or 'same', got {padding!r}"
        )
    for of, numbers in (("stride", stride), ("dilation", dilation)):
        arguments.check_ints(name, of, numbers)
    if any(step != 1 for step in stride):
        raise RuntimeError(
            f"reduceops::{name}: padding='same' needs a stride of 1, got {list(stride)}"
        )
    for of, tensor in (("input", input), ("weight", weight)):
        arguments.check_input(name, tensor, of)
    # Where torch.fx records the call, the weight's sizes are not known yet: the input is padded
    # then, be it by 0, which copies it.
    recorded = isinstance(weight, torch.fx.Proxy)
    if not recorded and weight.dim() != 4:
        raise RuntimeError(f"reduceops::{name}: weight must be 4-d, got shape {list(weight.shape)}")
    factors = register.pair(name, "dilation", dilation, 1)
    sizes = [d * (weight.shape[n] - 1) for d, n in zip(factors, (2, 3), strict=True)]
    total = arguments.as_ints(name, "padding", sizes)  # of tensors, where torch.jit.trace records
    height, width = (size % 2 for size in total)
    if recorded or height or width:
        input = torch.nn.functional.pad(input, (0, width, 0, height))
    return (input, weight, bias), [size // 2 for size in total]
