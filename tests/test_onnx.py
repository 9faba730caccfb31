"""torch.onnx.export: onnxruntime gives the answers of eager mode."""

import copy
import ctypes
import functools
import itertools
import re
from pathlib import Path
from unittest import mock

import data
import pytest
import reference
import torch
from conftest import needs_compiler, python_after_torch
from opspec import ANY_NAN, OPS, as_tuple, assert_same
from reference import bits
from torch import nn
from torch.export import Dim
from torch.onnx._internal.exporter import _registration

import customops

DOCUMENTATION = Path(__file__).parent.parent / "docs/export.md"
NEEDED = "comes with requirements/tools.txt"
onnx = pytest.importorskip("onnx", reason=NEEDED)
onnxruntime = pytest.importorskip("onnxruntime", reason=NEEDED)
pytest.importorskip("onnxscript", reason=NEEDED)

TYPES = {
    torch.bool: onnx.TensorProto.BOOL,
    torch.uint8: onnx.TensorProto.UINT8,
    torch.int8: onnx.TensorProto.INT8,
    torch.int16: onnx.TensorProto.INT16,
    torch.int32: onnx.TensorProto.INT32,
    torch.int64: onnx.TensorProto.INT64,
    torch.uint16: onnx.TensorProto.UINT16,
    torch.uint32: onnx.TensorProto.UINT32,
    torch.uint64: onnx.TensorProto.UINT64,
    torch.float16: onnx.TensorProto.FLOAT16,
    torch.bfloat16: onnx.TensorProto.BFLOAT16,
    torch.float32: onnx.TensorProto.FLOAT,
    torch.float64: onnx.TensorProto.DOUBLE,
    torch.float8_e4m3fn: onnx.TensorProto.FLOAT8E4M3FN,
    torch.float8_e5m2: onnx.TensorProto.FLOAT8E5M2,
}
DTYPES = {number: dtype for dtype, number in TYPES.items()}
# Compared as they are, and with the sign bit flipped.
OF_EACH_WAY = (torch.float32, torch.int32, torch.uint64)


@pytest.fixture(scope="module", autouse=True)
def torch_reads_what_it_knows_once():
    """All that it translates, which is most of the time of an export; not anew for each."""
    of_torch = _registration.ONNXRegistry
    read = functools.cache(of_torch.from_torchlib)

    def copied(**version):
        registry = copy.copy(read(**version))
        registry.functions = {name: list(known) for name, known in registry.functions.items()}
        return registry

    with mock.patch.object(of_torch, "from_torchlib", staticmethod(copied)):
        yield


