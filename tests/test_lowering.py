"""The operators as loops of Inductor's: where, and with the answers of eager mode."""

import itertools
import math
import re
import sys
import threading
import time
from functools import partial
from types import SimpleNamespace
from unittest import TestCase

import data
import opspec
import pytest
import reference
import sympy
import torch
from conftest import DEVICES, NO_CUDA, needs_compiler, python
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import ir
from torch._inductor import lowering as inductor_lowering
from torch._inductor.index_propagation import IndexPropagation
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V, ops
from torch.fx.experimental.proxy_tensor import make_fx

import customops
from customops._register import caches, fake
from customops.inductor import choice, coarsening, keys, loops, lowering
from customops.inductor.choice import Facts
from customops.inductor.softmax import SoftmaxLoop

pytestmark = needs_compiler
ENDS = ("min", "max")


@pytest.fixture(autouse=True)
def prefer_loops(no_cached_graph, monkeypatch):
    """Wherever there is one."""
    monkeypatch.setattr(customops.inductor, "prefer", "loop")


def with_devices(names, few, more):
    """Parameters: on a GPU all of them, on a CPU `few`, for the others are like these there."""
    chosen = {"cpu": few, "cuda": (*few, *more)}
    pairs = [(value, device) for device in DEVICES for value in chosen[device]]
    return pytest.mark.parametrize(names, pairs, ids=str)


TINY = 1e-45
# Whose extreme is a NaN or infinite, ordinary, tied, a zero before or after others.
POOLS = {
    "special": None,
    "smooth": None,
    "ties": None,
    "zeros": (0.0, -0.0),
    "zeros below": (0.0, -0.0, 1.0, TINY, math.inf),
    "zeros above": (0.0, -0.0, -1.0, -TINY, -math.inf),
    "rare NaNs": (*(0.0, -0.0, 1.5, -2.5, TINY) * 20, math.nan),
}


def operands(shape, device, kind="ties"):
    if POOLS[kind] is None:
        return [data.make(shape, torch.float32, kind, seed).to(device) for seed in range(2)]
    pool, generator = torch.tensor(POOLS[kind]), torch.Generator().manual_seed(0)
    return [data.take(pool, shape, generator).to(device) for _ in range(2)]


def choose(x, y):
    """An expression whose elements, NaNs among them, have the bits that they had in memory."""
    return torch.where(x.view(torch.int32) % 3 == 0, x, y)


def compile_and_run(function, *inputs, **keywords):
    """The results, whether the code calls our kernel, and how many kernels Inductor made."""
    compiled = torch.compile(function, fullgraph=True, **keywords)
    result, (code, *_) = run_and_get_code(compiled, *inputs)
    return result, *look_at(code)


def look_at(code):
    lines = [line for line in code.splitlines() if not line.lstrip().startswith("#")]
    kernels = sum("async_compile.triton(" in line or "cpp_pybinding(" in line for line in lines)
    return any("reduceops" in line for line in lines), kernels


def assert_fused(
    producer, end, shape, device, scale=2.0, dim=1, keepdim=True, parts=False, prepare=None, **mode
):
    """Compiled without our kernel, and for each kind of input the numbers of eager mode. Of several
    scales, the results of all."""
    scales = scale if isinstance(scale, tuple) else (scale,)

    def results(operators, *inputs):
        operator, x = getattr(operators, f"scale_{end}"), producer(*inputs)
        return tuple(operator(x, scale, dim, keepdim) for scale in scales)

    def function(*inputs):
        return results(customops, *inputs)

    compiled, code = torch.compile(function, fullgraph=True, **mode), None
    for kind in POOLS:
        inputs = operands(shape, device, kind)
        if prepare:
            inputs = [prepare(x) for x in inputs]
        if code is None:
            actual, (code,) = run_and_get_code(compiled, *inputs)
        else:
            actual = compiled(*inputs)
        context = (end, scale, dim, keepdim, kind)
        opspec.assert_same(actual, results(reference, *inputs), opspec.NUMBERS, context)
        opspec.assert_same(actual, function(*inputs), opspec.NUMBERS, context)
    calls_ours, kernels = look_at(code)
    assert not calls_ours and (parts or kernels == 1), context


SCALES = (2.0, -1.5, 0.1, 1.0, -1.0, 0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, 1e300, 3)


@pytest.mark.parametrize("end", ENDS)
def test_scales(end, device):
    assert_fused(choose, end, (3, 40, 17), device, SCALES, parts=True)


@pytest.mark.parametrize(
    "extent, ends", zip([1, 5, 100, 3000], itertools.cycle([ENDS, ENDS[::-1]]))
)
def test_extents(extent, ends, device):
    first, last = ends
    parts = extent > 1000  # Inductor may cut it
    assert_fused(choose, first, (extent, 19), device, dim=0, parts=parts)
    assert_fused(choose, last, (19, extent), device, dim=-1, keepdim=False, parts=parts)


def test_a_reduction_cut_into_parts(device):
    assert_fused(choose, "min", (1 << 20,), device, dim=0, parts=True)


PRODUCERS = {
    "sum": lambda x, y: x + y,
    "bias": lambda x, y: x + y[0, :, :1, :1],
    "permuted": lambda x, y: choose(x, y).permute(0, 3, 1, 2),
    "reshaped": lambda x, y: choose(x, y).reshape(2, 15, -1),
    "sliced": lambda x, y: choose(x, y)[:, 1:, ::2],
    "broadcast": lambda x, y: choose(x, y)[:, :, None].expand(-1, -1, 3, -1, -1),
    "converted": lambda x, y: (x.double() + y.double()).float(),
}


# What comes before the loop does not depend on what the loop looks for.
@pytest.mark.parametrize("name, end", zip(PRODUCERS, itertools.cycle(ENDS)))
def test_producers_and_layouts(name, end, device):
    layouts = [torch.contiguous_format]
    others = ("sum", "permuted", "sliced") if device == "cuda" else ("sum",)
    layouts += [torch.channels_last] * (name in others)
    for layout in layouts:
        prepare = lambda x, layout=layout: x.to(memory_format=layout)  # noqa: E731
        assert_fused(PRODUCERS[name], end, (2, 5, 6, 7), device, prepare=prepare)


