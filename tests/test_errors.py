"""Bad input. The same text from eager, meta tensors and tracing."""

import gc
import shutil
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import NO_CUDA, python_after_torch
from opspec import OPS, as_tuple, assert_same, each_op, each_op_and_dtype, ops
from torch._subclasses.fake_tensor import FakeTensorMode

import customops

SUPPORTED = (
    "bool, uint8, int8, int16, int32, int64, uint16, uint32, uint64, "
    "float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2"
)


EMPTY_DIM_1 = "cannot reduce over dim 1, which has size 0 (input shape [2, 0, 3])"
OUT_OF_RANGE = "dim {} is out of range for a {}-d tensor (valid: {} to {})"
TOO_MANY_DIMS = "a tensor of {} dims is not supported (at most 64)"
NOT_FLOATING = (
    "the input must be a floating-point tensor (float16, bfloat16, float32, float64), got {}"
)

# (input shape, dim, exception of customops.*, text)
FOR_EVERY_OP = [
    *(((2, 3), dim, IndexError, OUT_OF_RANGE.format(dim, 2, -2, 1)) for dim in (2, -3, 2**40)),
    *(((), dim, IndexError, OUT_OF_RANGE.format(dim, 0, -1, 0)) for dim in (1, -2)),
    *(((2, 0, 3), dim, IndexError, EMPTY_DIM_1) for dim in (1, -2)),
    # Whatever the dim.
    *(((1,) * 65, dim, RuntimeError, TOO_MANY_DIMS.format(65)) for dim in (0, -1, 65)),
    ((1,) * 69 + (0,), 69, RuntimeError, TOO_MANY_DIMS.format(70)),
]
FOR_SEVERAL_DIMS = [
    *(((2, 0, 3), dim, IndexError, EMPTY_DIM_1) for dim in (None, [], [2, 1], [0, -2])),
    ((0, 0), None, IndexError, "cannot reduce over dim 0, which has size 0 (input shape [0, 0])"),
    ((0,), None, IndexError, "cannot reduce over dim 0, which has size 0 (input shape [0])"),
    ((2, 3), [0, 1, 0], RuntimeError, "dim 0 appears twice in dim=[0, 1, 0]"),
    ((2, 3), [0, 1, -2], RuntimeError, "dim -2 appears twice in dim=[0, 1, -2]"),
    ((2, 3), [-1, 1], RuntimeError, "dim 1 appears twice in dim=[-1, 1]"),
    ((), [0, 0], RuntimeError, "dim 0 appears twice in dim=[0, 0]"),
    # The first mistake is the one reported: range, then duplicates, then empty dims.
    ((2, 0), [1, 1, 7], IndexError, OUT_OF_RANGE.format(7, 2, -2, 1)),
    ((2, 0), [1, 1], RuntimeError, "dim 1 appears twice in dim=[1, 1]"),
]


def cases():
    for spec in OPS:
        for shape, dim, kind, text in FOR_EVERY_OP + FOR_SEVERAL_DIMS * spec.dims:
            yield spec, shape, None, dim, kind, text
        # A wrong dtype is reported before a wrong dim.
        for dtype in (torch.int64, torch.float8_e5m2) if spec.only_floats else ():
            text = NOT_FLOATING.format(str(dtype).removeprefix("torch."))
            yield spec, (2, 3), dtype, 5, RuntimeError, text
        for dtype in (torch.complex64, torch.complex128) if not spec.only_floats else ():
            name = str(dtype).removeprefix("torch.")
            text = f"dtype {name} is not supported (supported: {SUPPORTED})"
            yield spec, (2, 3), dtype, 5, RuntimeError, text


CASES = [
    pytest.param(*case, id=f"{case[0]}-{list(case[1])}-{case[2]}-{case[3]}") for case in cases()
]
each_case = pytest.mark.parametrize("spec, shape, dtype, dim, kind, text", CASES)


def make(shape, dtype, device):
    return torch.zeros(shape, dtype=dtype, device=device)


@each_case
@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "grad"])
def test_eager(spec, shape, dtype, dim, kind, text, requires_grad, device):
    if requires_grad and not (spec.differentiable and dtype is None):
        pytest.skip("has no gradient")
    x = make(shape, dtype, device).requires_grad_(requires_grad)
    text = f"reduceops::{spec.name}: {text}"
    with pytest.raises(kind) as raised:
        spec.function(x, *spec.arguments(dim, False))
    assert str(raised.value) == text
    with pytest.raises((RuntimeError, IndexError)) as raised:
        spec.overload(dim)(x, *spec.arguments(dim, False))
    assert str(raised.value) == text


