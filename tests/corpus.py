"""Programs for which torch.compile was reported to give other indices than eager mode.

Each takes the operators as an argument: torch's, ours (`customops`) or the reference in numpy
(`reference`). test_corpus.py holds ours, compiled, to eager torch. Run as a script,

    python tests/corpus.py docs/correctness.json

it compiles each program with torch's operators and with ours on every device there is, and writes
what came out, for this torch and each device; what the file has of others stays.
.ci/docs_data.py makes tables of it.
"""

import argparse
import datetime
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import reference
import torch
import torch.utils._pytree as pytree

import customops

# numpy's, under the names of torch's.
REFERENCE = SimpleNamespace(
    argmin=reference.argmin, argmax=reference.argmax, min=reference.min_, max=reference.max_
)


@dataclass(frozen=True)
class Case:
    issue: str  # pytorch/pytorch
    what: str
    program: Callable  # of the operators and the inputs
    inputs: Callable  # -> a list of tuples of tensors on the CPU; all go through one compilation
    reported: bool = True  # the inputs are those of the report, up to a seed it does not give
    options: dict = field(default_factory=dict)  # of torch.compile

    def __str__(self):
        return f"{self.issue}: {self.what}"


def seeded(make, seed=0):
    torch.manual_seed(seed)
    return make()


def ties_int32():
    rows = (
        *((3, 2, 2, 3, 2, 4, 3, 1, 3, 1), (2, 3, 4, 2, 1, 2, 4, 3, 1, 2)),
        *((3, 4, 3, 4, 3, 4, 1, 2, 1, 3), (4, 1, 2, 1, 1, 3, 1, 3, 2, 2)),
        *((1, 2, 4, 4, 3, 3, 2, 1, 1, 1), (1, 1, 4, 1, 4, 4, 2, 1, 1, 2)),
        *((3, 2, 3, 2, 1, 4, 2, 4, 2, 1), (4, 3, 4, 4, 1, 1, 2, 4, 3, 3)),
        *((2, 3, 4, 1, 2, 4, 4, 4, 4, 1), (1, 1, 3, 4, 1, 1, 1, 3, 3, 3)),
    )
    return [(torch.tensor(rows, dtype=torch.int32),)]


def ties_int16():
    return [
        (seeded(lambda: torch.randint(-100, 100, (20, 20), dtype=torch.int16), seed),)
        for seed in range(20)
    ]


def ties_int8():
    return [(seeded(lambda: torch.randint(-128, 128, (2, 4096, 37), dtype=torch.int8)),)]


def duplicates():
    return [
        (seeded(lambda: torch.randint(2, (6, 6)).float()),),
        (seeded(lambda: torch.randint(8, (300, 500)).float()),),
    ]


def both_ways(op, x):
    return [f(x, dim) for f in (op.argmin, op.argmax, op.min, op.max) for dim in (0, 1)]


def bessel(op, x):
    return op.argmax(torch.special.modified_bessel_k1(x))


def bessel_input():
    """Two rows of the report's; negative elements give NaN."""
    rows = (
        (
            -46143.80,
            -888887.5,
            742947.25,
            591846.6,
            -425750.5,
            -160263.9,
            515385.3,
            -237312.6,
            -63502,
        ),
        (
            446532.3,
            -138495.7,
            -894550.6,
            -774823.3,
            -302313.8,
            966388.8,
            -79594.8,
            238637.4,
            417527,
        ),
    )
    return [(torch.tensor(rows),)]


def tangents(keep):
    def program(op, p0, p1, x):
        mul = torch.mul(torch.div(p1, torch.atan(p0)), torch.tan(x))
        index = op.argmax(torch.sub(mul, mul), 3)
        return (mul, index) if keep else index

    return program


def tangents_inputs():
    return [seeded(lambda: tuple(torch.rand(2, 11, 41, 55) + 0.1 for _ in range(3)))]


def pool(op, x):
    return op.argmax(torch.adaptive_avg_pool1d(x, 2))


def argmax_feeds_min(op, v0, v2):
    return op.min(torch.min(v2, op.argmax(v0, 3)), 3)[0]


def in_place(function, arg):
    def program(op, x):
        x = x.clone()
        getattr(x, function)()
        return getattr(op, arg)(x.t())

    return program


