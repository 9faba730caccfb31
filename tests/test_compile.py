"""torch.compile: one graph, no recompile for another batch size, the results of eager."""

import runpy
import unittest

import data
import expecttest
import graphs
import pytest
import torch
from conftest import NO_CUDA, needs_compiler
from opspec import (
    OPS,
    as_tuple,
    assert_same,
    each_differentiable_op,
    each_op,
    each_op_and_dtype,
    ops,
)
from torch._dynamo.testing import AotEagerAndRecordGraphs, CompileCounter, EagerAndRecordGraphs
from torch._subclasses.fake_tensor import FakeTensorMode

import customops


def dims_of(spec):
    return (0, -1, *((None, [2, 0], []) if spec.dims else ()))


@each_op
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("public", [False, True], ids=["torch.ops", "customops"])
def test_fullgraph(spec, dynamic, public, device):
    x = data.make((3, 4, 5), torch.float32, "special").to(device)
    function = spec.function if public else spec.op
    calls = [spec.arguments(dim, bool(number % 2)) for number, dim in enumerate(dims_of(spec))]

    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=dynamic)
    def compiled(x):
        return [function(x, *arguments) for arguments in calls]

    for result, arguments in zip(compiled(x), calls, strict=True):
        assert_same(result, spec.reference(x, *arguments), spec.tolerance, arguments)


@each_op
def test_another_batch_size_does_not_recompile(spec):
    counter = CompileCounter()

    @torch.compile(backend=counter, fullgraph=True)
    def compiled(x):
        return spec.function(x, *spec.arguments(1, True))

    for batch in (3, 4, 5, 17, 64):
        x = data.make((batch, 6, 5), torch.float32, "ties")
        assert_same(compiled(x), spec.reference(x, *spec.arguments(1, True)), spec.tolerance)
    # The second size makes it dynamic; no later one matters.
    assert counter.frame_count == 2


@each_op
def test_dynamic_compiles_once(spec):
    counter = CompileCounter()

    @torch.compile(backend=counter, fullgraph=True, dynamic=True)
    def compiled(x):
        return spec.function(x, *spec.arguments(-1, False))

    for shape in ((3, 4, 5), (7, 6, 5), (2, 9, 11), (5, 5, 5)):
        x = data.make(shape, torch.float32, "ties")
        assert_same(compiled(x), spec.reference(x, *spec.arguments(-1, False)), spec.tolerance)
    assert counter.frame_count == 1


@pytest.mark.parametrize("spec", [s for s in OPS if s.leading], ids=str)
def test_scale_may_be_an_argument(spec):
    """As in a model with the scale for an attribute, or passed along; other scales stay right."""
    compiled = torch.compile(spec.function, backend="aot_eager", fullgraph=True)
    x = data.make((3, 4, 5), torch.float32, "smooth")
    for scale in (2.0, -1.5, 3, 0.5):
        assert_same(compiled(x, scale), spec.reference(x, scale))


@each_op_and_dtype
def test_fakes_have_the_shapes_and_strides_of_results(spec, dtype):
    """Of every layout those of one dtype, for they do not depend on it."""
    for layout in data.LAYOUTS if dtype == torch.float32 else ("permuted",):
        x = data.LAYOUTS[layout](lambda shape: data.make(shape, dtype, "ties"))
        for dim in (0, -1, *((None, []) if spec.dims else ())):
            for keepdim in (False, True):
                arguments = spec.arguments(dim, keepdim)
                real = as_tuple(spec.op(x, *arguments))
                with FakeTensorMode() as mode:
                    fake = as_tuple(spec.op(mode.from_tensor(x), *arguments))
                meta = as_tuple(spec.op(x.to("meta"), *arguments))
                for r, f, m in zip(real, fake, meta, strict=True):
                    assert (r.shape, r.stride(), r.dtype) == (f.shape, f.stride(), f.dtype), layout
                    assert (r.shape, r.stride(), r.dtype) == (m.shape, m.stride(), m.dtype), layout


