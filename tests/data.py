"""Input data: bit patterns that are hard for a reduction, layouts that are hard for its walk."""

import functools
import math

import torch
from reference import BITS

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
)
DTYPES = (torch.bool, *INTEGERS, *FLOATS, *FLOAT8)

# Quiet and signalling, both signs, lowest and highest payload.
NAN_BITS = {
    torch.float16: (0x7E00, 0x7C01, 0x7FFF, 0xFE00, 0xFC01, 0xFFFF),
    torch.bfloat16: (0x7FC0, 0x7F81, 0x7FFF, 0xFFC0, 0xFF81, 0xFFFF),
    torch.float32: (0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFC00000, 0xFF800001, 0xFFFFFFFF),
    torch.float64: (
        *(0x7FF8 << 48, (0x7FF0 << 48) + 1, (1 << 63) - 1),
        *(0xFFF8 << 48, (0xFFF0 << 48) + 1, (1 << 64) - 1),
    ),
    torch.float8_e4m3fn: (0x7F, 0xFF),
    torch.float8_e5m2: (0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF),
}


def from_bits(patterns, dtype):
    """A tensor of `dtype` whose elements have these bit patterns (non-negative integers)."""
    size = dtype.itemsize
    raw = bytearray(b"".join(pattern.to_bytes(size, "little") for pattern in patterns))
    return torch.frombuffer(raw, dtype=BITS[size]).clone().view(dtype)


def special_values(dtype):
    """The values of `dtype` at which orders go wrong, NaNs not among them."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    size = 8 * dtype.itemsize
    if dtype in INTEGERS:
        top = 1 << (size - 1)
        patterns = [0, 1, 2, top - 2, top - 1, top, top + 1, 2 * top - 2, 2 * top - 1]
        if size == 64:
            # Neighbours that one float64 stands for.
            patterns += [(1 << 53) + i for i in range(3)] + [top - (1 << 53) - i for i in range(3)]
        return from_bits(patterns, dtype)
    infinity = {torch.float8_e4m3fn: 448.0}.get(dtype, math.inf)
    tiny = from_bits([1], dtype).to(torch.float64).item()
    big = torch.finfo(dtype).max
    values = [0.0, 1.0, tiny, big, infinity]
    values = torch.tensor([*values, *(-v for v in values)], dtype=torch.float64)
    return values.to(dtype)


def nans(dtype):
    return from_bits(NAN_BITS[dtype], dtype)


def take(pool, shape, generator):
    return taken(pool, torch.randint(len(pool), shape, generator=generator))


def taken(pool, picks):
    return pool.view(BITS[pool.element_size()])[picks.long()].view(pool.dtype)


def picks(count, shape, seed):
    """Numbers below a small count. To draw them takes longer than what most tests do with them, and
    tests of one shape follow each other."""
    shape = tuple(shape)
    return (_picks if math.prod(shape) < 1 << 22 else _picks.__wrapped__)(count, shape, seed)


@functools.lru_cache(maxsize=64)
def _picks(count, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(count, shape, generator=generator).to(torch.uint8)


def make(shape, dtype, kind, seed=0):
    """A contiguous CPU tensor.

    kinds: "random" bits without NaN, "ties" of a few values, "special" values and a few NaNs,
    "smooth" numbers of moderate size for arithmetic.
    """
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if kind == "smooth":
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * 8).to(dtype)
    if kind == "ties":
        return picks(3, shape, seed).to(dtype, copy=True)
    if kind == "special":
        pool = special_values(dtype)
        if dtype in NAN_BITS:
            # Few enough NaNs for most groups to have none.
            width = BITS[dtype.itemsize]
            pool = torch.cat([pool.view(width)] * 3 + [nans(dtype).view(width)[:3]]).view(dtype)
        return taken(pool, picks(len(pool), shape, seed))
    raw = torch.randint(0, 256, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
    x = raw.view(dtype).squeeze(-1)
    if dtype in NAN_BITS:
        wide = x.to(torch.float64)
        replaced = torch.where(
            wide.isnan(), torch.zeros((), dtype=BITS[dtype.itemsize]), x.view(BITS[dtype.itemsize])
        )
        x = replaced.view(dtype)
    return x


def _offset(make_, shape):
    """Starts one element after an aligned address."""
    count = math.prod(shape)
    return make_((count + 1,))[1:].view(shape)


LAYOUTS = {
    "vector": lambda make_: make_((37,)),
    "contiguous": lambda make_: make_((3, 5, 7)),
    "wide": lambda make_: make_((5, 67)),
    "tall": lambda make_: make_((67, 5)),
    "transposed": lambda make_: make_((7, 35)).t(),
    "permuted": lambda make_: make_((3, 5, 7)).permute(2, 0, 1),
    "reversed": lambda make_: make_((5, 2, 3, 40)).permute(3, 2, 1, 0),
    "channels_last": lambda make_: make_((2, 4, 6, 5)).permute(0, 3, 1, 2),
    "step": lambda make_: make_((4, 11, 9))[:, ::2, 1::3],
    "step_rows": lambda make_: make_((9, 40))[::3, ::2],
    "expanded_first": lambda make_: make_((1, 5, 7)).expand(3, 5, 7),
    "expanded_middle": lambda make_: make_((3, 1, 7)).expand(3, 5, 7),
    "expanded_last": lambda make_: make_((3, 5, 1)).expand(3, 5, 7),
    "expanded_all": lambda make_: make_((1, 1)).expand(5, 33),
    "offset": lambda make_: _offset(make_, (3, 5, 33)),
    "offset_rows": lambda make_: make_((5, 70))[:, 1:66],
    "size_one": lambda make_: make_((3, 1, 5, 1)),
    "windows": lambda make_: make_((40,)).unfold(0, 8, 3),
    "moving_windows": lambda make_: make_((2, 100)).unfold(1, 8, 1),
    "one": lambda make_: make_((1,)),
    "six_dims": lambda make_: make_((2, 3, 1, 2, 3, 2)).permute(5, 0, 3, 1, 4, 2),
}
