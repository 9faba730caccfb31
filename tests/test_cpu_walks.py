"""The seams of the CPU kernels: vectors, passes, blocks, tiles and folds; see docs/cpu.md."""

import dataclasses
import functools
import math
import sys
from concurrent.futures import ThreadPoolExecutor

import data
import numpy as np
import pytest
import reference
import torch
from conftest import needs_compiler
from opspec import ANY_NAN, OPS, assert_same, check
from reference import bits

import customops
from customops.plans import cpu_plan

DTYPES = (torch.int8, torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LEADING = (1, 2, 3, 7, 8, 9, 12, 15, 19)  # rows of a column: passes that overlap and that do not


def each_op_and(dtypes, names=()):
    """All operators, or those with these names."""
    specs = [spec for spec in OPS if not names or spec.name in names]
    pairs = [(spec, dtype) for spec in specs for dtype in dtypes if dtype in spec.dtypes]
    return pytest.mark.parametrize("spec, dtype", pairs, ids=str)


def unaligned(x):
    """The same elements, one byte behind an aligned address."""
    buffer = bytearray(x.nbytes + 1)
    y = torch.frombuffer(buffer, dtype=x.dtype, offset=1, count=x.numel()).view(x.shape)
    bits(y).copy_(bits(x))
    return y


@each_op_and(DTYPES)
@pytest.mark.parametrize("columns", [63, 64, 65, 4097, 16384 + 3])
def test_columns_around_vectors_and_tiles(spec, dtype, columns):
    for rows in LEADING:
        for kind in ("ties", "special"):
            x = data.make((rows, columns), dtype, kind, rows)
            check(spec, unaligned(x), 0, context=(rows, kind))


@each_op_and(DTYPES)
def test_columns_of_many_blocks(spec, dtype):
    """Rows are numbered anew every 248 rows of an 8-bit type; bests are kept."""
    x = data.make((1500, 70), dtype, "ties")
    low, high = (bits(x.flatten())[i] for i in (x.flatten().argmin(), x.flatten().argmax()))
    bits(x)[:] = high if "min" in spec.name else low
    for column, row in enumerate(range(0, 1500, 22)):
        bits(x)[row::249, column] = low if "min" in spec.name else high
    check(spec, x, 0)
    check(spec, x.t().contiguous(), 1)


@each_op_and(DTYPES)
@pytest.mark.parametrize("columns", [1, 3, 7, 21, 64, 100])
def test_folded_columns(spec, dtype, columns):
    for rows in (1, 5, 300, 1001, 20_011):
        x = data.make((rows, columns), dtype, "ties", rows)
        check(spec, x, 0, context=(rows,))
        check(spec, unaligned(x), 0, context=(rows,))


@each_op_and(DTYPES)
def test_rows_in_any_place(spec, dtype):
    """Dense, with gaps, with steps, repeated; the last ones end where their storage does.

    Lengths are those around which rows are read in another way, with vectors of each width.
    """
    for n in (1, 3, 21, 64, 81, 161, 193, 255, 256, 257, 321, 385, 769, 1025, 2050):
        x = data.make((67, n), dtype, "special", n)
        wide = data.make((67, 2 * n + 1), dtype, "ties", n)
        cut, stepped, repeated = wide[:, n + 1 :], wide[:, ::2], x[:1].expand(5, n)
        for y in (x, unaligned(x), cut, stepped, repeated):
            check(spec, y, 1, context=(n,))


@each_op_and(FLOATS)
def test_infinities_of_both_signs_are_not_taken_for_nan(spec, dtype):
    """Their sum is one; a real one behind them wins all the same."""
    for n in (5, 40, 300, 3000):
        x = data.make((40, n), dtype, "smooth", n)
        x[:, ::3], x[:, 1::3] = math.inf, -math.inf
        for y, dim in ((x, 1), (x.t().contiguous(), 0)):
            check(spec, y, dim, context=(n,))
        for row in range(1, 40):
            x[row, (row * 77) % n] = math.nan
        for y, dim in ((x, 1), (x.t().contiguous(), 0)):
            check(spec, y, dim, context=(n,))


@each_op_and(FLOATS)
def test_columns_that_are_settled_by_nan(spec, dtype):
    """Some, all but one, all: rows below those are not read where no column needs them."""
    for columns in (3, 64, 200):
        for first in (0, 9, 30):
            x = data.make((100, columns), dtype, "smooth", first)
            for kept in (columns, columns // 2, 1, 0):
                x[first:, kept:] = math.nan
                check(spec, x, 0, context=(columns, first, kept))
            x = data.make((100, columns), dtype, "smooth", first)
            x[first, ::2] = x[50, 1::2] = math.nan
            check(spec, x, 0, context=(columns, first))


@each_op_and(DTYPES, ("argmax", "min", "scale_max", "softmax_max"))
def test_large_results(spec, dtype):
    """Memory that was used before, as it is from the second call on, is written past the caches."""
    outputs = 2**19 + 13
    for shape, dim in (((outputs, 5), 1), ((3, outputs), 0), ((3, outputs // 3, 2), 1)):
        x = data.make(shape, dtype, "special")
        for y in (x, unaligned(x), x.flip(0)):
            check(spec, y, dim)


@each_op_and(DTYPES)
def test_few_rows_of_columns_whose_results_lie_across(spec, dtype):
    """Of tiles with many results together, and with few, and with what is left of a line."""
    for shape in ((40, 300, 3), (285, 70, 2), (15, 19, 64, 3), (512, 600, 2), (1100, 20, 2)):
        x = data.make(shape[::-1], dtype, "ties").permute(*range(len(shape) - 1, -1, -1))
        check(spec, x, len(shape) - 1, context=shape)
        check(spec, x[3:], len(shape) - 1, context=(shape, "cut"))


@each_op_and(DTYPES)
def test_rows_that_follow_each_other_in_the_results_alone(spec, dtype):
    x = data.make((3, 70, 2, 9), dtype, "ties")
    for y in (x[:, :, 0], x[:, ::3, 1, :5], x[:, 1:, 0, ::2]):
        check(spec, y, 2)


@pytest.mark.parametrize(
    "dtype", (torch.bool, torch.int8, torch.float16, torch.bfloat16, torch.float32, torch.float64)
)
@pytest.mark.parametrize("across", (3, 4, 5, 16, 63, 64, 65, 130))
@pytest.mark.parametrize("along", (4, 17, 1025, 4099))
def test_values_of_one_element_each_in_another_order(along, across, dtype):
    generator = torch.Generator().manual_seed(along * across)
    raw = torch.randint(-9, 9, (2, across, along + 1), generator=generator)
    x = raw.to(dtype)[..., 1:].permute(0, 2, 1).unsqueeze(1)  # results across, memory along
    expected = x.squeeze(1).contiguous()
    for op in (torch.ops.reduceops.min, torch.ops.reduceops.max):
        values, indices = op(x, 1)
        assert torch.equal(values, expected) and not indices.any()
    if dtype.is_floating_point:
        product = (expected.double() * 1.7).to(dtype)
        if dtype.itemsize < 8:
            product = (expected.float() * torch.tensor(1.7)).to(dtype)
        assert torch.equal(torch.ops.reduceops.scale_min(x, 1.7, 1, False), product)


@each_op_and(DTYPES)
def test_rows_a_step_apart_that_follow_each_other(spec, dtype):
    """Copied as one run up to where the next dim begins; at the end of the storage, too."""
    for step in (2, 3, 4, 10):
        for rows, length in ((3, 2), (40, 7), (9, 33), (5, 300)):
            x = data.make((2, rows, length * step), dtype, "special", step)[..., step - 1 :: step]
            check(spec, x, 2)
            check(spec, x[:, 1:], 2)
            check(spec, x.transpose(0, 1), 2)


@each_op_and(DTYPES)
@pytest.mark.parametrize("step", (1, 2, 3, 4, 5))
def test_values_of_one_element_each_a_step_apart(spec, dtype, step):
    """In rows or in blocks that memory has in another order, NaNs among them."""
    for across, along in ((5, 40), (38, 70), (65, 9), (600, 3)):
        x = data.make((along, across * step), dtype, "special", across)[:, ::step]
        check(spec, x.t().unsqueeze(1), 1)
        check(spec, x.unsqueeze(1), 1)


@pytest.mark.parametrize("size", [2, 3, 16])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_short_runs_with_gaps(dtype, size, number_of_threads):
    """Of one element each and of groups; pieces begin and end within runs and in other blocks."""
    storage = torch.randn(16, 7, 515, 33).to(dtype)[..., : 2 * size : 2]
    for threads in (1, 3):
        torch.set_num_threads(threads)
        for x in (storage, storage[:, :, :513]):
            assert torch.equal(customops.scale_max(x[None], 3.0, 0)[0], x * 3.0)
            assert torch.equal(customops.max(x[None], 0).values, x)
            for group in x:  # the lowest is anywhere
                assert cpu_plan(group, threads=threads).copies
                assert torch.equal(customops.argmin(group), reference.argmin(group))


@pytest.mark.parametrize("op", ("argmin", "argmax"))
@pytest.mark.parametrize("positions", (4099, 4200))
def test_rows_whose_runs_lie_in_turns(op, positions):
    """More than the caches hold, so that all rows are read part by part; ties in several parts."""
    storage = torch.zeros(positions * 8192, dtype=torch.int8)
    x = storage.as_strided((positions, 8, 16), (8192, 64, 512))
    x.copy_(data.make((positions, 8, 16), torch.int8, "ties"))
    flat = x.permute(2, 0, 1).reshape(16, -1).numpy()
    expected = getattr(np, op)(flat, axis=1)
    assert getattr(customops, op)(x, (0, 1)).tolist() == expected.tolist()
    x[positions // 2, 3, 5] = x[positions - 1, 7, 5] = 127 if op == "argmax" else -128
    flat = x.permute(2, 0, 1).reshape(16, -1).numpy()
    expected = getattr(np, op)(flat, axis=1)
    assert getattr(customops, op)(x, (0, 1)).tolist() == expected.tolist()


@pytest.mark.parametrize("index_dtype", (torch.int64, torch.uint8), ids=str)
def test_large_results_of_one_element_each(index_dtype):
    """Zeros over what was in that memory before, also where they are written past the caches."""
    for count in (2**17 + 13, 2**19 + 13, 2**21 + 13):
        x = torch.zeros(count * 8 // index_dtype.itemsize, 1, dtype=torch.bool)
        for _ in range(3):
            used = torch.full((x.numel(),), 77, dtype=index_dtype)
            del used
            result = customops.argmax(x, 1, index_dtype=index_dtype)
            assert result.shape == (x.numel(),) and not result.any(), count
            del result


def unbeaten(spec, dtype):
    """The element that none can beat, as a tensor."""
    if dtype.is_floating_point:
        return data.nans(dtype)[:1]
    special = data.special_values(dtype)
    return (special.min() if "min" in spec.name else special.max()).reshape(1)


@each_op_and((torch.bool, torch.float8_e5m2, *DTYPES))
def test_rows_that_are_decided_early(spec, dtype):
    """At once or later, all or some of those that are combined together; nothing behind wins."""
    best = bits(unbeaten(spec, dtype))
    for n in (257, 1024, 2050):
        for place in (0, 1, 15, 63, 64, 255, n - 1):
            for which in (slice(None), slice(1, None), slice(0, None, 3), slice(5, 6)):
                x = data.make((67, n), dtype, "ties", n)
                if dtype == torch.bool:
                    x[:] = "min" in spec.name
                bits(x)[which, place] = best
                check(spec, x, 1, context=(place, which))
                bits(x)[which, place + (n - place) // 2 :] = best
                check(spec, unaligned(x), 1, context=(place, which, "again"))


@each_op_and((torch.bool, torch.float8_e5m2, *DTYPES))
def test_runs_behind_one_that_decides(spec, dtype):
    """A row is walked in runs of 65536 8-bit elements; with gaps, of 4 KiB."""
    best = bits(unbeaten(spec, dtype))
    for places in ((0,), (65_535, 65_536), (65_536, 199_999), (199_999,)):
        x = data.make((200_000,), dtype, "ties")
        if dtype == torch.bool:
            x[:] = "min" in spec.name
        for place in places:
            bits(x)[place] = best
            check(spec, x, 0, context=places)
            check(spec, x[: place + 1][::3], 0, context=places)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=str)
def test_parts_behind_one_that_decides(dtype):
    """Whatever the number of threads; of dims that memory has in another order, none decides."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        best = unbeaten(OPS[0], dtype) if dtype.is_floating_point else torch.tensor([True])
        for n in (3 << 20, 4_000_001):
            x = torch.zeros(n, dtype=dtype)
            for places in ((0, n // 2), (n // 2, n - 1), (n - 1,)):
                x[:] = 0
                x[list(places)] = best
                assert customops.argmax(x).item() == places[0]
        x = torch.zeros(2, 3 << 20, dtype=dtype)  # as many parts of each row, which decide apart
        assert cpu_plan(x, 1, threads=3).parts > 1
        x[0, -1] = x[1, [5, 1 << 20, -1]] = best[0]
        assert customops.argmax(x, 1).tolist() == [(3 << 20) - 1, 5]
        x = torch.zeros(3, 1 << 20, dtype=dtype).t()
        x[5, 0] = x[2, 2] = best[0]
        assert customops.argmax(x).item() == 2 * 3 + 2
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def alone():
    """Runs a function in a thread of its own, for what stays with a thread and its OpenMP workers:
    their number, and whether denormals count as zero for them."""
    if not torch.set_flush_denormal(False):
        pytest.skip("this CPU cannot take denormals for zero")
    before = torch.get_num_threads()
    with ThreadPoolExecutor(1) as pool:
        yield lambda work: pool.submit(work).result()
    torch.set_num_threads(before)


def with_denormals_as_zero(threads, f):
    """What f() returns where the calling thread takes denormals for zero, and others do not."""
    torch.set_num_threads(threads)
    torch.zeros(1 << 20).sum()  # starts the workers
    torch.set_flush_denormal(True)
    result = f()
    torch.set_flush_denormal(False)
    return result


def zeros(spec, shape, dtype, seed):
    """Of both signs and in about half of all places; elsewhere what they beat, and a few NaNs."""
    beaten = 1.0 if ("min" in spec.name) == (not spec.leading or spec.leading[0] > 0) else -1.0
    pool = torch.tensor([0.0, -0.0, beaten, beaten]).to(dtype)
    x = data.taken(pool, data.picks(len(pool), shape, seed))
    are_nan = data.picks(100, shape, seed + 1) == 0
    nans = data.nans(dtype)
    bits(x)[are_nan] = bits(data.taken(nans, data.picks(len(nans), [int(are_nan.sum())], seed)))
    return x


def with_zeros(spec, dtype):
    """Where a tile is one block or several, of neighbours, gathered with gaps or without, folded,
    or of fewer columns than lanes; and rows."""
    for rows in (1, 2, 3, 8, 9, 19, 64, 300):
        for columns in (5, 64, 70, 4097):
            yield zeros(spec, (rows, columns), dtype, rows), 0
            yield zeros(spec, (rows, columns + 20), dtype, rows)[:, :columns], 0
        yield zeros(spec, (3, 20, 30, rows), dtype, rows).permute(0, 3, 1, 2), 1
        yield zeros(spec, (50, rows, 40), dtype, rows)[..., ::2], 1
        yield zeros(spec, (50, rows, 40), dtype, rows)[..., :9], 1
        yield zeros(spec, (1100, rows), dtype, rows), 1
    yield zeros(spec, (7001, 3), dtype, 0), 0


@each_op_and((*FLOATS, *data.FLOAT8))
def test_zeros_of_both_signs(spec, dtype):
    """The first of them is the value, with its sign, wherever that is to be had from."""
    scales = (2.0, -1.5) if spec.leading else (None,)
    if spec.leading and dtype.itemsize == 2:  # whose extremes are multiplied at the end
        scales = (*scales, -1e-30, -0.0)
    for scale in scales:
        scaled = spec if scale is None else dataclasses.replace(spec, leading=(scale,))
        for x, dim in with_zeros(scaled, dtype):
            check(scaled, x, dim)


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize(
    "dtype", (torch.float16, torch.float32, torch.float64, torch.float8_e5m2), ids=str
)
def test_zeros_of_both_signs_under_a_mask(name, dtype):
    spec = next(spec for spec in OPS if spec.name == name)
    for x, dim in with_zeros(spec, dtype):
        mask = data.picks(10, x.shape, 1000) < 7
        found = getattr(customops, name)(x, dim, mask=mask)
        expected = reference.extreme_masked(name, x, mask, dim)
        assert_same(found, expected, context=(x.shape, x.stride()))


@each_op_and((torch.float32, torch.float64))
@pytest.mark.parametrize(
    "shape, dim", [((300_000,), 0), ((200_001, 3), 0), ((3, 200_001), 1), ((3, 20_001), 0)]
)
def test_denormals_that_count_as_zero(spec, dtype, shape, dim, alone):
    """The answer is torch's on one thread, whatever the number of threads."""
    tiny = torch.finfo(dtype).tiny
    x = data.make(shape, dtype, "ties").sub_(1).mul_(tiny / 4)
    stepped = x.repeat_interleave(2, -1)[..., ::2]  # runs are copied, and compared with each other
    arguments = (0.5, dim, False) if spec.leading else (dim, False)

    def work():
        for y in (x, unaligned(x), stepped):
            torchs = functools.partial(spec.torch, y, *arguments)
            expected = with_denormals_as_zero(1, torchs)
            for threads in (1, 2, 3):
                call = functools.partial(spec.op, y, *arguments)
                result = with_denormals_as_zero(threads, call)
                assert_same(result, expected, context=(y.stride(), threads))

    alone(work)


@needs_compiler
def test_denormals_that_count_as_zero_in_a_graph(alone, no_cached_graph):
    """Compiled where they do: a loop of Inductor's orders bits, and its workers ask their own."""
    x = torch.tensor([[1e-40, 0.0], [-0.0, -1e-40], [0.0, 1e-40]])

    def function(x):
        return customops.argmin(x, 1), *customops.max(x, 1), customops.argmin(x, 0)

    compiled = torch.compile(function, fullgraph=True)
    found = alone(lambda: with_denormals_as_zero(1, lambda: compiled(x)))
    values, indices = x[:, 0], torch.zeros(3, dtype=torch.int64)
    assert_same(tuple(found), (indices, values, indices, indices[:2]))


@needs_compiler
def test_denormals_that_are_none_in_a_graph(alone, no_cached_graph, monkeypatch):
    """Where they count as zero: those of float16 are numbers to a loop, too, which has float32."""
    x = torch.tensor([[1e-7, 0.0], [-0.0, -1e-7], [0.0, 1e-7]], dtype=torch.float16)

    def function(x):
        return customops.argmin(x, 1), *customops.max(-x, 1)

    compiled = torch.compile(function, fullgraph=True)
    monkeypatch.setattr(customops.inductor, "prefer", "loop")
    found = alone(lambda: with_denormals_as_zero(1, lambda: compiled(x)))
    lines = [line for line in customops.inductor.rewrites() if "float16[3, 2]" in line]
    assert len(lines) == 2 and all("-> loop" in line for line in lines)
    assert_same(found[0], torch.tensor([1, 1, 0]))
    assert_same(tuple(found[1:]), (-x.gather(1, found[0][:, None])[:, 0], found[0]))


def test_the_caches_know_whether_denormals_count_as_zero(alone, monkeypatch):
    """And before Inductor is there: torch may look for a graph as soon as Dynamo has traced it."""

    def keys():
        customops.argmin(torch.ones(2, 3, device="meta"), 1)
        tag = torch.compiler.config.cache_key_tag
        return tag, customops.inductor_options()["post_grad_custom_post_pass"].uuid()

    customops.inductor_options()  # imports it
    monkeypatch.delitem(sys.modules, "torch._inductor.lowering")
    flushed = alone(lambda: with_denormals_as_zero(1, keys))
    for one, other in zip(flushed, keys(), strict=True):
        assert one != other


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_denormals_that_count_as_zero_on_several_ranks(dtype, alone):
    tiny = torch.finfo(dtype).tiny
    x = torch.tensor([[0.0, -tiny / 4], [tiny / 4, 0.0], [-tiny / 4, -tiny]], dtype=dtype)

    def work():
        for largest, op in ((False, torch.argmin), (True, torch.argmax)):
            of_ranks = [
                torch.ops.reduceops._pairs(half, [1], largest, None, [], [])
                for half in x.split(1, 1)
            ]
            _, indices = torch.ops.reduceops._unpack(torch.cat(of_ranks), x[:, :1], [1], largest)
            assert indices.tolist() == op(x, 1).tolist()

    alone(lambda: with_denormals_as_zero(1, work))


@each_op_and((torch.float32, torch.float64))
def test_denormals_are_numbers_like_others(spec, dtype):
    """Each of them, of either sign, beside zeros of both."""
    tiny = torch.finfo(dtype).smallest_normal
    x = data.make((300, 700), dtype, "smooth").mul_(tiny / 8)
    x[::3] = data.make((100, 700), dtype, "ties").sub_(1).mul_(tiny / 4)
    x[1::3, ::2] *= 0
    for dim in (0, 1):
        arguments = (2.0, dim, False) if spec.leading else (dim, False)
        expected = spec.reference(x, *arguments)
        assert_same(spec.op(x, *arguments), expected, spec.tolerance, context=(dim,))


@each_op_and((torch.float16, torch.bfloat16))
def test_denormals_of_narrow_floats(spec, dtype, alone):
    """They are compared as keys, in every mode; that decides what scales to zero."""
    x = data.make((3, 200_001), dtype, "ties").sub_(1).mul_(torch.finfo(dtype).tiny / 4)

    def work():
        for y, dim in ((x, 1), (x.t().contiguous(), 0)):
            arguments = (0.5, dim, False) if spec.leading else (dim, False)
            call = functools.partial(spec.op, y, *arguments)
            results = [with_denormals_as_zero(threads, call) for threads in (1, 3)]
            assert_same(*results, context=(dim,))
            # Products of these are zeros; softmax_max computes in float32, of which these are
            # denormals where they are of bfloat16.
            if not spec.leading and (spec.name, dtype) != ("softmax_max", torch.bfloat16):
                expected = spec.reference(y, *arguments)
                assert_same(results[0], expected, spec.tolerance, context=(dim,))

    alone(work)


@pytest.mark.parametrize("n", [1, 2, 31, 63, 64, 65, 128, 200, 256, 300, 511, 512, 513, 961])
def test_rows_of_bools_with_one_that_decides(n):
    """Or none: then the first is the answer. Behind a row, others begin at once."""
    for rows in (1, 70):
        for odd in (False, True):
            x = torch.full((rows + 1, n), not odd)
            for i in range(rows):
                x[i, i * 37 % n] = odd if i % 5 else not odd
            for spec in (customops.argmin, customops.argmax):
                name = spec.__name__
                expected = torch.from_numpy(getattr(x[:rows].numpy(), name)(1))
                assert torch.equal(spec(unaligned(x)[:rows], 1), expected), (name, rows, odd)


def gathered(dtype):
    """Layouts in which neighbouring columns are few, or none, and the reduced dims of each."""
    flat = data.make((2 * 3 * 5 * 7 * 11 * 13,), dtype, "ties")
    x = flat.view(2, 3, 5, 7, 11, 13)
    for dim in range(6):
        yield x, dim
        yield x.permute(5, 2, 0, 4, 1, 3), dim
        yield x[..., :3, 1:12:2].transpose(0, 3), dim
    for width in (1, 2, 3, 6, 17, 33):
        wide = data.make((150, 4, width + 1), dtype, "special", width)
        for y in (wide[..., :width], unaligned(wide)[..., 1:], wide[..., 1:].permute(1, 2, 0)):
            yield y, 1
            yield y, 2 if y.shape[2] > 1 else 0
    for n in (2, 5, 9, 16, 17, 31, 33, 70):  # squares and parts of them, and what does not fit
        rows = data.make((1100, n + 2), dtype, "special", n)
        for y in (rows, rows[:, :n], rows[:, 2:], unaligned(rows), rows.view(11, 100, -1).mT):
            yield y, -1 if y.dim() == 2 else 1
    # Results are neighbours along a dim that is the outermost in memory.
    yield data.make((19, 3, 7, 40), dtype, "ties").permute(3, 2, 1, 0), 2
    yield data.make((300, 40, 5), dtype, "ties").permute(2, 0, 1)[::2], 0
    # And along several, behind those that are neighbours in memory.
    yield data.make((3, 50, 2, 16, 2), dtype, "ties").permute(4, 3, 2, 1, 0), 2
    yield data.make((5, 9, 130, 3, 33), dtype, "ties").permute(4, 1, 2, 3, 0), 3
    # And along some positions of a dim that is one with another in memory.
    yield data.make((3, 5, 9, 32, 6), dtype, "ties").permute(4, 3, 2, 1, 0), 4
    # Some bytes apart: what lies between is copied, too.
    for width, pitch in ((1, 2), (2, 4), (7, 9), (3, 16)):
        wide = data.make((3, 50, 9, 2 * pitch), dtype, "special", pitch)
        yield wide.view(3, 50, 9, 2, pitch)[..., pitch - width :], 1
        yield wide[:, :, ::2, ::pitch], 1


@each_op_and(DTYPES)
def test_gathered_columns(spec, dtype):
    for x, dim in gathered(dtype):
        check(spec, x, dim, context=(tuple(x.shape), x.stride()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_windows_that_move_in_two_dims(dtype):
    """Neighbours share elements; the last ones end where their storage does."""
    image = data.make((23, 150), dtype, "ties")
    generator = torch.Generator().manual_seed(1)
    walks = set()
    for size in ((2, 2), (3, 7), (7, 3), (5, 70)):
        for steps in ((1, 1), (2, 1), (1, 3)):
            x = image.unfold(0, size[0], steps[0]).unfold(1, size[1], steps[1])
            plan = cpu_plan(x, (2, 3))
            walks.add("rows" if plan.rows else "gather" if plan.gathers else "columns")
            keys = x.flatten(2).numpy() if dtype != torch.bfloat16 else x.flatten(2).float().numpy()
            mask = torch.rand(size, generator=generator) < 0.7
            mask[0, 1] = True
            present = np.flatnonzero(mask)
            for name in ("argmin", "argmax"):
                function, find = getattr(customops, name), getattr(np, name)
                context = (name, size, steps)
                assert function(x, (2, 3)).tolist() == find(keys, -1).tolist(), context
                expected = present[find(keys[..., present], -1)].tolist()
                assert function(x, (2, 3), mask=mask).tolist() == expected, context
    assert walks == {"rows", "gather", "columns"}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_several_reduced_dims(dtype, threads):
    """Runs that are joined, or gathered; the order of memory is not that of the index."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for shape in ((90, 2, 7, 3), (2, 3, 500, 8), (3, 4000, 5, 2), (7, 6, 5, 40)):
            x = data.make(shape, dtype, "ties")
            for y in (x, x.permute(2, 0, 3, 1), x[..., 1:], x[:, ::2].permute(3, 1, 2, 0)):
                for dims in ([0, 1], [0, 2], [1, 3], [0, 1, 2], [0, 2, 3], [1, 2, 3]):
                    kept = [d for d in range(4) if d not in dims]
                    reduced = y.permute(*kept, *dims).flatten(len(kept))
                    keys = reduced.numpy() if dtype != torch.bfloat16 else reduced.float().numpy()
                    for name in ("argmin", "argmax"):
                        found = getattr(torch.ops.reduceops, name)(y, dims)
                        expected = torch.from_numpy(getattr(keys, name)(-1))
                        assert torch.equal(found, expected), (name, shape, y.stride(), dims)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_reduced_dims_that_memory_has_in_another_order(dtype, threads):
    """In slices, where outputs times the columns of each are more than the workspace holds; the
    mask leaves out whole groups too."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for shape in (
            (3000, 24, 30),
            (3, 17, 500, 2),
            (1, 40, 9, 70),
            (5, 1000, 3, 7),
            (9, 2, 300, 40),
        ):
            x = data.make(shape, dtype, "ties").movedim(-1, 0)
            mask = data.make(shape, torch.bool, "ties").movedim(-1, 0)
            mask[:, :1] = False
            for dims in ((0, 2), tuple(range(x.dim()))):
                for name, out in (("argmin", "max"), ("argmax", "min")):
                    worst = getattr(torch, "finfo" if x.is_floating_point() else "iinfo")(dtype)
                    masked = x.masked_fill(~mask, getattr(worst, out))
                    for y, options in ((x, {}), (masked, {"mask": mask})):
                        kept = [d for d in range(x.dim()) if d not in dims]
                        rows = y.permute(*kept, *dims).flatten(len(kept)).numpy()
                        found = getattr(customops, name)(x, dims, **options)
                        expected = torch.from_numpy(np.asarray(getattr(rows, name)(-1)))
                        assert torch.equal(found, expected), (name, shape, dims, bool(options))
    finally:
        torch.set_num_threads(before)


@each_op_and(DTYPES)
def test_columns_narrower_than_a_vector(spec, dtype):
    """Vectors reach into what lies between them, and at the end not beyond the storage."""
    for rows in (2, 7, 40, 700, 9001):
        for columns, pitch in ((1, 40), (3, 20), (5, 9), (21, 90)):
            x = data.make((rows, pitch), dtype, "special", rows)[:, pitch - columns :]
            check(spec, x, 0, context=(rows, columns))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.int64], ids=str)
def test_crossed_dims_that_are_rows(dtype):
    """Of few columns each is read by itself, and is a candidate of its output."""
    x = data.make((3, 5, 3613, 4), dtype, "ties")[..., :2]
    mask = data.make(x.shape, torch.bool, "ties")
    mask[1] = False
    worst = getattr(torch, "finfo" if x.is_floating_point() else "iinfo")(dtype).min
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            for dims in ((0, 1, 2, 3), (1, 2, 3), (2, 3)):
                rows = x.flatten(4 - len(dims)).numpy()
                expected = torch.from_numpy(np.asarray(rows.argmax(-1)))
                assert torch.equal(customops.argmax(x, dims), expected), (threads, dims)
                rows = x.masked_fill(~mask, worst).flatten(4 - len(dims)).numpy()
                expected = torch.from_numpy(np.asarray(rows.argmax(-1)))
                assert torch.equal(customops.argmax(x, dims, mask=mask), expected), (threads, dims)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.int64], ids=str)
def test_marks_that_repeat_in_gathers_and_rows(dtype):
    """Those of one row are those of the row before, along one of the reduced dims or some."""
    for shape in ((300, 3, 5), (300, 4, 2, 3), (40, 30, 20), (70, 9, 300)):
        x = data.make(shape, dtype, "ties")
        dims = tuple(range(1, len(shape)))
        for broadcast in dims:
            marks = data.make(
                [1 if d == broadcast else n for d, n in enumerate(shape)], torch.bool, "ties"
            )
            flat = x.flatten(1), marks.expand(shape).flatten(1)
            expected = reference.masked("max", flat[0], 1, False, flat[1])[1]
            for y in (x, x.transpose(0, 1).contiguous().transpose(0, 1)):
                actual = customops.argmax(y, dims, mask=marks)
                assert torch.equal(actual, expected), (shape, broadcast, y.stride())
        marks[0] = False
        values, indices = customops.max(x, dims[-1], mask=marks.expand(shape))
        assert (indices[0] == 0).all() and (values[0] == values[0].amin()).all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.int64], ids=str)
def test_last_slices_of_crossed_dims(dtype):
    """However few outputs are left for the last slice."""
    most = (1 << 16) // 4  # outputs to a slice, as the workspace has room for candidates
    for more in (1, 2, 7):
        for rows, crossed in ((100, 4), (9, 64)):
            outputs = most * 4 // crossed + more
            x = data.make((outputs, rows, crossed), dtype, "ties", more).transpose(1, 2)
            expected = torch.from_numpy(np.ascontiguousarray(x).reshape(outputs, -1).argmax(1))
            assert torch.equal(customops.argmax(x, (1, 2)), expected), (outputs, crossed)
    # Of one position of the outermost dim, too, there are more candidates than have room.
    x = data.make((3, 9, 20_000, 4), dtype, "ties").permute(0, 2, 3, 1)
    expected = torch.from_numpy(np.ascontiguousarray(x).reshape(3, 20_000, 36).argmax(2))
    assert torch.equal(customops.argmax(x, (2, 3)), expected)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64], ids=str)
