"""Every branch of the GPU kernels under compute-sanitizer's tools: `make sanitize-cuda`.

Small inputs, which REDUCEOPS_CUDA_TUNING sends where large ones would go, and random ones under
random constants; each result is checked. The exit status is 1 if a tool reports anything or a
result is wrong.
"""

import argparse
import itertools
import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
from cuda_shapes import SMALL, TUNINGS
from opspec import OPS, as_tuple, assert_same
from random_plans import random_sizes, random_strides, random_tuning, written
from reference import truth

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SAME_SIZE = {
    1: (torch.int8, torch.float8_e5m2, torch.uint8, torch.bool),
    2: (torch.float16, torch.int16, torch.bfloat16, torch.uint16),
    4: (torch.float32, torch.int32, torch.uint32),
    8: (torch.float64, torch.int64, torch.uint64),
}
OFFSETS = (0, 1)
MOST_ELEMENTS = 1 << 16  # of a random input
CALLS = 2  # for each shape and offset, of another operator and dtype each time


def operators(itemsize):
    """Every operator with every dtype of this size, over and over."""
    pairs = [(spec, d) for d in SAME_SIZE[itemsize] for spec in OPS if d in spec.dtypes]
    return itertools.cycle(pairs)


def check(spec, dtype, sizes, strides, offset, dims, generator):
    """One call on random bits, laid out so in a storage of exactly their size."""
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    size = (last + 1) * dtype.itemsize
    raw = torch.randint(256, (size,), dtype=torch.uint8, generator=generator)
    x, there = (bytes.view(dtype).as_strided(sizes, strides, offset) for bytes in (raw, raw.cuda()))
    dims = list(dims) if len(dims) > 1 else dims[0]
    arguments = spec.arguments(dims, False)
    result, expected = spec.overload(dims)(there, *arguments), spec.reference(x, *arguments)
    result, expected = (tuple(map(truth, as_tuple(each))) for each in (result, expected))
    context = (spec, dtype, sizes, strides, offset, dims)
    assert_same(result, expected, spec.tolerance, context)


def call_each(count, seed):
    """Calls on the chosen shapes and so many random ones."""
    generator = torch.Generator().manual_seed(seed)
    turns = {itemsize: operators(itemsize) for itemsize in SAME_SIZE}

    def check_next(itemsize, sizes, strides, offset, dims):
        # The next operator that takes what the shape reduces.
        spec, dtype = next(s for s in turns[itemsize] if s[0].dims or len(dims) == 1)
        check(spec, dtype, tuple(sizes), tuple(strides), offset, tuple(dims), generator)

    for shape, offset, _ in itertools.product(SMALL, OFFSETS, range(CALLS)):
        layout = shape.empty()
        check_next(layout.itemsize, layout.shape, layout.stride(), offset, shape.dims)
    rng = random.Random(seed)
    for _ in range(count):
        sizes = random_sizes(rng, MOST_ELEMENTS) or [1]
        strides = random_strides(rng, sizes)
        dims = [d for d in range(len(sizes)) if rng.random() < 0.4] or [rng.randrange(len(sizes))]
        check_next(rng.choice(tuple(SAME_SIZE)), sizes, strides, rng.choice((0, 0, 1, 3)), dims)


def random_tunings(count, seed):
    """REDUCEOPS_CUDA_TUNING with random constants, by name."""
    seeds = range(seed, seed + count)
    return {f"seed {seed}": written(random_tuning(random.Random(seed))) for seed in seeds}


def sanitize(tool, tuning, sanitizer, options):
    # Without a cache each tensor is an allocation, whose bounds memcheck knows.
    environment = {"REDUCEOPS_CUDA_TUNING": tuning, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    call = [sys.executable, __file__, "--call", f"--random={options.random}"]
    return subprocess.run(
        [sanitizer, "--tool", tool, "--error-exitcode", "2", *call, f"--seed={options.seed}"],
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
    parser.add_argument(
        "--random", type=int, default=50, help="random inputs besides the chosen ones (default: 50)"
    )
    parser.add_argument(
        "--tunings", type=int, default=4, help="random sets of constants besides (default: 4)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is random (default: 0)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU")
    if options.call:
        call_each(options.random, options.seed)
        print("all right")
        return 0
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    tunings = {"default": "", **TUNINGS, **random_tunings(options.tunings, options.seed)}
    runs = list(itertools.product(options.tools, tunings))
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        done = pool.map(lambda run: sanitize(run[0], tunings[run[1]], sanitizer, options), runs)
        for (tool, name), run in zip(runs, done, strict=True):
            lines = run.stdout.strip().splitlines()
            print(f"{tool}, {name}:", "; ".join(lines[-2:]), flush=True)
            if run.returncode:
                failed = 1
                print(run.stdout)
    return failed


if __name__ == "__main__":
    sys.exit(main())
