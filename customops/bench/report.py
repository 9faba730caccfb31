"""What is shown and written: a table, a summary and JSON.

The JSON has the machine, the versions, the command line, a summary, and a row for each case: what
it is, `limit_seconds` = (input + mask + output bytes) / `read_bytes_per_second`, and for each
contender `seconds` (median; `quartiles`, `samples`), `share` = limit / seconds, `right` (null: it
gives something less), `workspace_bytes` (at the peak, besides input and output), `method`, or
`error`.
Ratios are times of a peer over ours: above 1, ours is faster.
"""

import argparse
import codecs
import datetime
import importlib.util
import io
import json
import math
import os
import platform
import shlex
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TextIO

import torch

from customops import libraries

from . import peers
from .peers import OURS

LARGE_BYTES = 64_000_000
MOST_SHARE = 1.5  # where all is read; the bandwidth is not quite the same from sample to sample
# For a terminal that has no other characters than those of ASCII.
IN_ASCII = {"†": "!", "‡": "~", "–": "-", "µ": "u", "×": "x", "→": "->"}
LEGEND = (
    "share: of the time that reading the input (and mask) and writing the output takes at the "
    "measured read bandwidth (limit). ratio: the fastest right peer's time over ours.\n"
    "† wrong result. ‡ finds something less, not compared with. – see --json for the reason."
)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in a line, without all of the options before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (--help lists the options)\n")


def seconds(text: str) -> float:
    """Of an option: how long to measure."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 on")
    return number


def count(text: str) -> int:
    """Of an option: how many, at least one."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def check_plot(path: str | None, parser: argparse.ArgumentParser) -> None:
    """Ends the program where no plot can be written there."""
    if path and Path(path).suffix not in (".png", ".svg"):
        parser.error("--plot: a name that ends in .png or .svg")
    if path and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")


def file(path: str) -> str:
    """Of an option: one that can be written, which is left as it is."""
    new = not os.path.exists(path)
    try:
        open(path, "a").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be written: {error.strerror}") from None
    if new:
        Path(path).unlink(missing_ok=True)  # another rank may have
    return path


def add_files(parser: argparse.ArgumentParser) -> None:
    """The options that say where figures go."""
    parser.add_argument("--json", type=file, metavar="FILE", help="write every figure")
    parser.add_argument(
        "--plot",
        type=file,
        metavar="FILE",
        help="write a PNG or SVG, as its name ends (needs matplotlib)",
    )


def use_plain_characters() -> None:
    """Where a terminal cannot show a character, it gets one of ASCII in its place."""

    def replace(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        text = error.object[error.start : error.end]
        return "".join(IN_ASCII.get(character, "?") for character in text), error.end

    codecs.register_error("customops", replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = "ascii" if stream.isatty() and _asks_for_ascii() else None
            stream.reconfigure(encoding=encoding, errors="customops")


def _asks_for_ascii() -> bool:
    """Whether the locale is C by name. Python then writes UTF-8, and may set LC_CTYPE to say so."""
    ctype = os.environ.get("LC_CTYPE", "")
    ctype = "" if ctype.lower().replace("-", "") in ("c.utf8", "utf8") else ctype
    return (os.environ.get("LC_ALL") or ctype or os.environ.get("LANG")) in ("C", "POSIX")


def header(command: list[str], device: str) -> dict:
    """What the figures depend on; `command` is what comes after `python -m`."""
    versions = {"python": platform.python_version(), "cuda": torch.version.cuda}
    return {
        "command": shlex.join(["python", "-m", *command]),
        "date": datetime.date.today().isoformat(),
        "device": device,
        "machine": _machine(device),
        "versions": versions | peers.versions(),
    }


def where(header: dict) -> str:
    """The machine and the versions, in a title."""
    machine, versions = header["machine"], header["versions"]
    place = machine.get("gpu") or (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['cpu_kernels']} kernels"
    )
    return f"on {place}, torch {versions['torch']}, customops {versions['customops']}"


def _machine(device: str) -> dict:
    found = {
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "cpu_kernels": libraries.cpu.ask("reduceops_cpu_isa"),
    }
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": gpu.name,
            "gpu_memory_bytes": gpu.total_memory,
            "multiprocessors": gpu.multi_processor_count,
            "convolutions_not_fused": libraries.cuda.ask("reduceops_cuda_not_fused"),
        }
    return found


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def write_json(path: str, figures: dict) -> None:
    Path(path).write_text(json.dumps(figures, indent=1) + "\n")


def summary(rows: list[dict]) -> list[dict]:
    """For each number of threads, over all inputs and over the large ones: geometric means of the
    ratios, our smallest share of the limit, and the cases in which a peer is faster."""
    measured = [row for row in rows if "seconds" in row["contenders"].get(OURS, {})]
    return [
        {"threads": threads, "inputs": inputs, **_summary_of(chosen)}
        for threads in dict.fromkeys(row["threads"] for row in rows)
        for inputs, least in (("all", 0), ("large", LARGE_BYTES))
        if (chosen := _chosen(measured, threads, least))
    ]


def _chosen(rows: list[dict], threads: int, least_bytes: int) -> list[dict]:
    return [r for r in rows if r["threads"] == threads and r["input_bytes"] >= least_bytes]