@each_case
def test_meta(spec, shape, dtype, dim, kind, text):
    with pytest.raises((RuntimeError, IndexError)) as raised:
        spec.overload(dim)(make(shape, dtype, "meta"), *spec.arguments(dim, False))
    assert str(raised.value).splitlines()[0].endswith(f"reduceops::{spec.name}: {text}")


@each_case
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compile(spec, shape, dtype, dim, kind, text, dynamic):
    x = make(shape, dtype, "cpu")
    compiled = torch.compile(
        lambda x: spec.function(x, *spec.arguments(dim, False)),
        backend="eager",
        fullgraph=True,
        dynamic=dynamic,
    )
    with pytest.raises((kind, torch._dynamo.exc.TorchRuntimeError)) as raised:
        compiled(x)
    # Of the same kind as in eager mode; before torch 2.13 Dynamo wraps it and names it in its text.
    assert isinstance(raised.value, kind) or f"{kind.__name__}(" in str(raised.value)
    # Sizes are symbols when dynamic.
    assert f"reduceops::{spec.name}: {text}".partition(" (input shape")[0] in str(raised.value)


def outcome(function, *arguments, **options):
    """The dtypes of the results, or the text of the error."""
    try:
        return [result.dtype for result in as_tuple(function(*arguments, **options))]
    except RuntimeError as error:
        return str(error)


EVERY_DTYPE = sorted({x for x in vars(torch).values() if isinstance(x, torch.dtype)}, key=str)


@each_op
def test_kernels_and_fakes_agree_on_dtypes(spec):
    """On those that are taken and in what is said of the others: C++ and checks.py have a table."""
    arguments = spec.arguments(0, False)
    agreed = []
    for dtype in EVERY_DTYPE:
        try:
            x = torch.empty((2, 3), dtype=dtype)
            on_meta = x.to("meta")
        except (RuntimeError, NotImplementedError):  # quantized, or of less than a byte
            continue
        agreed.append(outcome(spec.op, on_meta, *arguments) == outcome(spec.op, x, *arguments))
    assert len(agreed) > 20 and all(agreed)


@pytest.mark.parametrize("spec", [s for s in OPS if s.op.overloads()[1:]], ids=str)
def test_kernels_and_fakes_agree_on_index_dtypes(spec):
    x = torch.zeros(300, 2)
    for dtype in (*spec.dtypes, torch.complex64, torch.complex128):
        found = [outcome(spec.op, t, 0, index_dtype=dtype) for t in (x, x.to("meta"))]
        assert found[0] == found[1], dtype


@each_op_and_dtype
def test_every_listed_dtype_is_supported(spec, dtype, device):
    arguments = spec.arguments(0, False)
    spec.op(make((2, 3), dtype, device), *arguments)
    spec.op(make((2, 3), dtype, "meta"), *arguments)


UNUSUAL = {
    "sparse_coo": lambda: torch.ones(2, 3).to_sparse(),
    "sparse_csr": lambda: torch.ones(2, 3).to_sparse_csr(),
    "quint8": lambda: torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.quint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged
    ),
    "_mkldnn": lambda: torch.ones(2, 3).to_mkldnn(),
}


@each_op
@pytest.mark.parametrize("what", UNUSUAL)
@pytest.mark.filterwarnings("ignore")
def test_unusual_tensors(spec, what):
    with pytest.raises(RuntimeError) as raised:
        spec.function(UNUSUAL[what](), *spec.arguments(0, False))
    text = str(raised.value).lower()
    assert f"reduceops::{spec.name}:" in text
    assert what in text
    of_dtype = SUPPORTED in text or "float16, bfloat16, float32" in text
    assert of_dtype if what == "quint8" else "strided tensors on cpu and cuda" in text


@each_op
def test_sparse_tensors_that_are_fake(spec):
    with FakeTensorMode() as mode:
        x = mode.from_tensor(UNUSUAL["sparse_coo"]())
        text = (
            f"^reduceops::{spec.name}: got a sparse_coo float32 tensor on cpu \\(supported: strided"
        )
        with pytest.raises(RuntimeError, match=text):
            spec.function(x, *spec.arguments(0, False))