@pytest.mark.parametrize(
    "mode, end", zip(["max-autotune-no-cudagraphs", "reduce-overhead"], ENDS, strict=True)
)
def test_modes(mode, end, device):
    assert_fused(choose, end, (3, 40, 17), device, mode=mode)


@pytest.mark.parametrize("bounded, end", zip([False, True], ENDS, strict=True))
def test_dynamic_sizes(bounded, end, device):
    def mark(x):
        for dim in (0, 2):
            torch._dynamo.mark_dynamic(x, dim)
        if bounded:
            torch._dynamo.mark_dynamic(x, 1, min=2, max=1000)
        return x

    assert_fused(choose, end, (3, 40, 17), device, prepare=mark)


@with_devices("shape, device", [(33, 130)], [(130, 33), (33, 1500)])
def test_indices_that_are_read_with(shape, device):
    """Inductor asserts that they are in range, on a GPU also where a block has no more groups."""

    def function(x):
        x = choose(x, -x)
        index = customops.argmax(x, 1, True)
        return x.gather(1, index), index

    x = operands(shape, device, "ties")[0]
    opspec.assert_same(torch.compile(function, fullgraph=True)(x), function(x), opspec.ANY_NAN, "")


def test_the_forms_for_a_gpu(monkeypatch, device):
    """Elements in turn, in two steps, in parts, all in one thread; here on a CPU, too."""
    monkeypatch.setattr(loops.Loop, "for_threads", True)
    shapes = {"strided": (5, 60, 19), "rows": (9, 2100), "few": (6, 7, 40), "short": (1100, 90)}
    shapes |= {"long": (3, 1 << 14), "summands": (5, 2, 19, 6), "many": (3, 20, 400)}

    def function(strided, rows, few, short, long, summands, many):
        strided, few = choose(strided, -strided), choose(few, few * 2)
        total = sum(summands)  # a buffer, for it is used twice
        total = torch.where(total > 1, total, total * 2)
        return (
            customops.argmax(strided, 1),
            *customops.min(strided, 1),
            *customops.max(rows + 1, -1, True),
            *customops.max(few, 1),
            *customops.min(short.abs().exp2(), 1),
            *customops.min(choose(long, -long), 1),
            *customops.max(total, 1),
            customops.argmin(short.double() + 1, 1),
            *(many := choose(many, -many), customops.argmin(many, 1), customops.argmax(many, 1)),
            customops.argmax(short - short.abs().amax(1, True), 1),
        ), (
            customops.scale_min(choose(long, -long), 2.0),
            customops.scale_max(strided, -1.5, 1, False),
            customops.scale_min(choose(rows, -rows), 2.0),
            customops.scale_min(rows.abs().exp2(), 2.0),
        )

    counters.clear()
    compiled = torch.compile(function, fullgraph=True)
    for kind in ("special", "ties", "zeros", "rare NaNs"):
        inputs = [operands(shape, device, kind)[0] for shape in shapes.values()]
        (results, alone), (expected, expected_alone) = compiled(*inputs), function(*inputs)
        opspec.assert_same(results, expected, opspec.ANY_NAN, kind)
        opspec.assert_same(alone, expected_alone, opspec.NUMBERS, kind)
    chosen = [line for line in customops.inductor.rewrites() if line.startswith("reduceops.")]
    assert chosen and all(" -> loop" in line for line in chosen)


def test_between_other_operations(device):
    """Part of a larger loop, with another one over the same input."""

    def function(x, y):
        z = choose(x, y)
        return customops.scale_min(z, 2.0) * 4, customops.scale_max(x * 2, -0.5, 1, False)

    inputs = operands((3, 40, 17), device, "smooth")
    result, calls_ours, kernels = compile_and_run(function, *inputs)
    assert not calls_ours and kernels <= (1 if device == "cpu" else 2)
    opspec.assert_same(result, function(*inputs))


CALLED = {
    "an input": lambda x, y: customops.scale_min(x, 2.0),
    "a view": lambda x, y: customops.argmax(x[:, ::2].mT, 1),
    "a matrix product": lambda x, y: customops.min(x @ y.mT, 2),
}


@pytest.mark.parametrize("name", CALLED)
def test_where_the_kernel_is_called(name, device, monkeypatch):
    monkeypatch.setattr(customops.inductor, "prefer", "auto")
    function = CALLED[name]
    x, y = operands((30, 80, 90), device)
    result, calls_ours, _ = compile_and_run(function, x, y)
    assert calls_ours and "in memory" in customops.inductor.rewrites()[-1]
    opspec.assert_same(result, function(x, y), opspec.ANY_NAN)


DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int32, torch.uint32, torch.int64),
    *(*data.FLOATS, torch.float8_e4m3fn),
)
MORE_DTYPES = (torch.int16, torch.uint16, torch.uint64, torch.float8_e5m2)


