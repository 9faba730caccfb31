"""A shard of a tensor on each rank: reduced, exchanged by a collective, combined."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from . import _torch_private, symmetric

_ops = torch.ops.reduceops
all_gather_single = getattr(dist, "all_gather_single", None)  # its name from torch 2.13 on
all_gather_single = all_gather_single or dist.all_gather_into_tensor


def reduce_shard(
    x: Tensor,
    dims: Sequence[int],
    keepdim: bool,
    start: Sequence[int],
    size: Sequence[int],
    groups: Sequence[dist.ProcessGroup],
    *,
    largest: bool,
    scale: float | None = None,
    indices_only: bool = False,
) -> tuple[Tensor, Tensor]:
    """(values, indices) over `dims` of all shards of `groups`, the meshes' dims of one tensor.

    `start` and `size` have a number for each of `dims` in ascending order: where the shard begins,
    and the extent of all shards; both may be empty, and `size` alone, if there is one dim.
    """
    words = _ops._pairs(x, dims, largest, scale, start, size)
    has_gradient = x.requires_grad and torch.is_grad_enabled() and not indices_only
    # Where this rank's shard begins, a gradient may have to learn from the words of the others.
    exchange = None
    if not is_traced(words) and not (has_gradient and not start):
        exchange = symmetric.of_call(groups, words)
    if exchange is not None:
        values, indices = exchange(words, x, dims, keepdim, largest)
    else:
        for group in groups:
            words = _all_gather(words, group)
        values, indices = _ops._unpack(words, x, dims, keepdim, largest)
    if has_gradient:
        begin = start[0] if start else _begin(words, dist.get_rank(groups[0]))
        values = _Select.apply(x, values, indices - begin, dims[0], keepdim, scale)
    return values, indices


def is_traced(words: Tensor) -> bool:
    """Whether the call is to be a part of a graph."""
    return torch.compiler.is_compiling() or type(words) is not Tensor


def _all_gather(words: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The words of all ranks, (rows, length) from each, in the order of ranks."""
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return words
    if is_traced(words):
        return _torch_private.functional_all_gather(words, group)
    gathered = words.new_empty((ranks * words.size(0), words.size(1)))
    all_gather_single(gathered, words, group=group)
    return gathered


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
