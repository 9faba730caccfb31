"""customops.inductor_options(): which reductions become ours, and that results stay the same."""

import math
from types import SimpleNamespace

import data
import pytest
import torch
from conftest import NEEDS, needs_compiler
from graphs import calls
from opspec import ANY_NAN, EXACT, assert_same
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import customops
from customops import inductor, libraries
from customops._register import caches
from customops.inductor.rewrite import RewriteReductions

DTYPES = (torch.bool, *data.INTEGERS[:5], *data.FLOATS)


@pytest.fixture(autouse=True)
def counters_of_its_own(no_cached_graph):
    counters.clear()


class Rewriting:
    """A backend that runs the graphs that Inductor would get, after the pass and uncompiled."""

    def __init__(self, min_elements=0):
        self.rewriting = RewriteReductions(min_elements, ())
        self.called = []

    def __call__(self, graph_module, inputs):
        backend = aot_autograd(fw_compiler=self._compile, decompositions=select_decomp_table())
        return backend(graph_module, inputs)

    def _compile(self, graph_module, inputs):
        self.rewriting(graph_module.graph)
        graph_module.graph.lint()
        graph_module.recompile()
        self.called += calls(graph_module)
        return make_boxed_func(graph_module.forward)


def run(function, *inputs, min_elements=0, **keywords):
    """The results of a rewritten function, which are those of eager, and what its graph calls."""
    backend = Rewriting(min_elements)
    compiled = torch.compile(function, backend=backend, fullgraph=True, **keywords)
    results = compiled(*inputs)
    # A NaN's bits, which ours keep, are lost by some of torch's own kernels for GPUs.
    assert_same(results, function(*inputs), tolerance=ANY_NAN if inputs[0].is_cuda else EXACT)
    ours = [name for name in backend.called if name.startswith("reduceops.")]
    torchs = [name for name in backend.called if name not in ours]
    assert [line.partition(" -> ")[2] for line in inductor.rewrites()] == [
        name.removesuffix(".default") for name in ours
    ]
    return ours, torchs


x_mm = lambda x: x.flatten(1) @ x.flatten(1).t()  # noqa: E731

REWRITTEN = {
    "argmin": (lambda x: x.argmin(1), "argmin.default"),
    "argmax": (lambda x: torch.argmax(x, -1, keepdim=True), "argmax.default"),
    "argmax of all": (lambda x: x.argmax(), "argmax.dims"),
    "min": (lambda x: tuple(x.min(2)), "min.default"),
    "max": (lambda x: tuple(torch.max(x, -2, keepdim=True)), "max.default"),
    "the indices of max": (lambda x: x.max(1)[1], "argmax.default"),
    "min of a product": (lambda x: tuple((x * 1.5).min(1)), "_scale_min_indices.default"),
    "the values of max of a product": (lambda x: (-3 * x).max(1)[0], "scale_max.default"),
    "amin of a product": (lambda x: (x * 2).amin(1, keepdim=True), "scale_min.default"),
    "amax of a product": (lambda x: (x * 0.1).amax((1,)), "scale_max.default"),
    "argmin of a product": (lambda x: (x * -0.7).argmin(0), "_scale_min_indices.default"),
    "a view": (lambda x: x[1:, ::2].transpose(0, 2).unsqueeze(0).argmax(1), "argmax.default"),
    "a product of a view": (lambda x: (x[:, 1:] * 3.0).amax(0), "scale_max.default"),
    "a copy": (lambda x: x.transpose(1, 2).contiguous().argmax(-1), "argmax.default"),
    "other bits": (lambda x: x.view(torch.int32).argmax(1), "argmax.default"),
    "a chunk": (lambda x: x.chunk(2, 1)[1].argmax(1), "argmax.default"),
    "a matrix product": (lambda x: x_mm(x).argmax(1), "argmax.default"),
    "a scaled matrix product": (lambda x: (x_mm(x) * 2.0).min(0), "_scale_min_indices.default"),
    "a sum": (lambda x: x.square().sum(1).argmin(1), "argmin.default"),
    "a fused epilogue": (lambda x: (x.argmax(1) + 1).float().exp(), "argmax.default"),
    "elsewhere used, too": (lambda x: (x.argmax(1), x.exp()), "argmax.default"),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name, dynamic, device):
    function, expected = REWRITTEN[name]
    x = data.make((6, 8, 10), torch.float32, "ties").to(device)
    ours, torchs = run(function, x, dynamic=dynamic)
    assert ours == [f"reduceops.{expected}"]
    left = [name for name in torchs if name.startswith("aten.")]
    assert not any(word in name for name in left for word in ("min", "max", "mul"))
    assert not inductor.left_alone()