def test_dtypes(device):
    """Positions and values of ties, NaNs and infinities, with a mask, several dims, consumers."""
    dtypes = DTYPES if device == "cpu" else (*DTYPES, *MORE_DTYPES)

    def of_one(x, mask):
        dtype, x = x.dtype, x.roll(1, 1)
        found = [customops.argmax(x, 1) == 3, *customops.min(x, -1, True), customops.argmin(x, 0)]
        if dtype.itemsize < 8:
            found += [*customops.max(x, 1, mask=mask), customops.argmin(x, [0, 2], mask=mask)]
            found += [customops.argmax(x, 2, index_dtype=torch.int32, mask=mask)]
        return found

    def function(*inputs):  # to compile one graph takes less
        return [of_one(*of_dtype) for of_dtype in inputs]

    inputs = []
    for dtype in dtypes:
        mask = torch.rand((3, 1, 17)) < 0.3
        inputs.append((data.make((3, 40, 17), dtype, "special"), mask))
    expected = function(*inputs)  # CUDA does not roll every dtype
    counters.clear()
    compiled = torch.compile(function, fullgraph=True)
    results = compiled(*(tuple(t.to(device) for t in of_dtype) for of_dtype in inputs))
    lines = customops.inductor.rewrites()
    for dtype, found, right in zip(dtypes, results, expected, strict=True):
        bools = dtype == torch.bool and device == "cpu"  # whose bytes in memory may be any
        float8 = dtype.is_floating_point and dtype.itemsize == 1 and device == "cuda"
        few = dtype == torch.float64 and device == "cpu"
        in_kernel = dtype.itemsize == 8 and not few or bools or float8
        of_dtype = [line for line in lines if f"({str(dtype).removeprefix('torch.')}[" in line]
        assert of_dtype and in_kernel == any(" -> kernel" in line for line in of_dtype), of_dtype
        # (A NaN is any NaN, as the docs say.)
        right = [tensor.to(device) for tensor in right]
        opspec.assert_same(found, right, opspec.ANY_NAN, dtype)


def test_one_of_two_results(device, monkeypatch):
    """What nobody reads is not looked for."""
    wanted, loop = [], lowering.Loop

    def recorded(*args, values, indices):
        wanted.append((values, indices))
        return loop(*args, values=values, indices=indices)

    monkeypatch.setattr(lowering, "Loop", recorded)

    def of_one(x):
        x = x.roll(1, 1)
        values = customops.max(x, 1)[0], customops.min(x, -1, True).values
        masks = x[:, :1] == x[:1, :1], x != x[:1]
        values += customops.min(x, 1, mask=masks[0])[0], customops.max(x, 0, mask=masks[1])[0]
        return *values, customops.min(x, 0).indices, *customops.max(x, 2)

    def function(inputs):  # to compile one graph takes less
        return [of_one(x) for x in inputs]

    dtypes = [torch.bfloat16, torch.float32, torch.int64]
    dtypes += [torch.uint8, torch.bool] * (device == "cuda")
    compiled = torch.compile(function, fullgraph=True)
    for kind in ("special", "ties"):
        inputs = [data.make((40, 600, 30), dtype, kind) for dtype in dtypes]
        results = compiled([x.to(device) for x in inputs])
        for x, found, expected in zip(inputs, results, function(inputs), strict=True):
            expected = tuple(tensor.to(device) for tensor in expected)
            opspec.assert_same(found[:4], expected[:4], opspec.NUMBERS, x.dtype)
            opspec.assert_same(found[4:], expected[4:], opspec.ANY_NAN, x.dtype)
    assert wanted == ([(True, False)] * 4 + [(False, True), (True, True)]) * len(dtypes)


@with_devices(
    "case, device",
    [((7, 100), "min"), ((3, 100, 50), "max")],
    [((2, 600, 1024), "min"), ((2048, 600), "max")],
)
def test_a_value_alone(case, device):
    """On a GPU no buffer is written in place of another."""
    shape, end = case
    operator = getattr(customops, end)

    def function(x, y):
        return operator(choose(x, y), 1)[0]

    compiled, code = torch.compile(function, fullgraph=True, dynamic=False), None
    for kind in POOLS:
        inputs = operands(shape, device, kind)
        if code is None:
            actual, (code,) = run_and_get_code(compiled, *inputs)
            assert device == "cpu" or "in_out_ptr" not in code
            assert not look_at(code)[0]
        else:
            actual = compiled(*inputs)
        opspec.assert_same(actual, function(*inputs), opspec.NUMBERS, kind)


@with_devices(
    "case, device",
    [
        ((600, 100), 0, torch.float16),
        ((100, 130), 1, torch.float32),
        ((3, 5000, 7), 1, torch.float64),
    ],
    [((600, 100), 0, torch.float32), ((3, 5000, 7), 1, torch.float32)],
)
def test_a_value_alone_of_any_size(case, device):
    """Sizes are symbols, which have 64 bits where Inductor may take indices for 32."""
    shape, dim, dtype = case

    def function(x, y):
        joined = torch.cat([x + 1, y], 1)
        return customops.min(torch.maximum(x, y), dim)[0], customops.max(joined, dim)[0]

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    for more in (0, 3):
        size = [n + more for n in shape]
        x, y = (data.make(size, dtype, kind).to(device) for kind in ("random", "ties"))
        opspec.assert_same(compiled(x, y), function(x, y), opspec.NUMBERS)


MASKS = torch.tensor([False] * 9 + [True])


@pytest.mark.parametrize("for_threads", [False, True])
def test_a_value_in_memory_keeps_its_bits(for_threads, monkeypatch, device):
    """Those of a NaN and the sign of a zero, with its index, alone and under a mask."""
    if for_threads:
        monkeypatch.setattr(loops.Loop, "for_threads", True)

    def of_one(x, mask):
        found = *customops.max(x, 1), customops.min(x, 2)[0]
        return *found, customops.min(x, 1, True, mask=mask)[0]

    def right(x, mask):
        found = *reference.max_(x, 1), reference.min_(x, 2)[0]
        return *found, reference.extreme_masked("min", x, mask, 1, True)[0]

    def function(inputs):  # to compile one graph takes less
        return [of_one(*of_dtype) for of_dtype in inputs]

    inputs = []
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float8_e5m2)
    for seed, dtype in enumerate(dtypes):
        pool = torch.cat([torch.tensor([0.0, -0.0] * 9).to(dtype), data.nans(dtype)])
        x, mask = (data.taken(p, data.picks(len(p), (3, 40, 24), seed)) for p in (pool, MASKS))
        inputs.append((x, mask))
    counters.clear()
    found = torch.compile(function, fullgraph=True)(
        [tuple(tensor.to(device) for tensor in of_dtype) for of_dtype in inputs]
    )
    for of_dtype, results in zip(inputs, found, strict=True):
        expected = tuple(tensor.to(device) for tensor in right(*of_dtype))
        dtype = of_dtype[0].dtype  # (Triton computes 16 bits in float32.)
        any_nan = device == "cuda" and dtype.itemsize == 2
        opspec.assert_same(results, expected, opspec.ANY_NAN if any_nan else opspec.EXACT, dtype)
    lines = customops.inductor.rewrites()
    assert any("(float32" in line and " -> loop" in line for line in lines)


