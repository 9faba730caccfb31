"""The GPU kernels where there is no GPU, compiled as C++ (tests/cuda_on_cpu)."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conftest import COMPILER, needs_compiler

from customops.plans import Walk

ROOT = Path(__file__).parent.parent
CASES, SEED = os.environ.get("REDUCEOPS_TEST_EXAMPLES", "260"), "4"
# Files that are compiled as one, for what their templates have in common is most of the work. (In
# those of one unit no two anonymous names may be the same.)
UNITS = (
    "gather fill whole_columns bulk_columns tiles hide repeat",
    "masked*",
    "rows columns small packed_columns whole_rows combine softmax* boxes layout",
    "finish",
)
FLAGS = ["-std=c++20", "-Wno-unknown-pragmas", "-Wno-subobject-linkage", "-fsanitize=address"]
# What else is an error on a GPU: addresses that are not aligned, indices out of an array. Such a
# check ends the program by SIGILL, which is compiled in half the time that messages take.
FLAGS += [
    "-fsanitize=alignment,bounds,integer-divide-by-zero",
    "-fsanitize-undefined-trap-on-error",
]
FLAGS += ["--param", "asan-stack=0"]  # arrays of a function are what `bounds` checks
# What is long: to check an address by a call takes longer to run, but a fifth less to compile.
KERNELS = ["-O0", "--param", "asan-instrumentation-with-call-threshold=0"]


@needs_compiler
def test_kernels_are_right_and_stay_within_their_input(tmp_path):
    folder, kernels = ROOT / "tests" / "cuda_on_cpu", ROOT / "csrc" / "cuda"
    compiler = [*COMPILER, *FLAGS, f"-I{folder}", f"-I{ROOT / 'csrc'}"]
    sources = [folder / "main.cpp", folder / "cuda_runtime.cpp"]
    for unit in UNITS:
        found = [path for name in unit.split() for path in sorted(kernels.glob(f"{name}.cu"))]
        sources.append(tmp_path / f"{found[0].stem}.cu")
        sources[-1].write_text("".join(f'#include "{path}"\n' for path in found))

    def compiled(source):
        target = tmp_path / f"{source.name}.o"
        level = ["-O1"] if source.suffix == ".cpp" else KERNELS
        command = [*compiler, *level, "-x", "c++", "-c", source, "-o", target]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-5000:]
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, sources))
    program = tmp_path / "kernels"
    subprocess.run([*compiler, "-pthread", *objects, "-o", program], check=True)
    done = subprocess.run([program, CASES, SEED], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    first, *tasks = (list(map(int, line.split())) for line in done.stdout.splitlines())
    *counts, in_subtiles = first
    for *taken, parts, clusters, shared, _ in tasks:  # masked, softmax_max
        theirs = {Walk.SMALL, Walk.WHOLE_ROWS, Walk.ROWS, Walk.COLUMNS, Walk.GATHER}
        assert (
            min(taken[walk] for walk in theirs) > 5 and min(parts, clusters) > 1 and shared > 20
        ), done.stdout
        assert sum(taken) == sum(taken[walk] for walk in theirs), done.stdout
    assert tasks[0][-1] > 1, done.stdout  # bytes, under a mask, in packs that begin anywhere
    assert min(counts) > 5 and in_subtiles > 0, done.stdout
