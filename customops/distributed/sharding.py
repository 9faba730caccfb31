"""The operators on a `DTensor`: a rule for each, which says what is computed on which shards.

Kept dims that are sharded stay so, and nothing is communicated. Where a reduced dim is sharded, the
ranks of these mesh dims exchange pairs (exchange.py) and have the same result. What is partial,
or sharded in another way than by `Shard` in the order of the mesh's dims, is replicated first.

Registered when torch.distributed.tensor is imported: to import it takes half a second.
"""

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from .. import _torch_private, checks
from .._register import autograd, conv2d
from .._register.overloads import CONVOLUTIONS, overloads, public_name
from . import compare
from .exchange import reduce_shard, softmax_max_of_shard

_VALUES, _INDICES, _BOTH = slice(0, 1), slice(1, 2), slice(0, 2)


def _reduce(
    op: str,
    x: DTensor,
    dim: int | Sequence[int] | None,
    keepdim: bool,
    local_op: Callable[..., Tensor | tuple[Tensor, ...]],
    outputs: slice,
    *,
    scale: float | Tensor | None = None,
    mask: DTensor | None = None,
    index_dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """`outputs` of (values, indices) as DTensors. `local_op` computes them, of the shard and that
    of the mask, where no reduced dim is sharded."""
    check = functools.partial(_check, op, x, dim, mask, index_dtype)

    def describe():
        dims, index_dtype = check()
        return {
            **_described(op, x, mask=mask),
            **{"dim": list(dims), "keepdim": bool(keepdim)},
            **{"scale": _described_scale(scale), "index_dtype": str(index_dtype)},
        }

    compare.dtensors(op, (x, mask), describe)
    dims, index_dtype = check()
    mesh = x.device_mesh
    # What a tensor scales is taken by its position, which one rank has to know.
    whole = dims if isinstance(scale, Tensor) else ()
    kept = [type(p) is Shard and p.dim not in whole for p in x.placements]
    x = _redistributed(
        x, [p if keep else Replicate() for p, keep in zip(x.placements, kept, strict=True)]
    )
    shards = _shards(x)
    if mask is not None:
        placements = [_placement_of_mask(p, mask, x) for p in x.placements]
        mask = _redistributed(mask, placements).to_local()
    exchanged = [d for d, dim in enumerate(shards) if dim in dims and mesh.size(d) > 1]
    placements = [_placement_after(shard, dims, keepdim) for shard in shards]
    local = x.to_local()
    if mesh.get_coordinate() is None:  # this rank has no part in it
        values = local.new_empty((0,))
        results = (values, values.to(index_dtype))[outputs]
    elif exchanged:
        groups = [mesh.get_group(d) for d in exchanged]
        start = _start(op, x, local, dims)
        if op == "softmax_max":
            checks.check_scalable(op, x.dtype)
            values, indices = softmax_max_of_shard(local, dims[0], keepdim, start[0], groups)
        else:
            (checks.check_dtype if scale is None else checks.check_scalable)(op, x.dtype)
            size = [x.shape[d] for d in dims]
            options = (op.endswith("max"), scale, outputs == _INDICES, mask)
            values, indices = reduce_shard(local, dims, keepdim, start, size, groups, *options)
        results = (values, indices.to(index_dtype))[outputs]
    else:
        results = local_op(local, mask)
        results = results if isinstance(results, tuple) else (results,)
    shape = checks.reduced_shape(x.shape, dims, keepdim)
    layout = {"shape": torch.Size(shape), "stride": _contiguous(shape)}
    wrap = functools.partial(
        DTensor.from_local, device_mesh=mesh, placements=placements, run_check=False, **layout
    )
    wrapped = tuple(
        _Found.apply(result, wrap, exchanged)
        if result.requires_grad and exchanged
        else wrap(result)
        for result in results
    )
    return wrapped if outputs == _BOTH else wrapped[0]


class _Found(torch.autograd.Function):
    """Makes a DTensor of the values that all ranks have after they exchanged theirs. As
    `DTensor.from_local` with a backward that can be differentiated: there each rank uses the
    gradient of the elements in its own shard, so a second derivative is the sum over the ranks
    (`Partial`)."""

    @staticmethod
    def forward(ctx, local, wrap, exchanged):
        values = wrap(local)
        ctx.placements, ctx.exchanged = list(values.placements), exchanged
        return values

    @staticmethod
    def backward(ctx, grad):
        parts = [Partial() if d in ctx.exchanged else p for d, p in enumerate(ctx.placements)]
        return _redistributed(grad, ctx.placements).to_local(grad_placements=parts), None, None


def _check(
    op: str,
    x: DTensor,
    dim: int | Sequence[int] | None,
    mask: DTensor | None,
    index_dtype: torch.dtype | None,
) -> tuple[Sequence[int], torch.dtype]:
    """(dims, index_dtype), where they fit what else all ranks know."""
    if not all(isinstance(tensor, DTensor) for tensor in (x, mask) if tensor is not None):
        raise RuntimeError(f"reduceops::{op}: self and mask must be DTensors, both or none")
    mesh = x.device_mesh
    dims = checks.wrap_dims(op, x.dim(), dim)
    checks.check_not_empty(op, x.shape, dims)
    index_dtype = checks.check_index_dtype(op, index_dtype, x.shape, dims)
    if mask is not None:
        checks.check_mask(op, mask, x)
        if mask.device_mesh != mesh:
            raise RuntimeError(
                f"reduceops::{op}: self and mask must be on one mesh, "
                f"got {mesh} and {mask.device_mesh}"
            )
    return dims, index_dtype


def _described(op: str, x: DTensor, **operands: DTensor | None) -> dict[str, Any]:
    """What is the same of them on all ranks. Raises where this rank's shard is not as expected."""
    given = {name: other for name, other in operands.items() if other is not None}
    for tensor in (x, *given.values()):
        # What is sharded in another way is replicated first.
        known = (type(p) is Shard or p.is_replicate() or p.is_partial() for p in tensor.placements)
        if all(known) and _torch_private.are_in_order(tensor):
            _start(op, tensor, tensor.to_local(), ())
    return {
        "dtype": checks.dtype_name(x.dtype),
        "shape": list(x.shape),
        "placements": str(x.placements),
        **dict.fromkeys(operands, "none"),
        **{
            name: f"{checks.dtype_name(other.dtype)} {list(other.shape)} {other.placements}"
            for name, other in given.items()
        },
    }


def _start(op: str, x: DTensor, local: Tensor, dims: Sequence[int]) -> list[int]:
    """Where this rank's shard begins in each of `dims`. (Ranks exchange words of one size, so the
    others must be as expected, too.)"""
    start = []
    for d in range(x.dim()):
        begin, extent = _part(x.shape[d], d, _shards(x), x.device_mesh)
        if _torch_private.statically_known_true(local.shape[d] != extent):
            raise RuntimeError(
                f"reduceops::{op}: this rank's shard has size {local.shape[d]} in dim {d}, and "
                f"{x.placements} over {x.device_mesh} give it {extent} of {x.shape[d]}"
            )
        start.append(begin)
    return [start[d] for d in dims]


def _shards(x: DTensor) -> list[int | None]:
    """The dim of `x` that each dim of the mesh cuts."""
    return [p.dim if type(p) is Shard else None for p in x.placements]


def _redistributed(x: DTensor, placements: Sequence[Placement]) -> DTensor:
    if not _torch_private.are_in_order(x):  # which torch leaves as it is for these placements
        x = x.redistribute(x.device_mesh, [Replicate()] * x.device_mesh.ndim)
    return x if list(x.placements) == placements else x.redistribute(x.device_mesh, placements)


def _placement_of_mask(placement: Placement, mask: DTensor, x: DTensor) -> Placement:
    """The mask, which is broadcast, cut as `x` is."""
    if type(placement) is Shard:
        dim = placement.dim - (x.dim() - mask.dim())
        if dim >= 0 and mask.shape[dim] == x.shape[placement.dim]:
            return Shard(dim)
    return Replicate()


def _placement_after(shard: int | None, dims: Sequence[int], keepdim: bool) -> Placement:
    if shard is None or shard in dims:
        return Replicate()
    return Shard(shard if keepdim else shard - sum(dim < shard for dim in dims))


def _part(size: int, dim: int, shards: Sequence[int | None], mesh: DeviceMesh) -> tuple[int, int]:
    """This rank's part of a dim, (start, size): each mesh dim cuts what those before left."""
    start, local = 0, size
    for mesh_dim, coordinate in enumerate(mesh.get_coordinate()):
        if shards[mesh_dim] == dim:
            chunk = -(-local // mesh.size(mesh_dim))
            begin = min(coordinate * chunk, local)
            start, local = start + begin, min(chunk, local - begin)
    return start, local


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides = accumulate(reversed(shape), lambda stride, size: stride * max(size, 1), initial=1)
    return tuple(strides)[-2::-1]


def _arg(op, func, x, dim=None, keepdim=False, mask=None, index_dtype=None):
    return _reduce_as(op, func, x, dim, keepdim, mask, index_dtype, _INDICES)


def _extreme(op, func, x, dim, keepdim=False, mask=None, index_dtype=None):
    return _reduce_as(op, func, x, dim, keepdim, mask, index_dtype, _BOTH)


def _reduce_as(op, func, x, dim, keepdim, mask, index_dtype, outputs):
    def local_op(local, local_mask):
        if not func.name().endswith("options"):
            return func(local, dim, keepdim)
        return func(local, dim, keepdim, mask=local_mask, index_dtype=index_dtype)

    options = {"mask": mask, "index_dtype": index_dtype}
    return _reduce(op, x, dim, keepdim, local_op, outputs, **options)


def _local_scale(scale, mesh: DeviceMesh, shards: Sequence[int | None]):
    """A scale on this rank; that of a tensor has a gradient from each rank's part of the input."""
    if not isinstance(scale, Tensor):
        return scale
    everywhere = [Replicate()] * mesh.ndim
    if not isinstance(scale, DTensor):
        scale = DTensor.from_local(scale, mesh, everywhere, run_check=False)
    terms = [Replicate() if shard is None else Partial() for shard in shards]
    return scale.redistribute(mesh, everywhere).to_local(grad_placements=terms)


def _described_scale(scale) -> str:
    return "a tensor" if isinstance(scale, Tensor) else str(scale)


def _scaled(op, func, x, scale, dim=1, keepdim=True):
    def local_op(local, _):
        dims = checks.wrap_dims(op, x.dim(), dim)
        shards = [None if shard in dims else shard for shard in _shards(x)]
        return func(local, _local_scale(scale, x.device_mesh, shards), dim, keepdim)

    outputs = _BOTH if func.name().endswith("_indices") else _VALUES
    return _reduce(op, x, dim, keepdim, local_op, outputs, scale=scale)


def _softmax(op, func, x, dim, keepdim=False):
    def local_op(local, _):
        return func(local, dim, keepdim)

    return _reduce(op, x, dim, keepdim, local_op, _BOTH)


def _check_conv2d(op, input, weight, bias, *how) -> list[int]:
    """The shape of the convolution's result."""
    tensors = [tensor for tensor in (input, weight, bias) if tensor is not None]
    if not all(isinstance(tensor, DTensor) for tensor in tensors):
        raise RuntimeError(f"reduceops::{op}: input, weight and bias must be DTensors, all or none")
    if any(tensor.device_mesh != input.device_mesh for tensor in tensors):
        raise RuntimeError(f"reduceops::{op}: input, weight and bias must be on one mesh")
    return conv2d.check(op, input, weight, bias, *how)


def _conv2d(op, func, input, weight, bias, scale, *args, **keywords):
    """A batch stays sharded; all else is replicated."""
    how = conv2d.How(*args, **keywords)
    check = functools.partial(_check_conv2d, op, input, weight, bias, *how[:-1])

    def describe():
        rank, given = len(check()), how._asdict()
        return {
            **_described(op, input, weight=weight, bias=bias),
            **{
                name: conv2d.pair(op, name, given[name], 0)
                for name in ("stride", "padding", "dilation")
            },
            **{"groups": how.groups, "dim": checks.wrap_dim(op, rank, how.dim)},
            **{"keepdim": bool(how.keepdim), "scale": _described_scale(scale)},
        }

    compare.dtensors(op, (input, weight, bias), describe)
    shape, mesh = check(), input.device_mesh
    dims = checks.wrap_dims(op, len(shape), how.dim)
    keeps_batch = len(shape) == 4 and 0 not in dims
    shards = [0 if keeps_batch and shard == 0 else None for shard in _shards(input)]
    placements = [Replicate() if shard is None else Shard(shard) for shard in shards]
    everywhere = [Replicate()] * mesh.ndim
    # Their gradients are those of this rank's part of the batch.
    terms = [Replicate() if shard is None else Partial() for shard in shards]
    local = _redistributed(input, placements).to_local()
    weight, bias = (
        t if t is None else t.redistribute(mesh, everywhere).to_local(grad_placements=terms)
        for t in (weight, bias)
    )
    if mesh.get_coordinate() is None:  # this rank has no part in it
        result = local.new_empty((0,))
    else:
        scale = _local_scale(scale, mesh, shards)
        result = func(local, weight, bias, scale, *how)
    shape = torch.Size(checks.reduced_shape(shape, dims, how.keepdim))
    return DTensor.from_local(
        result, mesh, placements, run_check=False, shape=shape, stride=_contiguous(shape)
    )


_RULES = {
    **dict.fromkeys(("argmin", "argmax"), _arg),
    **dict.fromkeys(("min", "max"), _extreme),
    "softmax_max": _softmax,
    **dict.fromkeys(("scale_min", "scale_max"), _scaled),
    **dict.fromkeys(("_scale_min_indices", "_scale_max_indices"), _scaled),
    **dict.fromkeys(CONVOLUTIONS, _conv2d),
}


def _register(op: str, func: Any, rule: Callable) -> None:
    on_dtensor = functools.partial(rule, op, func)

    def dispatch(cls, func, types, args, kwargs):
        return on_dtensor(*args, **kwargs)

    torch.library.register_torch_dispatch(func, DTensor, dispatch)
    autograd.of_subclass[func.name().removeprefix("reduceops::"), DTensor] = on_dtensor


for _name, _rule in _RULES.items():
    for _func in overloads(_name):
        _register(public_name(_name), _func, _rule)