def test_a_value_in_memory_is_looked_up_once():
    """On a CPU, and not for each element of what is computed of it: it is written."""
    x = data.make((20, 24), torch.float32, "ties")
    compiled = torch.compile(lambda x: x - customops.max(x, 0, True).values, fullgraph=True)
    result, (code, *_) = run_and_get_code(compiled, x)
    opspec.assert_same(result, x - reference.max_(x, 0, True)[0])
    allocated = [line for line in code.splitlines() if "= empty_strided_cpu((1, 24)" in line]
    assert sum("float32" in line for line in allocated) == 1


def test_why_a_value_in_memory_is_a_kernel():
    """Its position is looked for, though nobody asked for that."""
    x = data.make((70, 101), torch.float64, "ties")
    result, calls_ours, _ = compile_and_run(lambda x: customops.max(x, 1).values, x)
    opspec.assert_same(result, reference.max_(x, 1)[0])
    assert calls_ours and "read at its position" in customops.inductor.rewrites()[-1]


def test_equal_reductions_of_16_bits(device):
    """Of one minimum, two results: Inductor gave both a variable of one name."""

    def function(x, y):
        z = x * y
        scaled = (customops.scale_min(z, 2.0, 0), customops.scale_min(z, 4.0, 0, False))
        return *scaled, customops.min(z, 0)[0], customops.min(z, 0, True)[0]

    x, y = (data.make((33, 64), torch.float16, "ties", seed).to(device) for seed in range(2))
    compiled = torch.compile(function, fullgraph=True)
    opspec.assert_same(compiled(x, y), function(x, y), opspec.NUMBERS)


def test_int64_on_a_cpu():
    """Where elements are computed twice alike: the extreme, then the first that equals it."""

    def function(x):
        x = x * 3 - 1
        found = [*customops.max(x, 1), *customops.min(x, -1, True), customops.argmin(x, [0, 2])]
        return *found, customops.argmax(x.flip(0), 0)

    x = data.make((3, 40, 17), torch.int64, "special")
    for values in (x, x % 3, torch.zeros_like(x)):
        result, calls_ours, _ = compile_and_run(function, values)
        opspec.assert_same(tuple(result), function(values))
        assert not calls_ours
    assert compile_and_run(lambda x: customops.argmax((x / 7).exp().long(), 1), x)[1]


def test_positions_of_float64(device):
    """In rows of whole vectors Inductor's own, if the order of a NaN, zeros and ties is ours. A
    value that is zero has the sign of the element at the index."""

    def function(x):
        found = customops.argmax(x, 1), customops.argmin(x - 1, 1), customops.argmax(x[:, 1:], 1)
        found += (*customops.max(x, 1), *customops.min(x - 1, 1, True))
        return *found, customops.argmin(x.abs(), 0, True)

    counters.clear()
    compiled = torch.compile(lambda x: function(x * 1.5), fullgraph=True, dynamic=False)
    inputs = [operands((1100, 48), device, kind)[0].double() for kind in POOLS]
    inputs += [torch.full_like(inputs[0], value) for value in (-math.inf, math.nan)]
    for x in (*inputs, *(x[:9, :37] for x in inputs)):
        opspec.assert_same(compiled(x), function(x * 1.5), opspec.ANY_NAN, x)
    lines = customops.inductor.rewrites()
    for op in ("argmax", "max"):
        assert any(f"{op}(float64[1100, 48]" in line and " -> loop" in line for line in lines)


def test_an_index_is_no_larger_than_a_position():
    """Inductor makes one index of sums of indices, and Triton's may have 32 bits."""
    i = sympy.Symbol("i", integer=True, nonnegative=True)
    packed = keys.Packed.of(keys.Order(torch.float32, largest=True), 1 << 31, with_values=True)
    graph = V.set_graph_handler(SimpleNamespace(sizevars=SizeVarAllocator()))
    with graph, V.set_ops_handler(IndexPropagation(V.MockHandler(), {i: 1 << 31}, {})):
        position, value = keys.index(i, torch.int64), ops.load("x", sympy.Integer(0))
        found = str(packed.pack(value, value, position))
    assert set(re.findall(r"index_expr\((.*?),", found)) == {"i"}


@pytest.mark.parametrize("end", ENDS)
def test_scales_of_float64(end, device):
    """Triton takes an index, and a number beside it, for 32 bits, whatever it becomes then."""
    scaled = getattr(customops, f"scale_{end}")
    compiled = torch.compile(lambda x, y: scaled(x + y, 0.5, 1), fullgraph=True, dynamic=False)
    few = ((15, 16),) if end == "min" else ((3, 3000),)
    for shape in few if device == "cpu" else ((15, 16), (64, 100), (3, 3000)):
        for kind in ("special", "zeros", "zeros above"):
            x, y = (x.double() for x in operands(shape, device, kind))
            expected = scaled(x + y, 0.5, 1)
            opspec.assert_same(compiled(x, y), expected, opspec.NUMBERS, (shape, kind))


def test_16_bits_that_become_32(device):
    """On a CPU a vector of 16 bits is several of 32, and more of 64."""

    def function(x):
        x = x.float() * 2
        return *customops.max(x, 1), customops.argmin(x, 2), customops.argmin(x, [0, 1])

    x = data.make((3, 40, 75), torch.bfloat16, "special").to(device)
    result, calls_ours, _ = compile_and_run(function, x)
    assert not calls_ours
    opspec.assert_same(tuple(result), function(x), opspec.ANY_NAN)


