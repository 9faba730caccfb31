"""What torch needs to know of the operators before and after a collective (csrc/distributed.h)."""

import math
from typing import NoReturn

import torch
from torch import Tensor

from .. import _torch_private, checks
from .._register import caches, fake
from .._register.autograd import below_autograd
from .._torch_private import guard_or_false

_ops = torch.ops.reduceops

# The collectives know neither, and a derivative would be lost in silence.
IS_TRANSFORMED = (
    "input or mask is under a transform of torch.func, which has no rule for it: call it outside "
    "of that"
)
HAS_TANGENT = (
    "the values have a gradient by backward() alone, and input has a tangent (arg reductions and "
    "input.detach() need none)"
)


def is_wide(dtype: torch.dtype, extent: int) -> bool:
    """Whether a pair takes 16 bytes instead of 8 (csrc/pair.h)."""
    return dtype.itemsize == 8 or guard_or_false(extent >= (1 << 64 - 8 * dtype.itemsize) - 1)


def _fake_pairs(self, dim, largest, scale, start, size, mask=None):
    caches.set_cache_tag()
    if scale is not None and mask is not None:
        raise RuntimeError("reduceops::_pairs: a scale and a mask do not go together")
    if scale is None:
        checks.check_dtype("_pairs", self.dtype)
    else:
        checks.check_scalable("_pairs", self.dtype)
    checks.check_layout("_pairs", self)
    dims = checks.wrap_dims("_pairs", self.dim(), dim)
    if mask is not None:
        checks.check_mask("_pairs", mask, self)
    count = math.prod(checks.reduced_shape(self.shape, dims, keepdim=False))
    extent = math.prod(size or [n for d, n in enumerate(self.shape) if d in dims])
    words = 1 + count * (2 if is_wide(self.dtype, extent) else 1)
    return self.new_empty((1, words), dtype=torch.int64)


def _fake_unpack(words, self, dim, largest, keepdim=False):
    dims = checks.wrap_dims("_unpack", self.dim(), dim)
    shape = checks.reduced_shape(self.shape, dims, keepdim)
    return self.new_empty(shape), self.new_empty(shape, dtype=torch.int64)


def _refuse(self: Tensor, *_: object) -> NoReturn:
    checks.refuse("_pairs", self)


def _pairs_without_derivatives(self: Tensor, *arguments: object) -> Tensor:
    if _torch_private.are_transforms_active():  # what is not under one is wrapped even so
        raise RuntimeError(f"customops.distributed: {IS_TRANSFORMED}")
    if _torch_private.has_tangent(self):
        raise RuntimeError(f"customops.distributed: {HAS_TANGENT}")
    return below_autograd(_ops._pairs.default, self, *arguments)


def _fake_one_shot_of_group(words, self, dim, largest, keepdim, group_name, headers):
    return *_fake_unpack(words, self, dim, largest, keepdim), words.new_empty(headers)


_fragment = torch.library.Library("reduceops", "FRAGMENT")
_fragment.define(
    "_one_shot_of_group(Tensor words, Tensor self, int[] dim, bool largest, bool keepdim, "
    "str group_name, int headers) -> (Tensor values, Tensor indices, Tensor headers)"
)
_library = torch.library.Library("reduceops", "IMPL")
# Those of a single dim are called in eager mode only, and never traced.
_fallthrough = torch.library.fallthrough_kernel
for _name, _fake, _autograd in (
    ("_pairs", _fake_pairs, _pairs_without_derivatives),
    ("_pairs.dim", None, _fallthrough),
    ("_unpack", _fake_unpack, _fallthrough),
    ("_unpack.dim", None, _fallthrough),
    ("_unpack.index", None, _fallthrough),
):
    if _fake is not None:
        torch.library.register_fake(f"reduceops::{_name}", _fake)
    # Their results have no gradient; exchange.py gives the values theirs.
    _library.impl(_name, _autograd, "Autograd")
    _library.impl(_name, _refuse, "CompositeExplicitAutograd")
    # Any strides will do, as for the operators themselves.
    _packet, _, _overload = _name.partition(".")
    _tags = getattr(getattr(_ops, _packet), _overload or "default").tags
    _tags.append(torch.Tag.flexible_layout)
_library.impl("_one_shot", _fallthrough, "Autograd")

fake.register("reduceops::_one_shot_of_group", _fake_one_shot_of_group)
# Ranks exchange in the order of their calls.
_torch_private.register_ordered(_ops._one_shot_of_group.default)
_library.impl("_one_shot_of_group", _fallthrough, "Autograd")


def _one_shot_of_group(*arguments):
    """Also of a program that was exported in another process, and has no need of the functions."""
    from .exchange import one_shot_of_group

    return one_shot_of_group(*arguments)


_library.impl("_one_shot_of_group", _one_shot_of_group, "CompositeExplicitAutograd")
