"""Random cases: shapes, layouts, dtypes and operators that nobody listed.

A case depends on the seed and its number alone, on every machine and with every Python: only
`random.random()`, which is promised to stay as it is, and exact arithmetic.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from .cases import DTYPES, SOFTMAX
from .strided import Strided

T = TypeVar("T")

LEAST_BYTES = {"cuda": 4 << 20, "cpu": 64 << 10}  # that a case moves
MOST_BYTES = {"cuda": 1 << 30, "cpu": 64 << 20}
MOST_ELEMENTS = 1 << 28
MOST_SPANS = 4  # the storage, as a multiple of MOST_BYTES

RANKS = (1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5)
OPS = ("argmin", "argmax") * 3 + ("min", "max") * 2 + ("scale_min", "scale_max")
FLOATS = ("float32",) * 4 + ("bfloat16",) * 3 + ("float16",) * 2 + ("float64",)
INTEGERS = ("int8", "uint8", "int16", "int32", "int64", "bool")
USUAL = (3, 4, 5, 7, 8, 10, 12, 16, 19, 21, 32, 50, 64, 80, 96, 100, 128, 150, 197, 224)
USUAL += (254, 256, 384, 512, 768, 1000, 1024, 2048, 4095, 4096, 8192, 16384, 50257, 65536, 128256)


class Dice:
    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def below(self, n: int) -> int:
        return int(self._random() * n)

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in items]

    def between(self, least: int, most: int) -> int:
        """All octaves are equally likely."""
        octaves = max(1, (most // least).bit_length() - 1)
        return min(most, int(math.ldexp(least * (1 + self._random()), self.below(octaves))))

    def size(self, most: int) -> int:
        """Of a dim: a power of two, one beside it, a usual one, or any."""
        kind = self.below(6)
        exact = 1 << self.below(most.bit_length())
        if kind < 2:
            return exact
        if kind == 2:
            return min(most, max(1, exact + self.pick((-1, 1))))
        usual = [size for size in USUAL if size <= most]
        if kind == 3 and usual:
            return self.pick(usual)
        return self.between(1, most)


def sample(seed: int, count: int, device: str, options: bool = False) -> list[Strided]:
    """The first `count` cases of a seed; with `options`, of softmax_max, and with masks."""
    return [draw(Dice(f"{seed}/{index}"), device, options) for index in range(count)]


def draw(dice: Dice, device: str, options: bool = False) -> Strided:
    """The first of this dice's cases that has a size of those wanted."""
    least, most = LEAST_BYTES[device], MOST_BYTES[device]
    while True:
        case = _draw_any(dice, dice.between(least, most))
        if options:
            case = _with_options(dice, case)
        fits = case.span_bytes <= MOST_SPANS * most and math.prod(case.shape) <= MOST_ELEMENTS
        if fits and least <= case.moved_bytes(device) <= most:
            return case


def _draw_any(dice: Dice, size: int) -> Strided:
    """An input of about `size` bytes."""
    op = dice.pick(OPS)
    integers = not op.startswith("scale_") and dice.chance(0.4)
    dtype = dice.pick(INTEGERS if integers else FLOATS)
    shape = _draw_shape(dice, size // DTYPES[dtype].itemsize)
    strides = _draw_strides(dice, shape)
    if len(shape) < 5 and dice.chance(0.12):  # as unsqueeze or expand makes it
        at, added = dice.below(len(shape) + 1), dice.pick((1, 1, 2, 3, 8, 20, 64))
        outer = shape[at] * strides[at] if at < len(shape) else 1
        shape.insert(at, added)
        strides.insert(at, 0 if added > 1 else outer)
    offset = dice.pick((1, 2, 3, 4, 8, 13, 100, 1001)) if dice.chance(0.2) else 0
    dim = _draw_dim(dice, op, shape)
    return Strided(op, tuple(shape), tuple(strides), offset, dtype, dim)


def _with_options(dice: Dice, case: Strided) -> Strided:
    """Of the same input. What is no float and has a mask has no element that loses to all others,
    as every second bool would."""
    dim = case.dim if isinstance(case.dim, int) else dice.below(len(case.shape))
    if DTYPES[case.dtype].is_floating_point and dice.chance(0.35):
        return replace(case, op=SOFTMAX, dim=dim)
    op = dice.pick(("argmin", "argmax", "min", "max"))
    dtype = "uint8" if case.dtype == "bool" else case.dtype
    if op.startswith("arg") and case.dim is None:
        dim = None
    return replace(case, op=op, dtype=dtype, dim=dim, mask=_draw_mask(dice, case))


def _draw_mask(dice: Dice, case: Strided) -> tuple[int, ...]:
    """The strides of a mask: in the order of the input or another, of some dims or all."""
    rank = len(case.shape)
    order = sorted(range(rank), key=lambda d: -case.strides[d])
    if dice.chance(0.4):
        order = dice.pick((list(range(rank)), order[::-1], dice.shuffled(order)))
    absent = dice.pick(((), (), (), tuple(range(rank)), (case.dims[0],), range(rank - 1)))
    if dice.chance(0.2):
        absent = tuple(d for d in range(rank) if dice.chance(0.5))
    strides, covered = [0] * rank, dice.pick((1, 1, 1, 1, 2, 3))
    for d in reversed(order):
        if d not in absent:
            strides[d] = covered
            covered *= case.shape[d]
            covered += dice.pick((1, 3, 8)) if dice.chance(0.1) else 0
    return tuple(strides)


def _draw_shape(dice: Dice, elements: int) -> list[int]:
    """Of about so many elements."""
    shape: list[int] = []
    for _ in range(dice.pick(RANKS) - 1):
        # Seldom all that is left: the other dims would have size 1.
        most = elements if dice.chance(0.2) else 1 << elements.bit_length() * 2 // 3
        shape.append(dice.size(min(most, elements)))
        elements //= shape[-1]
    return dice.shuffled([*shape, elements])


def _draw_strides(dice: Dice, shape: list[int]) -> list[int]:
    """A permutation of a contiguous tensor, of which a dim may be cropped or stepped over."""
    rank = len(shape)
    order = list(range(rank))  # from the outermost to the innermost in memory
    if dice.chance(0.5):
        channels_last = [0, *range(2, rank), 1] if rank > 2 else order[::-1]
        order = dice.pick((channels_last, order[::-1], dice.shuffled(order)))
    stepped = dice.pick(order) if dice.chance(0.15) else None
    crops = dice.chance(0.2)
    strides, covered = [0] * rank, 1
    for d in reversed(order):
        step = dice.pick((2, 2, 3, 4, 10)) if d == stepped else 1
        gap = dice.pick((1, 2, 8, 100, shape[d])) if crops and dice.chance(0.4) else 0
        strides[d] = covered * step
        covered *= shape[d] * step + gap
    return strides


def _draw_dim(dice: Dice, op: str, shape: list[int]) -> int | None | tuple[int, ...]:
    rank = len(shape)
    several = op.startswith("arg") and dice.chance(0.25)
    if not several:
        dim = dice.below(rank)
        # There are many sizes of 1, and few who reduce one.
        return dice.below(rank) if shape[dim] == 1 and dice.chance(0.8) else dim
    if rank < 3 or dice.chance(0.2):
        return None
    return tuple(sorted(dice.shuffled(range(rank))[: 2 + dice.below(rank - 2)]))
