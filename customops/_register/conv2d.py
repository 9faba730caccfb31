"""What torch is told of conv2d_scale_min and conv2d_scale_max beside their kernels.

With a gradient they are a convolution and scale_min, each with its own: the convolution keeps its
input and weight, scale_min its indices, and nobody what lies between. Where one kernel of a GPU
does both, the backward has another find the indices: see FusedExtreme.
"""

import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .. import _torch_private, arguments, checks, libraries
from .._torch_private import are_transforms_active
from ..after_import import after_import
from . import autograd, caches, unsupported
from .overloads import CONVOLUTIONS
from .scale import dispatch_on_scale, is_equivalent_to_number

log = logging.getLogger("customops")
_library, _ops = torch.library.Library("reduceops", "IMPL"), torch.ops.reduceops


class How(NamedTuple):
    """What an operator takes after the scale."""

    stride: int | Sequence[int] = (1, 1)
    padding: int | Sequence[int] = (0, 0)
    dilation: int | Sequence[int] = (1, 1)
    groups: int = 1
    dim: int = 1
    keepdim: bool = True


_DEFAULTS = [list(value) if isinstance(value, tuple) else value for value in How()]


def without_defaults(how: Sequence) -> Sequence:
    """Stride, padding and so on, without the last that are not needed: torch takes microseconds to
    read a list."""
    given = len(how)
    while given and _is(how[given - 1], _DEFAULTS[given - 1]):
        given -= 1
    return how[:given]


def _is(number, default) -> bool:
    """Also of the same type: others are refused, and to compare a symbol fixes its value."""
    if type(number) is list:
        return all(type(one) is int for one in number) and number == default
    return type(number) is type(default) and number == default


def pair(op: str, name: str, given: int | Sequence[int], least: int) -> list[int]:
    given = [given] if isinstance(given, (int, torch.SymInt)) else list(given)
    if len(given) not in (1, 2):
        raise RuntimeError(f"reduceops::{op}: {name} must be one number or two, got {given}")
    for number in given:
        _torch_private.check(
            number >= least,
            lambda: f"reduceops::{op}: {name} must be at least {least}, got {given}",
        )
    return given * (3 - len(given))


def _check_place(op: str, name: str, tensor: Tensor, input: Tensor) -> None:
    checks.check_strided(op, name, tensor)
    if tensor.device != input.device:
        raise RuntimeError(
            f"reduceops::{op}: {name} must be on the device of input, {input.device}, "
            f"got {tensor.device}"
        )
    if tensor.dtype != input.dtype:
        dtypes = [checks.dtype_name(t.dtype) for t in (input, tensor)]
        raise RuntimeError(
            f"reduceops::{op}: {name} must have the dtype of input, {dtypes[0]}, got {dtypes[1]}"
        )


