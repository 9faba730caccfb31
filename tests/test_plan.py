"""The plans, without a GPU: they cover every group and choose the walk meant for a shape."""

import math
import os
import re
import typing

import numpy as np
import pytest
import torch
from cuda_shapes import ALL_BRANCHES, HUGE, SMALL, TUNINGS, WALKS, branches, constants, parts
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import random_case

from customops.plans import (
    BrokenPlan,
    Limits,
    Walk,
    cpu_plan,
    cuda_constants,
    cuda_plan,
    explain,
    main,
)

WORKSPACE = 1 << 20
OF_OPTIONS = {Walk.SMALL, Walk.WHOLE_ROWS, Walk.ROWS, Walk.COLUMNS, Walk.GATHER}
CPU_CANDIDATE = 16


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, device="meta", dtype=dtype)


def outputs_and_walk(x, dims):
    """How many groups differ, and how many of their elements: along stride 0 they are the same."""
    outputs = walk = 1
    for d, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        if stride != 0:
            outputs *= 1 if d in dims else size
            walk *= size if d in dims else 1
    return outputs, walk


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


def test_cuda_plans_keep_what_they_promise():
    """Of random layouts, GPUs and constants; csrc/cuda/plan_check.h says what is promised."""
    taken = set()
    for seed in range(int(os.environ.get("REDUCEOPS_TEST_EXAMPLES", 10_000))):
        case = random_case(seed)
        try:
            plan = case.plan()
        except BrokenPlan as error:
            raise AssertionError(f"seed {seed}: {case}") from error
        taken.add((plan.walk, parts(plan)))
        reduced = [d for d in case.dims or range(len(case.sizes)) if case.sizes[d] > 1]
        if case.softmax or (case.mask and any(case.mask[d] for d in reduced)):
            assert plan.walk in OF_OPTIONS
    assert taken == set(WALKS)


# Each broke a promise once.
@pytest.mark.parametrize(
    "x, dim, tuning",
    [
        pytest.param(
            empty(2**31 + 16_000, dtype=torch.int8).as_strided((4000, 2**30 + 1), (4, 2)),
            *(1, {}),
            id="rows",
        ),
        pytest.param(empty(1000, 2, 15361, dtype=torch.int8), 1, {}, id="last subtile"),
        pytest.param(
            *(empty(9, 268435464, dtype=torch.int8), 0),
            {"stage_bytes": 68961, "least_segment_bytes": 3, "column_walk_8": 1024},
            id="subtiles over stages",
        ),
        pytest.param(
            *(empty(3000, 17, 4000, dtype=torch.int8), 1), {"stage_bytes": 65536}, id="large stages"
        ),
        pytest.param(
            *(empty(3000, 65536, dtype=torch.int8), 1),
            {"short_row_bytes": 65536, "whole_rows": 0},
            id="long short rows",
        ),
        pytest.param(*(empty(1 << 20, 33), 1), {"tile_bytes": 1 << 40}, id="large tiles"),
        pytest.param(
            *(empty(1 << 13, 4096, dtype=torch.float64), 1),
            {"whole_few_vectors": 1 << 20},
            id="many threads to a row",
        ),
        pytest.param(
            empty(5, 1, 10, dtype=torch.bfloat16).expand(5, 1 << 30, 10), 2, {}, id="many repeats"
        ),
        pytest.param(
            *(empty(4100, 16, 8, dtype=torch.int64), 1),
            dict.fromkeys(("small_elements", "bulk_bytes", "small_group_bytes", "block_bytes"), 0)
            | {"stage_bytes": 1, "bulk_blocks": 63},
            id="bests of a cluster",
        ),
        pytest.param(
            empty(1).expand(1 << 36).as_strided((3 << 26, 256), (1, 1)),
            1,
            {"small_elements": 1 << 40, "small_whole_elements": 1 << 40},
            id="many small threads",
        ),
        pytest.param(
            *(empty((1 << 31) - 48, 2, dtype=torch.int8), 1),
            {"short_row_bytes": 2, "tile_bytes": 2},
            id="many tiles",
        ),
        pytest.param(
            *(empty(20, 40, 203), 1), {"share_loads": 1, "small_elements": 0}, id="many shares"
        ),
        pytest.param(
            empty(5702, 22, 8, 1, dtype=torch.float64).permute(2, 1, 0, 3).expand(-1, -1, -1, 3),
            *(0, {"walk": 9}),
            id="tiles where results repeat",
        ),
        # The longest parts, of which the workspace of other inputs could not hold a candidate each.
        *(
            pytest.param(
                empty(rows, 1 << 50, dtype=torch.int8), 1, {"walk": walk + 1}, id=walk.name
            )
            for rows, walk in ((1, Walk.ROWS), (5, Walk.WHOLE_ROWS), (5, Walk.COLUMNS))
        ),
        pytest.param(empty(1 << 50, 32, dtype=torch.int8), 0, {}, id="many long columns"),
    ],
)
def test_cuda_plans_that_broke_a_promise(x, dim, tuning):
    cuda_plan(x, [dim], tuning=tuning)


def test_tiles_of_values_in_another_order_have_32_bit_numbers():
    cuda_plan(empty(1, 1 << 38, 64, dtype=torch.int8).mT, 0, values=True)


@pytest.mark.parametrize("bulk", [True, False])
def test_no_constant_makes_planning_fail(bulk):
    x = empty(100, 64, 5001)
    for name in cuda_constants():
        for value in (0, 1, 2**63 - 1):
            for dim in range(3):
                cuda_plan(x, [dim], bulk=bulk, tuning={name: value})


@pytest.mark.parametrize("value", [-1, 2**63])
def test_a_constant_that_is_out_of_range(value):
    with pytest.raises(ValueError, match=f"bulk_blocks is {value}"):
        cuda_plan(empty(16), tuning={"bulk_blocks": value})


@pytest.mark.parametrize("plan", [cuda_plan, cpu_plan])
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_an_empty_tensor_has_no_plan(plan, shape):
    with pytest.raises(ValueError, match=r"an empty tensor .* has no plan"):
        plan(empty(*shape), [0])


@pytest.mark.parametrize("plan", [cuda_plan, cpu_plan])
def test_dims_are_those_of_a_call(plan):
    for x in (empty(), empty(7)):
        assert plan(x, [0]) == plan(x, [-1]) == plan(x, 0) == plan(x)
    assert plan(empty(3, 4, 5), [2, 0]) == plan(empty(3, 4, 5), [0, -1])
    assert plan(empty(3, 4), []) == plan(empty(3, 4))
    for dim in (2, -3, [0, 2]):
        with pytest.raises(IndexError, match="is out of range for a 2-d tensor"):
            plan(empty(3, 4), dim)
    with pytest.raises(RuntimeError, match="dim -1 appears twice"):
        plan(empty(3, 4), [1, -1])
    with pytest.raises(RuntimeError, match="65 dims is not supported"):
        plan(empty(*(1,) * 65))


def test_planning_takes_few_steps_however_wide_the_columns():
    """Of the widths of a tile each is looked at once."""
    x = empty(4, 1 << 34, dtype=torch.int8)
    cuda_plan(x, [0], tuning={"whole_column": 0, "segment_bytes": 1024, "split_segment_bytes": 0})


@settings(deadline=None, derandomize=True, max_examples=300)
@given(cases(), st.sampled_from([1, 2, 16, 192]))
def test_cpu_plan_covers_every_group_within_the_limits(case, threads):
    x, dims = case
    outputs, walk = outputs_and_walk(x, dims)
    plan = cpu_plan(x, dims, threads=threads)
    walk //= plan.columns
    outputs = outputs * plan.columns if plan.slices == 1 else WORKSPACE // CPU_CANDIDATE
    assert (plan.parts - 1) * plan.part_extent < walk <= plan.parts * plan.part_extent
    assert plan.tile * x.element_size() <= 32768 and plan.tile >= 1 and plan.grain >= 1
    if plan.slices == 1:
        assert plan.units == outputs if plan.rows else plan.units * plan.tile >= outputs
    if plan.parts > 1:
        assert outputs * plan.parts * CPU_CANDIDATE <= WORKSPACE
        assert plan.by_parts or (plan.units < 8 * threads and threads > 1)


