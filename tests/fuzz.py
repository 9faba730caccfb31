"""Random calls of every operator against numpy: `make fuzz EXAMPLES=200000`.

Each example is one call: an operator, a dtype, a view with any sizes and strides, contents, dims, a
device and a number of threads. Examples come in batches, each in a process of its own with the next
of the CPU's instruction sets and, where there is a GPU, with other constants of its plan. Of an
example that fails the smallest that Hypothesis finds is printed, as one line to run. The exit
status is 1 if any failed.
"""

import argparse
import bisect
import contextlib
import itertools
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

# Before torch is imported: idle threads of one process leave the cores to the others.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import data  # noqa: E402
import hypothesis  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from opspec import OPS, as_tuple, assert_same  # noqa: E402
from random_plans import random_tuning, written  # noqa: E402
from reference import bits, masked, to_numpy, truth, wrapped  # noqa: E402

import customops  # noqa: E402

PACKAGES = os.pathsep.join(
    filter(None, (str(Path(customops.__file__).parent.parent), os.environ.get("PYTHONPATH")))
)
SPECS = {spec.name: spec for spec in OPS}
BATCH = 4000

# Where vectors, blocks, tiles and runs begin and end, and lengths of no such kind.
_NEAR = sorted({(1 << power) + d for power in range(3, 23) for d in (-1, 0, 1)})
SIZES = sorted({*range(1, 8), *_NEAR, 21, 100, 150, 1000, 1021, 4095, 20_011, 50_257, 151_936})
SMALL_SIZES = (1, 2, 3, 4, 5, 7, 9)
RANKS = (1, 2, 3, 4, 5, 6, 2, 3, 4, 2, 3, 0)
ELEMENTS = (64, 64, 4096, 4096, 4096, 100_000, 100_000, 1 << 20, 1 << 22)  # at most, of a view
STORAGE_BYTES = 32 << 20  # about
FILLS = ("bits", "random", "ties", "special", "few", "smooth", "ascending", "descending")
SCALES = (-1.5, 1.0, 0.0, -0.0, 2.0**-20, 3e4, math.inf, -math.inf, math.nan)
THREADS = (1, 2, 3, 8)
MASKED = ("argmin", "argmax", "min", "max")  # these take a mask and an index_dtype
PRESENT = (0.5, 0.5, 0.02, 0.98, 0.0, 1.0)  # shares of a mask that are True
INDEX_DTYPES = (None, None, torch.int64, torch.int32, torch.uint16, torch.uint8)


class Mismatch(AssertionError):
    pass


