"""Cases of any strides: views of one large storage, written as the expression that makes them."""

import ast
import functools
import math
from collections import Counter
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from customops import checks

from .cases import DTYPES, OPS, SOFTMAX, UNREDUCED, Case, tolerance_of

GRAIN_BYTES = {"cuda": 32, "cpu": 64}  # that memory moves at once: a sector, a cache line

RARE = 16_777_213  # a prime, so that no stride meets only these, or none


@dataclass(frozen=True)
class Strided:
    """Of an operator on `torch.as_strided(storage, shape, strides, offset)`; strides and offset in
    elements. `dim`: of several dims a tuple, in ascending order. `mask`: the strides of a mask, if
    there is one, in a storage of its own."""

    op: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str
    dim: int | None | tuple[int, ...]
    mask: tuple[int, ...] | None = None

    timing, index = "auto", "int64"  # as of a cases.Case

    def __str__(self) -> str:
        fields = astuple(self)
        return f"Strided{fields if self.mask else fields[:-1]}"

    @staticmethod
    def has(case: Case) -> bool:
        """Whether the layout is all there is to a listed case."""
        return case.is_plain and not case.has_options and case.op in Case.OPERATORS

    @classmethod
    def of(cls, case: Case) -> "Strided":
        """The layout of a listed case."""
        strides = case.empty("meta").stride()
        dim = case.dims if isinstance(case.dim, tuple) else case.dim
        dim = dim % len(case.shape) if isinstance(dim, int) else dim
        return cls(case.op, case.shape, strides, 0, case.dtype, dim)

    @classmethod
    def parse(cls, text: str) -> "Strided":
        """The case that is written so. Raises ValueError."""
        try:
            case = cls(*_arguments_of(cls.__name__, text))
            case._check()
        except ValueError as error:
            example = cls("argmax", (64, 1000), (2000, 2), 0, "float32", 1)
            raise ValueError(f"it is not like {example}: {error}") from None
        return case

    def _check(self) -> None:
        if not isinstance(self.op, str) or not isinstance(self.dtype, str):
            raise ValueError("the operator and the dtype are words in quotes")
        if not _are_integers(self.shape) or not _are_integers(self.strides):
            raise ValueError("the shape and the strides are tuples of integers")
        if not isinstance(self.offset, int):
            raise ValueError("the offset, after the strides, is an integer")
        if self.dim is not None and not isinstance(self.dim, int) and not _are_integers(self.dim):
            raise ValueError("the dim, after the dtype, is an integer, a tuple of them or None")
        if self.mask is not None and not _are_integers(self.mask):
            raise ValueError("the strides of the mask, after the dim, are a tuple of integers")
        if self.op not in (*OPS, SOFTMAX) or self.dtype not in DTYPES:
            raise ValueError("the operator or the dtype is not known")
        if len(self.shape) != len(self.strides) or min(self.shape, default=0) < 1:
            raise ValueError("a stride for each size, and no size of 0")
        if self.offset < 0 or min(self.strides) < 0:
            raise ValueError("the offset or a stride is negative")
        if list(self.dims) != sorted(set(self.dims) & set(range(len(self.shape)))):
            raise ValueError("the dims are out of range, or not in ascending order")
        if not isinstance(self.dim, int) and not self.op.startswith("arg"):
            raise ValueError("the operator takes one dim")
        if (self.scaled or self.op == SOFTMAX) and DTYPES[self.dtype] not in checks.SCALABLE:
            raise ValueError("the operator takes floating dtypes")
        if self.mask is None:
            return
        if self.scaled or self.op == SOFTMAX or isinstance(self.dim, tuple):
            raise ValueError("the operator takes no mask, or only one dim with it")
        if DTYPES[self.dtype] in UNREDUCED:
            raise ValueError("torch has no answer of this dtype under a mask to compare with")
        if len(self.mask) != len(self.shape) or min(self.mask) < 0:
            raise ValueError("a stride of the mask for each size, and none negative")

    @property
    def scaled(self) -> bool:
        return self.op.startswith("scale_")

    @property
    def extreme(self) -> str:
        """`min` or `max`."""
        return self.op[-3:]

    @property
    def dims(self) -> tuple[int, ...]:
        """Those reduced."""
        if self.dim is None:
            return tuple(range(len(self.shape)))
        return self.dim if isinstance(self.dim, tuple) else (self.dim,)

    @property
    def element_bytes(self) -> int:
        return DTYPES[self.dtype].itemsize

    @property
    def has_options(self) -> bool:
        return self.mask is not None

    @property
    def tolerance(self) -> float:
        """As of a cases.Case."""
        return tolerance_of(self.op, self.dtype)

    @property
    def span_bytes(self) -> int:
        """Of the storage, from its beginning to the last element."""
        return (self.offset + self._last(self.strides) + 1) * self.element_bytes

    def _last(self, strides: tuple[int, ...]) -> int:
        """The place of the last element from the first."""
        return sum((size - 1) * stride for size, stride in zip(self.shape, strides, strict=True))

    def make_mask(self, device: str) -> Tensor | None:
        """The same every time; half of it is True."""
        if self.mask is None:
            return None
        return make_bools(self._last(self.mask) + 1, device).as_strided(self.shape, self.mask)

    @property
    def output_bytes(self) -> int:
        of_each = self.element_bytes * (not self.op.startswith("arg")) + 8 * (not self.scaled)
        kept = (size for d, size in enumerate(self.shape) if d not in self.dims)
        return math.prod(kept) * of_each

    def read_bytes(self, device: str) -> int:
        """Of all sectors or lines in which an element lies, or one of the mask; of a storage that
        begins with one.

        Exact where dims nest: where each stride reaches over all that smaller strides cover.
        """
        grain = GRAIN_BYTES[device]
        elements = self._read_bytes(self.strides, self.element_bytes, grain, self.offset)
        return elements + (0 if self.mask is None else self._read_bytes(self.mask, 1, grain))

    def _read_bytes(
        self, strides: tuple[int, ...], element_bytes: int, grain: int, offset: int = 0
    ) -> int:
        run, starts, runs = element_bytes, Counter({0: 1}), 1
        dims = sorted(
            (stride * element_bytes, size)
            for size, stride in zip(self.shape, strides, strict=True)
            if size > 1 and stride > 0
        )
        for stride, size in dims:
            if runs == 1 and stride - run < grain:  # such a gap holds no whole sector
                run += (size - 1) * stride
                continue
            runs *= size
            starts = _stepped(starts, stride, size, grain)
        first = offset * element_bytes
        return grain * sum(
            count * (((first + start) % grain + run - 1) // grain + 1)
            for start, count in starts.items()
        )

    def moved_bytes(self, device: str) -> int:
        """That have to be read and written."""
        return self.read_bytes(device) + self.output_bytes


def _arguments_of(name: str, text: str) -> list[Any]:
    """Of the call of `name` that is written so. Raises ValueError."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        call = None
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != name or call.keywords:
        raise ValueError("it is another expression")
    if len(call.args) not in (6, 7):
        raise ValueError(
            f"it has {len(call.args)} fields, and there are six: op, shape, strides, offset, "
            "dtype, dim; with a mask seven, its strides the last"
        )
    try:
        return [ast.literal_eval(argument) for argument in call.args]
    except ValueError:
        raise ValueError("its fields are numbers, words in quotes and tuples") from None


def _are_integers(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(number, int) for number in value)


@functools.lru_cache(1)  # every contender takes the same
def make_bools(count: int, device: str) -> Tensor:
    """So many, of which half are True. The first is, lest one alone hides all there is to read."""
    torch.manual_seed(1)
    bools = torch.empty(count, dtype=torch.bool, device=device).random_(0, 2)
    bools[0] = True
    return bools


def _stepped(starts: Counter, stride: int, size: int, grain: int) -> Counter:
    """How many runs start at each byte of a sector, where each of `starts` comes `size` times,
    `stride` apart."""
    steps = Counter()
    for i in range(min(size, grain)):  # after `grain` steps they come again
        steps[i * stride % grain] += (size - i - 1) // grain + 1
    found = Counter()
    for start, count in starts.items():
        for step, times in steps.items():
            found[(start + step) % grain] += count * times
    return found


class Arena:
    """One storage, written once, of which every case is a view.

    Its bits are no NaN and no infinity in any dtype, and no integer type's extreme, at which an
    operator may stop reading: bit 6 of each byte is clear and bit 0 is set. Of bools that is one in
    RARE.
    """

    def __init__(self, device: str, size: int) -> None:
        generator = torch.Generator(device).manual_seed(0)
        self._words = torch.empty(-(-size // 8), dtype=torch.int64, device=device)
        self._words.random_(-(2**63), None, generator=generator)
        self._words.bitwise_and_(~_in_every_byte(0x40)).bitwise_or_(_in_every_byte(0x01))
        self._bools: dict[str, Tensor] = {}

    def _bools_for(self, extreme: str) -> Tensor:
        if extreme not in self._bools:
            rare = extreme == "max"
            bools = torch.full_like(self._words.view(torch.uint8), not rare, dtype=torch.bool)
            bools[RARE // 2 :: RARE] = rare
            self._bools[extreme] = bools
        return self._bools[extreme]

    def view(self, case: Strided) -> Tensor:
        if case.dtype == "bool":
            elements = self._bools_for(case.extreme)
        else:
            elements = self._words.view(DTYPES[case.dtype])
        return elements.as_strided(case.shape, case.strides, case.offset)

    def bytes(self, count: int) -> Tensor:
        """So many, from the beginning."""
        return self._words.view(torch.uint8)[:count]

    @staticmethod
    def size_for(cases: list[Strided], device: str) -> int:
        """That holds every case, and as many bytes as each has to move."""
        return max(max(case.span_bytes, case.moved_bytes(device)) for case in cases)


def _in_every_byte(byte: int) -> int:
    return int.from_bytes(bytes([byte] * 8), "little", signed=True)