def check(op, input, weight, bias, stride, padding, dilation, groups, dim) -> list[int]:
    """The shape of the convolution's result, of as many dims as the input has, with the errors of
    csrc/convolution.h."""
    checks.check_scalable(op, input.dtype)
    checks.check_layout(op, input)
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None:
            _check_place(op, name, tensor, input)
    stride = pair(op, "stride", stride, 1)
    padding = pair(op, "padding", padding, 0)
    dilation = pair(op, "dilation", dilation, 1)

    def fail_unless(condition, text) -> None:
        _torch_private.check(condition, lambda: f"reduceops::{op}: {text()}")

    x, w = list(input.shape), list(weight.shape)
    if len(x) not in (3, 4):
        raise RuntimeError(f"reduceops::{op}: input must be 3-d (unbatched) or 4-d, got shape {x}")
    if len(w) != 4:
        raise RuntimeError(f"reduceops::{op}: weight must be 4-d, got shape {w}")
    channels, filters = x[-3], w[0]
    fail_unless(groups >= 1, lambda: f"groups must be at least 1, got {groups}")
    fail_unless(
        (filters >= groups) & (filters % groups == 0),
        lambda: f"weight of shape {w} cannot be divided into {groups} groups of filters",
    )
    fail_unless(
        channels == w[1] * groups,
        lambda: (
            f"weight of shape {w} with groups={groups} needs an input of {w[1] * groups} channels, "
            f"got {channels} (input shape {x})"
        ),
    )
    empty_batch = x[0] == 0 if len(x) == 4 else False
    for has_elements in (
        *(size != 0 for size in (channels, *w[2:])),
        *((size != 0) | empty_batch for size in x[-2:]),
    ):
        fail_unless(
            has_elements, lambda: f"cannot convolve input of shape {x} with weight of shape {w}"
        )
    if bias is not None:
        fail_unless(
            bias.dim() == 1 and bias.shape[0] == filters,
            lambda: f"bias must have the shape [{filters}], got {list(bias.shape)}",
        )
    shape = [*x[:-3], filters]
    for i in range(2):
        padded, kernel = x[i - 2] + 2 * padding[i], dilation[i] * (w[i - 2] - 1) + 1
        fail_unless(
            padded >= kernel,
            lambda padded=padded, kernel=kernel: (
                f"the kernel, {kernel} long, is larger than the padded input, {padded} "
                f"(input shape {x}, weight shape {w})"
            ),
        )
        shape.append((padded - kernel) // stride[i] + 1)
    if checks.wrap_dim(op, len(shape), dim) == 0:  # of the others none is empty
        checks.check_not_empty(op, x, [0])
    return shape


def _rule_of_subclass(op, *tensors):
    """That of the first tensor which is of such a subclass; None where none is."""
    rules = (autograd.of_subclass.get((op, type(tensor))) for tensor in tensors)
    return next(filter(None, rules), None)


def _convolve_and_reduce(op, input, weight, bias, scale, *rest):
    """As two operators."""
    *how, dim, keepdim = rest
    convolved = torch.nn.functional.conv2d(input, weight, bias, *how)
    return getattr(torch.ops.reduceops, op.removeprefix("conv2d_"))(convolved, scale, dim, keepdim)


class FusedExtreme(autograd.OneLevel):
    """The extreme channel, of four dims. The forward keeps what the backward finds its channel by:
    that takes as long as to write the convolution and read it, and only where there is a backward.
    """

    @staticmethod
    def forward(largest, input, weight, bias, scale, *rest):
        op = functools.partial(_ops._conv2d_scale_extreme, largest=largest)
        return autograd.OneLevel.call(op, input, weight, bias, scale, *without_defaults(rest))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.largest, input, weight, bias, ctx.scale, *ctx.rest = inputs
        _, kept = output
        ctx.mark_non_differentiable(kept)
        ctx.save_for_backward(input, weight, bias, kept)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad, _):
        if grad is None:
            return (None,) * (5 + len(ctx.rest))
        input, weight, bias, kept = ctx.saved_tensors
        *how, dim, keepdim = ctx.rest
        stride, padding, dilation, groups = how
        channels = kept
        if kept.dtype != torch.int64:
            channels = autograd.below_autograd(
                _ops._conv2d_scale_channels,
                *(input.detach(), weight.detach(), bias if bias is None else bias.detach()),
                *(ctx.scale, *ctx.rest, kept),
                largest=ctx.largest,
            )
        if not keepdim:
            grad = grad.unsqueeze(dim)
        shape = (kept.shape[0], weight.shape[0], *kept.shape[2:])
        # As torch lays a convolution's result out.
        channels_last = any(map(autograd.is_channels_last, (input, weight)))
        grad = autograd.scatter(grad * ctx.scale, channels, shape, dim, True, channels_last)
        grads = torch.ops.aten.convolution_backward(
            *(grad, input, weight, None if bias is None else [weight.shape[0]]),
            *(stride, padding, dilation, False, [0, 0], groups),
            [
                needed and x is not None
                for needed, x in zip(ctx.needs_input_grad[1:4], (input, weight, bias), strict=True)
            ],
        )
        return None, *grads, *(None,) * (1 + len(ctx.rest))


def _is_one_kernel(input: Tensor, weight: Tensor, bias: Tensor | None, dim: int) -> bool:
    """Whether it may be. Graphs, modes and subclasses see two operators and know more of them."""
    if not (input.is_cuda and libraries.cuda.loaded and input.dim() == 4 and dim in (1, -3)):
        return False
    tensors = input, weight, bias
    if are_transforms_active() or not autograd.are_plain(*tensors):
        return False
    return not autograd.have_tangents(*tensors)


def _register_fake(op: str) -> None:
    def fake(input, weight, bias, scale, *args, **keywords):
        caches.set_cache_tag()
        how = How(*args, **keywords)
        shape = check(op, input, weight, bias, *how[:-1])
        dims = [checks.wrap_dim(op, len(shape), how.dim)]
        return input.new_empty(checks.reduced_shape(shape, dims, how.keepdim))

    torch.library.register_fake(f"reduceops::{op}", fake)
    overload = getattr(torch.ops.reduceops, op).default
    overload.tags.append(torch.Tag.flexible_layout)


_AUTOCAST = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


