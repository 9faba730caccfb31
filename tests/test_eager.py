"""Every operator against its reference: dtypes, dims, layouts, and around kernel boundaries."""

import itertools
import mmap

import data
import pytest
import torch
from opspec import (
    ANY_NAN,
    EXACT,
    OPS,
    all_dims,
    as_tuple,
    assert_same,
    check,
    each_op,
    each_op_and_dtype,
    ops,
)
from reference import bits, to_numpy

EXTENTS = (
    *range(1, 68),
    127,
    128,
    129,
    255,
    256,
    257,
    511,
    513,
    1023,
    1024,
    1025,
    4095,
    4096,
    4097,
)
LONG_EXTENTS = (32767, 32768, 32769, 65535, 65536, 65537, 131071, 131073)  # counters of 16 bits
PLANTED = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 101, 127, 128, 129, 257, 521)


each_unscaled_op_and_float = pytest.mark.parametrize(
    "spec, dtype",
    [
        (spec, dtype)
        for spec in OPS
        for dtype in (*data.FLOATS, *data.FLOAT8)
        if dtype in spec.dtypes and not spec.leading
    ],
    ids=str,
)


def smallest_and_largest(dtype):
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype in data.INTEGERS:
        info = torch.iinfo(dtype)
        return torch.tensor([info.min, info.max], dtype=dtype)
    info = torch.finfo(dtype)
    return torch.tensor([info.min, info.max], dtype=torch.float64).to(dtype)


def loser_and_winner(spec, dtype):
    pair = smallest_and_largest(dtype)
    # A negative scale swaps the two; scaling the largest by 1.5 would make infinities of both.
    if spec.leading:
        pair = torch.tensor([-1.0, 1.0], dtype=dtype)
    wins = "max" in spec.name
    wins ^= bool(spec.leading)
    return (pair[0], pair[1]) if wins else (pair[1], pair[0])


def where(condition, a, b):
    """torch.where for every dtype, bit for bit."""
    return torch.where(condition, bits(a), bits(b)).view(a.dtype)


@each_op_and_dtype
@pytest.mark.parametrize("layout", data.LAYOUTS)
def test_layouts(spec, dtype, layout, device):
    for kind in ("random", "ties", "special"):
        x = data.LAYOUTS[layout](lambda shape, kind=kind: data.make(shape, dtype, kind).to(device))
        for dim in all_dims(x):
            check(spec, x, dim, keepdim=bool(dim % 2), context=(kind,))
        check(spec, x, 0, keepdim=True, context=(kind,))
        if spec.dims:
            for keepdim in (False, True):
                check(spec, x, None, keepdim, context=(kind,))
                check(spec, x, [0, -1][: x.dim()], keepdim, context=(kind,))


@each_op_and_dtype
@pytest.mark.parametrize(
    "shape, strides",
    [
        ((9, 1, 321), (963, 963, 1)),  # packs of 16 bytes that cross the end of a row
        ((3, 5, 1, 77), (0, 77, 1, 1)),  # and go on where memory begins
        ((5, 1, 100), (3, 1, 1)),  # rows that overlap
    ],
    ids=str,
)
def test_groups_of_one_element_are_copied(spec, dtype, shape, strides, device):
    extent = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    x = data.make((extent,), dtype, "special").to(device)
    check(spec, x.as_strided(shape, strides), len(shape) - 2)


def test_many_groups_of_one_element_are_copied(device):
    x = torch.arange(30_011.0 * 75, dtype=torch.float64, device=device).view(-1, 1, 75)
    values, indices = ops.max(x, 1)
    assert torch.equal(values, x[:, 0]) and not indices.any()


@each_op
def test_every_permutation(spec, device):
    x = data.make((2, 3, 4, 5), torch.float32, "ties").to(device)
    for order in itertools.permutations(range(4)):
        for dim in range(4):
            check(spec, x.permute(order), dim)


