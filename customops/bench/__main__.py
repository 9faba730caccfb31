"""Times the operators beside their peers and checks every result.

The exit status is 1 if a result of ours is wrong, and 2 for arguments that make no sense, or if no
case could be measured.
"""

import argparse
import itertools
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from customops import libraries

from . import (
    cases,
    compiled_suite,
    convolutions,
    measure,
    peers,
    plot,
    random_suite,
    report,
    sampler,
)
from .strided import Strided

RANDOM, COMPILED = "random", "compiled"


def _parser() -> argparse.ArgumentParser:
    parser = report.Parser(prog="python -m customops.bench", description=__doc__)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cpu (the default) or cuda"
    )
    parser.add_argument(
        "--suite",
        choices=(*cases.SUITES, RANDOM, COMPILED),
        default="sweep",
        help="what to measure: sweep (the default), large and small inputs of many kinds; seeds, "
        "shapes of KernelBench; latency, calls of tiny inputs; scaling, from 2^10 elements on; "
        "options, masks, index dtypes and softmax_max; fused, convolutions; compiled, what "
        "torch.compile makes of it; random, see below",
    )
    parser.add_argument(
        "--case",
        type=_case,
        action="append",
        help="this instead of a suite's, as 'argmax (2, 21, 64, 64) dim=1 float32 channels_last' "
        "(of several dims dim=(2, 3)), or, of the random suite, as --list prints it",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="TEXT",
        help="cases with this in their name; again for others",
    )
    parser.add_argument(
        "--op",
        choices=(*cases.OPS, cases.SOFTMAX),
        action="append",
        help="this instead of a case's",
    )
    parser.add_argument("--dtype", choices=cases.DTYPES, help="this instead of a case's")
    known = [name for name in peers.CONTENDERS if name not in (peers.OURS, peers.OPERATOR)]
    known.append(convolutions.APART)
    parser.add_argument(
        "--peers",
        type=_list_of([*known, *compiled_suite.PEERS]),
        metavar="A,B",
        help=f"any of {_words(known)}; by default {_default_peers()}; of --suite compiled: "
        f"{', '.join(compiled_suite.PEERS)}",
    )
    parser.add_argument(
        "--threads",
        default="default",
        metavar="N,M",
        help="on a CPU: 1,default runs every case with each",
    )
    parser.add_argument(
        "--seconds",
        type=report.seconds,
        help="for each contender and case (default: 1; random: 0.01)",
    )
    report.add_files(parser)
    of_random = parser.add_argument_group(
        "the random suite", "shapes and layouts that nobody listed; prints quantiles and the worst"
    )
    of_random.add_argument("--seed", type=int, default=0, help="of what is drawn (default: 0)")
    of_random.add_argument(
        "--cases", type=int, default=100, metavar="N", help="how many (default: 100)"
    )
    of_random.add_argument(
        "--options",
        action="store_true",
        help="draw calls with a mask in any order of memory, and of softmax_max, too",
    )
    of_random.add_argument("--list", action="store_true", help="print the cases, and measure none")
    of_random.add_argument(
        "--compile-share",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="of the cases, in which torch.compile takes part: it takes seconds for each (default: "
        "0.2)",
    )
    of_random.add_argument(
        "--compile-processes",
        type=int,
        default=1,
        metavar="N",
        help="compile with so many processes before measuring (default: 1, while measuring)",
    )
    of_random.add_argument(
        "--before",
        metavar="FOLDER",
        help="also measure the libraries in this folder, another build's, in turns with these; the "
        "cases of random data of another suite, too, which are then shown as random ones are",
    )
    return parser


def _words(names: Iterable[str]) -> str:
    """As one writes them in a shell: a name may have a space."""
    return ", ".join(map(shlex.quote, names))


