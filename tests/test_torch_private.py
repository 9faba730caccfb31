"""What torch does not promise: it is there, and without any one of it nothing is wrong."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import torch
from conftest import python_after_torch

import customops
from customops import _torch_private, libraries

PACKAGE = Path(customops.__file__).parent
# torch made it public, or has no named dims to ask for.
SOMETIMES_MISSING = {
    "torch_exception_get_what_without_backtrace": torch.__version__ < "2.13",
    "torch._C._cuda_getCurrentRawStream": torch.version.cuda is None,
    "_ZN2at4impl9has_namesEPKN3c1010TensorImplE": not hasattr(torch.Tensor, "names"),
}


def test_this_torch_has_everything():
    assert [name for name in _torch_private.missing() if not SOMETIMES_MISSING.get(name)] == []


def test_the_report_lists_what_is_felt():
    """Of torch as it is published, nothing: a healthy installation looks like one."""
    lacking = _torch_private.relevant()
    assert not [name for name in lacking if name != "torch_exception_get_what_without_backtrace"]


def test_the_cuda_library_needs_more(monkeypatch):
    def of_cuda():
        return [name for name in _torch_private.symbols() if name.startswith("_ZN2at4cuda")]

    assert len(of_cuda()) == 4 * libraries.cuda.loaded
    monkeypatch.setattr(libraries.cuda, "loaded", True)
    assert len(of_cuda()) == 4


def test_an_order_that_cannot_be_told():
    """Of the dims of a mesh that cut one dim of a DTensor, as where torch calls it otherwise."""
    from torch.distributed.tensor import Replicate, Shard

    one_each, both = ((Shard(0), Replicate(), Shard(1)), (Shard(0), Shard(0)))
    assert _torch_private.are_in_order(SimpleNamespace(placements=one_each))
    may_differ = torch.__version__ >= "2.13"
    assert _torch_private.are_in_order(SimpleNamespace(placements=both)) != may_differ


def test_inductors_internals():
    from torch._dynamo.utils import counters
    from torch._inductor import config, ir

    from customops.inductor import lowering, rewrite  # noqa: F401

    assert isinstance(counters, dict) and hasattr(config, "post_grad_custom_post_pass")
    for name in ("Pointwise", "Reduction", "Scan", "TensorBox", "as_storage_and_layout"):
        assert hasattr(ir, name)
    assert isinstance(torch.compiler.config.cache_key_tag, str)


def test_the_table_is_complete():
    """No other file names what is private to torch, in Python or in C++. (Of Inductor all is.)"""
    for path in PACKAGE.rglob("*.py"):
        if path.name == "_torch_private.py" or path.parent.name == "inductor":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Attribute):
                names = [ast.unparse(node)]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            private = [n for n in names if re.match(r"torch\.(.+\.)?_[a-z]", n, re.I)]
            assert not private, (path.name, private)
    # Of the checkout, for the package may be an installed one.
    sources = (Path(__file__).parent.parent / "csrc").rglob("*.[ch]*")
    named = {path.name for path in sources if '"_ZN' in path.read_text()}
    assert named == {"torch_private.h"}


def test_private_attributes_are_of_this_package():
    """Of whatever object: `overload._op` too."""
    own = {"_asdict", "_replace", "_exit"}  # of named tuples and of os, which are public
    used = set()
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name == "inductor":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = getattr(node, "targets", None) or [node.target]
                own |= {t.id for t in targets if isinstance(t, ast.Name)}
            elif path.name == "_torch_private.py":
                continue
            elif isinstance(node, ast.Attribute):
                if ast.unparse(node.value) not in ("self", "_ops", "aten"):  # operators, these two
                    used.add(node.attr)
            elif isinstance(node, ast.Call) and "attr" in ast.unparse(node.func):
                used |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    private = {name for name in used if re.match("_[a-z]", str(name), re.I)}
    assert private - own == set()


def test_names_that_are_not_used():
    done = python_after_torch("-c", "import customops", REDUCEOPS_WITHOUT="torch.nothing")
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: REDUCEOPS_WITHOUT names torch.nothing; it takes "), last
    assert "torch._functorch.utils.unwrap_dead_wrappers" in last


# Forks once for each name, after torch is imported and before customops is.
CHECK = """
import os, sys, torch
import torch.fx.experimental.symbolic_shapes, torch.nested._internal.nested_tensor
import torch._dynamo, torch._decomp.decompositions_for_jvp  # once for all

def check(name):
    import customops
    from torch.func import grad, jvp, vmap
    ops = torch.ops.reduceops
    x = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]], dtype=torch.float64)
    assert name in customops._torch_private.missing(), "not listed"
    assert ops.argmin(x, 1).tolist() == [1, 0] and customops.argmax(x).item() == 4
    values, indices = customops.max(x, 1)
    assert values.tolist() == [3, 5] and indices.tolist() == [0, 1]
    assert customops.scale_min(x, -2.0, 1, False).tolist() == [-6, -10]
    for function, theirs in (
        (lambda x: ops.min(x, 1)[0], lambda x: torch.min(x, 1)[0]),
        (lambda x: ops.scale_max(x, -2.0, 1), lambda x: torch.max(x * -2.0, 1, keepdim=True)[0]),
    ):
        for of in (
            lambda f: torch.autograd.grad(f(y := x.clone().requires_grad_()).square().sum(), y)[0],
            lambda f: grad(lambda x: f(x).square().sum())(x),
            lambda f: jvp(f, (x,), (x,))[1],
            lambda f: grad(lambda x: jvp(lambda y: f(y) ** 3, (x,), (x,))[1].sum())(x),
            lambda f: vmap(grad(lambda x: f(x[None]).sum()))(x),
        ):
            try:
                found = of(function)
            except (RuntimeError, NotImplementedError) as error:
                assert without[name].find("not work") >= 0, error
                continue
            assert torch.equal(found, of(theirs))
    for bad, text in ((lambda: customops.min(x, 5), "out of range"), (lambda: ops.max(x.to(
            torch.complex64), 0), "not supported"), (lambda: ops.min(x.to_sparse(), 0), "sparse")):
        try:
            bad()
        except (RuntimeError, IndexError) as error:
            assert text in str(error) or "in the log" in str(error), error
        else:
            raise AssertionError("no error")
    try:
        with customops.enable():
            assert torch.argmax(x, 1).tolist() == [0, 1]
    except RuntimeError as error:
        assert "enable() raises" in without[name], error

names, failed = sys.argv[1].split(), []
without = dict(zip(names, sys.argv[2].splitlines()))
for name in names:
    pid = os.fork()
    if pid == 0:
        os.environ["REDUCEOPS_WITHOUT"] = name
        try:
            check(name)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    failed += [name] * (os.waitpid(pid, 0)[1] != 0)
print("wrong without", failed) if failed else print("fine")
"""


def test_without_any_one_of_it():
    everything = dict(_torch_private.LOST)
    everything |= {name: lost for name, (lost, _) in _torch_private.symbols().items()}
    arguments = " ".join(everything), "\n".join(everything.values())
    done = python_after_torch("-c", CHECK, *arguments)
    assert done.stdout.splitlines()[-1] == "fine", done.stdout + done.stderr


def test_the_report_lists_what_is_missing():
    name = "torch._C._are_functorch_transforms_active"
    done = python_after_torch("-m", "customops", REDUCEOPS_WITHOUT=name)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"torch lacks +{re.escape(name)}: .*some us more", done.stdout)