@pytest.mark.parametrize("spec", [s for s in OPS if s.dims], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.int64, torch.bfloat16], ids=str)
def test_every_set_of_dims(spec, dtype, device):
    x = data.make((3, 2, 4, 3, 5), dtype, "ties").to(device)
    layouts = (x, x.permute(4, 2, 0, 3, 1), x[:, :, ::2, :, 1:4], x[:, :1].expand(3, 2, 4, 3, 5))
    for count in range(6):
        for dims in itertools.combinations(range(5), count):
            written = [d - 5 * (d % 2) for d in reversed(dims)]
            for y in layouts:
                check(spec, y, written, keepdim=count % 2 == 0)


@pytest.mark.parametrize("name", ["argmin", "argmax"])
def test_over_ten_dims_of_which_none_are_one_in_memory(name, device):
    """A GPU has divisors for the positions of eight dims at most."""
    columns, rows = 2048, [2**d + d * d for d in range(10)]
    x = torch.randint(-99, 99, ((sum(rows) + 1) * columns,), dtype=torch.int8, device=device)
    x = x.as_strided((2,) * 10 + (columns,), [columns * row for row in rows] + [1])
    expected = getattr(x.reshape(1024, columns).cpu(), name)(0)
    assert_same(getattr(ops, name)(x, list(range(10))).cpu(), expected)


@pytest.mark.parametrize("name", ["argmin", "argmax"])
def test_index_over_dims_is_that_of_unravel_index(name, device):
    x = data.make((3, 4, 5, 6), torch.float32, "random").to(device)
    index = getattr(ops, name)(x, [3, 1])
    second, fourth = torch.unravel_index(index, (x.size(1), x.size(3)))
    first, third = torch.meshgrid(
        torch.arange(3, device=device), torch.arange(5, device=device), indexing="ij"
    )
    extreme = (x.amin if name == "argmin" else x.amax)((1, 3))
    assert torch.equal(x[first, second, third, fourth], extreme)


def test_an_index_may_take_more_than_32_bits_in_columns_of_a_few_elements(device):
    x = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]], dtype=torch.float64, device=device)
    repeated = x[:, :, None].expand(3, 2, 1 << 31)
    assert ops.argmax(repeated, [0, 2]).tolist() == [1 << 32] * 2


@each_op_and_dtype
def test_extents(spec, dtype, device):
    """Rows and columns of every length near a vector, block or counter boundary."""
    for n in EXTENTS:
        for kind in ("random", "ties"):
            check(spec, data.make((3, n), dtype, kind, n).to(device), 1)
            check(spec, data.make((n, 3), dtype, kind, n).to(device), 0)
            check(spec, data.make((2, 5, n), dtype, kind, n).to(device), 1)
    for n in LONG_EXTENTS if dtype.itemsize <= 2 else ():
        check(spec, data.make((2, n), dtype, "ties", n).to(device), 1)
        check(spec, data.make((n, 2), dtype, "ties", n).to(device), 0)


@each_op_and_dtype
def test_winner_at_each_position(spec, dtype, device):
    """Group i has its winner at i alone, and then everywhere from i on."""
    loser, winner = loser_and_winner(spec, dtype)
    for n in PLANTED:
        position = torch.arange(n)
        for relation in (torch.eq, torch.ge):
            planted = relation(position[None, :], position[:, None])
            x = where(planted, winner, loser).to(device)
            for y, dim in ((x, 1), (x.t().contiguous(), 0), (x.t(), 0)):
                check(spec, y, dim)
                if not spec.leading:
                    index = as_tuple(spec.op(y, dim))[-1]
                    assert torch.equal(index.cpu(), position), (n, relation, dim)


@each_unscaled_op_and_float
def test_first_nan_wins_whatever_its_bits(spec, dtype, device):
    loser, winner = loser_and_winner(spec, dtype)
    patterns = data.nans(dtype)
    for n in PLANTED:
        position = torch.arange(n)
        for shift in range(len(patterns)):
            # Group i: winners all over, NaNs of changing bits from position i on.
            rotated = bits(patterns)[(position + shift) % len(patterns)].view(dtype)
            x = where(position[None, :] >= position[:, None], rotated[None, :], winner).to(device)
            for y, dim in ((x, 1), (x.t().contiguous(), 0)):
                result = as_tuple(spec.op(y, dim))
                assert torch.equal(result[-1].cpu(), position), (n, shift, dim)
                if len(result) == 2 and spec.tolerance == EXACT:
                    assert torch.equal(bits(result[0]).cpu(), bits(rotated)), (n, shift, dim)
                check(spec, y, dim)


