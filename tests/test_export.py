"""torch.export and AOTInductor: dynamic sizes, the saved file in a fresh process, the graphs."""

import importlib.util
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import data
import expecttest
import graphs
import pytest
import reference
import test_options
import torch
from conftest import needs_compiler, python, python_after_torch
from opspec import OPS, as_tuple, assert_same, each_differentiable_op, each_op
from test_compile import model
from torch.export import Dim, export
from torch.torch_version import TorchVersion

import customops
from compile_examples.aoti_cpp import export as aoti_cpp

ROOT = Path(__file__).parent.parent


class Module(torch.nn.Module):
    def __init__(self, spec, dim, keepdim):
        super().__init__()
        self.function, self.arguments = spec.function, spec.arguments(dim, keepdim)

    def forward(self, x):
        return self.function(x, *self.arguments)


class Model(torch.nn.Module):
    def forward(self, x):
        return model(x)


SIZES = {
    "DYNAMIC": lambda: {d: Dim.DYNAMIC for d in range(3)},
    "AUTO": lambda: {d: Dim.AUTO for d in range(3)},
    "named": lambda: {0: Dim("batch"), 1: Dim("rows", min=2, max=64), 2: Dim.DYNAMIC},
}
each_strictness = pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])


# All operators, and with some of them the other ways to say which sizes may change.
@pytest.mark.parametrize(
    "name, kind, strict",
    [
        *((name, "DYNAMIC", False) for name in ("argmax", "max", "scale_min", "softmax_max")),
        *(("argmax", "DYNAMIC", True), ("max", "AUTO", False), ("scale_min", "named", True)),
    ],
)
def test_dynamic_sizes_survive_saving(name, kind, strict, tmp_path, device):
    (spec,) = (spec for spec in OPS if spec.name == name)
    dims = (-1, *([2, 0], None)[: 2 * spec.dims])
    for dim in dims if kind == "DYNAMIC" else dims[-1:]:
        module = Module(spec, dim, True)
        x = data.make((3, 4, 5), torch.float32, "ties").to(device)
        program = export(module, (x,), dynamic_shapes=(SIZES[kind](),), strict=strict)
        called = [c for c in graphs.calls(program.graph_module) if "reduceops" in c]
        assert called == [str(spec.overload(dim))]
        torch.export.save(program, tmp_path / "program.pt2")
        loaded = torch.export.load(tmp_path / "program.pt2")
        again = export(loaded.module(), (x,), dynamic_shapes=(SIZES[kind](),), strict=strict)
        runs = [p.module() for p in (program, loaded, program.run_decompositions(), again)]
        for shape in ((3, 4, 5), (7, 6, 2), (2, 30, 3)):
            y = data.make(shape, torch.float32, "special").to(device)
            expected = spec.reference(y, *spec.arguments(dim, True))
            for run in runs:
                assert_same(run(y), expected, spec.tolerance, (dim, shape))


class Everything(torch.nn.Module):
    """Every operator and overload that takes this dtype, of float32 with keepdim too."""

    def __init__(self, dtype):
        super().__init__()
        self.calls = [
            (spec, spec.arguments(dim, keepdim))
            for spec in OPS
            if dtype in spec.dtypes
            for dim in (0, -1, *([None, [], [1], [2, 0]] * spec.dims))
            for keepdim in (False, True)[: 1 + (dtype == torch.float32)]
        ]

    def forward(self, x):
        return tuple(r for spec, a in self.calls for r in as_tuple(spec.function(x, *a)))

    def check(self, x, results):
        results = iter(results)
        for spec, arguments in self.calls:
            expected = as_tuple(spec.reference(x, *arguments))
            actual = [next(results) for _ in expected]
            assert_same(actual, expected, spec.tolerance, (spec.name, x.dtype, arguments))
        assert next(results, None) is None


def torch_saves(dtype):
    """Whether a program without our operators survives saving; torch 2.10 has not every dtype."""
    try:
        torch.export.save(export(torch.nn.Identity(), (torch.ones(2, dtype=dtype),)), io.BytesIO())
    except Exception:
        return False
    return True


