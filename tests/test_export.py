"""torch.export: dynamic sizes, the saved file, and the graphs."""

import data
import expecttest
import graphs
import pytest
import torch
from opspec import as_tuple, assert_same, each_differentiable_op, each_op
from test_compile import model, needs_compiler
from torch.export import Dim, export


class Module(torch.nn.Module):
    def __init__(self, spec, dim, keepdim):
        super().__init__()
        self.function, self.arguments = spec.function, spec.arguments(dim, keepdim)

    def forward(self, x):
        return self.function(x, *self.arguments)


class Model(torch.nn.Module):
    def forward(self, x):
        return model(x)


@each_op
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
def test_dynamic_sizes_survive_saving(spec, strict, tmp_path, device):
    for dim in (-1, *([2, 0], None)[: 2 * spec.dims]):
        module = Module(spec, dim, True)
        x = data.make((3, 4, 5), torch.float32, "ties").to(device)
        sizes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC, 2: Dim.DYNAMIC},)
        program = export(module, (x,), dynamic_shapes=sizes, strict=strict)
        called = [c for c in graphs.calls(program.graph_module) if "reduceops" in c]
        assert called == [str(spec.overload(dim))]
        torch.export.save(program, tmp_path / "program.pt2")
        loaded = torch.export.load(tmp_path / "program.pt2")
        runs = [p.module() for p in (program, loaded, program.run_decompositions())]
        for shape in ((3, 4, 5), (7, 6, 2), (2, 30, 3)):
            y = data.make(shape, torch.float32, "special").to(device)
            expected = spec.reference(y, *spec.arguments(dim, True))
            for run in runs:
                assert_same(run(y), expected, spec.exact_nans, (dim, shape))


@each_op
def test_static_sizes_are_guarded(spec):
    program = export(Module(spec, 1, False), (torch.ones(3, 4),))
    with pytest.raises((RuntimeError, AssertionError)):
        program.module()(torch.ones(5, 4))


@each_differentiable_op
def test_an_exported_program_trains(spec):
    x = data.make((3, 4), torch.float32, "ties").requires_grad_()
    y = x.detach().clone().requires_grad_()
    program = export(Module(spec, 1, False), (x,))
    as_tuple(spec.torch(y, *spec.arguments(1, False)))[0].sum().backward()
    for run in (program.module(), program.run_decompositions().module()):
        x.grad = None
        as_tuple(run(x))[0].sum().backward()
        assert torch.equal(x.grad, y.grad)


@needs_compiler
def test_aot_inductor_package(tmp_path, device):
    x = data.make((3, 4, 5), torch.float32, "ties").to(device)
    with torch.no_grad():
        program = export(Model(), (x,), dynamic_shapes=({0: Dim("batch", min=1, max=64)},))
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "model.pt2")
        )
    run = torch._inductor.aoti_load_package(path)
    for batch in (3, 9):
        y = data.make((batch, 4, 5), torch.float32, "ties", seed=batch).to(device)
        assert_same(tuple(run(y)), model(y))


class Goldens(expecttest.TestCase):
    """expecttest rewrites the texts with EXPECTTEST_ACCEPT=1."""

    def test_exported_graph_has_the_public_operators(self):
        program = export(Model(), (torch.randn(3, 4, 5),))
        self.assertExpectedInline(
            graphs.text(program.graph_module),
            """\
x = input
min_1 = reduceops.min.default(x, 1)
getitem = <built-in function getitem>(min_1, 0)
getitem_1 = <built-in function getitem>(min_1, 1)
argmax = reduceops.argmax.dims(x, [1, -1], True)
scale_max = reduceops.scale_max.default(x, 2.0)
unsqueeze = aten.unsqueeze.default(getitem, 1)
add = aten.add.Tensor(scale_max, unsqueeze)
sum_1 = aten.sum.default(argmax)
add_1 = aten.add.Tensor(getitem_1, sum_1)
return (add, add_1)""",
        )

    def test_decomposed_graph_has_them_too(self):
        program = export(Model(), (torch.randn(3, 4, 5),)).run_decompositions()
        self.assertExpectedInline(
            graphs.text(program.graph_module),
            """\
x = input
min_1 = reduceops.min.default(x, 1)
getitem = <built-in function getitem>(min_1, 0)
getitem_1 = <built-in function getitem>(min_1, 1)
argmax = reduceops.argmax.dims(x, [1, -1], True)
scale_max = reduceops.scale_max.default(x, 2.0)
unsqueeze = aten.unsqueeze.default(getitem, 1)
add = aten.add.Tensor(scale_max, unsqueeze)
sum_1 = aten.sum.dim_IntList(argmax, [])
add_1 = aten.add.Tensor(getitem_1, sum_1)
return (add, add_1)""",
        )
