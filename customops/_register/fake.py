"""Fake kernels: shapes and dtypes of the results, for meta tensors and tracing."""

import functools
import logging
import sys
import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .. import checks
from . import caches
from .overloads import REDUCTIONS, overloads

log = logging.getLogger("customops.inductor")


def register(overload, fake: Callable) -> None:
    """Before Inductor makes code of an operator, it traces it: time to hand it the loops, which
    would take a second to import earlier."""

    def traced(*arguments, **keywords):
        caches.set_cache_tag()  # each time: a patch of torch's configuration may have ended
        if "torch._inductor.lowering" in sys.modules:
            _use_lowerings()
        return fake(*arguments, **keywords)

    torch.library.register_fake(overload, traced)


def _shape_and_dims(
    op: str, self: Tensor, dim: int | Sequence[int] | None, keepdim: bool
) -> tuple[list[int], list[int]]:
    """Of the results, and of what is reduced."""
    checks.check_layout(op, self)
    dims = checks.wrap_dims(op, self.dim(), dim)
    checks.check_not_empty(op, self.shape, dims)
    return checks.reduced_shape(self.shape, dims, keepdim), dims


def _shape_and_index_dtype(
    op: str,
    self: Tensor,
    dim: int | Sequence[int] | None,
    keepdim: bool,
    mask: Tensor | None,
    index_dtype: torch.dtype | None,
) -> tuple[list[int], torch.dtype]:
    checks.check_dtype(op, self.dtype)
    shape, dims = _shape_and_dims(op, self, dim, keepdim)
    if mask is not None:
        checks.check_mask(op, mask, self)
    return shape, checks.check_index_dtype(op, index_dtype, self.shape, dims)


def _register_arg(op: str) -> None:
    def fake(self, dim=None, keepdim=False, *, mask=None, index_dtype=None):
        shape, dtype = _shape_and_index_dtype(op, self, dim, keepdim, mask, index_dtype)
        return self.new_empty(shape, dtype=dtype)

    for overload in overloads(op):
        register(overload, fake)


def _register_extreme(op: str) -> None:
    def fake(self, dim, keepdim=False, *, mask=None, index_dtype=None):
        shape, dtype = _shape_and_index_dtype(op, self, dim, keepdim, mask, index_dtype)
        return self.new_empty(shape), self.new_empty(shape, dtype=dtype)

    for overload in overloads(op):
        register(overload, fake)


def _register_softmax() -> None:
    def fake(self, dim, keepdim=False):
        checks.check_scalable("softmax_max", self.dtype)
        shape, _ = _shape_and_dims("softmax_max", self, dim, keepdim)
        return self.new_empty(shape), self.new_empty(shape, dtype=torch.int64)

    register("reduceops::softmax_max", fake)


def _register_scaled(op: str) -> None:
    def fake(self, scale, dim=1, keepdim=True):
        checks.check_scalable(op, self.dtype)
        shape, _ = _shape_and_dims(op, self, dim, keepdim)
        return self.new_empty(shape)

    def fake_indices(self, scale, dim, keepdim):
        values = fake(self, scale, dim, keepdim)
        return values, torch.empty_like(values, dtype=torch.int64)

    register(f"reduceops::{op}", fake)
    register(f"reduceops::_{op}_indices", fake_indices)


_one_thread = threading.RLock()  # of those that trace first


def _use_lowerings() -> None:
    """With an Inductor that has not what it takes, the operators remain kernels that it calls."""
    with _one_thread:
        _register_lowerings()


@functools.cache
def _register_lowerings() -> None:
    try:
        from ..inductor import exchange

        exchange.register()
        from ..inductor import lowering

        lowering.register()
    except Exception:  # and not a second time
        text = "no loops: a bug of customops, or an Inductor that is not known to it"
        log.info(text, exc_info=True)


def _register_tags() -> None:
    """Lets Inductor hand over whatever strides it has: without this tag it would copy an input
    or a mask back to the strides of eager mode. (The stable ABI takes tags from 2.12 on only.)"""
    for overload in (overload for name in REDUCTIONS for overload in overloads(name)):
        overload.tags.append(torch.Tag.flexible_layout)


for _op in ("argmin", "argmax"):
    _register_arg(_op)
for _op in ("min", "max"):
    _register_extreme(_op)
for _op in ("scale_min", "scale_max"):
    _register_scaled(_op)
_register_softmax()
_register_tags()