# Of few there is code for each.
@pytest.mark.parametrize("extent, dtype", [(5, torch.float16), (64, torch.bfloat16)], ids=str)
def test_a_product_of_16_bits_is_rounded_before_it_is_read(extent, dtype, device):
    def function(x, y):
        least = customops.scale_min(x + y, -0.3, 1, False)
        return least, least.float() * 3.0

    x, y = (torch.randn(5, extent, 33).to(device, dtype) for _ in range(2))
    result, calls_ours, _ = compile_and_run(function, x, y)
    opspec.assert_same(result, function(x, y))
    assert not calls_ours


def test_the_last_of_as_many_as_positions_have_room_for(device):
    """The largest integer, in the last place, is no less present for that."""
    a = torch.zeros(2, 1 << 16, dtype=torch.int16, device=device)
    a[:, -1] = torch.iinfo(torch.int16).max
    mask = torch.arange(1 << 16, device=device) == (1 << 16) - 1
    function = lambda a, mask: customops.argmin(a | 0, 1, mask=mask)  # noqa: E731
    result, _, _ = compile_and_run(function, a, mask)
    assert result.tolist() == [(1 << 16) - 1] * 2


def test_the_position_is_that_of_the_values_as_computed(device):
    """Of 16 bits, which Inductor computes in float32 and eager mode rounds in between."""
    x, y = (data.make((40, 300), torch.bfloat16, "smooth", seed).to(device) for seed in range(2))
    function = lambda x, y: customops.max(torch.sigmoid(x * 1.1 + y), 1)  # noqa: E731
    (values, indices), calls_ours, _ = compile_and_run(function, x, y)
    assert not calls_ours
    computed = torch.sigmoid(x.float() * 1.1 + y.float())
    chosen = computed.gather(1, indices[:, None])[:, 0]
    assert (chosen >= computed.amax(1) - 2**-8).all()
    torch.testing.assert_close(values, chosen.bfloat16(), rtol=2**-8, atol=0)
    # The first of those that round to the value.
    assert torch.equal(indices, (computed.bfloat16() == values[:, None]).int().argmax(1))


def test_what_is_read_along_a_dim(monkeypatch, device):
    """A bias, whose elements are neighbours, does not make columns rows."""
    monkeypatch.setattr(loops.Loop, "for_threads", True)
    found = []
    monkeypatch.setattr(loops, "plan", lambda extent, dim, reads, *_: found.append(reads))
    x, bias = torch.randn(4, 60, 19, device=device), torch.randn(60, 1, device=device)

    def function(x, b):
        return (
            customops.argmax(x + b, 1),
            customops.argmax(x + b.view(-1)[:19], 2),
            customops.argmax(x[:, :, 0] + b.view(-1), 1),
        )

    compile_and_run(function, x, bias)
    assert [reads.neighbours for reads in found] == [False, True, False]


def test_how_a_dim_is_cut():
    def cut(extent, **changed):
        names = ("neighbours", "rows", "fused", "reduced", "biased")
        usual = dict.fromkeys(names, False)
        reads = coarsening.Reads(**usual | dict(light=True) | changed)
        found = coarsening.plan(extent, 1, reads, True)
        return found and found.count

    assert [cut(n) for n in (7, 8, 32, 64, 65)] == [7, 8, 32, 8, None]
    # What Inductor fuses with a loop it does not fuse with one thread's code for each element.
    assert [cut(n, fused=True) for n in (7, 8, 32)] == [7, None, None]
    assert [cut(n, light=False) for n in (24, 25, 64, 65)] == [24, 4, 4, None]
    function = dict(neighbours=True, rows=True, light=False)
    assert [cut(n, **function) for n in (200, 1024, 2048)] == [4, None, None]
    assert [cut(n, biased=True) for n in (21, 64, 128, 150)] == [21, 4, 4, None]
    rows = dict(neighbours=True, rows=True)
    assert [cut(n, **rows) for n in (1000, 1024, 2048)] == [None, 4, 8]


@pytest.mark.parametrize("other", ["argmin", "softmax"])
def test_an_input_that_is_reduced_twice_is_read_once(other, device, monkeypatch):
    """On a GPU; a CPU's kernel is faster than a loop of Inductor's beside another."""
    monkeypatch.setattr(customops.inductor, "prefer", "auto")
    x = data.make((5000, 200), torch.float32, "ties").to(device)

    def function(x):
        return customops.argmax(x, 1), getattr(torch, other)(x, 1)

    (found, _), calls_ours, _ = compile_and_run(function, x)
    assert torch.equal(found, customops.argmax(x, 1))
    assert calls_ours == (device == "cpu")
    if other == "argmin":  # other groups
        (found, _), calls_ours, _ = compile_and_run(lambda x: (customops.argmax(x, 1), x.sum(0)), x)
        assert torch.equal(found, customops.argmax(x, 1)) and calls_ours


@with_devices("dtype, device", (torch.bfloat16, torch.float32), (torch.float16, torch.float64))
def test_softmax_max_of_what_is_computed(dtype, device, monkeypatch):
    """On a GPU a loop; the largest, infinite and NaN are those of eager mode."""
    monkeypatch.setattr(customops.inductor, "prefer", "auto")
    inf, nan, keepdim = float("inf"), float("nan"), dtype in (torch.bfloat16, torch.float64)
    x = torch.randn(3000, 200, generator=torch.Generator().manual_seed(0)) * 20
    x = x.to(dtype).to(device)
    x[:4, 5], x[:4, 9] = torch.tensor([nan, inf, -inf, inf]), torch.tensor([nan, nan, inf, inf])
    x[4] = -inf

    def function(x, factor):
        return tuple(customops.softmax_max(x * factor, 1, keepdim))

    # Products of 16 bits are rounded, where a loop has more bits of them; others only if exact.
    factor = 1.3 if dtype.itemsize == 2 else -1.0
    result, calls_ours, _ = compile_and_run(partial(function, factor=factor), x)
    assert calls_ours == (device == "cpu")
    assert (torch.compile(function)(x, 1.3)[0] > 1).sum() == 0
    expected = reference.softmax_max(x.cpu() * factor, 1, keepdim)
    tolerance = opspec.Tolerance(any_nan=True, ulps=4)
    opspec.assert_same([r.cpu() for r in result], expected, tolerance)
    assert "reduceops.softmax_max" in customops.inductor.rewrites()[-1]


