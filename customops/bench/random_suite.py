"""The suite of random cases: quantiles of how we stand, and the worst, instead of a table.

All cases are views of one storage. Beside the contenders, *limit* is a plain read of as many bytes
as a case has to move, whole sectors of the input and the output, measured in the same way.
Ratios are times over ours: above 1, ours is faster.

The JSON has the header and the contenders' figures as report.py describes them, a summary, and of
each case `name` (`--case` takes it), `read_bytes` (of whole sectors), `output_bytes`, `plan`,
`limit_seconds`, `best_peer`, and the ratios: `best_peer_ratio`, `torch_ratio`, `limit_ratio` and,
with another build, `before_ratio` (its time over that of this one, both in processes of their
own), and of softmax_max `max_ratio` (the time of `max` over its).
"""

import dataclasses
import math
import multiprocessing
import os
import time
from bisect import bisect_left
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from statistics import median

import torch
from torch import Tensor

from customops import libraries, plans

from . import measure, peers, report
from .builds import Build
from .cases import DTYPES, SOFTMAX
from .peers import OURS, OURS_MAX
from .strided import Arena, Strided

PEERS = {"cpu": ("torch", "torch.max", "numpy"), "cuda": ("torch", "torch.max", "compile")}
LIMIT, NOW, BEFORE = "limit", "now", "before"
QUANTILES = (0, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9)
# What is printed of each ratio: counts below these.
RATIOS = {
    "best_peer_ratio": ("best peer / ours", (0.9, 0.97, 1.0)),
    "limit_ratio": ("limit / ours", (0.6, 0.85, 0.9, 0.97, 1.0)),
    "before_ratio": ("before / now", (0.9, 0.97, 1.0)),
    "max_ratio": ("max / softmax_max", (0.6, 0.75, 0.91, 1.0)),
}
WORST = 20
SECONDS = 0.01  # for each contender and case
SAVE_SECONDS = 10  # between two writes of the JSON


@dataclasses.dataclass
class Setting:
    """What is measured, and how."""

    device: str
    peers: list[str]
    seconds: float
    compile_share: float = 1.0  # of the cases, those in which the compiled peers take part
    processes: int = 1  # that compile beforehand
    before: str | None = None  # folder of another build's libraries

    def builds(self) -> dict[str, str]:
        """Those compared, each in a process of its own: this one's caches are warm."""
        if self.before is None:
            return {}
        return {NOW: str(libraries.cpu.path.parent), BEFORE: self.before}

    def peers_of(self, number: int) -> list[str]:
        """Of the case with this number: those who compile are in every so many cases."""
        compiles = int((number + 1) * self.compile_share) > int(number * self.compile_share)
        return [name for name in self.peers if compiles or name not in peers.COMPILED]


def run(cases: list[Strided], setting: Setting, header: dict, json_path: str | None) -> list[dict]:
    """The rows of all cases, written to the JSON now and then, and at the end in any case."""
    device, rows = setting.device, []
    size = Arena.size_for(cases, device)
    if size * 2.5 > measure.available_bytes(device):
        raise MemoryError(f"the cases need a storage of {size / 2**30:.1f} GiB, and as much again")
    if setting.processes > 1:
        _compile_beforehand(cases, setting)
    with ExitStack() as stack:
        show_progress = stack.enter_context(report.progress(len(cases), every=50))
        if json_path:
            stack.callback(lambda: _save(json_path, header, rows))
        builds = {
            name: stack.enter_context(Build(folder, device, size))
            for name, folder in setting.builds().items()
        }
        arena, saved = Arena(device, size), time.monotonic()
        for number, case in enumerate(cases):
            show_progress(str(case))
            rows.append(_measure(case, arena, setting.peers_of(number), setting, builds))
            if json_path and time.monotonic() - saved > SAVE_SECONDS:
                _save(json_path, header, rows)
                saved = time.monotonic()
    return rows


def _save(path: str, header: dict, rows: list[dict]) -> None:
    report.write_json(path, header | {"summary": summary(rows), "cases": rows})


