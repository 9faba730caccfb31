"""The suite of compiled graphs: producers × reductions × layouts, ours beside torch's own.

Of each case the same graph is compiled with torch's reduction (`compile`) and with ours: as
customops.inductor chooses (`ours`), and with `--peers loop,kernel` with every reduction a loop or a
kernel. Ratios are times of `compile` over ours: above 1, ours is faster.

The JSON has the header and the contenders' figures as report.py describes them, a summary, and of
each case `name`, `chosen` (what became of the reductions, and why), `compile_ratio`, `loop_ratio`
and `kernel_ratio`. The first call of each contender, which compiles, is `first_call_seconds`; the
summary has the ratio of all of ours to all of torch's, of use with Inductor's caches off
(TORCHINDUCTOR_FORCE_DISABLE_CACHES=1).
"""

import dataclasses
import time
import types
from collections import Counter
from collections.abc import Callable
from statistics import geometric_mean

import torch
import torch.nn.functional as F
from torch import Tensor

import customops

from . import measure, report
from .peers import OURS

OPS = ("argmax", "max", "scale_min")
COMPILE, LOOP, KERNEL = "compile", "loop", "kernel"
PEERS = (LOOP, KERNEL)
GOAL = 0.97
SECONDS = 0.1


def _argmax(ours, x, dim):
    return customops.argmax(x, dim) if ours else torch.argmax(x, dim)


def _max(ours, x, dim):
    return tuple(customops.max(x, dim) if ours else torch.max(x, dim))


def _scale_min(ours, x, dim):
    return customops.scale_min(x, 2.0, dim, False) if ours else torch.min(x * 2.0, dim)[0]


REDUCE = {"argmax": _argmax, "max": _max, "scale_min": _scale_min}


def _agreement(ours, x, dim, target):
    """A consumer that is fused, too."""
    return (_argmax(ours, x, dim) == target).float().mean()


def _two_reductions(ours, x, dim):
    least = customops.argmin(x, dim) if ours else torch.argmin(x, dim)
    return _argmax(ours, x, dim), least


def _and_softmax(ours, x, dim):
    return _argmax(ours, x, dim), torch.softmax(x, dim)


def _and_logsumexp(ours, x, dim):
    return _argmax(ours, x, dim), x.logsumexp(dim)


def _softmax_max(ours, x, dim):
    return tuple(customops.softmax_max(x, dim) if ours else torch.softmax(x, dim).max(dim))


def _upsample(x):
    return F.interpolate(x, scale_factor=4, mode="bilinear")


def _values_of_max(ours, x, dim):
    return customops.max(x, dim)[0] if ours else torch.max(x, dim)[0]


def _reversed(x):
    return x[torch.arange(x.size(0) - 1, -1, -1, device=x.device)]


def _nothing(x):
    return x


@dataclasses.dataclass(frozen=True)
class Producer:
    """What is computed before a reduction over dim 1; `cpu` and `cuda` are shapes of its input."""

    name: str
    function: Callable[[Tensor], Tensor]
    cuda: tuple[int, ...]
    cpu: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    dynamic: bool = False


IMAGES = {"cuda": (16, 64, 254, 254), "cpu": (2, 64, 126, 126)}
ROWS = {"cuda": (64, 151936), "cpu": (8, 151936)}
SHORT_ROWS = {"cuda": (65536, 1024), "cpu": (2048, 1024)}
LABELS = {"cuda": (8, 150, 512, 512), "cpu": (1, 150, 128, 128)}
F16, BF16, F64 = torch.float16, torch.bfloat16, torch.float64

