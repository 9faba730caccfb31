"""scale_min and scale_max by a scale that is no number: a 0-d tensor, or a symbol of a graph."""

import math

import data
import numpy as np
import pytest
import torch
from conftest import needs_compiler
from opspec import ANY_NAN, assert_same
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, jacrev, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import customops

ENDS = ("min", "max")


def ours(end):
    return getattr(customops, f"scale_{end}")


def torchs(end):
    def call(x, scale, dim=1, keepdim=True):
        return getattr(torch, end)(x * scale, dim, keepdim)[0]

    return call


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32, torch.float64))
def test_values(end, dtype, device):
    x = data.make((3, 40, 5), dtype, "special").to(device)
    operator = getattr(torch.ops.reduceops, f"scale_{end}")
    for of in (torch.float32, torch.bfloat16, torch.float64):
        for number in (2.0, -0.3, 0.0):
            for place in dict.fromkeys(("cpu", device)):
                scale = torch.tensor(number, dtype=of, device=place)
                for call in (ours(end), operator, operator.default):
                    actual = call(x, scale, 1, False)
                    assert_same(actual, torchs(end)(x, scale, 1, False), ANY_NAN)
                # Of results without dims torch would promote the dtype to that of the scale.
                row = x[0, :, 0]
                expected = torchs(end)(row, scale, 0, False)
                assert_same(ours(end)(row, scale, 0, False), expected, ANY_NAN)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("of", data.FLOATS, ids=str)
def test_a_tensor_on_a_cpu_is_its_number(end, of, device):
    """Where nobody asks for its gradient: no product is written, and its bits are as torch has
    them, also by scales that the input's dtype cannot hold."""
    bits = torch.randint(-(1 << 63), (1 << 63) - 1, (40,)).view(torch.float64).tolist()
    special = [0.1, 1 / 3, 1e300, 5e-324, 1e-45, 65519.9, 0.0, -0.0, math.inf, -math.inf, math.nan]
    scales = torch.tensor([*special, *bits, *torch.randn(40).tolist()], dtype=of)
    for dtype in data.FLOATS:
        x = data.make((6, 7, 5), dtype, "special").to(device)
        for scale in scales:
            for row in (x, x[0, :, 0]):
                dim = min(1, row.dim() - 1)
                actual = ours(end)(row, scale, dim, False)
                assert_same(actual, torchs(end)(row, scale, dim, False), ANY_NAN, (dtype, scale))
                assert_same(ours(end)(row, scale.item(), dim, False), actual, ANY_NAN)


@pytest.mark.parametrize("name", ["scale_min", "conv2d_scale_max"])
def test_no_product_is_written_for_a_tensor_on_a_cpu(name):
    operator = getattr(customops, name)
    others = (torch.ones(1, 2, 1, 1), None) if name.startswith("conv") else ()
    x, scale = torch.ones(1, 2, 2, 2), torch.tensor(2.0, requires_grad=True)

    def multiplies(scale):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            operator(x, *others, scale)
        return any(event.name == "aten::mul" for event in profile.events())

    assert multiplies(scale) and not multiplies(scale.detach())
    with torch.no_grad():
        assert not multiplies(scale)


