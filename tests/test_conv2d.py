"""conv2d_scale_min and conv2d_scale_max are a convolution, a product and its extreme channel."""

import gc
import itertools
import math
import weakref
from concurrent.futures import ThreadPoolExecutor

import graphs
import numpy
import pytest
import torch
from conftest import NO_CUDA, python_after_torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import customops
from customops import libraries
from customops._register import conv2d
from customops._torch_private import are_transforms_active
from customops.inductor import convolution

ops = torch.ops.reduceops
NAMES = ("conv2d_scale_min", "conv2d_scale_max")
SCALE = -1.5
FUSED = libraries.cuda.loaded and libraries.cuda.ask("reduceops_cuda_not_fused") is None

each_name = pytest.mark.parametrize("name", NAMES)
each_dtype = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str
)


def expected_of(name, input, weight, bias=None, scale=SCALE, dim=1, keepdim=True, **how):
    """By torch alone, the convolution in float64 for those that are not NaN or infinite."""
    reduce = getattr(torch, name[-3:])
    convolved = nn.functional.conv2d(input, weight, bias, **how)
    return reduce(convolved * scale, dim, keepdim)[0]


def exact_of(name, input, weight, bias=None, **options):
    wide = [x if x is None else x.double() for x in (input, weight, bias)]
    return expected_of(name, *wide, **options)


def make(input, weight, device, dtype=torch.float32, bias=True, layout=torch.contiguous_format):
    torch.manual_seed(0)
    scale = math.prod(weight[1:]) ** -0.5
    tensors = torch.randn(input), torch.randn(weight) * scale
    if len(input) == 4:
        tensors = [x.contiguous(memory_format=layout) for x in tensors]
    tensors = [x.to(device, dtype) for x in tensors]
    return *tensors, torch.randn(weight[0]).to(device, dtype) if bias else None


# Rounding of inputs (TF32 on a GPU), of the convolution and of the product.
TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 3e-3,
    torch.float16: 1e-2,
    torch.bfloat16: 6e-2,
}


