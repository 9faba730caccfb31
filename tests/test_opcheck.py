"""torch.library.opcheck, all its tests, on samples of every operator and of the private ones."""

import data
import pytest
import torch
from opspec import OPS, as_tuple, ops

NAMES = [
    name.partition(".")[0]
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("reduceops::")
]


# Models that were saved have them, so they stay as they are.
SCHEMAS = {
    "argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor",
    "argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor",
    "argmin.dims(Tensor self, int[] dim, bool keepdim=False) -> Tensor",
    "argmax.dims(Tensor self, int[] dim, bool keepdim=False) -> Tensor",
    *(
        f"arg{end}.{overload}(Tensor self, {dim}, bool keepdim=False, *, Tensor? mask=None, "
        "ScalarType? index_dtype=None) -> Tensor"
        for end in ("min", "max")
        for overload, dim in (("options", "int? dim=None"), ("dims_options", "int[] dim"))
    ),
    *(
        f"{end}.options(Tensor self, int dim, bool keepdim=False, *, Tensor? mask=None, "
        "ScalarType? index_dtype=None) -> (Tensor values, Tensor indices)"
        for end in ("min", "max")
    ),
    "softmax_max(Tensor self, int dim, bool keepdim=False) -> (Tensor probability, Tensor index)",
    "min(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
    "max(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
    "scale_min(Tensor self, float scale, int dim=1, bool keepdim=True) -> Tensor",
    "scale_max(Tensor self, float scale, int dim=1, bool keepdim=True) -> Tensor",
    *(
        f"conv2d_scale_{end}(Tensor input, Tensor weight, Tensor? bias, float scale, "
        "SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] dilation=[1, 1], "
        "SymInt groups=1, int dim=1, bool keepdim=True) -> Tensor"
        for end in ("min", "max")
    ),
}


def test_the_public_schemas():
    registered = [str(schema) for schema in torch._C._jit_get_all_schemas()]
    ours = {s.removeprefix("reduceops::") for s in registered if s.startswith("reduceops::")}
    assert {schema for schema in ours if not schema.startswith("_")} == SCHEMAS


def samples():
    for spec in OPS:
        for shape, dim, keepdim in spec.samples:
            arguments = spec.arguments(dim, keepdim)
            for name in names(spec):
                op = getattr(ops, name)
                yield spec, getattr(op, spec.overload(dim)._overloadname), shape, arguments


def names(spec):
    """The operator and the private ones behind it, every one that is registered."""
    registered = {op.removeprefix("reduceops::") for op in NAMES}
    private = (f"_{spec.name}_indices", f"_{spec.name}_autograd")
    return sorted(registered & {spec.name, *private})


SAMPLES = [
    pytest.param(*sample, id=f"{sample[1].__name__}-{list(sample[2])}-{sample[3]}")
    for sample in samples()
]


@pytest.mark.parametrize("spec, op, shape, arguments", SAMPLES)
def test_opcheck(spec, op, shape, arguments, device):
    torch.library.opcheck(op, (data.make(shape, torch.float32, "smooth").to(device), *arguments))


@pytest.mark.parametrize(
    "spec, op, shape, arguments",
    [sample for sample in SAMPLES if sample.values[0].differentiable],
)
def test_opcheck_with_gradient(spec, op, shape, arguments, device):
    x = data.make(shape, torch.float32, "smooth").to(device).requires_grad_()
    torch.library.opcheck(op, (x, *arguments))
    assert as_tuple(op(x, *arguments))[0].requires_grad  # which opcheck does not ask for


@pytest.mark.parametrize("dtype", data.DTYPES, ids=str)
@pytest.mark.parametrize("op", [ops.argmin.default, ops.max.default])
def test_opcheck_dtypes(op, dtype, device):
    x = data.make((3, 4), dtype, "ties").to(device).t()
    # test_schema compares inputs by arithmetic that torch does not have for float8.
    tests = ("test_faketensor",) if dtype in data.FLOAT8 else ("test_faketensor", "test_schema")
    torch.library.opcheck(op, (x, 1), test_utils=tests)