@each_op
def test_tensors_of_another_device_that_are_fake(spec):
    with FakeTensorMode():
        x = torch.empty(2, 3, device="mps")
        text = f"^reduceops::{spec.name}: got a strided float32 tensor on mps \\(supported: strided"
        with pytest.raises(RuntimeError, match=text):
            spec.function(x, *spec.arguments(0, False))


@pytest.mark.parametrize("scale", ["two", None, [2.0], 1j])
@pytest.mark.parametrize("spec", [s for s in OPS if s.leading], ids=str)
def test_scale_that_is_not_a_number(spec, scale):
    with pytest.raises(RuntimeError, match=f"{spec.name}.*argument 'scale'"):
        spec.op(torch.ones(2, 3), scale)
    text = f"^reduceops::{spec.name}: scale must be a number or a 0-d tensor, got "
    with pytest.raises(TypeError, match=text):
        spec.function(torch.ones(2, 3), scale)
    for options in ({}, {"axis": 0}):
        with pytest.raises(RuntimeError, match=f"^reduceops::{spec.name}: scale is too large"):
            spec.function(torch.ones(2, 3), 10**400, **options)


@each_op
def test_nothing_happens_to_the_input(spec):
    x = torch.ones(2, 3)
    version = x._version
    with pytest.raises(IndexError):
        spec.function(x, *spec.arguments(9, False))
    assert x._version == version and torch.equal(x, torch.ones(2, 3))


def run(code, folder=".", **environment):
    """Runs `code` in a fresh Python, in a folder; returns its last line of errors."""
    done = python_after_torch("-c", code, cwd=folder, **environment)
    assert done.returncode == 1, done.stderr
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("checkout", [True, False])
def test_import_without_the_library_says_what_to_do(checkout, tmp_path):
    package = Path(customops.__file__).parent
    without = shutil.ignore_patterns("lib", "__pycache__")
    shutil.copytree(package, tmp_path / package.name, ignore=without)
    if checkout:
        (tmp_path / "setup.py").touch()
    error = run("import customops", tmp_path, PYTHONPATH="", REDUCEOPS_LIBRARY_DIR="")
    assert error.startswith("ImportError:")
    assert "libreduceops.so" in error and "not built" in error
    assert ("make build" in error) == ("hidden by this folder" in error) == checkout


@pytest.mark.parametrize("folder", ["", "none"])
def test_a_library_folder_without_a_library(folder, tmp_path):
    error = run("import customops", REDUCEOPS_LIBRARY_DIR=str(tmp_path / folder))
    assert error.startswith("ImportError: REDUCEOPS_LIBRARY_DIR is")
    assert "takes a folder with libreduceops.so" in error


def test_import_with_a_broken_library_says_why(tmp_path):
    (tmp_path / "libreduceops.so").write_bytes(b"not a library")
    error = run("import customops", REDUCEOPS_LIBRARY_DIR=str(tmp_path))
    assert error.startswith("ImportError:") and "libreduceops.so" in error


def test_import_under_an_old_torch_says_which_is_needed():
    error = run("import torch; torch.__version__ = '2.9.1'; import customops")
    assert error.startswith("ImportError:") and "torch >= 2.10" in error and "2.9.1" in error


@NO_CUDA
@pytest.mark.parametrize("call", ["argmin(x)", "min(x, 0)", "scale_max(x, 2.0, 0)"])
@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "grad"])
def test_cuda_tensor_without_the_cuda_library_says_so(call, requires_grad, tmp_path):
    library = Path(customops.libraries.cpu.path)
    (tmp_path / library.name).symlink_to(library)
    error = run(
        "import torch, customops; "
        f"x = torch.ones(3, device='cuda', requires_grad={requires_grad}); customops.{call}",
        REDUCEOPS_LIBRARY_DIR=str(tmp_path),
    )
    op = call.partition("(")[0]
    assert f"reduceops::{op}" in error and "CUDA library is not loaded" in error
    assert "not built" in error


