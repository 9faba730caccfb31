"""Times the operators beside their peers and checks every result.

The exit status is 1 if a result of ours is wrong, and 2 for arguments that make no sense.
"""

import argparse
import importlib.util
import os
import sys

import torch

from customops import libraries

from . import cases, measure, peers, plot, report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m customops.bench", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--suite", choices=cases.SUITES, default="sweep")
    parser.add_argument(
        "--case",
        type=_case,
        action="append",
        help="this instead of a suite's, as 'argmax (2, 21, 64, 64) dim=1 float32 channels_last'",
    )
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="cases with this, or another, in their name"
    )
    parser.add_argument("--op", choices=cases.OPS, action="append", help="this instead of a case's")
    parser.add_argument("--dtype", choices=cases.DTYPES, help="this instead of a case's")
    known = [name for name in peers.CONTENDERS if name not in (peers.OURS, peers.OPERATOR)]
    parser.add_argument(
        "--peers",
        type=_list_of(known),
        metavar="A,B",
        help=f"of {', '.join(known)}; by default {_default_peers()}",
    )
    parser.add_argument(
        "--threads",
        default="default",
        metavar="N,M",
        help="on a CPU: 1,default runs every case with each",
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="for each contender and case (default: 1)"
    )
    parser.add_argument("--json", metavar="FILE", help="write every figure")
    parser.add_argument("--plot", metavar="FILE", help="write a PNG (needs matplotlib)")
    return parser


def _list_of(known: list[str]):
    def convert(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return names

    return convert


def _case(text: str) -> cases.Case:
    try:
        return cases.Case.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _default_peers() -> str:
    return "; ".join(f"{device}: {','.join(names)}" for device, names in peers.PEERS.items())


def _thread_counts(text: str, device: str, parser: argparse.ArgumentParser) -> list[int | None]:
    if device == "cuda":
        return [None]
    counts = []
    for word in text.split(","):
        if word != "default" and not (word.isdigit() and int(word) > 0):
            parser.error(f"--threads: {word!r} is neither a number of threads nor `default`")
        counts.append(torch.get_num_threads() if word == "default" else int(word))
    return counts


def use_one_gpu() -> None:
    """Hides all visible GPUs but the first: JAX would leave another one current, and events are
    recorded on the current one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[0]


def _check_options(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Before anything is measured: what would fail only at the end."""
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU")
    if options.device == "cuda" and not libraries.cuda.loaded:
        parser.error(f"--device cuda: {libraries.cuda.reason}")
    if options.case and (options.only or options.op or options.dtype):
        parser.error("--case says it all: not with --only, --op or --dtype")
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install 'customops[bench]'")


@torch.no_grad()
def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    options = parser.parse_args(arguments)
    _check_options(options, parser)
    device = options.device
    chosen = options.case or cases.select(
        options.suite,
        device,
        measure.available_bytes(device),
        only=options.only or (),
        ops=options.op or (),
        dtype=options.dtype,
    )
    if not chosen:
        parser.error("no case of the suite is left by --only, --op and --dtype")
    others = peers.PEERS[device] if options.peers is None else options.peers
    counts = _thread_counts(options.threads, device, parser)

    suite = "cases" if options.case else options.suite
    header = report.header(["customops.bench", *arguments], device) | {"suite": suite}
    title, rows, ceiling = f"{suite} {report.where(header)}", [], None
    if device == "cuda":
        ceiling = header["read_bytes_per_second"] = measure.cuda_ceiling(options.seconds)
        title += f", reads at {ceiling / 1e12:.2f} TB/s"
    threads_before = torch.get_num_threads()
    try:
        with report.progress(len(counts) * len(chosen)) as show_progress:
            for case in chosen:
                for threads in counts:
                    torch.set_num_threads(threads or threads_before)
                    show_progress(str(case))
                    own = [peers.OURS] + [peers.OPERATOR] * (case.timing == "host")
                    rows.append(
                        measure.measure(
                            case, [*own, *others], device, threads, options.seconds, ceiling
                        )
                    )
                    measure.free()
                    if options.json:  # after every case: what is measured is not lost
                        figures = header | {"summary": report.summary(rows), "cases": rows}
                        report.write_json(options.json, figures)
    finally:
        torch.set_num_threads(threads_before)

    names = dict.fromkeys(name for row in rows for name in row["contenders"])
    report.show(rows, list(names), title)
    if options.plot:
        plot.write(options.plot, rows, suite, title)
    return report_wrong(rows)


def report_wrong(rows: list[dict]) -> int:
    """The exit status: 1 if a case that ran has no right result of ours."""
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
