"""vmap: the batch is one more kept dim, moved to the front as a view."""

from collections.abc import Sequence

import torch
from torch import Tensor

from . import checks


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


def _register_arg(op: str) -> None:
    packet = getattr(torch.ops.reduceops, op)

    def rule(info, in_dims, self, dim=None, keepdim=False):
        self, dims, keepdim = batch_to_front(op, self, in_dims[0], dim, keepdim)
        return packet.dims(self, dims, keepdim), 0

    def rule_one_dim(info, in_dims, self, dim=None, keepdim=False):
        if dim is None:
            return rule(info, in_dims, self, dim, keepdim)
        self, (dim,), keepdim = batch_to_front(op, self, in_dims[0], dim, keepdim)
        return packet.default(self, dim, keepdim), 0

    torch.library.register_vmap(f"reduceops::{op}", rule_one_dim)
    torch.library.register_vmap(f"reduceops::{op}.dims", rule)


def _register_extreme(op: str) -> None:
    packet = getattr(torch.ops.reduceops, op)

    def rule(info, in_dims, self, dim, keepdim=False):
        self, (dim,), keepdim = batch_to_front(op, self, in_dims[0], dim, keepdim)
        return packet(self, dim, keepdim), (0, 0)

    torch.library.register_vmap(f"reduceops::{op}", rule)


def _register_scaled(op: str) -> None:
    def register(name, out_dims):
        packet = getattr(torch.ops.reduceops, name)

        def rule(info, in_dims, self, scale, dim=1, keepdim=True):
            self, (dim,), keepdim = batch_to_front(op, self, in_dims[0], dim, keepdim)
            return packet(self, scale, dim, keepdim), out_dims

        torch.library.register_vmap(f"reduceops::{name}", rule)

    register(op, 0)
    register(f"_{op}_indices", (0, 0))


for _op in ("argmin", "argmax"):
    _register_arg(_op)
for _op in ("min", "max"):
    _register_extreme(_op)
for _op in ("scale_min", "scale_max"):
    _register_scaled(_op)