@each_unscaled_op_and_float
def test_zeros_of_both_signs_are_equal(spec, dtype, device):
    zeros = torch.tensor([0.0, -0.0], dtype=torch.float64).to(dtype)
    for n in PLANTED:
        for first in (0, 1):
            row = bits(zeros)[(torch.arange(n) + first) % 2].view(dtype)
            x = bits(row).expand(3, n).contiguous().view(dtype).to(device)
            for y, dim in ((x, 1), (x.t().contiguous(), 0)):
                result = as_tuple(spec.op(y, dim))
                assert not result[-1].any(), (n, first, dim)
                if len(result) == 2 and spec.tolerance == EXACT:
                    assert torch.equal(bits(result[0]), bits(y.select(dim, 0))), (n, first, dim)


@each_op_and_dtype
def test_sorted_constant_and_all_nan(spec, dtype, device):
    for n in (1, 5, 100, 4097, 100_003):
        wide = data.make((n,), dtype, "random")
        order = torch.from_numpy(to_numpy(wide).argsort(kind="stable"))
        ascending = bits(wide)[order].view(dtype)
        cases = [
            ascending,
            bits(ascending).flip(0).view(dtype),
            bits(wide)[:1].expand(n).view(dtype),
        ]
        if dtype in data.NAN_BITS:
            cases.append(bits(data.nans(dtype))[torch.arange(n) % 2].view(dtype))
        for x in cases:
            x = x.to(device)
            check(spec, x, 0)
            check(spec, x.unsqueeze(1).expand(n, 2), 0)


@each_op_and_dtype
def test_scalars_and_empty_results(spec, dtype, device):
    scalar = data.make((), dtype, "random").to(device)
    for dim in (0, -1, *((None, []) if spec.dims else ())):
        for keepdim in (False, True):
            check(spec, scalar, dim, keepdim)
    for shape, dim in (((0, 3), 1), ((3, 0, 2), 0), ((0, 0, 2), 2), ((2, 0), -2)):
        for keepdim in (False, True):
            for result in as_tuple(
                spec.op(
                    torch.empty(shape, dtype=dtype, device=device), *spec.arguments(dim, keepdim)
                )
            ):
                kept = list(shape)
                kept[dim : dim + 1 or None] = [1] if keepdim else []
                assert list(result.shape) == kept


@each_op
def test_defaults(spec, device):
    """Arguments left out mean what the schema says."""
    x = data.make((3, 4, 5), torch.float32, "random").to(device)
    if spec.leading:
        assert_same(spec.op(x, *spec.leading), spec.reference(x, *spec.leading, 1, True))
    elif spec.dims:
        assert_same(spec.op(x), spec.reference(x, None, False))
        assert_same(spec.op(x, keepdim=True), spec.reference(x, None, True))
    else:
        assert_same(spec.op(x, 1), spec.reference(x, 1, False), spec.tolerance)


@each_op
def test_public_functions_are_the_operators(spec, device):
    x = data.make((3, 4, 5), torch.float32, "ties").to(device)
    for dim in (0, -1, *((None, [2, 0], (1,), []) if spec.dims else ())):
        arguments = spec.arguments(dim, True)
        expected = spec.reference(x, *arguments)
        assert_same(spec.function(x, *arguments), expected, spec.tolerance)


