"""Gradients: to the element chosen, as torch's own where torch's choice is the same."""

import sys
import warnings
from pathlib import Path

import data
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from opspec import (
    DIFFERENTIABLE,
    all_dims,
    as_tuple,
    each_differentiable_op,
    each_selecting_op,
    ops,
)
from torch._dynamo import compiled_autograd
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor

import customops


def values(spec, x, dim, keepdim=False):
    return as_tuple(spec.op(x, *spec.arguments(dim, keepdim)))[0]


def expected_values(spec, x, dim, keepdim=False):
    return as_tuple(spec.torch(x, *spec.arguments(dim, keepdim)))[0]


def same(spec, actual, expected):
    """Equal; where it is computed, near."""
    if spec.selects:
        return torch.equal(actual, expected)
    return torch.allclose(actual, expected, rtol=1e-9, atol=1e-12)


def distinct(shape, device="cpu", dtype=torch.float64):
    """Values far enough apart for finite differences."""
    generator = torch.Generator().manual_seed(0)
    count = torch.Size(shape).numel()
    return (torch.randperm(count, generator=generator).to(dtype) / 8).view(shape).to(device)


@each_differentiable_op
def test_gradcheck(spec, device):
    for shape in ((3, 4, 5), (4,), ()):
        x = distinct(shape, device).requires_grad_()
        for dim in all_dims(x) if shape else (0, -1):
            for keepdim in (False, True):

                def function(x, dim=dim, keepdim=keepdim):
                    return values(spec, x, dim, keepdim)

                assert torch.autograd.gradcheck(function, x, check_undefined_grad=True)
                assert torch.autograd.gradgradcheck(function, x, check_batched_grad=True)


@each_differentiable_op
def test_forward_mode_gradcheck(spec, device):
    x = distinct((3, 4, 5), device).requires_grad_()
    for dim in range(3):
        for keepdim in (False, True):

            def function(x, dim=dim, keepdim=keepdim):
                return values(spec, x, dim, keepdim)

            assert torch.autograd.gradcheck(
                function,
                x,
                check_forward_ad=True,
                check_batched_forward_grad=True,
                check_batched_grad=True,
            )
            assert torch.autograd.gradgradcheck(function, x, check_fwd_over_rev=True)


@each_differentiable_op
def test_dual_numbers(spec, device):
    """Forward mode without requires_grad."""
    x, tangent = distinct((3, 4), device), torch.randn(3, 4, dtype=torch.float64, device=device)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        actual = forward_ad.unpack_dual(values(spec, dual, 1)).tangent
        expected = forward_ad.unpack_dual(expected_values(spec, dual, 1)).tangent
    assert actual is not None and same(spec, actual, expected)


@each_differentiable_op
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_dual_numbers_of_a_graph(spec, backend, device):
    """Its level is one that torch.autograd.forward_ad does not know of when the graph runs."""
    x, tangent = distinct((3, 4), device), torch.randn(3, 4, dtype=torch.float64, device=device)

    def tangents(function, x, tangent):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, tangent)
            return forward_ad.unpack_dual(function(spec, dual, 1)).tangent

    compiled = torch.compile(tangents, backend=backend, fullgraph=True)
    expected = tangents(expected_values, x, tangent)
    assert same(spec, compiled(values, x, tangent), expected)


@each_selecting_op
@pytest.mark.parametrize("dtype", data.FLOATS, ids=str)
@pytest.mark.parametrize("kind", ["smooth", "ties", "special"])
def test_gradients_equal_torchs(spec, dtype, kind, device):
    """Ties and NaNs too: torch's own gradient of min over a dim goes to one element as well."""
    x = data.make((4, 9, 6), dtype, kind).to(device)
    for y in (x, x.transpose(0, 2), x[:, ::2]):
        for dim in range(3):
            leaf, other = (y.detach().clone().requires_grad_() for _ in range(2))
            result, expected = values(spec, leaf, dim), expected_values(spec, other, dim)
            weights = data.make(result.shape, dtype, "smooth").to(device)
            result.backward(weights)
            expected.backward(weights)
            assert torch.equal(leaf.grad, other.grad), (dim, kind)
            assert leaf.grad.dtype == dtype