PRODUCERS = (
    Producer("relu", torch.relu, **IMAGES),
    Producer("x * 1.5 + 0.25", lambda x: x * 1.5 + 0.25, **IMAGES),
    Producer("bilinear upsampling", _upsample, cuda=(4, 19, 128, 256), cpu=(1, 19, 64, 64)),
    Producer("masked_fill", lambda x: x.masked_fill(x > 2.5, -1e9), **ROWS),
    Producer("float / 0.7", lambda x: x.float() / 0.7, **ROWS, dtype=BF16),
    Producer("+ 1", lambda x: x + 1, **ROWS),
    Producer("gelu", F.gelu, **SHORT_ROWS),
    Producer("float16 relu", torch.relu, **IMAGES, dtype=F16),
    Producer("bfloat16 + 1", lambda x: x + 1, **SHORT_ROWS, dtype=BF16),
    Producer("float64 + 1", lambda x: x + 1, cuda=(8192, 4096), cpu=(512, 2048), dtype=F64),
    Producer("relu channels_last", torch.relu, **LABELS, channels_last=True),
    Producer("+ 1 of many classes", lambda x: x + 1, **LABELS),
    Producer("softmax", lambda x: torch.softmax(x, 1), cuda=(65536, 1000), cpu=(2048, 1000)),
    Producer("gather", _reversed, cuda=(32768, 2048), cpu=(1024, 2048)),
    Producer("/ norm of another dim", lambda x: x / x.norm(dim=2, keepdim=True), **IMAGES),
    Producer("sigmoid, short rows", torch.sigmoid, cuda=(1 << 20, 32), cpu=(1 << 16, 32)),
    Producer("tanh of any batch", torch.tanh, **SHORT_ROWS, dynamic=True),
    # What is reduced is an input of the graph: it is in memory, and something else may read it.
    Producer("short rows", _nothing, **SHORT_ROWS),
    Producer("long rows", _nothing, **ROWS),
    Producer("many classes", _nothing, **LABELS),
    Producer("few logits", _nothing, cuda=(64, 10), cpu=(64, 10)),
)


@dataclasses.dataclass(frozen=True)
class Case:
    producer: Producer
    graph: str  # a key of GRAPHS

    def __str__(self) -> str:
        return f"{self.producer.name} -> {self.graph}"

    def make_inputs(self, device: str) -> list[Tensor]:
        shape = getattr(self.producer, device)
        generator = torch.Generator(device).manual_seed(0)
        x = torch.randn(shape, device=device, generator=generator).to(self.producer.dtype)
        if self.producer.channels_last:
            x = x.to(memory_format=torch.channels_last)
        inputs = [x]
        if self.graph == "argmax == target":
            inputs.append(self.producer.function(x[:1]).argmax(1).expand(x.size(0), *x.shape[2:]))
        return inputs

    def function(self, ours: bool) -> Callable:
        produce, graph = self.producer.function, GRAPHS[self.graph]

        def call(x, *more):
            return graph(ours, produce(x), 1, *more)

        # A code of its own: torch.compile counts what it compiles for each.
        code = call.__code__.replace(co_name=f"call_{'ours' if ours else 'torchs'}")
        return types.FunctionType(code, call.__globals__, None, None, call.__closure__)


def _and_producer(ours, x, dim):
    return _argmax(ours, x, dim), x


GRAPHS = {
    **REDUCE,
    "argmax == target": _agreement,
    "argmax and argmin": _two_reductions,
    "argmax and itself": _and_producer,
    "argmax and softmax": _and_softmax,
    "argmax and logsumexp": _and_logsumexp,
    "values of max": _values_of_max,
    "softmax_max": _softmax_max,
}
_OF_INPUTS = ("argmax and softmax", "argmax and logsumexp")


def _is_case(producer: Producer, graph: str) -> bool:
    if producer.function is _nothing:
        return graph in (*_OF_INPUTS, "argmax == target", "argmax and argmin")
    return graph in REDUCE or (producer.name in ("relu", "+ 1", "gelu") and graph not in _OF_INPUTS)


CASES = tuple(
    Case(producer, graph) for producer in PRODUCERS for graph in GRAPHS if _is_case(producer, graph)
)


def run(
    cases: list[Case],
    device: str,
    forced: list[str],
    seconds: float,
    header: dict,
    json_path: str | None,
) -> list[dict]:
    rows = []
    with report.progress(len(cases)) as show_progress:
        for number, case in enumerate(cases):
            show_progress(str(case))
            # What the first to be compiled pays for all, either pays in turn.
            names = (OURS, COMPILE) if number % 2 else (COMPILE, OURS)
            rows.append(_measure(case, device, (*names, *forced), seconds))
            measure.free()
            if json_path:  # after every case: what is measured is not lost
                figures = header | {"summary": summary(rows), "cases": rows}
                report.write_json(json_path, figures)
    return rows