def test_a_convolution_on_the_cpu():
    convolution = torch.nn.Conv2d(3, 8, 3)
    x = data.make((2, 3, 9, 9), torch.float32, "smooth")
    with torch.no_grad():
        ours, _ = run(lambda x: (convolution(x) * 2.0).min(1, keepdim=True)[0], x)
    assert ours == ["reduceops.scale_min.default"]


# What a kernel would have to have in memory.
FUSED = {
    "an elementwise producer": (lambda x: x.relu().argmax(1), "argmax.default"),
    "a product of tensors": (lambda x: tuple((x * x).min(1)), "min.default"),
    "a conversion": (lambda x: x.double().argmin(1), "argmin.default"),
    "a product with a bool": (lambda x: (x * True).max(1)[1], "argmax.default"),
    "a huge factor": (lambda x: (x * (2**53 + 1)).max(1)[1], "argmax.default"),
    "a product used twice": (lambda x: ((y := x * 2.0).argmin(1), y), "argmin.default"),
    "a product of all": (lambda x: (x * 2.0).argmin(), "argmin.dims"),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused(name, device):
    function, expected = FUSED[name]
    ours, _ = run(function, data.make((6, 8, 10), torch.float32, "random").to(device))
    assert ours == [f"reduceops.{expected}"] and not inductor.left_alone()


LEFT_ALONE = {
    "with a product": (lambda x: (x.exp() * 2.0).amin(1), "fuses it with aten.exp"),
    "a product used twice": (lambda x: ((y := x * 2.0).amin(1), y), "used elsewhere"),
    "a product over two dims": (lambda x: (x * 2.0).amin((1, 2)), "not reduced over one dim"),
    "a product of no dims": (lambda x: (x[0, 0, 0] * 2.0).amin(), "not reduced over one dim"),
    "a product of no dims, over 0": (lambda x: (x[0, 0, 0] * 2.0).amin(0), "not reduced over one"),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(name, device):
    function, reason = LEFT_ALONE[name]
    ours, _ = run(function, data.make((6, 8, 10), torch.float32, "random").to(device))
    assert not ours
    (line,) = inductor.left_alone()
    assert reason in line


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.amax(1),
        lambda x: x.max(1)[0],
        lambda x: x.max(),
        lambda x: x.sum(1),
        lambda x: torch.maximum(x, x),
    ],
)
def test_values_alone_are_not_ours(function, device):
    ours, _ = run(function, data.make((6, 8), torch.float32, "smooth").to(device))
    assert not ours and not inductor.left_alone()


def test_values_alone_of_a_product_on_the_cpu():
    """Where Inductor's code is as fast: neighbours in memory, 16 bits."""
    for x in (torch.randn(6, 8).t(), torch.randn(6, 8).half()):
        counters.clear()
        ours, _ = run(lambda x: (x * 2.0).amin(0), x)
        assert not ours and "as fast" in inductor.left_alone()[0]


def test_what_has_no_kernel():
    x = torch.randn(4, 5, device="meta")
    torch.compile(lambda x: x.argmax(1), backend=Rewriting())(x)
    assert not inductor.rewrites() and "no kernels for meta" in inductor.left_alone()[0]