@pytest.mark.parametrize("end", ENDS)
def test_without_a_gradient_a_product_is_reduced(end):
    """And not looked up in the input to be multiplied again."""
    calls, x, scale = [], torch.ones(2, 3), torch.tensor(2.0)

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append(str(func))
            return func(*args, **(kwargs or {}))

    with Record():
        ours(end)(x, scale)
    assert calls == ["aten.mul.Tensor", f"reduceops.{end}.default"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
@pytest.mark.parametrize("kind", ("special", "ties", "random"))
def test_values_alone_of_16_bits(end, dtype, kind, device):
    """Where no index is wanted, the product may be that of the extreme element."""
    operator = getattr(torch.ops.reduceops, f"scale_{end}").default
    with_indices = getattr(torch.ops.reduceops, f"_scale_{end}_indices").default
    small, inf, nan = torch.finfo(dtype).tiny, float("inf"), float("nan")
    for n in (2, 3, 4, 7, 33, 300):
        for x, dim in (
            (data.make((40, n), dtype, kind), 1),
            (data.make((n, 40), dtype, kind), 0),
            (data.make((6, 8, n, 5), dtype, kind).permute(3, 0, 2, 1), 2),
            (data.make((9, 2 * n + 1), dtype, kind)[:, 1::2], 1),
        ):
            x = x.to(device)
            for scale in (2.0, -1.5, 0.7, 0.5, -0.5, 0.500001, 1e30, small, 0.0, inf, nan):
                found = operator(x, scale, dim, False)
                expected, index = with_indices(x, scale, dim, False)
                assert_same(found, expected, ANY_NAN, (n, x.stride(), scale))
                products = (x * scale).gather(dim, index.unsqueeze(dim)).squeeze(dim)
                assert_same(found, products, ANY_NAN, (n, x.stride(), scale))


@pytest.mark.parametrize("end", ENDS)
def test_gradients(end, device):
    x = torch.randperm(60, device=device).double().reshape(3, 4, 5).requires_grad_()
    scale = torch.tensor(-1.5, dtype=torch.float64, device=device, requires_grad=True)
    torch.autograd.gradcheck(ours(end), (x, scale))
    torch.autograd.gradgradcheck(ours(end), (x, scale))
    found = torch.autograd.grad(ours(end)(x, scale).sum(), (x, scale))
    expected = torch.autograd.grad(torchs(end)(x, scale).sum(), (x, scale))
    assert torch.equal(found[0], expected[0]) and torch.allclose(found[1], expected[1])
    for transform in (
        lambda f: grad(lambda s: f(x.detach(), s).sum())(scale.detach()),
        lambda f: jacrev(lambda s: f(x.detach(), s))(scale.detach()),
        lambda f: jvp(lambda s: f(x.detach(), s), (scale.detach(),), (scale.detach(),)),
        lambda f: vmap(f, (0, None))(x.detach(), scale.detach()),
        lambda f: vmap(f, (None, 0))(x.detach(), torch.stack([scale.detach(), scale.detach() * 2])),
    ):
        assert_same(transform(ours(end)), transform(torchs(end)))


@pytest.mark.parametrize("end", ENDS)
def test_a_backward_keeps_no_input(end, device):
    weight, bias = torch.randn(6, 3, 2, 2, device=device, requires_grad=True), None
    scale = torch.tensor(-1.5, device=device, requires_grad=True)
    x, image = torch.randn(4, 50, device=device), torch.randn(2, 3, 9, 9, device=device)
    convolution = getattr(customops, f"conv2d_scale_{end}")
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        result = ours(end)(y := x.requires_grad_() * 1, scale)
        assert max(t.numel() for t in saved) == result.numel()
        convolution(image, weight, bias, scale)
        assert max(t.numel() for t in saved) == image.numel()  # and not the convolution's result
    y.add_(1)
    result.sum().backward()
    assert scale.grad is not None and x.grad is not None


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=needs_compiler)])
def test_a_number_that_changes_is_compiled_twice(backend, device):
    """As torch's product with it is: for the first number, and for all."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(lambda x, s: customops.scale_min(x + 1, s), backend=backend)
    x = data.make((3, 40, 5), torch.float32, "smooth").to(device)
    for i in range(12):
        assert_same(compiled(x, 0.5 + i), torchs("min")(x + 1, 0.5 + i))
    assert counters["stats"]["unique_graphs"] <= 2


def test_a_symbolic_integer(device):
    """A size, say."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    function = lambda x, y: customops.scale_min(x, y.size(0))  # noqa: E731
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
    x = data.make((3, 40, 5), torch.float32, "smooth").to(device)
    for size in range(2, 12):
        assert_same(compiled(x, torch.ones(size)), torchs("min")(x, size))
    assert counters["stats"]["unique_graphs"] == 1