def _measure(case: Case, device: str, names: tuple[str, ...], seconds: float) -> dict:
    inductor = customops.inductor
    inputs = case.make_inputs(device)
    figures, samplers, chosen = {}, {}, []
    # Eager mode rounds after every operation, so that its answer may be another.
    expected = case.function(ours=False)(*inputs)
    before = inductor.prefer
    torch.compiler.reset()
    try:
        for name in names:
            inductor.prefer = name if name in PEERS else "auto"
            function = torch.compile(
                case.function(name != COMPILE), fullgraph=True, dynamic=case.producer.dynamic
            )
            try:
                earlier = Counter(inductor.rewrites())
                start = time.perf_counter()
                answer = function(*inputs)
                figures[name] = {
                    "first_call_seconds": time.perf_counter() - start,
                    "right": _is_right(case, inputs, answer, expected),
                }
                if name == OURS:
                    chosen = list((Counter(inductor.rewrites()) - earlier).elements())
                call = lambda function=function: function(*inputs)  # noqa: E731
                samplers[name] = measure.TIMED[device](call)
            except Exception as error:
                figures[name] = {"error": measure.one_line(error)}
    finally:
        inductor.prefer = before
    for name, taken in measure.in_turns(samplers, seconds).items():
        figures[name] |= measure.summary_of(taken)
    return {
        "name": str(case),
        "shape": list(inputs[0].shape),
        "chosen": chosen,
        **{f"{name}_ratio": _ratio(figures, name) for name in names if name != OURS},
        "contenders": figures,
    }


def _ratio(figures: dict, name: str) -> float | None:
    if "seconds" not in figures[name] or "seconds" not in figures[OURS]:
        return None
    return figures[name]["seconds"] / figures[OURS]["seconds"]


def _is_right(case: Case, inputs: list[Tensor], answer, expected) -> bool:
    """The index of an element as extreme as eager mode's, but for the last bits."""
    x = case.producer.function(inputs[0])
    tolerance = {F16: 2e-3, BF16: 2e-2}.get(x.dtype, 1e-5)
    answer = answer if isinstance(answer, tuple) else (answer,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for a, e in zip(answer, expected, strict=True):
        if a.dtype == torch.int64:
            a, e = (x.gather(1, index.unsqueeze(1)) for index in (a, e))
        if not torch.allclose(a, e, rtol=tolerance, atol=tolerance):
            return False
    return True


def summary(rows: list[dict]) -> dict:
    ratios = {row["name"]: row["compile_ratio"] for row in rows if row["compile_ratio"]}
    first = {
        name: sum(row["contenders"][name].get("first_call_seconds", 0) for row in rows)
        for name in (OURS, COMPILE)
    }
    return {
        "first_call_ratio": first[OURS] / first[COMPILE] if first[COMPILE] else None,
        "cases": len(ratios),
        "geometric_mean": geometric_mean(ratios.values()) if ratios else None,
        "smallest": min(ratios.values(), default=None),
        f"below_{GOAL}": [name for name, ratio in ratios.items() if ratio < GOAL],
    }


def show(rows: list[dict], title: str) -> None:
    names = [name for name in (OURS, COMPILE, *PEERS) if name in rows[0]["contenders"]]
    header = ["case", *(f"{name} µs" for name in names), "compile / ours", "chosen"]
    cells = []
    for row in rows:
        times = [row["contenders"][name].get("seconds") for name in names]
        ratio = row["compile_ratio"]
        chosen = "; ".join(dict.fromkeys(line.partition(" -> ")[2] for line in row["chosen"]))
        figures = [f"{1e6 * time:.1f}" if time else "–" for time in times]
        cells.append([row["name"], *figures, f"{ratio:.2f}" if ratio else "–", chosen])
    report.show_table(header, cells, title)
    found = summary(rows)
    if found["cases"]:
        print(
            f"{found['cases']} cases: geometric mean {found['geometric_mean']:.2f} × compiled "
            f"torch, smallest {found['smallest']:.2f}, {len(found[f'below_{GOAL}'])} below {GOAL}; "
            f"first calls, all together, {found['first_call_ratio']:.2f} × those of torch"
        )