@pytest.mark.parametrize("loaded", [True, False])
def test_a_gpu_without_kernels(loaded, monkeypatch):
    """As one for which the CUDA library has no code, or where there is none."""
    cuda = SimpleNamespace(
        loaded=loaded, reason="it has none", ask=lambda question, gpu: f"no code for GPU {gpu}"
    )
    monkeypatch.setattr(libraries, "cuda", cuda)
    gpu = max(torch.cuda.device_count() - 1, 0)  # the last there is
    with FakeTensorMode():
        x = torch.empty(40, 50, device=f"cuda:{gpu}")
        graph = make_fx(lambda x: torch.ops.aten.argmax(x, 1))(x).graph
    before = str(graph)
    RewriteReductions(0, ())(graph)
    assert str(graph) == before and not inductor.rewrites()
    reason = f"no code for GPU {gpu}" if loaded else "the CUDA library is not loaded: it has none"
    assert f"no kernels for cuda: {reason}" in inductor.left_alone()[0]


def test_small_inputs():
    x = data.make((10, 20), torch.float32, "random")
    for dynamic in (False, True):
        torch._dynamo.reset()
        assert not run(lambda x: x.argmax(1), x, min_elements=201, dynamic=dynamic)[0]
        assert "fewer than 201" in inductor.left_alone()[0]
    assert run(lambda x: x.argmin(1), x, min_elements=200, dynamic=True)[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype, device):
    """With NaNs, infinities and ties."""
    x = data.make((7, 40), dtype, "special").to(device)
    if dtype != torch.bool:  # of which torch has no argmax
        assert run(lambda x: (x.argmax(1), x.argmin(0)), x)[0]
    counters.clear()
    assert run(lambda x: (*x.max(1), *x.min(0)), x)[0]
    counters.clear()
    if dtype.is_floating_point:
        smooth = torch.where(x.isnan() | x.isinf(), data.make((7, 40), dtype, "smooth").to(x), x)
        assert run(lambda x: (*(x * 0.3).max(1), (x * -1.7).argmin(0)), smooth)[0]
    elif dtype != torch.bool:
        assert run(lambda x: tuple((x * 3).max(1)), x)[0] == ["reduceops.max.default"]


def test_nans_of_a_product(device):
    x = data.make((4, 6), torch.float32, "smooth").to(device)
    x[1, 3], x[2, 1], x[2, 4] = math.nan, math.inf, -math.inf
    for scale in (0.0, -0.0, math.inf, math.nan, 2.0):
        torch._dynamo.reset()  # or it would take the second scale for an argument
        expected = (x * scale).min(1)
        backend = Rewriting()
        result = torch.compile(lambda x, s=scale: tuple((x * s).min(1)), backend=backend)(x)
        assert "reduceops._scale_min_indices.default" in backend.called
        assert_same(result, expected, tolerance=ANY_NAN)


def test_layouts(device):
    for layout, make in data.LAYOUTS.items():
        torch._dynamo.reset()
        counters.clear()
        x = make(lambda shape: data.make(shape, torch.float32, "ties")).to(device)
        ours, _ = run(lambda x: (x.argmax(-1), *x.min(0)), x)
        assert len(ours) == 2, layout


@pytest.mark.parametrize(
    "function, expected",
    [
        (lambda x: x.max(1)[0], "max"),
        (lambda x: (x * 3.0).min(1)[0], "_scale_min_indices"),
        (lambda x: (x.transpose(1, 2) @ x).max(2)[0], "max"),
        (lambda x: torch.stack([x.max(1)[0], x.max(1)[1] * x.sum(1)]), "max"),
    ],
)
def test_gradients(function, expected, device):
    """The indices are results of the forward graph, for its backward graph to use."""
    x = data.make((4, 5, 6), torch.float64, "smooth").to(device).requires_grad_()
    weight = torch.randn_like(function(x))
    backend = Rewriting()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    (actual,) = torch.autograd.grad((compiled(x) * weight).sum(), x)
    (reference,) = torch.autograd.grad((function(x) * weight).sum(), x)
    torch.testing.assert_close(actual, reference)
    assert (actual != 0).equal(reference != 0)
    ours = [name for name in backend.called if name.startswith("reduceops.")]
    assert ours[0] == f"reduceops.{expected}.default"