@pytest.mark.parametrize(
    "shape, dims, dtype, walk",
    [
        ((128, 4096, 4095), [1], torch.float32, Walk.BULK_COLUMNS),
        ((128, 4096, 4095), [2], torch.float32, Walk.WHOLE_ROWS),
        ((128, 4096, 4095), [0], torch.float32, Walk.COLUMNS),
        ((16, 21, 512, 512), [1], torch.float32, Walk.GATHER),
        ((16, 21, 512, 512), [1], torch.bfloat16, Walk.GATHER),
        ((128, 64, 256), [1], torch.float32, Walk.GATHER),
        ((100, 64, 256), [1], torch.float32, Walk.GATHER),
        ((64, 151936), [1], torch.float32, Walk.WHOLE_ROWS),
        ((1024, 128256), [1], torch.float32, Walk.WHOLE_ROWS),
        ((1, 128256), [1], torch.bfloat16, Walk.WHOLE_ROWS),
        ((1 << 28,), [0], torch.float32, Walk.WHOLE_ROWS),
        ((8388608, 8), [0], torch.float32, Walk.COLUMNS),
        ((1048576, 64), [0], torch.float32, Walk.COLUMNS),
        ((1048576, 100), [1], torch.float32, Walk.WHOLE_ROWS),
        ((1048576, 101), [1], torch.float32, Walk.BOXES),
        ((65536, 1000), [1], torch.bfloat16, Walk.WHOLE_ROWS),
        ((4096, 10_000), [1], torch.float32, Walk.WHOLE_ROWS),
        ((2, 256, 256, 256), [0], torch.float32, Walk.WHOLE_COLUMNS),
        ((16, 3, 512, 512), [1], torch.float32, Walk.WHOLE_COLUMNS),
        ((65536, 17, 33), [1], torch.float32, Walk.GATHER),
        ((1024, 4096, 16), [1], torch.float32, Walk.COLUMNS),
        ((16,), [0], torch.float32, Walk.SMALL),
        ((32, 1000), [1], torch.float32, Walk.WHOLE_ROWS),
        ((32, 100), [1], torch.float32, Walk.SMALL),
        ((4000, 3, 333), [1], torch.float32, Walk.GATHER),
    ],
)
def test_cuda_plan_of_the_shapes_that_matter(shape, dims, dtype, walk):
    x = empty(*shape, dtype=dtype)
    assert cuda_plan(x, dims).walk == walk
    older = Walk.COLUMNS if walk == Walk.BULK_COLUMNS else walk
    assert cuda_plan(x, dims, bulk=False).walk == older


@pytest.mark.parametrize(
    "sizes, strides, dims, dtype",
    [
        ((4, 420, 11, 4097), (1, 4, 1680, 18480), (0, 1, 2), torch.bool),
        ((13, 7, 16, 65536), (1, 13, 91, 1456), (0, 1, 2), torch.bfloat16),
        ((512, 64, 4096), (64, 1, 32768), (0, 1, 2), torch.float32),
        ((512, 64, 4096), (1, 512, 32768), (0, 1), torch.float64),
        ((300_000, 5, 7), (35, 1, 5), (1, 2), torch.float32),
    ],
)
@pytest.mark.parametrize("bulk", [True, False])
def test_reduced_dims_side_by_side_are_one_row_in_whatever_order(sizes, strides, dims, dtype, bulk):
    x = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
    plan = cuda_plan(x, dims, bulk=bulk)
    assert plan.walk == Walk.WHOLE_ROWS and plan.mapped
    in_order = cuda_plan(empty(*sizes, dtype=dtype), dims, bulk=bulk)
    assert not in_order.mapped


@pytest.mark.parametrize(
    "sizes, strides, dims, dtype",
    [
        ((300_000, 5, 7), (60, 12, 1), (1, 2), torch.float32),  # with gaps
        ((30_000, 3, 5, 33), (495, 33, 99, 1), (1, 2), torch.float32),  # of columns
    ],
)
def test_small_groups_over_several_dims_are_boxes(sizes, strides, dims, dtype):
    x = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
    assert cuda_plan(x, dims).walk == Walk.BOXES


def test_columns_over_dims_that_are_one_in_memory_are_read_in_its_order():
    x = torch.empty_strided((4096, 57, 1024), (57, 1, 233472), device="meta")
    plan = cuda_plan(x, (0, 2))
    assert plan.walk == Walk.BULK_COLUMNS and plan.mapped and plan.parts == 1024
    assert not cuda_plan(empty(1024, 4096, 57), (0, 1)).mapped
    # So many parts that their candidates do not fit the workspace; as columns they do.
    x = torch.empty_strided((512, 57, 65536), (57, 1, 29184), device="meta")
    assert cuda_plan(x, (0, 2), tuning={"fold": 0}).walk == Walk.COLUMNS
    assert cuda_plan(x, (0, 2)).folded == 512


@pytest.mark.parametrize(
    "sizes, strides, dims, dtype",
    [
        # Reduced dims on either side of the kept one.
        ((4, 16, 16384, 65, 3), (51118080, 3194880, 195, 3, 1), (0, 1, 2, 4), torch.int16),
        ((2004, 19, 5, 128), (95, 5, 1, 190380), (0, 2, 3), torch.int16),
        ((698, 15, 15, 64, 3), (43200, 2880, 192, 3, 1), (0, 1, 4), torch.float32),
        ((1000, 1631, 74), (120694, 74, 1), (0, 2), torch.float32),
        # Narrow columns over several dims.
        ((16, 4, 131072, 6), (9437184, 786432, 6, 1), (0, 2), torch.bool),
        ((42, 806, 54, 32), (1, 42, 33852, 1828008), (1, 2), torch.bfloat16),
        ((2929, 1900, 8), (15200, 8, 1), (1,), torch.uint8),
    ],
)
def test_columns_are_folded_to_be_wide(sizes, strides, dims, dtype):
    x = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
    plan = cuda_plan(x, dims)
    assert plan.folded > 1 and plan.walk in {Walk.COLUMNS, Walk.BULK_COLUMNS}
    assert cuda_plan(x, dims, tuning={"fold": 0}).folded == 1
    outputs, walk = outputs_and_walk(x, dims)
    assert walk % plan.folded == 0 and plan.parts * plan.part_extent >= walk // plan.folded
    assert outputs * plan.partial_results * plan.candidate_bytes <= WORKSPACE


def test_what_is_fast_already_is_not_folded():
    for shape in ((128, 4096, 4095), (16, 21, 512, 512), (64, 151936), (8388608, 8), (1000, 4099)):
        for dim in range(len(shape)):
            assert cuda_plan(empty(*shape), [dim]).folded == 1
    x, forced = empty(1000, 1631, 74), {"fold": 1 << 20}
    assert cuda_plan(x, [0, 2], tuning=forced).folded > 1
    mask = empty(1000, 1631, 74, dtype=torch.bool)  # under which there is no such kernel
    assert cuda_plan(x, [0, 2], tuning=forced, mask=mask).folded == 1
    # So many columns that their candidates do not fit the workspace.
    assert cuda_plan(empty(1000, 1800, 74), [0, 2], tuning=forced).folded == 1


def test_outputs_are_cut_for_the_candidates_of_their_columns_to_fit_the_workspace():
    for sizes, strides, dims, dtype in (
        ((922, 114_259, 2), (228_518, 2, 1), (0, 2), torch.bfloat16),
        ((227, 1, 512, 255, 4), (522_240, 1, 1020, 4, 1), (1, 2, 4), torch.int8),
    ):
        x = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
        plan = cuda_plan(x, dims)  # of a slice
        assert plan.folded > 1 and cuda_plan(x, dims, tuning={"fold": 0}).folded == 1
        outputs, _ = outputs_and_walk(x, dims)
        assert outputs * plan.folded * plan.candidate_bytes > WORKSPACE


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


@pytest.mark.parametrize(
    "shape, dims, mask, runs",
    [
        ((8192, 8192), [0, 1], (1, 8192), 8),  # warps side by side read neighbours of the mask
        ((1, 64, 256, 256), [0, 1, 2, 3], (1, 1, 16384, 64), 1),  # of which a part has none
        ((1024, 4, 65536), [1, 2], (1, 67108864, 1024), 1),
    ],
)
def test_runs_of_a_row_under_a_mask_that_lies_across_them(shape, dims, mask, runs):
    marks = torch.empty_strided(shape, mask, device="meta", dtype=torch.bool)
    plan = cuda_plan(empty(*shape), dims, mask=marks, multiprocessors=132)
    assert plan.walk == Walk.ROWS and plan.runs == runs