@pytest.mark.parametrize("scale", [2.0, -2.0, 0.1, 1, 0.0, -0.0, 1e30, float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", data.FLOATS, ids=str)
@pytest.mark.parametrize("spec", [s for s in OPS if s.leading], ids=str)
def test_scaling_rounds_as_torch_does(spec, dtype, scale, device):
    for kind in ("random", "smooth", "special"):
        for shape in ((2, 33, 40), (2, 40, 3), (1, 1000, 1), (5, 3, 65)):
            x = data.make(shape, dtype, kind).to(device)
            for y in (x, x.transpose(1, 2), x[:, 1:, ::2]):
                for dim in (0, 1, 2):
                    actual, expected = spec.op(y, scale, dim), spec.reference(y, scale, dim)
                    assert_same(actual, expected, tolerance=ANY_NAN, context=(kind, shape, dim))


SPLIT = {
    "flat": ((1 << 22) + 3, 1, 0),
    "few rows": (3, 1 << 20, 1),
    "few columns": (1 << 17, 5, 0),
    "many rows": (1 << 15, 37, 1),
    "wide columns": (301, 4099, 0),
    "one column": (1 << 20, 1, 0),
    "even rows": (1000, 4096, 1),
}


@pytest.mark.parametrize("case", SPLIT)
@pytest.mark.parametrize(  # of each width, for how work is split knows nothing else of a dtype
    "dtype", [torch.float32, torch.int8, torch.bfloat16, torch.int64], ids=str
)
@pytest.mark.parametrize("spec", OPS, ids=str)
def test_work_that_is_split(spec, dtype, case, device):
    """Big enough for several threads, or for a reduced extent in pieces; winners near the seams."""
    if dtype not in spec.dtypes:
        pytest.skip("not a dtype of this operator")
    rows, columns, dim = SPLIT[case]
    x = data.make((rows, columns), dtype, "ties").to(device)
    n = x.size(dim)
    loser, winner = (v.to(device) for v in loser_and_winner(spec, dtype))
    whole = bits(x)
    positions = (n - 1, n // 2, n // 2 - 1, n // 3, 1, 0)
    for position in positions:
        # Every second group has its winner here; those of the others stay where they were.
        whole.select(dim, position)[::2] = bits(winner)
        check(spec, x, dim, context=(case, position))


@pytest.mark.parametrize("spec", OPS, ids=str)
def test_threads_do_not_change_the_answer(spec):
    x = data.make((64, 3, 20_011), torch.float32, "special")
    default = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            results.append([as_tuple(spec.op(x, *spec.arguments(dim, False))) for dim in range(3)])
    finally:
        torch.set_num_threads(default)
    for other in results[1:]:
        for one_dim, other_dim in zip(results[0], other, strict=True):
            assert_same(other_dim, one_dim)


EXACT_OPS = [spec for spec in OPS if not spec.tolerance.ulps]


@pytest.mark.large
@pytest.mark.parametrize("spec", EXACT_OPS, ids=str)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_first_two_seed_problems(spec, dim, device):
    """(128, 4096, 4095) where it fits; the reference is torch's operator, numpy takes too long."""
    batch = 128 if device == "cuda" and torch.cuda.mem_get_info()[0] > 40e9 else 1
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(batch, 4096, 4095, device=device, generator=generator)
    x.view(-1)[::1_000_003] = x.max()
    arguments = spec.arguments(dim, False)
    assert_same(spec.op(x, *arguments), spec.torch(x, *arguments))


@pytest.mark.large
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("spec", EXACT_OPS, ids=str)
def test_third_seed_problem(spec, layout, device):
    """The reduction after the convolution of (64, 64, 256, 256)."""
    batch = 64 if device == "cuda" and torch.cuda.mem_get_info()[0] > 20e9 else 1
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(batch, 128, 254, 254, device=device, generator=generator)
    x = x.to(memory_format=layout)
    arguments = spec.arguments(1, True)
    assert_same(spec.op(x, *arguments), spec.torch(x, *arguments))


@pytest.mark.large
@pytest.mark.parametrize("name", ["argmin", "argmax"])
def test_more_than_2_to_the_31_elements(name, device):
    """In the reduced extent and in total, for rows and for columns."""
    n = (1 << 31) + 10  # a multiple of 3
    if device == "cpu":  # zeros that take no memory until they are written to
        x = torch.frombuffer(mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE), dtype=torch.int8)
    else:
        x = torch.zeros(n, dtype=torch.int8, device=device)
    winner = -1 if name == "argmin" else 1
    for position in (n - 1, (1 << 31) + 1, 1 << 31, (1 << 31) - 1, 5):
        x[position] = winner
        assert getattr(ops, name)(x).item() == position
        assert getattr(ops, name)(x[:, None], 0).item() == position
        rows = getattr(ops, name)(x.view(3, -1), 1)
        assert rows[position // (n // 3)].item() == position % (n // 3)
