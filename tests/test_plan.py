"""The plans, without a GPU: they cover every group and choose the walk meant for a shape."""

import math

import pytest
import torch
from cuda_shapes import ALL_BRANCHES, HUGE, SMALL, TUNINGS, WALKS, branches, constants, parts
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from customops.explain import Walk, cpu_plan, cuda_plan

WORKSPACE = 1 << 20
CPU_CANDIDATE = 16
SHARED_BYTES = 227 << 10  # of a block, on Hopper


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, device="meta", dtype=dtype)


def outputs_and_walk(x, dims):
    outputs = walk = 1
    for d, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        if d not in dims:
            outputs *= size
        elif stride != 0:
            walk *= size
    return outputs, walk


def inner_size(x, dims):
    """Size of the innermost kept dims that are one in memory and in the output."""
    walked = (d for d in range(x.dim()) if x.size(d) > 1 and x.stride(d) > 0)
    kept = [d for d in range(x.dim()) if d not in dims and x.size(d) > 1]
    size, expected = 1, None
    for d in sorted(walked, key=lambda d: x.stride(d)):
        if d in dims or x.stride(d) != size or (size > 1 and d != expected):
            break
        size *= x.size(d)
        before = kept.index(d) - 1
        expected = kept[before] if before >= 0 else None
    return size


@st.composite
def cases(draw):
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 8, 31, 64, 257, 4095, 20000]), max_size=4))
    dtype = draw(st.sampled_from([torch.int8, torch.bfloat16, torch.float32, torch.float64]))
    x = empty(*shape, dtype=dtype).permute(draw(st.permutations(range(len(shape)))))
    if shape and draw(st.booleans()):
        x = x[..., :: draw(st.integers(1, 3))]
    if shape and draw(st.booleans()):
        x = x.unsqueeze(0).expand(5, *x.shape)
    dims = draw(st.sets(st.sampled_from(range(x.dim())), min_size=1)) if x.dim() else set()
    return x, sorted(dims)


