"""torch's own test material: samples, references and error inputs of its OpInfos."""

import pytest
import torch
from opspec import as_tuple
from torch.testing._internal.common_methods_invocations import op_db

import customops

OPS = {
    **{"argmin": customops.argmin, "argmax": customops.argmax},
    **{"min": customops.min, "max": customops.max},
    # The values alone, over one dim.
    **{"amin": customops.min, "amax": customops.max},
}
INFOS = [
    info
    for info in op_db
    if info.name in OPS
    and info.variant_test_name == ("reduction_with_dim" if info.name in ("min", "max") else "")
]
CASES = [
    pytest.param(info, dtype, id=f"{info.name}-{dtype}")
    for info in INFOS
    for dtype in sorted(info.dtypes, key=str)
]


def call(info, sample):
    """Our results for a sample of torch's, None if it asks for what ours do not do."""
    arguments = dict(zip(("dim", "keepdim"), sample.args, strict=False)) | sample.kwargs
    x, dim = sample.input, arguments.get("dim")
    if info.name in ("argmin", "argmax"):
        return OPS[info.name](x, **arguments)
    dims = dim if isinstance(dim, (tuple, list)) else (dim,)
    if len(dims) != 1 or dims[0] is None:
        return None
    results = OPS[info.name](x, dims[0], arguments.get("keepdim", False))
    return results if info.name in ("min", "max") else results[0]


def test_every_operator_has_samples():
    assert {info.name for info in INFOS} == set(OPS)


@pytest.mark.parametrize("info, dtype", CASES)
def test_samples(info, dtype, device):
    compared = 0
    for sample in info.sample_inputs(device, dtype):
        actual, expected = call(info, sample), info(sample.input, *sample.args, **sample.kwargs)
        if actual is None:
            continue
        compared += 1
        for a, e in zip(as_tuple(actual), as_tuple(expected), strict=True):
            torch.testing.assert_close(a, e, rtol=0, atol=0, equal_nan=True)
    assert compared


@pytest.mark.parametrize("info, dtype", CASES)
def test_references(info, dtype, device):
    """numpy's, where the OpInfo has one."""
    if info.ref is None or dtype == torch.bfloat16:  # which numpy has not
        pytest.skip("torch has no reference")
    compared = 0
    for sample in info.reference_inputs(device, dtype):
        actual = call(info, sample)
        if actual is None:
            continue
        compared += 1
        named = dict(zip(("dim", "keepdim"), sample.args, strict=False)) | sample.kwargs
        expected = info.ref(sample.input.detach().cpu().numpy(), **named)
        assert torch.equal(actual.cpu(), torch.as_tensor(expected))
    assert compared


@pytest.mark.parametrize("name", OPS)
def test_error_inputs(name, device):
    """What is an error of amin and amax is one of ours, over one dim and over several."""
    smallest = name.endswith("min")
    (info,) = (info for info in INFOS if info.name == ("amin" if smallest else "amax"))
    tried = 0
    for wrong in info.error_inputs(device):
        keywords = wrong.sample_input.kwargs
        several = not isinstance(keywords.get("dim"), int)
        if "out" in keywords or (several and name not in ("argmin", "argmax")):
            continue
        tried += 1
        # Ours is an IndexError where torch's may be one or a RuntimeError.
        with pytest.raises((wrong.error_type, IndexError)):
            OPS[name](wrong.sample_input.input, **keywords)
    assert tried
