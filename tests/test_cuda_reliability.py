"""The GPU kernels at sizes that fill a GPU: every walk, and every way to combine its parts."""

import math
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import reference
import torch
from conftest import NO_CUDA, python
from cuda_shapes import HUGE, WALKS
from opspec import OPS, as_tuple, assert_same, ops

from customops.plans import Walk, cuda_plan

pytestmark = NO_CUDA

REPETITIONS = 100

each_op_and_walk = pytest.mark.parametrize(
    "spec, shape",
    [
        pytest.param(spec, shape, id=f"{spec}-{walk.name.lower()}, {parts}")
        for spec in OPS
        for (walk, parts), shape in WALKS.items()
        if shape.dtype in spec.dtypes
    ],
)


@pytest.fixture(autouse=True)
def memory_for_others():
    """Workers side by side share the GPU's memory."""
    yield
    torch.cuda.empty_cache()


def fill(x, dim, seed=0):
    """Small integers; each group has its extremes twice, anywhere."""
    generator = torch.Generator(x.device).manual_seed(seed)
    x.copy_(torch.randint(-100, 100, x.shape, generator=generator, device=x.device))
    extremes = list(x.shape)
    extremes[dim] = 2
    for extreme in (-101, 101):
        at = torch.randint(x.size(dim), extremes, generator=generator, device=x.device)
        x.scatter_(dim, at, extreme)
    return x


def make(shape, seed=0, device="cuda", offset=0):
    return fill(shape.empty(device, offset), shape.dims[0], seed)


def expected(spec, x, dim):
    """By torch's own kernels; numpy takes too long. A sum of theirs is rounded, too."""
    arguments = spec.arguments(dim, False)
    if spec.name != "softmax_max" or x.dtype == torch.float64:
        return spec.torch(x, *arguments)
    probability, index = spec.torch(x.double(), *arguments)
    return probability.to(x.dtype), index


@each_op_and_walk
def test_the_same_result_every_time(spec, shape):
    x, (dim,) = make(shape), shape.dims
    results = [spec.op(x, *spec.arguments(dim, False)) for _ in range(REPETITIONS)]
    right = expected(spec, x, dim)
    for i, result in enumerate(results):
        assert_same(result, right, spec.tolerance, (i,))


@each_op_and_walk
def test_two_streams_at_once(spec, shape):
    (dim,) = shape.dims
    inputs = [make(shape, seed) for seed in range(2)]
    streams = [torch.cuda.Stream() for _ in inputs]
    results = [[], []]
    torch.cuda.synchronize()
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # until the calls of both are queued
    for _ in range(20):
        for x, stream, done in zip(inputs, streams, results, strict=True):
            with torch.cuda.stream(stream):
                done.append(spec.op(x, *spec.arguments(dim, False)))
    torch.cuda.synchronize()
    for x, done in zip(inputs, results, strict=True):
        right = expected(spec, x, dim)
        for i, result in enumerate(done):
            assert_same(result, right, spec.tolerance, (i,))


each_walk = pytest.mark.parametrize(
    "shape", WALKS.values(), ids=[f"{walk.name.lower()}, {parts}" for walk, parts in WALKS]
)


@each_walk
def test_only_results_and_a_small_workspace_are_allocated(shape):
    x, (dim,) = make(shape), shape.dims
    ops.max(x, dim)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    results = ops.max(x, dim)
    taken = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    outputs = sum(result.nbytes for result in results)
    assert outputs <= taken <= outputs + (1 << 20)


# Sizes, strides and a dim: results repeat along kept dims of stride 0, innermost, between others,
# outermost and all of these, few of them and more than the workspace has room for.
REPEATED = {
    "few": ((3, 50, 7, 20), (1000, 20, 0, 1), 0),
    "a row in parts": ((5, 1 << 22), (0, 1), 1),
    "innermost": ((3, 300_000, 2), (300_000, 1, 0), 0),
    "between": ((2, 90, 7, 3000), (270_000, 3000, 0, 1), 0),
    "outermost": ((6, 2, 200_000), (0, 200_000, 1), 1),
    "all": ((4, 3, 200, 5, 700, 3), (0, 140_000, 700, 0, 1, 0), 1),
}


