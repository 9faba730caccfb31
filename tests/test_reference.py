"""The reference is right: it agrees with torch wherever torch's operator takes the dtype."""

import data
import pytest
import reference
import torch
from opspec import all_dims, as_tuple, assert_same, each_op_and_dtype

# torch has no kernel for these; nor argmin and argmax of bool, where it has min and max.
UNSUPPORTED = (torch.uint16, torch.uint32, torch.uint64, *data.FLOAT8)


@each_op_and_dtype
def test_agrees_with_torch(spec, dtype):
    if dtype in UNSUPPORTED or (dtype == torch.bool and spec.name.startswith("arg")):
        pytest.skip("torch has no such kernel")
    for kind in ("random", "ties", "special"):
        x = data.make((4, 9, 6), dtype, kind)
        for dim in all_dims(x):
            for keepdim in (False, True):
                arguments = spec.arguments(dim, keepdim)
                expected = as_tuple(spec.torch(x, *arguments))
                result = as_tuple(spec.reference(x, *arguments))
                if not spec.selects:  # torch's index is that of a rounded probability
                    expected, result = expected[:1], result[:1]
                assert_same(result, expected, spec.tolerance, (kind, dim))


@pytest.mark.parametrize("dtype", data.FLOAT8, ids=str)
def test_decodes_float8_as_torch_does(dtype):
    every = torch.arange(256, dtype=torch.uint8).view(dtype)
    expected = every.to(torch.float32)
    decoded = torch.from_numpy(reference.to_numpy(every))
    assert torch.equal(decoded.isnan(), expected.isnan())
    assert torch.equal(decoded.nan_to_num(1234.0), expected.nan_to_num(1234.0))
    assert torch.equal(decoded.signbit()[~decoded.isnan()], expected.signbit()[~expected.isnan()])
