"""What Inductor writes in the vectors of AVX2, on any CPU: on one that has AVX-512, too."""

import os
import sys
from types import SimpleNamespace

import data
import opspec
import pytest
import reference
import torch
from conftest import needs_compiler, python
from torch._inductor import config, cpu_vec_isa

import customops
from customops.inductor import vectors

pytestmark = [needs_compiler, pytest.mark.usefixtures("no_cached_graph")]
SHAPE = (5, 8)  # of which a row is one vector
DTYPES = (torch.float32, torch.int32, torch.int64)


def ours(x, mask):
    scaled = (customops.scale_min, customops.scale_max) if x.is_floating_point() else ()
    return (
        *(argument(x, -1) for argument in (customops.argmin, customops.argmax)),
        *(of(x, -1) for of in (customops.min, customops.max)),
        *(of(x, -1)[0] for of in (customops.min, customops.max)),
        *(argument(x, -1, mask=mask) for argument in (customops.argmin, customops.argmax)),
        *(of(x, -1, mask=mask) for of in (customops.min, customops.max)),
        *(of(x, -2.0, -1) for of in scaled),
    )


def expected(x, mask):
    scaled = (reference.scale_min, reference.scale_max) if x.is_floating_point() else ()
    return (
        *(argument(x, -1) for argument in (reference.argmin, reference.argmax)),
        *(of(x, -1) for of in (reference.min_, reference.max_)),
        *(of(x, -1)[0] for of in (reference.min_, reference.max_)),
        *(reference.masked(name, x, -1, False, mask) for name in ("argmin", "argmax")),
        *(reference.masked(name, x, -1, False, mask) for name in ("min", "max")),
        *(of(x, -2.0, -1) for of in scaled),
    )


def double(x):
    return x + x


def check_one():
    x = data.make(SHAPE, torch.float32, "ties")
    found = torch.compile(lambda x: customops.min(double(x), -1), fullgraph=True)(x)
    opspec.assert_same(found, reference.min_(double(x), -1), opspec.ANY_NAN)


def test_indices(monkeypatch):
    monkeypatch.setattr(customops.inductor, "prefer", "loop")
    inputs = [
        (data.make(SHAPE, dtype, "ties"), data.make(SHAPE, torch.bool, "ties", seed=1))
        for dtype in DTYPES
    ]

    def function(inputs):  # to compile one graph takes less
        return [ours(double(x), mask) for x, mask in inputs], customops.softmax_max(
            double(inputs[0][0]), -1
        )

    with config.patch({"cpp.simdlen": 256}):
        results, softmax = torch.compile(function, fullgraph=True)(inputs)
    for (x, mask), found in zip(inputs, results, strict=True):
        for one, other in zip(found, expected(double(x), mask), strict=True):
            opspec.assert_same(one, other, opspec.NUMBERS, x.dtype)
    tolerance = opspec.Tolerance(ulps=4, any_nan=True)
    opspec.assert_same(softmax, reference.softmax_max(double(inputs[0][0]), -1), tolerance)


def test_the_environment_asks_for_avx2():
    """Of a process that finds the graph of another vector ISA in its cache, too."""
    check_one()  # (A CPU without AVX-512 has no other vectors.)
    code = "import test_vector_isa; test_vector_isa.check_one()"
    paths = os.pathsep.join(path for path in sys.path if path)
    done = python("-c", code, ATEN_CPU_CAPABILITY="avx2", PYTHONPATH=paths)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    "isa, has_avx512, march, calls",
    [
        ("avx2", True, None, True),
        ("avx2", False, None, False),
        ("avx2", False, "x86-64-v4", True),
        ("avx512", True, None, False),
        ("INVALID_VEC_ISA", True, None, False),
    ],
)
def test_where_kernels_are_called(isa, has_avx512, march, calls, monkeypatch):
    monkeypatch.setattr(cpu_vec_isa, "pick_vec_isa", lambda: isa)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: has_avx512)
    monkeypatch.setattr(vectors, "config", SimpleNamespace(cpp=SimpleNamespace(march=march)))
    assert bool(vectors.why_not()) == calls
