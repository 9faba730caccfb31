"""Gradients: that of an extreme value goes to the element chosen, so only the indices are saved
(and with a mask, which groups have one); that of a probability to all, so the input is.

The C++ Autograd kernel of an operator goes on with `_min_autograd`, implemented here, where a
gradient may be needed or where Python sees every call (a mode, a subclass). What is here goes on
below autograd with the public operator, or with one that has a gradient too, so that graphs hold
these.
"""

import functools
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import _torch_private, checks
from .._torch_private import are_transforms_active, guard_or_false
from .overloads import overloads

_library = torch.library.Library("reduceops", "IMPL")


def below_autograd(op, *args, **options):
    with _torch_private.AutoDispatchBelowAutograd():
        return op(*args, **options)


def _for_outer_levels(jvp):
    """A Function turns tangents off, also those that its own tangents have at outer levels."""

    @functools.wraps(jvp)
    def enabled(ctx, *tangents):
        with _torch_private.set_forward_gradients(True):
            return jvp(ctx, *tangents)

    return enabled


class OneLevel(_torch_private.SingleLevelFunction):
    """Under transforms of torch.func it is called once for each of their levels, as the operator
    is."""

    @classmethod
    def apply(cls, *args):
        args = _torch_private.unwrap_dead_wrappers(args)
        if not are_transforms_active():
            return super().apply(*args)
        with _torch_private.enable_single_level_autograd_function():
            return super().apply(*args)

    @staticmethod
    def call(op, *args):
        if not are_transforms_active():
            return below_autograd(op, *args)
        # A Function turns gradients of both kinds off, for the next transform too.
        with torch.enable_grad(), _torch_private.set_forward_gradients(True):
            return below_autograd(op, *args)

    @staticmethod
    def _compiled_autograd_key(ctx):
        return _torch_private.compiled_autograd_key(ctx)


class Select(OneLevel):
    """(values, indices) by `op`, which takes a scale unless `scale` is None, and further `options`,
    of which the first may be a mask."""

    @staticmethod
    def forward(op, self, scale, dim, keepdim, *options):
        args = (dim, keepdim) if scale is None else (scale, dim, keepdim)
        return OneLevel.call(op, self, *args, *options)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, self, ctx.scale, ctx.dim, ctx.keepdim, *options = inputs
        _, indices = output
        ctx.inputs = len(inputs)
        ctx.shape = self.shape
        ctx.channels_last = 4 <= self.dim() <= 5 and is_channels_last(self)
        ctx.mark_non_differentiable(indices)
        mask = options[0] if options else None
        present = None if mask is None else has_elements(mask, indices, self, ctx.dim, ctx.keepdim)
        ctx.save_for_backward(indices, present)
        ctx.save_for_forward(indices, present)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad, _):
        if grad is None:
            return (None,) * ctx.inputs
        indices, present = ctx.saved_tensors
        indices = indices.long()
        if present is not None:  # and not negated: its bytes may be those of a mask, not 0 and 1
            grad = torch.where(present, grad, 0)
        if ctx.scale is not None:
            grad = grad * ctx.scale
        plain = not are_transforms_active() and type(grad) is type(indices)
        grad = scatter(grad, indices, ctx.shape, ctx.dim, ctx.keepdim, plain and ctx.channels_last)
        return None, grad, *(None,) * (ctx.inputs - 2)

    @staticmethod
    @_for_outer_levels
    def jvp(ctx, _op, tangent, *_):
        indices, present = ctx.saved_tensors
        tangent = _gather(tangent, indices.long(), ctx.dim, ctx.keepdim)
        if present is not None:
            tangent = torch.where(present, tangent, 0)
        return tangent if ctx.scale is None else tangent * ctx.scale, None


def scatter(
    grad: Tensor,
    indices: Tensor,
    shape: Sequence[int],
    dim: int,
    keepdim: bool,
    channels_last: bool,
) -> Tensor:
    """The gradient of elements that were chosen, as that of all."""
    if not channels_last:
        return torch.ops.aten.value_selecting_reduction_backward(grad, dim, indices, shape, keepdim)
    # In the input's layout, or the convolution before it would copy it to that. (Zeros like the
    # gradient, for it may stand for several tensors, as a batch or a subclass.)
    if not keepdim:
        grad, indices = grad.unsqueeze(dim), indices.unsqueeze(dim)
    batch, channels, *others = shape
    zeros = grad.new_zeros((batch, *others, channels)).movedim(-1, 1)
    return zeros.scatter_(dim, indices, grad)