@each_op
@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "grad"])
def test_out_of_memory(spec, requires_grad, device):
    x = torch.empty(1, device=device).expand(2, 1 << 55).requires_grad_(requires_grad)
    if requires_grad and not spec.differentiable:
        pytest.skip("has no gradient")
    told = torch.__version__ >= "2.13"  # what the allocator said
    kind = torch.OutOfMemoryError if device == "cuda" and told else RuntimeError
    for call in (spec.function, spec.op):
        with pytest.raises(kind if call is spec.function else RuntimeError) as raised:
            call(x, *spec.arguments(0, False))
        text = str(raised.value)
        if not told:
            assert "out of memory" in text or "in the log above" in text
        else:
            assert "cannot allocate a tensor of shape" in text and f"[{1 << 55}]" in text
            assert "CUDA out of memory" in text if device == "cuda" else "DefaultCPUAlloc" in text


WITHOUT_PYTHON = """
import sys, torch
torch.ops.load_library(sys.argv[1])
x = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(3, 3)])
for x in (x, x.clone().requires_grad_()):
    for op in ("min", "max", "scale_min", "scale_max"):
        try:
            getattr(torch.ops.reduceops, op)(x, 1)  # the dim or the scale
        except RuntimeError as error:
            assert f"{op}: got a nested strided float32 tensor (supported: " in str(error), error
        else:
            raise AssertionError("no error")
"""


def test_nested_tensors_without_the_python_package():
    library = Path(customops.__file__).parent / "lib/libreduceops.so"
    done = python_after_torch("-c", WITHOUT_PYTHON, library)
    assert done.returncode == 0, done.stderr


def test_a_call_leaves_dispatch_keys_excluded_that_were():
    key = "AutogradFunctionality"
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)
    keys = keys.add(torch._C.DispatchKey.CPU)
    for before in (False, True):
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, before)
        try:
            ops.min.default.redispatch(keys, torch.rand(3), 0)
            assert excluded(key) == before
        finally:
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)


def test_torch_ops_name_the_argument():
    with pytest.raises(RuntimeError, match="argmin.*argument 'dim'"):
        ops.argmin(torch.ones(3), "first")


@each_op
def test_dims_that_no_schema_takes(spec):
    """Which has 64 bits for an int."""
    for dim in (10**30, -(10**30)):
        text = f"reduceops::{spec.name}: dim {dim} is out of range for a 2-d tensor"
        for given in (dim, [0, dim])[: 1 + spec.dims]:
            with pytest.raises(IndexError, match=f"^{text}"):
                spec.function(torch.ones(2, 3), *spec.arguments(given, False))
        with pytest.raises(IndexError, match=f"^{text}"):
            spec.function(torch.ones(2, 3), *spec.leading, axis=dim)


@each_op
def test_an_index_error_keeps_its_cause(spec):
    with pytest.raises(IndexError) as raised:
        spec.function(torch.ones(2, 3), *spec.arguments(9, False))
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert str(raised.value.__cause__) == str(raised.value)


@each_op
@pytest.mark.parametrize("dim", [0, 9])
@pytest.mark.parametrize("text", ["a page is out of range for a book", "x, which has size 0"])
def test_an_error_of_somebody_else_stays_what_it_is(spec, dim, text):
    """Whatever its text is like, and whether or not the dim is wrong as well."""

    class Refuse(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            raise Unrelated(text) from cause

    class Unrelated(RuntimeError):
        pass

    x, cause = torch.ones(2, 3), ValueError("why")
    with Refuse(), pytest.raises(Unrelated) as raised:
        spec.function(x, *spec.arguments(dim, False))
    assert str(raised.value) == text and raised.value.__cause__ is cause


@each_op
def test_what_somebody_else_says_of_memory_stays_what_it_is(spec):
    class Unrelated(RuntimeError):
        pass

    class Refuse(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            raise Unrelated("no more CUDA out of memory, please")

    with Refuse(), pytest.raises(Unrelated):
        spec.function(torch.ones(2, 3), *spec.arguments(0, False))


@each_op
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "dim, dtype, kind",
    [
        (9, torch.float32, IndexError),
        (10**30, torch.float32, IndexError),
        (0, torch.complex64, RuntimeError),
        ("0", torch.float32, TypeError),
    ],
)
def test_an_error_keeps_no_input(spec, dim, dtype, kind, requires_grad):
    """Once it is handled: a cycle would leave the memory to the garbage collector."""
    x = torch.ones(2, 3, dtype=dtype, requires_grad=requires_grad)
    alive = weakref.ref(x)
    gc.disable()
    try:
        try:
            spec.function(x, *spec.arguments(dim, False))
        except kind:
            del x
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "dim",
    [
        *(range(2), range(1, -1, -1), (0, 1), torch.Size([0, 1]), [np.int64(0), np.int8(-2)]),
        *([0, torch.tensor(1)], [torch.tensor([0]), torch.tensor([-2])]),
    ],
    ids=str,
)
def test_several_dims_are_any_sequence(dim):
    x = torch.randn(3, 4, 5)
    for function, op in ((customops.argmin, ops.argmin), (customops.argmax, ops.argmax)):
        assert torch.equal(function(x, dim), op(x, [0, 1]))
        assert torch.equal(function(x, dim, True), op(x, [0, 1], True))


