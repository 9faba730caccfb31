"""mask= and index_dtype= of argmin, argmax, min and max, in every mode."""

import itertools
import re
from pathlib import Path

import data
import graphs
import pytest
import reference
import torch
import torch.autograd.forward_ad as forward_ad
from conftest import needs_compiler, python_after_torch
from opspec import as_tuple, assert_same, ops
from reference import bits
from torch._dynamo.testing import AotEagerAndRecordGraphs, CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.testing._internal.two_tensor import TwoTensor

import customops

NAMES = ("argmin", "argmax", "min", "max")
INDEX_DTYPES = (torch.int64, torch.int32, torch.uint16, torch.uint8)
each_name = pytest.mark.parametrize("name", NAMES)
each_end = pytest.mark.parametrize("end", ["min", "max"])
each_index_dtype = pytest.mark.parametrize("index_dtype", INDEX_DTYPES, ids=str)
each_dtype = pytest.mark.parametrize("dtype", data.DTYPES, ids=str)


def expected(name, x, dim, keepdim=False, mask=None, index_dtype=torch.int64):
    mask = torch.ones((), dtype=torch.bool, device=x.device) if mask is None else mask
    if name.startswith("arg"):
        return reference.arg_masked(name[3:], x, mask, dim, keepdim).to(index_dtype)
    values, indices = reference.extreme_masked(name, x, mask, dim, keepdim)
    return values, indices.to(index_dtype)


def check(name, x, dim, keepdim=False, context=(), **options):
    before = bits(x).clone()
    right = expected(name, x, dim, keepdim, **options)
    for function in (getattr(customops, name), getattr(ops, name)):
        result = function(x, dim, keepdim, **options)
        mask = options.get("mask")
        layout = mask is not None and (tuple(mask.shape), mask.stride())
        context = (name, x.dtype, tuple(x.shape), x.stride(), layout, dim, keepdim, *context)
        assert_same(result, right, context=context)
        assert all(r.is_contiguous() for r in as_tuple(result)), context
    assert torch.equal(bits(x), before)


