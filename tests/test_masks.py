"""Masks and dtypes of indices, on every layout and walk; the reference is numpy's.

A mask says which elements take part. Of a group without any the index is 0, and the value the
identity: what no element loses to.
"""

import itertools
import math
import random
from functools import partial

import data
import pytest
import torch
from opspec import assert_same
from reference import bits, identity, masked, wrapped

ops = torch.ops.reduceops
NAMES = ("argmin", "argmax", "min", "max")
INDEX_DTYPES = (torch.int64, torch.int32, torch.uint16, torch.uint8)
DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64),
    *(torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)


def check(name, x, dim, mask, keepdim=False, index_dtype=None, device="cpu", context=()):
    """The operator agrees with the reference, and leaves its input and the mask alone."""
    context = (name, x.dtype, tuple(x.shape), x.stride(), dim, tuple(mask.shape), mask.stride())
    before = bits(x).clone(), bits(mask).clone()
    there, there_mask = (like(t, device) for t in (x, mask))
    result = getattr(ops, name)(there, dim, keepdim, mask=there_mask, index_dtype=index_dtype)
    result = (result,) if isinstance(result, torch.Tensor) else tuple(result)
    assert torch.equal(bits(x), before[0]) and torch.equal(bits(mask), before[1]), context
    assert all(r.is_contiguous() for r in result), context
    result = tuple(r.cpu() for r in result)
    assert_same(result, masked(name, x, dim, keepdim, mask, index_dtype), context=context)


def like(x, device):
    """`x` in another place, with the same strides."""
    if device == "cpu":
        return x
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    storage = x.as_strided((span if x.numel() else 0,), (1,)).to(device)
    return storage.as_strided(x.shape, x.stride())