@with_devices("dtype, device", [torch.bfloat16], [torch.float32])
def test_softmax_max_whose_index_is_not_used(dtype, device, monkeypatch):
    """No loop finds a position; on a CPU either, where a kernel is preferred."""
    monkeypatch.setattr(SoftmaxLoop, "choose", lambda *_: choice.Choice(True, ""))
    x = (torch.randn(3000, 200, generator=torch.Generator().manual_seed(0)) * 20).to(dtype)
    x[0, 7], x[1, 7], x[2] = float("nan"), -float("inf"), float("inf")

    def function(x):
        return tuple(customops.softmax_max(-x, 1))

    expected = reference.softmax_max(-x, 1)
    for count in (1, 2):
        compiled = torch.compile(lambda x, count=count: function(x)[:count], fullgraph=True)
        result, (code, *_) = run_and_get_code(compiled, x.to(device))
        tolerance = opspec.Tolerance(any_nan=True, ulps=4)
        opspec.assert_same([r.cpu() for r in result], expected[:count], tolerance)
        assert any(pointer in code for pointer in ("int64_t*", "*i64")) == (count == 2)


def test_a_scan_is_fused_with_a_reduction_of_the_same_groups(device, monkeypatch):
    monkeypatch.setattr(customops.inductor, "prefer", "auto")
    x = torch.randint(-3, 4, (4000, 33), device=device).float()
    result, calls_ours, _ = compile_and_run(lambda x: customops.argmax(x.cumsum(1), 1), x)
    assert torch.equal(result, x.cumsum(1).argmax(1))
    assert bool(calls_ours) == (device == "cpu")  # where a library scans
    scan = object.__new__(ir.Scan)
    object.__setattr__(scan, "scan_ranges", [sympy.Integer(33)])
    with V.set_graph_handler(SimpleNamespace(sizevars=SizeVarAllocator())):
        computed = [loops._is_computed(scan, sympy.Integer(n)) for n in (33, 40)]
    assert computed == [True, False]


def test_the_choice():
    def of(**changed):
        usual = dict(device="cuda", groups=1 << 16, extent=1 << 10, itemsize=4)
        return Facts(**usual | dict(stored=False, written=False, indices=True) | changed)

    assert choice.choose(of()).loop and choice.choose(of(device="cpu")).loop
    assert "in memory" in choice.choose(of(stored=True)).reason
    assert choice.choose(of(stored=True, shared=True)).loop  # it reads what is read anyhow
    few = dict(stored=True, groups=4, extent=16)
    assert choice.choose(of(**few, read=True)).loop  # in the launch of what is computed of it
    assert not choice.choose(of(stored=True, read=True)).loop
    assert choice.choose(of(**few, device="cpu")).loop and not choice.choose(of(**few)).loop
    half = dict(device="cpu", itemsize=2)
    assert not choice.choose(of(**half)).loop
    assert choice.choose(of(**half, indices=False)).loop
    assert choice.choose(of(**half, groups=1, extent=16)).loop  # it takes less than a call
    assert not choice.choose(of(device="cpu", reads_bools=True)).loop
    assert choice.choose(of(device="cpu", stored=True, mask=1 << 26)).loop
    assert choice.choose(of(**half), "loop").loop
    assert not choice.choose(of(), "kernel").loop
    (loop, kernel), (same, less) = choice.seconds(of()), choice.seconds(of(written=True))
    assert loop == same and kernel > less
    with pytest.raises(ValueError, match="prefer must be one of auto, loop, kernel, got 'loops'"):
        customops.inductor.prefer = "loops"


WRITTEN = {
    "an output": lambda h: h.view(-1),
    "mm": lambda h: h[0] @ torch.ones(4, 2),
    "addmm": lambda h: nn.functional.linear(h[0], torch.ones(2, 4), torch.ones(2)),
    "bmm": lambda h: h @ torch.ones(3, 4, 2),
    "baddbmm": lambda h: torch.baddbmm(torch.ones(3, 4, 2), h, torch.ones(3, 4, 2)),
    "convolution": lambda h: nn.functional.conv1d(h, torch.ones(1, 4, 1)),
    "a library": torch.linalg.inv,
}


@pytest.mark.parametrize("read", [*WRITTEN.values(), torch.exp], ids=[*WRITTEN, "exp"])
def test_what_others_read_in_memory_is_written(read):
    def function(x):
        h = x.relu()
        return read(h), customops.argmax(h, 1)

    graph = make_fx(function)(torch.eye(4).expand(3, 4, 4)).graph
    node = next(n for n in graph.nodes if n.target == torch.ops.reduceops.argmax.default)
    assert loops._is_written(node) == (read is not torch.exp)


def test_a_dynamic_extent(device):
    """It is a loop, and one for all that positions have room for."""
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(lambda x: customops.max(x.exp(), 1), fullgraph=True)
    for extent in (5, 90, 31):
        x = data.make((4, extent, 6), torch.float32, "ties").to(device)
        torch._dynamo.mark_dynamic(x, 1)
        values, indices = compiled(x)
        assert torch.equal(indices, customops.argmax(x, 1))
        torch.testing.assert_close(values, x.exp().amax(1))
    assert counters["stats"]["unique_graphs"] == 1
    assert " -> loop" in customops.inductor.rewrites()[-1]


OF_COLUMNS = {
    "argmin": lambda x: customops.argmin(x + 1, 0),
    "argmax of an input": lambda x: customops.argmax(x, 0),
    "max": lambda x: customops.max(x + 1, 0),
    "a value": lambda x: customops.min(x + 1, 0).values,
    "a mask": lambda x: customops.max(x + 1, 0, mask=x > 0),
    "scale_min": lambda x: customops.scale_min(x + 1, 2.0, 0),
}


