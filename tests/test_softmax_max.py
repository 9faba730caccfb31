"""softmax_max against numpy in float64 (in its long double for float64): value, index, layouts."""

import math

import data
import numpy as np
import pytest
import torch
from reference import BITS, bits, to_numpy, wrapped

import customops  # noqa: F401

softmax_max = torch.ops.reduceops.softmax_max
# The differences of float64 from their largest are rounded, in torch too.
ULPS = {torch.float64: 8, torch.float32: 4, torch.float16: 4, torch.bfloat16: 4}
each_dtype = pytest.mark.parametrize("dtype", data.FLOATS, ids=str)


def reference(x, dim, keepdim=False):
    """(probabilities as wide numbers, indices) by the definition: exp(max) / sum(exp)."""
    wide = to_numpy(x).astype(np.longdouble if x.dtype == torch.float64 else np.float64)
    if x.dim() == 0:
        wide, dim, keepdim = wide.reshape(1), 0, False
    (dim,) = wrapped(torch.empty([1] * wide.ndim), dim)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        largest = wide.max(axis=dim, keepdims=True)
        probability = 1 / np.exp(wide - largest).sum(axis=dim, keepdims=True)
    index = wide.argmax(axis=dim, keepdims=True)
    if not keepdim:
        probability, index = probability.squeeze(dim), index.squeeze(dim)
    return probability, torch.from_numpy(np.ascontiguousarray(index)).reshape(index.shape)


def ordered(x):
    """Integers that follow each other as the numbers of a dtype do."""
    raw = bits(x.contiguous()).to(torch.int64)
    return torch.where(raw < 0, torch.iinfo(BITS[x.element_size()]).min - raw, raw)


def check(x, dim, keepdim=False, context=()):
    before = x.clone()
    probability, index = (r.cpu() for r in softmax_max(x, dim, keepdim))
    assert torch.equal(bits(x.contiguous()), bits(before.contiguous())), "input changed"
    expected, at = reference(x, dim, keepdim)
    context = (x.dtype, tuple(x.shape), x.stride(), dim, *context)
    assert probability.dtype == x.dtype and index.dtype == torch.int64, context
    assert probability.shape == index.shape == at.shape, context
    assert probability.is_contiguous() and index.is_contiguous(), context
    assert torch.equal(index, at), (context, index, at)
    # Rounded once to the dtype; exactly so by way of float64, which has twice the digits.
    rounded = torch.from_numpy(np.asarray(expected).astype(np.float64)).reshape(at.shape)
    rounded = rounded.to(x.dtype)
    assert torch.equal(probability.isnan(), rounded.isnan()), (context, probability, rounded)
    apart = (ordered(probability) - ordered(rounded)).abs()
    apart = torch.where(rounded.isnan(), torch.zeros_like(apart), apart)
    assert apart.numel() == 0 or apart.max() <= ULPS[x.dtype], (context, apart.max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape, dim",
    [
        *(((3, 300_001), 1), ((2_000_003,), 0), ((100_003, 5), 0), ((7, 40_000, 3), 1)),
        *(((9000, 70), 0), ((60_000, 19), 0), ((300, 4096), 0), ((5, 90, 3000), 1)),
    ],
)
def test_the_number_of_threads_changes_no_bit(shape, dim, dtype, number_of_threads):
    x = smooth(shape, dtype, scale=0.3)
    answers = []
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        answers.append(softmax_max(x, dim))
    for probability, index in answers[1:]:
        assert torch.equal(bits(probability), bits(answers[0][0]))
        assert torch.equal(index, answers[0][1])