def assert_close(actual, expected, dtype, context=None):
    assert (actual.shape, actual.dtype) == (expected.shape, dtype), context
    tolerance = TOLERANCES[dtype]
    if dtype == torch.float32 and not actual.is_cuda:
        tolerance = 1e-5
    near = torch.allclose(actual.double(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert near, (context, (actual - expected).abs().max())


# (input shape, weight shape, how)
SHAPES = [
    ((2, 64, 17, 19), (128, 64, 3, 3), {}),
    ((3, 16, 12, 9), (96, 16, 3, 2), {"stride": 2, "padding": (2, 1)}),
    ((2, 8, 21, 20), (36, 8, 3, 3), {"dilation": (2, 3), "stride": (1, 2), "padding": 3}),
    ((1, 32, 14, 14), (256, 32, 1, 1), {}),
    ((2, 8, 9, 9), (16, 4, 3, 3), {"groups": 2, "padding": 1}),
    ((2, 3, 23, 23), (5, 3, 7, 7), {"stride": 2, "padding": 3}),
    ((2, 4, 6, 7), (6, 4, 4, 2), {"padding": "same"}),
    ((4, 6, 7), (4, 4, 3, 3), {"padding": "valid"}),
]


@each_name
@each_dtype
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_shapes(name, dtype, layout, device):
    layout = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    for number, (input, weight, how) in enumerate(SHAPES):
        if len(input) == 3:
            weight = (weight[0], input[0], *weight[2:])
        x, w, b = make(input, weight, device, dtype, bias=number % 3 != 1, layout=layout)
        given = [t.clone() for t in (x, w)]
        for dim, keepdim in ((1, True), (-3, False), (-1, True)) if number < 2 else ((1, False),):
            options = {**how, "dim": dim, "keepdim": keepdim}
            actual = getattr(customops, name)(x, w, b, SCALE, **options)
            expected = exact_of(name, x, w, b, scale=SCALE, **options)
            assert_close(actual, expected, dtype, (input, weight, options))
            assert actual.is_contiguous()
        assert torch.equal(x, given[0]) and torch.equal(w, given[1])


@each_name
def test_other_strides(name, device):
    """Sliced, transposed and expanded operands, and an odd storage offset."""
    x, w, b = make((4, 24, 15, 17), (64, 24, 3, 3), device)
    views = [
        (x[1:, ::3], w[:, ::3]),
        (x[:, :16, :, 1:], w[:, 8:]),
        (x.transpose(2, 3), w.transpose(2, 3)),
        (x[:1].expand(3, -1, -1, -1), w[:1].expand(32, -1, -1, -1)),
        (x.contiguous(memory_format=torch.channels_last)[:, :, 2:-1, 1:], w),
        (x[:, 4:20], w[:, 4:20].contiguous(memory_format=torch.channels_last)),
    ]
    for number, (input, weight) in enumerate(views):
        bias = b[: weight.shape[0]]
        actual = getattr(customops, name)(input, weight, bias, SCALE)
        assert_close(actual, exact_of(name, input, weight, bias), x.dtype, number)
    actual = getattr(customops, name)(x[2], w, b, SCALE, dim=0)  # without a batch
    assert_close(actual, exact_of(name, x[2], w, b, dim=0), x.dtype)


@each_name
@pytest.mark.parametrize("padding, stride", [(0, 1), (2, 1), (3, 2)])
def test_slices_of_a_large_call(name, padding, stride):
    """Over the batch, and over the rows of an image."""
    how = {"padding": padding, "stride": stride, "dilation": (2, 1)}
    calls = [((12, 2, 100, 101), 96, how), ((1, 2, 300, 303), 128, how)]
    if padding == 3:  # slices that are all padding
        calls.append(((1, 2, 64, 900), 96, {"padding": (60, 1)}))
    if padding == 2:  # slices that are mostly what is around them
        calls.append(((1, 1, 90, 2100), 96, {"padding": (30, 1), "dilation": (30, 1)}))
    for shape, filters, how in calls:
        x, w, b = make((shape[0] + 1, *shape[1:]), (filters, shape[1], 3, 3), "cpu")
        x = x[1:]
        actual = getattr(customops, name)(x, w, b, SCALE, **how)
        assert_close(actual, exact_of(name, x, w, b, **how), x.dtype, (shape, how))


@each_name
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_nan_and_infinities(name, dtype, device):
    """A NaN in any channel is the answer; infinities are ordinary."""
    for sign, layout in itertools.product((1, -1), (torch.contiguous_format, torch.channels_last)):
        x, w, b = make((2, 16, 24, 24), (64, 16, 3, 3), device, dtype, layout=layout)
        w = w.abs() * sign + 0.01
        x[0, 3, 4, 4], x[0, 5, 4, 20], x[0, 5, 20, 4] = math.nan, math.inf, -math.inf
        x[1, :, :8, :8], x[1, :, 16:, 16:] = math.inf, -math.inf
        x[1, 0, 16, 4], x[1, 1, 16, 4] = math.inf, -math.inf
        for weight, bias in ((w, b), (w - w.mean(), b), (w, torch.full_like(b, -math.inf))):
            actual = getattr(customops, name)(x, weight, bias, SCALE)
            expected = expected_of(name, x, weight, bias)
            for kind in (torch.isnan, torch.isposinf, torch.isneginf):
                assert torch.equal(kind(actual), kind(expected)), (sign, kind)
        nowhere = torch.zeros_like(b)
        nowhere[7] = math.nan
        assert getattr(customops, name)(x, w, nowhere, SCALE).isnan().all()


@each_name
@pytest.mark.parametrize("scale", [0.0, math.inf, math.nan, 1e38])
def test_scales(name, scale, device):
    x, w, b = make((2, 16, 8, 8), (64, 16, 3, 3), device)
    actual = getattr(customops, name)(x, w, b, scale)
    expected = expected_of(name, x, w, b, scale=scale)
    torch.testing.assert_close(actual, expected, rtol=1e-2, atol=1e-2, equal_nan=True)


@each_name
def test_other_names_and_types_of_arguments(name):
    x, w, b = make((2, 4, 8, 8), (6, 4, 3, 3), "cpu")
    call, one = getattr(customops, name), numpy.int64(1)
    assert torch.equal(
        call(x, w, b, SCALE, one, [one], axis=-1, keepdims=False),
        call(x, w, b, SCALE, (1, 1), 1, dim=3, keepdim=False),
    )


@each_name
def test_an_empty_batch(name, device):
    x, w, b = make((0, 4, 8, 8), (6, 4, 3, 3), device)
    assert getattr(customops, name)(x, w, b, SCALE).shape == (0, 1, 6, 6)
    text = r"cannot reduce over dim 0, which has size 0 \(input shape \[0, 4, 8, 8\]\)"
    for device in (x.device, "meta"):
        with pytest.raises(IndexError, match=text):
            getattr(customops, name)(x.to(device), w.to(device), b.to(device), SCALE, dim=0)


# (what is wrong, the exception of customops.*, text); `ones` makes tensors of one device and dtype
def bad_calls():
    ones = torch.ones
    x, w, b = ones(2, 4, 8, 8), ones(6, 4, 3, 3), ones(6)
    floats = "(float16, bfloat16, float32, float64)"
    yield (x[0, 0], w, b, 2.0), {}, "input must be 3-d (unbatched) or 4-d, got shape [8, 8]"
    yield (x, w[0], b, 2.0), {}, "weight must be 4-d, got shape [4, 3, 3]"
    yield (
        *((x, w[:, :3], b, 2.0), {}),
        "weight of shape [6, 3, 3, 3] with groups=1 needs an input of 3 channels, got 4 "
        "(input shape [2, 4, 8, 8])",
    )
    yield (
        *((x, w[:5, :2], b[:5], 2.0), {"groups": 2}),
        "weight of shape [5, 2, 3, 3] cannot be divided into 2 groups of filters",
    )
    yield (x, w, b, 2.0), {"groups": 0}, "groups must be at least 1, got 0"
    yield (x, w, b[:5], 2.0), {}, "bias must have the shape [6], got [5]"
    yield (
        *((x[:, :, :2], w, b, 2.0), {}),
        "the kernel, 3 long, is larger than the padded input, 2 (input shape [2, 4, 2, 8], weight "
        "shape [6, 4, 3, 3])",
    )
    for size in ((2, 4, 0, 900), (4, 900, 0)):
        yield (
            *((ones(size), ones(96, 4, 3, 3), None, 2.0), {"padding": 60}),
            f"cannot convolve input of shape {list(size)} with weight of shape [96, 4, 3, 3]",
        )
    yield (
        *((x, w, b, torch.tensor(2.0)), {"dim": 4}),
        "dim 4 is out of range for a 4-d tensor (valid: -4 to 3)",
    )
    yield (x, w, b, 2.0), {"stride": [1, 0]}, "stride must be at least 1, got [1, 0]"
    yield (x, w, b, 2.0), {"padding": [-1, 0]}, "padding must be at least 0, got [-1, 0]"
    yield (x, w, b, 2.0), {"dilation": [0, 0]}, "dilation must be at least 1, got [0, 0]"
    yield (x, w, b, 2.0), {"stride": [1, 1, 1]}, "stride must be one number or two, got [1, 1, 1]"
    yield (
        *((x.int(), w.int(), None, 2.0), {}),
        f"the input must be a floating-point tensor {floats}, got int32",
    )
    yield (x, w.double(), b, 2.0), {}, "weight must have the dtype of input, float32, got float64"
    yield (x, w, b.half(), 2.0), {}, "bias must have the dtype of input, float32, got float16"
    place = f"weight must be on the device of input, {x.device}, got meta"
    yield (x, w.to("meta"), b, 2.0), {}, place
    kind = "weight must be a strided tensor, got a sparse_coo one"
    yield (x, w.to_sparse(), b, 2.0), {}, kind
    yield (x, w, b, 2.0), {"dim": 4}, "dim 4 is out of range for a 4-d tensor (valid: -4 to 3)"


@pytest.mark.parametrize("argument", ["padding", "dilation"])
def test_what_is_too_large_is_named(argument):
    x, w, b = make((2, 4, 8, 8), (6, 4, 3, 3), "cpu")
    with pytest.raises(RuntimeError, match=f"{argument} is too large, {1 << 62}"):
        customops.conv2d_scale_min(x, w, b, SCALE, **{argument: 1 << 62})


@each_name
@pytest.mark.parametrize("argument", ["stride", "padding", "dilation", "groups"])
@pytest.mark.parametrize("number", [numpy.int64(2), torch.tensor(2), torch.tensor([2])], ids=repr)
def test_a_number_is_whatever_torch_takes_for_an_int(name, argument, number):
    x, w, b = make((2, 4, 8, 8), (6, 2 if argument == "groups" else 4, 3, 3), "cpu")
    actual = getattr(customops, name)(x, w, b, SCALE, **{argument: number})
    assert_close(actual, exact_of(name, x, w, b, **{argument: 2}), torch.float32)


@each_name
@pytest.mark.parametrize("dim, kind", [(9, IndexError), (0.5, TypeError), (1, RuntimeError)])
def test_an_error_keeps_no_input(name, dim, kind):
    """Once it is handled: a cycle would leave the memory to the garbage collector."""
    x, weight = torch.ones(1, 3, 4, 4), torch.ones(2, 3 if dim == 9 else 5, 1, 1)
    alive = weakref.ref(x)
    gc.disable()
    try:
        try:
            getattr(customops, name)(x, weight, None, 2.0, dim=dim)
        except kind:
            del x
        assert alive() is None
    finally:
        gc.enable()


@each_name
def test_errors(name):
    for arguments, options, text in bad_calls():
        text = f"reduceops::{name}: {text}"
        kind = IndexError if " out of range" in text else RuntimeError
        with pytest.raises(kind) as raised:
            getattr(customops, name)(*arguments, **options)
        assert str(raised.value) == text
        tensors = [x if x is None else x.to("meta") for x in arguments[:3]]
        if " device of " in text:
            tensors[1] = arguments[0]
        with pytest.raises(kind) as raised:
            getattr(customops, name)(*tensors, *arguments[3:], **options)
        assert str(raised.value) == text.replace("cpu, got meta", "meta, got cpu")
        training = [arguments[0].requires_grad_(arguments[0].is_floating_point()), *arguments[1:]]
        with pytest.raises(kind) as raised:
            getattr(customops, name)(*training, **options)
        assert str(raised.value) == text


@each_name
@pytest.mark.parametrize("scale", [2.0, torch.tensor(2.0)], ids=repr)
def test_an_input_of_another_layout(name, scale):
    for device in ("cpu", "meta"):
        x, w, b = make((2, 4, 8, 8), (6, 4, 3, 3), "cpu")
        with pytest.raises(RuntimeError, match=f"^reduceops::{name}: got a sparse_coo float32 "):
            getattr(customops, name)(x.to_sparse().to(device), w.to(device), b.to(device), scale)


@each_name
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_a_scale_that_is_a_tensor(name, backend, device):
    x, w, b = make((2, 4, 8, 8), (6, 4, 3, 3), device)
    scale = torch.tensor(-1.5, device=device, requires_grad=True)
    function = getattr(customops, name)
    if backend:
        function = torch.compile(function, backend=backend, fullgraph=True)
    results = function(x, w, b, scale), expected_of(name, x, w, b, scale=scale)
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(r.sum(), scale) for r in results))