# Inductor itself.


def rewritten():
    """The reductions of torch's."""
    return sorted(line for line in inductor.rewrites() if line.startswith("aten."))


def options(**keywords):
    return inductor.inductor_options(min_elements=0, **keywords)


@needs_compiler
def test_inductor(device):
    x = data.make((60, 80, 100), torch.float32, "ties").to(device)

    def function(x):
        return x.argmax(1), *(x * 2.0).min(1), x.relu().argmin(1)

    compiled = torch.compile(function, options=options(), fullgraph=True)
    assert_same(compiled(x)[:3], function(x)[:3])
    of = f"(float32[60, 80, 100] on {device}, dim=[1])"
    assert rewritten() == [
        f"aten.argmax{of} -> reduceops.argmax",
        f"aten.argmin{of} -> reduceops.argmin",
        f"aten.min.dim{of} -> reduceops._scale_min_indices",
    ]
    chosen = [line for line in inductor.rewrites() if line.startswith("reduceops.")]
    kinds = {line.partition("(")[0]: line.partition(" -> ")[2].split()[0] for line in chosen}
    stored = "kernel" if device == "cpu" else "loop"  # all three of which read x once
    assert kinds == {
        "reduceops.argmax": stored,
        "reduceops.argmin": "loop",
        "reduceops._scale_min_indices": stored,
    }
    assert inductor.left_alone() == []


def test_without_the_options_nothing_is_rewritten():
    seen = []
    x = data.make((60, 300), torch.float32, "ties")
    hook = {"post_grad_custom_post_pass": lambda graph: seen.extend(calls(graph.owning_module))}
    if not NEEDS["COMPILER"]:
        torch.compile(lambda x: x.argmax(1), options=hook)(x)
        assert "aten.argmax.default" in seen and not inductor.rewrites()
        torch._dynamo.reset()
        seen.clear()
    torch.compile(lambda x: x.argmax(1), options=customops.inductor_options(**hook))(x)
    assert seen == ["reduceops.argmax.default"]


@needs_compiler
def test_training(device):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).to(device).double()

    def loss(x):
        return ((model[0](x) * 2.0).min(1)[0] + model(x).max(1)[0]).square().sum()

    x = data.make((2, 3, 8, 8), torch.float64, "smooth").to(device)
    compiled = torch.compile(loss, options=options(), fullgraph=True)
    actual = torch.autograd.grad(compiled(x), list(model.parameters()))
    expected = torch.autograd.grad(loss(x), list(model.parameters()))
    torch.testing.assert_close(actual, expected)
    if device == "cpu":  # on a GPU Inductor adds the bias itself
        # torch prefers to find the indices again in the backward graph to saving them.
        assert {line.partition(" -> ")[2] for line in rewritten()} <= {
            *("reduceops.scale_min", "reduceops._scale_min_indices"),
            *("reduceops.max", "reduceops.argmax"),
        } and rewritten()


def test_dynamic_shapes_do_not_recompile(device):
    compiled = torch.compile(lambda x: x.argmax(1), options=options(), dynamic=True)
    for batch in (3, 5, 17):
        x = data.make((batch, 9), torch.float32, "ties").to(device)
        assert torch.equal(compiled(x), x.argmax(1))
    assert counters["stats"]["unique_graphs"] == 1 and len(rewritten()) == 1