@each_op
def test_unbacked_sizes(spec):
    """Sizes that depend on data: nothing to guard on, in the reduced dim and in a kept one."""

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(x, keep):
        chosen = x[keep.nonzero().squeeze(1)]
        return spec.function(chosen, *spec.arguments(0, False)), spec.function(
            chosen, *spec.arguments(1, False)
        )

    x = data.make((6, 5), torch.float32, "smooth")
    keep = torch.tensor([1, 0, 1, 1, 0, 1])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        results = compiled(x, keep)
    for dim in (0, 1):
        expected = spec.reference(x[keep.bool()], *spec.arguments(dim, False))
        assert_same(results[dim], expected, spec.tolerance)


@each_op
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=needs_compiler)])
def test_an_unbacked_size_that_is_empty(spec, backend):
    """Is an error of the run, fused or called: not the index of an element that is not there."""

    def function(x, keep):
        return spec.function(x[keep.nonzero().squeeze(1)] * 2 + 1, *spec.arguments(0, False))

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    x = data.make((6, 5), torch.float32, "smooth")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled(x, torch.ones(6))
        with pytest.raises((RuntimeError, IndexError), match="cannot reduce over dim 0, which has"):
            compiled(x, torch.zeros(6))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=needs_compiler)])
def test_a_branch_for_an_unbacked_size_that_is_empty(backend):
    def function(x, keep):
        rows = x[keep] * 2
        any_left = lambda y: customops.argmin(y, 0)  # noqa: E731
        return torch.cond(rows.shape[0] > 0, any_left, lambda y: y.sum().long() - 1, (rows,))

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    x = torch.tensor([3.0, 1.0, 2.0])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert compiled(x, x > 0).item() == 1
        assert compiled(x, x > 9).item() == -1


@each_differentiable_op
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_forward_and_backward_are_one_graph_each(spec, dynamic, device):
    recorder = AotEagerAndRecordGraphs()

    @torch.compile(backend=recorder, fullgraph=True, dynamic=dynamic)
    def compiled(x):
        return as_tuple(spec.function(x, *spec.arguments(1, True)))[0]

    x = data.make((3, 4, 5), torch.float32, "ties").to(device).requires_grad_()
    y = x.detach().clone().requires_grad_()
    weights = torch.randn(3, 1, 5, device=device)
    (compiled(x) * weights).sum().backward()
    (as_tuple(spec.torch(y, *spec.arguments(1, True)))[0] * weights).sum().backward()
    assert near(spec, x.grad, y.grad)
    assert len(recorder.fw_graphs) == len(recorder.bw_graphs) == 1
    called = f"_{spec.name}_indices" if spec.leading else spec.name
    if spec.leading and dynamic:  # the scale is a symbol, by which the input is multiplied
        called = spec.name.replace("scale_", "arg")
    called = f"reduceops.{called}.default"
    assert [c for c in graphs.calls(recorder.fw_graphs[0]) if "reduceops" in c] == [called]
    if not spec.selects:
        return
    # Nothing as large as the input goes from the forward to the backward.
    saved = [n.meta["val"] for n in recorder.bw_graphs[0].graph.find_nodes(op="placeholder")]
    saved = [v for v in saved if isinstance(v, torch.Tensor) and v.dim()]  # and a scale
    assert {v.dtype for v in saved} == {torch.int64, torch.float32} and len(saved) == 2
    assert all(v.size(1) == 1 for v in saved)


def near(spec, actual, expected):
    """Equal; where it is computed, near."""
    if spec.selects:
        return torch.equal(actual, expected)
    return torch.allclose(actual, expected, rtol=1e-5, atol=1e-6)