@dataclass(frozen=True)
class Mask:
    """A mask of True as any byte but 0, which broadcasts to the input."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    present: float = 0.5

    def make(self, seed):
        generator = np.random.default_rng(seed)
        true = generator.random(elements(self.sizes, self.strides, self.offset)) < self.present
        raw = generator.integers(1, 256, true.shape, dtype=np.uint8) * true
        return from_numpy(raw, torch.bool).as_strided(self.sizes, self.strides, self.offset)


def elements(sizes, strides, offset):
    """Of a storage."""
    if 0 in sizes:
        return offset
    steps = zip(sizes, strides, strict=True)
    return offset + 1 + sum((size - 1) * stride for size, stride in steps)


@dataclass(frozen=True, repr=False)
class Case:
    """One call; its repr makes it again."""

    op: str
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dim: int | tuple[int, ...] | None
    keepdim: bool = False
    offset: int = 0
    leading: tuple = ()  # arguments between self and dim
    fill: str = "random"
    sprinkled: int = 0  # special values at places of the view
    seed: int = 0
    python: bool = False  # through customops.* instead of torch.ops
    device: str = "cpu"
    threads: int = 1
    mask: Mask | None = None
    index_dtype: torch.dtype | None = None

    def __repr__(self):
        values = {field: getattr(self, field.name) for field in fields(self)}
        said = (f"{f.name}={value!r}" for f, value in values.items() if value != f.default)
        return f"Case({', '.join(said)})"

    @property
    def spec(self):
        return replace(SPECS[self.op], leading=self.leading)

    @property
    def elements(self):
        """Of the storage."""
        return elements(self.sizes, self.strides, self.offset)

    def input(self):
        storage = contents(self.elements, self.dtype, self.fill, self.seed)
        x = storage.as_strided(self.sizes, self.strides, self.offset)
        if self.sprinkled and x.numel():
            generator = np.random.default_rng(self.seed)
            pool = bits(specials(self.dtype))
            for _ in range(self.sprinkled):
                ends = (0, x.numel() - 1, int(generator.integers(x.numel())))
                place = np.unravel_index(ends[generator.integers(3)], x.shape)
                at = self.offset + sum(int(p) * s for p, s in zip(place, self.strides, strict=True))
                bits(storage)[at] = pool[generator.integers(len(pool))]
        return storage, x

    def check(self):
        """Raises Mismatch unless the call does what is promised."""
        storage, x = self.input()
        storage = storage.to(self.device)
        before = bits(storage).clone()
        there = storage.as_strided(self.sizes, self.strides, self.offset)
        spec, dim = self.spec, list(self.dim) if isinstance(self.dim, tuple) else self.dim
        arguments = spec.arguments(dim, self.keepdim)
        call = spec.function if self.python else spec.overload(dim)
        mask, options = None, self.mask or self.index_dtype
        if options:
            call = getattr(torch.ops.reduceops, self.op)
            mask = self.mask and self.mask.make(self.seed)
            there_mask = None if mask is None else moved(mask, self.device)
            call = partial(call, mask=there_mask, index_dtype=self.index_dtype)
        empty = any(x.dim() and x.size(d) == 0 for d in wrapped(x, dim))
        use_threads(self.threads)
        try:
            result = as_tuple(call(there, *arguments))
        except (RuntimeError, IndexError) as error:
            if empty and f"reduceops::{self.op}" in str(error) and "size 0" in str(error):
                return
            raise Mismatch(f"{self!r} raises {error}") from error
        if empty:
            raise Mismatch(f"{self!r}: no error, though nothing is reduced")
        if not torch.equal(bits(storage), before):
            raise Mismatch(f"{self!r} changes its input")
        if not all(r.is_contiguous() for r in result):
            raise Mismatch(f"{self!r}: a result is not contiguous")
        if options:
            present = torch.ones((), dtype=torch.bool) if mask is None else mask
            expected = masked(self.op, x, dim, self.keepdim, present, self.index_dtype)
        else:
            expected = spec.reference(x, *arguments)
        expected = tuple(map(truth, as_tuple(expected)))
        result = tuple(map(truth, result))
        try:
            assert_same(result, expected, spec.tolerance)
        except AssertionError as error:
            raise Mismatch(f"{self!r} is {result}, not {expected}") from error


def moved(view, device):
    """The same view of a copy of its storage."""
    storage = view.as_strided((view.untyped_storage().nbytes(),), (1,), 0).to(device)
    return storage.as_strided(view.shape, view.stride(), view.storage_offset())


def use_threads(count):
    """Changing the number costs more than most calls."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def specials(dtype):
    """The special values of `dtype`, NaNs among them; of bool every byte that differs."""
    if dtype == torch.bool:
        return torch.tensor([0, 1, 2, 128, 255], dtype=torch.uint8).view(torch.bool)
    pool = data.special_values(dtype)
    if dtype not in data.NAN_BITS:
        return pool
    return torch.cat([bits(pool), bits(data.nans(dtype))]).view(dtype)


def from_numpy(array, dtype):
    return torch.from_numpy(np.ascontiguousarray(array)).view(dtype)


def contents(count, dtype, fill, seed):
    """A storage of `count` elements."""
    generator = np.random.default_rng(seed)
    integer = bits(torch.empty(1, dtype=dtype)).numpy().dtype
    if fill == "bits":  # any, NaNs among them
        raw = np.frombuffer(generator.bytes(count * dtype.itemsize), integer)
        return from_numpy(raw.copy(), dtype)
    if fill == "few":  # one to three of the special values, and nothing else
        pool = bits(specials(dtype)).numpy()
        chosen = generator.choice(pool, generator.integers(1, 4))
        return from_numpy(generator.choice(chosen, count).astype(integer), dtype)
    if fill in ("ascending", "descending"):
        steps = data.make((min(count, 4096),), dtype, "random", seed)
        order = np.argsort(to_numpy(steps), kind="stable")
        order = order if fill == "ascending" else order[::-1]
        stretched = np.arange(count) * len(order) // max(count, 1)
        return from_numpy(bits(steps).numpy()[order][stretched], dtype)
    return data.make((count,), dtype, fill, seed)


