"""The named tuples that operators with two results return."""

import copy
import pickle

import pytest
import torch
from opspec import OPS
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import customops

FIELDS = {"min": ("values", "indices"), "max": ("values", "indices")}
FIELDS["softmax_max"] = ("probability", "index")
each_pair = pytest.mark.parametrize("spec", [s for s in OPS if s.name in FIELDS], ids=str)


def check(spec, result, x, dim=1, keepdim=False):
    expected = spec.op(x, dim, keepdim)
    assert type(result) in (customops.ValuesIndices, customops.ProbabilityIndex)
    assert result._fields == FIELDS[spec.name] and isinstance(result, tuple)
    for name, found, right in zip(result._fields, result, expected, strict=True):
        assert getattr(result, name) is found and torch.equal(found, right)


@each_pair
def test_fields(spec):
    x = torch.randn(3, 4)
    check(spec, spec.function(x, 1), x)
    check(spec, spec.function(x, -1, True), x, 1, True)
    check(spec, copy.deepcopy(spec.function(x, 1)), x)
    check(spec, pickle.loads(pickle.dumps(spec.function(x, 1))), x)
    if spec.name != "softmax_max":
        result = spec.function(x, 1, mask=x > -9, index_dtype=torch.uint8)
        assert result.indices.dtype == torch.uint8 and torch.equal(result.values, spec.op(x, 1)[0])


@each_pair
def test_pytrees_and_transforms(spec):
    x = torch.randn(3, 4)
    doubled = pytree.tree_map(lambda t: t + t, spec.function(x, 1))
    assert type(doubled) is type(spec.function(x, 1))
    for found, once in zip(doubled, spec.op(x, 1), strict=True):
        assert torch.equal(found, once + once)
    check(spec, torch.vmap(lambda row: spec.function(row, 0))(x), x)


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x, 1)


@each_pair
def test_compile_and_export(spec, tmp_path):
    x, model = torch.randn(3, 4), Model(spec.function)
    check(spec, torch.compile(model, fullgraph=True, backend="aot_eager")(x), x)
    program = torch.export.export(model, (x,))
    check(spec, program.module()(x), x)
    torch.export.save(program, tmp_path / "model.pt2")
    check(spec, torch.export.load(tmp_path / "model.pt2").module()(x), x)


@each_pair
def test_symbolic_trace(spec):
    """Of torch.fx, whose proxies are results too."""
    calls = [
        lambda x: spec.function(x, 1),
        lambda x: spec.function(x, axis=1, keepdim=True),
        lambda x: tuple(getattr(spec.function(x, 1), name) for name in FIELDS[spec.name]),
    ]
    if spec.function is not customops.softmax_max:
        calls.append(lambda x: spec.function(x, 1, mask=x > 0, index_dtype=torch.int32))
    x = torch.randn(3, 4)
    for call in calls:
        found, right = torch.fx.symbolic_trace(call)(x), call(x)
        assert type(found) is type(right)
        for one, other in zip(found, right, strict=True):
            assert torch.equal(one, other)


@each_pair
def test_symbolic_trace_of_a_dim(spec):
    """Of a graph whose inputs dim and keepdim are, too."""
    recorded = torch.fx.symbolic_trace(lambda x, dim, keepdim: spec.function(x, dim, keepdim))
    x = torch.randn(3, 4)
    for given in ((x, 0, False), (x, -1, True)):
        for one, other in zip(recorded(*given), spec.function(*given), strict=True):
            assert torch.equal(one, other)


def test_symbolic_trace_of_an_index_dtype():
    """As of a dim, beside a mask that is an input, too."""

    def call(x, mask, index_dtype):
        return customops.argmin(x, 1, mask=mask, index_dtype=index_dtype)

    x, mask = torch.randn(3, 4), torch.tensor([True, False, True, True])
    recorded = torch.fx.symbolic_trace(call)
    for index_dtype in (torch.int32, torch.uint8, None):
        found, right = (f(x, mask, index_dtype) for f in (recorded, call))
        assert found.dtype == right.dtype
        assert torch.equal(found, right)


@pytest.mark.parametrize("function", [customops.argmin, customops.argmax])
@pytest.mark.parametrize("dim", [0, -1])
def test_a_recorded_dim_stays(function, dim):
    """Of a call that is recorded with one row and made with several."""
    call, row, rows = lambda x: function(x, dim), torch.randn(3), torch.randn(2, 3)
    for recorded in (
        torch.jit.trace(call, row),
        torch.fx.symbolic_trace(call),
        make_fx(call)(row),
    ):
        assert torch.equal(recorded(row), call(row))
        assert torch.equal(recorded(rows), call(rows))
