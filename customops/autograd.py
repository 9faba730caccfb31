"""Gradients: that of an extreme value goes to the element chosen, so only the indices are saved.

The C++ Autograd kernel of an operator calls its private twin (`_min`) where no gradient is needed,
and `_min_autograd`, implemented here, where one may be.
"""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .vmap import batch_to_front

_library = torch.library.Library("reduceops", "IMPL")


class Select(torch.autograd.Function):
    """(values, indices) of `twin`, which takes a scale unless `scale` is None."""

    @staticmethod
    def forward(twin, self, scale, dim, keepdim):
        return twin(self, dim, keepdim) if scale is None else twin(self, scale, dim, keepdim)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, self, ctx.scale, ctx.dim, ctx.keepdim = inputs
        _, indices = output
        ctx.shape = self.shape
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
        grad = torch.ops.aten.value_selecting_reduction_backward(
            grad, ctx.dim, indices, ctx.shape, ctx.keepdim
        )
        return None, grad, None, None, None

    @staticmethod
    def jvp(ctx, _twin, tangent, *_):
        (indices,) = ctx.saved_tensors
        if ctx.keepdim or tangent.dim() == 0:
            tangent = tangent.gather(ctx.dim, indices)
        else:
            tangent = tangent.gather(ctx.dim, indices.unsqueeze(ctx.dim)).squeeze(ctx.dim)
        return tangent if ctx.scale is None else tangent * ctx.scale, None

    @staticmethod
    def vmap(info, in_dims, twin, self, scale, dim, keepdim):
        op = twin._opname.removeprefix("_").removesuffix("_indices")
        self, (dim,), keepdim = batch_to_front(op, self, in_dims[1], dim, keepdim)
        return Select.apply(twin, self, scale, dim, keepdim), (0, 0)


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


def _register(op: str, select) -> None:
    outputs = len(getattr(torch.ops.reduceops, op).default._schema.returns)
    bare = getattr(torch.ops.reduceops, f"_{op}").default

    def select_or_fail(self, *args):
        try:
            tangents = forward_ad._current_level >= 0
            if tangents or (self.requires_grad and torch.is_grad_enabled()):
                return select(self, *args)
            return bare(self, *args)
        except BaseException as error:
            failed = Raise(error)
        return (failed,) * outputs if outputs > 1 else failed

    _library.impl(f"_{op}_autograd", select_or_fail, "CompositeImplicitAutograd")
    # A transform of torch.func sees an operator once per level, and the twin has no gradient for
    # the next level; so under a transform an operator is its Function from the outset.
    _library.impl(op, select, "FuncTorchDynamicLayerFrontMode")
    in_python[op] = select


def _register_extreme(op: str) -> None:
    twin = getattr(torch.ops.reduceops, f"_{op}").default

    def select(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        return Select.apply(twin, self, None, dim, keepdim)

    _register(op, select)


def _register_scaled(op: str) -> None:
    twin = getattr(torch.ops.reduceops, f"_{op}_indices").default

    def select(self: Tensor, scale: float, dim: int = 1, keepdim: bool = True) -> Tensor:
        return Select.apply(twin, self, scale, dim, keepdim)[0]

    _register(op, select)


in_python = {}  # the operators, all of autograd in Python
for _op in ("min", "max"):
    _register_extreme(_op)
for _op in ("scale_min", "scale_max"):
    _register_scaled(_op)

# Integer results, and the twins, which are what is left of an operator below autograd.
for _op in (
    *("argmin", "argmin.dims", "argmax", "argmax.dims"),
    *("_min", "_max", "_scale_min", "_scale_max", "_scale_min_indices", "_scale_max_indices"),
):
    _library.impl(_op, torch.library.fallthrough_kernel, "Autograd")
