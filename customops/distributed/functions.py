"""The public functions, for a shard of each rank; what one rank can see is wrong."""

from functools import partial
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import forward_ad
from torch.distributed.tensor import DTensor

from .. import _torch_private, arguments, checks, ops
from ..results import ValuesIndices
from . import compare, symmetric
from .exchange import is_traced, reduce_in_eager_mode, reduce_shard
from .links import link_of, links
from .pairs import HAS_TANGENT, IS_TRANSFORMED

# Looked up once: in eager mode a call takes the host as long as a GPU.
_ProcessGroup = dist.ProcessGroup
_member = dist.GroupMember
_groups = _torch_private.process_groups()
_is_compiling = torch.compiler.is_dynamo_compiling
is_transformed = _torch_private.is_transformed
Group = dist.ProcessGroup | None
_ops = torch.ops.reduceops
_FARTHEST = 1 << 62  # at which a shard may begin: the indices of its elements are int64
# (largest, indices_only) of each function.
_FLAGS = {
    "argmin": (False, True),
    "argmax": (True, True),
    "min": (False, False),
    "max": (True, False),
}


def argmin(
    input: Tensor,
    dim: int,
    keepdim: bool = False,
    *,
    group: Group = None,
    offset: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The index of the smallest element over `dim`, which is sharded over the ranks of `group`.

    Args:
        input: This rank's shard: a tensor of any shape and strides, read in place, whose size along
            `dim` may be its own. Or a DTensor, which takes neither `group` nor `offset`.
        dim: The dim that is sharded; negative ones count from the end.
        keepdim: Whether the result has `dim`, with size 1.
        group: The process group, None for the default one. All its ranks call.
        offset: The index at which the shard begins, on all ranks or on none: then shards follow
            each other in the order of ranks. The shards must begin at index 0, and neither overlap
            nor leave a gap.
        mask: Which elements of the shard take part: a bool tensor that broadcasts to it, as of
            `customops.argmin`. Some ranks may have none. Of a DTensor it is one, too.

    Returns:
        The indices into the whole, as int64, in the shape of `input` without `dim` (size 1 there
        with `keepdim`); the same on all ranks.

    Raises:
        TypeError: An argument is of another type; `input`, for one, is no tensor.
        IndexError: `dim` is out of range.
        RuntimeError: A dtype, layout or device is not supported; `offset` is negative, or leaves
            indices no room in int64; there is no process group, it was destroyed, or this rank is
            not in it; `input` is under a transform of torch.func, or a value is asked for of one
            with a tangent. With TORCH_DISTRIBUTED_DEBUG=DETAIL, on all ranks: their calls do not
            fit each other, or any of these errors is one's.

    Example:
        >>> shard = torch.tensor([[3.0, 1.0], [0.0, 5.0]])  # of the only rank
        >>> customops.distributed.argmin(shard, 1)
        tensor([1, 0])
    """
    return _reduce("argmin", input, dim, keepdim, group, offset, mask)[1]


def argmax(
    input: Tensor,
    dim: int,
    keepdim: bool = False,
    *,
    group: Group = None,
    offset: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The index of the largest element over `dim`, which is sharded over the ranks of `group`.

    Args:
        input: This rank's shard, or a DTensor, as of `argmin`.
        dim: The dim that is sharded.
        keepdim: Whether the result has `dim`, with size 1.
        group: The process group, None for the default one.
        offset: The index at which the shard begins, on all ranks or on none.
        mask: Which elements take part, as of `argmin`.

    Returns:
        The indices into the whole, as of `argmin`.

    Raises:
        TypeError, IndexError, RuntimeError: As `argmin`.

    Example:
        >>> shard = torch.tensor([[3.0, 1.0], [0.0, 5.0]])  # of the only rank
        >>> customops.distributed.argmax(shard, 1)
        tensor([0, 1])
    """
    return _reduce("argmax", input, dim, keepdim, group, offset, mask)[1]


def min(
    input: Tensor,
    dim: int,
    keepdim: bool = False,
    *,
    group: Group = None,
    offset: int | None = None,
    mask: Tensor | None = None,
) -> ValuesIndices:
    """The smallest elements over a sharded dim, and their indices.

    The gradient of a value goes to the element chosen, in the rank that has it.

    Args:
        input: This rank's shard, or a DTensor, as of `argmin`.
        dim: The dim that is sharded.
        keepdim: Whether the result has `dim`, with size 1.
        group: The process group, None for the default one.
        offset: The index at which the shard begins, on all ranks or on none.
        mask: Which elements take part, as of `argmin`.

    Returns:
        A named tuple ``(values, indices)``, the same on all ranks. The values have the dtype of
        `input` and are its elements, a NaN's bits included; the indices are as of `argmin`, and
        both have its shape.

    Raises:
        TypeError, IndexError, RuntimeError: As `argmin`.

    Example:
        >>> shard = torch.tensor([[3.0, 1.0], [0.0, 5.0]])  # of the only rank
        >>> customops.distributed.min(shard, 1).values
        tensor([1., 0.])
    """
    found: Any = _reduce("min", input, dim, keepdim, group, offset, mask)
    return ValuesIndices(*found)


def max(
    input: Tensor,
    dim: int,
    keepdim: bool = False,
    *,
    group: Group = None,
    offset: int | None = None,
    mask: Tensor | None = None,
) -> ValuesIndices:
    """The largest elements over a sharded dim, and their indices; gradients as of `min`.

    Args:
        input: This rank's shard, or a DTensor, as of `argmin`.
        dim: The dim that is sharded.
        keepdim: Whether the result has `dim`, with size 1.
        group: The process group, None for the default one.
        offset: The index at which the shard begins, on all ranks or on none.
        mask: Which elements take part, as of `argmin`.

    Returns:
        A named tuple ``(values, indices)``, as of `min`.

    Raises:
        TypeError, IndexError, RuntimeError: As `argmin`.

    Example:
        >>> shard = torch.tensor([[3.0, 1.0], [0.0, 5.0]])  # of the only rank
        >>> customops.distributed.max(shard, 1).indices
        tensor([0, 1])
    """
    found: Any = _reduce("max", input, dim, keepdim, group, offset, mask)
    return ValuesIndices(*found)


def enable_symmetric_memory(group: Group = None, *, timeout: float = 600.0) -> bool:
    """Lets the calls with this group exchange in one kernel, without a collective.

    All ranks of the group call it, each with its GPU as the current device. It can where the GPUs
    are in one host and reach each other's memory. Calls in eager mode, in graphs of torch.compile
    and in CUDA graphs are the same kernel, so ranks may differ in that.

    A group's calls have to run one after another, in one order on all ranks. Calls on several
    streams wait for each other; replays of CUDA graphs have to be on the stream of the calls around
    them, or on one that waits for it. A kernel that waits for a rank for `timeout` seconds ends
    with a failed assertion on the GPU, after which the process can use it no more. Called again it
    sets the timeout anew, with another current device the GPU too.

    Args:
        group: The process group, None for the default one.
        timeout: After so many seconds a kernel stops waiting for another rank, with an error.

    Returns:
        Whether it can, which is the same on all ranks.

    Raises:
        TypeError: `group` is no process group.
        RuntimeError: On all ranks: `timeout` is not a positive number below 2^63 ns on one of them.
            There is no process group, it was destroyed, or this rank is not in it.

    Example:
        >>> customops.distributed.enable_symmetric_memory()  # ranks that have no GPU
        False
    """
    return symmetric.enable(_check_group("enable_symmetric_memory", group), timeout)


def disable_symmetric_memory(group: Group = None) -> None:
    """Undoes `enable_symmetric_memory`, on all ranks.

    Not before the last replay of a CUDA graph that has such a call. It waits for what runs on the
    GPU, and frees the buffers of groups that were destroyed, too.

    Args:
        group: The process group, None for the default one.

    Returns:
        Nothing.

    Raises:
        TypeError: `group` is no process group.
        RuntimeError: This rank is not in the group.

    Example:
        >>> customops.distributed.disable_symmetric_memory()
    """
    symmetric.forget_destroyed()
    if group is None and not dist.is_initialized():
        return
    if not isinstance(group, _ProcessGroup):  # which may have been destroyed
        group = _check_group("disable_symmetric_memory", group)
    symmetric.disable(group)


def _reduce(
    op: str,
    x: Tensor,
    dim: int,
    keepdim: bool,
    group: Group,
    offset: int | None,
    mask: Tensor | None,
) -> tuple[Tensor | None, Tensor]:
    """(values, indices); of an arg-reduction values may be None. What it does in eager mode costs
    as much as the kernels, so one rank's own arguments are looked at when something went wrong."""
    if mask is not None or is_traced(x):
        return _reduce_general(op, x, dim, keepdim, group, offset, mask)
    largest, indices_only = _FLAGS[op]
    if group is None:
        group = _member.WORLD
    if not isinstance(group, _ProcessGroup):
        group = _check_group(op, group)
    link = links.get(ref(group)) or link_of(group)
    if link.is_registered and group not in _groups:  # any more
        _check_group(op, group)
    if link.is_compared:
        _compare(op, x, dim, keepdim, group, offset, mask)
    try:
        # What no operator sees before this rank has sent something.
        if (
            (keepdim is not True and keepdim is not False)
            or type(dim) is not int
            or (offset is not None and (type(offset) is not int or not 0 <= offset <= _FARTHEST))
            or is_transformed(x)
            or (not indices_only and forward_ad.unpack_dual(x).tangent is not None)
        ):
            _check_call(op, x, dim, keepdim, offset, mask)
        return reduce_in_eager_mode(x, dim, keepdim, offset, group, link, largest, indices_only)
    except (RuntimeError, TypeError, AttributeError):
        _check_call(op, x, dim, keepdim, offset, mask)
        raise


def _reduce_general(
    op: str,
    x: Tensor,
    dim: int,
    keepdim: bool,
    group: Group,
    offset: int | None,
    mask: Tensor | None,
) -> tuple[Tensor | None, Tensor]:
    if isinstance(x, DTensor):
        return _reduce_dtensor(op, x, dim, keepdim, group, offset, mask)
    group = _check_group(op, group)
    call = op, x, dim, keepdim, offset, mask
    if _is_compiling():
        try:
            _check_arguments(*call)
        except IndexError:  # which Dynamo replaces by its own, while that of an operator gets out
            getattr(_ops, op).default(x, dim)
            raise
    else:
        if link_of(group).is_compared:
            _compare(op, x, dim, keepdim, group, offset, mask)
        _check_call(*call)
    largest, indices_only = _FLAGS[op]
    start = [] if offset is None else [offset]
    return reduce_shard(x, [dim], keepdim, start, [], [group], largest, None, indices_only, mask)


def _compare(
    op: str,
    x: Tensor,
    dim: int,
    keepdim: bool,
    group: dist.ProcessGroup,
    offset: int | None,
    mask: Tensor | None,
) -> None:
    if compare.is_possible(x):
        check = partial(_check_arguments, op, x, dim, keepdim, offset, mask)
        compare.shards(op, x, dim, group, offset, check)


def _reduce_dtensor(
    op: str,
    x: DTensor,
    dim: int,
    keepdim: bool,
    group: Group,
    offset: int | None,
    mask: Tensor | None,
) -> tuple[Tensor | None, Tensor]:
    if group is not None or offset is not None:
        raise RuntimeError(
            f"customops.distributed.{op}: a DTensor has a mesh and placements of its own, and "
            "takes neither group nor offset"
        )
    result = getattr(ops, op)(x, dim, keepdim, mask=mask)
    return (None, result) if op.startswith("arg") else result


def _check_group(op: str, group: Group) -> dist.ProcessGroup:
    world = _member.WORLD
    if world is None:
        raise RuntimeError(
            f"customops.distributed.{op}: torch.distributed.init_process_group() comes first"
        )
    if group is None:
        return world
    outside = isinstance(group, int) and group == dist.GroupMember.NON_GROUP_MEMBER
    if not outside and not isinstance(group, _ProcessGroup):
        raise TypeError(
            f"customops.distributed.{op}: group must be a ProcessGroup, got {type(group).__name__}"
        )
    try:
        outside = outside or dist.get_rank(group) < 0
    except ValueError as error:
        raise RuntimeError(
            f"customops.distributed.{op}: torch does not know the group: it was destroyed, or "
            "never registered"
        ) from error
    if outside:
        raise RuntimeError(
            f"customops.distributed.{op}: rank {dist.get_rank()} is not in the group: only the "
            "ranks of a group may call with it"
        )
    return group


def _check_call(op: str, *given: Any) -> None:
    """What one rank can see of its own arguments."""
    with checks.errors_name(f"customops.distributed.{op}", f"reduceops::{op}"):
        _check_arguments(op, *given)


def _check_arguments(
    op: str,
    x: Tensor,
    dim: int,
    keepdim: bool,
    offset: int | None,
    mask: Tensor | None,
) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"reduceops::{op}: input must be a tensor, got {type(x).__name__}")
    arguments.check_input(op, x)
    checks.check_dtype(op, x.dtype)
    if not checks.is_strided(x) or x.device.type not in ("cpu", "cuda"):
        checks.refuse(op, x)
    checks.wrap_dims(op, x.dim(), arguments.one_dim(op, dim, "an int, the dim that is sharded"))
    arguments.as_keepdim(op, keepdim)
    if mask is not None:
        arguments.check_options(op, mask, None)
        if isinstance(mask, DTensor):
            raise RuntimeError(f"reduceops::{op}: input and mask must be DTensors, both or none")
        checks.check_mask(op, mask, x)
    if _torch_private.is_real(x):
        if is_transformed(x) or (mask is not None and is_transformed(mask)):
            raise RuntimeError(f"reduceops::{op}: {IS_TRANSFORMED}")
        _, indices_only = _FLAGS[op]
        if not indices_only and _torch_private.has_tangent(x):
            raise RuntimeError(f"reduceops::{op}: {HAS_TANGENT}")
    if offset is not None:
        arguments.check_ints(op, "offset", arguments.as_int(op, "offset", offset))
        if not 0 <= offset <= _FARTHEST:
            raise RuntimeError(f"reduceops::{op}: offset is {int(offset)}; it takes 0 to 2**62")
