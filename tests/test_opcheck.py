"""torch.library.opcheck, all its tests, on samples of every operator and of the private twins."""

import data
import pytest
import torch
from opspec import OPS, ops


def samples():
    for spec in OPS:
        for shape, dim, keepdim in spec.samples:
            yield spec, spec.overload(dim), shape, (*spec.arguments(dim, keepdim),)
        if spec.differentiable:
            for shape, dim, keepdim in spec.samples:
                twin = getattr(ops, f"_{spec.name}").default
                yield spec, twin, shape, spec.arguments(dim, keepdim)
        if spec.leading:
            twin = getattr(ops, f"_{spec.name}_indices").default
            yield spec, twin, (3, 4, 5), spec.arguments(1, False)


SAMPLES = [
    pytest.param(*sample, id=f"{sample[1].__name__}-{list(sample[2])}-{sample[3]}")
    for sample in samples()
]


@pytest.mark.parametrize("spec, op, shape, arguments", SAMPLES)
def test_opcheck(spec, op, shape, arguments, device):
    torch.library.opcheck(op, (data.make(shape, torch.float32, "smooth").to(device), *arguments))


@pytest.mark.parametrize(
    "spec, op, shape, arguments",
    [p for p in SAMPLES if p.values[0].differentiable and not p.values[1].__name__.startswith("_")],
)
def test_opcheck_with_gradient(spec, op, shape, arguments, device):
    x = data.make(shape, torch.float32, "smooth").to(device).requires_grad_()
    torch.library.opcheck(op, (x, *arguments))


@pytest.mark.parametrize("dtype", data.DTYPES, ids=str)
@pytest.mark.parametrize("op", [ops.argmin.default, ops.max.default])
def test_opcheck_dtypes(op, dtype, device):
    x = data.make((3, 4), dtype, "ties").to(device).t()
    # test_schema compares inputs by arithmetic that torch does not have for float8.
    tests = ("test_faketensor",) if dtype in data.FLOAT8 else ("test_faketensor", "test_schema")
    torch.library.opcheck(op, (x, 1), test_utils=tests)