@pytest.mark.parametrize("sizes, strides, dim", REPEATED.values(), ids=REPEATED)
@pytest.mark.parametrize("dtype", (torch.float32, torch.int8))
def test_repeated_results(sizes, strides, dim, dtype):
    """Right, and without more memory than others take."""
    base = torch.randint(0, 50, (1 << 23,), dtype=dtype, device="cuda")
    x = base.as_strided(sizes, strides)
    expected = torch.from_numpy(base.cpu().as_strided(sizes, strides).numpy().argmin(dim))
    for _ in range(2):  # the second call finds what the allocator keeps
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        values, indices = ops.min(x, dim)
        taken = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
        assert taken <= values.nbytes + indices.nbytes + (1 << 20)
        assert torch.equal(indices.cpu(), expected)
        assert torch.equal(values, x.gather(dim, indices.unsqueeze(dim)).squeeze(dim))
        assert torch.equal(ops.argmin(x, dim).cpu(), expected)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32, torch.int8, torch.float64))
@pytest.mark.parametrize(
    "sizes, strides, dim",
    [
        ((63, 65, 1, 64), (1, 64 * 63, 7, 63), 2),  # about a tile
        ((10, 1, 98, 300), (1, 5, 10, 980), 1),  # a run of memory over two dims
        ((3, 128, 1, 5, 70), (0, 1, 9, 128, 700), 2),  # copies, and gaps
        ((1, 8111, 4, 5, 35), (1, 1, 8113, 32452, 162260), 0),  # across several dims
        ((9001, 1, 455), (1, 3, 9001), 1),  # runs that end within sectors
        ((13, 90_001, 1), (1, 13, 7), 2),
        ((9001, 1, 20), (1, 3, 9001), 1),  # longer runs than a tile has, that are gathered
        ((3, 700_001, 1), (1, 3, 5), 2),  # long tiles: narrow in memory,
        ((600_001, 5, 1), (1, 600_001, 3), 2),  # narrow in the results,
        ((2, 7, 200, 1, 999), (1398600, 1, 6993, 5, 7), 3),  # several, along several dims
    ],
)
def test_values_of_one_element_each_in_another_order(sizes, strides, dim, dtype):
    base = torch.randint(-100, 100, (1 << 23,), device="cuda").to(dtype)
    x = base.as_strided(sizes, strides)
    for op in (ops.min, ops.max):
        values, indices = op(x, dim)
        assert torch.equal(values, x.squeeze(dim).contiguous())
        assert indices.shape == values.shape and not indices.any()
    if x.is_floating_point():
        assert torch.equal(ops.scale_min(x, -3.0, dim, False), x.squeeze(dim) * -3.0)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32, torch.int8, torch.bool))
@pytest.mark.parametrize("sizes", [(3, 17, 21, 26, 88), (2, 5, 3, 4, 6, 7, 2, 90), (2,) * 19])
def test_many_dims_in_another_order_than_the_index(sizes, dtype):
    base = torch.randint(-40, 40, sizes[::-1]).to(dtype)
    x, gpu = (y.permute(*range(len(sizes) - 1, -1, -1)) for y in (base, base.cuda()))
    whole = x.float().numpy()
    for op, expected in ((ops.argmin, whole.argmin()), (ops.argmax, whole.argmax())):
        assert op(gpu).item() == expected
    rows = whole.reshape(sizes[0], -1)
    dims = list(range(1, len(sizes)))
    assert ops.argmin(gpu, dims).tolist() == rows.argmin(1).tolist()
    assert ops.argmax(gpu, dims).tolist() == rows.argmax(1).tolist()


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32, torch.float64), ids=str)
@pytest.mark.parametrize(
    "shape",
    [(1_200_001, 3), (400_003, 7), (300_001, 12), (5, 80_001, 8), (7, 200, 310, 3), (90_001, 19)],
)
def test_many_short_rows_with_more_than_their_extremes(shape, dtype):
    """Under a mask, and of softmax_max; in other layouts, too."""
    x, mask = torch.randint(-40, 40, shape).to(dtype), torch.rand(shape) < 0.4
    (softmax_max,) = (spec for spec in OPS if spec.name == "softmax_max")
    views = [lambda t: t, lambda t: t[..., ::2]]
    if len(shape) > 2:
        views += [lambda t: t[:, 8:-8], lambda t: t[:, 8:-8].transpose(0, 1)]
        views += [lambda t: t[:1].expand(shape) if t.is_floating_point() else t]
    if len(shape) > 3:
        views += [lambda t: t[:, 8:-8, 8:-8], lambda t: t.permute(2, 0, 1, 3)]
    for view in views:
        y, marks, gpu, gpu_marks = (view(t) for t in (x, mask, x.cuda(), mask.cuda()))
        for name in ("max", "argmin"):
            found = getattr(ops, name)(gpu, -1, mask=gpu_marks)
            found = tuple(of.cpu() for of in as_tuple(found))
            assert_same(found, reference.masked(name, y, -1, False, marks))
        found = tuple(of.cpu() for of in ops.softmax_max(gpu, -1))
        assert_same(found, reference.softmax_max(y, -1), softmax_max.tolerance)


