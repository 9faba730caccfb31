"""Looks for better constants of the plan (csrc/cuda/tuning.h) on this GPU.

Constant by constant, other values are tried on those cases of the sweep whose plan they change, in
a process for each value; one that makes them faster in the geometric mean is kept from then on.
The exit status is 1 if a result is wrong.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import geometric_mean

import torch

from customops.plans import CudaPlan, cuda_constants, cuda_plan

from . import peers, report
from .cases import Case, select
from .measure import limits_of, stores_of

FACTORS = (1 / 4, 1 / 2, 3 / 4, 3 / 2, 2, 4)
KEPT_BELOW = 0.98  # of the present time; the rest is noise

Tuning = dict[str, int]


class WrongResult(Exception):
    pass


def values(name: str, default: int) -> list[int]:
    """What is tried besides the default; of a count that is small, its neighbours."""
    if default == 1:  # a switch
        return [0]
    if default < 8:
        return [value for value in range(max(1, default - 2), default + 3) if value != default]
    return [round(default * factor) for factor in FACTORS]


def plan_of(case: Case, tuning: Tuning, gpu: dict) -> CudaPlan:
    return cuda_plan(case.empty("meta"), case.dims, tuning=tuning, **stores_of(case), **gpu)


def affected(cases: list[Case], before: Tuning, after: Tuning, gpu: dict) -> list[Case]:
    """Those with another plan; a constant changes nothing else."""
    return [case for case in cases if plan_of(case, before, gpu) != plan_of(case, after, gpu)]


def variable(tuning: Tuning) -> str:
    return ",".join(f"{name}={value}" for name, value in tuning.items())


def measure(cases: list[Case], tuning: Tuning, seconds: float) -> dict[Case, float]:
    """Seconds of each case that runs, in a process with this tuning."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "figures.json")
        command = [sys.executable, "-m", "customops.bench", "--device=cuda", "--suite=sweep"]
        command += ["--peers=", f"--seconds={seconds}", f"--json={path}"]
        command += [f"--only={case}" for case in cases]
        environment = {**os.environ, "REDUCEOPS_CUDA_TUNING": variable(tuning)}
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
        if not path.exists():
            raise RuntimeError(f"the benchmark fails with '{variable(tuning)}':\n{run.stderr}")
        rows = {row["name"]: row["contenders"] for row in json.loads(path.read_text())["cases"]}
    ours = {case: rows.get(str(case), {}).get(peers.OURS, {}) for case in cases}
    if wrong := [str(case) for case, figures in ours.items() if figures.get("right") is False]:
        raise WrongResult(f"wrong with '{variable(tuning)}': {'; '.join(wrong)}")
    return {case: figures["seconds"] for case, figures in ours.items() if "seconds" in figures}


def search(names: list[str], cases: list[Case], gpu: dict, seconds: float, on_value) -> tuple:
    """The constants to change, and a row for each value that changes a plan."""
    tuning: Tuning = {}
    rows = []
    times = measure(cases, tuning, seconds)
    for name in names:
        default = cuda_constants()[name]
        best, best_ratio, best_times = None, KEPT_BELOW, {}
        for value in values(name, default):
            on_value(f"{name}={value}")
            tried = tuning | {name: value}
            changed = affected(list(times), tuning, tried, gpu)
            if not changed:
                continue
            now = measure(changed, tried, seconds)
            ratio = None  # where a case does not run
            if len(now) == len(changed):
                ratio = geometric_mean(now[case] / times[case] for case in changed)
                if ratio < best_ratio:
                    best, best_ratio, best_times = value, ratio, now
            rows.append((name, default, value, len(changed), ratio))
        if best is not None:
            tuning[name] = best
            times |= best_times
    return tuning, rows


def show(tuning: Tuning, rows: list[tuple]) -> None:
    header = ["constant", "default", "value", "cases", "time", ""]
    cells = [
        [name, *map(str, numbers), "does not run" if ratio is None else f"{ratio:.3f} ×"]
        + ["kept" if tuning.get(name) == numbers[1] else ""]
        for name, *numbers, ratio in rows
    ]
    report.show_table(header, cells, "time: geometric mean over the cases whose plan changes")
    if tuning:
        print(f'REDUCEOPS_CUDA_TUNING="{variable(tuning)}", or in csrc/cuda/tuning.h:')
        for name, value in tuning.items():
            print(f"  int64_t {name} = {value};")
    else:
        print("no constant is to be changed")


def main(arguments: list[str] | None = None) -> int:
    constants = cuda_constants()
    parser = report.Parser(prog="python -m customops.bench.tune", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(constants)}")
    parser.add_argument("--only", action="append", metavar="TEXT", help="as of customops.bench")
    parser.add_argument(
        "--seconds", type=report.seconds, default=0.1, help="for each case and value"
    )
    options = parser.parse_args(arguments)
    report.use_plain_characters()
    if unknown := set(options.names) - set(constants):
        parser.error(f"no constants of the plan: {', '.join(sorted(unknown))}")
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU")
    properties = torch.cuda.get_device_properties()
    gpu = limits_of(properties)
    names = options.names or [name for name in constants if name != "walk"]  # one for all cases
    cases = select("sweep", "cuda", properties.total_memory, only=options.only or ())
    if not cases:
        parser.error("no case of the sweep is left by --only")
    tries = sum(len(values(name, constants[name])) for name in names)
    try:
        with report.progress(tries) as on_value:
            tuning, rows = search(names, cases, gpu, options.seconds, on_value)
    except WrongResult as error:
        print(error, file=sys.stderr)
        return 1
    show(tuning, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