@each_name
def test_same_padding_of_a_symbolic_dilation_is_no_graph_break(name, device):
    x, w, _ = make((2, 4, 12, 12), (6, 4, 3, 3), device)

    def call(x, w, dilation):
        return getattr(customops, name)(x, w, None, 2.0, padding="same", dilation=dilation)

    compiled = torch.compile(call, fullgraph=True, backend="eager")
    for dilation in (1, 2, 3):
        of = TOLERANCES[torch.float32]
        results = compiled(x, w, dilation), call(x, w, dilation)
        torch.testing.assert_close(*results, rtol=of, atol=of)
    with pytest.raises(RuntimeError):  # by torch's message, where a graph asks it of a symbol
        compiled(x, w, 0)


def test_the_numbers_of_a_module_are_left_out_where_they_are_defaults():
    """nn.Conv2d has tuples, which take torch microseconds to read, as lists do."""
    module = nn.Conv2d(4, 6, 3)
    given = (module.stride, module.padding, module.dilation)
    numbers = [customops.arguments.as_ints("op", "name", number) for number in given]
    assert [*conv2d.without_defaults((*numbers, module.groups, 1, True))] == []


@each_name
def test_errors_of_arguments_that_are_no_tensors(name, device):
    x, w, b = make((2, 4, 8, 8), (6, 4, 3, 3), device)
    call = getattr(customops, name)
    text = f"reduceops::{name}: scale must be a number or a 0-d tensor, got"
    with pytest.raises(TypeError, match=f"{text} str"):
        call(x, w, b, "2")
    with pytest.raises(TypeError, match=f"reduceops::{name}: weight must be a Tensor, got list"):
        call(x, [1.0], b, 2.0)
    with pytest.raises(TypeError, match=r"number or a 0-d tensor, got a tensor of shape \[1\]"):
        call(x, w, b, torch.ones(1))
    for wrong, text in (
        ({"stride": "2"}, "stride must be an int or a sequence of ints, got str"),
        ({"stride": [1, 2.5]}, "stride must be ints in a sequence, got float"),
        ({"dilation": [1, 2.5], "padding": "same"}, "dilation must be ints in a sequence, got"),
        ({"padding": None}, "padding must be an int, a sequence of ints, 'valid' or 'same', got"),
        ({"groups": 1.0}, "groups must be an int, got float"),
        ({"groups": [1]}, "groups must be an int, got list"),
        ({"groups": True}, "groups must be an int, got bool"),
        ({"groups": torch.tensor(1.5)}, "groups must be an int, got torch.Tensor"),
        ({"dim": None}, "dim must be an int, got None"),
        ({"keepdim": 0}, "keepdim must be a bool, got int"),
        ({"dim": 2, "axis": 2}, "dim and axis are one argument, and both are given"),
        (
            {"dims": 2},
            r"there is no argument 'dims' \(by keyword: dim \(or axis\), keepdim \(or keepdims\), "
            r"scale, stride, padding, dilation, groups\)",
        ),
    ):
        with pytest.raises(TypeError, match=f"reduceops::{name}: {text}"):
            call(x, w, b, 2.0, **wrong)
    # The operator itself, whose schema a tensor's scale does not go through.
    for scale, (wrong, text) in itertools.product(
        (torch.tensor(2.0), torch.tensor(2.0, requires_grad=True)),
        (
            ({"groups": "a"}, "groups must be an int, got str"),
            ({"stride": 1.5}, "stride must be an int or a sequence of ints, got float"),
            ({"padding": [1.5]}, "padding must be ints in a sequence, got float"),
            ({"dilation": None}, "dilation must be an int or a sequence of ints, got None"),
            ({"dim": "a"}, "dim must be an int, got str"),
            ({"keepdim": "a"}, "keepdim must be a bool, got str"),
        ),
    ):
        with pytest.raises(TypeError, match=f"reduceops::{name}: {text}"):
            getattr(torch.ops.reduceops, name)(x, w, b, scale, **wrong)
    number = torch.tensor([2])  # an int of a sequence, which is not what is wrong
    with pytest.raises(RuntimeError, match=f"^reduceops::{name}: .* channels"):
        call(x, w[:, :3], b, 2.0, stride=[number, 2])
    for argument in ("stride", "padding", "dilation", "groups"):
        with pytest.raises(RuntimeError, match=f"^reduceops::{name}: {argument} does not fit into"):
            call(x, w, b, 2.0, **{argument: 10**30})
    with pytest.raises(IndexError, match=f"^reduceops::{name}: dim {10**30} is out of range"):
        call(x, w, b, 2.0, dim=10**30)
    with pytest.raises(RuntimeError, match=f"^reduceops::{name}: scale is too large for a float$"):
        call(x, w, b, 10**400)
    with pytest.raises(RuntimeError, match="padding must be numbers, 'valid' or 'same', got 'no'"):
        call(x, w, b, 2.0, padding="no")
    with pytest.raises(RuntimeError, match="padding='same' needs a stride of 1"):
        call(x, w, b, 2.0, padding="same", stride=2)
    for wrong in (x.to_sparse(), x.to("cpu").to_mkldnn(), torch.nested.nested_tensor([x[0], x[1]])):
        with pytest.raises(RuntimeError, match=f"reduceops::{name}: "):
            call(wrong, w, b, 2.0)
    text = f"^reduceops::{name}: got a strided float32 tensor on mps"
    with FakeTensorMode(), pytest.raises(RuntimeError, match=text):
        call(*(torch.empty(size, device="mps") for size in (x.shape, w.shape)), None, 2.0)


