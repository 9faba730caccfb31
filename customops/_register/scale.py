"""A scale that is no number: a 0-d tensor, or a float that is a symbol while a graph is traced.

torch makes a number of either where it parses the arguments of a call, before any kernel: of a
tensor by waiting for its device, and without a gradient; of a symbol by tracing anew for each
value. So this is put before that. The position is found of the product, the element is taken from
the input and multiplied once more, which has the gradients of both. Where none is needed the
product is reduced to its values, and of a tensor that is on a CPU, and that nobody but this call
looks at, the number will do.
"""

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .. import _torch_private, arguments, checks
from . import autograd


class _Gather(torch.autograd.Function):
    """torch.gather of one index for each group, which keeps the indices and not the input."""

    @staticmethod
    def forward(ctx, self, dim, index):
        ctx.dim, ctx.shape = dim, self.shape
        ctx.save_for_backward(index)
        return self.gather(dim, index)

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return autograd.scatter(grad, index, ctx.shape, ctx.dim, True, False), None, None


def _gather(self: Tensor, dim: int, index: Tensor) -> Tensor:
    # Forward mode, transforms and a trace of torch.jit have rules for torch's operator.
    if (
        not (self.requires_grad and torch.is_grad_enabled())
        or _torch_private.are_transforms_active()
        or torch.jit.is_tracing()
        or _torch_private.has_tangent(self)
    ):
        return self.gather(dim, index)
    return _Gather.apply(self, dim, index)


def is_equivalent_to_number(scale: Tensor, self: Tensor) -> bool:
    """Whether a product has the same bits with it, and nobody can tell but by the time it takes."""
    return (
        scale.is_cpu
        and scale.dtype in checks.SCALABLE
        and self.dim() > 0  # else the dtype of the product might be that of the scale
        and autograd.are_plain(scale, self)
        and not (torch.jit.is_tracing() or autograd.may_need_gradient(scale))
    )


def _is_tensor_or_symbol(scale: object) -> bool:
    symbols = (torch.SymFloat, torch.SymInt)
    return type(scale) is not float and isinstance(scale, (Tensor, *symbols))


def _scaled_by(end: str, self: Tensor, scale, dim: int, keepdim: bool):
    op = f"scale_{end}"
    if not isinstance(self, Tensor):
        raise TypeError(f"reduceops::{op}: self must be a Tensor, got {type(self).__name__}")
    if isinstance(scale, torch.SymInt):
        scale = torch.sym_float(scale)
    dim = int(arguments.as_int(op, "dim", dim))  # as a schema has it, of a symbol too
    keepdim = arguments.as_bool(op, keepdim)
    checks.check_layout(op, self)
    checks.check_scalable(op, self.dtype)
    dims = checks.wrap_dims(op, self.dim(), dim)
    if not torch.jit.is_tracing():  # where sizes are tensors
        checks.check_not_empty(op, self.shape, dims)
    if isinstance(scale, Tensor):
        checks.check_scale(op, scale, self)
        if is_equivalent_to_number(scale, self):
            return getattr(torch.ops.reduceops, op).default(
                self, float(scale.detach()), dim, keepdim
            )
    if of_subclass := autograd.of_subclass.get((op, type(self))):
        return of_subclass(self, scale, dim, keepdim)
    # What is not known yet where sizes are tensors, or depend on data.
    with checks.errors_name(f"reduceops::{op}", f"reduceops::arg{end}", f"reduceops::{end}"):
        return _of_product(end, self, scale, dim, keepdim)


def _of_product(end: str, self: Tensor, scale, dim: int, keepdim: bool):
    # (torch.jit.trace traces once more without gradients, and compares the graphs.)
    tensors = self, scale if isinstance(scale, Tensor) else None
    if not (torch.jit.is_tracing() or autograd.may_need_gradient(*tensors)):
        return getattr(torch.ops.reduceops, end).default(product(self, scale), dim, keepdim)[0]
    with torch.no_grad():
        argument = getattr(torch.ops.reduceops, f"arg{end}").default
        index = argument(product(self.detach(), _constant(scale)), dim, True)
    # Before it has no dims: its dtype might differ.
    chosen = product(_gather(self, dim, index), scale)
    return chosen if keepdim or self.dim() == 0 else chosen.squeeze(dim)


def product(x: Tensor, scale) -> Tensor:
    """As eager mode has it, which multiplies 16 bits in float32. Inductor would round a symbol to
    16 bits first, if it is computed of sizes."""
    if isinstance(scale, torch.SymFloat) and x.dtype.itemsize == 2:
        return (x.float() * scale).to(x.dtype)
    return x * scale


def _constant(scale):
    return scale.detach() if isinstance(scale, Tensor) else scale


def dispatch_on_scale(op: str, names: Sequence[str], scaled: Callable) -> None:
    """`scaled` is called where the argument scale is a tensor or a symbol; `names` are those of the
    schema. A call that does not have these is for torch's parser, which says what is wrong."""
    position = names.index("scale")

    def fits(args, keywords) -> bool:
        needed, rest = {*names[len(args) : position]}, {*names[len(args) :]}
        return len(args) <= len(names) and needed <= keywords.keys() <= rest

    def choose_for(callable_, call: Callable) -> Callable:
        def choose(*args, **keywords):
            scale = args[position] if len(args) > position else keywords.get("scale")
            if not _is_tensor_or_symbol(scale) or not fits(args, keywords):
                if type(scale) is not float and arguments.is_no_number(scale):
                    arguments.check_scale(op, scale)
                return call(*args, **keywords)
            given = (*args, *keywords.values())
            if has_torch_function(given):  # which a number's call asks in C++
                return handle_torch_function(callable_, given, *args, **keywords)
            return scaled(*args, **keywords)

        return choose

    packet = getattr(torch.ops.reduceops, op)
    for callable_ in (packet.default, packet):
        make = functools.partial(choose_for, callable_)
        call = _torch_private.replace_direct(callable_, make)
    _torch_private.register_builtin(call, f"reduceops::{op}")  # the packet's, for torch.jit.script


def _register(end: str) -> None:
    def scaled(self, scale, dim=1, keepdim=True):
        return _scaled_by(end, self, scale, dim, keepdim)

    dispatch_on_scale(f"scale_{end}", ("self", "scale", "dim", "keepdim"), scaled)


for _end in ("min", "max"):
    _register(_end)