def test_cached_graphs_are_listed(device):
    x = data.make((6, 8), torch.float32, "ties").to(device)
    torch.compile(lambda x: x.argmax(1), options=options())(x)
    listed = inductor.rewrites()
    torch._dynamo.reset()
    counters.clear()
    torch.compile(lambda x: x.argmax(1), options=options())(x)
    assert counters["inductor"]["fxgraph_cache_hit"] == 1
    assert inductor.rewrites() == listed != []
    # Other options, another entry of the cache.
    torch._dynamo.reset()
    counters.clear()
    torch.compile(lambda x: x.argmax(1), options=inductor.inductor_options(min_elements=48))(x)
    assert counters["inductor"]["fxgraph_cache_hit"] == 0 and inductor.rewrites() == listed


@pytest.mark.parametrize("mode", [*torch._inductor.list_mode_options(), None])
def test_modes(mode):
    merged = options(mode=mode, max_autotune_gemm=True)
    ours = merged.pop("post_grad_custom_post_pass")
    assert isinstance(ours, RewriteReductions)
    modes = torch._inductor.list_mode_options(mode) if mode else {}
    assert merged == {**modes, "max_autotune_gemm": True}


def test_max_autotune_and_cpp_wrapper():
    x = data.make((6, 8), torch.float32, "ties")
    for more in ({"mode": "max-autotune"}, {"mode": "reduce-overhead"}, {"cpp_wrapper": True}):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: x.argmax(1), options=options(**more))
        assert torch.equal(compiled(x), x.argmax(1))
    assert len(rewritten()) == 3


class Recording(CustomGraphPass):
    def __init__(self):
        self.seen = []

    def __call__(self, graph):
        self.seen += calls(graph.owning_module)

    def uuid(self):
        return "recording"


def test_a_pass_of_the_user_runs_afterwards():
    x = data.make((6, 8), torch.float32, "ties")
    first, second = Recording(), []
    for theirs in (first, [first, lambda graph: second.extend(calls(graph.owning_module))]):
        torch._dynamo.reset()
        chosen = options(post_grad_custom_post_pass=theirs)
        assert torch.equal(torch.compile(lambda x: x.argmax(1), options=chosen)(x), x.argmax(1))
    assert set(first.seen) == set(second) == {"reduceops.argmax.default"}


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_a_configured_pass_runs_too(several):
    """That of torch._inductor.config, which the options would otherwise replace."""
    theirs = Recording()
    x = data.make((6, 8), torch.float32, "ties")
    configured = [theirs] if several else theirs
    with torch._inductor.config.patch(post_grad_custom_post_pass=configured):
        compiled = torch.compile(lambda x: x.argmax(1), options=options())
        assert torch.equal(compiled(x), x.argmax(1))
        with_theirs = options()["post_grad_custom_post_pass"].uuid()
        without = options(post_grad_custom_post_pass=None)["post_grad_custom_post_pass"]
    assert theirs.seen == ["reduceops.argmax.default"]
    assert without.then == () and without.uuid() != with_theirs


def test_what_the_cache_tells_apart(monkeypatch):
    def uuid(**keywords):
        return inductor.inductor_options(**keywords)["post_grad_custom_post_pass"].uuid()

    assert uuid() == uuid() != uuid(min_elements=5)
    assert uuid(post_grad_custom_post_pass=Recording()) not in (None, uuid())
    assert uuid(post_grad_custom_post_pass=print) is None  # no name: nothing may be cached
    assert caches.version() in uuid()  # the code is part of what is cached
    monkeypatch.setattr(inductor, "prefer", "kernel")
    assert caches.preference() == "kernel" in uuid()
    assert options()["post_grad_custom_post_pass"] == options()["post_grad_custom_post_pass"]


def test_bad_options():
    with pytest.raises(RuntimeError, match="fastest"):
        inductor.inductor_options(mode="fastest")
    with pytest.raises(TypeError, match="min_elements must be an int, got 1.5"):
        inductor.inductor_options(min_elements=1.5)
    with pytest.raises(ValueError, match="min_elements must be at least 0, got -1"):
        inductor.inductor_options(min_elements=-1)
    with pytest.raises(RuntimeError, match="no_such_option"):
        torch.compile(lambda x: x, options=inductor.inductor_options(no_such_option=1))