def make_mask(shape, kind, seed=0):
    """A contiguous mask; True is any byte but 0."""
    generator = torch.Generator().manual_seed(seed)
    chance = {"half": 0.5, "few": 0.03, "most": 0.97, "none": -1.0, "all": 2.0}.get(kind, 0.5)
    true = torch.rand(shape, generator=generator) < chance
    if kind == "blocks":  # whole rows, images and ends of rows
        true.fill_(True)
        for d, size in enumerate(shape):
            true.narrow(d, size - size // 3, size // 3).fill_(False)
    raw = torch.randint(1, 256, shape, generator=generator, dtype=torch.uint8)
    return (raw * true).view(torch.bool)


def make_input(shape, dtype, kind, largest, seed=0):
    if kind == "identities":  # many equal the identity, some groups are nothing else
        x = data.make(shape, dtype, "ties", seed)
        equal = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.9
        bits(x)[equal] = bits(identity("max" if largest else "min", dtype))
        return x
    return data.make(shape, dtype, kind, seed)


MASKS = ("half", "few", "most", "none", "all", "blocks")
INPUTS = ("random", "ties", "special", "identities")


# Of an index alone and with a value, the least and the greatest; of some types all four.
NAMES_AND_DTYPES = (
    *itertools.product(NAMES, (torch.bool, torch.int8, torch.float16, torch.float32)),
    *itertools.product(
        ("argmin", "max"),
        (torch.uint8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.uint64)
        + (torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float64),
    ),
)


@pytest.mark.parametrize("name, dtype", NAMES_AND_DTYPES, ids=str)
def test_rows_and_columns(name, dtype, device):
    """Around vectors, blocks and tiles; contiguous in either direction."""
    seed = 0
    for shape in ((3, 1), (5, 7), (70, 16), (9, 65), (67, 255), (40, 513), (6, 4099)):
        for kind in MASKS:
            for fill in INPUTS:
                seed += 1
                x = make_input(shape, dtype, fill, "max" in name, seed)
                mask = make_mask(shape, kind, seed)
                check(name, x, 1, mask, device=device)
                check(name, x, 0, mask, device=device)
                check(name, x.t(), 1, mask.t(), device=device)


@pytest.mark.parametrize(
    "name, dtype",
    [("argmin", torch.uint8), ("max", torch.bool), ("argmin", torch.bfloat16)]
    + [("max", torch.float32)],
    ids=str,
)
@pytest.mark.parametrize("layout", data.LAYOUTS)
def test_layouts(name, dtype, layout, device):
    """Masks of the same layout, contiguous ones and broadcast ones. Of each kind of mask one kind
    of input, another one for each dtype: `rows_and_columns` has all of both."""
    turn = (torch.uint8, torch.bool, torch.bfloat16, torch.float32).index(dtype)
    for seed, kind in enumerate(MASKS, turn):
        fill = INPUTS[seed % len(INPUTS)]
        x = data.LAYOUTS[layout](
            partial(make_input, dtype=dtype, kind=fill, largest="max" in name, seed=seed)
        )
        strided = data.LAYOUTS[layout](partial(make_mask, kind=kind, seed=seed))
        masks = [strided, make_mask(tuple(x.shape), kind, seed)]
        masks.append(masks[1].transpose(0, -1).contiguous().transpose(0, -1))
        for d in range(x.dim()):
            shape = [1 if i == d else n for i, n in enumerate(x.shape)]
            masks.append(make_mask(tuple(shape), kind, seed))
            masks.append(make_mask(tuple(x.shape[d:]), kind, seed))
        masks.append(make_mask((), kind, seed))
        for mask in masks:
            for dim in range(x.dim()):
                check(name, x, dim, mask, device=device)
            if "arg" in name:
                check(name, x, None, mask, device=device)


def random_view(rng, shape, make):
    """A view of this shape: dims in any order, with gaps, steps, repeats and an offset."""
    order = rng.sample(range(len(shape)), len(shape))
    if rng.random() < 0.5:
        order.sort()
    sizes, index = [0] * len(shape), [slice(None)] * len(shape)
    for d, n in enumerate(shape):
        kind = rng.randrange(8)
        if kind == 0:
            sizes[d], index[d] = 2 * n, slice(None, None, 2)
        elif kind == 1:
            sizes[d], index[d] = n + 3, slice(2, 2 + n)
        elif kind == 2:
            sizes[d] = 1
        else:
            sizes[d] = n
    storage = make(tuple(sizes[d] for d in order))
    back = [order.index(d) for d in range(len(shape))]
    return storage.permute(back)[tuple(index)].expand(shape)


SIZES = (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100, 129, 257, 300, 1025, 2500)


def random_shape(rng, elements):
    shape = [rng.choice(SIZES) for _ in range(rng.randint(1, 4))]
    while math.prod(shape) > elements:
        shape[shape.index(max(shape))] = rng.choice(SIZES[:8])
    return tuple(shape)


@pytest.mark.parametrize("seed", range(8))
def test_random(seed, device, number_of_threads):
    """Sizes, strides, dims, dtypes, contents, and masks of any shape that fits."""
    rng = random.Random(seed)
    for _ in range(150):
        torch.set_num_threads(rng.choice((1, 2)))
        name, dtype = rng.choice(NAMES), rng.choice(DTYPES)
        shape = random_shape(rng, 40_000)
        number, fill, kind = rng.randrange(9999), rng.choice(INPUTS), rng.choice(MASKS)
        make = partial(make_input, dtype=dtype, kind=fill, largest="max" in name, seed=number)
        x = random_view(rng, shape, make)
        skipped = rng.choice((0, 0, 0, 1))
        mask_shape = [1 if rng.random() < 0.2 else n for n in shape][min(skipped, len(shape) - 1) :]
        mask = random_view(rng, tuple(mask_shape), partial(make_mask, kind=kind, seed=number))
        dim = rng.randrange(-len(shape), len(shape))
        if "arg" in name and rng.random() < 0.4:
            dim = rng.sample(range(len(shape)), rng.randint(0, len(shape)))
        extent = math.prod(shape[d] for d in wrapped(x, dim))
        fitting = [d for d in INDEX_DTYPES if extent <= torch.iinfo(d).max]
        index_dtype = rng.choice((None, *fitting))
        check(name, x, dim, mask, rng.random() < 0.5, index_dtype, device)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", (torch.bool, torch.int8, torch.float16, torch.float32), ids=str)
def test_parts_and_long_runs(dtype, threads, device, number_of_threads):
    """Few outputs: the reduced extent is cut up, in the middle of runs and tiles."""
    torch.set_num_threads(threads)
    shapes = ((200_001,), (3, 70_001), (70_001, 3), (40_000, 2, 3), (2, 40_001, 5))
    for i, shape in enumerate(shapes):
        for j, fill in enumerate(("ties", "identities", "special")):
            x = make_input(shape, dtype, fill, True, 1)
            full, broadcast = (MASKS[(i + 2 * j + threads + k) % len(MASKS)] for k in (0, 3))
            for m in (
                make_mask(shape, full, 2),
                make_mask((shape[0], *(1 for _ in shape[1:])), broadcast, 3),
            ):
                check("argmax", x, None, m, device=device)
                for dim in range(x.dim()):
                    check("max", x, dim, m, device=device)
                if x.dim() == 3:
                    check("argmax", x, [0, 2], m, device=device)
                    check("argmax", x.transpose(0, 1), [0, 2], m.transpose(0, 1), device=device)


@pytest.mark.parametrize("dtype", (torch.int8, torch.bfloat16, torch.float32, torch.int64), ids=str)
def test_many_columns(dtype, device):
    """Of inputs that a GPU does not take as small ones: aligned, not aligned, across the mask."""
    for i, shape in enumerate(((130, 8193), (40, 27_008))):
        for j, kind in enumerate(("half", "few")):
            x = make_input(shape, dtype, ("ties", "identities", "special")[(i + j) % 3], True, i)
            mask = make_mask(shape, kind, j)
            check("max", x, 0, mask, device=device)
            check("argmax", x[:, 1:], 0, mask[:, 1:], device=device)
            check("max", x, 0, make_mask(shape[::-1], kind, j).t(), device=device)


@pytest.mark.parametrize("dtype", (torch.int8, torch.float32, torch.float64), ids=str)
def test_one_winner(dtype, device):
    """One present element in each group, in every place; it equals the identity or does not."""
    for n in (3, 17, 130, 300):
        mask = torch.eye(n, dtype=torch.bool)
        for largest, name in ((False, "min"), (True, "max")):
            same = identity("max" if largest else "min", dtype).expand(n, n).clone()
            for x in (same, data.make((n, n), dtype, "special"), data.make((n, n), dtype, "ties")):
                check(name, x, 0, mask, device=device)
                check(name, x, 1, mask, device=device)


@pytest.mark.parametrize("dtype", (torch.bool, torch.uint8, torch.float32), ids=str)
def test_groups_of_one_element(dtype, device):
    """A dim of size 1, and one of stride 0 along which the mask does not vary."""
    x = data.make((40, 1, 50), dtype, "special")
    mask = make_mask((40, 1, 50), "half")
    for name in NAMES:
        check(name, x, 1, mask, device=device)
        check(name, x, 1, mask, index_dtype=torch.uint8, device=device)
        check(name, x.expand(40, 9, 50), 1, mask, device=device)
        check(name, x.expand(40, 9, 50), 1, mask.expand(40, 9, 50), device=device)
        check(name, x[:1].expand(40, 9, 50), 1, mask[:1], device=device)
        check(name, x[0, 0, 0], 0, mask[0, 0, 0], device=device)


@pytest.mark.parametrize("dtype", (torch.int8, torch.float32), ids=str)
def test_expanded_inputs(dtype, device):
    """The mask varies where the input does not."""
    for shape in ((300, 70), (70, 300)):
        for x in (
            data.make((shape[0], 1), dtype, "special").expand(shape),
            data.make((1, shape[1]), dtype, "special").expand(shape),
            data.make((1, 1), dtype, "special").expand(shape),
        ):
            for kind in MASKS:
                for dim in (0, 1):
                    check("min", x, dim, make_mask(shape, kind), device=device)


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", (torch.uint8, torch.float32), ids=str)
def test_index_dtypes(dtype, index_dtype, device, number_of_threads):
    """Without a mask: every walk, results in and out of order, repeated, past the caches."""
    shapes = ((5, 7), (200, 33), (33, 200), (3, 100, 257), (256, 3, 70), (20, 60_000))
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for shape in shapes:
            x = data.make(shape, dtype, "ties")
            for y in (x, x.transpose(0, -1), x[..., ::2], x[:1].expand(shape), x.unsqueeze(1)):
                for dim in (d for d in range(y.dim()) if y.size(d) <= 200):
                    everything = torch.ones((), dtype=torch.bool).expand(y.shape)
                    for name in ("argmin", "max"):
                        op = getattr(ops, name)
                        result = op(like(y, device), dim, index_dtype=index_dtype)
                        result = (result,) if "arg" in name else tuple(result)
                        result = tuple(r.cpu() for r in result)
                        answer = masked(name, y, dim, False, everything, index_dtype)
                        assert_same(result, answer, context=(name, y.shape, y.stride(), dim))


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES, ids=str)
def test_large_results(index_dtype, device):
    """Of memory that was used before, as it is from the second call on."""
    outputs = 2**22 + 13
    for shape, dim in (((outputs, 3), 1), ((3, outputs), 0), ((3, outputs // 3, 2), 1)):
        if shape[dim] > torch.iinfo(index_dtype).max:
            continue
        x = torch.randint(
            -9, 9, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(1)
        )
        answer = torch.from_numpy(x.numpy().argmax(dim)).to(index_dtype)
        for _ in range(3):
            found = ops.argmax(x.to(device), dim, index_dtype=index_dtype)
            assert torch.equal(found.cpu(), answer)
            del found


@pytest.mark.parametrize("bits_of_it, dtype", [(8, torch.uint8), (16, torch.uint16)])
def test_the_greatest_index_fits(bits_of_it, dtype, device):
    n = 1 << bits_of_it
    x = torch.zeros(2, n, dtype=torch.int8, device=device)
    x[:, -1] = 1
    for y, dim in ((x, 1), (x.t().contiguous(), 0)):
        found = ops.argmax(y, dim, index_dtype=dtype)
        assert found.dtype == dtype and found.cpu().tolist() == [n - 1] * 2
        with pytest.raises(RuntimeError, match="cannot hold"):
            ops.argmax(torch.cat([y, y], dim), dim, index_dtype=dtype)


def test_what_others_write_meanwhile_is_no_index_out_of_range():
    """A mask that a thread changes: every index is in range, whatever was read when."""
    import threading

    mask, stop = torch.ones(64, 3000, dtype=torch.bool), threading.Event()
    x = torch.full((64, 3000), -math.inf)

    def disturb():
        while not stop.is_set():
            mask.logical_not_()

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(200):
            for dim in (0, 1):
                index = ops.argmax(x, dim, mask=mask)
                assert 0 <= index.min() and index.max() < x.size(dim)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize(
    "shape, strides, dim",
    [((3, 50), (100, 2), 1), ((1, 70_000), (70_000, 1), 1), ((300, 40), (1, 300), 1)],
    ids=str,
)
def test_any_byte_of_a_bool(device, name, shape, strides, dim):
    """Even where the element is read once more for its value."""
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    x = torch.full((span,), 2, dtype=torch.uint8).view(torch.bool).as_strided(shape, strides)
    mask = torch.ones(shape, dtype=torch.bool)
    mask[0, :2] = False
    check(name, x, dim, mask, device=device)


def test_the_same_mask_for_all_of_a_column(device):
    """Elements that equal what an absent one counts as: the first that takes part wins."""
    x = torch.full((4, 3000, 512), -math.inf)
    x[:, 1500:, ::2] = 1.0
    mask = torch.arange(512) % 3 == 0
    for shaped in (mask, mask.expand(4, 1, 512)):
        check("max", x, 1, shaped, device=device)


@pytest.mark.parametrize("dtype", (torch.bool, torch.uint8, torch.bfloat16, torch.float64), ids=str)
def test_masks_that_vary_along_kept_dims_alone(dtype, device):
    """They hide whole groups, wherever the results of these are."""
    shape = (3, 130, 5, 67)
    x = data.make(shape, dtype, "special")
    inputs = (
        x,
        x.transpose(0, 2),
        x[:, :, ::2, 1:],
        x[:, :, :, :1].expand(shape),
        x[:1].expand(shape),
    )
    for x in inputs:
        outer, _, middle, inner = x.shape
        for mask_shape in ((inner,), (middle, 1), (middle, inner), (outer, 1, 1, inner), x.shape):
            mask = make_mask(mask_shape, "half")
            if mask_shape == x.shape:
                mask = mask[:, :1].expand(x.shape)
            for name in NAMES:
                check(name, x, 1, mask, device=device)
            check("argmax", x, 1, mask, index_dtype=torch.uint8, device=device)


def test_a_mask_that_hides_many_groups(device):
    """So many that a thread of a GPU has several results, which it finds from one another."""
    x = make_input((5, 3600, 300), torch.int8, "identities", True)
    for mask in (make_mask((3600, 301), "half")[:, 1:], make_mask((3600, 1), "half")):
        check("max", x, 0, mask, device=device)
    check("max", x, 0, make_mask((), "none"), device=device)


@pytest.mark.parametrize("index_dtype", [torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("few", [2, 3, 8])
def test_a_mask_that_hides_results_in_short_runs(few, index_dtype, device, number_of_threads):
    """Of more than one thread's share, which may begin within a run."""
    x = data.make((few, 3, 70_001), torch.uint8, "ties").permute(1, 2, 0)  # results in short runs
    marks = torch.rand(few, generator=torch.Generator().manual_seed(few)) < 0.5
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for name in NAMES:
            check(name, x, 0, marks.expand(x.shape), False, index_dtype, device)
    by_row = torch.rand(70_001, 1, generator=torch.Generator().manual_seed(1)) < 0.5
    check("argmin", x, 0, by_row.expand(x.shape), False, index_dtype, device)


def test_an_expanded_input_with_a_mask_of_its_own(device):
    x = torch.randn(64, 1, 256).expand(64, 8, 256)
    check("argmax", x, [0, 1], torch.rand(8, 1) < 0.5, device=device)
    check("max", x, 1, torch.rand(64, 8, 256) < 0.5, device=device)


@pytest.mark.parametrize("dtype", (torch.bool, torch.bfloat16, torch.float32, torch.int64), ids=str)
def test_masks_in_another_order_than_the_input(dtype, device):
    """Of elements, of groups and of groups of one element."""
    shape = (21, 30, 47)
    orders = tuple(itertools.permutations(range(3)))
    for seed, (order, mask_order) in enumerate(itertools.product(orders, orders)):
        kind, fill = MASKS[seed % len(MASKS)], INPUTS[seed % len(INPUTS)]
        x = make_input([shape[d] for d in order], dtype, fill, True, seed)
        x = x.permute([order.index(d) for d in range(3)])
        mask = make_mask([shape[d] for d in mask_order], kind, seed)
        mask = mask.permute([mask_order.index(d) for d in range(3)])
        for dim in range(3):
            check("max", x, dim, mask, device=device)
            check("max", x, dim, mask.narrow(dim, 0, 1), device=device)
        check("max", x[None], 0, mask, device=device)
        check("argmax", x, [0, 2], mask, device=device)
        check("argmax", x, [0, 2], mask[:1, :, :1], device=device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_short_rows_that_begin_anywhere(dtype, device):
    """With other elements, and bytes of the mask, before them and behind them."""
    for seed, width in enumerate((8, 9, 13, 15, 16, 17, 31, 33, 63, 100, 250)):
        name, before = NAMES[seed % len(NAMES)], 1 + seed % 3
        for kind in ("half", "few", "none"):
            for fill in ("special", "identities"):
                around = make_input((23, before + width + 2), dtype, fill, "max" in name, seed)
                marks = make_mask((23, width + before), kind, seed)
                x = around[:, before:-2]
                check(name, x, 1, marks[:, before:], device=device)
                check(name, x, 1, marks[0, :width], device=device)
                # Over kept dims that do not merge.
                x = x[:20].unflatten(0, (2, 2, 5)).transpose(1, 2)
                check(name, x, 3, marks[:10, :width].view(2, 5, 1, width), device=device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_groups_of_a_few_elements(dtype, device):
    """Neighbouring ones, and others, with bytes of the mask as near to each other, or not at all;
    results in the order of memory, or another. (test_cuda_walks.py has them gathered.)"""
    for seed, n in enumerate((1, 2, 3, 4, 5, 6, 7, 8, 9, 15)):
        name, kind, fill = NAMES[seed % 4], MASKS[seed % 6], INPUTS[seed % 4 if seed < 8 else 2]
        x = make_input((n, 8, 12), dtype, fill, "max" in name, seed)
        every_second = make_mask((n, 8, 24), kind, seed)[:, :, ::2]
        in_another_order = make_mask((12, 8, n), kind, seed).permute(2, 1, 0)
        inner = make_mask((n, 1, 12), kind, seed)
        shifted = make_mask((n, 8, 13), kind, seed)[:, :, 1:]
        masks = (make_mask((n, 8, 12), kind, seed), every_second, in_another_order, inner, shifted)
        for mask in masks:
            check(name, x, 0, mask, device=device)
            check(name, x.transpose(1, 2), 0, mask.transpose(1, 2), device=device)
            if "arg" in name:
                check(name, x[:, :2], [0, 1], mask[:, :2], device=device)
        for shape in ((n, 8, 1), (n, 1, 1)):
            check(name, x, 0, make_mask(shape, kind, seed), device=device)
        rows = x.reshape(8, 12, n)
        check(name, rows, 2, make_mask((8, 12, n), kind, seed), device=device)
        check(name, rows.transpose(0, 1), 2, make_mask((12, 8, n), kind, seed), device=device)


@pytest.mark.parametrize("dtype", (torch.bool, torch.int32, torch.bfloat16, torch.float32), ids=str)
def test_columns_that_begin_anywhere(dtype, device):
    """Also of the size from which a GPU reads them by packs."""
    shapes = ((4, 3, 35), (4, 150, 33), (2, 200, 129), (1, 4, 600_001), (2, 21, 60_001))
    for seed, (outer, walk, columns) in enumerate(shapes):
        name = NAMES[seed % len(NAMES)]
        x = make_input((outer, walk, columns + 1), dtype, "identities", "max" in name, seed)
        marks = make_mask((outer, walk, columns + 2), "few", seed)
        check(name, x[:, :, 1:], 1, marks[:, :, 2:], device=device)
        check(name, x[:, :, 1:], 1, marks[:, :1, 2:], device=device)
        check(name, x[:, :, 1:], 1, marks[:, :, :1], device=device)
