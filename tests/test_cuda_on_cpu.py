"""GPU kernels where there is no GPU: those that need nothing of Hopper's, compiled as C++."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from customops.explain import Walk

ROOT = Path(__file__).parent.parent
KERNELS = ["small", "rows", "columns", "whole_rows", "whole_columns", "combine"]
FLAGS = ["-std=c++20", "-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover"]
# The kernels rely on wrapping around, as a GPU does.
FLAGS += ["-fno-sanitize=shift,signed-integer-overflow", "-Wno-unknown-pragmas"]


def test_kernels_are_right_and_stay_within_their_input(tmp_path):
    folder = ROOT / "tests" / "cuda_on_cpu"
    sources = [ROOT / "csrc" / "cuda" / f"{name}.cu" for name in KERNELS] + [folder / "main.cpp"]
    compiler = [os.environ.get("CXX", "g++"), *FLAGS, f"-I{folder}", f"-I{ROOT / 'csrc'}"]

    def compiled(source):
        target = tmp_path / f"{source.name}.o"
        command = [*compiler, "-x", "c++", "-c", source, "-o", target]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-5000:]
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, sources))
    program = tmp_path / "kernels"
    subprocess.run([*compiler, *objects, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    *by_walk, in_batches, in_parts = map(int, done.stdout.split())
    taken = dict(zip(Walk, by_walk, strict=True))
    assert min(in_batches, in_parts) > 20, done.stdout
    for walk, count in taken.items():
        assert (count > 20) == (walk.name.lower() in KERNELS), taken
