"""The operators on a `DTensor`: a rule for each, which says what is computed on which shards.

Kept dims that are sharded stay so, and nothing is communicated. Where a reduced dim is sharded, the
ranks of these mesh dims exchange pairs (exchange.py) and have the same result. What is partial,
or sharded in another way than by `Shard`, is replicated first.

Registered when torch.distributed.tensor is imported: to import it takes half a second.
"""

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from . import autograd, checks
from .exchange import reduce_shard


def _reduce(
    op: str,
    x: DTensor,
    dim: int | Sequence[int] | None,
    keepdim: bool,
    scale: float | None,
    local_op: Callable[[Tensor], Tensor | tuple[Tensor, ...]],
    outputs: slice,
) -> Tensor | tuple[Tensor, ...]:
    """`outputs` of (values, indices) as DTensors; `local_op` computes them where nothing that is
    reduced is sharded."""
    mesh = x.device_mesh
    dims = checks.wrap_dims(op, x.dim(), dim)
    checks.check_not_empty(op, x.shape, dims)
    if not all(type(p) in (Shard, Replicate) for p in x.placements):
        x = x.redistribute(mesh, [p if type(p) is Shard else Replicate() for p in x.placements])
    shards = [p.dim if type(p) is Shard else None for p in x.placements]
    exchanged = [d for d, dim in enumerate(shards) if dim in dims and mesh.size(d) > 1]
    placements = [_placement_after(shard, dims, keepdim) for shard in shards]
    shape = checks.reduced_shape(x.shape, dims, keepdim)
    local = x.to_local()
    if mesh.get_coordinate() is None:  # this rank has no part in it
        values = local.new_empty((0,))
        results = (values, values.to(torch.int64))[outputs]
    elif exchanged:
        scalable = scale is not None
        (checks.check_scalable if scalable else checks.check_dtype)(op, x.dtype)
        results = reduce_shard(
            local,
            dims,
            keepdim,
            [_start(x.shape[d], d, shards, mesh) for d in dims],
            [x.shape[d] for d in dims],
            [mesh.get_group(d) for d in exchanged],
            largest=op.endswith("max"),
            scale=scale,
            indices_only=outputs == _INDICES,
        )[outputs]
    else:
        results = local_op(local)
        results = results if isinstance(results, tuple) else (results,)
    stride = _contiguous(shape)
    wrapped = tuple(
        DTensor.from_local(
            result, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
        )
        for result in results
    )
    return wrapped if outputs == _BOTH else wrapped[0]


_VALUES, _INDICES, _BOTH = slice(0, 1), slice(1, 2), slice(0, 2)


def _placement_after(shard: int | None, dims: Sequence[int], keepdim: bool) -> Placement:
    if shard is None or shard in dims:
        return Replicate()
    return Shard(shard if keepdim else shard - sum(dim < shard for dim in dims))


def _start(size: int, dim: int, shards: Sequence[int | None], mesh: DeviceMesh) -> int:
    """Where this rank's shard of a dim begins: each mesh dim cuts what those before left."""
    start, local = 0, size
    for mesh_dim, coordinate in enumerate(mesh.get_coordinate()):
        if shards[mesh_dim] == dim:
            chunk = -(-local // mesh.size(mesh_dim))
            begin = min(coordinate * chunk, local)
            start, local = start + begin, min(chunk, local - begin)
    return start


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides = accumulate(reversed(shape), lambda stride, size: stride * max(size, 1), initial=1)
    return tuple(strides)[-2::-1]


def _arg(op: str, func, x, dim=None, keepdim=False):
    return _reduce(op, x, dim, keepdim, None, lambda local: func(local, dim, keepdim), _INDICES)


def _extreme(op: str, func, x, dim, keepdim=False):
    return _reduce(op, x, dim, keepdim, None, lambda local: func(local, dim, keepdim), _BOTH)


def _scaled(op: str, func, x, scale, dim=1, keepdim=True):
    def local_op(local):
        return func(local, scale, dim, keepdim)

    return _reduce(op, x, dim, keepdim, scale, local_op, _VALUES)


def _scaled_indices(op: str, func, x, scale, dim, keepdim):
    def local_op(local):
        return func(local, scale, dim, keepdim)

    return _reduce(op, x, dim, keepdim, scale, local_op, _BOTH)


# By overload: the operator that errors name, and the rule.
RULES = {
    "argmin": ("argmin", _arg),
    "argmax": ("argmax", _arg),
    "argmin.dims": ("argmin", _arg),
    "argmax.dims": ("argmax", _arg),
    "min": ("min", _extreme),
    "max": ("max", _extreme),
    "scale_min": ("scale_min", _scaled),
    "scale_max": ("scale_max", _scaled),
    "_scale_min_indices": ("scale_min", _scaled_indices),
    "_scale_max_indices": ("scale_max", _scaled_indices),
}


def _register(name: str, op: str, rule: Callable) -> None:
    packet, _, overload = name.partition(".")
    func = getattr(getattr(torch.ops.reduceops, packet), overload or "default")
    on_dtensor = functools.partial(rule, op, func)

    def dispatch(cls, func, types, args, kwargs):
        return on_dtensor(*args, **kwargs)

    torch.library.register_torch_dispatch(f"reduceops::{name}", DTensor, dispatch)
    autograd.of_subclass[func, DTensor] = on_dtensor


for _name, (_op, _rule) in RULES.items():
    _register(_name, _op, _rule)
