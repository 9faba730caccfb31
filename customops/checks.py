"""Argument checks in Python, for tracing: the errors of csrc/check.h, on symbolic sizes too."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import torch
from torch import Tensor

from . import _torch_private, libraries
from ._torch_private import guard_or_false, statically_known_true

SCALABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SUPPORTED = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    *SCALABLE,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)

# How many different indices each can hold.
INDEX_LIMITS = {
    torch.int64: 1 << 63,
    torch.int32: 1 << 31,
    torch.uint16: 1 << 16,
    torch.uint8: 1 << 8,
}

MAX_DIMS = 64


@contextmanager
def errors_name(function: str, *others: str) -> Iterator[None]:
    """Errors name this function, where those of checks that it shares name one of the others."""
    try:
        yield
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        text = str(error)
        for other in others:
            text = text.replace(f"{other}:", f"{function}:")
        if text == str(error):  # not of a check, and maybe of a type that takes more than a text
            raise
        raise type(error)(text) from None


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _names(dtypes: Sequence[torch.dtype]) -> str:
    return ", ".join(map(dtype_name, dtypes))


def is_strided(x: Tensor) -> bool:
    """Whether a kernel can read it, if it has the dtype."""
    return x.layout == torch.strided and not (x.is_nested or x.is_quantized)


def layout_name(x: Tensor) -> str:
    kind = "nested " if x.is_nested else "quantized " if x.is_quantized else ""
    return kind + str(x.layout).removeprefix("torch.")


def check_layout(op: str, x: Tensor) -> None:
    """And on what device it is: a graph for a GPU may be made where there is none."""
    if not is_strided(x) or x.device.type not in ("cpu", "cuda", "meta"):
        refuse(op, x)


def refuse(op: str, x: Tensor) -> NoReturn:
    """Says what is wrong with a tensor that no kernel takes."""
    check_dtype(op, x.dtype)
    if x.is_cuda and is_strided(x) and (why := libraries.why_not_on(x.device)):
        raise RuntimeError(f"reduceops::{op}: got a tensor on {x.device}, but {why}")
    raise RuntimeError(
        f"reduceops::{op}: got a {layout_name(x)} {dtype_name(x.dtype)} tensor on "
        f"{x.device.type} (supported: strided tensors on cpu and cuda)"
    )


def check_dtype(op: str, dtype: torch.dtype) -> None:
    if dtype not in SUPPORTED:
        raise RuntimeError(
            f"reduceops::{op}: dtype {dtype_name(dtype)} is not supported "
            f"(supported: {_names(SUPPORTED)})"
        )


def check_scalable(op: str, dtype: torch.dtype) -> None:
    if dtype not in SCALABLE:
        raise RuntimeError(
            f"reduceops::{op}: the input must be a floating-point tensor ({_names(SCALABLE)}), "
            f"got {dtype_name(dtype)}"
        )


def check_scale(op: str, scale: Tensor, self: Tensor) -> None:
    check_strided(op, "scale", scale)  # first, for a nested tensor has no shape
    # torch.jit.trace has tensors for sizes.
    is_size = scale.dtype == torch.int64 and torch.jit.is_tracing()  # type: ignore[attr-defined]
    if scale.dim() or not (scale.dtype.is_floating_point or is_size):
        raise RuntimeError(
            f"reduceops::{op}: scale must be a number or a 0-d floating-point tensor, got "
            f"{dtype_name(scale.dtype)} of shape {list(scale.shape)}"
        )
    if scale.device.type != "cpu" and scale.device != self.device:
        raise RuntimeError(
            f"reduceops::{op}: scale must be on the device of the input, {self.device}, or on a "
            f"CPU, got {scale.device}"
        )


def wrap_dim(op: str, ndim: int, dim: int) -> int:
    """`dim` counted from the front; a 0-d tensor has the dims of a 1-d one."""
    bound = max(ndim, 1)
    if not -bound <= dim < bound:  # Dynamo formats no symbol, but a number
        raise IndexError(
            f"reduceops::{op}: dim {int(dim)} is out of range for a {ndim}-d tensor "
            f"(valid: {-bound} to {bound - 1})"
        )
    return dim % bound


def wrap_dims(op: str, ndim: int, dims: int | Sequence[int] | None) -> list[int]:
    """The dims to reduce, counted from the front, ascending; none given means all of them."""
    if ndim > MAX_DIMS:
        raise RuntimeError(
            f"reduceops::{op}: a tensor of {ndim} dims is not supported (at most {MAX_DIMS})"
        )
    if dims is None:
        return list(range(ndim))
    if isinstance(dims, int):
        return [wrap_dim(op, ndim, dims)]
    wrapped = [wrap_dim(op, ndim, dim) for dim in dims]
    for position, dim in enumerate(wrapped):
        if dim in wrapped[:position]:
            raise RuntimeError(
                f"reduceops::{op}: dim {dims[position]} appears twice in dim={list(dims)}"
            )
    return sorted(wrapped) or list(range(ndim))


def check_not_empty(op: str, shape: Sequence[int], dims: Sequence[int]) -> None:
    for dim in dims:
        # A 0-d tensor has no size to look at; one that depends on data is the kernel's to check.
        if dim < len(shape) and guard_or_false(shape[dim] == 0):
            raise IndexError(
                f"reduceops::{op}: cannot reduce over dim {dim}, which has size 0 "
                f"(input shape {list(shape)})"
            )


def check_mask(op: str, mask: Tensor, self: Tensor) -> None:
    check_mask_kind(op, mask)
    check_broadcast(op, mask.shape, self.shape)
    check_mask_device(op, mask, self)


def check_mask_kind(op: str, mask: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise RuntimeError(
            f"reduceops::{op}: mask must be a bool tensor, got {dtype_name(mask.dtype)}"
        )
    check_strided(op, "mask", mask)


def check_strided(op: str, name: str, x: Tensor) -> None:
    """For arguments other than the input."""
    if not is_strided(x):
        raise RuntimeError(
            f"reduceops::{op}: {name} must be a strided tensor, got a {layout_name(x)} one"
        )


def check_mask_device(op: str, mask: Tensor, self: Tensor) -> None:
    if mask.device != self.device:
        raise RuntimeError(
            f"reduceops::{op}: mask must be on the device of the input, {self.device}, "
            f"got {mask.device}"
        )


def check_broadcast(op: str, mask: Sequence[int], shape: Sequence[int]) -> None:
    def text() -> str:
        return (
            f"reduceops::{op}: a mask of shape {list(mask)} does not broadcast to the input's "
            f"{list(shape)}"
        )

    if len(mask) > len(shape):
        raise RuntimeError(text())
    for size, full in zip(reversed(mask), reversed(shape), strict=False):
        if guard_or_false(size == 1):
            continue
        try:
            _torch_private.check(size == full, text)
        except RuntimeError:  # backed_size_oblivious takes no size for 1 unless nothing else fits
            _torch_private.check(size == 1, text)


def check_index_dtype(
    op: str, dtype: torch.dtype | None, shape: Sequence[int], dims: Sequence[int]
) -> torch.dtype:
    """The dtype of the indices. Without a guard on sizes: of symbols the kernel decides."""
    dtype = torch.int64 if dtype is None else dtype
    if dtype not in INDEX_LIMITS:
        raise RuntimeError(
            f"reduceops::{op}: index_dtype must be int64, int32, uint16 or uint8, "
            f"got {dtype_name(dtype)}"
        )
    extent = math.prod(shape[dim] for dim in dims if dim < len(shape))
    if dtype != torch.int64 and statically_known_true(extent > INDEX_LIMITS[dtype]):
        raise RuntimeError(
            f"reduceops::{op}: index_dtype {dtype_name(dtype)} cannot hold every index of {extent} "
            "elements"
        )
    return dtype


def reduced_shape(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> list[int]:
    if keepdim:
        return [1 if dim in dims else size for dim, size in enumerate(shape)]
    return [size for dim, size in enumerate(shape) if dim not in dims]