def _summary_of(rows: list[dict]) -> dict:
    shares = [r["contenders"][OURS]["share"] for r in rows if "share" in r["contenders"][OURS]]
    return {
        "cases": len(rows),
        "torch_ratio": _geometric_mean(row["torch_ratio"] for row in rows),
        "best_peer_ratio": _geometric_mean(row["best_peer_ratio"] for row in rows),
        "smallest_share": min(shares, default=None),
        "slower_than_a_peer": [row["name"] for row in rows if (row["best_peer_ratio"] or 1) < 1],
    }


def _geometric_mean(ratios: Iterable[float | None]) -> float | None:
    known = [ratio for ratio in ratios if ratio]
    return statistics.geometric_mean(known) if known else None


def show(rows: list[dict], names: list[str], title: str) -> None:
    """The table and the summary, without the peers' times where a terminal is too narrow."""
    header, cells = _table(rows, names)
    if _on_terminal(sys.stdout) and _width(header, cells) > shutil.get_terminal_size().columns:
        header, cells = _table(rows, [])
        title += " (a wider terminal shows every peer)"
    show_table(header, cells, title)
    print(LEGEND)
    for row in rows:
        if "skipped" in row:
            print(f"not measured: {row['name']}: {row['skipped']}")
        all_read = row["data"] != "nan" and row["dtype"] != "bool"
        if all_read and row["contenders"].get(OURS, {}).get("share", 0) > MOST_SHARE:
            print(f"warning: {row['name']}: the bandwidth measured is too low (a busy machine?)")
    for line in summary(rows):
        print(_sentence(line))


def show_table(header: list[str], cells: list[list[str]], title: str) -> None:
    """As Markdown where the output is no terminal, or without rich."""
    if not _on_terminal(sys.stdout):
        print(f"{title}\n")
        for row in (header, ["---"] + ["---:"] * (len(header) - 1), *cells):
            print("|", " | ".join(row), "|")
        print()
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for i, name in enumerate(header):
        table.add_column(name, justify="right" if i else "left", no_wrap=i > 0)
    for row in cells:
        table.add_row(*row)
    Console().print(table)


def _on_terminal(stream: TextIO) -> bool:
    return stream.isatty() and importlib.util.find_spec("rich") is not None


@contextmanager
def progress(total: int, every: int = 1) -> Iterator[Callable[[str], None]]:
    """A function to call with the name of each step, on stderr; in a log, of `every`-th."""
    if not _on_terminal(sys.stderr):
        numbers = iter(range(1, total + 1))

        def show_line(name: str) -> None:
            if (number := next(numbers)) % every == 0:
                print(f"[{number}/{total}] {name}", file=sys.stderr, flush=True)

        yield show_line
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = MofNCompleteColumn(), TimeElapsedColumn(), *Progress.get_default_columns()[:2]
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        done = iter(range(total))
        yield lambda name: bar.update(task, description=name, completed=next(done))
        bar.update(task, description="", completed=total)


def _width(header: list[str], cells: list[list[str]]) -> int:
    """Of the table on a terminal, in characters."""
    columns = zip(header, *cells, strict=True)
    return 1 + sum(max(map(len, column)) + 3 for column in columns)


def _sentence(line: dict) -> str:
    large = f" of at least {LARGE_BYTES // 10**6} MB" if line["inputs"] == "large" else ""
    share, slower = line["smallest_share"], line["slower_than_a_peer"]
    over_torch, over_best = (format_ratio(line[f"{of}_ratio"]) for of in ("torch", "best_peer"))
    inputs = f"{line['cases']} input{'s' * (line['cases'] > 1)}"
    return (
        f"{inputs}{large}{on_threads(line)}: geometric means "
        f"{over_torch} torch, {over_best} the best peer; "
        + (f"smallest share {share:.2f}; " if share else "")
        + f"a peer is faster in {len(slower)}"
        + (f": {'; '.join(slower)}" if slower else "")
    )


def on_threads(row: dict) -> str:
    """`, 2 threads` for a CPU."""
    threads = row["threads"]
    return "" if threads is None else f", {threads} thread{'s' * (threads > 1)}"


def _table(rows: list[dict], names: list[str]) -> tuple[list[str], list[list[str]]]:
    others = [name for name in names if name != OURS]
    header = ["case", "limit", OURS, "share", "workspace", *others, "ratio", "best peer"]
    cells = []
    for row in rows:
        figures = row["contenders"]
        ours = figures.get(OURS, {})
        workspace = ours.get("workspace_bytes")
        cells.append(
            [
                row["name"] + on_threads(row),
                format_time(row.get("limit_seconds")),
                _cell(ours),
                f"{ours['share']:.2f}" if "share" in ours else "–",
                "–" if workspace is None else f"{workspace / 2**20:.2f} MiB",
                *(_cell(figures.get(name, {})) for name in others),
                format_ratio(row.get("best_peer_ratio")),
                row.get("best_peer") or "–",
            ]
        )
    return header, cells


def _cell(figures: dict) -> str:
    if "seconds" not in figures:
        return "–"
    return format_time(figures["seconds"]) + {True: "", False: "†", None: "‡"}[figures["right"]]


def format_time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    value, unit = (seconds * 1e6, "µs") if seconds < 1e-3 else (seconds * 1e3, "ms")
    digits = max(0, 2 - math.floor(math.log10(value))) if value else 0
    return f"{value:.{min(digits, 3)}f} {unit}"


def format_ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} ×"