def _measure(
    case: Strided, arena: Arena, others: list[str], setting: Setting, builds: dict[str, Build]
) -> dict:
    device = setting.device
    x = arena.view(case)
    row = {
        "name": str(case),
        "read_bytes": case.read_bytes(device),
        "output_bytes": case.output_bytes,
        "plan": _plan(case, x),
    }
    try:
        expected = peers.reference(case, x)
    except RuntimeError as error:
        return row | {"skipped": measure.one_line(error), "contenders": {}}
    timed = measure.TIMED[device]
    figures, samplers = {}, {}
    for name in [OURS, *others]:
        try:
            if name in peers.COMPILED:
                torch.compiler.reset()
            contender = peers.CONTENDERS[name](case, x)
            answer = contender.answer(contender.call())
            right = answer is not None and is_right(case, x, answer, expected)
            figures[name] = {"right": None if answer is None else right}
            samplers[name] = timed(contender.call)
        except Exception as error:
            figures[name] = {"error": measure.one_line(error)}
    for name, build in builds.items():
        try:
            samplers[name] = build.sampler(case)
            figures[name] = {"right": None}
        except Exception as error:
            figures[name] = {"error": measure.one_line(error)}
    samplers[LIMIT] = timed(measure.reader(arena.bytes(case.moved_bytes(device))))
    hurried = others if OURS in samplers else ()
    samples = measure.in_turns(samplers, setting.seconds, hurried)

    row["limit_seconds"] = _typical(samples[LIMIT], device)
    for name in figures.keys() & samples.keys():
        figures[name] |= measure.summary_of(samples[name])
        figures[name]["seconds"] = _typical(samples[name], device)
    seconds = {name: f["seconds"] for name, f in figures.items() if "seconds" in f}
    if OURS in seconds:
        row["limit_ratio"] = row["limit_seconds"] / seconds[OURS]
    if OURS_MAX in seconds and OURS in seconds:
        row["max_ratio"] = seconds[OURS_MAX] / seconds[OURS]
    if BEFORE in seconds and NOW in seconds:
        row["before_ratio"] = seconds[BEFORE] / seconds[NOW]
    return row | {"contenders": figures, **measure.compare(figures)}


def _typical(samples: list[float], device: str) -> float:
    """On a CPU the least: few samples are taken, and other programs have a part in them."""
    return min(samples) if device == "cpu" else median(samples)


def is_right(case: Strided, x: Tensor, answer, expected) -> bool:
    """Whether it is torch's, or has a lower index of equal elements, which torch does not promise
    on a GPU."""
    if peers.is_right(answer, expected, case.tolerance):
        return True
    if case.scaled:
        return False
    *values, found = answer if isinstance(answer, tuple) else (answer,)
    *expected_values, torchs = expected if isinstance(expected, tuple) else (expected,)
    found = peers.as_tensor(found)
    pairs = zip(values, expected_values, strict=True)
    if not all(peers.is_right(*pair, case.tolerance) for pair in pairs):
        return False
    if found.shape != torchs.shape:
        return False
    x = peers.with_mask(case, peers.comparable(x), case.make_mask(x.device.type))
    x, dim = peers.with_one_dim(case, x)
    x, dim = (x.flatten(), 0) if dim is None else (x, dim)
    if bool(((found < 0) | (found > torchs)).any()):
        return False
    one, other = (x.gather(dim, i.unsqueeze(dim)) for i in (found, torchs))
    return bool((one == other).all())


def _plan(case: Strided, x: Tensor) -> dict:
    if x.is_cuda:
        gpu = measure.limits_of(torch.cuda.get_device_properties(x.device))
        gpu |= {"mask": case.make_mask("cuda"), "softmax": case.op == SOFTMAX}
        gpu |= measure.stores_of(case)
        plan = plans.cuda_plan(x, case.dims, address=x.data_ptr(), **gpu)
    elif case.has_options or case.op == SOFTMAX:
        return {}
    else:
        threads = torch.get_num_threads()
        plan = plans.cpu_plan(x, case.dims, threads=threads, **measure.stores_of(case))
    fields = dataclasses.asdict(plan)
    if x.is_cuda:  # what each walk was predicted to take, in microseconds
        fields["candidates"] = {c.plan.walk.name: c.microseconds for c in plan.candidates}
    return {key: getattr(value, "name", value) for key, value in fields.items()}