def _autocast(call: Callable, device: str, input, weight, bias, *rest, **keywords):
    """The rule of conv2d: everything on the device in the lower precision, but what is in float64.

    Each call casts its parameters: torch offers the cache of its own casts to nobody else.
    """
    if device not in _AUTOCAST or not torch.is_autocast_enabled(device):
        return call(input, weight, bias, *rest, **keywords)
    dtype = torch.get_autocast_dtype(device)

    def lowered(x):
        is_cast = (
            isinstance(x, Tensor)
            and x.device.type == device
            and x.is_floating_point()
            and x.dtype != torch.float64
        )
        return x.to(dtype) if is_cast else x

    with torch.autocast(device, enabled=False):
        return call(*map(lowered, (input, weight, bias)), *rest, **keywords)


def _register_autocast(op: str) -> None:
    call = getattr(torch.ops.reduceops, op).default
    for device, key in _AUTOCAST.items():
        _library.impl(op, functools.partial(_autocast, call, device), key)


def _register_autograd(op: str) -> None:
    packet = getattr(torch.ops.reduceops, op)
    call, largest = _torch_private.direct(packet.default), op.endswith("max")

    def decide(input, weight, bias, scale, *args, **keywords):
        how = How(*args, **keywords)
        if autograd.may_need_gradient(input, weight, bias):
            if of_subclass := _rule_of_subclass(op, input, weight, bias):
                return of_subclass(input, weight, bias, scale, *how)
            if _is_one_kernel(input, weight, bias, how.dim):
                return FusedExtreme.apply(largest, input, weight, bias, scale, *how)[0]
            check(op, input, weight, bias, *how[:-1])
            return _convolve_and_reduce(op, input, weight, bias, scale, *how)
        return autograd.below_autograd(call, input, weight, bias, scale, *how)

    def decide_or_fail(*args):
        try:
            return decide(*args)
        except BaseException as error:
            return autograd.Raise(error)

    _library.impl(f"_{op}_autograd", decide_or_fail, "CompositeImplicitAutograd")
    if not libraries.cuda.loaded:  # see unsupported.py
        _library.impl(op, decide, "AutogradCUDA")

    # torch's parser and the C++ Autograd kernel would make numbers of symbols, and a graph that
    # holds for these only.
    def keep_symbols(callable_, otherwise):
        def choose(*args, **keywords):
            input = args[0] if args else keywords.get("input")
            numbers = (*args[4:8], *keywords.values())
            if not isinstance(input, Tensor) or not _has_symbols(numbers):
                return otherwise(*args, **keywords)
            given = (*args, *keywords.values())
            if has_torch_function(given):  # which other numbers' call asks in C++
                return handle_torch_function(callable_, given, *args, **keywords)
            return _autocast(decide, input.device.type, *args, **keywords)

        return choose

    for callable_ in (packet, packet.default):
        keep = functools.partial(keep_symbols, callable_)
        _torch_private.replace_direct(callable_, keep)


def _has_symbols(arguments) -> bool:
    """Whether one is a number that a graph leaves open, or has one."""
    return any(
        type(number) is torch.SymInt
        for numbers in arguments
        for number in (numbers if isinstance(numbers, (list, tuple)) else (numbers,))
    )


def _register_vmap(op: str) -> None:
    packet = getattr(torch.ops.reduceops, op)
    reduce = getattr(torch.ops.reduceops, op.removeprefix("conv2d_"))

    def rule(info, in_dims, input, weight, bias, scale, *args, **keywords):
        rest = How(*args, **keywords)
        *_, dim, keepdim = rest
        of_input, *of_others = in_dims[:3]
        sample = [size for d, size in enumerate(input.shape) if d != of_input]
        if of_others == [None, None] and len(sample) == 3:  # a batch
            rest = (*rest[:4], checks.wrap_dim(op, 3, dim) + 1, keepdim)
            return packet(input.movedim(of_input, 0), weight, bias, scale, *rest), 0
        if of_others == [None, None] and len(sample) == 4 and dim % 4 != 0:
            # One larger batch.
            batches = input.movedim(of_input, 0)
            result = packet(batches.flatten(0, 1), weight, bias, scale, *rest)
            return result.unflatten(0, batches.shape[:2]), 0

        # Samples with filters of their own are groups of one convolution.
        size, (*how, groups, _, _) = info.batch_size, rest
        x, w, b = (
            x if x is None else x.expand(size, *x.shape) if of is None else x.movedim(of, 0)
            for x, of in zip((input, weight, bias), in_dims[:3], strict=True)
        )
        one = (t if t is None else t.new_empty(()).expand(t.shape[1:]) for t in (x, w, b))
        shape, dim = check(op, *one, *rest[:-1]), dim % len(sample)
        if size == 0:
            return x.new_empty((0, *checks.reduced_shape(shape, [dim], keepdim))), 0
        if of_others == [None, None]:  # one larger batch; dim 0 is that of each sample's images
            convolved = torch.nn.functional.conv2d(x.flatten(0, 1), weight, bias, *how, groups)
            return reduce(convolved.unflatten(0, x.shape[:2]), scale, dim + 1, keepdim), 0
        if len(sample) == 3:
            x = x.unsqueeze(1)
        if of_input is None and groups == 1:  # all of one input
            x = x[0]
        else:
            x, groups = x.movedim(0, 1).flatten(1, 2), groups * size
        w, b = w.flatten(0, 1), b if b is None else b.flatten()
        convolved = torch.nn.functional.conv2d(x, w, b, *how, groups)
        convolved = convolved.unflatten(1, (size, -1)).movedim(1, 0)
        if len(sample) == 3:
            convolved = convolved.squeeze(1)
        return reduce(convolved, scale, dim + 1, keepdim), 0

    torch.library.register_vmap(f"reduceops::{op}", rule)