@pytest.mark.parametrize("columns", (2048, 2047))
@pytest.mark.parametrize("step", (1, 2))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.uint8, torch.int64))
@pytest.mark.parametrize("last", (0, 5, 4095))
def test_the_first_of_present_elements_that_are_as_absent_ones(last, dtype, step, columns):
    """One of a column, or some, in rows that are staged, packs or neither."""
    x = torch.empty(4096, columns, device="cuda", dtype=dtype)
    x.fill_(-math.inf if dtype.is_floating_point else torch.iinfo(dtype).min)
    mask = torch.zeros(4096, columns * step, device="cuda", dtype=torch.bool)[:, ::step]
    mask[last, ::2] = mask[-1, 1::3] = True
    mask[17::1000, ::7] = True
    values, indices = ops.max(x, 0, mask=mask)
    assert torch.equal(indices, mask.int().argmax(0)) and (values == x[0, 0]).all()


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32, torch.int8))
@pytest.mark.parametrize("sizes", [(120, 70_001, 3), (100, 7, 10_000, 5)])
def test_more_columns_than_candidates_find_room(sizes, dtype):
    """They are reduced in slices, whose results lie side by side, or not."""
    x = torch.randint(-100, 100, sizes, device="cuda").to(dtype)
    for y in (x, x.transpose(1, -2)):
        rows = y.cpu().float().movedim(-1, 1).flatten(0, 1).numpy()
        for op, expected in ((ops.argmin, rows.argmin(0)), (ops.argmax, rows.argmax(0))):
            expected = torch.from_numpy(expected)
            assert torch.equal(op(y, [0, -1]).cpu(), expected)
            short = op(y, [0, -1], index_dtype=torch.int32)
            assert short.dtype == torch.int32 and torch.equal(short.cpu().long(), expected)


@pytest.mark.parametrize(
    "dtype",
    (torch.float16, torch.bfloat16, torch.int16, torch.int8, torch.uint8, torch.bool),
)
@pytest.mark.parametrize("rows", (3, 4, 6, 7, 25))
def test_small_elements_of_many_outputs(rows, dtype):
    """Unaligned, so that words are made of the elements of several outputs."""
    x = torch.randint(-3, 4, (1201, rows, 501), device="cuda").to(dtype)
    if x.is_floating_point():
        x[::7, 0] = -0.0
        x[::11, rows - 1, ::3] = math.nan
    cpu = x.cpu()
    for op in (ops.min, ops.max):
        for result, expected in zip(op(x, 1), op(cpu, 1), strict=True):
            assert torch.equal(result.cpu().nan_to_num(99.0), expected.nan_to_num(99.0))
    assert torch.equal(ops.argmin(x, 1).cpu(), ops.argmin(cpu, 1))
    if x.is_floating_point():
        for scale in (0.5, -1.7):
            result, expected = ops.scale_max(x, scale, 1), ops.scale_max(cpu, scale, 1)
            assert torch.equal(result.cpu().nan_to_num(99.0), expected.nan_to_num(99.0))


@pytest.mark.parametrize("columns", (500, 501, 2001))
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_the_sign_of_the_first_zero(columns, dtype):
    signs = torch.randint(0, 2, (301, 9, columns), device="cuda") * 2 - 1
    x = (signs * 0.0).to(dtype)  # zeros of either sign, and a few others
    x[:, 5, ::3] = 2
    x[:, 4, ::5] = -2
    for scale in (1.0, -1.0, 0.5, 1.7):
        for op in (ops.scale_min, ops.scale_max):
            result, expected = op(x, scale, 1), op(x.cpu(), scale, 1)
            assert torch.equal(result.cpu().view(torch.int16), expected.view(torch.int16))
    for op in (ops.min, ops.max):
        assert torch.equal(op(x, 1)[0].cpu().view(torch.int16), op(x.cpu(), 1)[0].view(torch.int16))