def sine_input():
    rows = (
        (-1.5256, -0.7502, -0.6540, -1.6095, -0.1002, -0.6092, -0.9798),
        (-1.6091, -0.7121, 0.3037, -0.7773, -0.2515, -0.2223, 1.6871),
        (0.2284, 0.4676, -0.6970, -1.1608, 0.6995, 0.1991, 0.8657),
        (0.2444, -0.6629, 0.8073, 1.1017, -0.1759, -2.2456, -1.4465),
        (0.0612, -0.6177, -0.7981, -0.1316, -0.7984, 0.3357, 0.2753),
    )
    return [(torch.tensor(rows),)]


def late_true():
    mask = torch.zeros(4, 8, 32, dtype=torch.bool)
    mask[:, 4:] = True
    return [(mask,)]


def bool_rows():
    return [(seeded(lambda n=n: torch.randint(2, (n, 32), dtype=torch.bool)),) for n in range(2, 8)]


def eighteen(*dtypes):
    positive = (5, 1, 100, 3, 7, 8, 9, 13, 100, 120, 127, 2, 6, 4, 11, 12, 90, 80)

    def inputs():
        return [(torch.tensor(positive).mul(sign).to(dtype),) for dtype, sign in dtypes]

    return inputs


def extremes_of_all(op, x):
    return op.argmin(x), op.argmax(x), op.min(x, 0), op.max(x, 0)


def channels_last():
    make = lambda: torch.randn(4, 4, 8, 8).to(memory_format=torch.channels_last)  # noqa: E731
    return [(seeded(make, 1234),)]


def fused(reduce, arg="argmax"):
    return lambda op, x: getattr(op, arg)(reduce(x))


FUSED = {
    "mean": fused(lambda x: x.mean(-1)),
    "sum": fused(lambda x: x.sum(-1)),
    "amax": fused(lambda x: x.amax(-1)),
    "var": fused(lambda x: x.var(-1)),
    "logsumexp": fused(lambda x: x.logsumexp(-1)),
    "prod": fused(lambda x: x.prod(-1), "argmin"),
}


def transposed(*shape):
    return lambda: [(seeded(lambda: torch.randn(shape).transpose(0, 1)),)]


CASES = (
    Case("93630", "ties, int32", lambda op, x: op.argmax(x, 0), ties_int32),
    Case("93815", "ties, int16", lambda op, x: op.argmax(x, 0), ties_int16),
    Case("93815", "ties, int8, 4096 rows", lambda op, x: op.argmax(x, 1), ties_int8, False),
    Case("99879", "ties, indices of min and argmin", both_ways, duplicates, False),
    Case(
        *("94055", "argmax over one element, into min", argmax_feeds_min),
        lambda: [
            seeded(lambda: (torch.rand(3, 4, 2, 1).int(), torch.rand(2, 2, 1, 4, 1).int())),
        ],
    ),
    Case(
        *("113013", "average pooling, argmax of all, float64", pool),
        lambda: [(seeded(lambda: torch.rand(3, 3, 3, dtype=torch.float64)),)],
        options={"mode": "max-autotune-no-cudagraphs", "dynamic": True},
    ),
    Case("113175", "NaNs from a Bessel function", bessel, bessel_input),
    *(
        Case(
            *("114229", f"argmax of zeros{', producer returned too' if keep else ''}"),
            *(tangents(keep), tangents_inputs, False),
            options={"options": {"emulate_precision_casts": True}},
        )
        for keep in (False, True)
    ),
    Case(
        *("118177", "flipped, nine dims", lambda op, x: op.argmax(torch.fliplr(x))),
        lambda: [(seeded(lambda: torch.rand(8, 6, 2, 6, 6, 1, 1, 4, 1)),)],
    ),
    Case(
        *("118266", "NaN first", lambda op, x: op.argmax(x)),
        lambda: [(torch.tensor([float("nan"), 4.6151]),)],
    ),
    Case(
        *("163929, 174073", "tan_, transposed", in_place("tan_", "argmin")),
        lambda: [(seeded(lambda: torch.randn(4, 6)),)],
    ),
    Case("174069", "bool, late first True", lambda op, x: op.max(x, 1, True)[1], late_true),
    Case(
        *("178964", "transposed + contiguous", lambda op, a, b: op.max(a + b, 1)),
        lambda: [seeded(lambda: (torch.randn(8, 8).transpose(0, 1), torch.randn(8, 8)))],
    ),
    Case("183082", "sin_, transposed, argmax", in_place("sin_", "argmax"), sine_input),
    Case(
        *("183894", "sin_, transposed, argmin", in_place("sin_", "argmin")),
        lambda: [(seeded(lambda: torch.randn(5, 7), 21),)],
    ),
    Case("184893", "bool, min over rows", lambda op, x: op.min(x, 0), bool_rows),
    Case(
        *("191499", "uint8 and int8, 18 elements", extremes_of_all),
        eighteen((torch.uint8, 1), (torch.int8, 1), (torch.int8, -1)),
        options={"dynamic": False},
    ),
    Case("193492", "pooling of a transposed view", pool, transposed(4, 4, 3)),
    Case("193661", "mean of a transposed view", FUSED["mean"], transposed(4, 6, 5), False),
    *(
        Case("193751", f"channels_last, {name} fused", program, channels_last)
        for name, program in FUSED.items()
    ),
    Case(
        *("197087", "broadcast sum, sizes that are one symbol"),
        lambda op, x, y: op.argmin(x + y),
        lambda: [seeded(lambda: (torch.randn(32, 32, 32), torch.randn(32, 1, 1)))],
        reported=False,
        options={"dynamic": True},
    ),
    Case(
        *("197739", "transposed + 0.5", lambda op, x: op.argmin(x.t() + 0.5)),
        lambda: [(seeded(lambda: torch.randn(2, 2)),)],
    ),
)