@pytest.mark.parametrize("dtype", data.DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def test_every_dtype_survives_saving(dtype, tmp_path):
    if TorchVersion(torch.__version__) < "2.11" and not torch_saves(dtype):
        pytest.skip(f"this torch saves no program of {dtype}")
    module, example = Everything(dtype), data.make((3, 4, 5), dtype, "ties")
    program = export(module, (example,), dynamic_shapes=({0: Dim.AUTO, 2: Dim.AUTO},))
    torch.export.save(program, tmp_path / "program.pt2")
    x = data.make((6, 4, 7), dtype, "special")
    module.check(x, torch.export.load(tmp_path / "program.pt2").module()(x))


def test_a_fresh_process_runs_the_saved_programs(tmp_path):
    """As exported, and decomposed."""
    module, example = Everything(torch.float32), torch.randn(3, 4, 5)
    program = export(module, (example,), dynamic_shapes=({d: Dim.DYNAMIC for d in range(3)},))
    torch.export.save(program, tmp_path / "program.pt2")
    torch.export.save(program.run_decompositions(), tmp_path / "decomposed.pt2")
    x = data.make((6, 3, 7), torch.float32, "special")
    torch.save(x, tmp_path / "x.pt")
    code = (
        "import torch, customops\n"
        "x, names = torch.load('x.pt'), ('program.pt2', 'decomposed.pt2')\n"
        "results = [torch.export.load(name).module()(x) for name in names]\n"
        "torch.save(results, 'results.pt')"
    )
    run = python_after_torch("-c", code, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    for results in torch.load(tmp_path / "results.pt"):
        module.check(x, results)


def test_without_the_import_the_message_names_the_operators(tmp_path):
    torch.export.save(export(Model(), (torch.randn(3, 4, 5),)), tmp_path / "program.pt2")
    code = "import torch; torch.export.load('program.pt2')"
    run = python_after_torch("-c", code, cwd=tmp_path)
    assert run.returncode == 1
    assert "torch.ops.reduceops.min.default" in run.stderr
    assert "import the custom op" in run.stderr


def test_the_library_without_the_package(tmp_path):
    """As in a process without Python: results, and for a gradient an error."""
    run = python_after_torch(
        "-c",
        "import sys, torch\n"
        "torch.ops.load_library(sys.argv[1])\n"
        "op = torch.ops.reduceops.scale_min\n"
        "print(op(torch.ones(2, 3), 2.0).tolist())\n"
        "op(torch.ones(2, 3, requires_grad=True), 2.0)",
        str(customops.libraries.cpu.path),
    )
    assert run.returncode == 1 and run.stdout == "[[2.0], [2.0]]\n"
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: reduceops::scale_min: ")
    if TorchVersion(torch.__version__) < "2.13":  # the cause is only in the log
        assert "_scale_min_autograd" in run.stderr
    else:
        assert "import customops" in last


@each_op
@each_strictness
def test_errors_are_those_of_eager_mode(spec, strict):
    cases = (
        (7, torch.ones(2, 3), "dim 7 is out of range for a 2-d tensor (valid: -2 to 1)"),
        (0, torch.ones(0, 3), "cannot reduce over dim 0, which has size 0 (input shape [0, 3])"),
        (0, torch.ones(2, 3, dtype=torch.complex64), "complex64"),
    )
    for dim, x, text in cases:
        with pytest.raises(Exception) as raised:
            export(Module(spec, dim, False), (x,), strict=strict)
        assert f"reduceops::{spec.name}: " in str(raised.value) and text in str(raised.value)


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


class Convolved(torch.nn.Module):
    """Parameters that require gradients, before a call that has one."""

    def __init__(self):
        super().__init__()
        self.conv, self.options = torch.nn.Conv1d(4, 3, 1), test_options.Module()

    def forward(self, x, mask):
        y = self.conv(x)
        results = y, *customops.min(y, 1), customops.scale_max(y, 0.5), *model(x)
        return *results, *self.options(x, mask)


@needs_compiler
def test_aot_inductor_package(tmp_path, device):
    module = Convolved().to(device)
    sizes = ({0: Dim("batch", min=1, max=64)}, None)
    program = export(module, test_options.inputs(3, device), dynamic_shapes=sizes)
    path = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "model.pt2")
    )
    run = torch._inductor.aoti_load_package(path)
    for batch in (3, 1, 9):
        _, mask = test_options.inputs(batch, device)
        x = data.make((batch, 4, 5), torch.float32, "ties", seed=batch).to(device)
        for y in (x, x.clone().requires_grad_()):
            convolved, values, indices, scaled, *rest = run(y, mask)
            assert_same((values, indices), customops.min(convolved, 1))
            assert_same(scaled, customops.scale_max(convolved, 0.5))
            assert_same(rest[:2], model(x))
            module.options.check(rest[2:], x, mask)