@needs_compiler
def test_a_size_that_16_bits_do_not_hold(device):
    """Inductor rounds it before it multiplies, and so do torch's own operators in a graph."""

    def function(half, bfloat16, y):
        size = y.size(0)
        least = [customops.scale_min(x, size) for x in (half, bfloat16)]
        return *least, *(customops.scale_max(x, 1 / size, 0) for x in (half, bfloat16))

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    for needs_gradient in (False, True):
        inputs = [
            data.make((3, 40, 5), dtype, "smooth").to(device).requires_grad_(needs_gradient)
            for dtype in (torch.float16, torch.bfloat16)
        ]
        for size in (7, 257, 2049):
            y = torch.empty(size)
            results, expected = compiled(*inputs, y), function(*inputs, y)
            assert_same(results, expected, context=size)
            if needs_gradient:
                weights = [torch.randn_like(r) for r in expected]  # ones hide what is rounded
                gradients = (torch.autograd.grad(r, inputs, weights) for r in (results, expected))
                assert all(map(torch.equal, *gradients)), size


def test_an_item_under_fullgraph(device):
    @torch.compile(backend="aot_eager", fullgraph=True)
    def function(x, s):
        return customops.scale_max(x, s.item())

    x = data.make((3, 40, 5), torch.float32, "smooth").to(device)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for i in range(3):
            scale = torch.tensor(i - 1.5, device=device)
            assert_same(function(x, scale), torchs("max")(x, scale))


@needs_compiler
@pytest.mark.parametrize("end", ENDS)
def test_compiled(end, device):
    """A learnable scale: one graph, and its gradient."""
    compiled = torch.compile(ours(end), fullgraph=True)
    x = torch.randperm(60, device=device).float().reshape(3, 4, 5)
    for i in range(3):
        scale = torch.tensor(i - 1.5, device=device, requires_grad=True)
        found, expected = (f(x, scale) for f in (compiled, torchs(end)))
        assert_same(found, expected)
        found, expected = (torch.autograd.grad(y.sum(), scale) for y in (found, expected))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("end", ENDS)
def test_bad_scales(end, device):
    x = torch.ones(3, 4, device=device)
    for scale in (torch.ones(2), torch.tensor(1), torch.tensor(1j)):
        with pytest.raises((RuntimeError, TypeError), match=f"reduceops::scale_{end}: scale must"):
            ours(end)(x, scale.to(device))
    with pytest.raises(
        RuntimeError, match=f"scale_{end}: scale must be on the device of the input"
    ):
        ours(end)(x, torch.tensor(2.0, device="meta"))
    with pytest.raises(RuntimeError, match=f"reduceops::scale_{end}: got a sparse_coo float32"):
        ours(end)(x.to_sparse(), torch.tensor(2.0))
    with pytest.raises(TypeError, match=f"scale_{end}: self must be a Tensor, got list"):
        getattr(torch.ops.reduceops, f"scale_{end}")([1.0], torch.tensor(2.0))
    with pytest.raises(IndexError, match="dim 5 is out of range"):
        ours(end)(x, torch.tensor(2.0, device=device), 5)