def _pick(draw, options):
    return options[draw(st.integers(0, len(options) - 1))]


def draw_sizes(draw, room):
    """Rank 0 to 6, at most `room` elements."""
    rank = _pick(draw, RANKS)
    sizes = []
    for _ in range(rank):
        some = SIZES if draw(st.booleans()) else SMALL_SIZES
        size = _pick(draw, some[: bisect.bisect(some, room)])
        sizes.append(size)
        room //= size
    if rank and draw(st.integers(0, 19)) == 19:
        sizes[draw(st.integers(0, rank - 1))] = 0
    return [sizes[i] for i in draw(st.permutations(range(rank)))]


def draw_strides(draw, sizes, itemsize):
    """As of dense tensors in some order of the dims, then with steps, gaps, zeros and overlaps."""
    order = list(range(len(sizes)))[::-1]
    if draw(st.booleans()):
        order = draw(st.permutations(order))
    irregular = draw(st.booleans())
    strides, step = [0] * len(sizes), _pick(draw, (1, 1, 2, 3)) if irregular else 1
    for d in order:
        if sizes[d] * step * itemsize > STORAGE_BYTES:
            step = 1
        kind = draw(st.integers(0, 7)) if irregular else 0
        strides[d] = step
        if kind == 6:
            strides[d] = 0
        elif kind == 7:
            strides[d] = draw(st.integers(0, 9))
        else:
            gap = _pick(draw, (1, 2, 16)) if kind == 5 else 0
            step *= max(sizes[d] + gap, 1)
    return strides


def draw_dim(draw, spec, rank):
    bound = max(rank, 1)
    one = st.integers(-bound, bound - 1)
    kind = draw(st.integers(0, 3)) if spec.dims else 0
    if kind == 3:
        return None
    if kind == 2:
        return tuple(draw(st.lists(one, max_size=bound, unique_by=lambda dim: dim % bound)))
    return draw(one)


def draw_options(draw, spec, sizes, dim):
    """A mask and a dtype of the indices; mostly neither."""
    if spec.name not in MASKED or draw(st.integers(0, 2)):
        return None, None
    dims = wrapped(torch.empty(sizes, device="meta"), dim)
    extent = math.prod(sizes[d] for d in dims) if sizes else 1
    index_dtype = _pick(draw, INDEX_DTYPES)
    if index_dtype and extent > torch.iinfo(index_dtype).max:
        index_dtype = None
    if draw(st.integers(0, 3)) == 0:
        return None, index_dtype
    some = sizes[draw(st.integers(0, len(sizes))) :] if draw(st.booleans()) else sizes
    own = [1 if draw(st.integers(0, 3)) == 3 else size for size in some]
    strides = draw_strides(draw, own, 1)
    present = _pick(draw, PRESENT)
    return Mask(tuple(own), tuple(strides), _pick(draw, (0, 0, 1, 3)), present), index_dtype


@st.composite
def cases(draw, devices=("cpu",), elements=ELEMENTS):
    spec = _pick(draw, OPS)
    dtype = _pick(draw, spec.dtypes)
    sizes = draw_sizes(draw, _pick(draw, elements))
    dim = draw_dim(draw, spec, len(sizes))
    mask, index_dtype = draw_options(draw, spec, sizes, dim)
    return Case(
        op=spec.name,
        dtype=dtype,
        sizes=tuple(sizes),
        strides=tuple(draw_strides(draw, sizes, dtype.itemsize)),
        dim=dim,
        keepdim=draw(st.booleans()),
        offset=_pick(draw, (0, 0, 0, 1, 3, 16)),
        leading=tuple(_pick(draw, SCALES) if isinstance(a, float) else a for a in spec.leading),
        fill=_pick(draw, FILLS),
        sprinkled=_pick(draw, (0, 0, 1, 2, 9)),
        seed=draw(st.integers(0, 9999)),
        python=draw(st.booleans()),
        device=_pick(draw, devices),
        threads=_pick(draw, THREADS),
        mask=mask,
        index_dtype=index_dtype,
    )


