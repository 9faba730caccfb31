"""torch.compile with what people combine it with: modes, wrappers, checkpoints, autocast, loops."""

import functools

import pytest
import torch
import torch.utils._pytree as pytree
from conftest import needs_compiler
from opspec import assert_same, each_differentiable_op, ops
from torch._dynamo.testing import AotEagerAndRecordGraphs, CompileCounter, EagerAndRecordGraphs
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import customops


def data(*shape, seed=0):
    """Small integers: arithmetic on them is exact in any order, and they tie."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


def program(x):
    """Every operator, between others that Inductor fuses."""
    values, indices = customops.min(x * 2, 1)
    both = customops.argmax(x + 1, [0, 2])
    scaled = customops.scale_max(x, 2.0) + customops.scale_min(x.transpose(1, 2), -2.0, dim=-1)
    return values.sum() + scaled.sum(), indices, both, customops.argmin(x), customops.max(x, -1)


def by_torch(x):
    values, indices = torch.min(x * 2, 1)
    both = torch.argmax((x + 1).transpose(0, 1).flatten(1), 1)
    scaled = torch.max(x * 2.0, 1, keepdim=True)[0]
    scaled = scaled + torch.min(x.transpose(1, 2) * -2.0, -1, keepdim=True)[0]
    largest, where = torch.max(x, -1)
    return values.sum() + scaled.sum(), indices, both, torch.argmin(x), (largest, where)


def assert_equal(actual, expected):
    actual, expected = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype and torch.equal(a, e), (a, e)


def assert_trains_as(function, expected, *shape, device="cpu"):
    """Same results and gradients; the first result is differentiated."""
    x = data(*shape).to(device).requires_grad_()
    y = x.detach().clone().requires_grad_()
    result, reference = function(x), expected(y)
    assert_equal(result, reference)
    pytree.tree_leaves(result)[0].sum().backward()
    pytree.tree_leaves(reference)[0].sum().backward()
    assert torch.equal(x.grad, y.grad)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_decomp_partition"])
@pytest.mark.parametrize("dynamic", [False, None, True])
def test_backends(backend, dynamic, device):
    compiled = torch.compile(program, backend=backend, dynamic=dynamic, fullgraph=True)
    for batch in (3, 5):
        assert_trains_as(compiled, by_torch, batch, 4, 4, device=device)


@needs_compiler
@pytest.mark.parametrize(
    "mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
)
def test_modes(mode, device):
    """Training, and without a gradient, in each mode of Inductor."""
    if device == "cpu" and mode not in ("default", "max-autotune"):
        pytest.skip("the others differ from these in CUDA graphs alone")
    compiled = torch.compile(program, mode=mode, fullgraph=True)
    assert_trains_as(compiled, by_torch, 3, 4, 5, device=device)
    for seed in range(3):  # CUDA graphs replay from the third call on
        x = data(3, 4, 5, seed=seed).to(device)
        torch.compiler.cudagraph_mark_step_begin()
        assert_equal(compiled(x), by_torch(x))


@needs_compiler
def test_cpp_wrapper(device):
    def function(x):
        return customops.scale_max(x + 1, 2.0), customops.argmin(x, [0, 2])

    def expected(x):
        return torch.max((x + 1) * 2.0, 1, keepdim=True)[0], torch.argmin(
            x.transpose(0, 1).flatten(1), 1
        )

    # To compile the header first takes longer than what two wrappers then save.
    options = {"cpp_wrapper": True, "cpp_cache_precompile_headers": False}
    compiled = torch.compile(function, fullgraph=True, dynamic=True, options=options)
    for batch in (3, 5):
        assert_trains_as(compiled, expected, batch, 4, 4, device=device)


class Nearest(torch.nn.Module):
    """An operator of a parameter, which freezing may fold, and one of the input."""

    def __init__(self):
        super().__init__()
        self.centres = torch.nn.Parameter(data(6, 5))
        self.linear = torch.nn.Linear(5, 6)
        with torch.no_grad():
            self.linear.weight.copy_(data(6, 5, seed=1))
            self.linear.bias.copy_(data(6, seed=2))

    def forward(self, x):
        low = torch.ops.reduceops.min(self.centres, 0)[0]
        return torch.ops.reduceops.argmax(self.linear(x) + low.sum(), -1)

    def expected(self, x):
        return torch.argmax(self.linear(x) + self.centres.min(0)[0].sum(), -1)


@needs_compiler
def test_freezing(device):
    module = Nearest().to(device).eval()
    x = data(7, 5).to(device)
    with torch.no_grad():
        compiled = torch.compile(module, fullgraph=True, options={"freezing": True})
        assert_equal(compiled(x), module.expected(x))


def test_one_graph_for_marked_sizes():
    counter = CompileCounter()
    compiled = torch.compile(program, backend=counter, fullgraph=True)
    for shape in ((4, 6, 3), (5, 7, 9), (8, 3, 2)):
        x = data(*shape)
        for dim in range(3):
            torch._dynamo.mark_dynamic(x, dim)
        assert_equal(compiled(x), by_torch(x))
    assert counter.frame_count == 1


def test_one_graph_for_unbacked_sizes():
    """No guard at all on a size: 1 and larger share the graph."""

    def function(x):
        return ops.min(x, 1), ops.argmax(x, [0, 2]), ops.scale_max(x, 2.0, -1)

    recorder = AotEagerAndRecordGraphs()
    compiled = torch.compile(function, backend=recorder, fullgraph=True)
    for shape in ((4, 6, 3), (1, 7, 9), (8, 1, 1)):
        x = data(*shape)
        for dim in range(3):
            torch._dynamo.decorators.mark_unbacked(x, dim)
        assert_equal(compiled(x), function(x))
    assert len(recorder.fw_graphs) == 1


def test_automatic_dynamic_shapes_recompile_once():
    counter = CompileCounter()
    compiled = torch.compile(program, backend=counter, fullgraph=True)
    for batch in (3, 4, 7, 64, 2):
        x = data(batch, 5, 6)
        assert_equal(compiled(x), by_torch(x))
        # Other data, sorted or constant, is no reason to compile.
        assert_equal(compiled(x.sort(0)[0]), by_torch(x.sort(0)[0]))
        assert_equal(compiled(torch.zeros_like(x)), by_torch(torch.zeros_like(x)))
    assert counter.frame_count == 2


def test_batches_of_none_and_one():
    compiled = torch.compile(
        lambda x: (ops.min(x, 1), ops.argmax(x, -1)), backend="aot_eager", dynamic=True
    )
    for batch in (3, 0, 1, 5):
        x = data(batch, 6, 3)
        assert_equal(compiled(x), (*torch.min(x, 1), torch.argmax(x, -1)))


@pytest.mark.parametrize("callee", [ops.min.default, ops.min, customops.min])
def test_the_function_itself(callee):
    x = data(4, 5)
    assert_equal(torch.compile(callee, backend="eager", fullgraph=True)(x, 1), torch.min(x, 1))


def block(x):
    return customops.min(x.sin(), 1)[0] + customops.scale_max(x, 2.0, 1, False)


def block_by_torch(x):
    return torch.min(x.sin(), 1)[0] + torch.max(x * 2.0, 1)[0]


@pytest.mark.parametrize("backend", [None, "aot_eager"], ids=["eager", "compiled"])
@pytest.mark.parametrize("use_reentrant", [False, True], ids=["", "reentrant"])
def test_checkpoint(backend, use_reentrant, device):
    """Recomputation ends by an exception, raised where our indices, the last tensor, are saved."""

    def function(x):
        return checkpoint(block, x, use_reentrant=use_reentrant)

    if backend:
        function = torch.compile(function, backend=backend, fullgraph=True)
    assert_trains_as(function, block_by_torch, 4, 6, device=device)


def test_selective_checkpoint():
    """A policy sees `min`, and with a gradient `_scale_max_indices` in place of `scale_max`."""
    called = []

    def policy(context, op, *args, **kwargs):
        called.append((context.is_recompute, op))
        saved = op in (ops.min.default, ops._scale_max_indices.default)
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)

    def function(x):
        return checkpoint(block, x, use_reentrant=False, context_fn=contexts)

    assert_trains_as(function, block_by_torch, 4, 6)
    assert (False, ops.min.default) in called
    recorder = AotEagerAndRecordGraphs()
    compiled = torch.compile(function, backend=recorder, fullgraph=True)
    assert_trains_as(compiled, block_by_torch, 4, 6)
    backward = [str(node.target) for node in recorder.bw_graphs[0].graph.nodes]
    assert "aten.cos.default" in backward and not [t for t in backward if "reduceops" in t]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype, device):
    """The operators take whatever dtype arrives; the region may be inside or around."""
    module = Nearest().to(device)
    x = data(7, 5).to(device)

    def inside(x):
        with torch.autocast(device, dtype=dtype):
            return ops.scale_min(module.linear(x), 2.0, -1), ops.max(module.linear(x), 0)

    def expected(x):
        with torch.autocast(device, dtype=dtype):
            low = torch.min(module.linear(x) * 2.0, -1, keepdim=True)[0]
            return low, tuple(torch.max(module.linear(x), 0))

    compiled = torch.compile(inside, backend="aot_eager", fullgraph=True)
    assert compiled(x)[0].dtype == dtype
    assert_equal(compiled(x), expected(x))
    assert_equal(inside(x), expected(x))
    around = torch.compile(module, backend="aot_eager", fullgraph=True)
    with torch.autocast(device, dtype=dtype):
        assert_equal(around(x), module.expected(x))
        assert ops.scale_min(x, 2.0).dtype == torch.float32


def test_inference_mode_then_training():
    """One compiled function in every grad mode, in an order that would betray a stale graph."""
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    x = data(3, 4, 5)
    with torch.inference_mode():
        assert_equal(compiled(x), by_torch(x))
    with torch.no_grad():
        assert_equal(compiled(x), by_torch(x))
    assert_trains_as(compiled, by_torch, 3, 4, 5)
    with torch.inference_mode():
        assert_equal(compiled(x), by_torch(x))


def test_compiled_autograd(device):
    x = data(3, 4, 5).to(device).requires_grad_()
    y = x.detach().clone().requires_grad_()
    recorder = EagerAndRecordGraphs()
    backward = torch.compile(backend=recorder, fullgraph=True)
    with torch._dynamo.compiled_autograd._enable(backward):
        program(x)[0].backward()
    by_torch(y)[0].backward()
    assert torch.equal(x.grad, y.grad) and len(recorder.graphs) == 1


@each_differentiable_op
def test_make_fx(spec):
    from torch.fx.experimental.proxy_tensor import make_fx

    def gradient(op, x):
        result = op(x, *spec.arguments(1, False))
        (grad,) = torch.autograd.grad(pytree.tree_leaves(result)[0].sum(), x)
        return grad

    x = data(4, 5).requires_grad_()
    for mode in ("real", "fake", "symbolic"):
        traced = make_fx(functools.partial(gradient, spec.op), tracing_mode=mode)(x)
        assert_equal(traced(x), gradient(spec.torch, x))


def while_loop(step, state):
    from torch._higher_order_ops import while_loop

    return while_loop(
        lambda i, *_: i < 3, lambda i, *s: (i + 1, *step(*s)), (torch.tensor(0), *state)
    )


def test_control_flow():
    from torch._higher_order_ops import map as map_
    from torch._higher_order_ops import scan

    x = data(4, 6, 3)

    def function(op, largest, x, flag):
        either = torch.cond(flag, lambda x: op(x, 1), lambda x: largest(x, 1), (x,))
        each = map_(lambda y: op(y, 0), x)
        carry, prefix = scan(lambda c, y: (c + y, op(c + y, 0)), torch.zeros(6, 3), x)
        return either, each, carry, prefix

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    sums = x.cumsum(0)
    for flag in (True, False):
        either = torch.argmin(x, 1) if flag else torch.argmax(x, 1)
        assert_equal(
            compiled(ops.argmin, ops.argmax, x, torch.tensor(flag)),
            (either, torch.argmin(x, 1), sums[-1], torch.argmin(sums, 1)),
        )


def test_greedy_while_loop():
    """A loop on the device whose next step depends on the operator's result."""
    table = data(9, 9)

    def function(token):
        def step(token, seen):
            token = ops.argmax(table[token], -1)
            return token, seen + token

        return while_loop(step, (token, torch.zeros_like(token)))[1:]

    token = torch.tensor([1, 5, 7])
    expected, seen = token, torch.zeros_like(token)
    for _ in range(3):
        expected = torch.argmax(table[expected], -1)
        seen = seen + expected
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert_equal(compiled(token), (expected, seen))


def test_fake_cuda_tensors_need_no_gpu():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(4, 5, device="cuda")
        values, indices = ops.min(x, 1)
        assert (values.device.type, values.shape) == ("cuda", (4,))
        assert ops.argmin(x, [0]).device.type == ops.scale_max(x, 2.0).device.type == "cuda"
        with pytest.raises(IndexError, match="reduceops::min: dim 2 is out of range for a 2-d"):
            ops.min(x, 2)


@each_differentiable_op
def test_negative_and_zero_views(spec):
    """torch keeps some tensors negated, or as a zero without memory; they are made real first."""
    negated = torch.complex(data(4, 5), data(4, 5, seed=1)).conj().imag
    assert negated.is_neg()
    for x in (negated, torch._efficientzerotensor(4, 5)):
        arguments = spec.arguments(1, False)
        expected = spec.torch(x.clone() * 1, *arguments)
        assert_same(spec.op(x, *arguments), expected, spec.tolerance)
        assert_equal(ops.argmax(x, [0, 1]), torch.argmax(x.clone() * 1))