@pytest.mark.parametrize("name", ["scale_min", "scale_max", "conv2d_scale_min", "conv2d_scale_max"])
@pytest.mark.parametrize("layout", ["sparse_coo", "nested"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_scales_that_are_not_strided(name, layout):
    x, others = torch.ones(1, 2, 3, 3), ()
    if name.startswith("conv"):
        others = (torch.ones(1, 2, 1, 1), None)
    of_one = torch.tensor(2.0).to_sparse()
    scale = of_one if layout == "sparse_coo" else torch.nested.nested_tensor([torch.ones(2)])
    text = f"^reduceops::{name}: scale must be .* got a {layout}"
    for call in (getattr(customops, name), getattr(torch.ops.reduceops, name)):
        with pytest.raises((RuntimeError, TypeError), match=text):
            call(x, *others, scale)


@pytest.mark.parametrize("name", ["scale_min", "scale_max", "conv2d_scale_min", "conv2d_scale_max"])
@pytest.mark.parametrize(
    "scale",
    [
        *(np.ones(1), np.ones((1, 1), dtype=bool), np.ones(2)),
        *(np.complex64(1 + 2j), np.complex128(1), np.array(2j)),
    ],
    ids=repr,
)
def test_what_of_numpy_is_no_number(name, scale):
    """torch's parser takes an array of one element for a number, and the real part of a complex."""
    x, others = torch.ones(1, 2, 3, 3), ()
    if name.startswith("conv"):
        others = (torch.ones(1, 2, 1, 1), None)
    got = f"numpy.{type(scale).__name__}"
    text = f"^reduceops::{name}: scale must be a number or a 0-d tensor, got {got}$"
    operator = getattr(torch.ops.reduceops, name)
    for call in (getattr(customops, name), operator, operator.default):
        for kwargs in ({}, {"dim": 1}):
            with pytest.raises(TypeError, match=text):
                call(x, *others, scale, **kwargs)
        for number in (np.array(2.0), np.float32(2.0)):
            assert torch.equal(call(x, *others, number), call(x, *others, 2.0))


@pytest.mark.parametrize("of, place", [("cpu", "cuda:0"), ("cuda:0", "cuda:1"), ("meta", "cuda:0")])
def test_a_scale_on_another_device(of, place):
    """No call waits for it in silence, or gets an error of torch."""
    if place == "cuda:1" and torch.cuda.device_count() == 1:
        pytest.skip("this torch looks for the second GPU")
    text = f"scale must be on the device of the input, {of}, or on a CPU, got {place}"
    with FakeTensorMode():
        scale, x = torch.empty((), device=place), torch.empty(1, 2, 4, 4, device=of)
        weight = torch.empty(3, 2, 1, 1, device=of)
        for call, inputs in (
            (customops.scale_min, (x,)),
            (customops.conv2d_scale_max, (x, weight, None)),
        ):
            with pytest.raises(RuntimeError, match=text):
                call(*inputs, scale)
            assert call(*inputs, scale.to(of)).shape == call(*inputs, torch.empty(())).shape


@pytest.mark.parametrize("op", ["scale_min", "scale_max", "conv2d_scale_min", "conv2d_scale_max"])
@pytest.mark.parametrize(
    "name, value", [("dim", 1.7), ("dim", "1"), ("dim", None), ("keepdim", "no")]
)
def test_an_operator_takes_no_other_types_with_a_tensor_for_its_scale(op, name, value):
    """As with a number, whose schema refuses them."""
    x, weight = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 1, 1)
    inputs = (x, weight, None) if op.startswith("conv2d") else (x,)
    for scale in (2.0, torch.tensor(2.0)):
        with pytest.raises((TypeError, RuntimeError), match=name):
            getattr(torch.ops.reduceops, op)(*inputs, scale, **{name: value})


@pytest.mark.parametrize("op", ["scale_min", "conv2d_scale_max"])
def test_a_bool_is_whatever_a_schema_takes_for_one(op):
    x, weight = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 1, 1)
    inputs = (x, weight, None) if op.startswith("conv2d") else (x,)
    for keepdim in (np.True_, np.False_, np.array(True), torch.tensor(False), 1.0, None):
        of_number, of_tensor = (
            getattr(torch.ops.reduceops, op)(*inputs, scale, keepdim=keepdim)
            for scale in (2.0, torch.tensor(2.0))
        )
        assert of_number.shape == of_tensor.shape
    for keepdim in (torch.tensor([True, False]), np.array([1, 2]), bool, "yes"):
        with pytest.raises(TypeError, match=f"{op}: keepdim must be a bool"):
            getattr(torch.ops.reduceops, op)(*inputs, torch.tensor(2.0), keepdim=keepdim)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_error_of_a_trace_names_the_operator(end):
    """Where the sizes are not known, it is another operator that says so."""
    text = f"reduceops::scale_{end}: cannot reduce over dim 1, which has size 0"
    with pytest.raises(IndexError, match=text):
        torch.jit.trace(ours(end), (torch.zeros(2, 0), torch.tensor(2.0)))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_traces(end):
    """Of torch.jit, of torch.fx and of torch.func."""
    operator = getattr(torch.ops.reduceops, f"scale_{end}")
    convolution = getattr(torch.ops.reduceops, f"conv2d_scale_{end}")
    x, image = data.make((4, 50), torch.float32, "smooth"), torch.randn(1, 2, 5, 5)
    weight, scale = torch.randn(3, 2, 2, 2), torch.tensor(-1.5)
    calls = [
        (lambda x: ours(end)(x, scale), x),
        (lambda x: operator(self=x, scale=scale), x),
        (lambda w: convolution(image, w, None, scale), weight),
        (lambda x: convolution(input=x, weight=weight, bias=None, scale=scale), image),
    ]
    for function, given in calls:
        for trace in (
            lambda f, x: torch.jit.trace(f, torch.ones_like(x)),
            lambda f, x: torch.fx.symbolic_trace(f),
            lambda f, x: torch.func.functionalize(f),
        ):
            assert torch.equal(trace(function, given)(given), function(given))


