"""Runs KernelBench's own harness over the files of this folder: is each accepted, and how fast.

It needs a GPU, a checkout of KernelBench and the packages that its harness imports. The times are
its own: CUDA events around a call, with the L2 cache cleared before it; those of torch's models
are measured by it, too, eager and compiled.

    python -m compile_examples.kernelbench ~/KernelBench --only level2_32 --json kernelbench.json
"""

import argparse
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import torch

from customops.bench import report

from . import EXAMPLES

CORRECT_TRIALS, TIMED_TRIALS = 5, 100
MODES = {"eager": None, "compile": "default"}


def problem_of(harness: Path, example: ModuleType) -> Path:
    """The published file that a module of this folder replaces."""
    level, number = example.__name__.rpartition(".")[2].split("_")[:2]
    (path,) = (harness / "KernelBench" / level).glob(f"{number}_*.py")
    return path


def judge(source: str, problem: Path, device: torch.device) -> dict:
    """What the harness says of a source, and its mean times in seconds."""
    from kernelbench import eval as evaluation
    from kernelbench import timing

    published = problem.read_text()
    verdict = evaluation.eval_kernel_against_ref(
        published,
        source,
        num_correct_trials=CORRECT_TRIALS,
        num_perf_trials=TIMED_TRIALS,
        measure_performance=True,
        check_for_excessive_speedup=False,
        device=device,
    )
    seconds = {"ours": verdict.runtime_stats.get("mean", float("nan")) / 1e3}
    for name, mode in MODES.items():
        stats = timing.measure_ref_program_time(
            problem.stem,
            published,
            num_trials=TIMED_TRIALS,
            use_torch_compile=mode is not None,
            torch_compile_options=mode,
            device=device,
        )
        seconds[name] = stats["mean"] / 1e3
    return {
        "name": problem.stem,
        "level": problem.parent.name,
        "accepted": verdict.compiled and verdict.correctness,
        "trials": verdict.metadata.get("correctness_trials"),
        "seconds": seconds,
    }


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("harness", type=Path, help="a checkout of KernelBench")
    parser.add_argument("--only", default="", metavar="TEXT", help="files whose name has it")
    parser.add_argument("--json", type=report.file, metavar="FILE", help="write every figure")
    options = parser.parse_args(arguments)
    examples = [example for example in EXAMPLES if options.only in example.__name__]
    if not examples:
        parser.error("no file is left by --only")
    if not (options.harness / "KernelBench").is_dir():
        parser.error(f"{options.harness} is no checkout of KernelBench")
    if not torch.cuda.is_available():
        parser.error("the harness needs a GPU")
    sys.path.insert(0, str(options.harness / "src"))
    device = torch.device("cuda", torch.cuda.current_device())

    cases = []
    for example in examples:
        problem = problem_of(options.harness, example)
        cases.append(judge(inspect.getsource(example), problem, device))
        print(cases[-1])
    if options.json:
        git = ["git", "-C", str(options.harness), "rev-parse", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
        header = report.header(["compile_examples.kernelbench", *arguments], "cuda")
        header |= {"kernelbench": commit, "tf32": torch.backends.cudnn.allow_tf32}
        report.write_json(options.json, header | {"cases": cases})
    return 0 if all(case["accepted"] for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main())
