"""Every layout and device without a kernel of its own: one error that says what is supported."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from .. import checks, libraries
from .._torch_private import NestedTensor
from . import autograd
from .overloads import OPERATORS, overloads, public_name

_library = torch.library.Library("reduceops", "IMPL")


def _register(op: str, overload: Any) -> None:
    def kernel(self, *args, **kwargs):
        mask = kwargs.get("mask")
        if mask is not None and _is_supported(self):
            checks.check_mask_dtype(op, mask)
            checks.check_mask_place(op, mask, self)
        refuse(op, self)

    register_kernel(overload, kernel)


def refuse(op: str, x: Tensor) -> NoReturn:
    """Says what is wrong with a tensor that no kernel takes."""
    if x.is_quantized:
        checks.check_dtype(op, x.dtype)
    if x.is_cuda and checks.is_strided(x):  # which the CUDA library takes
        raise RuntimeError(
            f"reduceops::{op}: got a tensor on {x.device}, but {libraries.why_not_on(x.device)}"
        )
    layout, dtype = (str(kind).removeprefix("torch.") for kind in (x.layout, x.dtype))
    nested = "nested " if x.is_nested else ""
    raise RuntimeError(
        f"reduceops::{op}: got a {nested}{layout} {dtype} tensor on {x.device.type} "
        "(supported: strided tensors on cpu and cuda)"
    )


def register_kernel(overload: Any, kernel: Callable[..., NoReturn]) -> None:
    """`kernel` for every layout and device that has no other."""
    # CompositeExplicitAutograd leaves out nested tensors; jagged ones are a Python subclass. (What
    # has a C++ Autograd kernel refuses them there.)
    for key in ("CompositeExplicitAutograd", "NestedTensorCPU", "NestedTensorCUDA"):
        _library.impl(overload, kernel, key)
    if NestedTensor is not None:
        torch.library.register_torch_dispatch(
            overload,
            NestedTensor,
            lambda mode, func, types, args, kwargs: kernel(*args, **(kwargs or {})),
            lib=_library,
        )


def _is_supported(self: Tensor) -> bool:
    device = self.is_cpu or (self.is_cuda and libraries.cuda.loaded)
    return device and checks.is_strided(self)


for _op in OPERATORS:
    for _overload in overloads(_op):
        _register(public_name(_op), _overload)


# Keeps CUDA tensors from the C++ Autograd kernel, which could not pass on before torch 2.13 why
# they are refused.
if not libraries.cuda.loaded:
    for _op, _in_python in autograd.in_python.items():
        _library.impl(_op, _in_python, "AutogradCUDA")
