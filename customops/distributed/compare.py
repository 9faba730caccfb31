"""With TORCH_DISTRIBUTED_DEBUG=DETAIL: what the ranks call with, compared before a reduction.

Where that does not fit, all ranks raise the same error, which says what differs and where.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from .. import checks
from .exchange import is_traced
from .links import is_compared
from .pairs import is_wide


def is_capturing() -> bool:
    """Whether a CUDA graph is captured, which no object can be gathered in."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class ShardCall(NamedTuple):
    """What a rank calls with."""

    op: str = ""
    dtype: str = ""
    device: str = ""
    dim: int = 0
    shape: Sequence[int] = ()  # with the extent of dim left out
    pair_bytes: int = 0
    extent: int = 0  # from here on ranks may differ
    offset: int | None = None
    error: str = ""


def shards(
    op: str,
    x: Tensor,
    dim: int,
    group: dist.ProcessGroup,
    offset: int | None,
    check: Callable[[], None],
) -> None:
    """Raises where a rank's `check` does, or where shards are not those of one tensor."""
    try:
        check()
        at = checks.wrap_dim(op, x.dim(), dim)
        shape = list(x.shape)
        extent = shape.pop(at) if shape else 1
        pair_bytes = 16 if is_wide(x.dtype, extent) else 8
        dtype, device = _name(x.dtype), x.device.type
        call = ShardCall(op, dtype, device, at, shape, pair_bytes, extent, offset)
    except Exception as error:  # of whatever kind: the others wait for this rank's word
        call = ShardCall(error=_text(error))
    calls = [ShardCall(*other) for other in _gathered(tuple(call), [group])]
    if problem := shards_problem(calls):
        raise RuntimeError(f"customops.distributed.{op}: {problem}")


def shards_problem(calls: Sequence[ShardCall]) -> str:
    """Why the calls of the ranks do not fit each other; empty if they do."""
    if problem := _difference(calls, ShardCall._fields[:6], range(len(calls))):
        return problem
    if not any(call.extent for call in calls):
        return f"cannot reduce over dim {calls[0].dim}, which is empty on all ranks"
    if all(call.offset is None for call in calls):
        return ""
    for rank, call in enumerate(calls):
        if (call.offset is None) != (calls[0].offset is None):
            return f"offset is {calls[0].offset} on rank 0 and {call.offset} on rank {rank}"
    end, before = 0, None
    for offset, extent, rank in sorted((c.offset, c.extent, r) for r, c in enumerate(calls)):
        if extent == 0:
            continue
        where = "the start" if before is None else f"the shard of rank {before}"
        if offset > end:
            return f"no rank has elements {end} to {offset - 1}, between {where} and rank {rank}'s"
        if offset < end:
            return f"the shards of ranks {before} and {rank} both have element {offset}"
        end, before = offset + extent, rank
    return ""


class DTensorCall(NamedTuple):
    """What a rank calls with; all of it is the same on all ranks."""

    op: str = ""
    dtype: str = ""
    shape: Sequence[int] = ()
    placements: str = ""
    dim: Sequence[int] = ()
    keepdim: bool = False
    scale: str = ""
    mask: str = ""
    index_dtype: str = ""
    error: str = ""


def dtensors(
    op: str,
    x: DTensor,
    keepdim: bool,
    scale: Any,
    mask: DTensor | None,
    check: Callable[[], tuple[Sequence[int], torch.dtype]],
    check_shard: Callable[[Tensor, Sequence[int]], Any],
) -> None:
    """Raises where ranks differ, or one's check of the call, which gives (dims, index_dtype), or of
    its shard does."""
    if not isinstance(x, DTensor) or not is_compared() or is_capturing():
        return
    mesh, local = x.device_mesh, x.to_local()
    if mesh.get_coordinate() is None or is_traced(local):
        return
    try:
        dims, index_dtype = check()
        # What is sharded in another way is replicated first.
        if all(type(p) is Shard or p.is_replicate() or p.is_partial() for p in x.placements):
            check_shard(local, dims)
        call = DTensorCall(
            *(op, _name(x.dtype), list(x.shape), str(x.placements), list(dims), bool(keepdim)),
            *(str(scale), _described(mask), _name(index_dtype)),  # a NaN differs from itself
        )
    except Exception as error:
        call = DTensorCall(error=_text(error))
    # The last dim of the mesh first, so that calls come in the order of the mesh's ranks.
    groups = [mesh.get_group(d) for d in reversed(range(mesh.ndim))]
    calls = [DTensorCall(*other) for other in _gathered(tuple(call), groups)]
    if problem := _difference(calls, DTensorCall._fields[:-1], mesh.mesh.flatten().tolist()):
        raise RuntimeError(f"reduceops::{op}: {problem}")


def _described(mask: DTensor | None) -> str:
    if mask is None:
        return "none"
    return f"{_name(mask.dtype)} {list(mask.shape)} {mask.placements}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _text(error: Exception) -> str:
    return str(error) or repr(error)


def _gathered(call: tuple, groups: Iterable[dist.ProcessGroup]) -> list[tuple]:
    calls = [call]
    for group in groups:
        of_ranks: list = [None] * dist.get_world_size(group)
        dist.all_gather_object(of_ranks, calls, group=group)
        calls = [other for some in of_ranks for other in some]
    return calls


def _difference(calls: Sequence, fields: Iterable[str], ranks: Sequence[int]) -> str:
    """An error of a rank, or the first of the fields in which ranks differ."""
    for rank, call in zip(ranks, calls, strict=True):
        if call.error:
            return f"rank {rank}: {call.error}"
    for field in fields:
        first = getattr(calls[0], field)
        for rank, call in zip(ranks, calls, strict=True):
            if (other := getattr(call, field)) != first:
                what = field.replace("_", " ")
                return (
                    f"the ranks differ in {what}: {first} on rank {ranks[0]}, "
                    f"{other} on rank {rank}"
                )
    return ""