def _list_of(known: list[str]):
    def convert(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {_words(known)}")
        return names

    return convert


def _case(text: str) -> cases.Case | Strided:
    kind = Strided if text.startswith(Strided.__name__) else cases.Case
    kind = convolutions.Convolution if text.startswith("conv2d_") else kind
    try:
        return kind.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _default_peers() -> str:
    return "; ".join(
        f"{device}: {','.join(names)} (random: {','.join(random_suite.PEERS[device])})"
        for device, names in peers.PEERS.items()
    )


def _thread_counts(text: str, device: str, parser: argparse.ArgumentParser) -> list[int | None]:
    if device == "cuda":
        return [None]
    counts = []
    for word in text.split(","):
        if word != "default" and not (word.isdecimal() and int(word) > 0):
            parser.error(f"--threads: {word!r} is neither a number of threads nor `default`")
        counts.append(torch.get_num_threads() if word == "default" else int(word))
    return counts


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """torch's number of threads, for the block; None leaves it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def use_one_gpu() -> None:
    """Hides all visible GPUs but the first: JAX would leave another one current, and events are
    recorded on the current one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[0]


def _check_options(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Before anything is measured: what would fail only at the end."""
    uses_gpu = options.device == "cuda" and not options.list
    if uses_gpu and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU")
    if uses_gpu and (why_not := libraries.why_not_on(torch.device("cuda"))):
        parser.error(f"--device cuda: {why_not}")
    if options.case and (options.only or options.op or options.dtype):
        parser.error("--case says it all: not with --only, --op or --dtype")
    of_random = ["seed", "cases", "options", "list", "compile_share"]
    of_random += [] if options.before else ["compile_processes"]
    given = (name for name in of_random if getattr(options, name) != parser.get_default(name))
    if options.suite != RANDOM and (name := next(given, None)):
        parser.error(f"--{name.replace('_', '-')}: add --suite random, which it is for")
    convolves = any(isinstance(case, convolutions.Convolution) for case in options.case or ())
    convolves |= options.suite == convolutions.SUITE
    if convolutions.APART in (options.peers or ()) and not convolves:
        parser.error(f"--peers {convolutions.APART}: add --suite {convolutions.SUITE}")
    if options.suite != COMPILED and set(options.peers or ()) & {*compiled_suite.PEERS}:
        parser.error(f"--peers {' and '.join(compiled_suite.PEERS)}: add --suite compiled")
    if options.suite == COMPILED:
        _check_compiled_options(options, parser)
    elif options.suite == RANDOM:
        _check_random_options(options, parser)
    elif any(isinstance(case, Strided) for case in options.case or ()):
        parser.error("--case Strided(...): add --suite random, which measures such cases")
    if options.before:
        library = libraries.cuda if options.device == "cuda" else libraries.cpu
        if not (path := Path(options.before, library.path.name)).exists():
            parser.error(f"--before: there is no {path}")
        if options.plot:
            parser.error("--before: not with --plot")
    report.check_plot(options.plot, parser)


def _check_random_options(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    if options.only or options.op or options.dtype or options.plot:
        parser.error("--suite random: not with --only, --op, --dtype or --plot")
    if not all(isinstance(case, Strided) for case in options.case or ()):
        parser.error("--suite random: a --case Strided(...), as --list prints it")
    if options.cases < 1 or options.compile_processes < 1:
        parser.error("--cases and --compile-processes: at least 1")
    if not 0 <= options.compile_share <= 1:
        parser.error("--compile-share: from 0 to 1")


def _check_compiled_options(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    given = (options.case, options.op, options.dtype, options.plot)
    if any(given) or options.before:
        parser.error("--suite compiled: of the cases' options only --only")
    if not set(options.peers or ()) <= {*compiled_suite.PEERS}:
        parser.error("--suite compiled: --peers loop, kernel or both")


def _run_compiled(
    options: argparse.Namespace, arguments: list[str], parser: argparse.ArgumentParser
) -> int:
    device, only = options.device, options.only or [""]
    chosen = [c for c in compiled_suite.CASES if any(text in str(c) for text in only)]
    if not chosen:
        parser.error("no case of the suite is left by --only")
    counts = _thread_counts(options.threads, device, parser)
    if len(counts) > 1:
        parser.error("--suite compiled: one number of --threads")
    header = report.header(["customops.bench", *arguments], device) | {"suite": COMPILED}
    header["threads"] = counts[0]
    seconds = compiled_suite.SECONDS if options.seconds is None else options.seconds
    with _threads(counts[0]):
        rows = compiled_suite.run(
            chosen, device, options.peers or [], seconds, header, options.json
        )
    compiled_suite.show(rows, f"{COMPILED} {report.where(header)}")
    return report_wrong(rows)


def _run_random(
    options: argparse.Namespace, arguments: list[str], parser: argparse.ArgumentParser
) -> int:
    device = options.device
    if options.suite == RANDOM:
        chosen = options.case or sampler.sample(
            options.seed, options.cases, device, options.options
        )
    else:
        chosen = [Strided.of(case) for case in _listed(options, parser) if Strided.has(case)]
        if not chosen:
            parser.error("--before measures no cases with masks, index dtypes or convolutions")
    if options.list:
        print(*chosen, sep="\n")
        return 0
    counts = _thread_counts(options.threads, device, parser)
    if len(counts) > 1:
        parser.error("--suite random: one number of --threads")
    setting = random_suite.Setting(
        device,
        _random_peers(options) if options.peers is None else options.peers,
        random_suite.SECONDS if options.seconds is None else options.seconds,
        1 if options.case or options.suite != RANDOM else options.compile_share,
        options.compile_processes,
        options.before,
    )
    header = report.header(["customops.bench", *arguments], device) | {"suite": options.suite}
    with _threads(counts[0]):
        try:
            rows = random_suite.run(chosen, setting, header, options.json)
        except MemoryError as error:
            parser.error(str(error))
    random_suite.show(rows, f"{len(rows)} cases ({options.suite}) {report.where(header)}")
    return report_wrong(rows)


def _random_peers(options: argparse.Namespace) -> list[str]:
    known = random_suite.PEERS[options.device]
    return peers.PEERS_OF_OPTIONS if options.options else known


def _listed(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[cases.Case]:
    chosen = options.case or cases.select(
        options.suite,
        options.device,
        measure.available_bytes(options.device),
        only=options.only or (),
        ops=options.op or (),
        dtype=options.dtype,
    )
    if not chosen:
        parser.error("no case of the suite is left by --only, --op and --dtype")
    return chosen


@torch.no_grad()
def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    report.use_plain_characters()
    parser = _parser()
    options = parser.parse_args(arguments)
    _check_options(options, parser)
    if options.suite == COMPILED:
        return _run_compiled(options, arguments, parser)
    if options.suite == RANDOM or options.before:
        return _run_random(options, arguments, parser)
    device = options.device
    seconds = 1.0 if options.seconds is None else options.seconds
    chosen = _listed(options, parser)
    usual = {"options": peers.PEERS_OF_OPTIONS, convolutions.SUITE: convolutions.PEERS}.get(
        options.suite, peers.PEERS[device]
    )
    others = usual if options.peers is None else options.peers
    counts = _thread_counts(options.threads, device, parser)

    suite = "cases" if options.case else options.suite
    header = report.header(["customops.bench", *arguments], device) | {"suite": suite}
    title, rows, ceiling = f"{suite} {report.where(header)}", [], None
    if device == "cuda":
        ceiling = header["read_bytes_per_second"] = measure.cuda_ceiling(seconds)
        title += f", reads at {ceiling / 1e12:.2f} TB/s"
    with report.progress(len(counts) * len(chosen)) as show_progress:
        for case, threads in itertools.product(chosen, counts):
            show_progress(str(case))
            own = [peers.OURS] + [peers.OPERATOR] * (case.timing == "host")
            with _threads(threads):
                rows.append(
                    measure.measure(case, [*own, *others], device, threads, seconds, ceiling)
                )
            measure.free()
            if options.json:  # after every case: what is measured is not lost
                figures = header | {"summary": report.summary(rows), "cases": rows}
                report.write_json(options.json, figures)

    names = dict.fromkeys(name for row in rows for name in row["contenders"])
    report.show(rows, list(names), title)
    if options.plot:
        plot.write(options.plot, rows, suite, title)
    return report_wrong(rows)


def report_wrong(rows: list[dict]) -> int:
    """The exit status: 1 if a case that ran has no right result of ours, 2 if none ran."""
    if not any(row["contenders"] for row in rows):
        why = "; ".join(dict.fromkeys(row.get("skipped", "?") for row in rows))
        print(f"no case was measured: {why}", file=sys.stderr)
        return 2
    wrong = False
    for row in rows:
        for name in (peers.OURS, peers.OPERATOR):
            figures = row["contenders"].get(name)
            if figures is not None and not figures.get("right"):
                what = figures.get("error", "the result is not torch's")
                print(f"WRONG: {row['name']}: {name}: {what}", file=sys.stderr)
                wrong = True
    return int(wrong)


if __name__ == "__main__":
    use_one_gpu()
    sys.exit(main())