class Calls(nn.Module):
    """The results of several calls on one input, one after the other."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def forward(self, x):
        return tuple(r for spec, *arguments in self.calls for r in as_tuple(spec.op(x, *arguments)))


def calls(dtype, rank, few=False):
    """Every operator that takes this dtype, over one dim and several."""
    dims = [1] if few else [0, 1, -1] if rank else [0, -1]
    several = [None, [], *([[0, 2], [-1, 1], [2, 1, 0], [-2]] * (rank > 0))]
    several = [[0, 2]] if few else several
    return [
        (spec, *spec.arguments(dim, keepdim=bool(i % 2)))
        for spec in OPS
        if dtype in spec.dtypes
        for i, dim in enumerate(dims + several * spec.dims)
    ]


def export(model, x, dynamic_shapes=None, **options):
    """The model, of one input or a tuple of them, as an onnxruntime session."""
    program = torch.onnx.export(
        model.eval(),
        x if isinstance(x, tuple) else (x,),
        dynamo=True,
        verbose=False,
        custom_translation_table=customops.onnx.translation_table(),
        dynamic_shapes=dynamic_shapes,
        **options,
    )
    proto = program.model_proto
    onnx.checker.check_model(proto)
    assert {node.domain for node in proto.graph.node} == {""} and not proto.functions
    return onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )


def run(session, *inputs):
    """The outputs, read from memory: numpy lacks some of the dtypes."""
    values = {
        argument.name: onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            bits(x.contiguous()).numpy(), TYPES[x.dtype]
        )
        for argument, x in zip(session.get_inputs(), inputs, strict=True)
    }
    results = []
    for output in session.run_with_ort_values(None, values):
        shape, dtype = output.shape(), DTYPES[output.element_type()]
        size = torch.Size(shape).numel() * dtype.itemsize
        raw = bytearray(ctypes.string_at(output.data_ptr(), size))
        flat = torch.frombuffer(raw, dtype=dtype) if size else torch.empty(0, dtype=dtype)
        results.append(flat.reshape(shape))
    return results


def check(session, calls, x):
    check_results(run(session, x), calls, x)


def check_results(results, calls, x):
    results = iter(results)
    for spec, *arguments in calls:
        expected = as_tuple(spec.reference(x, *arguments))
        actual = [next(results) for _ in expected]
        # A float8 is converted, which may change the bits of a NaN.
        tolerance = ANY_NAN if x.dtype in data.FLOAT8 else spec.tolerance
        if x.dtype in data.FLOAT8:
            expected = [widened(e) for e in expected]
            actual = [widened(a) for a in actual]
        assert_same(actual, expected, tolerance, (spec.name, x.dtype, arguments, tuple(x.shape)))
    assert next(results, None) is None


def widened(x):
    return x.to(torch.float32) if x.dtype in data.FLOAT8 else x


def nans_infinities_and_zeros(dtype):
    inf, nan = torch.inf, torch.nan
    lowest, highest = torch.finfo(dtype).min, torch.finfo(dtype).max
    x = torch.tensor(
        [
            [0.0, -0.0, 0.0, -0.0],
            [-0.0, 0.0, -0.0, 0.0],
            [1.0, inf, nan, inf],
            [1.0, -inf, nan, -inf],
            [nan, inf, -inf, nan],
            [1.0, 2.0, 3.0, nan],
            [lowest, highest, highest, lowest],
            [-1.0, 1.0, -1.0, 1.0],
            [nan, nan, nan, nan],
        ],
        dtype=torch.float64,
    )
    if dtype != torch.float8_e4m3fn:  # which has no infinity
        x = torch.cat([x, torch.tensor([[inf] * 4, [-inf] * 4, [highest, inf, inf, lowest]])])
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, data.FLOAT8[0]], ids=str)
def test_0d(dtype):
    chosen = calls(dtype, 0)
    session = export(Calls(chosen), torch.tensor(1, dtype=dtype))
    numbers = (0, 1, *((-2.0, torch.nan) if dtype.is_floating_point else ()))
    for number in numbers:
        check(session, chosen, torch.tensor(number).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, data.FLOAT8[0]], ids=str)
def test_0d_masks(dtype):
    class Calls(nn.Module):
        def forward(self, x, mask):
            return *customops.min(x, 0, mask=mask), customops.argmax(x, mask=mask)

    session = export(Calls(), (torch.tensor(1, dtype=dtype), torch.tensor(True)))
    for mask in (torch.tensor(True), torch.tensor(False)):
        x = torch.tensor(0, dtype=dtype)
        expected = *reference.extreme_masked("min", x, mask, 0, False), torch.tensor(0)
        assert_same([*map(widened, run(session, x, mask))], [*map(widened, expected)], ANY_NAN)


def test_empty_batches():
    chosen = [c for c in calls(torch.float32, 3) if c[-2] in (1, -1, [-1, 1])]
    x = torch.randn(3, 4, 5)
    session = export(Calls(chosen), x, ({0: Dim.DYNAMIC},))
    check(session, chosen, x[:0])


@pytest.mark.parametrize("dtype", data.FLOATS, ids=str)
def test_products_round_as_in_torch(dtype):
    x = data.make((40, 300), dtype, "smooth")
    scaled = [spec for spec in OPS if spec.leading]
    scales = (0.1, -3.3, 0.0, 1e30)
    chosen = [(spec, s, 1, False) for spec in scaled for s in scales]
    check(export(Calls(chosen), x), chosen, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_scale_that_is_a_tensor(dtype):
    class Call(nn.Module):
        def forward(self, x, scale):
            return customops.scale_min(x, scale, 1)

    x, scale = data.make((40, 30), dtype, "special"), torch.tensor(-0.3)
    session = export(Call(), (x, scale), ({0: Dim.DYNAMIC}, None))
    for y in (x, x[:7]):
        assert_same(run(session, y, scale), ((y * scale).min(1, True)[0],), ANY_NAN)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_a_scale_that_is_a_size(dtype):
    """Not every one has an equal of 16 bits."""

    class Call(nn.Module):
        def forward(self, x):
            return customops.scale_min(x, x.shape[0], 1)

    x = data.make((2049, 9), dtype, "smooth")
    session = export(Call(), (x,), ({0: Dim.DYNAMIC},))
    for y in (x, x[:257], x[:7]):
        assert_same(run(session, y), ((y * y.shape[0]).min(1, True)[0],), ANY_NAN)


class Masked(nn.Module):
    """Every operator that takes a mask, over one dim and several, with every dtype of indices; or
    the last two, where a dtype differs from others only in what no element loses to."""

    CALLS = [
        ("argmin", 1, False, torch.int64),
        ("argmax", -1, True, torch.uint8),
        ("argmin", None, False, torch.int32),
        ("argmax", [0, 2], True, torch.uint16),
        ("min", 0, True, torch.int32),
        ("max", 1, False, torch.uint8),
    ]

    def __init__(self, few):
        super().__init__()
        self.calls = self.CALLS[-2:] if few else self.CALLS

    def forward(self, x, mask):
        results = []
        for name, dim, keepdim, dtype in self.calls:
            function = getattr(customops, name)
            results += as_tuple(function(x, dim, keepdim, mask=mask, index_dtype=dtype))
        # An index_dtype and no mask.
        return *results, *customops.min(x, 1, index_dtype=torch.uint8)

    def expected(self, x, mask):
        every = torch.ones((), dtype=torch.bool)
        calls = [(*call, mask) for call in self.calls] + [("min", 1, False, torch.uint8, every)]
        for name, dim, keepdim, dtype, mask in calls:
            if name.startswith("arg"):
                yield reference.arg_masked(name[3:], x, mask, dim, keepdim).to(dtype)
            else:
                values, indices = reference.extreme_masked(name, x, mask, dim, keepdim)
                yield from (values, indices.to(dtype))


class Both(nn.Module):
    """Without a mask and with one: most of the time of a test goes into one export."""

    def __init__(self, dtype):
        super().__init__()
        few = dtype not in OF_EACH_WAY
        self.plain, self.masked = Calls(calls(dtype, 3, few)), Masked(few)

    def forward(self, x, mask):
        return *self.plain(x), *self.masked(x, mask)


@pytest.mark.parametrize(
    "dtype, full", zip(data.DTYPES, itertools.cycle((True, False))), ids=lambda p: str(p)
)
def test_every_dtype(dtype, full):
    """Over all dims of one dtype for each way to write them in ONNX; masks of the whole shape, or
    broadcast to it."""
    generator = torch.Generator().manual_seed(0)
    densities = itertools.cycle((0.0, 0.1, 0.5, 1.0, 0.3))

    def mask_of(x):
        shape = x.shape if full else (x.size(1), 1)
        return torch.rand(shape, generator=generator) < next(densities)

    example, model = data.make((3, 4, 5), dtype, "random"), Both(dtype)
    sizes = {d: Dim.DYNAMIC for d in range(3)}
    sizes = (sizes, sizes if full else {0: Dim.DYNAMIC})
    session = export(model, (example, mask_of(example)), sizes)
    inputs = [
        data.make(shape, dtype, kind, seed=3)
        for kind in ("random", "ties", "special")
        for shape in ((3, 4, 5), (7, 2, 33), (1, 9, 64), (2, 40, 3))
    ]
    if dtype.is_floating_point:
        x = nans_infinities_and_zeros(dtype)
        inputs += [x[..., None], x.t().contiguous()[..., None]]
    for x in inputs:
        mask = mask_of(x)
        results, right = run(session, x, mask), list(model.masked.expected(x, mask))
        check_results(results[: -len(right)], model.plain.calls, x)
        actual, right = (list(map(widened, r)) for r in (results[-len(right) :], right))
        assert_same(actual, right, ANY_NAN, (tuple(x.shape), tuple(mask.shape)))


class Trained(nn.Module):
    """As a model is after training: its parameters require gradients."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        x = self.conv(x)
        values, indices = customops.max(x, dim=1)
        return customops.scale_min(x, 2.0), values, indices, customops.argmax(x, dim=(-2, -1))