def test_largest_indices(dtype, threads):
    """That of the last of as many elements as 64 bits can count, of which few are in memory."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for shape in ((20_000,), (3_000_000,), (40, 20_000), (20_000, 40)):
            n = math.prod(shape)
            copies = ((1 << 63) - 1) // n
            expected = (n - 1) * copies
            mask = torch.zeros(shape, dtype=torch.bool)
            mask.view(-1)[-1] = True
            x = torch.zeros(*reversed(shape), 2, dtype=dtype)
            for stored in (x[..., 0], x[..., 0].contiguous()):
                y = stored.permute(*range(len(shape))[::-1]).unsqueeze(-1)
                y.fill_(reference.identity("min", dtype).item())
                y = y.expand(*shape, copies)
                assert customops.argmin(y, mask=mask.unsqueeze(-1)).item() == expected, shape
                assert customops.argmin(y, mask=torch.tensor(False)).item() == 0, shape
                stored[(-1,) * len(shape)] = 0
                assert customops.argmin(y).item() == expected, shape
    finally:
        torch.set_num_threads(before)


@each_op_and((torch.bool, *DTYPES))
def test_groups_of_one_element_in_another_order(spec, dtype):
    """Squares of them, and what is left of a block; rows of results in the same sets of a cache."""
    for shape in ((70, 130), (5, 64, 3), (33, 2, 40), (1, 17), (1024, 40)):
        x = data.make(shape, dtype, "special")
        for y in (x.mT, unaligned(x).mT, x.movedim(-1, 0)[1:], x[..., ::2].mT, x.mT.flip(0)):
            check(spec, y.unsqueeze(0), 0)
            check(spec, y.unsqueeze(-1).expand(*y.shape, 3).unsqueeze(1), 1)


@pytest.mark.parametrize("threads", [1, 3])
def test_tall_groups_of_one_element_in_another_order(threads):
    """Several threads share the rows of a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for shape in ((4097, 3), (20_001, 70), (2, 9000, 17)):
            for dtype in (torch.int8, torch.bfloat16, torch.float64):
                x = data.make(shape, dtype, "ties").mT
                values, indices = customops.max(x.unsqueeze(0), 0)
                assert torch.equal(values, x.contiguous()) and not indices.any()
    finally:
        torch.set_num_threads(before)