def _register_unsupported(op: str) -> None:
    def kernel(input, weight, bias, *args, **kwargs):
        for x in (input, weight, bias):  # one that is not supported
            if x is not None and not checks.is_strided(x):
                input = x
                break
        checks.refuse(op, input)

    unsupported.register_kernel(getattr(torch.ops.reduceops, op).default, kernel)


def _register_tensor_scales(op: str) -> None:
    """A 0-d tensor, or a symbol: the convolution, and then the operator that takes them."""
    call = getattr(torch.ops.reduceops, op).default
    reduce = getattr(torch.ops.reduceops, op.removeprefix("conv2d_"))

    def scaled(input, weight, bias, scale, *args, **keywords):
        *sides, groups, dim, keepdim = How(*args, **keywords)
        sides = [arguments.as_ints(op, *of) for of in zip(How._fields, sides, strict=False)]
        numbers = *sides, arguments.as_int(op, "groups", groups)
        for of in zip(How._fields, numbers, strict=False):
            arguments.check_ints(op, *of)
        for name, tensor in (("input", input), ("weight", weight)):
            arguments.check_input(op, tensor, name)
        if bias is not None:
            arguments.check_input(op, bias, "bias")
        how = (*numbers, arguments.as_int(op, "dim", dim), arguments.as_bool(op, keepdim))
        return _autocast(of_tensors, input.device.type, input, weight, bias, scale, *how)

    def of_tensors(input, weight, bias, scale, *how):
        if of_subclass := _rule_of_subclass(op, input, weight, bias):
            return of_subclass(input, weight, bias, scale, *how)
        *numbers, dim, keepdim = how
        if not torch.jit.is_tracing():  # where sizes are tensors
            check(op, input, weight, bias, *numbers, dim)
        if isinstance(scale, Tensor):
            checks.check_scale(op, scale, input)
            if is_equivalent_to_number(scale, input):
                return call(input, weight, bias, float(scale.detach()), *how)
        convolved = torch.conv2d(input, weight, bias, *numbers)
        return reduce(convolved, scale, dim, keepdim)

    dispatch_on_scale(op, ("input", "weight", "bias", "scale", *How._fields), scaled)


@torch.library.register_fake("reduceops::_conv2d_scale_channels")
def _fake_channels(input, *args, largest):
    *_, kept = args
    return torch.empty_like(kept, dtype=torch.int64)


def _register_flops() -> None:
    """What torch.utils.flop_counter counts: the convolution."""
    from torch.utils import flop_counter

    register = getattr(flop_counter, "register_flop_formula", None)
    for op in CONVOLUTIONS if register else ():

        def flops(input, weight, bias, scale, *args, op=op, out_val=None, **keywords):
            shape = check(op, input, weight, bias, *How(*args, **keywords)[:-1])
            return 2 * math.prod(shape) * math.prod(weight.shape[1:])

        try:
            register([getattr(_ops, op)], get_raw=True)(flops)
        except Exception:  # a torch that counts in another way, which counts less without this
            log.info("the FLOPs of %s are not counted", op, exc_info=True)


for _op in CONVOLUTIONS:
    _register_fake(_op)
    _register_autograd(_op)
    _register_vmap(_op)
    _register_autocast(_op)
    _register_unsupported(_op)
    _register_tensor_scales(_op)
after_import("torch.utils.flop_counter", _register_flops)