@pytest.fixture(params=[False, True], ids=["two operators", "one operator"])
def as_one(request, monkeypatch):
    """With a gradient, too, as a GPU's kernel is called; where there is none it keeps indices."""
    if request.param:
        monkeypatch.setattr(
            conv2d, "_is_one_kernel", lambda *args: args[3] == 1 and not are_transforms_active()
        )
    return request.param


@each_name
def test_gradients(name, device, as_one):
    x, w, b = make((2, 4, 7, 6), (5, 2, 3, 2), device, torch.float64)
    leaves = [t.requires_grad_() for t in (x, w, b)]
    for how in ({"groups": 2, "stride": [2, 1], "padding": [1, 0]}, {"groups": 2, "dim": 2}):
        how = {"stride": [1, 1], **how}
        weight = w[:4] if how.get("groups") == 2 else w
        bias = b[:4]

        def function(x, w, b, how=how):
            return getattr(customops, name)(x, w, b, SCALE, **how)

        inputs = [t.detach().requires_grad_() for t in (x, weight, bias)]
        # A GPU's convolutions may add up in another order each time, and are not bit for bit equal.
        how_exact = {
            "fast_mode": name.endswith("max"),
            "nondet_tol": 0.0 if device == "cpu" else 1e-9,
        }
        torch.autograd.gradcheck(function, inputs, **how_exact)
        torch.autograd.gradgradcheck(function, inputs, **how_exact)
    for number, leaf in enumerate(leaves):  # each alone
        given = [t.detach() for t in leaves]
        given[number] = leaf
        grad = torch.autograd.grad(
            getattr(customops, name)(given[0], given[1][:4], given[2][:4], SCALE, groups=2).sum(),
            leaf,
        )[0]
        expected = torch.autograd.grad(
            expected_of(name, given[0], given[1][:4], given[2][:4], groups=2).sum(), leaf
        )[0]
        torch.testing.assert_close(grad, expected)


