"""A shard of a tensor on each rank: reduced, exchanged by a collective, combined."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _torch_private
from . import symmetric

is_compiling = torch.compiler.is_compiling
_all_gather = _torch_private.direct_all_gather()


def _with_direct(overload):
    """What calling an overload calls, too, which torch.compile does not know."""
    return overload, getattr(overload, "_op", overload)


_pairs, _direct_pairs = _with_direct(torch.ops.reduceops._pairs.default)
_unpack, _direct_unpack = _with_direct(torch.ops.reduceops._unpack.default)


def reduce_shard(
    x: Tensor,
    dims: Sequence[int],
    keepdim: bool,
    start: Sequence[int],
    size: Sequence[int],
    groups: Sequence[dist.ProcessGroup],
    largest: bool,
    scale: float | None = None,
    indices_only: bool = False,
) -> tuple[Tensor, Tensor]:
    """(values, indices) over `dims` of all shards of `groups`, the meshes' dims of one tensor.

    `start` and `size` have a number for each of `dims` in ascending order: where the shard begins,
    and the extent of all shards; both may be empty, and `size` alone, if there is one dim.
    """
    has_gradient = not indices_only and x.requires_grad and torch.is_grad_enabled()
    if is_compiling() or type(x) is not Tensor:
        words = _pairs(x, dims, largest, scale, start, size)
        for group in groups:
            if dist.get_world_size(group) > 1:
                words = _torch_private.functional_all_gather(words, group)
        values, indices = _unpack(words, x, dims, keepdim, largest)
    else:
        words = _direct_pairs(x, dims, largest, scale, start, size)
        exchange = None
        # Where this rank's shard begins, a gradient may have to learn from the words of the others.
        if symmetric.exchanges and (start or not has_gradient):
            exchange = symmetric.of_call(groups, words)
        if exchange is not None:
            values, indices = exchange(words, x, dims, keepdim, largest)
        else:
            for group in groups:
                ranks = group.size()
                if ranks > 1:
                    rows, length = words.shape
                    gathered = words.new_empty((ranks * rows, length))
                    _all_gather(group, gathered, words)
                    words = gathered
            values, indices = _direct_unpack(words, x, dims, keepdim, largest)
    if has_gradient:
        begin = start[0] if start else _begin(words, dist.get_rank(groups[0]))
        values = _Select.apply(x, values, indices - begin, dims[0], keepdim, scale)
    return values, indices


def _begin(words: Tensor, rank: int) -> Tensor:
    """Where the shard of a rank begins that follows others: their extents are in the headers."""
    return (~words[:rank, 0]).sum()


class _Select(torch.autograd.Function):
    """The values, with a gradient: it goes to the elements of `x` at `local`, if they are in it."""

    @staticmethod
    def forward(ctx, x, values, local, dim, keepdim, scale):
        ctx.save_for_backward(local)
        ctx.shape, ctx.dim, ctx.keepdim, ctx.scale = x.shape, dim, keepdim, scale
        return values.view_as(values)

    @staticmethod
    def backward(ctx, grad):
        (local,) = ctx.saved_tensors
        if ctx.scale is not None:
            grad = grad * ctx.scale
        zeros = grad.new_zeros(ctx.shape)
        extent = ctx.shape[ctx.dim] if ctx.shape else 1
        if extent == 0:
            return zeros, None, None, None, None, None
        mine = (local >= 0) & (local < extent)
        grad = torch.where(mine, grad, torch.zeros_like(grad))
        local = torch.where(mine, local, torch.zeros_like(local))
        if not ctx.keepdim and ctx.shape:
            grad, local = grad.unsqueeze(ctx.dim), local.unsqueeze(ctx.dim)
        return zeros.scatter(ctx.dim, local, grad), None, None, None, None, None