@pytest.mark.parametrize("end", ENDS)
def test_symbolic_trace_of_a_scale(end):
    """Of a graph whose input it is."""
    operator = getattr(torch.ops.reduceops, f"scale_{end}")
    convolution = getattr(customops, f"conv2d_scale_{end}")
    image, weight = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 2, 2)
    for call, x in (
        (lambda x, scale: ours(end)(x, scale), torch.randn(4, 5)),
        (lambda x, scale: operator(x, scale=scale, dim=0), torch.randn(4, 5)),
        (lambda w, scale: convolution(image, w, None, scale), weight),
    ):
        recorded = torch.fx.symbolic_trace(call)
        for scale in (-1.5, torch.tensor(2.0)):
            assert torch.equal(recorded(x, scale), call(x, scale))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_scale_that_is_learnt_is_traced(end):
    """torch.jit.trace traces once more without gradients, and compares the graphs."""
    image, convolution = torch.randn(1, 2, 5, 5), getattr(customops, f"conv2d_scale_{end}")

    class Model(torch.nn.Module):
        def __init__(self, call):
            super().__init__()
            self.scale, self.call = torch.nn.Parameter(torch.tensor(-1.5)), call

        def forward(self, x):
            return self.call(x, self.scale)

    # An infinity that is not chosen has no part in the gradient.
    values = data.make((4, 50), torch.float32, "smooth")
    values[:, 7] = -math.inf if end == "min" else math.inf  # times a negative scale
    for call, given in (
        (ours(end), values),
        (lambda w, scale: convolution(image, w, None, scale), torch.randn(3, 2, 2, 2)),
    ):
        for needs_gradient in (False, True):
            model, x = Model(call), given.clone().requires_grad_(needs_gradient)
            results = torch.jit.trace(model, x)(x), model(x)
            assert torch.equal(*results)
            gradients = [torch.autograd.grad(r.sum(), model.scale)[0] for r in results]
            torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dtype", data.FLOATS, ids=str)
@pytest.mark.parametrize("name", ["scale_max", "conv2d_scale_min"])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_size_for_a_scale_is_traced(name, dtype):
    """It is a tensor of an integer in a trace of torch.jit, and no constant."""
    weight, x = torch.randn(3, 2, 1, 1, dtype=dtype), torch.randn(5, 2, 4, 4, dtype=dtype)
    others = (weight, None) if name.startswith("conv") else ()

    def call(x):
        return getattr(customops, name)(x, *others, x.shape[0])

    traced = torch.jit.trace(call, x[:3])
    for batch in (x[:3], x):
        torch.testing.assert_close(traced(batch), call(batch))
    with pytest.raises(RuntimeError, match=f"{name}: scale must be .* got bool of shape"):
        torch.jit.trace(lambda x: getattr(customops, name)(x, *others, x.sum() > 0), x)


class Recording(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        seen.append(func)
        return func(*args, **(kwargs or {}))


class Duck:
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func


seen = []


@pytest.mark.parametrize("scale", [2.0, torch.tensor(2.0)], ids=["number", "tensor"])
@pytest.mark.parametrize("name", ["scale_max", "conv2d_scale_max"])
def test_who_overrides_functions_of_torch_is_asked(name, scale):
    packet = getattr(torch.ops.reduceops, name)
    others = (torch.ones(1, 2, 1, 1), None) if name.startswith("conv") else ()
    x = torch.arange(8.0).view(1, 2, 2, 2)
    expected = packet(x, *others, scale)
    for call in (packet, packet.default):
        seen.clear()
        result = call(x.as_subclass(Recording), *others, scale)
        assert type(result) is Recording and seen == [call]
        assert torch.equal(result.as_subclass(torch.Tensor), expected)
        seen.clear()
        with Mode():
            result = call(x, *others, scale=scale)
        assert seen == [call] and torch.equal(result, expected)
        assert call(Duck(), *others, scale) is call