def test_a_model_with_parameters():
    torch.manual_seed(0)
    model = Trained()
    sizes = ({0: Dim("batch"), 2: Dim("height", min=4), 3: Dim.DYNAMIC},)
    session = export(model, torch.randn(2, 3, 10, 11), sizes)
    x = torch.randn(5, 3, 9, 14)
    minimum, values, indices, brightest = run(session, x)
    # A convolution may round otherwise, so the choice is checked by what it chose.
    y = model(x)[0].detach(), model.conv(x).detach()
    torch.testing.assert_close(minimum, y[0])
    torch.testing.assert_close(values, y[1].amax(1))
    torch.testing.assert_close(y[1].gather(1, indices[:, None])[:, 0], values)
    chosen = y[1].flatten(2).gather(2, brightest[..., None])[..., 0]
    torch.testing.assert_close(chosen, y[1].amax((2, 3)))


class PaddedBySize(nn.Module):
    def forward(self, x, w):
        return customops.conv2d_scale_max(x, w, None, -0.5, padding=(x.shape[-1] % 3, 2))


def test_a_padding_that_depends_on_the_size():
    torch.manual_seed(0)
    x, w = torch.randn(2, 3, 10, 13), torch.randn(4, 3, 3, 2)
    session = export(PaddedBySize(), (x, w), ({3: Dim("width", min=4, max=64)}, None))
    for y in (x, x[..., :9].clone(), x[..., :11].clone()):
        (result,) = run(session, y, w)
        torch.testing.assert_close(result, PaddedBySize()(y, w))