@each_name
def test_channels_have_a_shape_without_data(name):
    """As a tracer asks for it that meets a backward."""
    kept = torch.empty(2, 1, 6, 6, device="meta")
    x, w, _ = make((2, 4, 8, 8), (6, 4, 3, 3), "meta", bias=False)
    how = ([1, 1], [0, 0], [1, 1], 1, 1, True)
    found = ops._conv2d_scale_channels(x, w, None, SCALE, *how, kept, largest=name[-3:] == "max")
    assert (found.shape, found.dtype) == (kept.shape, torch.int64)


def on_gpu(channels):
    return make((2, channels, 40, 41), (128, channels, 3, 3), "cuda", layout=torch.channels_last)


@NO_CUDA
@each_name
def test_tf32_and_the_memory_of_one_cuda_kernel(name):
    x, w, b = on_gpu(64)
    call, exact = getattr(customops, name), exact_of(name, x, w, b)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        near = torch.allclose(call(x, w, b, SCALE).double(), exact, rtol=1e-5, atol=1e-5)
    assert near
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True, deterministic=True):
        assert_close(call(x, w, b, SCALE), exact, x.dtype)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call(x, w, b, SCALE)
        used = torch.cuda.max_memory_allocated() - before
    assert (used < 128 * exact.numel() * x.itemsize) == FUSED  # the convolution's result


@NO_CUDA
def test_filters_have_numbers_of_float32_in_one_cuda_kernel():
    for filters in (1 << 24, (1 << 24) + 1):
        why = convolution._why_not_fused(filters, 64, 3, 3, 1 << 12, 2)
        assert (why is None) == (FUSED and filters == 1 << 24)


