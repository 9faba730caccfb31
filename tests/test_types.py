"""The stub of torch.ops.reduceops says what the schemas say."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import customops
from customops import torch_ops

STUB = ast.parse(Path(customops.__file__).with_name("torch_ops.pyi").read_text())
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
OPERATORS = {node.target.id: node.annotation.id for node in CLASSES["_Operators"].body}
TYPES = {
    "Tensor": "Tensor",
    "Optional[Tensor]": "Tensor | None",
    "int": "int",
    "Optional[int]": "int | None",
    "List[int]": "Sequence[int]",
    "bool": "bool",
    "float": "float",
}


def stubbed(function):
    """(name, type, default) of each parameter, keyword-only ones last, and the type of results."""
    takes = function.args
    positional = [*takes.posonlyargs, *takes.args][1:]
    defaults = [None] * (len(positional) - len(takes.defaults)) + takes.defaults
    pairs = list(zip(positional, defaults, strict=True))
    pairs += zip(takes.kwonlyargs, takes.kw_defaults, strict=True)
    parameters = []
    for arg, value in pairs:
        kind, default = ast.unparse(arg.annotation), value and ast.literal_eval(value)
        if kind == "int | Sequence[int]":  # an int stands for two
            kind, default = "Sequence[int]", [default] * 2
        parameters.append((arg.arg, kind, default))
    return parameters, ast.unparse(function.returns)


def in_schema(schema):
    parameters = []
    for argument in schema.arguments:
        kind = TYPES.get(str(argument.type), str(argument.type))
        if argument.name == "index_dtype":  # torch calls a dtype an int
            kind = "dtype | None"
        if argument.name == "scale":  # a tensor is taken before the schema is looked at
            kind = "float | Tensor"
        parameters.append((argument.name, kind, argument.default_value))
    results = "Tensor" if len(schema.returns) == 1 else "tuple[Tensor, Tensor]"
    return parameters, results


@pytest.mark.parametrize("name", OPERATORS)
def test_the_stub_is_the_schemas(name):
    packet = getattr(torch.ops.reduceops, name)
    expected = [in_schema(getattr(packet, overload)._schema) for overload in packet.overloads()]
    body = CLASSES[OPERATORS[name]].body
    found = [stubbed(part) for part in body if isinstance(part, ast.FunctionDef)]
    named = {part.target.id for part in body if isinstance(part, ast.AnnAssign)}
    assert named == set(packet.overloads())
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


CALLS = """
import torch
from typing_extensions import assert_type

import customops
from customops.torch_ops import reduceops

x = torch.rand(3, 4)
assert_type(customops.min(x, 1), customops.ValuesIndices)
assert_type(customops.min(x, dim=1, mask=x > 0, keepdims=True), customops.ValuesIndices)
assert_type(customops.max(x, axis=1, keepdim=True, index_dtype=torch.int32).indices, torch.Tensor)
assert_type(customops.softmax_max(x, axis=1, keepdims=True), customops.ProbabilityIndex)
assert_type(customops.argmin(x), torch.Tensor)
assert_type(customops.argmax(x, axis=(0, 1), mask=x > 0), torch.Tensor)
customops.min(x)  # type: ignore[call-overload]
customops.max(x, None)  # type: ignore[call-overload]
customops.max(x, keepdim=True)  # type: ignore[call-overload]
customops.min(x, 1, axis=1)  # type: ignore[call-overload]
customops.softmax_max(x)  # type: ignore[call-overload]
customops.softmax_max(x, 1, mask=x > 0)  # type: ignore[call-overload]
customops.explain(x, 1, multiprocessors=80)
customops.explain(x, 1, cores=80)  # type: ignore[call-arg]
customops.argmox(x)  # type: ignore[attr-defined]
customops.distributed.argmox(x)  # type: ignore[attr-defined]
customops.distributed.argmax(x, 1)
customops.inductor.rewrites(), customops.plans.cpu_plan(x), customops.libraries.cpu.loaded
customops.onnx.translation_table(), customops.torch_ops.reduceops
customops.inductor.prefer = "loop"
assert_type(reduceops.argmax.overloads(), list[str])
assert_type(reduceops.argmin(self=x, dim=1), torch.Tensor)
assert_type(reduceops.scale_max(self=x, scale=2.0), torch.Tensor)
assert_type(reduceops.max.options(x, 1, mask=x > 0), tuple[torch.Tensor, torch.Tensor])
reduceops.argmax.default._schema.arguments
"""


def test_type_checkers_take_what_calls_take(tmp_path):
    """And refuse what always raises: a comment that ignores no error is one."""
    pytest.importorskip("mypy")
    (tmp_path / "calls.py").write_text(CALLS)
    folder = Path(customops.__file__).parent.parent  # mypy finds what is installed by itself
    path = {} if folder.name == "site-packages" else {"MYPYPATH": str(folder)}
    root = Path(__file__).parent.parent
    # As `make lint` has it, which has looked at torch then.
    options = [f"--config-file={root / 'pyproject.toml'}", f"--cache-dir={root / '.mypy_cache'}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "calls.py"],
        env={**os.environ, **path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_every_public_operator_has_a_stub():
    schemas = torch._C._jit_get_all_schemas()
    names = {
        s.name.removeprefix("reduceops::") for s in schemas if s.name.startswith("reduceops::")
    }
    assert {name for name in names if not name.startswith("_")} == set(OPERATORS)
    assert torch_ops.reduceops is torch.ops.reduceops