@pytest.mark.parametrize(
    "shape, mask, lanes, shares",
    [
        ((65536, 298), (1, 65536), 8, 4),  # neighbouring rows have neighbours of the mask
        ((8388608, 9), (3, 25165824), 9, 4),  # no tile of one column
        ((1024, 3290, 31), (101990, 31, 1), 8, 1),  # the same columns for each of 31
    ],
)
def test_columns_under_a_mask_that_lies_across_them(shape, mask, lanes, shares):
    x = torch.empty(shape[:2], device="meta", dtype=torch.float32)
    x = x if len(shape) == 2 else x.unsqueeze(2).expand(shape)
    marks = torch.empty_strided(shape, mask, device="meta", dtype=torch.bool)
    plan = cuda_plan(x, [0], mask=marks, multiprocessors=132)
    assert (plan.walk, plan.lanes) == (Walk.COLUMNS, lanes) and plan.shares >= shares


@pytest.mark.parametrize("rows, lanes, loads", [(262144, 16, 8), (1024, 32, 4)])
def test_many_rows_of_16_bits_under_a_mask_have_fewer_lanes(rows, lanes, loads):
    x = torch.empty(rows, 1024, device="meta", dtype=torch.bfloat16)
    marks = torch.empty(rows, 1024, device="meta", dtype=torch.bool)
    plan = cuda_plan(x, [1], mask=marks, multiprocessors=132)
    assert (plan.walk, plan.lanes, plan.loads) == (Walk.WHOLE_ROWS, lanes, loads)


@pytest.mark.parametrize(
    "shape, mask, walk",
    [
        ((31, 961, 140), (140, 0, 1), Walk.GATHER),
        ((32, 16, 120152), (1, 0, 0), Walk.COLUMNS),  # which read the rows that take part alone
        ((1024, 961, 140), (134540, 140, 1), Walk.COLUMNS),
    ],
)
def test_groups_under_a_mask_are_gathered_where_that_is_cheaper(shape, mask, walk):
    marks = torch.empty_strided(shape, mask, device="meta", dtype=torch.bool)
    assert cuda_plan(empty(*shape), [0], mask=marks, multiprocessors=132).walk == walk


def test_few_rows_of_a_vocabulary_are_combined_by_clusters():
    plan = cuda_plan(empty(64, 151936), [1])
    assert plan.cluster == plan.parts > 1 and plan.partial_results == 1


@pytest.mark.parametrize(
    "shape, strides, dim, walk",
    [
        ((64, 151936), None, 1, Walk.WHOLE_ROWS),
        ((128, 4096, 4095), None, 1, Walk.COLUMNS),
        ((16, 21, 512, 512), (0, 1, 0, 0), 1, Walk.COLUMNS),  # a mask of channels
        ((64, 151936), (0, 1), 1, Walk.WHOLE_ROWS),  # one mask for all rows
        ((4096, 1, 8), None, 1, Walk.SMALL),  # nothing to reduce
        ((), None, None, Walk.SMALL),
    ],
)
def test_cuda_plan_of_masks_and_of_softmax_max(shape, strides, dim, walk):
    x = empty(*shape)
    mask = torch.empty(shape, device="meta", dtype=torch.bool)
    if strides:
        mask = torch.empty_strided(shape, strides, device="meta", dtype=torch.bool)
    assert cuda_plan(x, dim, mask=mask).walk == walk
    assert cuda_plan(x, dim, softmax=True).walk == walk


@pytest.mark.parametrize(
    "shape, dtype, lanes",
    [
        ((1_000_000, 35), torch.int8, 1),
        ((100_000, 180), torch.int8, 2),
        ((64, 100), torch.bfloat16, 16),
    ],
)
def test_short_rows_that_are_not_aligned_are_read_by_packs(shape, dtype, lanes):
    """Bytes of large inputs by few lanes; of small inputs each lane has a pack."""
    x, mask = empty(*shape, dtype=dtype), empty(*shape, dtype=torch.bool)
    plans = [cuda_plan(x, 1, mask=mask)]
    plans += [cuda_plan(x, 1, softmax=True)] if dtype.is_floating_point else []
    for plan in plans:
        assert plan.walk == Walk.SMALL and plan.vector and plan.lanes == lanes


@pytest.mark.parametrize("mask_strides", [(100, 1), (200, 2)])
def test_longer_rows_are_held_where_they_are_not_aligned_or_their_mask_lies_apart(mask_strides):
    x = empty(100_000, 100, dtype=torch.bfloat16)
    mask = torch.empty_strided(x.shape, mask_strides, device="meta", dtype=torch.bool)
    assert cuda_plan(x, 1, mask=mask).walk == Walk.WHOLE_ROWS
    assert cuda_plan(x, 1, softmax=True).walk == Walk.WHOLE_ROWS


def test_rows_of_a_few_elements_are_gathered_where_a_mask_lies_across():
    x = empty(63_975, 4, 12, 28, dtype=torch.uint8).permute(2, 3, 1, 0)
    mask = empty(28, 4, 63_975, 12, dtype=torch.bool).permute(3, 0, 1, 2)
    plan = cuda_plan(x, 1, mask=mask)
    (usual,) = (candidate.plan.walk for candidate in plan.candidates if candidate.usual)
    assert plan.walk == Walk.GATHER and usual == Walk.ROWS


@pytest.mark.parametrize("dims", [None, (0, 1), ()])
def test_cuda_plan_of_softmax_max_is_of_one_dim(dims):
    with pytest.raises(ValueError, match="softmax_max reduces one dim"):
        cuda_plan(empty(3, 4), dims, softmax=True)


@pytest.mark.parametrize(
    "shape, strides, dim",
    [
        ((16, 21, 512, 512), (262144, 0, 512, 1), 1),  # one of pixels
        ((65536, 1000), (1, 0), 1),
        ((64, 151936), (0, 0), 1),
        ((1 << 22, 1, 8), (8, 8, 1), 1),  # nothing to reduce
    ],
)
def test_a_mask_of_whole_groups_leaves_the_walk_as_it_is(shape, strides, dim):
    x, mask = empty(*shape), torch.empty_strided(shape, strides, device="meta", dtype=torch.bool)
    assert cuda_plan(x, dim, mask=mask) == cuda_plan(x, dim)


@pytest.mark.parametrize(
    "shape, strides, dim",
    [
        ((65536, 1000), (1, 65536), 1),
        ((8, 1024, 4096), (1, 8, 8192), 2),
        ((32, 1024, 4096), (1, 32, 32768), 1),
        ((16384, 8192), (1, 16384), 0),
    ],
)
def test_a_mask_in_another_order_than_its_input_is_read_in_whole_sectors(shape, strides, dim):
    """Threads of a block lie side by side along the dim that the mask has innermost."""
    mask = torch.empty_strided(shape, strides, device="meta", dtype=torch.bool)
    plan = cuda_plan(empty(*shape), dim, mask=mask)
    beside = plan.threads // plan.lanes // (1 if plan.walk == Walk.ROWS else plan.shares)
    along = plan.shares if strides[dim] == 1 else beside
    assert plan.walk in {Walk.ROWS, Walk.COLUMNS} and min(along, shape[strides.index(1)]) >= 8


def test_an_input_that_only_its_mask_tells_apart_is_walked_along_memory():
    """One row of logits with a mask for each sample."""
    x, mask = empty(1, 50_257).expand(64, -1), empty(64, 50_257, dtype=torch.bool)
    plan = cuda_plan(x, 1, mask=mask)
    assert plan.walk == Walk.WHOLE_ROWS


def test_an_unaligned_input_is_not_read_in_vectors_of_columns():
    x, columns = empty(64, 20480), {"walk": Walk.COLUMNS + 1}
    assert cuda_plan(x, [0], address=0, tuning=columns).vector
    assert not cuda_plan(x, [0], address=4, tuning=columns).vector