@each_selecting_op
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(
    "shape, layout",
    [((2, 3, 4, 5), torch.channels_last), ((2, 3, 4, 5, 2), torch.channels_last_3d)],
    ids=["channels_last", "channels_last_3d"],
)
def test_a_gradient_has_the_layout_of_the_input(spec, keepdim, shape, layout, device):
    """Else the backward of a convolution before it copies the gradient."""
    x = distinct(shape, device).to(memory_format=layout).requires_grad_()
    for dim in all_dims(x):
        result, expected = (f(spec, x, dim, keepdim) for f in (values, expected_values))
        weights = data.make(result.shape, torch.float64, "smooth").to(device)
        (actual,) = torch.autograd.grad(result, x, weights)
        assert actual.is_contiguous(memory_format=layout)
        assert torch.equal(actual, torch.autograd.grad(expected, x, weights)[0])
    assert torch.autograd.gradgradcheck(lambda x: values(spec, x, 1, keepdim).square(), x)


@each_differentiable_op
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("plain", [False, True], ids=["", "plain"])
def test_a_channels_last_subclass_of_two_tensors(spec, keepdim, plain):
    """Each half has its own gradient, whether the incoming one has halves or is for both."""
    halves = [
        distinct((2, 3, 4, 5)).flip(flipped).to(memory_format=torch.channels_last)
        for flipped in ((), (1,))
    ]
    x = TwoTensor(*halves).requires_grad_()
    result = values(spec, x, 1, keepdim)
    weights = distinct(result.shape)
    result.backward(weights if plain else TwoTensor(weights, weights * 2))
    assert isinstance(x.grad, TwoTensor)
    for actual, half, factor in ((x.grad.a, halves[0], 1), (x.grad.b, halves[1], 2 - plain)):
        leaf = half.clone().requires_grad_()
        expected_values(spec, leaf, 1, keepdim).backward(weights * factor)
        assert same(spec, actual, leaf.grad)
        assert plain or actual.is_contiguous(memory_format=torch.channels_last)


@each_selecting_op
def test_a_compiled_backward_is_one_graph(spec):
    """Of compiled autograd, which traces the gradient itself."""
    x = distinct((2, 3, 4, 5)).to(memory_format=torch.channels_last).requires_grad_()
    (expected,) = torch.autograd.grad(expected_values(spec, x, 1).sum(), x)
    with compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        values(spec, x, 1).sum().backward()
    assert torch.equal(x.grad, expected)
    assert x.grad.is_contiguous(memory_format=torch.channels_last)


@each_differentiable_op
def test_a_view_of_a_leaf(spec, device):
    leaf = distinct((6, 8), device).requires_grad_()
    other = leaf.detach().clone().requires_grad_()
    values(spec, leaf[1::2].t(), 0).sum().backward()
    expected_values(spec, other[1::2].t(), 0).sum().backward()
    assert same(spec, leaf.grad, other.grad)


@each_selecting_op
def test_backward_saves_the_indices_only(spec, device):
    saved = []
    x = distinct((3, 1000, 2), device).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        values(spec, x * 1.0, 1)
    saved = [t for t in saved if t.dim()]  # a multiplication by a number may save the number
    assert [(t.dtype, tuple(t.shape)) for t in saved] == [(torch.int64, (3, 2))]


@each_selecting_op
def test_the_input_is_freed_before_the_backward(spec):
    import weakref

    leaf = distinct((3, 50)).requires_grad_()
    product = leaf * 2
    alive = weakref.ref(product)
    result = values(spec, product, 1)
    del product
    assert alive() is None
    result.sum().backward()


def test_indices_are_not_differentiable(device):
    x = distinct((3, 4), device).requires_grad_()
    found, indices = ops.min(x, 1)
    assert found.requires_grad and not indices.requires_grad
    for op in (ops.argmin, ops.argmax):
        assert not op(x, 1).requires_grad
        assert not op(x, [0, 1]).requires_grad


@each_differentiable_op
def test_no_graph_where_none_is_wanted(spec, device):
    leaf = distinct((3, 4), device).requires_grad_()
    with torch.no_grad():
        assert not values(spec, leaf, 1).requires_grad
    with torch.inference_mode():
        result = values(spec, leaf * 1.0, 1)
        assert result.is_inference() and not result.requires_grad
    assert not values(spec, leaf.detach(), 1).requires_grad
    assert not values(spec, leaf.detach()[1:], 1).requires_grad
    # An inference tensor outside of inference mode.
    with torch.inference_mode():
        frozen = distinct((3, 4), device)
    assert same(spec, values(spec, frozen, 1), expected_values(spec, frozen, 1))


