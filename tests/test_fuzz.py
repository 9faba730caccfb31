"""The fuzzer in short, with fixed seeds, and whether it would find anything. See fuzz.py."""

import argparse
import dataclasses
import itertools
import math
import random

import fuzz
import hypothesis
import pytest
import reference
import torch
from conftest import NO_CUDA
from random_plans import random_tuning, written
from reference import bits

from customops.plans import cuda_constants

ISAS = fuzz.instruction_sets()


pytestmark = pytest.mark.usefixtures("number_of_threads")


def test_calls_are_right(device):
    count, case, reason = fuzz.run(1500, 0, [device])
    assert case is None, f"{reason}\n{fuzz.command(case, {})}"
    assert count == 1500


@pytest.mark.parametrize("isa", ISAS[1:])
def test_calls_are_right_with_other_instruction_sets(isa):
    count, failure = fuzz.run_batch(["cpu"], {"REDUCEOPS_CPU_ISA": isa}, 600, ISAS.index(isa))
    assert failure is None, failure
    assert count == 600


@NO_CUDA
@pytest.mark.parametrize("seed", range(4))
def test_calls_are_right_with_any_constants_of_the_plan(seed):
    tuning = written(random_tuning(random.Random(seed)))
    count, failure = fuzz.run_batch(["cuda"], {"REDUCEOPS_CUDA_TUNING": tuning}, 400, seed)
    assert failure is None, failure
    assert count == 400


EXPONENT_AND_MANTISSA = {
    torch.float8_e4m3fn: (4, 3),
    torch.float8_e5m2: (5, 2),
    torch.float16: (5, 10),
    torch.bfloat16: (8, 7),
    torch.float32: (8, 23),
    torch.float64: (11, 52),
}


def number(raw, dtype):
    """The value of an element, from its bits, by the definition of its format."""
    width = 8 * dtype.itemsize
    raw %= 1 << width
    if dtype == torch.bool:
        return int(raw != 0)
    if dtype not in EXPONENT_AND_MANTISSA:
        return raw - (raw >> (width - 1) << width if dtype.is_signed else 0)
    exponent_bits, mantissa_bits = EXPONENT_AND_MANTISSA[dtype]
    sign = -1.0 if raw >> (width - 1) else 1.0
    exponent = raw >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = raw & (1 << mantissa_bits) - 1
    if dtype == torch.float8_e4m3fn:
        if raw & 0x7F == 0x7F:
            return math.nan
    elif exponent == (1 << exponent_bits) - 1:
        return math.nan if mantissa else sign * math.inf
    if exponent:
        mantissa += 1 << mantissa_bits
    power = max(exponent, 1) - ((1 << (exponent_bits - 1)) - 1) - mantissa_bits
    return sign * math.ldexp(mantissa, power)


def wins(extreme, a, b):
    if b != b:
        return False
    return a != a or (a < b if extreme == "min" else a > b)


def by_loops(extreme, x, dims):
    """Indices into the reduced dims, as a list in the order of the kept ones."""
    kept = [d for d in range(x.dim()) if d not in dims]
    indices = []
    for outer in itertools.product(*(range(x.size(d)) for d in kept)):
        best, winner = None, None
        for index, inner in enumerate(itertools.product(*(range(x.size(d)) for d in dims))):
            place = dict(zip((*kept, *dims), (*outer, *inner), strict=True))
            element = x[tuple(place[d] for d in range(x.dim()))]
            value = number(bits(element.reshape(1)).item(), x.dtype)
            if winner is None or wins(extreme, value, best):
                best, winner = value, index
        indices.append(winner)
    return indices


def test_the_reference_agrees_with_loops():
    def check(case):
        _, x = case.input()
        hypothesis.assume(x.dim() and 0 not in x.shape)
        dims = reference.wrapped(x, case.dim)
        for extreme in ("min", "max"):
            expected = by_loops(extreme, x, dims)
            assert reference.arg(extreme, x, case.dim).flatten().tolist() == expected, case
            if isinstance(case.dim, int):
                values, _ = reference.extreme(extreme, x, case.dim)
                groups = bits(x).movedim(case.dim, -1).reshape(-1, x.size(case.dim)).tolist()
                chosen = [group[i] for group, i in zip(groups, expected, strict=True)]
                assert bits(values).flatten().tolist() == chosen, case

    fuzz.for_each(300, 0, fuzz.cases(elements=(24,)), check)


def test_a_wrong_index_is_found_and_made_small(monkeypatch):
    """An operator that finds no element behind the second."""
    spec = fuzz.SPECS["argmax"]

    def wrong(*arguments):
        return spec.function(*arguments).clamp(max=1)

    monkeypatch.setitem(fuzz.SPECS, "argmax", dataclasses.replace(spec, function=wrong))
    monkeypatch.setattr(fuzz, "OPS", [spec])
    _, case, reason = fuzz.run(1000, 0, ["cpu"])
    assert case.op == "argmax" and math.prod(case.sizes) <= 4, case
    assert repr(case) in str(reason)
    names = {"Case": fuzz.Case, "torch": torch, "inf": math.inf, "nan": math.nan}
    assert eval(repr(case), names) == case
    assert f"{case!r}.check()" in fuzz.command(case, {})
    with pytest.raises(fuzz.Mismatch):
        case.check()


def test_a_result_that_is_no_result_is_found(monkeypatch):
    """A changed input, a result that is not contiguous, no error for an empty dim."""
    x = fuzz.Case("argmin", torch.float32, (3, 4), (4, 1), dim=0, python=True)
    empty = dataclasses.replace(x, sizes=(0, 4))
    x.check()
    empty.check()

    def check_fails(case, function, reason):
        spec = dataclasses.replace(fuzz.SPECS["argmin"], function=function)
        with monkeypatch.context() as patch, pytest.raises(fuzz.Mismatch, match=reason):
            patch.setitem(fuzz.SPECS, "argmin", spec)
            case.check()

    check_fails(x, lambda x, *a: x.zero_().argmin(*a), "changes its input")
    check_fails(x, lambda x, *a: x.argmin(*a).repeat(2)[::2], "not contiguous")
    check_fails(x, lambda x, *a: x.argmin(*a).int(), r"(?s)is \(tensor.*, not \(tensor")
    check_fails(x, lambda x, *a: torch.argmin(x, 9), "raises")
    check_fails(empty, lambda x, *a: torch.zeros(4, dtype=torch.int64), "no error")


def test_a_process_that_dies_leaves_its_call(monkeypatch, tmp_path):
    died_of = []

    def die(case):
        died_of.append(repr(case))
        raise SystemExit

    monkeypatch.setattr(fuzz.Case, "check", die)
    worker = tmp_path / "call"
    with pytest.raises(SystemExit):
        options = {"worker": worker, "examples": 5, "seed": 0, "devices": ["cpu"]}
        fuzz.work(argparse.Namespace(**options))
    assert worker.read_text() == died_of[-1]


def test_constants_of_the_plan_are_such():
    """Random ones have names that the library knows."""
    names = set().union(*(random_tuning(random.Random(seed)) for seed in range(200)))
    assert names == set(cuda_constants())