@pytest.mark.parametrize(
    "name, prefer",
    [*((name, "loop") for name in OF_COLUMNS), ("argmin", "kernel"), ("a mask", "kernel")],
)
@torch.fx.experimental._config.patch(backed_size_oblivious=True)
def test_an_empty_dim_for_which_torch_has_no_guard(name, prefer, monkeypatch, device):
    function = OF_COLUMNS[name]
    monkeypatch.setattr(customops.inductor, "prefer", prefer)
    full, empty = (torch.randn(n, 4, device=device) for n in (8, 0))
    for first in (full, empty):
        torch._dynamo.reset()
        compiled = torch.compile(function, dynamic=True)
        for x in (first, empty, full):
            if x is full:
                opspec.assert_same(compiled(x), function(x))
                continue
            with pytest.raises((IndexError, RuntimeError), match="dim 0, which has size 0"):
                compiled(x)


@torch.fx.experimental._config.patch(backed_size_oblivious=True)
def test_a_part_that_is_empty_for_which_torch_has_no_guard(device):
    compiled = torch.compile(lambda x: customops.argmin(x[2:] + 1, 0))
    full, two = (torch.randn(n, 4, device=device) for n in (8, 2))
    torch._dynamo.mark_dynamic(full, 0, min=2, max=100)
    assert torch.equal(compiled(full), customops.argmin(full[2:] + 1, 0))
    with pytest.raises((IndexError, RuntimeError), match="dim 0, which has size 0"):
        compiled(two)


@pytest.mark.parametrize("prefer", ["loop", "kernel"])
@torch.fx.experimental._config.patch(backed_size_oblivious=True)
def test_a_mask_that_broadcasts_where_torch_has_no_guard(prefer, monkeypatch, device):
    """A graph is made for a size of 1, as torch's own broadcasting makes one."""
    monkeypatch.setattr(customops.inductor, "prefer", prefer)

    def function(x, mask):
        return customops.max(x + 1, 0, mask=mask)

    x = torch.randn(8, 4, device=device)
    every = ((1, 4), (8, 4)), ((8, 4), (8, 1)), ((1,), (4,), (1, 1))
    for shapes in every if prefer == "loop" else every[:1]:
        torch._dynamo.reset()
        compiled = torch.compile(function, dynamic=True)
        for mask in (torch.rand(shape, device=device) > 0.5 for shape in shapes):
            opspec.assert_same(compiled(x, mask), function(x, mask))
    with pytest.raises(RuntimeError, match="a mask of shape .* does not broadcast"):
        compiled(x, torch.ones(3, 4, dtype=torch.bool, device=device))


def test_an_extent_that_is_an_int_of_the_program(device):
    compiled = torch.compile(lambda x, n: customops.argmax(x[:, :n] * 2, 1))
    x = torch.randn(64, 100, device=device)
    for n in (10, 20, 30):
        assert torch.equal(compiled(x, n), customops.argmax(x[:, :n] * 2, 1))
        assert " -> loop" in customops.inductor.rewrites()[-1]
    with pytest.raises((IndexError, RuntimeError), match="size 0"):
        compiled(x, 0)


def test_an_inductor_without_what_it_takes(monkeypatch, device):
    monkeypatch.delattr(customops.inductor, "lowering")
    monkeypatch.setitem(sys.modules, "customops.inductor.lowering", None)  # its import fails
    op = torch.ops.reduceops.scale_min.default
    monkeypatch.delitem(inductor_lowering.lowerings, op, raising=False)
    fake._register_lowerings.cache_clear()
    try:
        x, y = operands((3, 40, 17), device)
        result, calls_ours, _ = compile_and_run(lambda x, y: customops.scale_min(x + y, 2.0), x, y)
    finally:
        fake._register_lowerings.cache_clear()
    assert calls_ours
    opspec.assert_same(result, reference.scale_min(x + y, 2.0))


@pytest.mark.parametrize("name", ["Reduction", "Pointwise"])
def test_an_inductor_whose_internals_fail_when_called(name, monkeypatch, device):
    monkeypatch.setattr(loops, "ir", SimpleNamespace(**{**vars(ir), name: None}))
    x, y = operands((3, 40, 17), device)
    with TestCase().assertLogs("customops.inductor", "WARNING") as logged:
        result, calls_ours, _ = compile_and_run(lambda x, y: customops.scale_min(x + y, 2.0), x, y)
    assert calls_ours and "not fused" in logged.output[0]
    opspec.assert_same(result, reference.scale_min(x + y, 2.0))


def test_a_cache_does_not_serve_the_code_of_another_lowering(monkeypatch, tmp_path, device):
    def compile_anew():
        torch._dynamo.reset()
        fake._register_lowerings.cache_clear()
        counters.clear()
        compile_and_run(lambda x, y: customops.scale_min(x + y, 2.0), x, y)
        return counters["inductor"]["fxgraph_cache_hit"]

    x, y = operands((3, 40, 17), device)
    with torch.compiler.config.patch(cache_key_tag="theirs;"):
        assert [compile_anew() for _ in range(2)] == [0, 1]
        assert "theirs;" in torch.compiler.config.cache_key_tag
    for change in (
        lambda: monkeypatch.setattr(caches, "version", lambda: "another"),
        lambda: monkeypatch.setattr(customops.inductor, "prefer", "kernel"),
    ):
        change()
        with torch.compiler.config.patch(cache_key_tag="theirs;"):
            assert [compile_anew() for _ in range(2)] == [0, 1]