@pytest.mark.parametrize(
    "sizes, strides, dims, dtype",
    [
        ((256, 5, 3, 73, 30), (32850, 6570, 2190, 30, 1), (2, 4), torch.float32),
        ((4, 200_003, 9), (1_800_027, 9, 1), (0, 2), torch.float32),
        ((63, 2, 61_867, 1, 11), (1_361_074, 1, 22, 22, 2), (0, 1, 3, 4), torch.int8),
    ],
)
def test_small_groups_that_lie_apart_are_read_by_tiles(sizes, strides, dims, dtype):
    x = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
    assert cuda_plan(x, dims).walk == Walk.TILES


def test_channels_last_channels_are_rows():
    x = empty(16, 21, 512, 512).to(memory_format=torch.channels_last)
    plan = cuda_plan(x, [1], bulk=False)
    assert plan.walk == Walk.BOXES and plan.reading >= 0
    assert cpu_plan(x, [1]).rows


def test_results_in_another_order_than_memory_are_gathered_in_tiles_where_groups_are_short():
    for size in (1024, 8192):
        plan = cuda_plan(empty(2, size, size).transpose(1, 2), [0])
        assert plan.walk == Walk.GATHER and plan.cross_side > 0
    # Their runs end within sectors, of which L2 keeps what the next tile across fills.
    x = torch.empty_strided((672, 131, 3, 513), (201609, 1, 67203, 131), device="meta").bfloat16()
    plan = cuda_plan(x, [2])
    assert plan.walk == Walk.GATHER and plan.cross_side == 64
    plan = cuda_plan(empty(2, 1023, 1023), [0])
    assert plan.walk == Walk.GATHER and plan.cross_side == 0
    assert cuda_plan(empty(100, 8192, 1024).transpose(1, 2), [0]).walk != Walk.GATHER
    # Places of which have more than 32 bits.
    assert cuda_plan(empty(2, 40_000, 80_000).transpose(1, 2), [0]).walk == Walk.TILES


@pytest.mark.parametrize(
    "sizes, strides, dim, walk",
    [
        # Rows that L1 does not hold until their threads have read them.
        ((31, 512, 15165), (1, 131, 67072), 0, Walk.BOXES),
        # Results in the order of memory but for a dim that shares sectors with the innermost.
        ((103, 52329, 2, 12), (2, 2472, 1, 206), 3, Walk.BOXES),
    ],
)
def test_what_would_be_read_or_written_twice_is_not_gathered(sizes, strides, dim, walk):
    x = torch.empty_strided(sizes, strides, dtype=torch.bfloat16, device="meta")
    assert cuda_plan(x, [dim]).walk == walk


def test_copies_of_packs_of_bytes():
    """Results across a tile that are copies, and groups beside them in packs."""
    x = torch.empty_strided((9, 4, 8, 8), (32, 8, 1, 0), dtype=torch.int8, device="meta")
    tuning = {"walk": Walk.GATHER + 1, "small_elements": 0}
    plan = cuda_plan(x, 0, multiprocessors=132, bulk=True, tuning=tuning)
    assert plan.walk == Walk.GATHER


def test_bytes_are_gathered_in_packs_that_begin_anywhere():
    def plan_of(dtype, columns, **tuning):
        x = torch.empty((8, 10_502, columns), dtype=dtype, device="meta").transpose(1, 2)
        return cuda_plan(x, 0, multiprocessors=132, bulk=True, tuning=tuning)

    whole, cut = plan_of(torch.bool, 24), plan_of(torch.bool, 23)
    assert whole.walk == cut.walk == Walk.GATHER and whole.packed and cut.packed
    assert cut.realigned and not whole.realigned
    assert not plan_of(torch.bool, 23, realigned=0).packed
    assert not plan_of(torch.int16, 23).packed


@pytest.mark.parametrize("results, side", [(36, 20), (48, 24), (300, 32)])
def test_results_that_are_a_few_more_than_a_tile_has_are_cut_evenly(results, side):
    x = torch.empty((20_000, 5, results, 64), dtype=torch.bfloat16, device="meta")
    plan = cuda_plan(x.permute(0, 3, 1, 2), 2, multiprocessors=132, bulk=True)
    # By tiles of any layout, each lane of a warp would store to a sector of its own.
    assert plan.walk == Walk.GATHER and plan.cross_side == side
    # Where the results of the next dim follow, their runs go on over those.
    plan = cuda_plan(x.permute(3, 0, 1, 2), 2, multiprocessors=132, bulk=True)
    assert plan.walk == Walk.GATHER and plan.cross_side == 32


def test_threads_share_long_groups_of_small_inputs():
    for x, dim in ((empty(100, 64, 257), 1), (empty(107, 27_694), 0)):
        plan = cuda_plan(x, [dim])
        assert plan.walk == Walk.GATHER and plan.shares == 4
    assert cuda_plan(empty(1000, 107, 999), [1]).walk == Walk.COLUMNS
    assert cuda_plan(empty(100, 257, 64), [2]).walk != Walk.GATHER  # rows


def test_threads_of_many_tiles_have_more_of_each():
    few, many = (
        cuda_plan(empty(3, side, side).transpose(1, 2), [0], multiprocessors=132)
        for side in (1024, 8192)
    )
    assert few.walk == many.walk == Walk.GATHER and few.units < many.units
    assert many.inner_side * many.cross_side == many.units * many.threads
    longer = cuda_plan(empty(5, 8192, 8192).transpose(1, 2), [0], multiprocessors=132)
    assert longer.walk == Walk.GATHER and longer.units == few.units


def test_large_tiles_find_room_in_shared_memory():
    """Of copies, which nothing but a gather takes, and of others, which would not be in tiles."""
    x = empty(2, 2, 1 << 20, dtype=torch.float64).permute(2, 0, 1)
    assert cuda_plan(x.expand(16, -1, -1, -1), -1, multiprocessors=132).walk == Walk.GATHER
    for dtype, side in ((torch.float64, 2), (torch.int8, 4)):
        x = empty(4, side, 1 << 25, dtype=dtype).permute(2, 1, 0)
        plan = cuda_plan(x, -1, tuning={"walk": Walk.GATHER + 1})
        assert plan.cross_side == side and plan.units == 8


def test_rows_under_a_mask_that_columns_have_in_common_are_listed():
    def plan_of(*shape, mask, dtype=torch.bfloat16, dim=1):
        marks = empty(*mask, dtype=torch.bool)
        return cuda_plan(empty(*shape, dtype=dtype), dim, mask=marks, multiprocessors=132)

    classes, padding = (1, 21, 1, 1), (64, 128, 1)
    assert plan_of(8, 21, 513, 513, mask=classes).listed
    assert plan_of(64, 128, 1000, mask=padding).listed
    assert plan_of(64, 128, 1000, mask=padding, dtype=torch.float32).listed
    # Short columns and rows of 32 bits, 64 bits, and a mask of its own for each column.
    assert not plan_of(4096, 21, 55, mask=(4096, 21, 1), dtype=torch.float32).listed
    assert not plan_of(64, 128, 1000, mask=padding, dtype=torch.float64).listed
    assert not plan_of(64, 128, 1000, mask=(64, 128, 1000)).listed


def test_short_groups_under_a_mask_and_of_a_sum_are_gathered():
    def walk_of(x, dim, mask=None):
        options = {"mask": mask} if mask is not None else {"softmax": True}
        return cuda_plan(x, dim, multiprocessors=132, **options).walk

    x, marks = empty(1024, 8, 4096), empty(1024, 8, 4096, dtype=torch.bool)
    assert walk_of(x, 1, marks) == Walk.GATHER
    assert walk_of(x, 1, empty(4096, 8, 1024, dtype=torch.bool).permute(2, 1, 0)) == Walk.GATHER
    assert walk_of(empty(1 << 20, 5), 1, empty(1 << 20, 5, dtype=torch.bool)) == Walk.GATHER
    # Rows that are loads of 16 bytes with their mask, and a mask in common.
    assert walk_of(empty(1 << 20, 16), 1, empty(1 << 20, 16, dtype=torch.bool)) != Walk.GATHER
    common = empty(1024, 12, 1, dtype=torch.bool)
    assert walk_of(empty(1024, 12, 4096, dtype=torch.bfloat16), 1, common) == Walk.COLUMNS
    # Columns of a sum, aligned or not, and with results in another order.
    assert walk_of(x, 1) == walk_of(x[..., 1:], 1) == walk_of(x.permute(2, 1, 0), 1) == Walk.GATHER