@needs_compiler
def test_inductor(device):
    """Between operators that Inductor fuses, forward and backward; all in one graph."""

    def function(name, *inputs):
        found = []
        for spec, x in zip(OPS, inputs, strict=True):
            # Exact in any order of evaluation, so fused code gives the same bits.
            result = getattr(spec, name)(x * 2 + 1, *spec.arguments(1, False))
            found.append(as_tuple(result)[0] * 4)
        return found

    made = [data.make((3, 40, 5), torch.float32, "ties", i).to(device) for i in range(len(OPS))]
    inputs, others = (
        [x.clone().requires_grad_(s.differentiable) for x, s in zip(made, OPS, strict=True)]
        for _ in range(2)
    )
    results = torch.compile(function, fullgraph=True)("function", *inputs)
    expected = function("torch", *others)
    for found in (results, expected):
        sum(result.sum() for result in found if result.requires_grad).backward()
    for spec, x, y, result, right in zip(OPS, inputs, others, results, expected, strict=True):
        assert near(spec, result, right), spec
        assert not spec.differentiable or near(spec, x.grad, y.grad), spec


@NO_CUDA
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_inductor_with_cuda_graphs(mode):
    compiled = torch.compile(lambda x: customops.argmin(x * 2, 1), mode=mode, fullgraph=True)
    for seed in range(4):
        x = data.make((33, 500, 7), torch.float32, "ties", seed).cuda()
        assert torch.equal(compiled(x).clone(), torch.argmin(x * 2, 1))


