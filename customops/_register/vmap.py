"""vmap: the batch is one more kept dim, moved to the front as a view."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .. import checks
from .._torch_private import current_interpreter, vmap_helper
from .overloads import overloads

_library = torch.library.Library("reduceops", "IMPL")


def batch_to_front(
    op: str, self: Tensor, batch_dim: int, dim: int | Sequence[int] | None, keepdim: bool
) -> tuple[Tensor, list[int], bool]:
    """The batched tensor, dims and keepdim that stand for `dim` and `keepdim` of every sample."""
    self = self.movedim(batch_dim, 0)
    dims = checks.wrap_dims(op, self.dim() - 1, dim)
    checks.check_not_empty(op, self.shape[1:], dims)
    if self.dim() == 1:
        # A 0-d sample has nothing to keep: reduce a dim of size 1 that goes away again.
        return self.unsqueeze(1), [1], False
    return self, [dim + 1 for dim in dims], keepdim


def options_to_front(
    op: str,
    in_dims: tuple[int | None, ...],
    self: Tensor,
    dim: int | Sequence[int] | None,
    keepdim: bool,
    mask: Tensor | None,
) -> tuple[Tensor, list[int], bool, Tensor | None]:
    """The same, and the mask for it, where either or both of `self` and `mask` are batched."""
    of_self, of_mask = in_dims[0], None if mask is None else in_dims[3]
    if of_mask is not None:
        mask = mask.movedim(of_mask, 0)
    if of_self is None:  # every sample has the same elements
        self, of_self = self.expand(mask.shape[0], *self.shape), 0
    sample = [size for dim, size in enumerate(self.shape) if dim != of_self % self.dim()]
    self, dims, keepdim = batch_to_front(op, self, of_self, dim, keepdim)
    if mask is not None:
        checks.check_broadcast(op, mask.shape[of_mask is not None :], sample)
    if of_mask is not None:  # between its batch and the dims it has: those it is expanded to
        mask = mask[(slice(None), *(None,) * (self.dim() - mask.dim()))]
    return self, dims, keepdim, mask


def _register(op: str) -> None:
    """One rule for all overloads, those with options too."""
    packet = getattr(torch.ops.reduceops, op)

    def rule(info, in_dims, self, dim=None, keepdim=False, *options):
        mask = options[0] if options else None
        self, dims, keepdim, mask = options_to_front(op, in_dims, self, dim, keepdim, mask)
        named = {"mask": mask, "index_dtype": options[1]} if options else {}
        of_several, of_one = ("dims_options", "options") if options else ("dims", "default")
        if len(dims) > 1:
            results = getattr(packet, of_several)(self, dims, keepdim, **named)
        else:
            results = getattr(packet, of_one)(self, *dims, keepdim, **named)
        return results, (0, 0) if isinstance(results, tuple) else 0

    for overload in overloads(op):
        if "options" in overload.name().partition(".")[2]:
            _register_with_options(overload, rule)
        else:
            torch.library.register_vmap(overload, rule)


def _register_with_options(overload, rule: Callable) -> None:
    """As torch.library.register_vmap does, which takes no tensor by keyword."""

    def call(self, dim, keepdim, mask, index_dtype):
        return overload(self, dim, keepdim, mask=mask, index_dtype=index_dtype)

    def kernel(keys, self, dim=None, keepdim=False, *, mask=None, index_dtype=None):
        arguments = (self, dim, keepdim, mask, index_dtype)
        return vmap_helper(current_interpreter(), rule, call, *arguments)

    _library.impl(overload, kernel, "FuncTorchBatched", with_keyset=True)


def _register_scaled(op: str) -> None:
    def register(name, out_dims):
        packet = getattr(torch.ops.reduceops, name)

        def rule(info, in_dims, self, scale, dim=1, keepdim=True):
            self, (dim,), keepdim = batch_to_front(op, self, in_dims[0], dim, keepdim)
            return packet(self, scale, dim, keepdim), out_dims

        torch.library.register_vmap(f"reduceops::{name}", rule)

    register(op, 0)
    register(f"_{op}_indices", (0, 0))


for _op in ("argmin", "argmax", "min", "max", "softmax_max"):
    _register(_op)
for _op in ("scale_min", "scale_max"):
    _register_scaled(_op)