@pytest.mark.parametrize("index_dtype", (torch.int64, torch.int32, torch.uint8))
@pytest.mark.parametrize("columns", (1100, 1101))
def test_tiles_of_results_in_another_order_than_memory(columns, index_dtype):
    """More tiles than a band has, and a rest of them, along memory and across."""
    x = torch.randint(-50, 50, (3, columns, 601), device="cuda", dtype=torch.int16)
    y = x.transpose(1, 2)
    expected = torch.from_numpy(y.cpu().numpy().argmin(0))
    assert torch.equal(ops.argmin(y, 0, index_dtype=index_dtype).cpu(), expected.to(index_dtype))
    values, indices = ops.min(y, 0, index_dtype=index_dtype)
    assert torch.equal(indices.cpu(), expected.to(index_dtype))
    assert torch.equal(values.cpu(), y.cpu().amin(0))


@each_walk
def test_inputs_that_somebody_writes_to(shape):
    """An index is in range, and a value such as were written: NaN, or an integer to 101."""
    x, (dim,) = make(shape), shape.dims
    written = [3, 4, 5] + [math.nan] * x.is_floating_point()
    first = x.clone()
    writer, reader = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    for stream in (writer, reader):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # until the work of both is queued
    results = []
    for i in range(30):
        with torch.cuda.stream(writer):
            x.fill_(written[i % len(written)])
            x.copy_(first)
        with torch.cuda.stream(reader):
            results.append(ops.max(x, dim))
    torch.cuda.synchronize()
    for values, indices in results:
        assert indices.min() >= 0 and indices.max() < x.size(dim)
        values = values.double()
        assert (values.isnan() | ((values.abs() <= 101) & (values == values.round()))).all()


def test_threads_on_streams_of_their_own():
    """Every walk at once, so that kernels are launched with more and with less shared memory."""
    shapes = [(64, 4096, 4093), (300, 900, 1021), (2000, 100, 333), (50, 3000, 2047)]
    inputs = [(torch.empty(shape, device="cuda"), 1) for shape in shapes]
    inputs += [(shape.empty("cuda"), shape.dims[0]) for shape in WALKS.values()]
    problems = []
    for i, (x, dim) in enumerate(inputs):
        fill(x, dim, i)
        problems.append((x, dim, torch.min(x, dim)))
    threads = 8
    start = threading.Barrier(threads)
    torch.cuda.synchronize()

    def work(number):
        rng = random.Random(number)
        start.wait()
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                turn = rng.sample(problems, len(problems))
                results = [(ops.min(x, dim), ops.argmin(x, dim)) for x, dim, _ in turn]
                for (x, dim, right), (both, indices) in zip(turn, results, strict=True):
                    context = (tuple(x.shape), x.dtype, dim)
                    assert_same(both, right, context=context)
                    assert_same(indices, right[1], context=context)

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, number) for number in range(threads)]:
            done.result()


SOMEBODYS_ERROR = """
import torch, customops
x = torch.rand(64, 4096, device="cuda")
customops.argmin(x, 1)
torch.zeros(4, device="cuda")[torch.tensor([1 << 20], device="cuda")]
for _ in range(10_000_000):
    customops.argmin(x, 1)
"""


def test_an_error_of_somebody_else_is_reported_as_theirs():
    done = python("-c", SOMEBODYS_ERROR)
    assert done.returncode != 0
    error = done.stderr.strip()
    assert "device-side assert" in error
    assert "reduceops: CUDA error" not in error


