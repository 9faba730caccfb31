"""What is measured: the cases of each suite, and how their inputs are made."""

import functools
import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from customops import checks

SCALE = 2.0
DTYPES = {checks.dtype_name(dtype): dtype for dtype in checks.SUPPORTED}
# Which torch does not reduce; see peers.comparable.
UNREDUCED = (*(torch.uint16, torch.uint32, torch.uint64), torch.float8_e4m3fn, torch.float8_e5m2)
OPS = ("argmin", "argmax", "min", "max", "scale_min", "scale_max")
SOFTMAX = "softmax_max"
CONVOLUTIONS = ("conv2d_scale_min", "conv2d_scale_max")  # see convolutions.py
LAYOUTS = ("contiguous", "channels_last", "transposed")
DATA = ("random", "sorted", "reversed", "constant", "nan")
TIMINGS = ("auto", "graph", "host")
# The shape of a mask: that of the input, of its last dim, or 1 in the reduced dim.
MASKS = ("full", "last", "kept")
INDEX_DTYPES = ("int64", "int32", "uint16", "uint8")


def tolerance_of(op: str, dtype: str) -> float:
    """Of a right result, relative: it is rounded; in float64, so are its differences."""
    if op != SOFTMAX:
        return 0.0
    return (8 if dtype == "float64" else 4) * torch.finfo(DTYPES[dtype]).eps


