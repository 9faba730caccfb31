"""Gradients: that of an extreme value goes to the element chosen, so only the indices are saved.

The C++ Autograd kernel of an operator goes on with `_min_autograd`, implemented here, where a
gradient may be needed or where Python sees every call (a mode, a subclass). What is here goes on
below autograd with the public operator, or with one that has a gradient too, so that graphs hold
these.
"""

from itertools import pairwise

import torch
from torch import Tensor

from . import _torch_private
from ._torch_private import are_transforms_active, guard_or_false

_library = torch.library.Library("reduceops", "IMPL")


def below_autograd(op, *args):
    with _torch_private.AutoDispatchBelowAutograd():
        return op(*args)


class Select(_torch_private.SingleLevelFunction):
    """(values, indices) by `op`, which takes a scale unless `scale` is None. Under transforms of
    torch.func it is called once for each of their levels, as the operator is.
    """

    @classmethod
    def apply(cls, *args):
        args = _torch_private.unwrap_dead_wrappers(args)
        if not are_transforms_active():
            return super().apply(*args)
        with _torch_private.enable_single_level_autograd_function():
            return super().apply(*args)

    @staticmethod
    def forward(op, self, scale, dim, keepdim):
        args = (dim, keepdim) if scale is None else (scale, dim, keepdim)
        if not are_transforms_active():
            return below_autograd(op, self, *args)
        # A Function turns gradients of both kinds off, for the next transform too.
        with torch.enable_grad(), _torch_private.set_forward_gradients(True):
            return below_autograd(op, self, *args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, self, ctx.scale, ctx.dim, ctx.keepdim = inputs
        _, indices = output
        ctx.shape = self.shape
        ctx.channels_last = 4 <= self.dim() <= 5 and _is_channels_last(self)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        ctx.save_for_forward(indices)
        ctx.set_materialize_grads(False)

    @staticmethod
    def _compiled_autograd_key(ctx):
        return (ctx._autograd_function_id,)

    @staticmethod
    def backward(ctx, grad, _):
        if grad is None:
            return (None,) * 5
        (indices,) = ctx.saved_tensors
        if ctx.scale is not None:
            grad = grad * ctx.scale
        if ctx.channels_last and not are_transforms_active() and type(grad) is type(indices):
            # In the input's layout, or the convolution before it would copy it to that. (Zeros like
            # the gradient, for it may stand for several tensors, as a batch or a subclass.)
            if not ctx.keepdim:
                grad, indices = grad.unsqueeze(ctx.dim), indices.unsqueeze(ctx.dim)
            batch, channels, *others = ctx.shape
            zeros = grad.new_zeros((batch, *others, channels)).movedim(-1, 1)
            grad = zeros.scatter_(ctx.dim, indices, grad)
        else:
            grad = torch.ops.aten.value_selecting_reduction_backward(
                grad, ctx.dim, indices, ctx.shape, ctx.keepdim
            )
        return None, grad, None, None, None

    @staticmethod
    def jvp(ctx, _op, tangent, *_):
        (indices,) = ctx.saved_tensors
        if ctx.keepdim or tangent.dim() == 0:
            tangent = tangent.gather(ctx.dim, indices)
        else:
            tangent = tangent.gather(ctx.dim, indices.unsqueeze(ctx.dim)).squeeze(ctx.dim)
        return tangent if ctx.scale is None else tangent * ctx.scale, None


def _is_channels_last(self: Tensor) -> bool:
    """Whether its strides, which may be symbols, have that order."""
    channel, *others = (self.stride(d) for d in (1, *range(self.dim() - 1, 1, -1), 0))
    if not guard_or_false(channel < others[0]):
        return False
    return all(guard_or_false(inner <= outer) for inner, outer in pairwise(others))


class Raise(torch.Tensor):
    """Carries an exception through C++ (see csrc/autograd.cpp): operators on it raise that."""

    @staticmethod
    def __new__(cls, error: BaseException):
        return _torch_private.make_wrapper_subclass(cls, (), dtype=torch.complex64)

    def __init__(self, error: BaseException):
        self.error = error

    __repr__ = object.__repr__  # not torch's, which would ask for the elements

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        # Taken away: the traceback will hold this frame, and so would keep itself alive.
        raise args[0].__dict__.pop("error")


in_python = {}  # the operators by name, all of autograd in Python
of_subclass = {}  # how an operator is computed with a gradient, by (operator, subclass of Tensor)


def _select_if_needed(op, select):
    """`select` where a gradient may be needed, else `op` below autograd."""

    def decide(self, *args):
        # (A compiled torch.func.jvp leaves no trace in forward_ad.)
        if (
            (self.requires_grad and torch.is_grad_enabled())
            or _torch_private.is_forward_mode()
            or are_transforms_active()
        ):
            return of_subclass.get((op, type(self)), select)(self, *args)
        return below_autograd(op, self, *args)

    return decide


def _register(op, select) -> None:
    name, outputs = op._opname, len(op._schema.returns)
    decide = _select_if_needed(op, select)

    def decide_or_fail(*args):
        try:
            return decide(*args)
        except BaseException as error:
            failed = Raise(error)
        return (failed,) * outputs if outputs > 1 else failed

    _library.impl(f"_{name}_autograd", decide_or_fail, "CompositeImplicitAutograd")
    in_python[name] = decide


def _register_extreme(op) -> None:
    def select(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        return Select.apply(op, self, None, dim, keepdim)

    _register(op, select)


def _register_scaled(op, with_indices) -> None:
    def select(self: Tensor, scale: float, dim: int = 1, keepdim: bool = True) -> Tensor:
        return Select.apply(with_indices, self, scale, dim, keepdim)[0]

    def select_with_indices(self, scale, dim, keepdim):
        return Select.apply(with_indices, self, scale, dim, keepdim)

    _register(op, select)
    # What a graph holds that was recorded below autograd.
    decide = _select_if_needed(with_indices, select_with_indices)
    _library.impl(with_indices._opname, decide, "Autograd")


_ops = torch.ops.reduceops
_register_extreme(_ops.min.default)
_register_extreme(_ops.max.default)
_register_scaled(_ops.scale_min.default, _ops._scale_min_indices.default)
_register_scaled(_ops.scale_max.default, _ops._scale_max_indices.default)

for _op in ("argmin", "argmin.dims", "argmax", "argmax.dims"):  # integer results
    _library.impl(_op, torch.library.fallthrough_kernel, "Autograd")
