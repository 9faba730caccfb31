"""A shard of a tensor on each rank: reduced, exchanged by a collective, combined."""

import math
from collections.abc import Sequence
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _torch_private
from .._register.autograd import has_elements, scatter
from .._register.scale import product
from . import symmetric
from .links import Link, link_of

_is_compiling, _modes = torch.compiler.is_dynamo_compiling, _torch_private.dispatch_modes
_PLAIN = (Tensor, torch.nn.Parameter)


def is_traced(x: Tensor) -> bool:
    """Whether a call with it becomes a part of a graph, or Python sees it in another way."""
    if _is_compiling() or _modes() > 0 or torch.jit.is_tracing():
        return True
    return type(x) not in _PLAIN and isinstance(x, Tensor)


_ops = torch.ops.reduceops
_pairs, _direct_pairs = _torch_private.with_direct(_ops._pairs.default)
_unpack, _direct_unpack = _torch_private.with_direct(_ops._unpack.default)
_direct_pairs_dim = _torch_private.direct(_ops._pairs.dim)
_direct_unpack_dim = _torch_private.direct(_ops._unpack.dim)
_direct_unpack_index = _torch_private.direct(_ops._unpack.index)


def one_shot_of_group(
    words: Tensor,
    x: Tensor,
    dims: Sequence[int],
    largest: bool,
    keepdim: bool,
    group_name: str,
    headers: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """(values, indices, headers) of the group that has the name now, whose ranks may have symmetric
    memory no more; `headers` says how many are wanted, of all ranks or none."""
    group = _torch_private.group_named(group_name)
    exchange = symmetric.exchange_of(group)
    if exchange is None:
        words = _gathered(words, (group,), False)
        values, indices = _direct_unpack(words, x, dims, largest, keepdim)
        return values, indices, words[:, 0].contiguous() if headers else words.new_empty(0)
    values, indices = exchange(words, x, dims, largest, keepdim)
    return values, indices, exchange.headers() if headers else words.new_empty(0)


def reduce_shard(
    x: Tensor,
    dims: Sequence[int],
    keepdim: bool,
    start: Sequence[int],
    size: Sequence[int],
    groups: Sequence[dist.ProcessGroup],
    largest: bool,
    scale: float | torch.SymFloat | None = None,
    indices_only: bool = False,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(values, indices) over `dims` of all shards of `groups`, the meshes' dims of one tensor.

    `start` and `size` have a number for each of `dims` in ascending order: where the shard begins,
    and the extent of all shards; both may be empty, and `size` alone, if there is one dim. `mask`
    is this rank's, of a shape that broadcasts to that of `x`.
    """
    traced = is_traced(x)
    has_gradient = not indices_only and x.requires_grad and torch.is_grad_enabled()
    follows = has_gradient and not start  # the ranks before, whose headers hold their extents
    pairs = _pairs if traced else _direct_pairs
    source = x.detach() if indices_only else x  # indices have no derivative to lose
    number = scale
    if isinstance(scale, torch.SymFloat):  # a schema's number would have a graph for each value
        source, number = product(source, scale), None
    words = pairs(source, dims, largest, number, start, size, mask)
    if len(groups) == 1 and symmetric.is_for(groups[0], words):
        one_shot = _ops._one_shot_of_group if traced else one_shot_of_group
        group, wanted = groups[0].group_name, groups[0].size() if follows else 0
        values, indices, headers = one_shot(words, x, dims, largest, keepdim, group, wanted)
    else:
        words = _gathered(words, groups, traced)
        unpack = _unpack if traced else _direct_unpack
        values, indices = unpack(words, x, dims, largest, keepdim)
        headers = words[:, 0]
    if has_gradient:
        begin = (~headers[: dist.get_rank(groups[0])]).sum() if follows else start[0]
        values = _Select.apply(x, values, indices - begin, dims[0], keepdim, scale, mask)
    return values, indices


def reduce_in_eager_mode(
    x: Tensor,
    dim: int,
    keepdim: bool,
    offset: int | None,
    group: dist.ProcessGroup,
    link: Link,
    largest: bool,
    indices_only: bool,
) -> tuple[Tensor | None, Tensor]:
    """What `reduce_shard` gives for one dim, in as few calls and arguments as can be: the
    host takes longer than the kernels."""
    if not indices_only and x.requires_grad and torch.is_grad_enabled():
        start = [] if offset is None else [offset]
        return reduce_shard(x, [dim], keepdim, start, [], [group], largest)
    exchange = symmetric.exchanges.get(ref(group))
    ranks, _, _, all_gathers = link
    room = ranks if exchange is None else 0
    if offset is None:
        words, gathered = _direct_pairs_dim(x, dim, largest, room)
    else:
        words, gathered = _direct_pairs_dim(x, dim, largest, room, offset)
    if exchange is not None:
        if exchange.fits(words):
            return exchange(words, x, [dim], largest, keepdim)
        gathered = _gathered(words, (group,), False)
    elif ranks > 1:
        all_gathers[words.is_cuda](gathered, words)
    else:
        gathered = words
    keep = (True,) if keepdim else ()
    if indices_only:
        return None, _direct_unpack_index(gathered, x, dim, largest, *keep)
    return _direct_unpack_dim(gathered, x, dim, largest, *keep)


def _gathered(words: Tensor, groups: Sequence[dist.ProcessGroup], traced: bool) -> Tensor:
    """The words of all ranks, (ranks, length), from those of this one, (1, length)."""
    for group in groups:
        ranks = group.size()
        if ranks == 1:
            continue
        if torch.jit.is_tracing():  # a trace would keep this call's words
            raise RuntimeError(
                "customops.distributed: torch.jit.trace cannot record what ranks exchange; "
                "torch.export and torch.compile can"
            )
        if traced and not _is_checked(words, group):
            words = _torch_private.functional_all_gather(words, group)
            continue
        rows, length = words.shape
        gathered = words.new_empty((ranks * rows, length))
        link_of(group).all_gather(gathered, words)
        words = gathered
    return words


def _is_checked(words: Tensor, group: dist.ProcessGroup) -> bool:
    """Whether torch would wait for ever where only this rank's collective is a functional one."""
    return type(words) is Tensor and _torch_private.is_real(words) and link_of(group).is_compared


class _Select(torch.autograd.Function):
    """The values, with a gradient: it goes to the elements of `x` at `local`, if they are in it.
    (Where a mask lets none through, `local` is that of index 0, which is hidden.)"""

    @staticmethod
    def forward(ctx, x, values, local, dim, keepdim, scale, mask):
        extent = x.shape[dim] if x.dim() else 1
        mine = (local >= 0) & (local < extent)
        if mask is not None and extent > 0:  # whose bytes may be others than 0 and 1
            mine = torch.where(has_elements(mask, local, x, dim, keepdim), mine, False)
        ctx.save_for_backward(local, mine)
        ctx.shape, ctx.dim, ctx.keepdim, ctx.scale = x.shape, dim, keepdim, scale
        ctx.is_empty = extent == 0
        return values.detach()  # no view, which could not be changed in place

    @staticmethod
    def backward(ctx, grad):
        local, mine = ctx.saved_tensors
        if ctx.scale is not None:
            grad = grad * ctx.scale
        if ctx.is_empty:
            grad = grad if ctx.keepdim else grad.unsqueeze(ctx.dim)
            return grad.narrow(ctx.dim, 0, 0), *[None] * 6
        grad = torch.where(mine, grad, torch.zeros_like(grad))
        local = torch.where(mine, local, torch.zeros_like(local))
        return scatter(grad, local, ctx.shape, ctx.dim, ctx.keepdim, False), *[None] * 6


def softmax_max_of_shard(
    x: Tensor, dim: int, keepdim: bool, start: int, groups: Sequence[dist.ProcessGroup]
) -> tuple[Tensor, Tensor]:
    """(probability, index) over `dim` of all shards, of which this rank's begins at `start`.

    A rank sends three float64 for each output: the largest of its shard, that one's index and its
    probability there, which is 1 / sum(exp(x - largest)).
    """
    traced = is_traced(x)
    local = x.detach()
    if local.size(dim) > 0:
        # In 16 bits the probability within a shard would be rounded, and again that of all.
        wide = local.float() if local.dtype.itemsize == 2 else local
        probability, index = _ops.softmax_max.default(wide, dim, True)
        largest, index = local.gather(dim, index), index + start
    else:  # it loses against all others
        one = local.sum(dim, keepdim=True)
        probability, largest = torch.ones_like(one), torch.full_like(one, -math.inf)
        index = torch.full_like(one, _NO_INDEX, dtype=torch.int64)
    mine = torch.stack([largest.double(), probability.double(), index.double()])
    words = _gathered(mine.reshape(1, -1), groups, traced)
    largest, probability, index = words.unflatten(1, mine.shape).unbind(1)
    best = torch.amax(largest, 0)  # NaN if there is one
    first = torch.where((largest == best) | largest.isnan() & best.isnan(), index, _NO_INDEX).amin(
        0
    )
    sums = torch.where(largest == -math.inf, 0.0, torch.exp(largest - best) / probability)
    probability = torch.where(best.isfinite(), 1 / sums.sum(0), math.nan)
    if x.requires_grad and torch.is_grad_enabled():
        probability = _Probability.apply(x, probability, best, first - start, dim)
    probability, index = probability.to(x.dtype), first.long()
    return (probability, index) if keepdim else (probability.squeeze(dim), index.squeeze(dim))


_NO_INDEX = float(1 << 53)  # above all that a float64 has room for


class _Probability(torch.autograd.Function):
    """The probability of the largest, with a gradient to all elements of `x`."""

    @staticmethod
    def forward(ctx, x, probability, largest, local, dim):
        ctx.save_for_backward(x, probability, largest, local)
        ctx.dim = dim
        return probability.clone()  # which may be changed in place

    @staticmethod
    def backward(ctx, grad):
        x, *saved = ctx.saved_tensors
        with torch.no_grad():
            result = _Probability._gradient(ctx, grad, x, *saved)
        if torch.is_grad_enabled():
            result = _NotTwice.apply(result, x, grad)
        return result, None, None, None, None

    @staticmethod
    def _gradient(ctx, grad, x, probability, largest, local):
        wide = torch.promote_types(x.dtype, torch.float32)
        probability, largest = probability.to(wide), largest.to(wide)
        shape = [1] * x.dim()
        shape[ctx.dim] = -1
        position = torch.arange(x.size(ctx.dim), device=x.device).view(shape)
        softmax = torch.exp(x.to(wide) - largest) * probability
        slope = (position == local).to(wide) - softmax
        return (grad.to(wide) * probability * slope).to(x.dtype)


class _NotTwice(torch.autograd.Function):
    """A gradient whose own derivative is an error: it takes elements of all shards, and a rank has
    only its own. (torch's once_differentiable raises none where the gradient of the result is a
    constant: the derivative would be 0 without a word.)"""

    @staticmethod
    def forward(ctx, gradient, *of):
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError(
            "reduceops::softmax_max: there is no second derivative over a dim that is sharded"
        )