@dataclass(frozen=True)
class Case:
    op: str
    shape: tuple[int, ...]
    dim: int | None | tuple[int, ...]
    dtype: str = "float32"
    layout: str = "contiguous"  # of LAYOUTS
    data: str = "random"  # of DATA: sorted, reversed (along dim), constant, nan (all)
    timing: str = "auto"  # on a GPU: auto, graph (replayed, warm L2) or host (the Python call)
    mask: str = ""  # of MASKS; half of it is True
    index: str = "int64"  # of INDEX_DTYPES
    group: str = ""  # the line of a scaling plot

    OPERATORS: ClassVar[tuple[str, ...]] = (*OPS, SOFTMAX)
    EXAMPLE: ClassVar[str] = "argmax (64, 1000) dim=-1 float32"

    def __str__(self) -> str:
        said = [f"{self.op} {self.shape} dim={self.dim} {self.dtype}"]
        for value, usual in ((self.layout, "contiguous"), (self.data, "random")):
            said += [value] * (value != usual)
        said += [self.timing] * (self.timing != "auto")
        said += [f"mask={self.mask}"] * (self.mask != "")
        said += [f"index={self.index}"] * (self.index != "int64")
        return " ".join(said)

    @classmethod
    def parse(cls, text: str) -> "Case":
        """The case that is written so: `argmax (2, 21, 64, 64) dim=1 float32 channels_last`, of
        several dims `dim=(2, 3)`. All but the operator, the shape and the dim has a default. Raises
        ValueError, which says why."""
        return cls.read(text).checked()

    @staticmethod
    def _lacks(text: str) -> str:
        lacks = []
        if re.match(r" *\w+\(", text):
            lacks.append("there is no space between the operator and the sizes")
        elif not re.match(r" *\w+ \(", text):
            lacks.append("the sizes are not in brackets")
        if "dim=" not in text:
            lacks.append("dim= is missing, as in dim=1 or dim=None")
        if re.search(r"dim=\[?-?\d+ *,", text):
            lacks.append("several dims are written dim=(0, 1)")
        return ": " * bool(lacks) + "; ".join(lacks)

    @classmethod
    def read(cls, text: str) -> "Case":
        """The same, whether the operator takes it or not."""
        shape, dims = r"\((\d+(?: *, *\d+)* *,?)\)", r"\(-?\d+(?: *, *-?\d+)* *,?\)"
        head = re.fullmatch(rf"(\w+) {shape} dim=(-?\d+|None|{dims})((?: [\w=]+)*)", text.strip())
        if not head:
            raise ValueError(f"it is not like {cls.EXAMPLE!r}{cls._lacks(text)}")
        if head[1] not in cls.OPERATORS:
            known = ", ".join((*OPS, SOFTMAX, *CONVOLUTIONS))
            raise ValueError(f"there is no operator {head[1]!r}; there are {known}")
        shape = tuple(int(size) for size in head[2].split(",") if size.strip())
        numbers = tuple(int(dim) for dim in re.findall(r"-?\d+", head[3]))
        dim = numbers if "(" in head[3] else next(iter(numbers), None)
        if 0 in shape:
            raise ValueError("a size is 0, and there is nothing to time")
        for d in numbers:
            if not -len(shape) <= d < len(shape):
                raise ValueError(f"dim {d} is out of range for {len(shape)} sizes")
        options = {}
        known = {"dtype": DTYPES, "layout": LAYOUTS, "data": DATA, "timing": TIMINGS}
        known |= {
            "mask": [f"mask={word}" for word in MASKS],
            "index": [f"index={word}" for word in INDEX_DTYPES],
        }
        for word in head[4].split():
            kind = next((kind for kind, words in known.items() if word in words), None)
            if kind is None:
                words = "; ".join(f"{name}: {', '.join(words)}" for name, words in known.items())
                raise ValueError(f"{word!r} is not known. There are {words}")
            if kind in options:
                raise ValueError(f"{word!r} is a second {kind}")
            options[kind] = word.removeprefix(f"{kind}=")
        return cls(head[1], shape, dim, **options)

    def checked(self) -> "Case":
        if problem := self.problem():
            raise ValueError(problem)
        return self

    @property
    def scaled(self) -> bool:
        return self.op.startswith("scale_")

    @property
    def extreme(self) -> str:
        """`min` or `max`."""
        return self.op[-3:]

    @property
    def dims(self) -> tuple[int, ...]:
        """Those reduced, in ascending order."""
        if self.dim is None:
            return tuple(range(len(self.shape)))
        given = self.dim if isinstance(self.dim, tuple) else (self.dim,)
        return tuple(sorted(d % len(self.shape) for d in given))

    @property
    def is_plain(self) -> bool:
        """Of random data, and timed as all are."""
        return self.data == "random" and self.timing == "auto"

    @property
    def input_bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def mask_shape(self) -> tuple[int, ...] | None:
        if not self.mask:
            return None
        if self.mask == "last":
            return self.shape[-1:]
        reduced = self.dims if self.mask == "kept" else ()
        return tuple(1 if d in reduced else size for d, size in enumerate(self.shape))

    @property
    def mask_bytes(self) -> int:
        return 0 if self.mask_shape is None else math.prod(self.mask_shape)

    @property
    def index_bytes(self) -> int:
        return getattr(torch, self.index).itemsize

    @property
    def has_options(self) -> bool:
        return self.mask != "" or self.index != "int64"

    @property
    def tolerance(self) -> float:
        return tolerance_of(self.op, self.dtype)

    def problem(self) -> str:
        """Why the operator does not take this; empty if it does."""
        only_floats = self.scaled or self.op == SOFTMAX
        if self.layout == "channels_last" and len(self.shape) != 4:
            return "channels_last needs four sizes"
        if not isinstance(self.dim, int) and not self.op.startswith("arg"):
            return f"{self.op} needs a dim: only argmin and argmax take dim=None and several dims"
        if len(set(self.dims)) < len(self.dims):
            return f"dim={self.dim} names a dim twice"
        if self.dim is None and self.mask == "kept":
            return "mask=kept needs a dim, in which the mask has size 1"
        if only_floats and self.has_options:
            return f"{self.op} takes no mask= and no index="
        if only_floats and DTYPES[self.dtype] not in checks.SCALABLE:
            return f"{self.op} needs a floating dtype, not {self.dtype}"
        if self.data == "nan" and not DTYPES[self.dtype].is_floating_point:
            return f"nan needs a floating dtype, not {self.dtype}"
        if self.mask and DTYPES[self.dtype] in UNREDUCED:
            return f"under a mask torch has no answer of {self.dtype} to compare with"
        extent = math.prod(self.shape[d] for d in self.dims)
        if extent > torch.iinfo(getattr(torch, self.index)).max + 1:
            return f"{self.index} cannot hold every index of {extent} elements"
        return ""

    def make_input(self, device: str) -> Tensor:
        """The same input every time, of the case's layout."""
        torch.manual_seed(0)
        x = self.empty(device)
        if self.data == "random":
            return _fill_randomly(x)
        if self.data in ("constant", "nan"):
            return x.fill_(math.nan if self.data == "nan" else 1)
        along = self.dims[0]
        extent = x.size(along)
        ramp = torch.arange(extent, device=device, dtype=torch.float64)
        ramp = ramp.flip(0) if self.data == "reversed" else ramp
        tail = x.dim() - 1 - along
        return x.copy_(ramp.reshape(extent, *[1] * tail).expand(x.shape))

    def make_mask(self, device: str) -> Tensor | None:
        return None if self.mask_shape is None else _make_mask(self.mask_shape, device)

    def empty(self, device: str) -> Tensor:
        """Of the case's layout, without contents."""
        options = {"device": device, "dtype": DTYPES[self.dtype]}
        if self.layout == "transposed":
            return torch.empty(self.shape[::-1], **options).permute(*range(len(self.shape))[::-1])
        if self.layout == "channels_last":
            return torch.empty(self.shape, memory_format=torch.channels_last, **options)
        return torch.empty(self.shape, **options)


