"""The stub of torch.ops.reduceops says what the schemas say."""

import ast
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
        parameters.append((arg.arg.rstrip("_"), kind, default))
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


def test_every_public_operator_has_a_stub():
    schemas = torch._C._jit_get_all_schemas()
    names = {
        s.name.removeprefix("reduceops::") for s in schemas if s.name.startswith("reduceops::")
    }
    assert {name for name in names if not name.startswith("_")} == set(OPERATORS)
    assert torch_ops.reduceops is torch.ops.reduceops
