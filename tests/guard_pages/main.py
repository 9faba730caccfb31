"""Runs the operators on tensors that leave no byte to spare; see allocator.cpp.

    python tests/guard_pages/main.py LIBRARY SEED EXAMPLES

The last line is the case that a segmentation fault is in.
"""

import ctypes
import random
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from data import DTYPES
from opspec import OPS, as_tuple

SIZES = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 255, 257, 300, 1025, 4099)
LAYOUTS = {
    "contiguous": lambda x: x,
    "reversed dims": lambda x: x.permute(*reversed(range(x.dim()))),
    "stepped": lambda x: x[..., ::2],
    "behind the first": lambda x: x.flatten()[1:].view(-1) if x.numel() > 1 else x,
    "cut": lambda x: x[..., x.size(-1) // 2 :],
    "without the first": lambda x: x[..., 1:] if x.size(-1) > 1 else x,
    "cut in front": lambda x: x[..., : x.size(-1) // 2 + 1],
    "repeated": lambda x: x[:1].expand(5, *x.shape[1:]),
}


def shapes(random):
    """Mostly small; some for several threads; some with results that go past the caches."""
    kind = random.randrange(20)
    if kind == 0:
        return random.choice([((1 << 19) + 3, 2), (2, (1 << 19) + 3), (3, (1 << 18) + 1, 2)])
    if kind < 4:
        return random.choice([(200_001,), (3, 70_001), (70_001, 3), (20_011, 21)])
    if kind < 6:
        return random.choice([256, 300, 1025]), random.choice([4, 5, 8, 9, 16, 17, 32])
    shape = [random.choice(SIZES) for _ in range(random.randint(1, 3))]
    while torch.Size(shape).numel() > 200_000:
        shape.remove(max(shape))
    return tuple(shape)


def masks(random, x):
    """One of a shape that broadcasts, itself with no byte to spare."""
    shape = [1 if random.random() < 0.2 else size for size in x.shape]
    layout = random.choice(["contiguous", "transposed", "offset", "cut"])
    if layout == "cut":
        return torch.randint(0, 2, (*shape[:-1], shape[-1] + 1)).bool()[..., 1:]
    if layout == "transposed":
        return torch.randint(0, 2, shape[::-1]).bool().permute(*reversed(range(x.dim())))
    if layout == "offset":
        return torch.randint(0, 2, (torch.Size(shape).numel() + 1,)).bool()[1:].view(shape)
    return torch.randint(0, 2, shape, dtype=torch.uint8).bool()[0 if random.random() < 0.1 else ...]


def main(library, seed, examples):
    guard = ctypes.CDLL(library)
    guard.install()
    rng = random.Random(int(seed))
    torch.manual_seed(int(seed))
    for _ in range(int(examples)):
        guard.end_at_guard(rng.random() < 0.7)
        torch.set_num_threads(rng.choice([1, 2, 3]))
        spec, shape, layout = rng.choice(OPS), shapes(rng), rng.choice(list(LAYOUTS))
        dtype = rng.choice([dtype for dtype in spec.dtypes if dtype in DTYPES])
        raw = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8)
        if rng.random() < 0.5:
            raw &= 0x43  # ties, and no NaN
        x = raw.bool()[..., 0] if dtype == torch.bool else raw.view(dtype).squeeze(-1)
        x = LAYOUTS[layout](x)
        dim = rng.randrange(x.dim())
        case = (spec.name, dtype, shape, layout, dim, torch.get_num_threads())
        options = {}
        if spec.name in ("argmin", "argmax", "min", "max") and rng.random() < 0.5:
            options["mask"] = mask = masks(rng, x)
            options["index_dtype"] = index_dtype = rng.choice([torch.int64, torch.int32])
            print("mask of", tuple(mask.shape), mask.stride(), index_dtype, end=" ")
        print(*case, flush=True)
        result = as_tuple(spec.op(x, *spec.arguments(dim, False), **options))
        if "scale" not in spec.name:
            assert result[-1].min() >= 0 and result[-1].max() < x.size(dim), case


main(*sys.argv[1:])
