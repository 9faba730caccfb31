"""Every branch of the GPU kernels under compute-sanitizer's tools: `make sanitize-cuda`.

Small inputs, which REDUCEOPS_CUDA_TUNING sends where large ones would go; each result is checked.
The exit status is 1 if a tool reports anything or a result is wrong.
"""

import argparse
import itertools
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
from cuda_shapes import SMALL, TUNINGS
from opspec import OPS, assert_same

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SAME_SIZE = {
    1: (torch.int8, torch.float8_e5m2),
    2: (torch.float16, torch.int16, torch.bfloat16),
    4: (torch.float32, torch.int32),
    8: (torch.float64, torch.int64),
}
OFFSETS = (0, 1)
CALLS = 2  # for each shape and offset, of another operator and dtype each time


def operators(itemsize):
    """Every operator with every dtype of this size, over and over."""
    pairs = [(spec, d) for d in SAME_SIZE[itemsize] for spec in OPS if d in spec.dtypes]
    return itertools.cycle(pairs)


def call_each():
    """How many calls there were, all right."""
    generator = torch.Generator().manual_seed(0)
    turns = {itemsize: operators(itemsize) for itemsize in SAME_SIZE}
    calls = 0
    for shape, offset, _ in itertools.product(SMALL, OFFSETS, range(CALLS)):
        layout = shape.empty(offset=offset)
        size = layout.untyped_storage().nbytes()
        raw = torch.randint(256, (size,), dtype=torch.uint8, generator=generator)
        # The next operator that takes what the shape reduces.
        spec, dtype = next(s for s in turns[layout.itemsize] if s[0].dims or len(shape.dims) == 1)
        x, there = (
            bytes.view(dtype).as_strided(layout.shape, layout.stride(), offset)
            for bytes in (raw, raw.cuda())
        )
        dims = list(shape.dims) if len(shape.dims) > 1 else shape.dims[0]
        arguments = spec.arguments(dims, False)
        result = spec.overload(dims)(there, *arguments)
        result = result.cpu() if torch.is_tensor(result) else tuple(r.cpu() for r in result)
        context = (spec, dtype, shape, offset)
        assert_same(result, spec.reference(x, *arguments), spec.exact_nans, context)
        calls += 1
    return calls


def sanitize(tool, tuning, sanitizer):
    # Without a cache each tensor is an allocation, whose bounds memcheck knows.
    environment = {"REDUCEOPS_CUDA_TUNING": tuning, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return subprocess.run(
        [sanitizer, "--tool", tool, "--error-exitcode", "2", sys.executable, __file__, "--call"],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--call", action="store_true", help="the calls alone, without a tool")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    parser.add_argument("--jobs", type=int, default=4, help="at once (default: 4)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU")
    if options.call:
        print(f"{call_each()} calls, all right")
        return 0
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    tunings = {"default": "", **TUNINGS}
    runs = list(itertools.product(options.tools, tunings))
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        done = pool.map(lambda run: sanitize(run[0], tunings[run[1]], sanitizer), runs)
        for (tool, name), run in zip(runs, done, strict=True):
            lines = run.stdout.strip().splitlines()
            print(f"{tool}, {name}:", "; ".join(lines[-2:]), flush=True)
            if run.returncode:
                failed = 1
                print(run.stdout)
    return failed


if __name__ == "__main__":
    sys.exit(main())
