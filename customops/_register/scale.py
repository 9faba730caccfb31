"""A scale that is no number: a 0-d tensor, or a float that is a symbol while a graph is traced.

torch makes a number of either where it parses the arguments of a call, before any kernel: of a
tensor by waiting for its device, and without a gradient; of a symbol by tracing anew for each
value. So this is put before that. The position is found of the product, the element is taken from
the input and multiplied once more, which has the gradients of both.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .. import _torch_private, arguments, checks
from . import unsupported


class _Gather(torch.autograd.Function):
    """torch.gather of one index for each group, which keeps the indices and not the input."""

    generate_vmap_rule = True

    @staticmethod
    def forward(self, dim, index):
        return self.gather(dim, index)

    @staticmethod
    def setup_context(ctx, inputs, output):
        self, ctx.dim, index = inputs
        ctx.shape = self.shape
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        grad = torch.ops.aten.value_selecting_reduction_backward(
            grad, ctx.dim, index, ctx.shape, True
        )
        return grad, None, None

    @staticmethod
    def jvp(ctx, tangent, *_):
        (index,) = ctx.saved_tensors
        return tangent.gather(ctx.dim, index)


def _gather(self: Tensor, dim: int, index: Tensor) -> Tensor:
    # A trace of torch.jit holds no Function.
    return self.gather(dim, index) if torch.jit.is_tracing() else _Gather.apply(self, dim, index)


def _is_no_number(scale: object) -> bool:
    symbols = (torch.SymFloat, torch.SymInt)
    return type(scale) is not float and isinstance(scale, (Tensor, *symbols))


def _scaled_by(end: str, self: Tensor, scale, dim: int, keepdim: bool):
    op = f"scale_{end}"
    if not isinstance(self, Tensor):
        raise TypeError(f"reduceops::{op}: self must be a Tensor, got {type(self).__name__}")
    if isinstance(scale, torch.SymInt):
        scale = torch.sym_float(scale)
    dim = int(arguments.as_int(op, "dim", dim))  # as a schema has it, of a symbol too
    if not isinstance(keepdim, int):  # which a schema takes for a bool
        arguments.as_keepdim(op, keepdim)
    if self.layout != torch.strided or self.is_nested or self.is_quantized:
        raise unsupported.layout_error(op, self)
    checks.check_scalable(op, self.dtype)
    dims = checks.wrap_dims(op, self.dim(), dim)
    if not torch.jit.is_tracing():  # where sizes are tensors
        checks.check_not_empty(op, self.shape, dims)
    if isinstance(scale, Tensor):
        scale = checks.as_scale(op, scale, self)
    with torch.no_grad():
        argument = getattr(torch.ops.reduceops, f"arg{end}").default
        index = argument(self.detach() * _constant(scale), dim, True)
    chosen = _gather(self, dim, index) * scale  # before it has no dims: its dtype might differ
    return chosen if keepdim or self.dim() == 0 else chosen.squeeze(dim)


def _constant(scale):
    return scale.detach() if isinstance(scale, Tensor) else scale


def take_no_numbers(op: str, position: int, scaled: Callable) -> None:
    """`scaled` is called where the argument scale, at that position, is a tensor or a symbol."""

    def choose_for(call: Callable) -> Callable:
        def choose(*args, **keywords):
            scale = args[position] if len(args) > position else keywords.get("scale")
            is_proxy = args and isinstance(args[0], torch.fx.Proxy)  # whose calls are recorded
            return (scaled if _is_no_number(scale) and not is_proxy else call)(*args, **keywords)

        return choose

    packet = getattr(torch.ops.reduceops, op)
    for callable_ in (packet, packet.default):
        callable_._op = choose_for(callable_._op)
    _torch_private.register_builtin(packet._op, f"reduceops::{op}")  # for torch.jit.script


def _register(end: str) -> None:
    def scaled(self, scale, dim=1, keepdim=True):
        return _scaled_by(end, self, scale, dim, keepdim)

    take_no_numbers(f"scale_{end}", 1, scaled)


for _end in ("min", "max"):
    _register(_end)
