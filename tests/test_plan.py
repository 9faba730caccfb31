"""The plans, without a GPU: they cover every group and choose the walk meant for a shape."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from customops.explain import cpu_plan, cuda_plan

WORKSPACE = 1 << 20
CANDIDATE = 16


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


@settings(deadline=None, derandomize=True, max_examples=300)
@given(cases(), st.sampled_from([1, 82, 108, 132]), st.sampled_from([0, 4, 8, 16]))
def test_cuda_plan_covers_every_group_within_the_limits(case, multiprocessors, address):
    x, dims = case
    outputs, walk = outputs_and_walk(x, dims)
    plan = cuda_plan(x, dims, multiprocessors=multiprocessors, address=address)
    assert 1 <= plan.lanes * plan.shares <= plan.threads <= 1024
    assert plan.shares & (plan.shares - 1) == 0
    assert (plan.parts - 1) * plan.part_extent < walk <= plan.parts * plan.part_extent
    if plan.parts > 1:
        assert outputs * plan.parts * CANDIDATE <= WORKSPACE
    groups_per_block = plan.threads // (plan.lanes * plan.shares)
    if plan.rows:
        assert plan.lanes in (1, 2, 4, 8, 16, 32, plan.threads)
        units = -(-outputs // groups_per_block)
    else:
        width = 16 // x.element_size() if plan.vector else 1
        assert plan.blocks // plan.parts * groups_per_block * plan.lanes * width >= outputs
        units = plan.blocks // plan.parts
    assert plan.blocks == units * plan.parts


@settings(deadline=None, derandomize=True, max_examples=300)
@given(cases(), st.sampled_from([1, 2, 16, 192]))
def test_cpu_plan_covers_every_group_within_the_limits(case, threads):
    x, dims = case
    outputs, walk = outputs_and_walk(x, dims)
    plan = cpu_plan(x, dims, threads=threads)
    assert (plan.parts - 1) * plan.part_extent < walk <= plan.parts * plan.part_extent
    assert plan.tile * x.element_size() <= 8192 and plan.tile >= 1 and plan.grain >= 1
    assert plan.units == outputs if plan.rows else plan.units * plan.tile >= outputs
    if plan.parts > 1:
        assert outputs * plan.parts * CANDIDATE <= WORKSPACE
        assert plan.units < threads


@pytest.mark.parametrize(
    "shape, dims, dtype, walk",
    [
        ((128, 4096, 4095), [1], torch.float32, "columns"),
        ((128, 4096, 4095), [2], torch.float32, "rows vector"),
        ((128, 4096, 4095), [0], torch.float32, "columns vector"),
        ((128, 4096, 4096), [1], torch.float32, "columns vector"),
        ((64, 151936), [1], torch.float32, "rows vector split"),
        ((1, 128256), [1], torch.bfloat16, "rows vector split"),
        ((1 << 28,), [0], torch.float32, "rows vector split"),
        ((8388608, 8), [0], torch.float32, "columns vector split"),
        ((1048576, 64), [0], torch.float32, "columns vector split"),
        ((1048576, 100), [1], torch.float32, "rows vector"),
        ((16,), [0], torch.float32, "rows vector"),
    ],
)
def test_cuda_plan_of_the_shapes_that_matter(shape, dims, dtype, walk):
    plan = cuda_plan(empty(*shape, dtype=dtype), dims)
    assert plan.rows == ("rows" in walk)
    assert plan.vector == ("vector" in walk)
    assert (plan.parts > 1) == ("split" in walk)


@pytest.mark.parametrize("shape", [(1 << 28,), (64, 151936), (8388608, 8), (32, 4096, 4095)])
def test_cuda_plan_fills_the_gpu(shape):
    plan = cuda_plan(empty(*shape), [0] if len(shape) != 3 else [1], multiprocessors=132)
    assert plan.blocks >= 132


def test_an_unaligned_input_is_not_read_in_vectors_of_columns():
    x = empty(64, 4096)
    assert cuda_plan(x, [0], address=0).vector
    assert not cuda_plan(x, [0], address=4).vector


def test_channels_last_channels_are_rows():
    x = empty(16, 21, 512, 512).to(memory_format=torch.channels_last)
    assert cuda_plan(x, [1]).rows
    assert cpu_plan(x, [1]).rows


def test_a_transposed_matrix_is_walked_along_memory():
    assert not cuda_plan(empty(512, 256).t(), [1]).rows
    assert cuda_plan(empty(512, 256).t(), [0]).rows


def test_cpu_plan_splits_a_flat_input_over_the_threads_and_a_small_one_not():
    assert cpu_plan(empty(1 << 26), [0], threads=16).parts == 16
    assert cpu_plan(empty(1 << 20, 64), [0], threads=16).parts >= 8
    assert cpu_plan(empty(1000), [0], threads=16).parts == 1