@each_op_and_walk
def test_a_captured_call_reads_its_input_anew(spec, shape):
    x, (dim,) = make(shape), shape.dims
    arguments = spec.arguments(dim, False)
    spec.op(x, *arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = spec.op(x, *arguments)
    for seed in range(1, 4):
        fill(x, dim, seed)
        graph.replay()
        assert_same(result, expected(spec, x, dim), spec.tolerance, (seed,))


def test_a_captured_call_of_several_kernels_reads_its_inputs_anew():
    """What a mask hides, and copies of results, are stored by kernels of their own."""
    x, mask = torch.empty(4096, 700, device="cuda"), torch.empty(4096, device="cuda").bool()
    y = torch.empty(1024, 1, 512, device="cuda")

    def call():
        hidden = ops.max(x, 1, mask=mask[:, None])
        return *hidden, *ops.max(y.expand(-1, 2048, -1), 2)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    for _ in range(3):
        x.uniform_()
        y.uniform_()
        mask.bernoulli_()
        graph.replay()
        values, indices = x.max(1)
        right = (values.masked_fill(~mask, -math.inf), indices.masked_fill(~mask, 0))
        right += tuple(found.expand(-1, 2048) for found in y.max(2))
        for result, wanted in zip(results, right, strict=True):
            assert torch.equal(result, wanted)


@each_op_and_walk
@pytest.mark.parametrize("offset", [1, 3])
def test_an_input_that_is_not_aligned(spec, shape, offset):
    x, (dim,) = make(shape, offset=offset), shape.dims
    assert x.storage_offset() == offset
    result = spec.op(x, *spec.arguments(dim, False))
    assert_same(result, expected(spec, x, dim), spec.tolerance)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two CUDA devices")
@each_op_and_walk
def test_a_device_that_is_not_current(spec, shape):
    x, (dim,) = make(shape, device="cuda:1"), shape.dims
    with torch.cuda.device(0):
        result = spec.op(x, *spec.arguments(dim, False))
        assert torch.cuda.current_device() == 0
        assert_same(result, expected(spec, x, dim), spec.tolerance)


def max_in_chunks(x, dim):
    """torch.max over pieces of `dim` of less than 2^31 elements: the first piece with the most."""
    length = max(1, (1 << 30) * x.size(dim) // x.numel())
    best = None
    for start in range(0, x.size(dim), length):
        values, at = x.narrow(dim, start, min(length, x.size(dim) - start)).max(dim)
        if best is None:
            best = values, at
        else:
            later = values > best[0]
            best = values.maximum(best[0]), torch.where(later, at + start, best[1])
    return best


def test_calls_that_differ_little_are_told_apart():
    """A thread keeps the plans of its last calls, which depend on more than a shape."""
    generator = torch.Generator("cuda").manual_seed(0)
    numbers = torch.randint(-50, 50, (64 * 1003 + 4,), generator=generator, device="cuda")
    masks = torch.randint(2, (64, 1003), generator=generator, device="cuda").bool()
    masks[:, 7] = masks[5] = True

    def check(op, x, dim, mask=None):
        here, there = ({}, {}) if mask is None else ({"mask": mask}, {"mask": mask.cpu()})
        actual = tuple(part.cpu() for part in as_tuple(op(x, dim, **here)))
        assert_same(actual, op(x.cpu(), dim, **there), context=(x.dtype, x.stride(), dim))

    for _ in range(2):
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int8):
            storage = numbers.to(dtype)
            for offset in range(4):
                wide = storage[offset : offset + 64 * 1003].view(64, 1003)
                for x in (wide, wide.view(1003, 64).t(), wide[:, ::2], wide[:1].expand(64, 1003)):
                    mask = masks[:, : x.size(1)]
                    for dim in (0, 1):
                        check(ops.argmax, x, dim)
                        check(ops.max, x, dim)
                        check(ops.argmax, x, dim, mask)
                        check(ops.argmax, x, dim, mask[:, :1])


@pytest.mark.large
def test_rows_in_parts_that_overlap():
    """Many rows of more than 2^30 positions, each of which is cut."""
    if torch.cuda.mem_get_info()[0] < 4e9:
        pytest.skip("needs 4 GB of the GPU's memory")
    x = torch.zeros(2**31 + 16_000, dtype=torch.int8, device="cuda")
    x[2**31] = 1
    rows = x.as_strided((4000, 2**30 + 1), (4, 2))
    expected = 2**30 - 2 * torch.arange(4000, device="cuda")
    assert torch.equal(ops.argmax(rows, 1), expected)


@pytest.mark.large
@pytest.mark.parametrize(
    "sizes, steps",
    [
        ((5_003, 4, 1600, 4), (900_000, 1, 24, 4)),
        ((5_003, 4, 1600, 4), (899_999, 1, 23, 5)),
        ((4, 4, 1600, 5_003), (4, 1, 24, 900_000)),  # outermost in memory, innermost of the results
    ],
)
def test_groups_of_a_few_elements_over_more_than_31_bits(sizes, steps):
    """They are gathered in slices. The reference has a part of the outputs at a time."""
    if torch.cuda.mem_get_info()[0] < 24e9:
        pytest.skip("needs 24 GB of the GPU's memory")
    generator = torch.Generator("cuda").manual_seed(0)
    storage = torch.empty(5_003 * 910_000, dtype=torch.int8, device="cuda")
    x = storage.random_(-20, 20, generator=generator).as_strided(sizes, steps)
    mask = torch.randint(0, 4, sizes, generator=generator, device="cuda") > 0
    mask[::7, :, ::5] = False
    plan = cuda_plan(x, 1)
    assert plan.walk == Walk.GATHER and plan.slices > 2
    found = ops.argmin(x, 1), ops.argmax(x, 1, index_dtype=torch.uint8).long(), *ops.max(x, 1)
    masked = ops.min(x, 1, mask=mask)
    along = sizes.index(5_003)  # and of the results, without the dim that is reduced
    for begin in range(0, 5_003, 1_000):
        size = min(1_000, 5_003 - begin)
        some, marks = (of.narrow(along, begin, size) for of in (x, mask))

        def part(result, begin=begin, size=size):
            return result.narrow(max(0, along - 1), begin, size)

        expected = some.argmin(1), some.argmax(1), *some.max(1)
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(part(ours), theirs)
        hidden = some.short().masked_fill(~marks, 1_000)
        least = hidden.amin(1, True)
        assert torch.equal(part(masked[0]), least.squeeze(1).clamp(max=127).to(torch.int8))
        assert torch.equal(part(masked[1]), (hidden == least).int().argmax(1))
    del found, masked, mask
    floats = torch.empty(2_400 * 910_000, dtype=torch.bfloat16, device="cuda")
    y = floats.normal_(generator=generator).as_strided(
        [2_400 if size == 5_003 else size for size in sizes], steps
    )
    probability, index = ops.softmax_max(y, 1)
    assert torch.equal(index, y.float().argmax(1))
    torch.testing.assert_close(probability, torch.softmax(y.float(), 1).amax(1).bfloat16())


@pytest.mark.large
def test_repeated_results_over_more_than_31_bits():
    """Copies are found by the order of the results, which slices would change."""
    if torch.cuda.mem_get_info()[0] < 12e9:
        pytest.skip("needs 12 GB of the GPU's memory")
    n = 2**25 + 1000
    column = torch.empty(n, 64, dtype=torch.float16, device="cuda")[:, :1].normal_()
    mask = torch.rand(n, 1, device="cuda") > 0.5
    values, indices = ops.max(column.expand(2, -1, -1), 2, mask=mask)
    expected = column.masked_fill(~mask, -math.inf).squeeze(1)
    assert (indices == 0).all() and all(torch.equal(part, expected) for part in values)


@pytest.mark.large
def test_slices_of_many_sizes():
    """The steps of each are kept for later calls, some where those of all were."""
    if torch.cuda.mem_get_info()[0] < 8e9:
        pytest.skip("needs 8 GB of the GPU's memory")
    storage = torch.empty(5_400 * 900_000, dtype=torch.int8, device="cuda").random_(-20, 20)
    for size in range(5_000, 5_400, 2):
        x = storage.as_strided((size, 4, 700, 4), (900_000, 1, 24, 4))
        assert torch.equal(ops.argmin(x, 1), x.argmin(1)), size


@pytest.mark.large
@pytest.mark.parametrize("regime", HUGE)
def test_more_than_2_to_the_31_elements(regime):
    shape, _ = HUGE[regime]
    if torch.cuda.mem_get_info()[0] < 16e9:
        pytest.skip("needs 16 GB of the GPU's memory")
    x, dims = shape.empty("cuda"), list(shape.dims)
    assert x.numel() > 1 << 31
    generator = torch.Generator("cuda").manual_seed(0)
    x.random_(-128, 100, generator=generator)
    last = x.numel() - 1
    for count, position in enumerate((last, 1 << 31, (1 << 31) - 1, last // 3)):
        x[tuple(map(int, torch.unravel_index(torch.tensor(position), x.shape)))] = 127
        if len(dims) == 1:
            values, indices = max_in_chunks(x, dims[0])
        else:
            values, inner = max_in_chunks(x, dims[1])
            values, outer = max_in_chunks(values, dims[0])
            inner = inner.gather(dims[0], outer.unsqueeze(dims[0])).squeeze(dims[0])
            indices = outer * x.size(dims[1]) + inner
        assert_same(ops.argmax(x, dims), indices, context=(position,))
        if count == 0 and len(dims) == 1:
            assert_same(ops.max(x, dims[0]), (values, indices))