def run_together(cases: list[Case], op, device: str = "cpu", compiled: bool = False) -> list:
    """The tensors that each program gives, for each of its inputs; compiled, they are one graph."""

    def programs(*inputs):
        return [case.program(op, *xs) for case, xs in zip(cases, inputs, strict=True)]

    if compiled:
        torch._dynamo.reset()
        programs = torch.compile(programs, fullgraph=True, **cases[0].options)
    # .to keeps the strides.
    inputs = [[[x.to(device) for x in xs] for xs in case.inputs()] for case in cases]
    found = [map(pytree.tree_leaves, programs(*xs)) for xs in zip(*inputs, strict=True)]
    return [list(of_case) for of_case in zip(*found, strict=True)]


def run(case: Case, op, device: str = "cpu", compiled: bool = False) -> list:
    return run_together([case], op, device, compiled)[0]


def same(actual: list, expected: list) -> bool:
    """Indices exactly; other results to the precision of arithmetic that may be reordered."""

    def equal(a, e):
        if a.shape != e.shape or a.dtype != e.dtype:
            return False
        if not a.is_floating_point():
            return torch.equal(a, e)
        return torch.allclose(a, e, rtol=1e-4, atol=1e-5, equal_nan=True)

    actual, expected = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    return len(actual) == len(expected) and all(map(equal, actual, expected))


def verdict(case: Case, op, device: str, expected: list) -> str:
    try:
        return "right" if same(run(case, op, device, compiled=True), expected) else "wrong"
    except torch._dynamo.exc.TorchDynamoException:
        return "does not compile"


def environment(device: str) -> dict:
    name = f"CPU ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()})"
    name = torch.cuda.get_device_name() if device == "cuda" else name
    return {"torch": torch.__version__, "device": name}


def section(device: str) -> dict:
    """What came out of every program on this device."""
    cases = []
    for case in CASES:
        expected = run(case, torch, device)
        cases.append(
            {
                **{"issue": case.issue, "what": case.what, "reported": case.reported},
                "torch": verdict(case, torch, device, expected),
                "ours": verdict(case, customops, device, expected),
            }
        )
    return {**environment(device), "date": datetime.date.today().isoformat(), "cases": cases}


def write(path: Path) -> None:
    old = json.loads(path.read_text())["environments"] if path.exists() else []
    sections = {(part["torch"], part["device"]): part for part in old}
    for device in ("cpu", "cuda")[: 1 + torch.cuda.is_available()]:
        part = section(device)
        sections[part["torch"], part["device"]] = part
    figures = {"environments": [sections[key] for key in sorted(sections)]}
    path.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figures", type=Path)
    write(parser.parse_args().figures)