@NO_CUDA
@each_op
def test_cuda_graph_capture(spec):
    x = data.make((5, 3000, 7), torch.float32, "smooth").cuda()
    arguments = spec.arguments(1, False)
    spec.op(x, *arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = spec.op(x, *arguments)
    for seed in range(1, 4):
        x.copy_(data.make(x.shape, torch.float32, "smooth", seed))
        graph.replay()
        assert_same(result, spec.reference(x, *arguments), spec.tolerance)


def model(x):
    values, indices = customops.min(x, 1)
    index = customops.argmax(x, dim=[1, -1], keepdim=True)
    return customops.scale_max(x, 2.0) + values.unsqueeze(1), indices + index.sum()


class Goldens(expecttest.TestCase):
    """What Dynamo and AOTAutograd see; expecttest rewrites the texts with EXPECTTEST_ACCEPT=1."""

    def test_dynamo_graph_has_the_public_operators(self):
        recorder = EagerAndRecordGraphs()
        torch.compile(model, backend=recorder, fullgraph=True)(torch.randn(3, 4, 5))
        self.assertExpectedInline(
            graphs.text(recorder.graphs[0]),
            """\
l_x_ = input
min_default = reduceops.min.default(l_x_, 1)
values = <built-in function getitem>(min_default, 0)
indices = <built-in function getitem>(min_default, 1)
index = reduceops.argmax.dims(l_x_, [1, -1], True)
scale_max_default = reduceops.scale_max.default(l_x_, 2.0, 1, True)
unsqueeze = unsqueeze(values, 1)
add = <built-in function add>(scale_max_default, unsqueeze)
sum_1 = sum(index)
add_1 = <built-in function add>(indices, sum_1)
return (add, add_1)""",
        )

    @unittest.skipUnless(torch.__version__.startswith("2.13"), "the backward is torch 2.13's")
    def test_forward_and_backward_graphs(self):
        recorder = AotEagerAndRecordGraphs()
        x = torch.randn(3, 4, 5, requires_grad=True)
        torch.compile(model, backend=recorder, fullgraph=True)(x)[0].sum().backward()
        self.assertExpectedInline(
            graphs.text(recorder.fw_graphs[0]),
            """\
primals_1 = input
min_1 = reduceops.min.default(primals_1, 1)
getitem = <built-in function getitem>(min_1, 0)
getitem_1 = <built-in function getitem>(min_1, 1)
argmax = reduceops.argmax.dims(primals_1, [1, -1], True)
_scale_max_indices = reduceops._scale_max_indices.default(primals_1, 2.0, 1, True)
getitem_2 = <built-in function getitem>(_scale_max_indices, 0)
getitem_3 = <built-in function getitem>(_scale_max_indices, 1)
unsqueeze = aten.unsqueeze.default(getitem, 1)
add = aten.add.Tensor(getitem_2, unsqueeze)
sum_1 = aten.sum.default(argmax)
add_1 = aten.add.Tensor(getitem_1, sum_1)
unsqueeze_2 = aten.unsqueeze.default(getitem_1, 1)
return (add, add_1, getitem_3, unsqueeze_2)""",
        )
        self.assertExpectedInline(
            graphs.text(recorder.bw_graphs[0]),
            """\
getitem_3 = input
unsqueeze_2 = input
tangents_1 = input
squeeze = aten.squeeze.dim(tangents_1, 1)
mul = aten.mul.Tensor(tangents_1, 2.0)
new_zeros = aten.new_zeros.default(mul, [3, 4, 5])
scatter = aten.scatter.src(new_zeros, 1, getitem_3, mul)
unsqueeze_1 = aten.unsqueeze.default(squeeze, 1)
new_zeros_1 = aten.new_zeros.default(unsqueeze_1, [3, 4, 5])
scatter_1 = aten.scatter.src(new_zeros_1, 1, unsqueeze_2, unsqueeze_1)
add_2 = aten.add.Tensor(scatter, scatter_1)
return (add_2,)""",
        )

    def test_graph_without_gradient(self):
        recorder = AotEagerAndRecordGraphs()
        torch.compile(model, backend=recorder, fullgraph=True)(torch.randn(3, 4, 5))
        self.assertExpectedInline(
            graphs.text(recorder.fw_graphs[0]),
            """\
arg0_1 = input
min_1 = reduceops.min.default(arg0_1, 1)
getitem = <built-in function getitem>(min_1, 0)
getitem_1 = <built-in function getitem>(min_1, 1)
argmax = reduceops.argmax.dims(arg0_1, [1, -1], True)
scale_max = reduceops.scale_max.default(arg0_1, 2.0)
unsqueeze = aten.unsqueeze.default(getitem, 1)
add = aten.add.Tensor(scale_max, unsqueeze)
sum_1 = aten.sum.default(argmax)
add_1 = aten.add.Tensor(getitem_1, sum_1)
return (add, add_1)""",
        )


def test_compiled_in_inference_mode_and_under_no_grad(device):
    x = torch.randn(3, 4, device=device, requires_grad=True)
    compiled = torch.compile(lambda x: ops.min(x, 1), backend="aot_eager", fullgraph=True)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            values, indices = compiled(x)
        assert torch.equal(values, x.amin(1)) and torch.equal(indices, x.argmin(1))


@each_differentiable_op
def test_an_unbacked_batch_with_a_gradient(spec):
    """channels_last, whose gradient follows the layout."""

    def function(t, m):
        return as_tuple(spec.op(t[m].permute(0, 3, 1, 2), *spec.arguments(1, False)))[0].sum()

    t = data.make((6, 5, 4, 3), torch.float64, "smooth").requires_grad_()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
    for kept in (4, 2):
        m = torch.arange(6) < kept
        (actual,) = torch.autograd.grad(compiled(t, m), t)
        (expected,) = torch.autograd.grad(function(t, m), t)
        assert torch.equal(actual, expected) and actual.count_nonzero()


@pytest.mark.parametrize("name", ["argmin", "argmax", "min", "max", "scale_min", "scale_max"])
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_torch_script(name, tmp_path):
    arguments = "x, 2.0, 0" if name.startswith("scale") else "x, 0"
    path = tmp_path / "module_to_script.py"  # its source is needed
    path.write_text(
        f"import torch\n\n\ndef function(x):\n    return torch.ops.reduceops.{name}({arguments})\n"
    )
    function = runpy.run_path(str(path))["function"]
    x = data.make((3, 4), torch.float32, "ties")
    scripted = torch.jit.script(function)
    assert f"reduceops::{name}" in str(scripted.graph)
    assert_same(scripted(x), function(x))