def for_each(examples, seed, strategy, function):
    """Calls `function` with examples; of those for which it raises, with the smallest one last."""
    test = hypothesis.given(strategy)(function)
    hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
    )(hypothesis.seed(seed)(test))()


def some(count, seed, strategy):
    """About `count` examples, as a list."""
    found = []
    for_each(count, seed, strategy, lambda example: found.append(example))
    return found


def run(examples, seed, devices, before_each=lambda case: None):
    """How many examples there were, and the smallest Case that is wrong, with the reason."""
    count, wrong = 0, (None, None)

    def check(case):
        nonlocal count, wrong
        count += wrong == (None, None)
        before_each(case)
        try:
            case.check()
        except Mismatch as mismatch:
            wrong = case, mismatch
            raise

    with contextlib.suppress(Mismatch):
        for_each(examples, seed, cases(devices), check)
    return count, *wrong


def instruction_sets():
    """The names of those that this CPU has, as REDUCEOPS_CPU_ISA takes them."""
    return customops.libraries.cpu.ask("reduceops_cpu_isas").split(",")


def environments(seed, devices):
    """Without end: what the variables of a batch are set to."""
    generator = random.Random(seed)
    for isa in itertools.cycle(instruction_sets()):
        variables = {"REDUCEOPS_CPU_ISA": isa}
        if "cuda" in devices:
            # Every other batch takes the plans that users get.
            tuning = generator.choice([{}, random_tuning(generator)])
            variables["REDUCEOPS_CUDA_TUNING"] = written(tuning)
        yield variables


def command(case, variables):
    """The line that makes one call again."""
    said = "".join(f"{name}={value} " for name, value in variables.items() if value)
    return (
        f"{said}PYTHONPATH=.:tests .venv/bin/python -c "
        f'"import torch; from math import inf, nan; from fuzz import Case, Mask; {case}.check()"'
    )


def run_batch(devices, variables, examples, seed):
    """How many examples there were in a process of their own, and of a failure what to read."""
    with tempfile.NamedTemporaryFile("r") as file:
        arguments = ["--worker", file.name, "--examples", str(examples), "--seed", str(seed)]
        done = subprocess.run(
            [sys.executable, __file__, *arguments, "--devices", *devices],
            env={**os.environ, **variables, "PYTHONPATH": PACKAGES},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        case, _, count = file.read().partition("\n")
    if done.returncode == 0:
        return int(count), None
    # A process that died has left the call that it died of.
    reason = done.stdout[-3000:].strip() or f"exit status {done.returncode}"
    return int(count or 0), f"{reason}\n{command(case, variables)}"


def work(options):
    """A batch. Its file holds the call that is being made or that failed, then the count."""
    with open(options.worker, "w") as file:

        def write(*lines):
            file.seek(0)
            file.truncate()
            file.write("\n".join(map(str, lines)))
            file.flush()

        count, case, mismatch = run(options.examples, options.seed, options.devices, write)
        write(case, count)
    if mismatch:
        print(mismatch)
    return int(mismatch is not None)


def main():
    devices = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--seed", type=int, help="of an earlier run, to repeat it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    parser.add_argument("--devices", nargs="+", choices=devices, default=devices)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options)
    seed = random.randrange(1 << 31) if options.seed is None else options.seed
    sizes = [BATCH] * (options.examples // BATCH) + [options.examples % BATCH]
    sizes = [size for size in sizes if size]
    print(f"seed {seed}, {len(sizes)} batches on {', '.join(options.devices)}", flush=True)
    start, done, failures = time.monotonic(), 0, []

    def batch(number, variables):
        nonlocal done
        # Runs with neighbouring seeds have no batch in common.
        batch_seed = (seed << 32) + number
        count, failure = run_batch(options.devices, variables, sizes[number], batch_seed)
        done += count
        said = " ".join(f"{k}={v}" for k, v in variables.items() if v)
        print(f"batch {number + 1}: {count} examples, {said}", flush=True)
        if failure:
            failures.append(failure)
            print(failure, flush=True)

    with ThreadPoolExecutor(max(1, options.jobs)) as pool:
        list(pool.map(batch, range(len(sizes)), environments(seed, options.devices)))
    seconds = time.monotonic() - start
    print(f"{done} examples, seed {seed}, {seconds:.0f} s, {len(failures)} batches failed")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