def test_the_caches_know_one_version_of_the_package_from_another(monkeypatch, tmp_path):
    """What a gradient or a check adds to a graph is in torch's caches too."""
    names = ("inductor/loops.py", "_register/autograd.py", "distributed/exchange.py", "checks.py")
    for name in (*names, "bench/cases.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(caches, "__file__", str(tmp_path / "_register" / "caches.py"))
    versions = [caches.version.__wrapped__()]
    for name in names:
        (tmp_path / name).write_text("another")
        versions.append(caches.version.__wrapped__())
    assert len(set(versions)) == 1 + len(names)
    (tmp_path / "bench/cases.py").write_text("another")
    (tmp_path / ".#checks.py").symlink_to("nothing")  # of an editor
    assert caches.version.__wrapped__() == versions[-1]
    monkeypatch.setattr(caches, "__version__", "another")  # all there is without the sources
    assert caches.version.__wrapped__() != versions[-1]


def test_the_caches_know_from_the_start():
    """Before anything is traced, and in every thread."""
    tags = []
    read = lambda: tags.append(torch.compiler.config.cache_key_tag)  # noqa: E731
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    has_avx512 = torch.cpu._is_avx512_supported()
    vectors = f"{torch.backends.cpu.get_cpu_capability()},{has_avx512}"
    assert f"customops.inductor={caches.version()},loop,{vectors};" in tags[0]
    code = "import customops, torch; print(torch.compiler.config.cache_key_tag)"
    found = python("-c", code, TORCH_COMPILE_CACHE_KEY_TAG="theirs;")
    tag = f"customops.inductor={caches.version()},auto,{vectors};"
    assert found.stdout.strip() == f"theirs;{tag}"


def test_the_caches_know_after_a_patch_has_ended(device):
    """Of torch's configuration, within which the lowering was first used."""

    def compile_anew():
        torch._dynamo.reset()
        compile_and_run(lambda x, y: customops.scale_min(x + y, 2.0), x, y)
        return torch.compiler.config.cache_key_tag

    x, y = operands((3, 40, 17), device)
    with torch.compiler.config.patch(cache_key_tag=""):
        with torch.compiler.config.patch(cache_key_tag="theirs;"):
            fake._register_lowerings.cache_clear()
            first = compile_anew()
        assert torch.compiler.config.cache_key_tag == ""
        assert first == "theirs;" + compile_anew() == "theirs;" + compile_anew() != "theirs;"


def test_two_threads_register_once(monkeypatch):
    """What is wrapped twice takes twice as long."""
    registered, others = [], threading.Barrier(2)

    def register():
        registered.append(threading.get_ident())
        time.sleep(0.1)

    def trace():
        others.wait()
        fake._use_lowerings()

    monkeypatch.setattr(lowering, "register", register)
    fake._register_lowerings.cache_clear()
    threads = [threading.Thread(target=trace) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fake._register_lowerings.cache_clear()
    assert len(registered) == 1


@pytest.mark.parametrize("error", [AssertionError, KeyError])
def test_an_inductor_that_refuses_the_registration(error, monkeypatch, device):
    """Of the second operator: both work, and nobody tries again at every call."""
    calls, register = [], lowering._register

    def fails(op, loop):
        if op is torch.ops.reduceops.scale_max.default:
            calls.append(op)
            raise error("not this Inductor")
        register(op, loop)

    monkeypatch.setattr(lowering, "_register", fails)
    monkeypatch.delitem(
        inductor_lowering.lowerings, torch.ops.reduceops.scale_max.default, raising=False
    )
    fake._register_lowerings.cache_clear()
    x, y = operands((3, 40, 17), device)
    try:
        for end in ENDS:
            operator = getattr(customops, f"scale_{end}")
            function = lambda x, y, operator=operator: operator(x + y, 2.0)  # noqa: E731
            result, calls_ours, _ = compile_and_run(function, x, y)
            assert calls_ours == (end == "max")
            expected = getattr(reference, f"scale_{end}")(x + y, 2.0)
            opspec.assert_same(
                result, expected, tolerance=opspec.EXACT if device == "cuda" else opspec.ANY_NAN
            )
    finally:
        fake._register_lowerings.cache_clear()
    assert len(calls) == 1


def test_aot_inductor(tmp_path, device):
    """A package takes any size of a dynamic dim, and an empty one is an error."""

    class Model(nn.Module):
        def forward(self, x, y):
            z = choose(x, y)
            return customops.scale_min(z, -2.0, 2), *customops.max(z, 1)

    inputs = tuple(operands((3, 40, 17), device, "zeros below"))
    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    program = torch.export.export(Model(), inputs, dynamic_shapes=(sizes, sizes))
    counters.clear()
    path = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "model.pt2")
    )
    scaled, found = sorted(customops.inductor.rewrites(), reverse=True)
    assert " -> loop" in scaled and "its extent may be 0" in found
    package = torch._inductor.aoti_load_package(path)
    least, *extremes = package(*inputs)
    opspec.assert_same(least, reference.scale_min(choose(*inputs), -2.0, 2), opspec.NUMBERS)
    opspec.assert_same(extremes, customops.max(choose(*inputs), 1), opspec.ANY_NAN)
    with pytest.raises(RuntimeError):
        package(*(x[:, :0] for x in inputs))


@NO_CUDA
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_convolution(layout, monkeypatch):
    """Its bias, the scale and the minimum are one kernel, which reads what the library wrote."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    convolution = nn.Conv2d(16, 32, 3).cuda().to(memory_format=layout)
    x = data.make((4, 16, 30, 30), torch.float32, "smooth").cuda().to(memory_format=layout)

    @torch.no_grad()
    def function(x):
        return customops.scale_min(convolution(x), 2.0)

    result, calls_ours, _ = compile_and_run(function, x)
    assert not calls_ours
    with torch.no_grad():
        expected = (convolution(x) * 2.0).amin(1, keepdim=True)
    # Another algorithm may be chosen.
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)


def test_random_graphs(monkeypatch):
    """A few of `make fuzz-graphs`."""
    import fuzz_graphs

    monkeypatch.setattr(fuzz_graphs, "KINDS_OF_A_GRAPH", 3)
    count, wrong = fuzz_graphs.run(("ci/0", "cpu", 4))
    assert count and not wrong, wrong
