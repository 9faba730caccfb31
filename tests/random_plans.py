"""Random layouts, GPUs and constants of the plan: what the plan has to be right for."""

import math
import random
from dataclasses import dataclass, replace

import torch

from customops.plans import CudaPlan, Walk, cuda_constants, cuda_plan

DTYPES = {1: torch.int8, 2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
MOST_ELEMENTS = 1 << 43  # an expanded input has more of them than memory holds
# Multiprocessors, and whether there are bulk copies, clusters and Hopper's shared memory.
GPUS = {"sm_80": (108, False), "sm_90": (132, True), "sm_100": (148, True), "sm_120": (170, False)}
SILLY = (0, 1, 2, 3, 5, 16, 100, 255, 1 << 10, 1 << 16, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1)


@dataclass(frozen=True)
class Case:
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dims: tuple[int, ...]  # that are reduced; of a softmax the first of them alone is
    dtype: torch.dtype
    address: int  # of the first element, in bytes
    multiprocessors: int
    bulk: bool
    tuning: tuple[tuple[str, int], ...]
    mask: tuple[int, ...] | None = None  # the strides of one
    softmax: bool = False
    values: bool = False

    def plan(self) -> CudaPlan:
        """Raises BrokenPlan where the plan is not one that its kernel can take."""
        x = torch.empty_strided(self.sizes, self.strides, dtype=self.dtype, device="meta")
        mask = None
        if self.mask is not None:
            mask = torch.empty_strided(self.sizes, self.mask, dtype=torch.bool, device="meta")
        return cuda_plan(
            x,
            (self.dims or (0,))[:1] if self.softmax and self.sizes else self.dims,
            multiprocessors=self.multiprocessors,
            address=self.address,
            bulk=self.bulk,
            tuning=dict(self.tuning),
            mask=mask,
            softmax=self.softmax,
            values=self.values,
        )


def random_sizes(rng: random.Random, most: int) -> list[int]:
    """Of any rank, log-uniformly; together at most `most`."""
    shares = sorted(rng.random() for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 5, 6))))
    exponent = math.log2(most) * rng.choice((1, rng.random(), rng.random(), rng.random()))
    sizes = []
    for low, high in zip([0, *shares], shares, strict=False):
        size = 2 ** (exponent * (high - low))
        if rng.random() < 0.5:  # around a power of two
            size = 2 ** round(math.log2(size)) + rng.choice((-1, 0, 0, 0, 1, 4, 8))
        sizes.append(max(1, int(size)))
    while math.prod(sizes) > most:
        sizes[sizes.index(max(sizes))] //= 2
    return sizes


def random_strides(rng: random.Random, sizes: list[int]) -> list[int]:
    """Contiguous in some order of the dims, or with gaps, steps, repetitions and overlaps."""
    order = list(range(len(sizes)))
    if rng.random() < 0.5:
        rng.shuffle(order)
    odd = rng.choice((0, 0, 0.3))  # how often a dim is not where its neighbours would have it
    strides, stride = [0] * len(sizes), 1
    for d in reversed(order):
        if rng.random() < odd:
            stride = rng.choice((stride * 2, stride + 1, stride + 16, max(1, stride // 2), stride))
        strides[d] = 0 if rng.random() < odd / 3 else stride
        stride = max(stride, stride * sizes[d])
    return strides


def random_mask_strides(rng: random.Random, case: Case) -> list[int]:
    """Like those of the input, or of any others, and 0 along some dims."""
    strides = list(case.strides)
    if rng.random() < 0.5:
        strides = random_strides(rng, list(case.sizes))
    broadcast = rng.choice((0, 0.5))
    return [0 if rng.random() < broadcast else stride for stride in strides]


def random_tuning(rng: random.Random) -> dict[str, int]:
    """None, one or many of the constants, at sensible and at silly values."""
    constants = cuda_constants()
    often = rng.choice((0, 0.05, 0.3))
    tuning = {}
    for name, default in constants.items():
        if rng.random() < often:
            near = int(default * 2 ** rng.uniform(-3, 3))
            tuning[name] = rng.choice((near, near, rng.choice(SILLY)))
    for name in ("small_elements", "whole_rows", "whole_column", "bulk_bytes", "fold_bytes"):
        if rng.random() < 0.5:  # so that small inputs reach all walks
            tuning.setdefault(name, 0)
    if rng.random() < 0.3:  # walks that are not the usual ones
        name = "walk" if rng.random() < 0.5 else "margin"
        tuning[name] = rng.choice((*range(1, len(Walk) + 1), 1000))
    return tuning


def written(tuning: dict[str, int]) -> str:
    """As REDUCEOPS_CUDA_TUNING takes it."""
    return ",".join(f"{name}={value}" for name, value in tuning.items())


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    bytes_ = rng.choice(tuple(DTYPES))
    sizes = random_sizes(rng, MOST_ELEMENTS)
    strides = random_strides(rng, sizes)
    dims = [d for d in range(len(sizes)) if rng.random() < 0.5]
    if sizes and rng.random() < 0.6:
        dims = [rng.randrange(len(sizes))]
    multiprocessors, bulk = GPUS[rng.choice(tuple(GPUS))]
    if rng.random() < 0.3:
        multiprocessors = rng.randint(1, 200)
    address = rng.choice((0, 0, bytes_ * rng.randrange(256 // bytes_)))
    tuning = tuple(random_tuning(rng).items())
    layout = (tuple(sizes), tuple(strides), tuple(dims))
    values = rng.random() < 0.5
    case = Case(*layout, DTYPES[bytes_], address, multiprocessors, bulk, tuning, values=values)
    task = rng.random()
    if task < 0.2:
        return replace(case, mask=tuple(random_mask_strides(rng, case)))
    return replace(case, softmax=task < 0.3 and case.dtype.is_floating_point)
