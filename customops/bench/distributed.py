"""Times the argmax of logits whose vocabulary is sharded over ranks, beside what others do.

    torchrun --nproc-per-node 2 -m customops.bench.distributed --device cuda

Every rank checks every answer. The times are of the slowest rank; on a GPU of calls queued by
Python (eager) and of a CUDA graph's replays, on a CPU of a few calls. The exit status is 1 if a
result of ours is wrong.

The JSON has what the figures depend on and a row for each batch, vocabulary and mode: for each
contender `seconds` (median; `quartiles`, `samples`), `wire_bytes` (received by a rank in a call),
`right`, or `error`.
"""

import argparse
import datetime
import os
import shlex
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import customops
from customops import distributed
from customops.distributed.symmetric import CAPACITY

from . import measure, report

OURS = "ours"
all_gather_single = getattr(dist, "all_gather_single", None)  # its name from torch 2.13 on
all_gather_single = all_gather_single or dist.all_gather_into_tensor
CALLS = {"cpu": 5, "cuda": 50}  # in a sample
WARMUP = 5


class Contender(NamedTuple):
    call: Callable[[], Tensor]
    wire_bytes: int  # received by a rank


def contenders(shard: Tensor, world: int, mesh, direct) -> dict[str, Contender]:
    """By name, ours first; `shard` is (batch, vocabulary / world). `direct`: a group that has
    symmetric memory, or None."""
    batch, own = shard.shape
    gathered = shard.new_empty((world * batch, own))
    by_rank = gathered.view(world, batch, own).movedim(0, 1)

    def gather_then_torch() -> Tensor:
        all_gather_single(gathered, shard)
        return by_rank.reshape(batch, world * own).argmax(-1)

    def gather_then_ours() -> Tensor:
        all_gather_single(gathered, shard)
        return customops.argmax(by_rank, [1, 2])

    def of_dtensor(argmax: Callable) -> Callable[[], Tensor]:
        return lambda: argmax(DTensor.from_local(shard, mesh, [Shard(1)]), -1).to_local()

    # Without a collective each word is sent as two.
    pairs = (world - 1) * 8 * (1 + batch * (2 if shard.element_size() == 8 else 1))
    logits = (world - 1) * shard.nbytes
    ours = {OURS: Contender(lambda: distributed.argmax(shard, -1), pairs)}
    if direct is not None:
        call = partial(distributed.argmax, shard, -1, group=direct)
        fits = pairs <= (world - 1) * 8 * CAPACITY
        ours["ours, symmetric memory"] = Contender(call, pairs * (2 if fits else 1))
    return ours | {
        "ours, DTensor": Contender(of_dtensor(customops.argmax), pairs),
        "all-gather + torch": Contender(gather_then_torch, logits),
        "all-gather + ours": Contender(gather_then_ours, logits),
        # An element and an int64 for each row of each rank.
        "torch, DTensor": Contender(
            of_dtensor(torch.argmax), (world - 1) * batch * (8 + shard.element_size())
        ),
    }