class StridedBySize(nn.Module):
    def forward(self, x, w):
        return customops.conv2d_scale_max(x, w, None, -0.5, stride=x.shape[-1] // 4)


def test_a_stride_that_depends_on_the_size_is_an_error():
    x, w = torch.randn(2, 3, 10, 13), torch.randn(4, 3, 3, 2)
    with pytest.raises(
        Exception, match="scale_max: ONNX has no convolution whose stride, dilation or groups"
    ):
        export(StridedBySize(), (x, w), ({3: Dim("width", min=8, max=64)}, None))


@pytest.mark.parametrize("opset", [18, 23])
def test_other_opsets(opset):
    x = data.make((3, 4, 5), torch.float32, "special")
    chosen = calls(torch.float32, 3, few=True)
    check(export(Calls(chosen), x, opset_version=opset), chosen, x)


def test_an_exported_program_translates():
    x = data.make((3, 4, 5), torch.float32, "ties")
    chosen = calls(torch.float32, 3)[:6]
    program = torch.export.export(Calls(chosen), (x,)).run_decompositions()
    table = customops.onnx.translation_table()
    translated = torch.onnx.export(program, custom_translation_table=table, dynamo=True)
    proto = translated.model_proto.SerializeToString()
    check(onnxruntime.InferenceSession(proto), chosen, x)


def test_the_table_has_every_operator():
    names = (n for n in torch._C._dispatch_get_all_op_names() if n.startswith("reduceops::"))
    # torch.export replaces some by what they are made of; a graph is of one process, and has a
    # convolution with its gradient as two operators.
    never = ("_pairs", "_unpack", "_one_shot", "_one_shot_of_group")
    never += ("_conv2d_scale_extreme", "_conv2d_scale_channels")
    never = {f"reduceops::{name}" for name in never}
    expected = {name for name in names if not name.endswith("_autograd")}
    expected = {name for name in expected if name.split(".")[0] not in never}
    assert {op.name() for op in customops.onnx.translation_table()} == expected


def test_a_wrong_dim_is_the_operators_error():
    spec = OPS[0]
    with pytest.raises(Exception) as raised:
        export(Calls([(spec, *spec.arguments(7, False))]), torch.ones(2, 3))
    text = f"reduceops::{spec.name}: dim 7 is out of range for a 2-d tensor (valid: -2 to 1)"
    assert text in str(raised.value)


def test_without_the_table_the_operator_is_named():
    with pytest.raises(torch.onnx.errors.OnnxExporterError, match="reduceops"):
        torch.onnx.export(Calls([(OPS[0], 0, False)]), (torch.ones(2, 3),), dynamo=True)


@needs_compiler
def test_the_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    namespace = {}
    exec("\n".join(blocks), namespace)
    x = torch.randn(5, 100)
    assert torch.equal(namespace["nearest"](x), x.argmin(1))
    (result,) = run(onnxruntime.InferenceSession("nearest.onnx"), x)
    assert torch.equal(result, x.argmin(1))


def test_onnxscript_is_optional():
    run = python_after_torch(
        "-c",
        "import sys; sys.modules['onnxscript'] = None\n"
        "import customops\n"
        "assert not {'onnx', 'onnxruntime', 'onnx_ir'} & set(sys.modules)\n"
        "customops.onnx.translation_table()",
    )
    last = run.stderr.strip().splitlines()[-1]
    assert run.returncode == 1 and last.startswith("ImportError:"), run.stderr
    assert "needs the package onnxscript" in last