@functools.lru_cache(1)  # every contender takes the same
def _make_mask(shape: tuple[int, ...], device: str) -> Tensor:
    torch.manual_seed(1)
    return torch.empty(shape, dtype=torch.bool, device=device).random_(0, 2)


def _fill_randomly(x: Tensor) -> Tensor:
    """Normal floats; integers over all of their range but its ends, at which a row may be over."""
    if x.dtype.is_floating_point:
        return x.copy_(torch.randn_like(x, dtype=torch.float32)) if x.itemsize == 1 else x.normal_()
    if x.dtype == torch.bool:
        return x.random_(0, 2)
    integers = x.view(torch.int64) if x.dtype == torch.uint64 else x  # which random_ cannot exceed
    limits = torch.iinfo(integers.dtype)
    integers.random_(limits.min + 1, limits.max)
    return x


def select(
    suite: str,
    device: str,
    free_bytes: int,
    *,
    only: Collection[str] = (),
    ops: Collection[str] = (),
    dtype: str | None = None,
) -> list[Case]:
    """The cases of a suite, each once; `ops` and `dtype` replace those of every case, and what is
    left has one of `only` in its name."""
    cases = {
        replace(case, op=op, dtype=dtype or case.dtype): None
        for case in SUITES[suite](device, free_bytes)
        for op in (ops or (case.op,))
    }
    wanted = [case for case in cases if not only or any(text in str(case) for text in only)]
    return [case for case in wanted if not case.problem()]


def _seeds(device: str, free_bytes: int) -> Iterator[Case]:
    """The three documents' shapes; the batch is halved until torch's own intermediates fit too."""

    def batch(most: int, sample_bytes: int) -> int:
        most = most if device == "cuda" else 16
        while most > 1 and most * sample_bytes * 3 > free_bytes:
            most //= 2
        return most

    n = batch(128, 4096 * 4095 * 4)
    for op in ("argmin", "argmax"):
        for dim in (1, 2, 0):
            yield Case(op, (n, 4096, 4095), dim)
    n = batch(64, 128 * 254 * 254 * 4)
    for layout in ("contiguous", "channels_last"):
        yield Case("scale_min", (n, 128, 254, 254), 1, layout=layout)


def _sweep(device: str, free_bytes: int) -> Iterator[Case]:
    return _sweep_cuda() if device == "cuda" else _sweep_cpu()