def logits(batch: int, vocabulary: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The same on all ranks, with ties as 16-bit floats have."""
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(batch, vocabulary, device=device, generator=generator).to(dtype)


def first_largest(x: Tensor) -> Tensor:
    """The answer, by comparisons: the first of the elements that equal the largest."""
    return torch.stack([(row == row.max()).nonzero()[0, 0] for row in x])


def eager(call: Callable, device: torch.device) -> Callable[[], float]:
    """A sampler of seconds per call, with all ranks at it."""
    calls = CALLS[device.type]

    def sample() -> float:
        dist.barrier()  # ranks begin together, or the first would wait for the last
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / calls

    return sample


def replayed(call: Callable, device: torch.device) -> Callable[[], float]:
    """The same of replays of a CUDA graph that has several calls."""
    graph, calls = torch.cuda.CUDAGraph(), CALLS[device.type]
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(calls):
            call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample() -> float:
        graph.replay()  # the ranks begin the next one together, as far as a collective can tell
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / calls

    return sample


MODES = {"eager": eager, "graph": replayed}


def slowest(seconds: list[float], device: torch.device) -> list[float]:
    """Each sample of the rank that took longest."""
    times = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


def measured(shape, dtype, mode: str, samples: int, device, mesh, direct) -> dict:
    """A row of the figures."""
    batch, vocabulary = shape
    rank, world = dist.get_rank(), dist.get_world_size()
    whole = logits(batch, vocabulary, dtype, device)
    expected = first_largest(whole)
    shard = whole.chunk(world, 1)[rank].clone(memory_format=torch.contiguous_format)
    del whole
    figures, samplers = {}, {}
    for name, contender in contenders(shard, world, mesh, direct).items():
        try:
            for _ in range(WARMUP):
                result = contender.call()
            wrong = torch.tensor([not torch.equal(result, expected)], device=device).int()
            dist.all_reduce(wrong)
            right = {"right": not wrong.item(), "wire_bytes": contender.wire_bytes}
            samplers[name] = MODES[mode](contender.call, device)
            figures[name] = right
        except Exception as error:  # the same on all ranks
            figures[name] = {"error": measure.one_line(error)}
    times = {name: [] for name in samplers}
    for _ in range(samples):
        for name, sample in samplers.items():
            times[name].append(sample())
    for name, seconds in times.items():
        figures[name] |= measure.summary_of(slowest(seconds, device))
    return {"batch": batch, "vocabulary": vocabulary, "mode": mode, "contenders": figures}


def show(rows: list[dict], title: str) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row["contenders"]))
    cells = []
    for row in rows:
        figures = row["contenders"]
        texts = []
        for name in names:
            found = figures[name]
            wrong = "" if found.get("right", True) else "†"
            texts.append(report.format_time(found.get("seconds")) + wrong)
        times = [f["seconds"] for n, f in figures.items() if f.get("right") and "ours" not in n]
        ours = figures[OURS].get("seconds")
        ratio = min(times) / ours if times and ours else None
        case = f"({row['batch']}, {row['vocabulary']}) {row['mode']}"
        cells.append([case, *texts, report.format_ratio(ratio), wire(figures)])
    report.show_table(["case", *names, "ratio", "bytes received"], cells, title)
    print(
        "ratio: the fastest right peer's time over ours. bytes: ours / all-gather. † wrong result."
    )


def wire(figures: dict) -> str:
    both = (figures[name].get("wire_bytes") for name in (OURS, "all-gather + torch"))
    return " / ".join(f"{count:,}" if count is not None else "–" for count in both)


def plot(path: str, rows: list[dict], title: str) -> None:
    """A panel for each vocabulary and mode, times against the batch."""
    from matplotlib.figure import Figure

    panels: dict[tuple, list[dict]] = {}
    for row in rows:
        panels.setdefault((row["mode"], row["vocabulary"]), []).append(row)
    modes = list(dict.fromkeys(mode for mode, _ in panels))
    columns = len(panels) // len(modes)
    figure = Figure(layout="constrained", figsize=(1 + 4.2 * columns, 4.2 * len(modes)))
    axes = figure.subplots(len(modes), columns, squeeze=False, sharex=True, sharey=True)
    for axis, ((mode, vocabulary), chosen) in zip(axes.flat, panels.items(), strict=True):
        for name in chosen[0]["contenders"]:
            points = [(r["batch"], r["contenders"][name].get("seconds")) for r in chosen]
            points = [(batch, seconds * 1e6) for batch, seconds in points if seconds]
            style = {"linewidth": 2.5, "zorder": 3} if name == OURS else {"linewidth": 1.2}
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name, **style)
        axis.set(title=f"vocabulary {vocabulary:,}, {mode}", xlabel="batch", yscale="log")
        axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
    for row in axes:
        row[0].set(ylabel="µs")
    lines, names = axes[0][0].get_legend_handles_labels()
    figure.legend(lines, names, frameon=False, loc="outside lower center", ncols=len(names))
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def _numbers(text: str) -> list[int]:
    return [report.count(word) for word in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = report.Parser(
        prog="torchrun --nproc-per-node N -m customops.bench.distributed",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--batch", type=_numbers, default=[1, 8, 64, 256, 512], metavar="N,M", help="rows of logits"
    )
    parser.add_argument(
        "--vocabulary",
        type=_numbers,
        default=[32_000, 151_936, 262_144],
        metavar="N,M",
        help="logits of a row, on all ranks together",
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument(
        "--modes", default=None, metavar="A,B", help="of eager and graph (a CUDA graph)"
    )
    parser.add_argument("--samples", type=int, default=30, help="of each contender, at least 1")
    report.add_files(parser)
    return parser


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    modes = (options.modes or ("eager,graph" if options.device == "cuda" else "eager")).split(",")
    if not set(modes) <= set(MODES) or (options.device == "cpu" and "graph" in modes):
        parser.error(f"--modes: {options.modes} on {options.device}")
    if options.samples < 1:
        parser.error("--samples: at least 1")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU")
    report.check_plot(options.plot, parser)
    if "RANK" not in os.environ:
        parser.error(f"start it by torchrun, as in {__doc__.splitlines()[2].strip()}")
    if min(options.vocabulary) < (world := int(os.environ["WORLD_SIZE"])):
        parser.error(f"--vocabulary: at least one logit of each of {world} ranks")
    report.use_plain_characters()
    device = torch.device(options.device)
    if options.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    try:
        return _run(options, modes, device, sys.argv[1:] if arguments is None else arguments)
    finally:
        dist.destroy_process_group()


def _run(options: argparse.Namespace, modes: list[str], device, arguments: list[str]) -> int:
    world, first = dist.get_world_size(), dist.get_rank() == 0
    mesh = init_device_mesh(device.type, (world,))
    direct = dist.new_group() if device.type == "cuda" else None
    if direct is not None and not distributed.enable_symmetric_memory(direct, timeout=60):
        direct = None
    dtype = getattr(torch, options.dtype)
    rows = []
    for mode in modes:
        for vocabulary in options.vocabulary:
            vocabulary -= vocabulary % world
            for batch in options.batch:
                if first:
                    print(f"({batch}, {vocabulary}) {mode}", file=sys.stderr, flush=True)
                shape = (batch, vocabulary)
                row = measured(shape, dtype, mode, options.samples, device, mesh, direct)
                rows.append(row)
    ours = (f for row in rows for name, f in row["contenders"].items() if "ours" in name)
    right = all(figures.get("right") for figures in ours)
    if first:
        command = ["torchrun", "--nproc-per-node", str(world), "-m", "customops.bench.distributed"]
        header = report.header([], device.type) | {"command": shlex.join([*command, *arguments])}
        header |= {"ranks": world, "dtype": options.dtype, "date": str(datetime.date.today())}
        header |= {"backend": dist.get_backend()}
        title = f"argmax of {options.dtype} logits over {world} ranks, {report.where(header)}"
        show(rows, title)
        if options.json:
            report.write_json(options.json, header | {"cases": rows})
        if options.plot:
            plot(options.plot, rows, title)
    return 0 if right else 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not by Python's end, at which a thread of gloo that still holds a tensor aborts (torch 2.13):
    # DTensor keeps a group, and so its threads, for good.
    os._exit(status)