def smooth(shape, dtype, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
    return x.to(dtype)


@each_dtype
@pytest.mark.parametrize("layout", data.LAYOUTS)
@pytest.mark.parametrize("kind", ["smooth", "ties", "special"])
def test_every_layout(layout, dtype, kind, device):
    x = data.LAYOUTS[layout](lambda shape: data.make(shape, dtype, kind).to(device))
    for dim in range(-x.dim(), x.dim()):
        for keepdim in (False, True):
            check(x, dim, keepdim)


@each_dtype
@pytest.mark.parametrize("shape, dim", [((200_000,), 0), ((2, 200_000), 1), ((100_000, 9), 0)])
def test_small_terms_beside_a_large_one(shape, dim, dtype, device):
    """A sum that added them to it one by one would round each, as numpy's does over columns."""
    x = torch.full(shape, -18.0, dtype=dtype, device=device)
    x.select(dim, 0).fill_(0.0)
    probability = softmax_max(x, dim)[0].cpu()
    exact = torch.tensor(1 / (1 + (shape[dim] - 1) * math.exp(-18.0)), dtype=torch.float64)
    apart = (ordered(probability) - ordered(exact.to(dtype))).abs()
    assert apart.max() <= ULPS[dtype]


@each_dtype
@pytest.mark.parametrize("kind", ["smooth", "special"])
def test_short_rows_and_columns_that_begin_anywhere(dtype, kind, device):
    for before, width in enumerate((8, 9, 13, 15, 16, 17, 31, 33, 63, 100), 1):
        around = data.make((23, before + width + 2), dtype, kind, before).to(device)
        check(around[:, before:-2], 1)
        check(around[:20, before:-2].unflatten(0, (2, 2, 5)).transpose(1, 2), 3)
    for walk, columns in ((3, 35), (40, 129), (3, 400_001)):  # the last by packs on a GPU
        check(data.make((1, walk, columns + 1), dtype, kind).to(device)[:, :, 1:], 1)


@each_dtype
@pytest.mark.parametrize("kind", ["smooth", "ties", "special"])
def test_groups_of_a_few_elements(dtype, kind, device):
    """Neighbouring ones, and others; results in the order of memory, or another.
    (test_cuda_walks.py has them gathered.)"""
    for n in range(1, 20):
        x = data.make((n, 8, 12), dtype, kind, n).to(device)
        check(x, 0)
        check(x.transpose(1, 2), 0)
        check(x.reshape(8, 12, n), 2)


@each_dtype
def test_no_dims(dtype, device):
    for value, expected in ((3.5, 1.0), (math.inf, math.nan), (math.nan, math.nan)):
        x = torch.tensor(value, dtype=dtype, device=device)
        for dim in (0, -1):
            probability, index = softmax_max(x, dim)
            assert probability.shape == index.shape == ()
            assert index.item() == 0
            assert torch.equal(probability.isnan().cpu(), torch.tensor(math.isnan(expected)))
            assert math.isnan(expected) or probability.item() == expected


@each_dtype
def test_empty(dtype, device):
    for shape, dim, expected in (((0, 3), 1, (0,)), ((3, 0, 5), 0, (0, 5)), ((4, 0), 0, (0,))):
        probability, index = softmax_max(torch.empty(shape, dtype=dtype, device=device), dim)
        assert probability.shape == index.shape == expected
    with pytest.raises((RuntimeError, IndexError), match="softmax_max"):
        softmax_max(torch.empty((3, 0), dtype=dtype, device=device), 1)


def test_bad_input(device):
    with pytest.raises((RuntimeError, IndexError), match="softmax_max"):
        softmax_max(torch.zeros(3, 4, device=device), 2)
    for dtype in (torch.int32, torch.bool, torch.complex64):
        with pytest.raises((RuntimeError, TypeError), match="softmax_max"):
            softmax_max(torch.zeros(3, 4, device=device).to(dtype), 1)


@each_dtype
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 127, 128, 129, 255, 256, 257])
def test_extents_around_vectors(dtype, n, device):
    """Nothing is counted twice, and nothing left out."""
    for groups in (1, 5, 16, 70, 515):
        x = smooth((groups, n), dtype, n).to(device)
        check(x, 1, context=("rows",))
        check(x.t().contiguous(), 0, context=("columns",))
        check(x[:, : n - 1] if n > 1 else x, 1, context=("gaps",))
        check(x.t().contiguous()[:, : groups // 2 + 1], 0, context=("gaps",))


@each_dtype
@pytest.mark.parametrize("n", [1, 2, 129, 1000, 2049, 5000])
def test_equal_elements(dtype, n, device):
    """All elements are the largest: the probability is 1 / n, the index 0."""
    for groups in (1, 3, 100):
        x = torch.full((groups, n), -7.25, dtype=dtype, device=device)
        check(x, 1)
        check(x.t().contiguous(), 0)
    check(torch.tensor([1.5, -2.0], dtype=dtype, device=device)[:, None].expand(2, n), 1)
    check(torch.tensor([1.5, -2.0], dtype=dtype, device=device)[None, :].expand(n, 2), 0)


@each_dtype
@pytest.mark.parametrize("shape", [(64, 1000), (1000, 64), (3, 4097), (4097, 3), (2, 70_001)])
@pytest.mark.parametrize("order", ["ascending", "descending", "offset"])
def test_order_and_offset(dtype, shape, order, device):
    for dim in (0, 1):
        x = smooth(shape, torch.float64, 1, 10.0)
        if order == "offset":
            x = x + 1e4
        else:
            x = x.sort(dim=dim, descending=order == "descending").values
        check(x.to(dtype).to(device), dim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_few_large_among_many_equal_ones(dtype, device):
    """What adding a small element loses is the same each time: it must not add up."""
    below = torch.linspace(11.5, 13.5, 64)
    for large in (1, 2, 4, 8):
        rows = -below.repeat_interleave(2048).view(64, 2048)
        rows[:, :large] = 0
        for x in (rows, rows[:, :255], rows[:, :64]):
            x = x.to(dtype).to(device)
            check(x, 1, context=(large,))
            check(x.T.contiguous(), 0, context=(large,))


@each_dtype
@pytest.mark.parametrize("shape", [(20, 30), (7, 300), (300, 7), (2, 5000), (5000, 2), (40, 700)])
def test_nans_and_infinities(dtype, shape, device):
    generator = torch.Generator().manual_seed(3)
    for dim in (0, 1):
        for values in (
            (math.nan,),
            (math.inf,),
            (-math.inf,),
            (math.nan, math.inf, -math.inf),
        ):
            for some in (0.003, 0.3):
                x = smooth(shape, dtype, 2)
                hits = torch.rand(shape, generator=generator) < some
                picks = torch.randint(len(values), shape, generator=generator)
                x = torch.where(hits, torch.tensor(values, dtype=dtype)[picks], x)
                check(x.to(device), dim, context=(values, some))
    for value in (math.nan, math.inf, -math.inf):
        x = torch.full(shape, value, dtype=dtype, device=device)
        check(x, 0)
        check(x, 1)


@each_dtype
def test_minus_infinity_beside_the_lowest_number(dtype, device):
    lowest = torch.finfo(dtype).min
    for n in (2, 20, 200, 2000):
        x = torch.full((3, n), -math.inf, dtype=dtype, device=device)
        x[1, n // 2] = lowest
        x[2, n - 1] = torch.finfo(dtype).max
        check(x, 1)
        check(x.t().contiguous(), 0)


@each_dtype
def test_signed_zeros_tie(dtype, device):
    for n in (3, 40, 700):
        x = torch.full((2, n), -1.0, dtype=dtype, device=device)
        x[0, 1], x[0, 2] = -0.0, 0.0
        x[1, 1], x[1, 2] = 0.0, -0.0
        for y, dim in ((x, 1), (x.t().contiguous(), 0)):
            check(y, dim)
            assert softmax_max(y, dim)[1].tolist() == [1, 1]


@each_dtype
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(2, 151_936), (1, 3, 400_000), (200_000, 3), (900, 33, 40)])
def test_threads_and_parts(dtype, shape, threads, device, number_of_threads):
    torch.set_num_threads(threads)
    x = smooth(shape, dtype, 5, 3.0).to(device)
    for dim in range(x.dim()):
        check(x, dim)
        holed = x.clone()
        holed.view(-1)[x.numel() // 3] = math.nan
        holed.view(-1)[x.numel() // 2] = -math.inf
        check(holed, dim)


@pytest.mark.parametrize(
    "dtype, threads", [(torch.float32, 1), (torch.float32, 2), (torch.float64, 2)], ids=str
)
def test_millions_of_elements(dtype, threads, device, number_of_threads):
    """Rounding does not add up, however many elements there are."""
    torch.set_num_threads(threads)
    n = 10_000_000 if dtype == torch.float32 else 2_000_000
    for x in (smooth((1, n), dtype, 6, 2.0), torch.rand((1, n), dtype=dtype)):
        check(x.to(device), 1)
        check(x.to(device).view(n // 4, 4), 0)
        if dtype == torch.float64:  # of which the reference takes seconds
            continue
        check(x.to(device).view(n, 1), 0)
        check(x.to(device).view(n // 40, 40), 0)
        check(x.to(device).view(n // 4000, 4000), 0)


@each_dtype
@pytest.mark.parametrize("seed", range(40))
def test_random_layouts(dtype, seed, device, number_of_threads):
    """Permuted, sliced, expanded and unaligned, of one to five dims."""
    random = np.random.default_rng(seed)
    torch.set_num_threads(int(random.integers(1, 3)))
    rank = int(random.integers(1, 6))
    most = {1: 5000, 2: 300, 3: 60, 4: 20, 5: 9}[rank]
    sizes = [int(random.integers(1, most)) for _ in range(rank)]
    x = data.make(tuple(sizes), dtype, str(random.choice(["smooth", "ties", "special"])), seed)
    x = x.to(device).permute(*random.permutation(rank).tolist())
    for d in range(rank):
        kind = random.choice(["as it is", "slice", "step", "expand"])
        if kind == "slice":
            x = x.narrow(d, 0, int(random.integers(1, x.size(d) + 1)))
        elif kind == "step":
            index = [slice(None)] * rank
            index[d] = slice(int(random.integers(0, 2)) if x.size(d) > 1 else 0, None, 2)
            x = x[tuple(index)]
        elif kind == "expand" and x.numel() < 100_000:
            sizes = list(x.shape)
            sizes[d] = int(random.integers(1, 9))
            x = x.narrow(d, 0, 1).expand(sizes)
    for dim in range(-rank, rank):
        check(x, dim, bool(random.integers(2)))