@pytest.mark.parametrize("name", ["_scale_min_indices", "_scale_max_indices"])
def test_no_node_where_none_is_wanted(name, monkeypatch):
    calls = []
    monkeypatch.setattr(
        customops._register.autograd.Select,
        "apply",
        lambda *args: calls.append(args) or (None, None),
    )
    x = distinct((3, 4))
    getattr(ops, name)(x, 2.0, 1, True)
    assert not calls
    getattr(ops, name)(x.requires_grad_(), 2.0, 1, True)
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["_scale_min_indices", "_scale_max_indices"])
def test_without_a_gradient_a_call_runs_no_python(name):
    op, files, x = getattr(ops, name).default, set(), distinct((3, 4))
    sys.setprofile(lambda frame, *_: files.add(Path(frame.f_code.co_filename)))
    try:
        op(x, 2.0, 1, True)
    finally:
        sys.setprofile(None)
    assert not any(Path(customops.__file__).parent in file.parents for file in files)


@each_differentiable_op
def test_the_autograd_path_without_a_gradient(spec, device):
    """The C++ side goes there when it cannot tell."""
    x = distinct((3, 4), device)
    differentiable = getattr(ops, f"_{spec.name}_autograd")
    result = as_tuple(differentiable(x, *spec.arguments(1, False)))[0]
    assert not result.requires_grad
    assert same(spec, result, expected_values(spec, x, 1))


class Stop(Exception):
    """Neither torch nor we know it."""


def stop(*_):
    raise Stop("here")


@each_differentiable_op
def test_an_exception_of_a_hook_keeps_its_type(spec, device):
    """Also where it leaves by another way than it came: through C++."""
    x = distinct((3, 4), device).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(stop, lambda t: t):
        for _ in range(2):
            with pytest.raises(Stop, match="^here$"):
                values(spec, x, 1)
    values(spec, x, 1).sum().backward()
    assert x.grad.count_nonzero()


@each_differentiable_op
def test_an_exception_of_a_hook_keeps_nothing_alive(spec):
    import gc
    import weakref

    leaf = distinct((3, 50)).requires_grad_()
    product = leaf * 2
    alive = weakref.ref(product)
    gc.disable()
    try:
        with torch.autograd.graph.saved_tensors_hooks(stop, lambda t: t):
            try:
                values(spec, product, 1)
            except Stop:
                pass
        del product
        assert alive() is None
    finally:
        gc.enable()