@each_op
@pytest.mark.parametrize("dim", [np.int64(1), np.int8(-1), torch.tensor(1)], ids=repr)
def test_a_dim_is_whatever_is_an_index(spec, dim):
    if spec.name in ("min", "max") and isinstance(dim, torch.Tensor):
        text = f"reduceops::{spec.name}: dim must be an int, got torch.Tensor"
        return refuses(text, spec.function, torch.ones(2, 3), dim)
    x = torch.randn(3, 4)
    actual, expected = (spec.function(x, *spec.arguments(d, False)) for d in (dim, 1))
    assert_same(actual, expected)


NO_DIMS = [
    *(("ab", "str"), (1.0, "float"), (True, "bool"), (np.array([0, 1]), "numpy.ndarray")),
    *(({0}, "set"), (torch.tensor(True), "torch.Tensor"), (np.bool_(True), "numpy.bool")),
    (torch.tensor([1]), "torch.Tensor"),
]
ONE_DIM = "an int (of these operators argmin and argmax take several)"


def refuses(text, function, *arguments, **options):
    with pytest.raises(TypeError) as raised:
        function(*arguments, **options)
    assert str(raised.value) == text


@each_op
@pytest.mark.parametrize("dim, got", NO_DIMS, ids=repr)
def test_a_dim_that_is_none(spec, dim, got):
    takes = "an int, a sequence of ints or None" if spec.dims else "an int"
    text = f"reduceops::{spec.name}: dim must be {takes}, got {got}"
    refuses(text, spec.function, torch.ones(2, 3), *spec.arguments(dim, False))


@each_op
@pytest.mark.parametrize("dim, got", [([0.5], "float"), ((0, True), "bool"), (["a"], "str")])
def test_dims_of_which_one_is_none(spec, dim, got):
    takes = (
        f"ints in a sequence, got {got}" if spec.dims else f"{ONE_DIM}, got {type(dim).__name__}"
    )
    text = f"reduceops::{spec.name}: dim must be {takes}"
    refuses(text, spec.function, torch.ones(2, 3), *spec.arguments(dim, False))


@each_op
def test_bytes_are_no_dims(spec):
    takes = "an int, a sequence of ints or None" if spec.dims else "an int"
    text = f"reduceops::{spec.name}: dim must be {takes}, got bytes"
    refuses(text, spec.function, torch.ones(2, 3), *spec.arguments(b"\1", False))


@pytest.mark.parametrize("spec", [s for s in OPS if not s.dims], ids=str)
def test_where_one_dim_is_taken(spec):
    x = torch.ones(2, 3)
    prefix = f"reduceops::{spec.name}: dim must be"
    refuses(f"{prefix} {ONE_DIM}, got list", spec.function, x, *spec.arguments([0], False))
    of_all = {
        "min": "given; for the smallest of all elements use torch.min(input)",
        "max": "given; for the largest of all elements use torch.max(input)",
        "softmax_max": "given",
    }
    text = f"{prefix} {of_all.get(spec.name, 'an int, got None')}"
    refuses(text, spec.function, x, *spec.arguments(None, False))
    if not spec.leading:
        refuses(text, spec.function, x)


@each_op
@pytest.mark.parametrize(
    "input, got",
    [(np.ones((2, 3)), "numpy.ndarray"), ([1.0, 2.0], "list"), (None, "None"), (1.0, "float")]
    + [(torch.Tensor, "the class torch.Tensor")],
    ids=["numpy", "list", "None", "float", "class"],
)
def test_an_input_that_is_no_tensor(spec, input, got):
    text = f"reduceops::{spec.name}: input must be a Tensor, got {got}"
    refuses(text, spec.function, input, *spec.arguments(0, False))
    refuses(text, spec.function, input, *spec.leading, axis=0)