class SoftmaxMax(OneLevel):
    """(probability, index). The gradient of a probability goes to every element, in the measure of
    its own probability. So here the input is saved: indices say nothing of the others."""

    @staticmethod
    def forward(op, self, dim, keepdim):
        return OneLevel.call(op, self, dim, keepdim)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, self, ctx.dim, ctx.keepdim = inputs
        _, index = output
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(self, index)
        ctx.save_for_forward(self, index)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad, _):
        if grad is None:
            return (None,) * 4
        self, index = ctx.saved_tensors
        aten, probabilities = torch.ops.aten, torch.softmax(self, ctx.dim, dtype=self.dtype)
        chosen = aten.value_selecting_reduction_backward(
            grad, ctx.dim, index, self.shape, ctx.keepdim
        )
        grad = aten._softmax_backward_data(chosen, probabilities, ctx.dim, self.dtype)
        return None, grad, None, None

    @staticmethod
    @_for_outer_levels
    def jvp(ctx, _op, tangent, *_):
        self, index = ctx.saved_tensors
        self = forward_ad.unpack_dual(self, level=0).primal
        probabilities = torch.softmax(self, ctx.dim, dtype=self.dtype)
        tangent = tangent - (probabilities * tangent).sum(ctx.dim, keepdim=True)
        return _gather(probabilities * tangent, index, ctx.dim, ctx.keepdim), None


def _gather(x: Tensor, indices: Tensor, dim: int, keepdim: bool) -> Tensor:
    if keepdim or x.dim() == 0:
        return x.gather(dim, indices)
    return x.gather(dim, indices.unsqueeze(dim)).squeeze(dim)


def has_elements(mask: Tensor, indices: Tensor, self: Tensor, dim: int, keepdim: bool) -> Tensor:
    """Of which groups an element takes part: the others have index 0, and it does not."""
    dim = checks.wrap_dim("mask", self.dim(), dim) - (self.dim() - mask.dim())
    if mask.dim() and dim >= 0:
        mask = mask.narrow(dim, 0, 1) if keepdim else mask.select(dim, 0)
    return indices.bool() | mask


def is_channels_last(self: Tensor) -> bool:
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
of_subclass = {}  # how an operator is computed with a gradient, by (its name, subclass of Tensor)


def may_need_gradient(*tensors: Tensor | None) -> bool:
    if are_transforms_active():
        return True
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return True
    return have_tangents(*tensors)


def have_tangents(*tensors: Tensor | None) -> bool:
    return any(t is not None and _torch_private.has_tangent(t) for t in tensors)


def are_plain(*tensors: Tensor | None) -> bool:
    """Whether Python sees no call with them: there is no mode, and no subclass of Tensor."""
    kinds = {type(t) for t in tensors if t is not None}
    return not _torch_private.dispatch_modes() and kinds <= {Tensor, torch.nn.Parameter}


def _select_if_needed(name, op, select):
    """`select` where a gradient may be needed, else `op` below autograd."""

    def decide(self, *args, **options):
        if may_need_gradient(self):
            return of_subclass.get((name, type(self)), select)(self, *args, **options)
        return below_autograd(op, self, *args, **options)

    return decide


def _register(name, op, outputs, select) -> None:
    """Of the operator or overload of this name; `op` calls it."""
    decide = _select_if_needed(name, op, select)

    def decide_or_fail(*args):
        try:
            return decide(*args)
        except BaseException as error:
            failed = Raise(error)
        return (failed,) * outputs if outputs > 1 else failed

    private = f"_{name.removeprefix('_').replace('.', '_')}_autograd"
    _library.impl(private, decide_or_fail, "CompositeImplicitAutograd")
    in_python[name] = decide


def _register_extreme(name) -> None:
    packet = getattr(_ops, name)

    def select(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        return Select.apply(packet.default, self, None, dim, keepdim)

    _register(name, packet.default, 2, select)

    def with_options(self, dim, keepdim=False, mask=None, index_dtype=None):
        return packet.options(self, dim, keepdim, mask=mask, index_dtype=index_dtype)

    def select_with_options(self, dim, keepdim=False, mask=None, index_dtype=None):
        return Select.apply(with_options, self, None, dim, keepdim, mask, index_dtype)

    _register(f"{name}.options", with_options, 2, select_with_options)


def _register_softmax(op) -> None:
    def apply(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        return SoftmaxMax.apply(op, self, dim, keepdim)

    _register("softmax_max", op, 2, apply)


def _register_scaled(name: str) -> None:
    op, indices = getattr(_ops, name).default, f"_{name}_indices"
    with_indices = getattr(_ops, indices).default

    def select(self: Tensor, scale: float, dim: int = 1, keepdim: bool = True) -> Tensor:
        return Select.apply(with_indices, self, scale, dim, keepdim)[0]

    def select_with_indices(self, scale, dim, keepdim):
        return Select.apply(with_indices, self, scale, dim, keepdim)

    _register(name, op, 1, select)
    _register(indices, with_indices, 2, select_with_indices)


_ops = torch.ops.reduceops
_register_extreme("min")
_register_extreme("max")
_register_softmax(_ops.softmax_max.default)
_register_scaled("scale_min")
_register_scaled("scale_max")

for _overload in overloads("argmin") + overloads("argmax"):  # integer results
    _library.impl(_overload, torch.library.fallthrough_kernel, "Autograd")