def some(shape, density=0.5, seed=0, device="cpu"):
    """A mask."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator) < density).to(device)


def masks_for(shape, device):
    """Of every kind of shape and strides that stands for one of this shape."""
    dims = len(shape)
    for density in (0.0, 0.1, 0.5, 1.0):
        yield some(shape, density, device=device)
    yield some((), 1.0, device=device)
    yield some((), 0.0, device=device)
    if not dims:
        return
    yield some(shape[-1:], device=device)
    yield some((1, *shape[1:]), device=device)
    yield some((*shape[:-1], 1), device=device)
    yield some((1,) * dims, device=device)
    yield some((shape[0], *(1,) * (dims - 1)), device=device).expand(shape)
    yield some(shape[::-1], device=device).permute(*range(dims)[::-1])
    yield some((*shape[:-1], 2 * shape[-1]), device=device)[..., ::2]
    yield some((*shape[:-1], shape[-1] + 3), device=device)[..., 2:-1]
    if dims > 1:
        yield some(shape[1:], device=device)


def test_the_reference_agrees_with_loops():
    def key(end, value):
        return (value != value, value if end == "max" else -value)

    for dtype, kind in itertools.product(
        (torch.int8, torch.float32, torch.bool), ("ties", "special")
    ):
        x, mask = data.make((40, 5), dtype, kind), some((40, 5), 0.4)
        for end in ("min", "max"):
            values, indices = reference.extreme_masked(end, x, mask, 1)
            for row in range(40):
                best = None
                for i in range(5):
                    if mask[row, i] and (
                        best is None or key(end, x[row, i].item()) > key(end, x[row, best].item())
                    ):
                        best = i
                assert indices[row] == (0 if best is None else best)
                none = reference.identity(end, dtype)[0]
                chosen = none if best is None else x[row, best]
                assert torch.equal(bits(values[row : row + 1]), bits(chosen.reshape(1)))


# Of each dtype all layouts and, in turn, all operators.
DTYPES_AND_LAYOUTS = zip(itertools.product(data.DTYPES, data.LAYOUTS), itertools.cycle(NAMES))


@pytest.mark.parametrize(
    "name, dtype, layout", [(name, *others) for others, name in DTYPES_AND_LAYOUTS], ids=str
)
def test_masks_of_every_shape_and_stride(name, dtype, layout, device):
    x = data.LAYOUTS[layout](lambda shape: data.make(shape, dtype, "special").to(device))
    for number, mask in enumerate(masks_for(x.shape, device)):
        for dim in range(x.dim()):
            check(name, x, dim, bool(number % 2), (number,), mask=mask)
        if name.startswith("arg"):
            check(name, x, None, bool(number % 2), (number,), mask=mask)
            check(name, x, [0, -1][: x.dim()], bool(number % 2), (number,), mask=mask)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64], ids=str
)
@pytest.mark.parametrize("density", [0.0, 0.001, 0.5, 0.999])
def test_large_inputs(dtype, density, device):
    for shape in ((3, 70_000), (70_000, 3), (300, 1021), (5, 300, 40), (1 << 20,)):
        x = data.make(shape, dtype, "ties").to(device)
        for mask in (some(shape, density, device=device), some(shape[-1:], density, device=device)):
            for dim in range(len(shape)):
                for name in ("argmax", "min"):
                    check(name, x, dim, mask=mask, index_dtype=torch.int32)
            check("argmin", x, None, mask=mask)


@each_name
def test_a_0d_tensor(name, device):
    x = torch.tensor(3.0, device=device)
    for present in (True, False):
        check(name, x, 0, mask=torch.tensor(present, device=device), index_dtype=torch.uint8)


@each_name
@pytest.mark.parametrize("shape, dim", [((0, 3), 1), ((3, 0, 2), 0), ((2, 0), -2)])
def test_empty_results(name, shape, dim, device):
    x = torch.empty(shape, device=device)
    for mask in (torch.ones(shape, dtype=torch.bool, device=device), None):
        for result in as_tuple(getattr(ops, name)(x, dim, True, mask=mask)):
            assert result.numel() == 0 and result.size(dim) == 1


@each_dtype
@each_end
def test_an_element_that_beats_nothing_wins_over_those_that_take_no_part(end, dtype, device):
    """It equals the value of no element at all."""
    none = reference.identity(end, dtype)
    for n in (1, 2, 7, 33, 64, 257, 4097):
        x = bits(none).expand(3, n).contiguous().view(dtype).to(device)
        mask = torch.zeros(3, n, dtype=torch.bool, device=device)
        mask[0, n - 1] = mask[1, n // 2 :] = True
        for y, m, dim in ((x, mask, 1), (x.t().contiguous(), mask.t().contiguous(), 0)):
            values, indices = getattr(ops, end)(y, dim, mask=m)
            assert indices.tolist() == [n - 1, n // 2, 0]
            assert torch.equal(bits(values), bits(none).expand(3).to(device))


@pytest.mark.parametrize("dtype", [*data.FLOATS, *data.FLOAT8], ids=str)
@each_end
def test_nans_count_where_they_take_part(end, dtype, device):
    nan = data.nans(dtype)[:1]
    one = torch.ones(1).to(dtype)
    for n in (2, 40, 300):
        position = torch.arange(n)
        # Row i: a NaN everywhere but at i; the mask hides all before i, or shows i alone.
        x = torch.where(position[None] == position[:, None], bits(one), bits(nan)).view(dtype)
        x = x.to(device)
        later = (position[None] >= position[:, None]).to(device)
        alone = (position[None] == position[:, None]).to(device)
        _, indices = getattr(ops, end)(x, 1, mask=later)
        last = torch.full((n,), n - 1)
        assert torch.equal(indices.cpu(), torch.minimum(position + 1, last))
        values, indices = getattr(ops, end)(x, 1, mask=alone)
        assert torch.equal(indices.cpu(), position)
        assert torch.equal(bits(values), bits(one).expand(n).to(device))


def test_any_byte_but_zero_is_true(device):
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(0, 256, (40, 300), generator=generator, dtype=torch.uint8)
    raw[raw < 128] = 0
    x = data.make((40, 300), torch.float32, "ties").to(device)
    for name, dim in itertools.product(NAMES, (0, 1)):
        result = getattr(ops, name)(x, dim, mask=raw.to(device).view(torch.bool))
        assert_same(result, expected(name, x, dim, mask=(raw != 0).to(device)))


@each_index_dtype
@each_name
def test_index_dtypes(name, index_dtype, device):
    for shape in ((5, 67), (3, 4, 5), (256,), (2, 256, 3), (256, 256)):
        x = data.make(shape, torch.float32, "special").to(device)
        mask = some(shape, 0.2, device=device)
        for dim in range(len(shape)):
            check(name, x, dim, index_dtype=index_dtype)
            check(name, x, dim, True, index_dtype=index_dtype, mask=mask)


@each_end
def test_the_greatest_index_of_each_dtype(end, device):
    for index_dtype, extent in ((torch.uint8, 256), (torch.uint16, 65536), (torch.int32, 70_000)):
        for dtype in (torch.int8, torch.float32, torch.bool):
            x = torch.zeros(extent, dtype=dtype, device=device)
            x[-1] = 1
            x = x == 0 if end == "min" and dtype == torch.bool else -x if end == "min" else x
            for y in (x, x[:, None].expand(extent, 3), x.expand(3, extent)):
                dim = 0 if y.size(0) == extent else 1
                for function in (getattr(ops, end), getattr(ops, f"arg{end}")):
                    index = as_tuple(function(y, dim, index_dtype=index_dtype))[-1]
                    assert index.dtype == index_dtype and (index.long() == extent - 1).all()


def test_no_options_are_the_plain_call(device):
    x = data.make((3, 4), torch.float32, "special").to(device)
    for name in NAMES:
        plain = getattr(ops, name)(x, 1)
        for options in ({}, {"mask": None}, {"index_dtype": None}, {"index_dtype": torch.int64}):
            assert_same(getattr(ops, name).options(x, 1, **options), plain)
            assert_same(getattr(customops, name)(x, 1, **options), plain)


def test_the_packet_finds_the_overload():
    x, mask = torch.randn(3, 4), some((3, 4))
    recorder = AotEagerAndRecordGraphs()

    @torch.compile(backend=recorder, fullgraph=True)
    def compiled(x, mask):
        return (
            *(ops.argmax(x, 1, mask=mask), ops.argmax(x, [0, 1], index_dtype=torch.int32)),
            *(ops.argmin(x, mask=mask), customops.argmin(x, (0,), mask=mask)),
            *(*ops.min(x, 1, mask=mask), *customops.max(x, 1, index_dtype=torch.uint8)),
        )

    compiled(x, mask)
    called = [call for call in graphs.calls(recorder.fw_graphs[0]) if "reduceops" in call]
    assert called == [
        *("reduceops.argmax.options", "reduceops.argmax.dims_options"),
        *("reduceops.argmin.options", "reduceops.argmin.dims_options"),
        *("reduceops.min.options", "reduceops.max.options"),
    ]


# (shape, dim, options, text); a shape may be a tensor
ERRORS = [
    ((3, 4), 1, {"mask": torch.ones(3, 4)}, "mask must be a bool tensor, got float32"),
    (
        (3, 4),
        1,
        {"mask": torch.ones(3, dtype=torch.uint8)},
        "mask must be a bool tensor, got uint8",
    ),
    *(
        (
            shape,
            0,
            {"mask": torch.ones(mask, dtype=torch.bool)},
            f"a mask of shape {list(mask)} does not broadcast to the input's {list(shape)}",
        )
        for shape, mask in (((3, 4), (3,)), ((3, 4), (3, 1, 4)), ((3, 1), (3, 4)), ((), (1,)))
    ),
    (
        (300,),
        0,
        {"index_dtype": torch.uint8},
        "index_dtype uint8 cannot hold every index of 300 elements",
    ),
    (
        (257, 2),
        0,
        {"index_dtype": torch.uint8},
        "index_dtype uint8 cannot hold every index of 257 elements",
    ),
    (
        (65537,),
        0,
        {"index_dtype": torch.uint16},
        "index_dtype uint16 cannot hold every index of 65537 elements",
    ),
    *(
        (
            (3, 4),
            1,
            {"index_dtype": dtype},
            f"index_dtype must be int64, int32, uint16 or uint8, got {str(dtype)[6:]}",
        )
        for dtype in (torch.int8, torch.int16, torch.bool, torch.float32, torch.uint32)
    ),
    # The first mistake is the one reported: the dim, an empty dim, the mask, the index_dtype.
    (
        (3, 4),
        2,
        {"mask": torch.ones(5)},
        "dim 2 is out of range for a 2-d tensor (valid: -2 to 1)",
    ),
    (
        (3, 0),
        1,
        {"mask": torch.ones(5)},
        "cannot reduce over dim 1, which has size 0 (input shape [3, 0])",
    ),
    (
        (300,),
        0,
        {"mask": torch.ones(5), "index_dtype": torch.uint8},
        "mask must be a bool tensor, got float32",
    ),
]
each_error = pytest.mark.parametrize("shape, dim, options, text", ERRORS, ids=range(len(ERRORS)))


def on(device, options):
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}


@each_error
@each_name
@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "grad"])
def test_errors(name, shape, dim, options, text, requires_grad, device):
    x = torch.zeros(shape, device=device).requires_grad_(requires_grad)
    for function in (getattr(customops, name), getattr(ops, name)):
        with pytest.raises((RuntimeError, IndexError)) as raised:
            function(x, dim, **on(device, options))
        assert str(raised.value) == f"reduceops::{name}: {text}"
    if "dim" in text[:12] or "size 0" in text:
        with pytest.raises(IndexError):
            getattr(customops, name)(x, dim, **on(device, options))


@each_error
@each_name
def test_errors_of_meta_tensors(name, shape, dim, options, text):
    with pytest.raises((RuntimeError, IndexError)) as raised:
        getattr(ops, name)(torch.zeros(shape, device="meta"), dim, **on("meta", options))
    assert str(raised.value).splitlines()[0].endswith(f"reduceops::{name}: {text}")


# Each of two operators, one of them an argmin or argmax.
COMPILED_ERRORS = [
    (NAMES[(i + 2 * dynamic) % 4], dynamic, *error)
    for i, error in enumerate(ERRORS)
    for dynamic in (False, True)
]


@pytest.mark.parametrize(
    "name, dynamic, shape, dim, options, text", COMPILED_ERRORS, ids=range(len(COMPILED_ERRORS))
)
def test_errors_of_compiled_calls(name, dynamic, shape, dim, options, text):
    @torch.compile(backend="eager", fullgraph=True, dynamic=dynamic)
    def compiled(x, options):
        return getattr(customops, name)(x, dim, **options)

    with pytest.raises(Exception) as raised:
        compiled(torch.zeros(shape), options)
    start = text if not dynamic else text.partition("[")[0].partition(" (input shape")[0]
    assert f"reduceops::{name}: {start}" in str(raised.value)


@each_name
def test_an_index_dtype_or_a_mask_that_is_none(name):
    with pytest.raises(TypeError, match=f"{name}: index_dtype must be a torch.dtype or None"):
        getattr(customops, name)(torch.ones(3), 0, index_dtype="int32")
    with pytest.raises(TypeError, match=f"{name}: mask must be a bool tensor or None"):
        getattr(customops, name)(torch.ones(3), 0, mask=[True, False, True])


def test_more_elements_than_an_int32_can_count():
    """Refused before anything is read or allocated."""
    n = (1 << 31) + 1
    x = torch.zeros(1, dtype=torch.int8).expand(n)
    for name in NAMES:
        with pytest.raises(RuntimeError, match=f"int32 cannot hold every index of {n} elements"):
            getattr(ops, name)(x, 0, index_dtype=torch.int32)
        fake = getattr(ops, name)(x[:-1].to("meta"), 0, index_dtype=torch.int32)
        assert as_tuple(fake)[-1].dtype == torch.int32
    with pytest.raises(RuntimeError, match="uint16 cannot hold every index of 66000 elements"):
        ops.argmax(torch.zeros(66, 1000), [0, 1], index_dtype=torch.uint16)
    with pytest.raises(RuntimeError, match="uint16 cannot hold every index of 66000 elements"):
        ops.argmax(torch.zeros(66, 1000), index_dtype=torch.uint16)


@each_name
@pytest.mark.filterwarnings("ignore")
def test_unusual_masks(name):
    x, mask = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
    strided, device = "a strided tensor, got a {} one", "on the device of the input, cpu, got {}"
    unusual = {
        strided.format("sparse_coo"): mask.to_sparse(),
        strided.format("sparse_csr"): mask.to_sparse_csr(),
        "a bool tensor, got quint8": torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
        "a bool tensor, got float32": x.to_mkldnn(),
    }
    elsewhere = {device.format("meta"): mask.to("meta")}
    for function in (getattr(customops, name), getattr(ops, name)):
        for y in (x, x.clone().requires_grad_(), x.to("meta")):
            for text, other in (unusual if y.is_meta else unusual | elsewhere).items():
                with pytest.raises(RuntimeError, match=f"reduceops::{name}: mask must be {text}$"):
                    function(y, 0, mask=other)
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
        kind = str(layout).replace("torch.", "nested ")
        of_mask, of_input = strided.format(kind), f"got a {kind} float32 tensor on cpu"
        either = "got a nested float32 tensor or a nested mask"  # which C++ cannot tell
        for one, other, text in (
            (x, nested.bool(), f"mask must be {of_mask}$"),
            (x.to("meta"), nested.bool(), f"mask must be {of_mask}$"),
            (nested, mask, of_input),
        ):
            if name in ("min", "max"):
                text = either
            with pytest.raises(RuntimeError, match=f"reduceops::{name}: {text}"):
                getattr(ops, name)(one, 0, mask=other)


@each_name
def test_fakes_have_the_shapes_and_strides_of_results(name):
    mask = some((3, 5))
    for x in (torch.randn(3, 5), torch.randn(5, 3).t(), torch.randn(3, 1).expand(3, 5)):
        for dim, keepdim, index_dtype in itertools.product((0, -1), (False, True), INDEX_DTYPES):
            arguments, options = (dim, keepdim), {"index_dtype": index_dtype}
            real = as_tuple(getattr(ops, name)(x, *arguments, mask=mask, **options))
            with FakeTensorMode() as mode:
                inputs = mode.from_tensor(x), mode.from_tensor(mask)
                fake = getattr(ops, name)(inputs[0], *arguments, mask=inputs[1], **options)
            meta = getattr(ops, name)(x.to("meta"), *arguments, mask=mask.to("meta"), **options)
            for r, f, m in zip(real, as_tuple(fake), as_tuple(meta), strict=True):
                assert (r.shape, r.stride(), r.dtype) == (f.shape, f.stride(), f.dtype)
                assert (r.shape, r.stride(), r.dtype) == (m.shape, m.stride(), m.dtype)


OVERLOADS = [
    *((getattr(ops, name).options, 1) for name in NAMES),
    *((getattr(ops, name).options, None) for name in NAMES[:2]),
    *((getattr(ops, name).dims_options, [0, -1]) for name in NAMES[:2]),
]


@pytest.mark.parametrize("op, dim", OVERLOADS, ids=str)
@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "grad"])
def test_opcheck(op, dim, requires_grad, device):
    x = data.make((3, 4, 5), torch.float32, "smooth").to(device).requires_grad_(requires_grad)
    full, row = some((3, 4, 5), device=device), some((5,), device=device)
    for mask, index_dtype in (
        *((full, torch.uint8), (row, None)),
        (None, torch.int32),
    ):
        options = {"mask": mask, "index_dtype": index_dtype}
        torch.library.opcheck(op, (x, dim, True), options)
        values = as_tuple(op(x, dim, True, **options))[0]
        assert values.requires_grad == (requires_grad and "arg" not in op._opname)


@each_end
def test_opcheck_of_the_private_operators(end, device):
    op = getattr(ops, f"_{end}_options_autograd").default
    x = data.make((3, 4, 5), torch.float32, "smooth").to(device)
    torch.library.opcheck(op, (x, 1, True, some((5,), device=device), torch.int32))


@each_name
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_fullgraph(name, dynamic, device):
    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=dynamic)
    def compiled(x, mask):
        return getattr(customops, name)(x, 1, mask=mask, index_dtype=torch.uint8)

    for shape in ((3, 4, 5), (6, 4, 7)):
        x = data.make(shape, torch.float32, "special").to(device)
        for mask in (some(shape, device=device), some(shape[1:], device=device)):
            right = expected(name, x, 1, mask=mask, index_dtype=torch.uint8)
            assert_same(compiled(x, mask), right)


@each_name
def test_another_batch_size_does_not_recompile(name):
    counter = CompileCounter()

    @torch.compile(backend=counter, fullgraph=True)
    def compiled(x, mask):
        return getattr(customops, name)(x, 1, mask=mask, index_dtype=torch.uint8)

    for batch in (3, 4, 5, 17, 64):
        x, mask = data.make((batch, 6, 5), torch.float32, "ties"), some((batch, 6, 5))
        right = expected(name, x, 1, mask=mask, index_dtype=torch.uint8)
        assert_same(compiled(x, mask), right)
    assert counter.frame_count == 2


@each_name
def test_dynamic_compiles_once_whatever_the_extent(name):
    """An extent that does not fit is found when the call is made."""
    counter = CompileCounter()

    @torch.compile(backend=counter, fullgraph=True, dynamic=True)
    def compiled(x):
        return getattr(customops, name)(x, -1, index_dtype=torch.uint8)

    for shape in ((3, 4), (7, 100), (2, 256), (5, 7)):
        x = data.make(shape, torch.float32, "ties")
        assert_same(compiled(x), expected(name, x, -1, index_dtype=torch.uint8))
    with pytest.raises(
        RuntimeError, match=f"{name}: index_dtype uint8 cannot hold every index of 2"
    ):
        compiled(torch.zeros(3, 257))
    assert counter.frame_count == 1


@each_name
def test_unbacked_sizes(name):
    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(x, mask, keep):
        rows = keep.nonzero().squeeze(1)
        function = getattr(customops, name)
        return (
            function(x[rows], 0, mask=mask[rows], index_dtype=torch.int32),
            function(x[rows], 1, mask=mask[0], index_dtype=torch.uint8),
        )

    x, mask = data.make((6, 5), torch.float32, "smooth"), some((6, 5))
    keep = torch.tensor([1, 0, 1, 1, 0, 1])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        first, second = compiled(x, mask, keep)
    kept = x[keep.bool()], mask[keep.bool()]
    assert_same(first, expected(name, kept[0], 0, mask=kept[1], index_dtype=torch.int32))
    assert_same(second, expected(name, kept[0], 1, mask=mask[0], index_dtype=torch.uint8))


@needs_compiler
@pytest.mark.parametrize("dynamic", [None, True])
def test_inductor(dynamic, device):
    """Between operators that Inductor fuses, forward and backward; the mask is computed."""
    names = ("argmin", "argmax", "min", "max")

    def function(m, *inputs):
        found = []
        for name, x in zip(names, inputs, strict=True):
            call, options = getattr(customops, name), {"index_dtype": torch.uint16}
            results = as_tuple(call(x * 2 + 1, 1, mask=m > 0.25, **options))
            found.append([r * 4 if r.is_floating_point() else r.int() + 1 for r in results])
        return found

    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic)
    for batch in (3, 8):
        m = torch.rand(40, 1, generator=torch.Generator().manual_seed(batch)).to(device)
        x = data.make((batch, 40, 5), torch.float32, "ties").to(device)
        given = [[x.clone().requires_grad_(n in ("min", "max")) for n in names] for _ in range(2)]
        results = [f(m, *inputs) for f, inputs in zip((compiled, function), given, strict=True)]
        for name, *found in zip(names, *results, strict=True):
            assert_same(*found, context=(name, batch))
        for found in results:
            sum(result[0].sum() for result in found if result[0].requires_grad).backward()
        for name, x, y in zip(names, *given, strict=True):
            assert x.grad is None or torch.equal(x.grad, y.grad) and x.grad.any(), (name, batch)
        assert given[0][2].grad is not None and given[0][3].grad is not None


@needs_compiler
def test_inductor_does_not_copy_a_mask(device):
    """It hands over the strides that it has."""
    compiled = torch.compile(
        lambda x, m: ops.argmax(x, 1, mask=(m & ~m.roll(1)).transpose(1, 2)), fullgraph=True
    )
    x, m = torch.randn(3, 4, 5, device=device), some((3, 5, 4), device=device)
    right = expected("argmax", x, 1, mask=(m & ~m.roll(1)).transpose(1, 2))
    assert_same(compiled(x, m), right)


class Module(torch.nn.Module):
    def forward(self, x, mask):
        values, index = customops.max(x, 1, mask=mask, index_dtype=torch.uint8)
        return (
            *(values, index, customops.argmin(x, mask=mask, index_dtype=torch.int32)),
            customops.argmax(x, [0, 2], keepdim=True, mask=mask),
            *customops.softmax_max(x, -1),
        )

    def right(self, x, mask):
        values, index = expected("max", x, 1, mask=mask, index_dtype=torch.uint8)
        return (
            *(values, index, expected("argmin", x, None, mask=mask, index_dtype=torch.int32)),
            expected("argmax", x, [0, 2], True, mask=mask),
        )

    def check(self, results, x, mask):
        *exact, probability, index = results
        assert_same(exact, self.right(x, mask))
        torch.testing.assert_close(probability, torch.softmax(x, -1).amax(-1))
        assert torch.equal(index, reference.argmax(x, -1))


def inputs(batch, device="cpu", mask=(4, 5)):
    x = data.make((batch, 4, 5), torch.float32, "smooth", seed=batch).to(device)
    return x, some(mask, 0.4, seed=batch, device=device)


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
def test_export_survives_saving(strict, tmp_path, device):
    sizes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC}, {0: Dim.DYNAMIC})
    program = export(Module(), inputs(3, device), dynamic_shapes=sizes, strict=strict)
    torch.export.save(program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2")
    for run in (p.module() for p in (program, loaded, program.run_decompositions())):
        for batch in (3, 1, 6):
            Module().check(run(*inputs(batch, device)), *inputs(batch, device))


# vmap: (shape of x, its batch dim or None, shape of the mask, its batch dim or None)
BATCHED = [
    ((4, 3, 5), 0, (3, 5), None),
    ((4, 3, 5), 0, (5,), None),
    ((4, 3, 5), 0, (), None),
    ((3, 5, 4), -1, (3, 1), None),
    ((3, 4, 5), 1, (3, 5, 4), 2),
    ((4, 3, 5), 0, (4, 5), 0),
    ((4, 3, 5), 0, (5, 4), 1),
    ((4, 3, 5), 0, (4,), 0),
    ((3, 5), None, (4, 3, 5), 0),
    ((3, 5), None, (1, 4, 5), 1),
    ((3, 5), None, (4,), 0),
    ((4,), 0, (4,), 0),
    ((4,), 0, (), None),
    ((), None, (4,), 0),
]


@each_name
@pytest.mark.parametrize("shape, batch_dim, mask_shape, mask_dim", BATCHED)
def test_vmap_is_a_loop(name, shape, batch_dim, mask_shape, mask_dim, device):
    x, mask = data.make(shape, torch.float32, "ties").to(device), some(mask_shape, device=device)
    sample = x if batch_dim is None else x.select(batch_dim, 0)
    dims = list(range(-sample.dim(), sample.dim())) or [0, -1]
    several = [None, [], list(range(sample.dim()))] * name.startswith("arg")
    for dim, keepdim in itertools.product(dims + several, (False, True)):

        def function(x, mask, dim=dim, keepdim=keepdim):
            options = {"mask": mask, "index_dtype": torch.int32}
            return getattr(ops, name)(x, dim, keepdim, **options)

        actual = vmap(function, in_dims=(batch_dim, mask_dim))(x, mask)
        samples = [
            as_tuple(
                function(
                    x if batch_dim is None else x.select(batch_dim, i),
                    mask if mask_dim is None else mask.select(mask_dim, i),
                )
            )
            for i in range(4)
        ]
        stacked = tuple(torch.stack(parts) for parts in zip(*samples, strict=True))
        assert_same(actual, stacked, context=(dim, keepdim))


@each_name
def test_nested_vmap(name, device):
    x, mask = data.make((3, 4, 5), torch.float32, "ties"), some((4, 5))
    x, mask = x.to(device), mask.to(device)

    def function(x, mask):
        return getattr(ops, name)(x, 0, mask=mask, index_dtype=torch.uint8)

    actual = vmap(vmap(function), in_dims=(0, None))(x[..., None], mask[..., None])
    right = getattr(ops, name)(x[..., None], 2, mask=mask[..., None], index_dtype=torch.uint8)
    assert_same(actual, right)
    # An empty batch, no mask, and neither batched.
    empty = vmap(function)(x[:0, 0], mask[:0])
    assert as_tuple(empty)[-1].shape == (0,)
    unmasked = vmap(lambda x: function(x, None))(x[0])
    assert_same(unmasked, getattr(ops, name)(x[0], 1, index_dtype=torch.uint8))
    row = function(x[0, 0], mask[0])
    both = vmap(lambda y: (function(x[0, 0], mask[0]), y))(torch.zeros(2, device=device))[0]
    for one, two in zip(as_tuple(row), as_tuple(both), strict=True):
        assert_same(two, torch.stack([one, one]))


@each_name
def test_errors_of_vmap_are_those_of_a_sample(name):
    x, mask = torch.ones(4, 3), torch.ones(4, 2, dtype=torch.bool)
    text = rf"{name}: a mask of shape \[2\] does not broadcast to the input's \[3\]"
    with pytest.raises(RuntimeError, match=text):
        vmap(lambda x, m: getattr(ops, name)(x, 0, mask=m))(x, mask)
    with pytest.raises(IndexError, match="dim 1 is out of range for a 1-d tensor"):
        vmap(lambda x, m: getattr(ops, name)(x, 1, mask=m))(x, x > 0)


def distinct(shape, device="cpu"):
    """Values far enough apart for finite differences."""
    generator = torch.Generator().manual_seed(0)
    count = torch.Size(shape).numel()
    x = torch.randperm(count, generator=generator).to(torch.float64) / 8
    return x.view(shape).to(device)


def by_torch(end, x, dim, keepdim=False, mask=None):
    """As torch differentiates it: where elements do not take part, infinities are chosen."""
    none = torch.inf if end == "min" else -torch.inf
    return getattr(torch, end)(torch.where(mask, x, none), dim, keepdim)[0]


GRADIENT_MASKS = {
    "same shape": lambda device: some((3, 4, 5), 0.4, device=device),
    "rows": lambda device: some((3, 1, 1), 0.5, seed=1, device=device),
    "vector": lambda device: some((5,), 0.5, device=device),
    "scalar": lambda device: torch.tensor(False, device=device),
    "expanded": lambda device: some((4, 1), 0.4, device=device).expand(3, 4, 5),
}
each_mask = pytest.mark.parametrize("kind", GRADIENT_MASKS)


def finite(x):
    """Of a group without elements the value is infinite, and no function for differences."""
    return torch.where(x.isfinite(), x, 0)


# What an index becomes does not depend on the mask: each dtype with some masks, for both ends.
@pytest.mark.parametrize(
    "end, kind, index_dtype",
    [
        (end, kind, INDEX_DTYPES[(number + shift) % 4])
        for shift, end in enumerate(("min", "max"))
        for number, kind in enumerate(GRADIENT_MASKS)
    ],
    ids=str,
)
def test_gradcheck(end, kind, index_dtype, device):
    x, mask = distinct((3, 4, 5), device).requires_grad_(), GRADIENT_MASKS[kind](device)
    for dim, keepdim in itertools.product((0, 1, -1), (False, True)):

        def function(x, dim=dim, keepdim=keepdim):
            options = {"mask": mask, "index_dtype": index_dtype}
            return finite(getattr(ops, end)(x, dim, keepdim, **options)[0])

        fast = {"fast_mode": index_dtype != torch.uint8}
        assert torch.autograd.gradcheck(function, x, check_forward_ad=True, **fast)
        assert torch.autograd.gradgradcheck(function, x, **fast)


@each_end
@each_mask
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "transposed"])
def test_gradients_are_those_of_the_elements_chosen(end, kind, layout, device):
    x, mask = distinct((2, 3, 4, 5), device), GRADIENT_MASKS[kind](device)
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    x = x.transpose(0, 3).contiguous().transpose(0, 3) if layout == "transposed" else x
    for dim, keepdim in itertools.product(range(4), (False, True)):
        leaf, other = (x.clone().requires_grad_() for _ in range(2))
        options = {"mask": mask, "index_dtype": torch.uint8}
        result = getattr(customops, end)(leaf, dim, keepdim, **options)[0]
        weights = distinct(result.shape, device) + 1
        result.backward(weights)
        by_torch(end, other, dim, keepdim, mask).backward(weights)
        assert torch.equal(leaf.grad, other.grad), (dim, keepdim)
        if layout == "channels_last":
            assert leaf.grad.is_contiguous(memory_format=torch.channels_last)


@each_end
def test_a_group_without_elements_has_no_gradient(end, device):
    """Whatever comes back, infinities and NaNs too."""
    x = distinct((3, 4), device).requires_grad_()
    mask = torch.ones(3, 4, dtype=torch.bool, device=device)
    mask[1] = False
    values, _ = getattr(ops, end)(x, 1, mask=mask)
    weights = torch.tensor([1.0, torch.nan, 2.0], dtype=torch.float64, device=device)
    (first,) = torch.autograd.grad(values, x, weights, retain_graph=True)
    assert first[1].eq(0).all() and first.sum() == 3
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), torch.full_like(x, torch.inf))
        tangent = forward_ad.unpack_dual(getattr(ops, end)(dual, 1, mask=mask)[0]).tangent
    assert tangent.tolist() == [torch.inf, 0, torch.inf]
    # The mask may change before the backward: it is not needed any more.
    leaf = x.detach().clone().requires_grad_()
    values, _ = getattr(ops, end)(leaf, 1, mask=mask)
    mask.fill_(False)
    values.sum().backward()
    assert leaf.grad.sum() == 2


@each_end
def test_a_backward_saves_what_is_as_large_as_the_result(end, device):
    saved = []
    x, mask = distinct((3, 1000, 2), device).requires_grad_(), some((3, 1000, 2), device=device)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        getattr(ops, end)(x, 1, mask=mask, index_dtype=torch.uint16)
    assert {(t.dtype, tuple(t.shape)) for t in saved} == {
        (torch.uint16, (3, 2)),
        (torch.bool, (3, 2)),
    }


def test_what_has_a_gradient(device):
    x, mask = distinct((3, 4), device).requires_grad_(), some((3, 4), device=device)
    values, indices = ops.min(x, 1, mask=mask)
    assert values.requires_grad and not indices.requires_grad
    assert not ops.argmin(x, 1, mask=mask).requires_grad
    assert not ops.argmax(x, [0, 1], index_dtype=torch.uint8).requires_grad
    with torch.no_grad():
        assert not ops.min(x, 1, mask=mask)[0].requires_grad
    with torch.inference_mode():
        assert ops.min(x * 1, 1, mask=mask)[0].is_inference()


TRANSFORMS = {
    "grad": lambda f, x, m, t: grad(lambda x: f(x, m).square().sum())(x),
    "vmap(grad)": lambda f, x, m, t: vmap(grad(lambda x, m: f(x, m).square().sum()))(x, m),
    "vmap(grad), one mask": lambda f, x, m, t: vmap(
        grad(lambda x, m: f(x, m).square().sum()), in_dims=(0, None)
    )(x, m[0]),
    "vmap(grad), one input": lambda f, x, m, t: vmap(
        grad(lambda x, m: f(x, m).square().sum()), in_dims=(None, 0)
    )(x[0], m),
    "grad(vmap)": lambda f, x, m, t: grad(lambda x: vmap(f)(x, m).square().sum())(x),
    "grad(vmap), one input": lambda f, x, m, t: grad(
        lambda x: vmap(f, in_dims=(None, 0))(x, m).square().sum()
    )(x[0]),
    "jacrev": lambda f, x, m, t: jacrev(f)(x, m),
    "jacfwd": lambda f, x, m, t: jacfwd(f)(x, m),
    "hessian": lambda f, x, m, t: hessian(lambda x: (f(x, m) ** 3).sum())(x),
    "jvp": lambda f, x, m, t: jvp(lambda x: f(x, m), (x,), (t,)),
    "jvp(jvp)": lambda f, x, m, t: jvp(
        lambda x: jvp(lambda x: f(x * x, m), (x,), (t,))[1], (x,), (t.flip(0),)
    ),
    "jvp(vmap)": lambda f, x, m, t: jvp(lambda x: vmap(f)(x, m), (x,), (t,)),
}


@each_end
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    "keepdim, compiled",
    [(False, False), (True, False), (False, True)],
    ids=["", "keepdim", "compiled"],
)
def test_transforms(end, transform, keepdim, compiled, device):
    if compiled and transform in ("jacfwd", "hessian", "jvp(jvp)"):
        pytest.skip("Dynamo has no nested forward mode")
    x, t, mask = distinct((3, 4, 5), device), distinct((3, 4, 5), device).flip(0), some((3, 4, 5))
    mask[1, 2] = mask[:, :, 3] = False
    mask = mask.to(device)

    def ours(x, m):
        return finite(getattr(ops, end)(x, -1, keepdim, mask=m, index_dtype=torch.uint8)[0])

    def theirs(x, m):
        return finite(by_torch(end, x, -1, keepdim, m))

    run = TRANSFORMS[transform]
    call = torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run
    for a, e in zip(
        as_tuple(call(ours, x, mask, t)), as_tuple(run(theirs, x, mask, t)), strict=True
    ):
        assert torch.equal(a, e)


@each_end
def test_batched_gradients_and_subclasses(end, device):
    x, mask = distinct((3, 4), device).requires_grad_(), some((3, 4), device=device)
    result, other = getattr(ops, end)(x, 1, mask=mask)[0], by_torch(end, x, 1, mask=mask)
    weights = distinct((7, 3), device)
    actual, right = (
        torch.autograd.grad(r, x, weights, is_grads_batched=True)[0] for r in (result, other)
    )
    assert torch.equal(actual, right)
    two = TwoTensor(distinct((3, 4)), distinct((3, 4)).flip(0)).requires_grad_()
    mask = TwoTensor(some((3, 4)), some((3, 4), seed=1))
    values = getattr(ops, end)(two, 1, mask=mask)[0]
    values.sum().backward()
    for half in ("a", "b"):
        leaf = getattr(two, half).detach().clone().requires_grad_()
        finite(by_torch(end, leaf, 1, mask=getattr(mask, half))).sum().backward()
        assert torch.equal(getattr(two.grad, half), leaf.grad)


class Stop(Exception):
    pass


@each_end
def test_an_exception_of_a_mask_that_is_a_subclass_keeps_its_type(end):
    class Refuses(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise Stop(str(func))

    mask = torch.Tensor._make_wrapper_subclass(Refuses, (3, 4), dtype=torch.bool)
    with pytest.raises(Stop, match=f"^reduceops.{end}.options$"):
        getattr(ops, end)(torch.ones(3, 4), 1, mask=mask)


@each_end
def test_autocast_changes_nothing(end, device):
    x, mask = data.make((4, 50), torch.float32, "ties").to(device), some((50,), device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert_same(getattr(ops, end)(x, 1, mask=mask), expected(end, x, 1, mask=mask))


WITHOUT_PYTHON = """
import sys, torch
torch.ops.load_library(sys.argv[1])
ops, x = torch.ops.reduceops, torch.tensor([[1.0, 5.0], [3.0, 2.0]])
mask = torch.tensor([[True, False], [True, True]])
values, indices = ops.max(x, 1, mask=mask, index_dtype=torch.uint8)
assert values.tolist() == [1, 3] and indices.tolist() == [0, 0] and indices.dtype == torch.uint8
assert ops.argmax(x, [0, 1], mask=mask).item() == 2
assert ops.softmax_max(x, 1)[1].tolist() == [1, 0]
y = x.clone().requires_grad_()
nested = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(3, 3)])
for call, text in (
    (lambda: ops.min(y, 1, mask=mask), "import customops"),
    (lambda: ops.softmax_max(y, 1), "import customops"),
    (lambda: ops.max(x, 1, mask=x), "mask must be a bool tensor, got float32"),
    (lambda: ops.max(y, 1, mask=x), "mask must be a bool tensor, got float32"),
    (lambda: ops.max(x, 1, mask=mask[:, :1][:0]), "does not broadcast"),
    (lambda: ops.max(x, 5, mask=mask), "dim 5 is out of range"),
    (lambda: ops.max(x, 1, index_dtype=torch.int8), "got int8"),
    (lambda: ops.max(x.int().to_sparse(), 1, mask=mask), "sparse"),
    (lambda: ops.max(nested, 1, mask=mask), "nested"),
    (lambda: ops.softmax_max(nested, 1), "nested"),
):
    try:
        call()
    except RuntimeError as error:
        if torch.__version__ >= "2.13":
            assert text in str(error), (text, error)
    else:
        raise AssertionError(text)
"""


@pytest.mark.filterwarnings("ignore")
def test_the_library_without_the_package():
    done = python_after_torch("-c", WITHOUT_PYTHON, customops.libraries.cpu.path)
    assert done.returncode == 0, done.stderr


def test_the_documentation_runs():
    text = (Path(__file__).parent.parent / "docs/options.md").read_text()
    namespace = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), namespace)
    token, allowed = namespace["token"], namespace["allowed"]
    right = namespace["logits"].masked_fill(~allowed, -torch.inf).argmax(-1)
    assert torch.equal(token, right) and namespace["labels"].dtype == torch.uint8
    assert namespace["probability"].shape == namespace["label"].shape == (1, 64, 64)