@each_differentiable_op
@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "grad"])
def test_an_exception_of_a_mode_keeps_its_type(spec, requires_grad, device):
    class Refuse(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "reduceops":
                raise Stop(func._opname)
            return func(*args, **(kwargs or {}))

    x = distinct((3, 4), device).requires_grad_(requires_grad)
    with Refuse(), pytest.raises(Stop) as raised:
        values(spec, x, 1)
    indices = spec.leading and requires_grad
    assert str(raised.value) == (f"_{spec.name}_indices" if indices else spec.name)


@each_differentiable_op
def test_an_exception_of_a_subclass_keeps_its_type(spec):
    class Refuses(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise Stop(str(func))

    x = torch.Tensor._make_wrapper_subclass(Refuses, (3, 4))
    with pytest.raises(Stop, match=f"^reduceops.{spec.name}.default$"):
        values(spec, x, 1)


@each_differentiable_op
def test_hooks_and_anomaly_mode(spec, device):
    x = distinct((3, 4), device).requires_grad_()
    (expected,) = torch.autograd.grad(expected_values(spec, x, 1).sum(), x)
    with torch.autograd.graph.save_on_cpu():
        on_cpu = values(spec, x, 1)
    with torch.autograd.detect_anomaly(check_nan=True):
        anomalous = values(spec, x, 1)
        for result in (on_cpu, anomalous):
            (actual,) = torch.autograd.grad(result.sum(), x, retain_graph=True)
            assert same(spec, actual, expected)
    torch.autograd.grad(on_cpu.sum(), x)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(on_cpu.sum(), x)


@each_differentiable_op
def test_subclasses_and_parameters(spec, device):
    class Sub(torch.Tensor):
        pass

    x = distinct((3, 4), device)
    assert type(values(spec, x.as_subclass(Sub), 1)) is Sub
    parameter = torch.nn.Parameter(x.clone())
    values(spec, parameter, 1).sum().backward()
    (expected,) = torch.autograd.grad(expected_values(spec, parameter, 1).sum(), parameter)
    assert same(spec, parameter.grad, expected)


@each_selecting_op
def test_changes_in_place(spec, device):
    """Of a result, and of the input after the call: neither is needed by the backward."""
    grads = []
    for function in (values, expected_values):
        leaf = distinct((3, 4), device).requires_grad_()
        x = leaf * 1.5
        result = function(spec, x, 1).clone() if function is expected_values else values(spec, x, 1)
        result.mul_(3)
        x.add_(1)
        (result.sum() + x.sum()).backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)


@each_differentiable_op
def test_a_backward_of_nothing(spec, device):
    """An unused result, and only the indices used."""
    x = distinct((3, 4), device).requires_grad_()
    unused = values(spec, x, 1)
    assert torch.autograd.grad(x.sum(), x, retain_graph=True)[0].eq(1).all()
    assert torch.autograd.grad([x.sum(), unused.sum() * 0], x)[0].eq(1).all()


@each_differentiable_op
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_backward_under_autocast(spec, dtype, device):
    """Of a forward that was not: on a GPU torch.softmax would be float32 there."""
    x = distinct((4, 9), device, dtype).requires_grad_()
    result = values(spec, x, 1)
    weight = torch.ones_like(result)
    (expected,) = torch.autograd.grad(result, x, weight, retain_graph=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        (actual,) = torch.autograd.grad(result, x, weight)
    assert actual.dtype == dtype and torch.equal(actual, expected)


@each_differentiable_op
def test_double_backward(spec, device):
    x = distinct((3, 4), device).requires_grad_()
    y = x.detach().clone().requires_grad_()
    for leaf, function in ((x, values), (y, expected_values)):
        (first,) = torch.autograd.grad(
            (function(spec, leaf, 1) ** 3).sum(), leaf, create_graph=True
        )
        first.pow(2).sum().backward()
    assert same(spec, x.grad, y.grad)


TRANSFORMS = {
    "grad": lambda f, x, _: grad(lambda x: f(x[0]).sum())(x),
    "vmap(grad)": lambda f, x, _: vmap(grad(lambda x: (f(x) ** 2).sum()))(x),
    "grad(vmap)": lambda f, x, _: grad(lambda x: (vmap(f)(x) ** 2).sum())(x),
    "vmap(vmap(grad))": lambda f, x, _: vmap(vmap(grad(lambda x: f(x[None]).sum())))(x),
    "jacrev": lambda f, x, _: jacrev(f)(x[0]),
    "jacfwd": lambda f, x, _: jacfwd(f)(x[0]),
    "vmap(jacfwd)": lambda f, x, _: vmap(jacfwd(f))(x),
    "hessian": lambda f, x, _: hessian(lambda x: (f(x) ** 3).sum())(x[0]),
    "grad(grad)": lambda f, x, _: grad(lambda x: grad(lambda x: (f(x) ** 3).sum())(x).sum())(x[0]),
    # What requires a gradient at the outer level only.
    "grad outside": lambda f, x, _: grad(lambda x: grad(lambda y: (y * f(x)).sum())(x.sum()))(x[0]),
    "jvp": lambda f, x, t: jvp(f, (x[0],), (t[0],)),
    "jvp(grad)": lambda f, x, t: jvp(grad(lambda x: (f(x) ** 3).sum()), (x[0],), (t[0],)),
    "vjp": lambda f, x, t: vjp(f, x[0])[1](f(t[0])),
    "vjp under no_grad": lambda f, x, t: torch.no_grad()(lambda: vjp(f, x[0])[1](f(t[0])))(),
    "jvp(vmap)": lambda f, x, t: jvp(vmap(f), (x,), (t,)),
    "jacfwd(jacfwd)": lambda f, x, _: jacfwd(jacfwd(lambda x: (f(x) ** 3).sum()))(x[0]),
    "jvp(jvp)": lambda f, x, t: jvp(
        lambda x: jvp(lambda x: f(x * x), (x,), (t[0],))[1], (x[0],), (t[1],)
    ),
    "jvp(jvp(jvp))": lambda f, x, t: jvp(
        lambda x: jvp(lambda x: jvp(lambda x: f(x**3), (x,), (t[0],))[1], (x,), (t[1],))[1],
        (x[0],),
        (t[2],),
    ),
    "jacrev(jacrev)": lambda f, x, _: jacrev(jacrev(lambda x: (f(x) ** 3).sum()))(x[0]),
    "linearize": lambda f, x, t: linearize(f, x[0])[1](t[0]),
    "functionalize": lambda f, x, _: functionalize(f)(x),
    "functionalize(grad)": lambda f, x, _: functionalize(grad(lambda x: f(x).sum()))(x),
    "grad(functionalize)": lambda f, x, _: grad(lambda x: functionalize(f)(x).sum())(x),
    "vmap(functionalize)": lambda f, x, _: vmap(functionalize(f))(x),
    "vmap in chunks": lambda f, x, _: vmap(grad(lambda x: f(x).sum()), chunk_size=2)(x),
    "vmap in_dims": lambda f, x, _: vmap(grad(lambda x: f(x).sum()), in_dims=2)(x),
}


@each_differentiable_op
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("keepdim", [False, True], ids=["", "keepdim"])
def test_transforms(spec, transform, keepdim, device):
    x, tangent = distinct((5, 4, 3), device), distinct((5, 4, 3), device).flip(0)
    run = TRANSFORMS[transform]
    actual = run(lambda x: values(spec, x, -1, keepdim), x, tangent)
    expected = run(lambda x: expected_values(spec, x, -1, keepdim), x, tangent)
    for a, e in zip(as_tuple(actual), as_tuple(expected), strict=True):
        assert same(spec, a, e)


@each_differentiable_op
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_batched_gradients(spec, layout, device):
    x = distinct((2, 3, 4, 5), device).to(memory_format=layout).requires_grad_()
    results = [f(spec, x, 1) for f in (values, expected_values)]
    weights = data.make((7, *results[0].shape), torch.float64, "smooth").to(device)
    actual, expected = (
        torch.autograd.grad(result, x, weights, is_grads_batched=True)[0] for result in results
    )
    assert same(spec, actual, expected)
    actual, expected = (
        torch.autograd.functional.jacobian(lambda x, f=f: f(spec, x, 1), x, vectorize=True)
        for f in (values, expected_values)
    )
    assert same(spec, actual, expected)


@each_differentiable_op
@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize("pre_dispatch", [False, True], ids=["", "pre_dispatch"])
def test_a_recorded_graph_has_the_gradient(spec, requires_grad, pre_dispatch, device):
    """Whatever it was recorded with; it is run with an input that requires one."""
    example = distinct((3, 4), device).requires_grad_(requires_grad)
    record = make_fx(lambda x: x.sum() + values(spec, x, 1).sum(), pre_dispatch=pre_dispatch)
    x = distinct((3, 4), device).flip(1).requires_grad_()
    (expected,) = torch.autograd.grad(x.sum() + expected_values(spec, x, 1).sum(), x)
    graph = record(example)
    (actual,) = torch.autograd.grad(graph(x), x)
    assert same(spec, actual, expected)
    assert same(spec, grad(graph)(x.detach()), expected)


@pytest.mark.parametrize("name", ["max", "softmax_max", "scale_min"])
@pytest.mark.parametrize("transform", ["vmap(grad)", "grad(vmap)", "jacrev", "jvp", "hessian"])
def test_compiled_transforms(name, transform):
    (spec,) = (spec for spec in DIFFERENTIABLE if spec.name == name)
    x, tangent = distinct((5, 4, 3)), distinct((5, 4, 3)).flip(0)
    run = TRANSFORMS[transform]

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(x, tangent):
        return run(lambda x: values(spec, x, -1), x, tangent)

    expected = run(lambda x: expected_values(spec, x, -1), x, tangent)
    for a, e in zip(as_tuple(compiled(x, tangent)), as_tuple(expected), strict=True):
        assert same(spec, a, e)


def test_saved_indices_survive_a_change_of_the_input(device):
    """torch complains when what a backward saved was changed in place; the input was not saved."""
    leaf = torch.zeros(4, device=device).requires_grad_()
    x = leaf * torch.arange(4.0, device=device) + torch.arange(4.0, device=device)
    found, _ = customops.max(x, 0)
    x.zero_()
    found.backward()
    assert torch.equal(leaf.grad, torch.tensor([0.0, 0, 0, 3], device=device))


SCALED = [spec for spec in DIFFERENTIABLE if spec.leading]
each_scaled_op = pytest.mark.parametrize("spec", SCALED, ids=str)


def ways_to_call(spec):
    return spec.function, spec.op, spec.op.default


@each_scaled_op
def test_a_scale_without_a_gradient_is_a_number(spec, device):
    x, expected = distinct((3, 4), device), None
    parameter = torch.nn.Parameter(torch.tensor(2.0))
    for call in ways_to_call(spec):
        expected = call(x, 2.0)
        assert torch.equal(call(x, torch.tensor(2.0)), expected)
        assert torch.equal(call(x, scale=parameter.detach()), expected)
        with torch.no_grad(), warnings.catch_warnings():  # there is no gradient to lose
            warnings.simplefilter("error")
            assert torch.equal(call(x, parameter), expected)