def _sweep_cpu() -> Iterator[Case]:
    columns, rows = (4, 4096, 4095), (16, 4096, 1024)
    yield Case("argmax", columns, 1)
    yield Case("argmax", rows, -1)
    yield Case("argmax", (2, 256, 256, 256), 0, "float64")
    yield Case("argmax", (1, 19, 1024, 2048), 1)
    yield Case("argmax", (64, 151936), -1)
    yield Case("argmax", (2**26,), None)
    yield Case("argmax", (2**26,), 0)  # the same, for the operators that need a dim
    yield Case("argmax", (2**20, 32), -1)
    yield Case("argmax", (2**20, 64), 0)
    yield Case("argmax", (8, 64, 254, 254), 1)
    yield Case("argmax", (64, 151936), -1, "bfloat16")
    yield Case("argmax", (2**26,), None, "int8")
    yield Case("argmax", (2**26,), 0, "int8")
    yield Case("argmax", (8, 64, 254, 254), 1, layout="channels_last")
    yield Case("argmax", (8192, 4096), -1, layout="transposed")
    yield Case("min", rows, -1)
    yield Case("max", (8, 64, 254, 254), 1)
    for layout in ("contiguous", "channels_last"):
        yield Case("scale_min", (4, 128, 254, 254), 1, layout=layout)
    for dtype in ("int8", "int16", "bfloat16", "float16", "float64", "int64", "bool"):
        yield Case("argmax", columns, 1, dtype)
        yield Case("argmax", rows, -1, dtype)
    for data in DATA[1:]:
        yield Case("argmax", rows, -1, data=data)
        yield Case("argmax", (8, 64, 254, 254), 1, data=data)
    for dtype in ("float32", "bfloat16", "int8"):  # what fits in L2
        yield Case("argmax", (4096,), None, dtype)
        yield Case("argmax", (64, 1000), -1, dtype)
        yield Case("argmax", (128, 64, 64), 1, dtype)
        yield Case("argmax", (1000, 64), 0, dtype)
        yield Case("argmax", (4096, 16), -1, dtype)
    yield Case("min", (64, 1000), -1)
    yield Case("scale_min", (1, 32, 64, 64), 1)


def _sweep_cuda() -> Iterator[Case]:
    """Every regime of the kernels; a vocabulary's row also in graph replay."""
    big = (128, 4096, 4095)
    yield Case("argmin", big, 1)
    yield Case("argmax", big, 1)
    yield Case("argmax", big, -1)
    yield Case("argmin", big, 0)
    yield Case("argmin", (32, 4096, 4096), 1)
    yield Case("argmax", (32, 4096, 4095), 1, "bfloat16")
    yield Case("argmax", (16, 4096, 4095), 1, "float64")
    yield Case("argmax", (64, 4096, 4095), 1, "int8")
    yield Case("argmax", (16, 4096, 4095), 1, "int64")
    yield Case("argmax", (1, 128256), -1, "bfloat16")
    yield Case("argmax", (8, 128256), -1, "bfloat16")
    yield Case("argmax", (64, 151936), -1)
    yield Case("argmax", (64, 151936), -1, timing="graph")
    yield Case("argmax", (256, 151936), -1, "bfloat16")
    yield Case("argmax", (1024, 128256), -1)
    yield Case("argmax", (8, 150, 512, 512), 1)
    yield Case("argmax", (16, 21, 512, 512), 1)
    yield Case("argmax", (8, 150, 512, 512), 1, layout="channels_last")
    yield Case("argmax", (16, 21, 512, 512), 1, "bfloat16", layout="channels_last")
    yield Case("argmax", (2, 256, 256, 256), 0)
    yield Case("argmin", (2**28,), None)
    yield Case("argmin", (2**20,), None)
    yield Case("argmin", (4194304, 32), -1)
    yield Case("argmin", (16777216, 8), -1)
    yield Case("argmin", (2**20, 100), -1)
    yield Case("argmax", (65536, 1000), -1)
    yield Case("argmax", (65536, 1000), -1, "bfloat16")
    yield Case("argmin", (64, 2**20), -1)
    yield Case("argmin", (2**20, 64), 0)
    yield Case("argmin", (8388608, 8), 0)
    yield Case("argmin", (65536, 1024), 0)
    yield Case("argmin", (1024, 4096, 16), 1)
    yield Case("argmin", (65536, 64, 32), 1)
    yield Case("argmin", (65536, 17, 33), 1)
    yield Case("argmin", (16384, 16384), -1, layout="transposed")
    yield Case("argmin", (16,), 0)
    yield Case("argmax", (32, 1000), -1)
    yield Case("argmin", (128, 64, 256), 1)
    yield Case("min", (32, 4096, 4095), 1)
    yield Case("min", (65536, 1000), -1)
    yield Case("max", (64, 151936), -1)
    yield Case("max", (64, 151936), -1, timing="graph")
    yield Case("scale_min", (64, 128, 254, 254), 1)
    yield Case("scale_min", (64, 128, 254, 254), 1, layout="channels_last")
    yield Case("scale_min", (16, 64, 128, 128), 1)