@settings(deadline=None, derandomize=True, max_examples=600)
@given(
    cases(),
    st.sampled_from([1, 82, 108, 132]),
    st.sampled_from([0, 4, 8, 16]),
    st.booleans(),
    st.sampled_from([None, {"small_elements": 0}]),
)
def test_cuda_plan_covers_every_group_within_the_limits(
    case, multiprocessors, address, bulk, tuning
):
    x, dims = case
    outputs, walk = outputs_and_walk(x, dims)
    assume(outputs * walk < 1 << 42)  # as no GPU's memory could hold
    gpu = {"multiprocessors": multiprocessors, "bulk": bulk}
    plan = cuda_plan(x, dims, address=address, tuning=tuning, **gpu)
    assert 1 <= plan.lanes * plan.shares <= plan.threads <= 1024
    assert (plan.parts - plan.cluster) * plan.part_extent < walk <= plan.parts * plan.part_extent
    assert plan.part_extent <= 1 << 30
    assert plan.parts % plan.cluster == 0 and plan.cluster <= 8
    assert (plan.walk, parts(plan)) in WALKS, "a case of this kind is missing"
    if plan.candidates > 1:
        assert outputs * plan.candidates * plan.candidate_bytes <= WORKSPACE
        reduced = math.prod(x.size(d) for d in dims)
        assert plan.candidate_bytes == 16 or (x.element_size() <= 4 and reduced < 1 << 32)
    if plan.walk == Walk.SMALL:
        assert plan.lanes in (1, 2, 4, 8, 16, 32, 64, 128) and plan.parts == plan.shares == 1
        assert plan.blocks * plan.threads >= outputs * plan.lanes
        return
    if plan.walk == Walk.WHOLE_ROWS:
        width = 16 // x.element_size()
        assert plan.lanes <= plan.threads <= 512 and 2 <= plan.loads <= 4
        assert walk >= width if plan.vector else walk >= 2 * width
        if plan.batches:
            assert plan.lanes == plan.threads and plan.threads % 32 == 0
            assert plan.part_extent <= plan.batches * plan.lanes * plan.loads * width
            assert plan.part_extent * x.element_size() % 128 == 0 or plan.parts == 1
            assert plan.blocks == outputs * plan.parts
        else:
            assert plan.lanes & (plan.lanes - 1) == 0 and walk <= plan.lanes * plan.loads * width
            assert plan.parts == 1 and plan.blocks * plan.threads >= outputs * plan.lanes
        return
    if plan.walk == Walk.WHOLE_COLUMNS:
        assert 2 <= walk <= (8 if x.element_size() == 4 else 4)
        assert plan.parts == 1 and inner_size(x, dims) % 4 == 0
        assert plan.blocks * plan.threads * 4 >= outputs
        return
    if plan.walk in (Walk.ROWS, Walk.COLUMNS):
        assert plan.shares & (plan.shares - 1) == 0
        groups_per_block = plan.threads // (plan.lanes * plan.shares)
        if plan.walk == Walk.ROWS:
            assert plan.loads in (8, 16)
            assert plan.lanes in (1, 2, 4, 8, 16, 32, plan.threads)
            units = -(-outputs // groups_per_block)
        else:
            width = 16 // x.element_size() if plan.vector else 1
            assert plan.tiles * plan.lanes * width >= outputs
            units = -(-plan.tiles // groups_per_block)
        assert plan.blocks == units * plan.parts
        return
    assert bulk
    # Each stage has room for what is copied from any address.
    shared = plan.stages * (plan.stage_bytes + 16) + plan.scratch_bytes
    assert shared <= SHARED_BYTES
    itemsize = x.element_size()
    if plan.walk == Walk.BULK_GROUPS:
        assert plan.stages == 1 and plan.blocks == plan.tiles
        group_bytes = walk * inner_size(x, dims) * itemsize
        groups = outputs * walk * itemsize // group_bytes
        assert (plan.tiles - 1) * plan.tile < groups <= plan.tiles * plan.tile
        assert plan.stage_bytes >= plan.tile * group_bytes + 32
    else:
        assert plan.stages >= 2
        inner = inner_size(x, dims)
        assert (plan.across - 1) * plan.tile < inner <= plan.across * plan.tile
        assert plan.tiles == outputs // inner * plan.across
        slot = max(4, itemsize)
        slots = -(-plan.subtile * itemsize // slot)
        per_reader = {4: 8, 1: 2}.get(itemsize, 4) if plan.vector else 1
        # Several subtiles only where a stage holds a tile.
        assert plan.tile == plan.subtile or plan.parts == 1 and plan.stage_rows >= walk
        overhang = (plan.lanes * per_reader - slots) * slot
        assert plan.stage_bytes >= plan.stage_rows * plan.stage_pitch + overhang + 32
        assert plan.stage_pitch >= plan.tile * itemsize
        assert plan.lanes * per_reader >= slots
        assert plan.lanes * plan.shares <= plan.threads - 32
        assert plan.cluster == 1 or plan.blocks == plan.tiles * plan.parts
        if plan.cluster > 1:  # the bests take the place of the ring
            near = 16 if itemsize == 8 else 8
            assert plan.shares * plan.tile * near <= plan.stages * plan.stage_bytes


@settings(deadline=None, derandomize=True, max_examples=300)
@given(cases(), st.sampled_from([1, 2, 16, 192]))
def test_cpu_plan_covers_every_group_within_the_limits(case, threads):
    x, dims = case
    outputs, walk = outputs_and_walk(x, dims)
    plan = cpu_plan(x, dims, threads=threads)
    assert (plan.parts - 1) * plan.part_extent < walk <= plan.parts * plan.part_extent
    assert plan.tile * x.element_size() <= 32768 and plan.tile >= 1 and plan.grain >= 1
    assert plan.units == outputs if plan.rows else plan.units * plan.tile >= outputs
    if plan.parts > 1:
        assert outputs * plan.parts * CPU_CANDIDATE <= WORKSPACE
        assert plan.units < threads


@pytest.mark.parametrize(
    "shape, dims, dtype, walk",
    [
        ((128, 4096, 4095), [1], torch.float32, Walk.BULK_COLUMNS),
        ((128, 4096, 4095), [2], torch.float32, Walk.WHOLE_ROWS),
        ((128, 4096, 4095), [0], torch.float32, Walk.COLUMNS),
        ((16, 21, 512, 512), [1], torch.float32, Walk.BULK_COLUMNS),
        ((16, 21, 512, 512), [1], torch.bfloat16, Walk.COLUMNS),
        ((128, 64, 256), [1], torch.float32, Walk.COLUMNS),
        ((100, 64, 256), [1], torch.float32, Walk.COLUMNS),
        ((64, 151936), [1], torch.float32, Walk.WHOLE_ROWS),
        ((1024, 128256), [1], torch.float32, Walk.WHOLE_ROWS),
        ((1, 128256), [1], torch.bfloat16, Walk.WHOLE_ROWS),
        ((1 << 28,), [0], torch.float32, Walk.WHOLE_ROWS),
        ((8388608, 8), [0], torch.float32, Walk.BULK_COLUMNS),
        ((1048576, 64), [0], torch.float32, Walk.BULK_COLUMNS),
        ((1048576, 100), [1], torch.float32, Walk.WHOLE_ROWS),
        ((1048576, 101), [1], torch.float32, Walk.BULK_GROUPS),
        ((65536, 1000), [1], torch.bfloat16, Walk.WHOLE_ROWS),
        ((4096, 10_000), [1], torch.float32, Walk.WHOLE_ROWS),
        ((2, 256, 256, 256), [0], torch.float32, Walk.WHOLE_COLUMNS),
        ((16, 3, 512, 512), [1], torch.float32, Walk.WHOLE_COLUMNS),
        ((65536, 17, 33), [1], torch.float32, Walk.BULK_GROUPS),
        ((1024, 4096, 16), [1], torch.float32, Walk.BULK_COLUMNS),
        ((16,), [0], torch.float32, Walk.SMALL),
        ((32, 1000), [1], torch.float32, Walk.WHOLE_ROWS),
        ((32, 100), [1], torch.float32, Walk.SMALL),
    ],
)
def test_cuda_plan_of_the_shapes_that_matter(shape, dims, dtype, walk):
    x = empty(*shape, dtype=dtype)
    assert cuda_plan(x, dims).walk == walk
    older = {
        Walk.SMALL: Walk.SMALL,
        Walk.ROWS: Walk.ROWS,
        Walk.WHOLE_ROWS: Walk.WHOLE_ROWS,
        Walk.WHOLE_COLUMNS: Walk.WHOLE_COLUMNS,
        Walk.COLUMNS: Walk.COLUMNS,
    }
    older[Walk.BULK_COLUMNS] = Walk.COLUMNS
    older[Walk.BULK_GROUPS] = Walk.ROWS if dims == [x.dim() - 1] else Walk.COLUMNS
    assert cuda_plan(x, dims, bulk=False).walk == older[walk]


@pytest.mark.parametrize("kind", WALKS, ids=lambda kind: f"{kind[0].name.lower()}, {kind[1]}")
def test_shapes_of_the_reliability_tests_take_every_walk(kind):
    plan = WALKS[kind].plan()
    assert (plan.walk, parts(plan)) == kind


@pytest.mark.parametrize("regime", HUGE)
def test_shapes_of_more_than_2_to_the_31_elements_take_the_walk_they_are_for(regime):
    shape, walk = HUGE[regime]
    assert shape.empty().numel() > 1 << 31 and shape.plan().walk == walk


def test_shapes_for_the_sanitizer_reach_every_branch():
    reached = set()
    for tuning in ("", *TUNINGS.values()):
        for shape in SMALL:
            reached |= branches(shape, shape.plan(constants(tuning)))
    assert reached == ALL_BRANCHES


def test_a_constant_that_does_not_exist():
    with pytest.raises(ValueError, match="no constants of the plan: stage"):
        cuda_plan(empty(16), tuning={"stage": 1, "bulk": 0})


@pytest.mark.parametrize("bulk", [True, False])
@pytest.mark.parametrize("shape", [(1 << 28,), (64, 151936), (8388608, 8), (32, 4096, 4095)])
def test_cuda_plan_fills_the_gpu(shape, bulk):
    dims = [0] if len(shape) != 3 else [1]
    assert cuda_plan(empty(*shape), dims, multiprocessors=132, bulk=bulk).blocks >= 132


def test_few_rows_of_a_vocabulary_are_combined_by_clusters():
    plan = cuda_plan(empty(64, 151936), [1])
    assert plan.cluster == plan.parts > 1 and plan.candidates == 1


def test_an_unaligned_input_is_not_read_in_vectors_of_columns():
    x = empty(64, 20480)
    assert cuda_plan(x, [0], address=0).vector
    assert not cuda_plan(x, [0], address=4).vector


def test_channels_last_channels_are_rows():
    x = empty(16, 21, 512, 512).to(memory_format=torch.channels_last)
    assert cuda_plan(x, [1], bulk=False).walk == Walk.ROWS
    assert cpu_plan(x, [1]).rows


def test_a_transposed_matrix_is_walked_along_memory():
    assert cuda_plan(empty(5120, 256).t(), [1]).walk == Walk.COLUMNS
    assert cuda_plan(empty(5120, 256).t(), [0]).walk == Walk.WHOLE_ROWS


def test_cpu_plan_splits_a_flat_input_over_the_threads_and_a_small_one_not():
    assert cpu_plan(empty(1 << 26), [0], threads=16).parts == 16
    assert cpu_plan(empty(1 << 20, 64), [0], threads=16).parts >= 8
    assert cpu_plan(empty(1000), [0], threads=16).parts == 1