def test_columns_under_a_mask_and_of_a_sum_are_shared():
    def plan_of(*shape, dim=0, mask=True, dtype=torch.float32, **more):
        x, marks = empty(*shape, dtype=dtype), empty(*shape, dtype=torch.bool)
        options = {"mask": marks} if mask else {"softmax": True}
        return cuda_plan(x, dim, multiprocessors=132, **options, **more)

    assert plan_of(512, 33, 4096, dim=1).shares == plan_of(64, 200_000, mask=False).shares == 2
    assert plan_of(1000, 12544).shares == plan_of(1000, 12544, mask=False).shares == 8
    # Bytes that begin anywhere, in packs where threads are enough.
    assert plan_of(300, 140_001, dtype=torch.int8).realigned
    assert not plan_of(300, 1001, dtype=torch.int8).realigned
    # Too long for it, large ones of 32-bit sums that are loads of 16 bytes, and results that a mask
    # hides as a whole.
    assert plan_of(8192, 1024).walk == plan_of(64, 3 << 19, mask=False).walk == Walk.COLUMNS
    groups = empty(1, 12544, dtype=torch.bool)
    hidden = cuda_plan(empty(1000, 12544), 0, mask=groups, multiprocessors=132)
    assert not hidden.masked


def test_columns_are_shared_where_a_warp_reads_few_sectors_of_the_mask():
    def walk_of(x, dim, marks):
        return cuda_plan(x, dim, mask=marks, multiprocessors=132).walk

    # It is near along memory's innermost dim, and not along that of the results.
    x = empty(255, 35, 4, 1770).permute(0, 3, 1, 2)
    marks = empty(255, 35, 4, 1770, dtype=torch.bool).permute(0, 3, 1, 2)
    assert walk_of(x, 2, marks) == Walk.GATHER
    # Each lane has a sector of its own, with its next bytes; but not where one evicts the other.
    for columns, rows, walk in ((77_000, 127, Walk.GATHER), (77_000, 1024, Walk.COLUMNS)):
        across = empty(columns, rows, dtype=torch.bool).T
        assert walk_of(empty(rows, columns), 0, across) == walk
    # There is none of these: far apart both ways.
    apart = torch.empty_strided((127, 77_000), (64, 9000), dtype=torch.bool, device="meta")
    assert walk_of(empty(127, 77_000), 0, apart) == Walk.COLUMNS


def test_long_rows_of_16_bits_of_a_sum_are_held_where_these_are_many():
    def batches(*sizes):
        x = empty(*sizes, dtype=torch.bfloat16)
        plan = cuda_plan(x, 1, softmax=True, values=True, multiprocessors=132)
        assert plan.walk == Walk.WHOLE_ROWS
        return plan.batches

    assert batches(16384, 15176) == 0 and batches(100, 15176) == 1 and batches(16384, 16400) == 2


def test_rows_with_gaps_whose_channels_are_innermost_are_folded():
    """As those of a cropped batch of images in channels_last: a row of memory is one then."""
    images = empty(64, 1024, 1024, 3, dtype=torch.uint8).permute(0, 3, 1, 2)[..., :1023, :1023]
    plan = cuda_plan(images, [1, 2, 3], multiprocessors=132)
    assert (plan.walk, plan.folded, plan.mapped) == (Walk.WHOLE_ROWS, 1023, True)
    plan = cuda_plan(images, multiprocessors=132)
    assert (plan.walk, plan.folded, plan.mapped) == (Walk.WHOLE_ROWS, 64 * 1023, True)


def test_long_rows_of_bytes_whose_mask_is_apart():
    x = empty(4096, 36053, dtype=torch.uint8)
    marks = empty(4096, 36053, 3, dtype=torch.bool)[..., 0]
    assert cuda_plan(x, 1, mask=marks, multiprocessors=132).walk == Walk.ROWS
    assert cuda_plan(x, 1, mask=marks[0], multiprocessors=132).walk == Walk.ROWS
    assert cuda_plan(x[:10], 1, mask=marks[:10], multiprocessors=132).walk == Walk.WHOLE_ROWS
    together = empty(4096, 36053, dtype=torch.bool)
    assert cuda_plan(x, 1, mask=together, multiprocessors=132).walk == Walk.WHOLE_ROWS


def test_a_mask_of_single_elements_is_looked_at_where_values_are_copied():
    x, marks = empty(4096, 1, 1000), empty(1, 1, 1000, dtype=torch.bool)
    assert cuda_plan(x, 1, mask=marks, values=True).walk == Walk.GATHER
    assert cuda_plan(x, 1, mask=marks).walk == Walk.FILL


def test_tiles_go_across_several_dims_where_one_is_short():
    x = empty(2, 7, 2, 16, 16384).permute(0, 4, 3, 2, 1)
    plan = cuda_plan(x, [0])
    assert plan.walk == Walk.GATHER and (plan.inner_side, plan.cross_side) == (32, 32)
    # Where little lies side by side, no more than follow each other in memory.
    x = empty(2, 3, 5, 100_000, 2).permute(0, 4, 3, 2, 1)
    assert cuda_plan(x, [0], tuning={"walk": Walk.GATHER + 1}).cross_side == 3


def test_results_are_gathered_in_their_order_where_a_warp_reads_few_sectors():
    def plan_of(sizes, strides, dim, dtype):
        x = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
        return cuda_plan(x, [dim])

    # Three results side by side that lie far apart, and their neighbours side by side.
    far = plan_of((524288, 2, 3), (2, 1, 1048576), 1, torch.int16)
    near = plan_of((8, 5, 3, 65536), (983040, 3, 1, 15), 2, torch.int8)
    assert far.walk == near.walk == Walk.GATHER and far.cross_side == near.cross_side == 0
    # A sector to each lane.
    assert plan_of((512, 3, 4096), (1, 512, 1536), 1, torch.int16).cross_side > 0


def test_several_reduced_dims_are_gathered_where_indices_follow_each_other():
    x = empty(1023, 2, 16, 31, 3, dtype=torch.float16)
    assert cuda_plan(x, [1, 4]).walk == Walk.GATHER
    # More elements than a thread has by itself, which only columns of one dim are shared for.
    assert cuda_plan(empty(1023, 12, 16, 31, 3), [1, 4]).walk != Walk.GATHER


def test_copies_of_a_result_are_gathered_as_results_of_their_own():
    x = empty(500, 1, 7, 90).expand(500, 3, 7, 90)
    assert cuda_plan(x, [2]).walk == Walk.GATHER
    assert cuda_plan(x[..., 0], [2]).walk == Walk.SMALL
    x = empty(552, 2, 1104, 1).expand(-1, -1, -1, 40)  # of which whole columns know nothing
    assert cuda_plan(x, [1]).walk == Walk.GATHER
    x = empty(5000, 1, 77, 90)
    assert cuda_plan(x.expand(5000, 3, 77, 90), [2]).blocks == cuda_plan(x, [2]).blocks


def test_copies_side_by_side_are_computed_once():
    x = empty(552, 5, 1104, 1)
    plan = cuda_plan(x.expand(-1, -1, -1, 40), [1])
    assert plan.copied and plan.cross_side == 40
    assert plan.blocks == cuda_plan(x.expand(-1, -1, -1, 8), [1]).blocks


def test_a_transposed_matrix_is_walked_along_memory():
    assert cuda_plan(empty(5120, 256).t(), [1]).walk == Walk.COLUMNS
    assert cuda_plan(empty(5120, 256).t(), [0]).walk == Walk.WHOLE_ROWS


def test_cpu_plan_splits_a_flat_input_over_the_threads_and_a_small_one_not():
    assert cpu_plan(empty(1 << 26), [0], threads=16).parts == 16
    assert cpu_plan(empty(1 << 20, 64), [0], threads=16).parts >= 8
    assert cpu_plan(empty(1000), [0], threads=16).parts == 1


