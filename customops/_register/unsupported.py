"""Every layout and device without a kernel of its own: one error that says what is supported."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from .. import checks, libraries
from .._torch_private import NestedTensor
from . import autograd
from .overloads import REDUCTIONS, overloads, public_name

_library = torch.library.Library("reduceops", "IMPL")


def _register(op: str, overload: Any) -> None:
    def kernel(self, *args, **kwargs):
        mask = kwargs.get("mask")
        if mask is not None and checks.is_strided(self):
            checks.check_mask_kind(op, mask)
            if self.is_cpu or (self.is_cuda and libraries.cuda.loaded):
                checks.check_mask_device(op, mask, self)
        checks.refuse(op, self)

    register_kernel(overload, kernel)


def register_kernel(overload: Any, kernel: Callable[..., NoReturn]) -> None:
    """`kernel` for every layout and device that has no other."""
    # CompositeExplicitAutograd leaves out nested tensors; jagged ones are a Python subclass. (What
    # has a C++ Autograd kernel refuses them there.)
    nested = ("NestedTensorCPU", "NestedTensorCUDA", "NestedTensorMeta")
    for key in ("CompositeExplicitAutograd", *nested):
        _library.impl(overload, kernel, key)
    if NestedTensor is not None:
        torch.library.register_torch_dispatch(
            overload,
            NestedTensor,
            lambda mode, func, types, args, kwargs: kernel(*args, **(kwargs or {})),
            lib=_library,
        )


for _op in REDUCTIONS:
    for _overload in overloads(_op):
        _register(public_name(_op), _overload)


# Keeps CUDA tensors from the C++ Autograd kernel, which could not pass on before torch 2.13 why
# they are refused.
if not libraries.cuda.loaded:
    for _op, _in_python in autograd.in_python.items():
        _library.impl(_op, _in_python, "AutogradCUDA")
