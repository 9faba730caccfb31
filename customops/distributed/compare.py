"""With TORCH_DISTRIBUTED_DEBUG=DETAIL: what the ranks call with, compared before a reduction.

Where that does not fit, all ranks raise the same error, which says what differs and where.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from .. import _torch_private, checks
from .links import is_compared, objects_of_ranks
from .pairs import is_wide


def is_possible(x: Tensor) -> bool:
    """Whether ranks can exchange objects: not where a graph is traced, a CUDA graph captured or a
    function transformed."""
    if isinstance(x, Tensor) and _torch_private.is_transformed(x):
        return False
    capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    return not capturing and _torch_private.is_real(x)


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
        dtype, device = checks.dtype_name(x.dtype), x.device.type
        call = ShardCall(op, dtype, device, at, shape, pair_bytes, extent, offset)
    except Exception as error:  # of whatever kind: the others wait for this rank's word
        call = ShardCall(error=_text(error))
    calls = [ShardCall(*other) for other in _gathered(tuple(call), [group])]
    if problem := shards_problem(calls):
        raise RuntimeError(f"customops.distributed.{op}: {problem}")


def shards_problem(calls: Sequence[ShardCall]) -> str:
    """Why the calls of the ranks do not fit each other; empty if they do."""
    same = ShardCall._fields[: ShardCall._fields.index("extent")]
    if problem := _difference([call._asdict() for call in calls], same, range(len(calls))):
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


def dtensors(
    op: str, tensors: Iterable[Tensor | None], describe: Callable[[], dict[str, Any]]
) -> None:
    """Raises where ranks differ in what `describe` gives of the call with these tensors, its
    arguments by name, or where one's raises."""
    sharded = next((x for x in tensors if isinstance(x, DTensor)), None)
    if sharded is None or not is_compared():
        return
    mesh = sharded.device_mesh
    if mesh.get_coordinate() is None or not is_possible(sharded.to_local()):
        return
    try:
        call = {"op": op, **describe()}
    except Exception as error:
        call = {"error": _text(error)}
    # The last dim of the mesh first, so that calls come in the order of the mesh's ranks.
    groups = [mesh.get_group(d) for d in reversed(range(mesh.ndim))]
    calls = _gathered(call, groups)
    if problem := _difference(calls, calls[0], mesh.mesh.flatten().tolist()):
        raise RuntimeError(f"reduceops::{op}: {problem}")


def _text(error: Exception) -> str:
    return str(error) or repr(error)


def _gathered(call: Any, groups: Iterable[dist.ProcessGroup]) -> list:
    calls = [call]
    for group in groups:
        calls = [other for some in objects_of_ranks(group, calls) for other in some]
    return calls


def _difference(calls: Sequence[dict[str, Any]], names: Iterable[str], ranks: Sequence[int]) -> str:
    """An error of a rank, or the first of the names in which ranks differ."""
    for rank, call in zip(ranks, calls, strict=True):
        if error := call.get("error"):
            return f"rank {rank}: {error}"
    for name in names:
        first = calls[0][name]
        for rank, call in zip(ranks, calls, strict=True):
            if (other := call[name]) != first:
                what = name.replace("_", " ")
                return (
                    f"the ranks differ in {what}: {first} on rank {ranks[0]}, "
                    f"{other} on rank {rank}"
                )
    return ""