def test_cpu_plan_wakes_threads_for_what_takes_long_and_not_for_what_is_large():
    """A quarter of a MiB that is only read takes some 6 us, rows with gaps of half as much many
    times that."""

    def is_serial(x, dim, **options):
        plan = cpu_plan(x, [dim], threads=16, **options)
        return plan.units * plan.parts <= plan.grain

    for shape, dim in (((1 << 16,), 0), ((64, 1 << 10), 1), ((64, 1 << 10), 0)):
        assert is_serial(empty(*shape), dim), (shape, dim)
        assert not is_serial(empty(16 * shape[0], *shape[1:]), dim), (shape, dim)
    assert not is_serial(empty(12000, 5, 2, dtype=torch.bfloat16)[..., 0], 1)
    assert not is_serial(empty(2, 1 << 17, dtype=torch.int8), 0)  # results take longer than reading
    flat = empty(210_000, dtype=torch.bfloat16)  # of 16 bits, which a mask makes take long
    assert is_serial(flat, 0) and not is_serial(flat, 0, mask=empty(210_000, dtype=torch.bool))


def test_cpu_plan_crosses_reduced_dims_that_memory_has_in_another_order():
    x = empty(222, 16, 64).permute(2, 1, 0)
    plan = cpu_plan(x, [0, 2])
    assert plan.columns == 64 and not plan.rows
    assert cpu_plan(x, [0, 2], mask=empty(64, 16, 222, dtype=torch.bool)).columns == 64
    assert cpu_plan(x, [0]).columns == cpu_plan(empty(222, 16, 6400), [0, 2]).columns == 1
    in_slices = cpu_plan(empty(1025, 100, 64).permute(0, 2, 1), [1, 2])
    assert in_slices.columns == 64 and in_slices.slices == 2
    in_slices = cpu_plan(empty(3, 100, 70000, 4).permute(0, 2, 3, 1), [2, 3])
    assert in_slices.slices == 3 * 5 and in_slices.units * in_slices.tile <= WORKSPACE // 16


def test_cpu_plan_says_where_a_mask_is_left_to_the_results():
    def mask(*shape):
        return empty(*shape, dtype=torch.bool)

    pixels = empty(16, 21, 64, 64).to(memory_format=torch.channels_last)
    assert cpu_plan(pixels, [1], mask=mask(16, 1, 64, 64)).hides
    assert not cpu_plan(pixels, [1]).hides
    assert not cpu_plan(pixels, [1], mask=mask(16, 21, 64, 64)).hides
    assert not cpu_plan(empty(100, 4096), [1], mask=mask(100, 1)).hides  # not read at all
    columns = empty(4, 20, 1000)
    assert cpu_plan(columns, [1], mask=mask(4, 1, 1000)).hides
    assert not cpu_plan(columns, [1], mask=mask(4, 1, 1000), values=True).hides


def test_cpu_plan_orders_a_mask_like_the_input():
    def mask(*shape):
        return empty(*shape, dtype=torch.bool)

    x = empty(300, 21, 50)
    across = cpu_plan(x, [2], mask=mask(300, 50, 21).transpose(1, 2))
    assert across.orders and across.rows
    assert not cpu_plan(x, [2], mask=mask(300, 21, 50)).orders
    assert not cpu_plan(x, [2], mask=mask(21, 300, 50).transpose(0, 1)).orders
    assert not cpu_plan(x, [2], mask=mask(50, 1).t()).orders  # one mark for each
    assert not cpu_plan(x, [0], mask=mask(21, 1)).orders  # broadcast along the innermost
    narrow = empty(300, 21, 50, dtype=torch.int8)
    assert not cpu_plan(narrow, [2], mask=mask(300, 50, 21).transpose(1, 2)).orders
    # Its copy and the candidates of crossed dims have the workspace together.
    for outputs, orders in ((448, True), (512, False)):
        crossed = cpu_plan(
            empty(2, outputs, 32, 64).transpose(2, 3), [2, 3], mask=mask(outputs, 64, 32)
        )
        marks = outputs * 64 * 32 * crossed.orders
        assert crossed.orders == orders and crossed.columns == 64
        assert marks + crossed.units * crossed.tile * crossed.parts * 16 <= WORKSPACE


def test_cpu_plan_reads_rows_by_parts_whose_marks_share_lines():
    x = empty(64, 1 << 20)
    across = empty(1 << 20, 64, dtype=torch.bool).t()
    plan = cpu_plan(x, [1], mask=across)
    assert plan.rows and plan.by_parts and plan.parts >= 64
    assert not cpu_plan(x, [1], mask=empty(64, 1 << 20, dtype=torch.bool)).by_parts
    assert not cpu_plan(x, [1], mask=empty(64, 1 << 21, dtype=torch.bool)[:, ::2]).by_parts
    assert not cpu_plan(x[:, :1000], [1], mask=across[:, :1000]).by_parts


def test_cpu_plan_of_an_expanded_input_follows_the_mask():
    plan = cpu_plan(empty(5000).expand(5000, 5000), [0], mask=empty(5000, 5000, dtype=torch.bool))
    assert not plan.rows and not plan.gathers
    x, mask = empty(1 << 16, 1).expand(1 << 16, 2048), empty(1 << 16, 2048, dtype=torch.bool)
    assert cpu_plan(x, [0], mask=mask).gathers
    assert not cpu_plan(x, [0], mask=mask.t().contiguous().t()).gathers


def test_cpu_plan_of_one_element_is_copied_by_blocks_before_a_mask_hides_some():
    x, mask = empty(1, 64, 100).transpose(1, 2), empty(100, 64, dtype=torch.bool)
    assert cpu_plan(x, [0], mask=mask).hides
    assert not cpu_plan(empty(1, 100, 64), [0], mask=mask).hides


def test_cpu_plan_reads_two_long_columns_as_rows():
    plan = cpu_plan(empty(7, 80, 3613, 200, dtype=torch.int8)[..., :2])
    assert plan.rows and plan.copies and plan.columns == 2
    assert not cpu_plan(empty(7, 80, 3613, 4, dtype=torch.int8)[..., :2]).rows  # folded


def test_cpu_plan_of_bools_may_end_before_all_are_read():
    """Rows end where they find what no other beats, columns only where all of them do."""
    x = empty(100_000, 1000, dtype=torch.int8)[:, :900]
    assert cpu_plan(x).columns == 900
    assert cpu_plan(x.view(torch.bool)).columns == 1
    assert cpu_plan(empty(222, 16, 64, dtype=torch.bool).permute(2, 1, 0), [0, 2]).columns == 64


def test_cpu_plan_is_the_cheapest_walk():
    short_runs = cpu_plan(empty(253, 64, 50, dtype=torch.int8), [0, 2])
    assert short_runs.columns == 50 and not short_runs.rows  # each along memory, then put together
    few_gapped = cpu_plan(empty(575, 2048, 10)[..., :2], [1])
    assert few_gapped.rows and few_gapped.copies
    narrow = cpu_plan(empty(2473, 90, dtype=torch.int8)[:, :45], [0])
    assert not narrow.rows and not narrow.gathers  # in a vector that reaches into the gap
    assert not cpu_plan(empty(2473, 16)[:, :8], [0]).rows  # folded, the gaps with them
    assert cpu_plan(empty(2473, 64)[:, :2], [0]).rows
    assert cpu_plan(empty(512, 8), [1]).gathers and cpu_plan(empty(512, 32), [1]).rows
    small = cpu_plan(empty(128, 64, 64, dtype=torch.int8), [1])
    assert not small.rows and not small.gathers


def test_cpu_plan_reads_columns_that_are_few_and_have_gaps_once():
    """Some at a time that stay in cache, for all columns, and then the next."""
    for width, gapped in ((3, 40), (4, 40)):
        plan = cpu_plan(empty(1 << 22, gapped)[:, :width], [0])
        assert plan.rows and plan.by_parts and plan.part_extent * 64 <= 1 << 18  # of lines
    assert not cpu_plan(empty(1 << 10, 40)[:, :3], [0]).by_parts