def _latency(device: str, free_bytes: int) -> Iterator[Case]:
    """Tiny tensors, where the Python call is what takes the time; on a GPU the kernel as well."""
    for timing in ("host", "graph") if device == "cuda" else ("host",):
        for op in ("argmax", "argmin"):
            yield Case(op, (16,), 0, timing=timing)
            yield Case(op, (16,), None, timing=timing)
        for op in ("argmax", "argmin", "max", "min"):
            yield Case(op, (4, 4), 1, timing=timing)
            yield Case(op, (32, 10), -1, timing=timing)
            yield Case(op, (8, 4, 4), 1, timing=timing)
        yield Case("argmax", (32, 1000), -1, timing=timing)
        yield Case("scale_min", (1, 4, 2, 2), 1, timing=timing)


def _scaling(device: str, free_bytes: int) -> Iterator[Case]:
    """2^10 to 2^26 (CPU) or 2^30 (GPU) elements: flat, and a square over either dim."""
    for exponent in range(10, 31 if device == "cuda" else 27, 2):
        side = 2 ** (exponent // 2)
        yield Case("argmax", (2**exponent,), None, group="flat")
        yield Case("argmax", (side, side), -1, group="rows of a square")
        yield Case("argmax", (side, side), 0, group="columns of a square")


def _options(device: str, free_bytes: int) -> Iterator[Case]:
    """Masks, dtypes of indices, and softmax_max; smaller on a CPU."""
    on_gpu = device == "cuda"
    rows, columns = ((64, 151936), (65536, 1000)), ((8, 64, 254, 254),)
    columns = ((32, 4096, 4096), *columns) if on_gpu else ((2, 4096, 4096), *columns)
    for dtype in ("float32", "bfloat16", "uint8"):
        for op in ("argmax", "max"):
            for mask in ("full", "last"):
                for shape in rows:
                    yield Case(op, shape, -1, dtype, mask=mask)
            for mask in ("full", "last", "kept"):
                for shape in columns:
                    yield Case(op, shape, 1, dtype, mask=mask)
    for index in INDEX_DTYPES:
        yield Case("argmax", (2, 256, 256, 256), 0, index=index)
        for classes in (19, 150):
            yield Case("argmax", (8 if on_gpu else 1, classes, 512, 512), 1, index=index)
    for dtype in ("float32", "bfloat16"):
        for shape, dim in (
            *((shape, -1) for shape in ((256, 151936), (65536, 1000))),
            *((shape, 1) for shape in (columns[0], (8, 64, 254, 254), (8, 150, 512, 512))),
        ):
            yield Case(SOFTMAX, shape, dim, dtype)


SUITES = {
    **{"seeds": _seeds, "sweep": _sweep, "latency": _latency, "scaling": _scaling},
    "options": _options,
}
