"""Gradients: that of an extreme value goes to the element chosen, so only the indices are saved.

The C++ Autograd kernel of an operator calls its private twin (`_min`) where no gradient is needed,
and `_min_autograd`, implemented here, where one may be or where Python sees every call (a mode, a
subclass). What is here goes on below autograd with the public operator, so that graphs hold it.
"""

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.autograd import forward_ad

from .vmap import batch_to_front

_library = torch.library.Library("reduceops", "IMPL")


def below_autograd(op, *args):
    with torch._C._AutoDispatchBelowAutograd():
        return op(*args)


class Select(torch.autograd.Function):
    """(values, indices) by `op`, which takes a scale unless `scale` is None."""

    @classmethod
    def apply(cls, *args):
        """torch's, without its binding of keywords and defaults, which takes most of a call."""
        if torch._C._are_functorch_transforms_active():
            return super().apply(*args)
        args = torch._functorch.utils.unwrap_dead_wrappers(args)
        return super(torch.autograd.Function, cls).apply(*args)

    @staticmethod
    def forward(op, self, scale, dim, keepdim):
        if scale is None:
            return below_autograd(op, self, dim, keepdim)
        return below_autograd(op, self, scale, dim, keepdim)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, self, ctx.scale, ctx.dim, ctx.keepdim = inputs
        _, indices = output
        ctx.shape, ctx.memory_format = self.shape, None
        if 4 <= self.dim() <= 5 and not self.is_contiguous():
            ctx.memory_format = suggest_memory_format(self)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        ctx.save_for_forward(indices)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad, _):
        if grad is None:
            return (None,) * 5
        (indices,) = ctx.saved_tensors
        if ctx.scale is not None:
            grad = grad * ctx.scale
        if ctx.memory_format is None or torch._C._are_functorch_transforms_active():
            grad = torch.ops.aten.value_selecting_reduction_backward(
                grad, ctx.dim, indices, ctx.shape, ctx.keepdim
            )
        else:
            # In the input's layout, or the convolution before it would copy it to that.
            if not ctx.keepdim:
                grad, indices = grad.unsqueeze(ctx.dim), indices.unsqueeze(ctx.dim)
            zeros = torch.empty(
                ctx.shape, dtype=grad.dtype, device=grad.device, memory_format=ctx.memory_format
            ).zero_()
            grad = zeros.scatter_(ctx.dim, indices, grad)
        return None, grad, None, None, None

    @staticmethod
    def jvp(ctx, _op, tangent, *_):
        (indices,) = ctx.saved_tensors
        if ctx.keepdim or tangent.dim() == 0:
            tangent = tangent.gather(ctx.dim, indices)
        else:
            tangent = tangent.gather(ctx.dim, indices.unsqueeze(ctx.dim)).squeeze(ctx.dim)
        return tangent if ctx.scale is None else tangent * ctx.scale, None

    @staticmethod
    def vmap(info, in_dims, op, self, scale, dim, keepdim):
        name = op._opname.removeprefix("_").removesuffix("_indices")
        self, (dim,), keepdim = batch_to_front(name, self, in_dims[1], dim, keepdim)
        return Select.apply(op, self, scale, dim, keepdim), (0, 0)


class Raise(torch.Tensor):
    """Carries an exception through C++ (see csrc/autograd.cpp): operators on it raise that."""

    @staticmethod
    def __new__(cls, error: BaseException):
        return torch.Tensor._make_wrapper_subclass(cls, (), dtype=torch.complex64)

    def __init__(self, error: BaseException):
        self.error = error

    __repr__ = object.__repr__  # not torch's, which would ask for the elements

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        # Taken away: the traceback will hold this frame, and so would keep itself alive.
        raise args[0].__dict__.pop("error")


in_python = {}  # the operators by name, all of autograd in Python


def _register(op, select) -> None:
    name, outputs = op._opname, len(op._schema.returns)

    def decide(self, *args):
        if (self.requires_grad and torch.is_grad_enabled()) or forward_ad._current_level >= 0:
            return select(self, *args)
        return below_autograd(op, self, *args)

    def decide_or_fail(*args):
        try:
            return decide(*args)
        except BaseException as error:
            failed = Raise(error)
        return (failed,) * outputs if outputs > 1 else failed

    _library.impl(f"_{name}_autograd", decide_or_fail, "CompositeImplicitAutograd")
    # A transform of torch.func sees an operator once per level, and below autograd there is no
    # gradient for the next level; so under a transform an operator is its Function from the outset.
    _library.impl(name, select, "FuncTorchDynamicLayerFrontMode")
    in_python[name] = decide


def _register_extreme(op) -> None:
    def select(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        return Select.apply(op, self, None, dim, keepdim)

    _register(op, select)


def _register_scaled(op, with_indices) -> None:
    def select(self: Tensor, scale: float, dim: int = 1, keepdim: bool = True) -> Tensor:
        return Select.apply(with_indices, self, scale, dim, keepdim)[0]

    _register(op, select)


_ops = torch.ops.reduceops
_register_extreme(_ops.min.default)
_register_extreme(_ops.max.default)
_register_scaled(_ops.scale_min.default, _ops._scale_min_indices.default)
_register_scaled(_ops.scale_max.default, _ops._scale_max_indices.default)

# Integer results, and what the operators go on with below autograd.
for _op in (
    *("argmin", "argmin.dims", "argmax", "argmax.dims"),
    *("_min", "_max", "_scale_min", "_scale_max", "_scale_min_indices", "_scale_max_indices"),
):
    _library.impl(_op, torch.library.fallthrough_kernel, "Autograd")