def test_cpu_plan_gives_every_thread_about_as_much():
    for threads, rows in ((2, 3), (16, 17), (64, 65), (64, 100)):
        plan = cpu_plan(empty(rows, 1 << 24), [1], threads=threads)
        items = plan.units * plan.parts
        assert -(-items // threads) * threads <= 1.15 * items
    across = empty(4, 16, 1_000_000).permute(0, 2, 1)
    assert cpu_plan(across, [0], threads=64).units > 1000


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize(
    "shape, dim, threads",
    [
        ((1, 21, 91, 91), 1, 2),  # little more than a tile
        ((8, 21, 96, 96), 1, 16),
        ((1000, 100_000), 0, 24),  # more tiles than threads
        ((1, 21, 512, 512), 1, 24),
        ((5, 633, 8031), 1, 64),
    ],
)
def test_cpu_plan_cuts_columns_into_tiles_that_are_about_as_much(shape, dim, threads, softmax):
    x = empty(*shape)
    plan = cpu_plan(x, [dim], threads=threads, softmax=softmax)
    assert not plan.rows and not plan.gathers
    items = math.ceil(plan.units * plan.parts / threads)  # of a thread, at most
    width = min(plan.tile, math.prod(shape[dim + 1 :]))
    assert items * width * plan.part_extent * threads <= 1.15 * x.numel()


@pytest.mark.parametrize(
    "shape, threads", [((100_000, 8192), 64), ((1_000_000, 1000), 8), ((10_000_000, 256), 2)]
)
def test_cpu_plan_cuts_tall_columns_into_parts_before_tiles_are_narrow(shape, threads):
    plan = cpu_plan(empty(*shape), [0], threads=threads)
    assert 4 * plan.tile >= min(4096, 4 * shape[1])
    assert plan.units * plan.parts >= threads
    short = cpu_plan(empty(1000, shape[1]), [0], threads=threads)
    assert short.parts == 1 and short.units >= min(threads, 2)


def test_cpu_plan_of_softmax_max_has_parts_for_any_number_of_threads():
    """The same for all of them, for sums depend on them."""
    for elements, most in ((1 << 20, 16), (1 << 24, 64)):
        x = empty(1, elements)
        (parts,) = {cpu_plan(x, [1], threads=t, softmax=True).parts for t in (1, 12, 24, 48, 64)}
        assert all(math.ceil(parts / t) * t <= 1.5 * parts for t in range(2, most + 1))


def test_cpu_plan_of_short_moving_windows_is_of_columns():
    x = empty(1 << 16)
    short = cpu_plan(x.unfold(0, 7, 1), [1])
    assert not short.rows and not short.gathers
    assert cpu_plan(x.unfold(0, 200, 1), [1]).rows
    assert cpu_plan(x.unfold(0, 7, 7), [1]).gathers  # apart
    of_two_dims = empty(64, 260).unfold(0, 7, 1).unfold(1, 7, 1)
    plan = cpu_plan(of_two_dims, [2, 3])
    assert not plan.rows and not plan.gathers


def test_cpu_plan_of_masks_and_of_softmax_max():
    x = empty(4096, 8)
    assert cpu_plan(x, [1]).gathers and cpu_plan(x, [1], mask=empty(8, dtype=torch.bool)).gathers
    one_for_each = empty(8, 4096, dtype=torch.bool).t()
    assert cpu_plan(empty(4096, 300), [1]).rows
    across, narrow = empty(300, 2048, dtype=torch.bool).t(), empty(2048, 300, dtype=torch.bfloat16)
    assert cpu_plan(empty(2048, 300), [1], mask=across).rows  # once it is ordered
    too_large = empty(300, 4096, dtype=torch.bool).t()
    assert cpu_plan(empty(4096, 300), [1], mask=too_large).gathers
    assert cpu_plan(narrow, [1]).rows and cpu_plan(narrow, [1], mask=across).gathers
    assert cpu_plan(x, [1], mask=one_for_each).gathers
    columns = empty(1 << 20, 10_000)
    most = cpu_plan(columns, [0], threads=1024).parts
    assert 1 < cpu_plan(columns, [0], threads=1024, softmax=True).parts < most


def test_candidates_are_the_walks_that_fit_and_the_cheapest_is_taken():
    plan = cuda_plan(empty(128, 4096, 4095), [1])
    by_walk = {candidate.plan.walk: candidate for candidate in plan.candidates}
    assert set(by_walk) == {Walk.COLUMNS, Walk.BULK_COLUMNS}
    assert plan == min(plan.candidates, key=lambda candidate: candidate.microseconds).plan
    assert [c.plan.walk for c in plan.candidates if c.usual] == [Walk.BULK_COLUMNS]
    # 8.6 GB at 4.55 TB/s, and little else
    assert 1888 < by_walk[Walk.BULK_COLUMNS].microseconds < 1888 * 1.1


def test_groups_of_a_few_elements_beyond_31_bits_are_gathered_in_slices():
    x = torch.empty_strided(
        (5_000, 4, 1600, 4), (900_000, 1, 24, 4), dtype=torch.uint8, device="meta"
    )
    assert cuda_plan(x[:2_000], 1).slices == 1
    for options in ({}, {"mask": empty(5_000, 4, 1600, 4, dtype=torch.bool)}, {"values": True}):
        plan = cuda_plan(x, 1, **options)
        assert plan.walk == Walk.GATHER and plan.slices == 3
    assert "for the first of 3 slices" in explain(x, 1)
    sums = torch.empty_strided(
        (2_400, 4, 1600, 4), (900_000, 1, 24, 4), dtype=torch.bfloat16, device="meta"
    )
    plan = cuda_plan(sums, 1, softmax=True)
    assert plan.walk == Walk.GATHER and plan.slices > 1
    # Where results would lie further apart than 31 bits there is no way to cut.
    apart = empty(1_000_000, 1600, 4, 2, dtype=torch.uint8).permute(2, 3, 1, 0)
    assert cuda_plan(apart, 1).slices == 1
    # Nor are those gathered that other walks are as fast for, or few for which launches would take
    # longer.
    assert cuda_plan(empty(3, 1 << 30, dtype=torch.uint8), 0).slices == 1
    few = torch.empty_strided((5_000, 4, 4), (900_000, 1, 4), dtype=torch.uint8, device="meta")
    assert cuda_plan(few, 1).slices == 1


def test_what_is_reduced_away_has_one_candidate():
    (candidate,) = cuda_plan(empty(7, 1, 5), [1]).candidates
    assert candidate.plan.walk == Walk.FILL and candidate.usual


@pytest.mark.parametrize("walk", Walk)
def test_a_walk_is_taken_where_it_fits_if_it_is_asked_for(walk):
    shapes = [(64, 100, 512), (90, 33, 5), (4096, 4099), (2, 3_000_004), (1 << 20, 1, 8)]
    taken = set()
    inputs = [*(empty(*shape) for shape in shapes), empty(600, 4, 2000).permute(2, 1, 0)]
    for x in inputs:
        for dim in range(x.dim()):
            plan = cuda_plan(x, [dim], tuning={"walk": walk + 1})
            fits = walk in [candidate.plan.walk for candidate in plan.candidates]
            assert (plan.walk == walk) == fits
            taken.add(plan.walk)
    assert walk in taken


def test_another_walk_than_the_usual_one_must_be_cheaper_by_the_margin():
    changed = 0
    for seed in range(400):
        case = random_case(seed)
        x = torch.empty_strided(case.sizes, case.strides, dtype=case.dtype, device="meta")
        plan = cuda_plan(x, case.dims)
        (usual,) = (c for c in plan.candidates if c.usual)
        usual_alone = cuda_plan(x, case.dims, tuning={"margin": 0})
        if usual_alone.slices == plan.slices:  # else that is the plan of other outputs
            assert usual_alone == usual.plan
        (taken,) = (c for c in plan.candidates if c.plan == plan)
        if plan.folded == 1:
            assert taken.usual or taken.microseconds < usual.microseconds * 0.9801
            changed += not taken.usual
    assert changed


def test_the_table_of_candidates_says_which_is_taken(monkeypatch):
    legend, header, first, *rest = explain(empty(128, 4096, 4095), 1).splitlines()
    assert "GPU" in legend and "2 % cheaper" in legend and len(legend) <= 120
    assert header.split() == ["walk", "predicted", "blocks", "threads", "parts", "cluster"]
    assert first.startswith("bulk_columns") and first.endswith("taken, usual") and len(rest) == 1
    assert "of 132 multiprocessors" in legend
    assert "of 80 multi" in explain(empty(128, 4096, 4095), 1, multiprocessors=np.int64(80))
    assert "is 50 % cheaper" in explain(empty(3, 4), 1, tuning={"margin": 50})
    monkeypatch.setenv("REDUCEOPS_CUDA_TUNING", "margin=40")
    assert "is 60 % cheaper" in explain(empty(3, 4), 1)


def test_the_table_says_that_a_cpu_has_another_plan():
    of_cpu, other = (
        explain(torch.empty(3, 4, device=at), 1).splitlines() for at in ("cpu", "meta")
    )
    assert "this tensor is on a CPU: customops.plans.cpu_plan" in of_cpu[0]
    assert "on a CPU" not in other[0] and of_cpu[1:] == other[1:]


NAMES = {
    explain: "customops.explain",
    cuda_plan: "customops.plans.cuda_plan",
    cpu_plan: "customops.plans.cpu_plan",
}


@pytest.mark.parametrize("plan", NAMES)
def test_arguments_of_a_wrong_type(plan):
    with pytest.raises(TypeError, match=f"^{NAMES[plan]}: input must be a Tensor, got tuple"):
        plan((3, 4), 1)
    for dim in ("1", 1.5, True):
        with pytest.raises(TypeError, match=f"^{NAMES[plan]}: dim must be an int, a sequence"):
            plan(empty(3, 4), dim)
    with pytest.raises(IndexError, match=f"^{NAMES[plan]}: dim 2 is out of range"):
        plan(empty(3, 4), 2)


def test_arguments_that_are_not_known():
    known = r"\(by keyword: dim, multiprocessors, address, .*, values, indices\)"
    with pytest.raises(TypeError, match=f"^customops.explain: there is no argument 'axis' {known}"):
        explain(empty(3, 4), axis=1)
    with pytest.raises(ValueError, match="no constants of the plan: foo; there are .*, walk,"):
        cuda_plan(empty(3, 4), tuning={"foo": 1})


MASK = torch.ones(4, dtype=torch.bool)
QUANTIZED = torch._empty_affine_quantized((3, 4), scale=0.1, zero_point=0, dtype=torch.quint8)


@pytest.mark.parametrize(
    "plan, options, kind, text",
    [
        (cuda_plan, {"multiprocessors": 0}, ValueError, "multiprocessors is 0; it takes 1 to"),
        (explain, {"multiprocessors": -1}, ValueError, "multiprocessors is -1"),
        (explain, {"multiprocessors": 1 << 31}, ValueError, "multiprocessors is 2147483648"),
        (explain, {"multiprocessors": 1.5}, TypeError, "multiprocessors must be an int, got float"),
        (explain, {"address": -1}, ValueError, "address is -1; it takes 0 to"),
        (explain, {"address": 1 << 63}, ValueError, "address is"),
        (explain, {"tuning": {"walk": "rows"}}, TypeError, "walk must be an int, got str"),
        (cpu_plan, {"threads": 0}, ValueError, "threads is 0; it takes 1 to"),
        (cpu_plan, {"threads": "2"}, TypeError, "threads must be an int, got str"),
        *(
            (plan, options, kind, text)
            for plan in (cuda_plan, cpu_plan)
            for options, kind, text in (
                ({"mask": [True]}, TypeError, "mask must be a bool tensor or None, got list"),
                ({"mask": MASK.int()}, RuntimeError, "mask must be a bool tensor, got int32"),
                (
                    {"mask": torch.ones(4).to_mkldnn()},
                    RuntimeError,
                    "mask must be a bool tensor, got float32",
                ),
                ({"mask": MASK.to_sparse()}, RuntimeError, "a strided tensor, got a sparse_coo"),
                ({"mask": QUANTIZED}, RuntimeError, "mask must be a bool tensor, got quint8"),
                ({"input": QUANTIZED}, RuntimeError, "dtype quint8 is not supported"),
                ({"mask": MASK[:3]}, RuntimeError, "does not broadcast to the input's [3, 4]"),
                ({"input": empty(3, 4).to(torch.complex64)}, RuntimeError, "complex64 is not"),
                ({"input": torch.eye(3).to_sparse()}, RuntimeError, "must be a strided tensor"),
                ({"input": MASK[None], "softmax": True}, RuntimeError, "a floating-point tensor"),
            )
        ),
    ],
)
def test_what_no_plan_can_be_made_for(plan, options, kind, text):
    with pytest.raises(kind, match=f"^{NAMES[plan]}: .*{re.escape(text)}"):
        plan(**{"input": empty(3, 4), "dim": 1, **options})


def test_a_number_is_whatever_is_an_index():
    x, one = empty(300, 40), np.int64(1)
    given, plain = (
        {"multiprocessors": 80 * of, "address": 16 * of, "tuning": {"walk": of}} for of in (one, 1)
    )
    assert cuda_plan(x, np.int64(1), **given) == cuda_plan(x, 1, **plain)
    assert explain(x, 1, **given) == explain(x, 1, **plain)
    assert cpu_plan(x, 1, threads=2 * one) == cpu_plan(x, 1, threads=2)


def test_explain_takes_what_a_plan_takes():
    known = typing.get_type_hints(cuda_plan)
    limits = typing.get_type_hints(Limits)
    assert set(known) - set(limits) == {"input", "dim", "return"}
    assert all(known[name] == kind for name, kind in limits.items())


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("plan", [cuda_plan, cpu_plan])
def test_the_mask_of_a_plan_is_on_any_device(plan, device):
    plan(empty(3, 4), 1, mask=MASK.to(device))
    plan(torch.ones(3, 4), 1, mask=MASK.to(device))


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["64", "0"], "an empty tensor"),
        (["64", "--dim", "1"], "dim 1 is out of range"),
        (["64", "--dim", "0", "--dim", "0"], "appears twice"),
        (["-4"], "a size is negative"),
        ([str(1 << 64)], "18446744073709551616 does not fit into 64 bits\n"),
        (["64", "--strides", "-1"], "a stride is negative"),
        (["64", "--strides", str(1 << 63)], "9223372036854775808 does not fit into 64 bits\n"),
        (["64", "--dtype", "complex64"], "complex64 is not supported"),
        (["64", "64", "--strides", "1"], "a stride for each size"),
    ],
)
def test_a_command_line_that_no_plan_can_be_made_for(arguments, text, capsys):
    with pytest.raises(SystemExit) as status:
        main(arguments)
    assert status.value.code == 2 and text in capsys.readouterr().err


