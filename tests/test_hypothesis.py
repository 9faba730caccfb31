"""Random shapes, strides, dtypes and dims; the seed is fixed, so a run is like the last one."""

import data
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opspec import OPS, check

settings.register_profile("reduceops", derandomize=True, deadline=None, database=None)
settings.load_profile("reduceops")


@st.composite
def views(draw, spec):
    """A view with any sizes and strides (zero, overlapping, out of order) at any offset."""
    dtype = draw(st.sampled_from(spec.dtypes))
    sizes = draw(st.lists(st.one_of(st.integers(1, 4), st.integers(1, 70)), min_size=1, max_size=5))
    while torch.Size(sizes).numel() > 20_000:
        sizes.remove(max(sizes))
    if draw(st.booleans()):
        strides = [draw(st.integers(0, 9)) for _ in sizes]
    else:
        # As dense tensors have them, in some order of the dims, perhaps with gaps.
        strides, step = [0] * len(sizes), draw(st.integers(1, 3))
        for dim in draw(st.permutations(range(len(sizes)))):
            strides[dim] = step
            step *= sizes[dim] + draw(st.integers(0, 1))
    offset = draw(st.integers(0, 5))
    last = [(size - 1) * stride for size, stride in zip(sizes, strides, strict=True)]
    extent = offset + 1 + sum(last)
    kind = draw(st.sampled_from(["random", "ties", "special"]))
    buffer = data.make((extent,), dtype, kind, draw(st.integers(0, 99)))
    return buffer, sizes, strides, offset


def dims_of(draw, spec, ndim):
    one = st.integers(-ndim, ndim - 1)
    if not spec.dims:
        return draw(one)
    several = st.lists(one, max_size=ndim, unique_by=lambda dim: dim % ndim)
    return draw(st.one_of(st.none(), one, several))


@settings(max_examples=400)
@given(st.data())
def fuzz(device, draws):
    spec = draws.draw(st.sampled_from(OPS))
    buffer, sizes, strides, offset = draws.draw(views(spec))
    x = buffer.to(device).as_strided(sizes, strides, offset)
    check(spec, x, dims_of(draws.draw, spec, x.dim()), draws.draw(st.booleans()))


def test_fuzz(device):
    fuzz(device)