@each_op
@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors", "ignore:.*dispatch__ for M")
def test_an_input_with_a_mask_of_its_own(spec):
    x = torch.ones(2, 3)
    masked = torch.masked.masked_tensor(x, x > 0)
    how = " (give its get_data(), and its get_mask() as mask=)"
    how = how if spec.name in ("argmin", "argmax", "min", "max") else ""
    kind = f"{type(masked).__module__}.MaskedTensor"
    text = f"reduceops::{spec.name}: input must be a Tensor without a mask{how}, got {kind}"
    for keywords in ({"dim": 0}, {"dim": 0, "keepdim": True}, {"axis": 0}):
        refuses(text, spec.function, masked, *spec.leading, **keywords)


class Several:
    """What returns as many results as it likes."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return (1, 2, 3)


@pytest.mark.parametrize("op", ["min", "max", "softmax_max"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_what_stands_for_a_tensor_and_returns_something_else(op, keepdim):
    found = getattr(customops, op)(Several(), 1, keepdim)
    assert type(found) is tuple and found == (1, 2, 3)


class Stand:
    """What stands for a tensor without being one."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return cls


@pytest.mark.parametrize("op", ["argmin", "argmax"])
@pytest.mark.parametrize("dim", [0, -1, 1])
def test_what_stands_for_a_tensor(op, dim):
    assert getattr(customops, op)(Stand(), dim) is Stand
    assert getattr(customops, op)(torch.ones(2, 3), dim, mask=Stand()) is Stand


@each_op
def test_other_arguments_of_a_wrong_type(spec):
    x, name = torch.ones(2, 3), f"reduceops::{spec.name}"
    for keepdim, got in ((1, "int"), ("yes", "str"), (None, "None")):
        text = f"{name}: keepdim must be a bool, got {got}"
        refuses(text, spec.function, x, *spec.arguments(0, keepdim))
    text = f"{name}: there is no argument 'out' (by keyword: dim (or axis), keepdim (or keepdims)"
    options = ", mask, index_dtype" * bool(spec.op.overloads()[1:])
    takes = options or ", scale" * len(spec.leading)
    refuses(f"{text}{takes})", spec.function, x, *spec.arguments(0, False), out=x)
    text = f"{name}: dim and axis are one argument, and both are given"
    for dim in (0, 1, None):  # the default, too
        refuses(text, spec.function, x, *spec.arguments(dim, False), axis=1)
    text = f"{name}: keepdim and keepdims are one argument, and both are given"
    for keepdim in (False, True):
        refuses(text, spec.function, x, *spec.arguments(0, keepdim), keepdims=False)
    if options:
        assert_same(spec.function(x, 0, index_dtype=None), spec.function(x, 0))
        for mask, got in ((True, "bool"), (np.ones(2, bool), "numpy.ndarray")):
            text = f"{name}: mask must be a bool tensor or None, got {got}"
            refuses(text, spec.function, x, 0, mask=mask)
        text = f"{name}: index_dtype must be a torch.dtype or None, got str"
        refuses(text, spec.function, x, 0, index_dtype="int32")


@each_op
def test_names_of_arguments(spec):
    """Those of torch, and numpy's where torch takes them."""
    x, leading = torch.randn(3, 4), dict(zip(("scale",), spec.leading, strict=False))
    for keepdim in (False, True):
        expected = spec.function(x, *spec.arguments(1, keepdim))
        assert_same(spec.function(input=x, **leading, dim=1, keepdim=keepdim), expected)
        assert_same(spec.function(x, **leading, axis=-1, keepdims=keepdim), expected)
    if spec.dims:
        assert_same(spec.function(x, axis=(0, 1)), spec.function(x))
        assert_same(spec.function(x, axis=None, keepdims=True), spec.function(x, None, True))


def test_modules_come_when_they_are_asked_for():
    code = (
        "import sys, customops\n"
        "names = dir(customops)\n"
        "assert {*customops.__all__, 'min', 'max', 'inductor', 'plans'} <= {*names}\n"
        "assert not {'Any', 'sys', 'ops'} & {*names}, names\n"
        "assert 'torch._inductor.lowering' not in sys.modules\n"
        "assert callable(customops.explain) and callable(customops.inductor_options)\n"
        "assert not hasattr(customops, 'nothing')\n"
        "assert all(hasattr(customops, name) for name in names)\n"
        "sys.exit('fine')\n"
    )
    assert run(code) == "fine"