@each_op_and((torch.bool, torch.float8_e5m2, *DTYPES))
def test_few_columns_that_are_larger_than_the_cache(spec, dtype):
    for n, width, gapped in ((300_000, 3, 7), (70_001, 2, 33)):
        x = data.make((n, gapped), dtype, "special")[:, 1 : width + 1]
        check(spec, x, 0)


def test_results_that_are_repeated_in_short_periods():
    for shape, expanded in (((8, 2), (700, 8, 2)), ((1, 5, 8, 3), (7, 11, 5, 8, 3))):
        x = data.make(shape, torch.float32, "ties")
        expected = x.numpy().argmax(-2)
        found = customops.argmax(x.expand(expanded), -2)
        assert torch.equal(found, torch.from_numpy(expected).expand(found.shape))
    x = data.make((3, 1, 8, 1, 70_000), torch.int16, "ties").expand(3, 4, 8, 2, 70_000)
    assert torch.equal(customops.argmin(x, 2), torch.from_numpy(x.numpy().argmin(2)))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_that_are_repeated_by_several_threads(threads):
    """Threads begin amid a period; what is repeated can be reduced in parts of another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        cases = [
            (data.make((period, 3), torch.float32, "ties"), (copies, period, 3))
            for period, copies in ((2, 60_001), (101, 701), (1000, 67), (3001, 33), (70_001, 3))
        ]
        cases += [(data.make((64, 300, 5), torch.float32, "ties").transpose(0, 1), (3, 300, 64, 5))]
        for x, expanded in cases:
            expected = torch.from_numpy(np.ascontiguousarray(x).argmax(-1)).expand(expanded[:-1])
            found = customops.max(x.expand(expanded), -1)
            assert torch.equal(found.indices, expected), (x.shape, expanded)
            assert torch.equal(found.values, x.amax(-1).expand(expanded[:-1]))
    finally:
        torch.set_num_threads(before)


@each_op_and((torch.bool, *DTYPES))
def test_gathers_across_the_order_of_the_results(spec, dtype):
    """Some of the neighbours in memory at a time, with gaps that vectors are made of."""
    for n in (2, 3, 4):
        x = data.make((130, 300, n), dtype, "ties", n)
        check(spec, x.transpose(0, 1), -1)
        check(spec, x[:, :, 1:].transpose(0, 1), -1)


@each_op_and((torch.bool, *DTYPES))
def test_gathers_long_runs_where_they_lie(spec, dtype):
    """Runs that are cut, with what is left over, and whole ones; results of one dim and of two."""
    for shape in ((2, 17, 1500), (3, 40, 8600), (2, 2, 9, 1029)):
        for kind in ("ties", "special"):
            x = data.make(shape, dtype, kind, shape[1])
            x = x.permute(*range(len(shape) - 1, -1, -1))
            assert cpu_plan(x, [-1]).stays
            check(spec, x, -1, context=(shape, kind))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1.0, -1.0, 0.5, 1 / 3, 3.7, 1e-3, 2.0**-14, 1e5])
def test_every_16_bit_float_is_scaled_as_torch_does(dtype, scale):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    for n in (2, 9, 33):
        rows = every.repeat(n, 1)
        for x, dim in ((rows, 0), (rows.t().contiguous(), 1)):
            for op in (torch.ops.reduceops.scale_min, torch.ops.reduceops.scale_max):
                found, expected = op(x, scale, dim, False), every * scale
                assert torch.equal(found.isnan(), expected.isnan())
                number = ~expected.isnan()
                assert torch.equal(bits(found)[number], bits(expected)[number])


def nearly_zero(dtype, end, scale, shape, seed):
    """What may scale to a zero, beside what such products beat: no group has a better one."""
    generator = torch.Generator().manual_seed(seed)
    tiny = data.from_bits([1, 4, 5, 600, 0x8001, 0x8004, 0x8005, 0x8600], dtype)
    beaten = math.copysign(1, scale) * (1 if end == "min" else -1)
    others = torch.tensor([0.0, -0.0, *(beaten,) * 6, beaten * math.inf]).to(dtype)
    return data.take(torch.cat([tiny, others]), shape, generator)


def in_every_layout(make):
    """Whole and stepped rows and columns, short and long ones, few and many; and several dims."""
    for n in (1, 3, 8, 9, 19, 64, 1000):
        for width in (3, 64, 70, 300):
            x = make((n, width + 20))
            for y in (x[:, :width], x[:, :width].contiguous(), x[:, 1 : 1 + width : 2]):
                yield y, 0
                yield y.t(), 1
            yield make((width, n)), 1
            yield make((width, 2 * n))[:, ::2], 1
        yield make((3, 20, 30, n)).permute(0, 3, 1, 2), 1
        yield make((5, 1, n, 40)).expand(5, 3, n, 40), 2
    for shape in ((2, 70_001), (70_001, 2)):
        for dim in (0, 1):
            yield make(shape), dim


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("end", ["min", "max"])
def test_extremes_that_are_multiplied_at_the_end(dtype, end, alone):
    """16-bit floats whose value alone is wanted; whose index is wanted are multiplied one by one.

    They differ where products tie that are no zeros of one sign, and where they do not follow the
    order of what is multiplied."""
    alone_op = getattr(torch.ops.reduceops, f"scale_{end}").default
    with_indices = getattr(torch.ops.reduceops, f"_scale_{end}_indices").default
    scales = (2.0, -1.5, 0.125, -0.05, torch.finfo(dtype).tiny, 1e38, -0.0, math.nan)
    others = (0.5, -0.5, -1e-30, 1e-38, -1e-42, -1e300, 0.0, math.inf, -math.inf)

    def agree(x, dim, scale):
        found, context = alone_op(x, scale, dim), (tuple(x.shape), x.stride(), dim, scale)
        assert_same(found, with_indices(x, scale, dim, True)[0], context=context)
        expected = getattr(reference, f"scale_{end}")(x, scale, dim)
        assert_same(found, expected, ANY_NAN, context)

    def work():
        for i, scale in enumerate((*scales, *others)):
            for kind in ("special", "random", "ties", None):

                def make(shape, kind=kind, scale=scale, i=i):
                    if kind:
                        return data.make(shape, dtype, kind, i)
                    return nearly_zero(dtype, end, scale, shape, i)

                torch.set_num_threads(1 + i % 3)
                if kind in ("special", None) and i < len(scales):
                    for x, dim in in_every_layout(make):
                        agree(x, dim, scale)
                else:
                    agree(make((40, 64)), 0, scale)
                    agree(make((40, 64)), 1, scale)

    alone(work)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("end", ["min", "max"])
def test_zero_products_whose_sign_is_that_of_a_late_element(dtype, end, alone):
    """What scales to it may come before the extreme, which is itself a zero or scales to one."""
    alone_op = getattr(torch.ops.reduceops, f"scale_{end}").default
    with_indices = getattr(torch.ops.reduceops, f"_scale_{end}_indices").default
    pool = (0, 1, 2, 0x8000, 0x8001, 0x8002)

    def work():
        for scale in (2.0, 0.5, -0.5, 0.125, -1e-30):
            beaten = math.copysign(1, scale) * (1 if end == "min" else -1)
            for n in (9, 20, 200, 3000):
                for first in (0, 1, 5, 8, n - 2):
                    for earlier in pool:
                        x = torch.full((37, n), beaten, dtype=dtype)
                        x[:, first] = data.from_bits([earlier], dtype)
                        x[1::6, n - 1 :] = data.from_bits(pool, dtype)[:, None]
                        x[::3, n - 1] = beaten  # most groups are simple
                        for y, dim in ((x, 1), (x.t().contiguous(), 0)):
                            expected = getattr(reference, f"scale_{end}")(y, scale, dim, False)
                            context = (scale, n, first, earlier, dim)
                            for found in (
                                alone_op(y, scale, dim, False),
                                with_indices(y, scale, dim, False)[0],
                            ):
                                assert_same(found, expected, context=context)
                            call = functools.partial(alone_op, y, scale, dim, False)
                            of = functools.partial(with_indices, y, scale, dim, False)
                            found = with_denormals_as_zero(1, call)
                            assert_same(found, with_denormals_as_zero(1, of)[0])

    alone(work)
