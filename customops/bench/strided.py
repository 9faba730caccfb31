"""Cases of any strides: views of one large storage, written as the expression that makes them."""

import ast
import math
from collections import Counter
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from .cases import DTYPES, OPS, Case

GRAIN_BYTES = {"cuda": 32, "cpu": 64}  # that memory moves at once: a sector, a cache line

RARE = 16_777_213  # a prime, so that no stride meets only these, or none


@dataclass(frozen=True)
class Strided:
    """Of an operator on `torch.as_strided(storage, shape, strides, offset)`; strides and offset in
    elements. `dim`: of several dims a tuple, in ascending order."""

    op: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str
    dim: int | None | tuple[int, ...]

    timing = "auto"  # as of a cases.Case

    def __str__(self) -> str:
        return f"Strided{astuple(self)}"

    @classmethod
    def of(cls, case: Case) -> "Strided":
        """The layout of a listed case."""
        strides = case.empty("meta").stride()
        dim = None if case.dim is None else case.dim % len(case.shape)
        return cls(case.op, case.shape, strides, 0, case.dtype, dim)

    @classmethod
    def parse(cls, text: str) -> "Strided":
        """The case that is written so. Raises ValueError."""
        try:
            call = ast.parse(text.strip(), mode="eval").body
            if not isinstance(call, ast.Call) or ast.unparse(call.func) != cls.__name__:
                raise ValueError("another expression")
            case = cls(*map(ast.literal_eval, call.args))
            case._check()
        except (ValueError, TypeError, SyntaxError) as error:
            example = cls("argmax", (64, 1000), (2000, 2), 0, "float32", 1)
            raise ValueError(f"{text!r} is not like {example}: {error}") from None
        return case

    def _check(self) -> None:
        if self.op not in OPS or self.dtype not in DTYPES:
            raise ValueError("the operator or the dtype is not known")
        if len(self.shape) != len(self.strides) or min(self.shape, default=0) < 1:
            raise ValueError("a stride for each size, and no size of 0")
        if self.offset < 0 or min(self.strides) < 0:
            raise ValueError("the offset or a stride is negative")
        if list(self.dims) != sorted(set(self.dims) & set(range(len(self.shape)))):
            raise ValueError("the dims are out of range, or not in ascending order")
        if not isinstance(self.dim, int) and not self.op.startswith("arg"):
            raise ValueError("the operator takes one dim")
        if self.scaled and not DTYPES[self.dtype].is_floating_point:
            raise ValueError("the operator takes floating dtypes")

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
    def span_bytes(self) -> int:
        """Of the storage, from its beginning to the last element."""
        steps = ((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (self.offset + sum(steps) + 1) * self.element_bytes

    @property
    def output_bytes(self) -> int:
        of_each = self.element_bytes * (not self.op.startswith("arg")) + 8 * (not self.scaled)
        kept = (size for d, size in enumerate(self.shape) if d not in self.dims)
        return math.prod(kept) * of_each

    def read_bytes(self, device: str) -> int:
        """Of all sectors or lines in which an element lies; of a storage that begins with one.

        Exact where dims nest: where each stride reaches over all that smaller strides cover.
        """
        grain = GRAIN_BYTES[device]
        run, starts, runs = self.element_bytes, Counter({0: 1}), 1
        dims = sorted(
            (stride * self.element_bytes, size)
            for size, stride in zip(self.shape, self.strides, strict=True)
            if size > 1 and stride > 0
        )
        for stride, size in dims:
            if runs == 1 and stride - run < grain:  # such a gap holds no whole sector
                run += (size - 1) * stride
                continue
            runs *= size
            starts = _stepped(starts, stride, size, grain)
        first = self.offset * self.element_bytes
        return grain * sum(
            count * (((first + start) % grain + run - 1) // grain + 1)
            for start, count in starts.items()
        )

    def moved_bytes(self, device: str) -> int:
        """That have to be read and written."""
        return self.read_bytes(device) + self.output_bytes


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