def _compile_beforehand(cases: list[Strided], setting: Setting) -> None:
    """Fills Inductor's cache on disk with several processes: most of a run would pass with it."""
    jobs = [
        (name, str(case), setting.device)
        for number, case in enumerate(cases)
        for name in setting.peers_of(number)
        if name in peers.COMPILED
    ]
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # in each
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(setting.processes, mp_context=context) as pool:
        list(pool.map(_compile, *zip(*jobs, strict=True)))


@torch.no_grad()
def _compile(name: str, text: str, device: str) -> None:
    case = Strided.parse(text)
    storage = torch.zeros(
        case.span_bytes // case.element_bytes, dtype=DTYPES[case.dtype], device=device
    )
    x = storage.as_strided(case.shape, case.strides, case.offset)
    torch.compiler.reset()
    with suppress(Exception):  # which the measurement meets, and reports
        peers.CONTENDERS[name](case, x).call()


def summary(rows: list[dict]) -> dict:
    """For each ratio: of how many cases, its quantiles, and how many are below what."""
    found = {}
    for key, (_, bounds) in RATIOS.items():
        ratios = sorted(row[key] for row in rows if row.get(key))
        if ratios:
            found[key] = {
                "cases": len(ratios),
                "quantiles": {str(q): ratios[math.floor(q * len(ratios))] for q in QUANTILES},
                "below": {str(bound): bisect_left(ratios, bound) for bound in bounds},
            }
    return found


def show(rows: list[dict], title: str) -> None:
    """The worst cases of each ratio, and at the end, where a log is not cut, its quantiles."""
    found = summary(rows)
    for key in found:
        print(f"The worst of {RATIOS[key][0]}:")
        ranked = sorted((row for row in rows if row.get(key)), key=lambda row: row[key])
        for row in ranked[:WORST]:
            print(f"  {_format_ratio(row[key])} × ({_times(row)}): {row['name']}")
    for name in dict.fromkeys(name for row in rows for name in row["contenders"]):
        print(_sentence(name, [row for row in rows if name in row["contenders"]]))
    print()
    head = ["", "cases", *(_quantile_name(q) for q in QUANTILES), "below"]
    cells = [
        [RATIOS[key][0], str(line["cases"])]
        + [_format_ratio(ratio) for ratio in line["quantiles"].values()]
        + [", ".join(f"{bound}: {count}" for bound, count in line["below"].items())]
        for key, line in found.items()
    ]
    report.show_table(head, cells, title)


def _sentence(name: str, rows: list[dict]) -> str:
    figures = [row["contenders"][name] for row in rows]
    wrong = sum(f.get("right") is False for f in figures)
    fastest = sum(row.get("best_peer") == name for row in rows)
    errors = [f["error"] for f in figures if "error" in f]
    line = f"{name}: {len(rows)} cases, wrong in {wrong}"
    line += f", the fastest peer in {fastest}" if fastest else ""
    return line + (f", not run in {len(errors)} ({errors[0]})" if errors else "")


def _quantile_name(q: float) -> str:
    return {0: "least", 0.5: "median"}.get(q, f"{q:.0%}")


def _format_ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def _times(row: dict) -> str:
    seconds = {name: f["seconds"] for name, f in row["contenders"].items() if "seconds" in f}
    seconds[LIMIT] = row["limit_seconds"]
    shown = [name for name in (OURS, row.get("best_peer"), NOW, BEFORE, LIMIT) if name in seconds]
    return ", ".join(f"{name} {report.format_time(seconds[name])}" for name in shown)