def find_cmake():
    """The command, of PyPI's cmake if that is installed."""
    if importlib.util.find_spec("cmake"):
        return [sys.executable, "-m", "cmake"]
    return [shutil.which("cmake")] if shutil.which("cmake") else None


def execute(*command, **options):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, **options)


def shown(x):
    """What main.cpp and export.py print for `x`, by the reference."""
    results = (
        reference.argmin(x, 1),
        reference.argmax(x, [1, 2]),
        *reference.min_(x, -1),
        reference.scale_min(x, -2.0, 1),
        (torch.conv2d(x[:, None], aoti_cpp.Model().weight.to(x), padding=1) * -2.0).amin(1, True),
    )
    return "".join(aoti_cpp.show(result) + "\n" for result in results)


@needs_compiler
@pytest.mark.skipif(find_cmake() is None, reason="there is no cmake")
def test_a_package_runs_in_a_fresh_process_and_without_python(
    tmp_path, device, monkeypatch, capsys
):
    package, x = tmp_path / "model.pt2", aoti_cpp.make_input([3, 4, 5], device)
    arguments = ["export", str(package), "--device", device, "--sizes", "3,4,5"]
    monkeypatch.setattr(sys, "argv", arguments)
    aoti_cpp.main()
    assert capsys.readouterr().out == f"wrote {package}\n" + shown(x)

    code = (
        "import sys, torch, torch._inductor.codecache\n"  # torch 2.10 forgets the second
        "try: torch._inductor.aoti_load_package(sys.argv[1])\n"
        "except RuntimeError as error:\n"
        "    assert 'Could not find schema for reduceops::' in str(error)\n"
        "else: raise AssertionError('loaded without the operators')\n"
        "import customops\n"
        "from compile_examples.aoti_cpp.export import make_input, show\n"
        "run = torch._inductor.aoti_load_package(sys.argv[1])\n"
        "print(*map(show, run(make_input([3, 4, 5], sys.argv[2]))), sep='\\n')"
    )
    loaded = python("-c", code, package, device, cwd=ROOT)
    assert loaded.stdout == shown(x), loaded.stderr

    build, cmake = tmp_path / "build", find_cmake()
    source = ROOT / "compile_examples/aoti_cpp"
    for step in (["-S", source, "-B", build, f"-DTORCH={torch.__path__[0]}"], ["--build", build]):
        done = execute(*cmake, *step)
        assert done.returncode == 0, done.stdout + done.stderr
    libraries = [customops.libraries.cpu.path]
    if device == "cuda":
        libraries.append(customops.libraries.cuda.path)
    program = [build / "aoti_cpp", package]
    # Nothing that could lead to a Python; a GPU's driver may be found by the first variable, and
    # sanitized libraries (make sanitize) load only after the runtime that the others preload.
    kept = ("LD_LIBRARY_PATH", "LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS")
    env = {k: v for k, v in os.environ.items() if k in kept}
    for sizes in ([3, 4, 5], [1, 9, 33]):
        run = execute(*program, ",".join(map(str, sizes)), *libraries, env=env)
        assert run.returncode == 0, run.stderr
        assert run.stdout == shown(aoti_cpp.make_input(sizes, device))
    run = execute(*program, "4,0,5", *libraries, env=env)
    text = "reduceops::argmin: cannot reduce over dim 1, which has size 0 (input shape [4, 0, 5])"
    assert run.returncode == 1 and run.stdout == "" and text in run.stderr
    run = execute(*program, "3,4,5", "/no/libreduceops.so", env=env)
    assert run.returncode == 1 and "/no/libreduceops.so" in run.stderr
    run = execute(*program, "3,x,5", *libraries, env=env)
    assert run.returncode == 1 and "3,x,5" in run.stderr


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