def test_the_table_of_candidates_is_printed(capsys):
    main(["64", "1000", "--strides", "2000", "2", "--dim", "1", "--dtype", "bfloat16"])
    x = empty(64, 2000, dtype=torch.bfloat16)[:, ::2]
    assert capsys.readouterr().out == explain(x, 1) + "\n"
    with pytest.raises(SystemExit):
        main(["64", "--dtype", "quarter"])
    assert "torch has no dtype" in capsys.readouterr().err


@pytest.mark.parametrize("tuning, walk", [("walk=2", Walk.COLUMNS), ("bulk=0,walk=9,", Walk.TILES)])
def test_the_plan_is_that_of_the_environment(tuning, walk, monkeypatch, capsys):
    """Unless other constants are given."""
    x = empty(16, 21, 512, 512)
    usual = cuda_plan(x, 1)
    monkeypatch.setenv("REDUCEOPS_CUDA_TUNING", tuning)
    assert cuda_plan(x, 1).walk == walk != usual.walk
    main(["16", "21", "512", "512", "--dim", "1"])
    (taken,) = (line for line in capsys.readouterr().out.splitlines() if "taken" in line)
    assert taken.startswith(walk.name.lower())
    assert cuda_plan(x, 1, tuning={}) == usual


@pytest.mark.parametrize("tuning", ["walk=foo", "stage=1", "walk", "walk=", "walk=-1", ""])
def test_a_tuning_of_the_environment_that_does_not_exist(tuning, monkeypatch, capsys):
    """The error is that of a call on a GPU (tests/test_cuda_walks.py)."""
    monkeypatch.setenv("REDUCEOPS_CUDA_TUNING", f"bulk=0,{tuning},bulk=1")
    with pytest.raises(SystemExit):
        main(["64"])
    text = f"no constant of the plan is set by '{tuning}'; it takes name=value with a value from 0"
    assert text in capsys.readouterr().err