@NO_CUDA
@each_name
@pytest.mark.parametrize("first", [True, False], ids=["first call", "second call"])
def test_a_captured_cuda_call(name, first):
    x, w, b = on_gpu(12 if first else 16)
    call = getattr(customops, name)
    if first:  # of this convolution; torch's have to be set up before
        nn.functional.conv2d(x, w, b)
    else:
        call(x, w, b, SCALE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(x, w, b, SCALE)
    for _ in range(2):
        x.normal_()
        graph.replay()
        assert_close(result, exact_of(name, x, w, b), x.dtype)


@NO_CUDA
@each_name
@pytest.mark.parametrize("shape, filters", [((3, 64, 32, 32), 128), ((2, 16, 40, 41), 320)])
def test_what_was_in_cuda_memory_before_is_no_part_of_a_result(name, shape, filters):
    """Of results that are there in turn, in the same memory."""
    x, w, b = make(shape, (filters, shape[1], 3, 3), "cuda", layout=torch.channels_last)
    for factor in (8, -8, 1, 0.5):
        exact = exact_of(name, x * factor, w, b, scale=2.0)
        for _ in range(3):
            actual = getattr(customops, name)(x * factor, w, b, 2.0)
            assert_close(actual / 8, exact / 8, x.dtype, factor)
            del actual


@NO_CUDA
@each_name
def test_threads_with_cuda_streams_of_their_own(name):
    """All make the first call."""
    x, w, b = on_gpu(20)
    expected = exact_of(name, x, w, b)
    torch.cuda.synchronize()

    def work(_):
        with torch.cuda.stream(torch.cuda.Stream()):
            results = [getattr(customops, name)(x, w, b, SCALE) for _ in range(20)]
            for result in results:
                assert_close(result, expected, x.dtype)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


@each_name
def test_without_a_gradient_nothing_is_saved(name, as_one):
    x, w, b = make((2, 4, 7, 6), (6, 4, 3, 2), "cpu")
    with torch.no_grad():
        assert getattr(customops, name)(x, w.requires_grad_(), b, SCALE).grad_fn is None
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        getattr(customops, name)(x, w, b, SCALE)
    assert max(t.numel() for t in saved) == x.numel()  # and not the convolution's result


def chosen_of(name, x, w, b, how, values, channels):
    """What the backward's operator found: whose element it is, and of NaNs the first."""
    convolved = nn.functional.conv2d(*(t.double() for t in (x, w, b)), **how) * SCALE
    at = convolved.gather(1, channels)
    specials = ~values.isfinite()
    expected = getattr(torch, name[-3:])(convolved, 1, True).indices
    assert torch.equal(channels[specials], expected[specials])
    assert_close(values[~specials], at[~specials], values.dtype, how)


@each_name
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_channels_that_a_backward_finds(name, dtype, device):
    """By the extremes that the forward has kept, where that was one kernel."""
    for layout, how in ((torch.channels_last, {}), (torch.contiguous_format, {"padding": 1})):
        x, w, b = make((2, 16, 40, 41), (96, 16, 3, 3), device, dtype, layout=layout)
        x[0, 3, 4, 4], x[1, 5, 4, 20] = math.nan, math.inf
        b[:3] = b[3] - 1  # equal ones
        w[:3] = w[:1]
        one, padding = [1, 1], [how.get("padding", 0)] * 2
        arguments, largest = (x, w, b, SCALE, one, padding, one, 1, 1, True), name.endswith("max")
        values, kept = ops._conv2d_scale_extreme(*arguments, largest=largest)
        assert (kept.dtype == torch.float32) == (device == "cuda" and FUSED)
        again = getattr(ops, name)(x, w, b, SCALE, one, padding)
        of = TOLERANCES[dtype] if device == "cpu" else 0  # whose other form is one of slices
        torch.testing.assert_close(values, again, rtol=of, atol=of, equal_nan=True)
        channels = ops._conv2d_scale_channels(*arguments, kept, largest=largest)
        chosen_of(name, x, w, b, how, values, channels)


@each_name
def test_channels_are_right_whatever_was_kept(name, device):
    """A graph may cast, move or cut what the forward keeps: then it is of no use, and no harm."""
    x, w, b = make((2, 16, 40, 41), (96, 16, 3, 3), device, torch.float16)
    one, none, largest = [1, 1], [0, 0], name.endswith("max")
    arguments = (x, w, b, SCALE, one, none, one, 1, 1, True)
    values, kept = ops._conv2d_scale_extreme(*arguments, largest=largest)
    for other in (kept.half(), kept.double(), kept[..., :5], kept.mT, kept.cpu(), kept.flatten()):
        channels = ops._conv2d_scale_channels(*arguments, other, largest=largest)
        chosen_of(name, x, w, b, {}, values, channels)


@each_name
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_one_kernel(name, dtype, device):
    """Those of the channels chosen."""
    for layout in (torch.channels_last, torch.contiguous_format):
        x, w, b = make((2, 16, 40, 41), (96, 16, 3, 3), device, dtype, layout=layout)
        leaves = [t.requires_grad_() for t in (x, w, b)]
        result = getattr(customops, name)(*leaves, SCALE, keepdim=False)
        expected = exact_of(name, *leaves, keepdim=False)
        assert_close(result, expected, dtype)
        weights = torch.rand_like(expected)
        grads = torch.autograd.grad((result * weights.to(dtype)).sum(), leaves)
        wide = torch.autograd.grad((expected * weights).sum(), leaves)
        layouts = torch.autograd.grad(expected_of(name, *leaves).sum(), leaves)
        for grad, exact, like in zip(grads, wide, layouts, strict=True):
            assert (grad.shape, grad.stride()) == (like.shape, like.stride())
            assert (grad - exact).norm() < 0.15 * exact.norm()  # channels nearly equal may differ


@each_name
def test_vmap(name, device):
    x, w, b = make((2, 4, 7, 6), (6, 4, 3, 2), device, torch.float64)
    for in_dims in ((0, None, None), (None, 0, None), (1, 0, 1), (-1, None, 0)):
        stacked = [
            t if d is None else torch.stack([t, t * 2, -t], d)
            for t, d in zip((x, w, b), in_dims, strict=True)
        ]
        for how in ({}, {"dim": 0, "keepdim": False}, {"padding": [1, 1], "dim": -2}):

            def function(x, w, b, how=how):
                return getattr(customops, name)(x, w, b, SCALE, **how)

            actual = torch.vmap(function, in_dims)(*stacked)
            for i in range(3):
                sample = [
                    t if d is None else t.select(d, i)
                    for t, d in zip(stacked, in_dims, strict=True)
                ]
                torch.testing.assert_close(actual[i], expected_of(name, *sample, **how))
    images = torch.vmap(lambda x: getattr(customops, name)(x, w, b, SCALE, dim=-2))(x)
    torch.testing.assert_close(images, expected_of(name, x, w, b, dim=2))
    none = torch.vmap(function, (0, 0, None))(x[None][:0], w[None][:0], b)
    assert none.shape == (0, *function(x, w, b).shape)
    grads = torch.func.vmap(torch.func.grad(lambda x, w: function(x, w, b).sum()), (0, None))
    assert grads(torch.stack([x, x]), w).shape == (2, *x.shape)


def test_vmap_checks_shapes_without_memory_for_them():
    sizes = []

    class Allocations(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.new_empty.default:
                sizes.append(result.numel())
            return result

    x, w, b = make((2, 4, 7, 6), (6, 4, 3, 2), "cpu", torch.float32)
    with Allocations():
        torch.vmap(lambda x: customops.conv2d_scale_min(x, w, b, SCALE, dim=0))(x[None])
    assert sizes == [1, 1, 1]


@each_name
@pytest.mark.parametrize("shape, filters, how", [
    ((2, 3, 6, 6), (4, 3, 3, 3), {}),
    ((3, 6, 6), (4, 3, 3, 3), {"padding": 1}),
    ((2, 4, 9, 9), (6, 2, 3, 2), {"groups": 2, "stride": 2, "dilation": 2}),
])  # fmt: skip
def test_flops_are_those_of_the_convolution(name, shape, filters, how, device):
    x, w = torch.ones(shape, device=device), torch.ones(filters, device=device)

    def flops(call):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            call()
        return counter.get_total_flops()

    expected = flops(lambda: torch.conv2d(x, w, **how))
    assert flops(lambda: getattr(customops, name)(x, w, None, SCALE, **how)) == expected > 0


@each_name
def test_symbolic_trace_of_same_padding(name, device):
    x, w, b = make((2, 4, 7, 6), (6, 4, 3, 2), device, torch.float64)

    def call(x, w, b):
        return getattr(customops, name)(x, w, b, SCALE, padding="same")

    recorded = torch.fx.symbolic_trace(call)
    for weight in (w, w[:, :, :2]):
        torch.testing.assert_close(recorded(x, weight, b), call(x, weight, b))


@each_name
@pytest.mark.parametrize("padding", [1, "same", "valid", "size"])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_sizes_as_numbers_in_a_trace_of_torch_jit(name, padding, device):
    """They are tensors there."""
    x, w, b = make((1, 1, 7, 6), (6, 1, 3, 2), device)

    def call(x, w, b):
        ones = [x.shape[1], 1]
        of = ones if padding == "size" else padding
        return getattr(customops, name)(x, w, b, SCALE, ones, of, ones, x.shape[1])

    torch.testing.assert_close(torch.jit.trace(call, (x, w, b))(x + 1, w, b), call(x + 1, w, b))


@each_name
def test_autocast_is_that_of_conv2d(name, device):
    x, w, b = make((2, 4, 7, 6), (6, 4, 3, 2), device)
    with torch.autocast(device, torch.bfloat16):
        actual = getattr(customops, name)(x, w, b, SCALE)
        expected = nn.functional.conv2d(x, w, b)
        trained = getattr(customops, name)(x, w.requires_grad_(), b, SCALE)
    assert actual.dtype == trained.dtype == expected.dtype == torch.bfloat16
    exact = exact_of(name, x, w.detach(), b)
    assert_close(actual, exact, torch.bfloat16)
    trained.sum().backward()
    assert w.grad.dtype == torch.float32


@each_name
def test_autocast_of_two_devices(name):
    x, w, b = make((2, 4, 7, 6), (6, 4, 3, 2), "cpu")
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(RuntimeError, match="weight must be on the device of input"),
    ):
        getattr(customops, name)(x.to("meta"), w, b, SCALE)


class Module(nn.Module):
    def __init__(self, name, **how):
        super().__init__()
        self.conv, self.function = nn.Conv2d(4, 6, 3), getattr(customops, name)
        self.how = how

    def forward(self, x):
        return self.function(x, self.conv.weight, self.conv.bias, SCALE, **self.how)


@pytest.mark.parametrize("name", NAMES[:1])
def test_compile_and_export(name, device, tmp_path):
    module = Module(name, padding=1).to(device)
    run = torch.compile(module, fullgraph=True, dynamic=True)
    for sizes in ((3, 4, 9, 8), (5, 4, 12, 7)):
        x = torch.randn(sizes, device=device)
        for context in (torch.no_grad, torch.enable_grad):
            with context():
                torch.testing.assert_close(run(x), module(x), rtol=1e-3, atol=1e-3)
    x = torch.randn(3, 4, 9, 8, device=device)
    shapes = ({0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC},)
    with torch.no_grad():
        program = torch.export.export(module, (x,), dynamic_shapes=shapes)
    assert [c for c in graphs.calls(program.graph_module) if "reduceops" in c] == [
        f"reduceops.{name}.default"
    ]
    torch.export.save(program, tmp_path / "program.pt2")
    y = torch.randn(5, 4, 12, 7, device=device)
    actual = torch.export.load(tmp_path / "program.pt2").module()(y)
    torch.testing.assert_close(actual, module(y))


class SamePadding(Module):
    """With numbers that depend on the size, as in models that come from TensorFlow."""

    def forward(self, x):
        rows, columns = (size // 4 - 2 for size in x.shape[2:])
        return self.function(x, self.conv.weight, self.conv.bias, SCALE, 1, [rows, columns])


class NamedPadding(SamePadding):
    def forward(self, x):
        rows, columns = (size // 4 - 2 for size in x.shape[2:])
        weight, bias = self.conv.weight, self.conv.bias
        operator = getattr(ops, self.function.__name__)
        return operator(x, weight, bias, SCALE, padding=[rows, columns])


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("cls", [SamePadding, NamedPadding])
@pytest.mark.parametrize("name", NAMES[:1])
def test_symbolic_numbers_stay_symbols(name, cls, strict):
    module = cls(name)
    shapes = ({2: Dim("rows", min=8), 3: Dim("columns", min=8)},)
    for example in (torch.ones(1, 4, 12, 13), torch.ones(1, 4, 9, 8)):  # padded, and not
        with torch.no_grad():
            program = torch.export.export(module, (example,), dynamic_shapes=shapes, strict=strict)
        assert f"reduceops.{name}.default" in graphs.calls(program.graph_module)
        x = torch.randn(1, 4, 16, 21)
        torch.testing.assert_close(program.module()(x), module(x))


@each_name
def test_a_mode_of_functions_sees_calls_with_symbols(name):
    class Calls(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **kwargs or {})

    fakes = FakeTensorMode(shape_env=ShapeEnv())
    x, w, b = (fakes.from_tensor(t) for t in make((2, 4, 12, 17), (6, 4, 3, 3), "cpu"))
    for callable_ in (getattr(ops, name), getattr(ops, name).default):
        for padding in ([1, 1], [x.shape[2] // 4, 1]):
            seen = []
            with Calls():
                callable_(x, w, b, SCALE, [1, 1], padding)
            assert callable_ in seen


@each_name
def test_symbolic_numbers_beside_tensors_by_keyword(name):
    x, w, b = make((2, 4, 12, 17), (6, 4, 3, 3), "cpu")

    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
    def run(step):
        return getattr(ops, name)(input=x, weight=w, bias=b, scale=-1.5, stride=[step, step])

    for step in (2, 3):
        assert torch.equal(run(step), getattr(ops, name)(x, w, b, -1.5, [step, step]))


@each_name
def test_symbolic_numbers_under_autocast(name):
    x, w, b = make((1, 4, 12, 17), (6, 4, 3, 3), "cpu")
    w.requires_grad_()

    @torch.compile(backend="eager", fullgraph=True, dynamic=True)
    def run(x):  # a scale from outside would be a symbol, too
        return getattr(customops, name)(x, w, b, -1.5, 1, [x.shape[2] // 4, 1])

    with torch.autocast("cpu", torch.bfloat16):
        actual = run(x.bfloat16())
        scale = torch.tensor(-1.5)
        expected = getattr(customops, name)(x, w, b, scale, 1, [3, 1])
    assert actual.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(actual, expected)


@each_name
def test_opcheck(name, device):
    for grad in (False, True):
        x, w, b = make((2, 4, 7, 6), (6, 4, 3, 2), device)
        tensors = [t.requires_grad_(grad) for t in (x, w, b)]
        how = ([1, 1], [1, 0], [1, 1], 1, 1, True)
        torch.library.opcheck(getattr(ops, name).default, (*tensors, SCALE, *how))


@pytest.mark.parametrize("name", NAMES[:1])
def test_a_call_that_is_traced_keeps_its_errors(name):
    module = Module(name)
    with pytest.raises(Exception, match=f"reduceops::{name}: weight of shape .* got 3"):
        torch.export.export(module, (torch.ones(2, 3, 8, 8),))


@pytest.mark.parametrize("name", NAMES[:1])
def test_onnx(name):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    for shape, how in (((2, 4, 9, 8), {"padding": (1, 2), "stride": 2}), ((4, 9, 8), {"dim": 0})):
        module, x = Module(name, **how).eval(), torch.randn(shape)
        program = torch.onnx.export(
            module,
            (x,),
            dynamo=True,
            verbose=False,
            custom_translation_table=customops.onnx.translation_table(),
        )
        session = onnxruntime.InferenceSession(
            program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        x[..., 3, 3] = math.nan
        (actual,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        expected = module(x).detach()
        torch.testing.assert_close(
            torch.from_numpy(actual), expected, rtol=1e-4, atol=1e-4, equal_nan=True
        )


def test_the_report_says_which_form_is_in_use():
    run = python_after_torch("-m", "customops")
    assert run.returncode == 0, run.stderr
    lines = [line for line in run.stdout.splitlines() if line.startswith("fused conv2d")]
    assert len(lines) == libraries.cuda.loaded
    if lines:
        assert ("yes (cuDNN)" in lines[0]) == FUSED


class Unmodified(nn.Module):
    """As people write it."""

    def __init__(self, reduce):
        super().__init__()
        self.conv, self.reduce = nn.Conv2d(64, 96, 3), reduce

    def forward(self, x):
        return self.reduce(self.conv(x))


UNMODIFIED = {
    "min": ("conv2d_scale_min", lambda y: torch.min(y * 2.0, dim=1, keepdim=True)[0]),
    "amin": ("conv2d_scale_min", lambda y: (-0.5 * y).amin(1)),
    "amax": ("conv2d_scale_max", lambda y: y.amax(-3, keepdim=True)),
    "product used twice": (None, lambda y: (y * 2.0).amin(1) + (y * 2.0).sum()),
    "position": (None, lambda y: torch.min(y * 2.0, dim=1)[1]),
    "another dim": (None, lambda y: (y * 2.0).amin(2)),
    "a number that is no float64": (None, lambda y: (y * ((1 << 60) + (1 << 36) + 1)).amin(1)),
}


@pytest.mark.parametrize("kind", UNMODIFIED)
def test_inductor_rewrites_unmodified_models(kind, device, monkeypatch):
    from customops import inductor

    name, reduce = UNMODIFIED[kind]
    if device == "cpu" or not FUSED:  # whether it is faster is a question to a GPU
        monkeypatch.setattr(convolution, "_is_faster", lambda node: True)
    module, before = Unmodified(reduce).to(device), len(inductor.rewrites())
    x = torch.randn(2, 64, 40, 40, device=device)
    options = customops.inductor_options(fx_graph_cache=False)
    run = torch.compile(module, fullgraph=True, options=options)
    with torch.no_grad():
        actual, expected = run(x), module(x)
    torch.testing.assert_close(actual, expected, rtol=1e-2, atol=1e-2)
    lines = [line for line in inductor.rewrites()[before:] if "convolution" in line]
    assert len(lines) == (name is not None)
    assert name is None or lines[0].endswith(f"-> reduceops.{name}.default")
