"""customops.enable(): torch's own operators run our kernels, and nothing else changes."""

import contextlib
import copy
import functools
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import data
import pytest
import torch
from conftest import COMPILER, needs_compiler, python, python_after_torch
from opspec import ANY_NAN, all_dims, as_tuple, assert_same
from torch._subclasses.fake_tensor import FakeTensorMode

import customops
from customops import switch

OPERATORS = (torch.argmin, torch.argmax, torch.min, torch.max)
EXTREMES = OPERATORS[2:]
# What both take. The others of ours (bool for torch.argmin, uint16, ...) stay errors of torch.
DTYPES = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)


def each_operator(test, operators=OPERATORS):
    return pytest.mark.parametrize("operator", operators, ids=lambda op: op.__name__)(test)


@pytest.fixture(autouse=True)
def nothing_stays_enabled():
    assert not customops.enabled()
    yield
    customops.disable()


def runs_ours(operator, *arguments, **options):
    """Whose kernel runs: torch's call other operators of torch, ours do not."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        operator(*arguments, **options)
    names = {event.name for event in profile.events() if event.name.startswith("aten::")}
    assert f"aten::{operator.__name__}" in names
    return names <= {f"aten::{operator.__name__}", "aten::empty_strided"}


def outcome(call, *arguments):
    """The results, or the type and the text of the error."""
    try:
        return as_tuple(call(*arguments))
    except Exception as error:
        return type(error), str(error)


def assert_enabling_changes_nothing(call, *arguments, context=()):
    expected = outcome(call, *arguments)
    with customops.enable():
        actual = outcome(call, *arguments)
    if isinstance(expected[0], type):
        assert actual == expected, context
    else:
        # A NaN goes through torch's arithmetic on a GPU, where its bits may change.
        assert_same(actual, expected, tolerance=ANY_NAN, context=context)
        assert [a.stride() for a in actual] == [e.stride() for e in expected], context
    return expected


@each_operator
@pytest.mark.parametrize("dtype", data.DTYPES, ids=str)
def test_results_are_those_of_torch(operator, dtype, device):
    """Of every layout and dim, dtypes that torch refuses included."""
    for layout, make in data.LAYOUTS.items():
        x = make(lambda shape: data.make(shape, dtype, "special")).to(device)
        for dim in all_dims(x):
            for keepdim in (False, True):
                assert_enabling_changes_nothing(operator, x, dim, keepdim, context=(layout, dim))
        assert_enabling_changes_nothing(operator, x, context=layout)


@each_operator
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_our_kernels_run(operator, dtype, device):
    x = data.make((5, 7, 3), dtype, "ties").to(device)
    calls = [(x, 1), (x.transpose(0, 2), -1), (x[1:, ::2], 0)]
    assert not any(runs_ours(operator, *arguments) for arguments in calls)
    with customops.enable():
        for arguments in calls:
            assert runs_ours(operator, *arguments)
            expected = getattr(customops, operator.__name__)(*arguments)
            assert_same(operator(*arguments), expected)
        assert runs_ours(getattr(torch.Tensor, operator.__name__), x, 1)
    assert not any(runs_ours(operator, *arguments) for arguments in calls)


def test_bool_values(device):
    x = data.make((5, 7), torch.bool, "random").to(device)
    with customops.enable():
        assert runs_ours(torch.max, x, 1)
        assert_same(torch.max(x, 1), customops.max(x, 1))


@pytest.mark.parametrize("operator", OPERATORS[:2])
def test_all_dims(operator, device):
    x = data.make((5, 7, 3), torch.float32, "ties").to(device)
    with customops.enable():
        assert runs_ours(operator, x)
        assert_same(operator(x, keepdim=True), getattr(customops, operator.__name__)(x, None, True))


def test_no_position_no_kernel_of_ours(device):
    """amin, amax and min and max of everything need no index: torch is as fast."""
    x = data.make((5, 7), torch.float32, "special").to(device)
    for call in (torch.min, torch.max, lambda x: torch.amin(x, 1), lambda x: torch.max(x, x)):
        assert_enabling_changes_nothing(call, x)
    with customops.enable():
        assert not any(runs_ours(operator, x) for operator in EXTREMES)


@each_operator
def test_bad_input_gets_the_errors_of_torch(operator, device):
    x = data.make((3, 4), torch.float32, "ties").to(device)
    empty, scalar = x[:, :0], x[0, 0]
    for arguments in (
        *((x, 2), (x, -3), (x, "a"), (x, 0.5), (x, [0, 1]), (x.cfloat(), 1), (x.cfloat(),)),
        *((empty, 1), (empty, -1), (empty,), (empty, 2), (scalar, 1), (scalar, -2)),
        *((x.to(torch.uint16), 1), (x.to(torch.float8_e5m2), 1), (x.to_sparse(), 1), ([1, 2], 0)),
    ):
        expected = assert_enabling_changes_nothing(operator, *arguments, context=arguments)
        assert isinstance(expected[0], type) or arguments == (empty,)


@each_operator
def test_what_torch_takes_and_ours_do_not(operator):
    quantized = torch.quantize_per_tensor(
        torch.tensor([[3.0, 1.0], [2.0, 5.0]]), 0.1, 0, torch.qint8
    )
    deep, deeper = (torch.arange(2.0).view((1,) * dims + (2,)) for dims in (63, 64))
    for x in (quantized, deep, deeper):
        expected = outcome(operator, x, 1)
        with customops.enable():
            actual = outcome(operator, x, 1)
        assert str(actual) == str(expected)


@each_operator
def test_edges(operator, device):
    x = data.make((3, 4), torch.float32, "ties").to(device)
    for arguments in ((x[:0], 1), (x[:, :0], 0), (x[0, 0],), (x[0, 0], 0), (x[0, 0], -1, True)):
        expected = assert_enabling_changes_nothing(operator, *arguments, context=arguments)
        assert isinstance(expected[0], torch.Tensor)
    named = operator(x, 1)
    with customops.enable():
        assert type(operator(x, 1)) is type(named)  # torch.return_types.max


@each_operator
@pytest.mark.skipif(not hasattr(torch.Tensor, "names"), reason="this torch has no named dims")
def test_named_dims(operator):
    x = data.make((3, 4), torch.float32, "ties").refine_names("n", "c")
    expected = outcome(operator, x, "c")
    with customops.enable():
        actual = outcome(operator, x, "c")
    assert str(actual) == str(expected)


@each_operator
def test_a_negative_bit(operator, device):
    x = data.make((3, 4, 2), torch.float32, "random").to(device)
    negative = torch.view_as_complex(x).conj().imag
    assert negative.is_neg()
    assert_enabling_changes_nothing(operator, negative, 1)


@each_operator
def test_an_out_argument_is_left_to_torch(operator, device):
    x = data.make((3, 4), torch.float32, "ties").to(device)
    out = tuple(torch.empty_like(r) for r in as_tuple(operator(x, 1)))
    with customops.enable():
        assert not runs_ours(operator, x, 1, out=out if len(out) == 2 else out[0])
    assert_same(out, operator(x, 1))


# Everything torch does with its own operators goes on.


@pytest.mark.parametrize("operator", EXTREMES)
def test_gradients(operator, device):
    x = data.make((4, 5, 6), torch.float64, "random").nan_to_num().to(device)
    weight = torch.randn(4, 6, dtype=torch.float64, device=device)

    def gradients(x):
        leaf = x.clone().requires_grad_()
        loss = (operator(leaf, 1)[0].tanh() * weight).sum()
        (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), leaf)
        return first.detach(), second, torch.func.grad(lambda x: operator(x, 1)[0].sum())(x)

    with customops.enable():
        assert runs_ours(operator, x.clone().requires_grad_(), 1)
    assert_enabling_changes_nothing(gradients, x)
    assert_enabling_changes_nothing(
        lambda x: torch.func.jvp(lambda x: operator(x, 1)[0], (x,), (x + 1,)), x
    )


@each_operator
def test_vmap_inference_mode_and_autocast(operator, device):
    x = data.make((4, 5, 6), torch.float32, "ties").to(device)
    for in_dims in (0, 1, 2):
        assert_enabling_changes_nothing(torch.vmap(lambda x: operator(x, 0), in_dims), x)
    with torch.inference_mode():
        assert_enabling_changes_nothing(operator, x, 1)
        with customops.enable():
            assert as_tuple(operator(x, 1))[0].is_inference()
    with torch.autocast(device, dtype=torch.bfloat16):
        assert_enabling_changes_nothing(operator, x, 1)


@each_operator
def test_fake_tensors_and_compile(operator, device):
    x = data.make((4, 5, 6), torch.float32, "ties").to(device)
    expected = operator(x, 1)
    with customops.enable():
        with FakeTensorMode() as mode:
            fakes = as_tuple(operator(mode.from_tensor(x), 1))
        metas = as_tuple(operator(x.to("meta"), 1))
        for e, fake, meta in zip(as_tuple(expected), fakes, metas, strict=True):
            assert (fake.shape, fake.dtype, fake.device) == (e.shape, e.dtype, e.device)
            assert (meta.shape, meta.dtype, meta.stride()) == (e.shape, e.dtype, e.stride())
        compiled = torch.compile(lambda x: operator(x, 1), backend="aot_eager", fullgraph=True)
        assert_same(compiled(x), expected)


def test_a_compiled_function_may_enable():
    x = data.make((4, 5), torch.float32, "ties")

    @torch.compile(backend="eager")
    def function(x):
        with customops.enable():
            return torch.argmax(x, 1), customops.enabled()

    index, enabled = function(x)  # in two graphs, for Dynamo cannot trace the switch
    assert torch.equal(index, x.argmax(1)) and enabled and not customops.enabled()


# The switch.


def test_disable_ends_every_enable():
    customops.enable()
    customops.enable()
    assert customops.enabled()
    customops.disable()
    assert not customops.enabled()
    customops.disable()
    assert not customops.enabled()


def test_blocks_nest_and_leave_the_switch_alone():
    with customops.enable():
        with customops.enable():
            pass
        assert customops.enabled()
    assert not customops.enabled()
    customops.enable()
    with customops.enable():
        pass
    assert customops.enabled()


def test_disable_inside_a_block_ends_the_block():
    with customops.enable():
        customops.disable()
        assert not customops.enabled()
        customops.enable()
    assert customops.enabled()  # the block that ended was over before this enable()


def test_a_block_ends_with_an_exception():
    with pytest.raises(ZeroDivisionError), customops.enable():
        raise ZeroDivisionError
    assert not customops.enabled()


def test_one_object_several_blocks():
    scope = customops.enable()
    for _ in range(2):
        with scope, scope:
            assert customops.enabled()
        assert not customops.enabled()


@pytest.mark.parametrize(
    "copied", (copy.copy, copy.deepcopy, lambda scope: pickle.loads(pickle.dumps(scope)))
)
def test_a_copy_has_no_switch_of_its_own(copied):
    """As of a module that holds one, and is averaged or sent to another process."""
    scope = customops.enable()
    of_switch = copied(scope)
    with scope:
        of_block = copied(scope)
    assert not customops.enabled()
    for other in (of_switch, of_block):
        with other:
            assert customops.enabled()
        assert not customops.enabled()
        other.__exit__()
        with customops.enable():
            assert customops.enabled()


def test_decorator():
    @customops.enable()
    def function():
        return customops.enabled()

    assert not customops.enabled() and function() and function() and not customops.enabled()


def test_a_decorated_function_runs_in_its_call():
    """A decorator would be over before the body of one of these starts."""

    async def coroutine():
        pass

    def generator():
        yield

    async def asynchronous_generator():
        yield

    @contextlib.contextmanager
    def context_manager():
        yield

    @contextlib.asynccontextmanager
    async def asynchronous_context_manager():
        yield

    class Asynchronous:
        async def __call__(self):
            pass

    class Model(torch.nn.Module):
        pass

    for given in (Asynchronous(), functools.partial(Asynchronous()), Asynchronous, Model):
        with pytest.raises(TypeError, match="cannot decorate .*(Asynchronous|Model)"):
            customops.enable()(given)
        assert not customops.enabled()
    for function in (
        *(coroutine, generator, asynchronous_generator),
        *(context_manager, asynchronous_context_manager),
    ):
        with pytest.raises(TypeError, match=rf"cannot decorate .*{function.__name__}"):
            customops.enable()(function)
        assert not customops.enabled()


def test_a_module_is_not_decorated():
    """A function in its place would have no parameters; its forward is one."""
    model = torch.nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"cannot decorate the module Linear, .* its forward"):
        customops.enable()(model)
    assert not customops.enabled()
    model.forward = customops.enable()(lambda x: customops.enabled())
    assert model(None) and not customops.enabled()


def test_threads_reduce_while_others_switch(device):
    """Nobody crashes, nobody gets another result, and all blocks together leave nothing enabled."""
    problems = []
    for shape in ((5, 7), (64, 301), (301, 64)):
        x = data.make(shape, torch.float32, "ties").to(device)
        for operator in OPERATORS:
            problems.append((operator, x, as_tuple(operator(x, 1))))
    start = threading.Barrier(6)

    def reduce():
        start.wait()
        for _ in range(40):
            for operator, x, expected in problems:
                assert all(map(torch.equal, as_tuple(operator(x, 1)), expected))

    def switch():
        start.wait()
        for _ in range(400):
            with customops.enable():
                assert customops.enabled()
                with customops.enable():
                    pass

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(task) for task in (reduce, switch) * 3]:
            future.result()
    assert not customops.enabled()


def run(code):
    """In a fresh process, where nothing has been enabled."""
    result = python_after_torch("-c", code)
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="this torch cannot")
def test_it_hands_back_to_another_extension():
    """Which has replaced torch's kernels before enable(): what ours do not take is its own."""
    run("""
import torch, customops
calls, library = [], torch.library.Library("aten", "IMPL")
for name in ("argmin", "argmax", "min.dim", "max.dim"):
    def theirs(keys, *args, name=name, kernel=torch.library.get_kernel(f"aten::{name}", "CPU")):
        calls.append(name)
        return kernel.call_boxed(keys, *args)
    library.impl(name, theirs, "CPU", with_keyset=True, allow_override=True)
x = torch.rand(3, 4)

def call(x):
    calls.clear()
    results = [torch.argmin(x, 1), torch.argmax(x), *torch.min(x, 1), *torch.max(x, 0)]
    return results, list(calls)

expected, all_of_them = call(x)
assert all_of_them == ["argmin", "argmax", "min.dim", "max.dim"]
for _ in range(2):
    with customops.enable():
        results, seen = call(x)
        assert not seen and all(map(torch.equal, results, expected))
        calls.clear()
        try:
            torch.max(x.to(torch.uint16), 1)  # which torch refuses in its kernel
        except RuntimeError as error:
            assert calls == ["max.dim"] and ("UInt16" in str(error) or "log" in str(error)), error
        else:
            raise AssertionError("no error")
    results, seen = call(x)
    assert seen == all_of_them, seen
    assert all(map(torch.equal, results, expected)), (results, expected)
""")


@pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="this torch cannot")
def test_it_hands_back_to_torch_once_another_extension_is_gone():
    run("""
import torch, customops
def outcome(operator, x):
    try:
        return str(operator(x, 1))
    except RuntimeError as error:
        return str(error)

def call():
    operators = (torch.argmin, torch.argmax, torch.min, torch.max)
    return [outcome(operator, each) for operator in operators for each in (x, left_to_torch)]

x = torch.rand(3, 4)
left_to_torch = x.to(torch.uint16)
expected = call()
with torch.library._scoped_library("aten", "IMPL") as library:
    def gone(self, dim=None, keepdim=False):
        return torch.full((1,), 7)
    for name in ("argmin", "argmax"):
        library.impl(name, gone, "CPU", allow_override=True)
    for name in ("min.dim", "max.dim"):
        library.impl(name, lambda *args: (gone(*args), gone(*args)), "CPU", allow_override=True)
    customops.enable()
    customops.disable()
    assert all("7" in result for result in call())
for _ in range(2):
    assert call() == expected, call()
    with customops.enable():
        assert call() == expected, call()
""")


WITHOUT_CODE = """
#include "switch.h"
namespace {
int calls = 0;
void run(reduceops::Reduction&) {
  ++calls;
  throw reduceops::CannotRun("there is no code for this device");
}
}  // namespace
extern "C" const char* enable() { return reduceops::Switch<run>::set(true, "CPU", "cpu"); }
extern "C" int calls_of_ours() { return calls; }
"""


@needs_compiler
def test_a_device_without_code_is_left_to_torch(tmp_path):
    """The switch of a library that can run nothing on the CPU, as ours on an old GPU."""
    source, library = tmp_path / "without_code.cpp", tmp_path / "without_code.so"
    source.write_text(WITHOUT_CODE)
    torch_home, ours = Path(torch.__file__).parent, Path(__file__).parent.parent / "csrc"
    flags = ["-std=c++20", "-shared", "-fPIC", f"-I{ours}", "-isystem", torch_home / "include"]
    libs = [f"-L{torch_home / 'lib'}", "-ltorch_cpu", "-lc10"]
    command = [*COMPILER, *flags, source, "-o", library, *libs]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    run(f"""
import ctypes, torch
library = ctypes.CDLL({str(library)!r})
x = torch.tensor([[3.0, 1.0, 3.0], [0.0, 5.0, 0.0]])
calls = [lambda op=op: op(x, 1) for op in (torch.argmin, torch.argmax, torch.min, torch.max)]
expected = [str(call()) for call in calls]
assert not library.enable()
assert [str(call()) for call in calls] == expected and library.calls_of_ours() == len(calls)
""")


def test_a_first_enable_while_others_reduce():
    """The dispatcher changes under them: nobody crashes, nobody gets another result."""
    run("""
import threading, torch, customops
torch.set_num_threads(1)
x = torch.randint(0, 3, (5, 7))
calls = (torch.argmin, torch.argmax, torch.min, torch.max)
first = lambda result: result[-1] if isinstance(result, tuple) else result
expected = [first(call(x, 1)) for call in calls]
stop, wrong, counts = threading.Event(), [], []

def reduce():
    count = 0
    while not stop.is_set():
        for call, e in zip(calls, expected):
            count += 1
            if not torch.equal(first(call(x, 1)), e):
                wrong.append(call)
    counts.append(count)

threads = [threading.Thread(target=reduce) for _ in range(8)]
for thread in threads:
    thread.start()
barrier = threading.Barrier(4)
enablers = [threading.Thread(target=lambda: (barrier.wait(), customops.enable())) for _ in range(4)]
for thread in enablers:
    thread.start()
for thread in enablers:
    thread.join()
threading.Event().wait(0.2)
stop.set()
for thread in threads:
    thread.join()
assert not wrong and len(counts) == 8 and customops.enabled()
""")


def test_nothing_is_printed_and_other_processes_are_left_alone():
    """In a fresh process, where torch would say that it replaces a kernel."""
    code = (
        "import torch, customops\n"
        "assert not customops.enabled()\n"
        "customops.enable()\n"
        "print(torch.argmax(torch.tensor([1., 3., 2.])).item())\n"
    )
    customops.enable()
    result = python("-W", "error", "-c", code)
    assert (result.stdout, result.stderr) == ("1\n", "")


@pytest.mark.parametrize("fails", ["_hand_back", "_switch_of"])  # the second of an older library
def test_a_device_that_cannot_be_switched_leaves_the_others_off(fails, monkeypatch):
    switched = []

    def of_device(device, name):
        if name == fails and device == "cuda":
            raise RuntimeError("another extension")
        return lambda on: switched.append((device, on))

    libraries = SimpleNamespace(cpu=SimpleNamespace(loaded=True), cuda=SimpleNamespace(loaded=True))
    monkeypatch.setattr(switch, "libraries", libraries)
    for name in ("_hand_back", "_switch_of"):
        monkeypatch.setattr(switch, name, functools.partial(of_device, name=name))
    with pytest.raises(RuntimeError, match="another extension"):
        customops.enable()
    assert not switched and not customops.enabled()


def block():
    with customops.enable():
        pass


def ctrl_c():
    raise KeyboardInterrupt


# What is enabled after a handler that runs as the call begins, and as it ends.
SIGNALS = [
    (customops.enable, block, True, True),
    (customops.enable, customops.enable, True, True),
    (customops.enable, customops.disable, True, False),
    (customops.enable, ctrl_c, False, True),
    (customops.disable, block, False, False),
    (customops.disable, customops.enable, False, True),
    (customops.disable, customops.disable, False, False),
    (customops.disable, ctrl_c, True, False),
    (switch.Enabled.__new__(switch.Enabled).__enter__, customops.disable, True, False),
    (switch.Enabled.__new__(switch.Enabled).__enter__, ctrl_c, False, True),
    (block, customops.enable, True, True),
    (block, customops.disable, False, False),
]


@pytest.mark.parametrize("call, handler, first, last", SIGNALS)
def test_a_signal_at_any_place(call, handler, first, last, monkeypatch):
    """Its handler runs where Python runs one: as a function is entered, and after a call."""
    kernels = {}

    def switch_of(device):
        return lambda on: kernels.update({device: on})

    libraries = SimpleNamespace(cpu=SimpleNamespace(loaded=True), cuda=SimpleNamespace(loaded=True))
    monkeypatch.setattr(switch, "libraries", libraries)
    monkeypatch.setattr(switch, "_switch_of", switch_of)
    monkeypatch.setattr(switch, "_hand_back", lambda device: None)

    def interrupted(place):
        def at_event(frame, event, argument):
            nonlocal place
            place -= event != "c_call"
            if place < 0:
                sys.setprofile(None)
                made[:] = [handler()]

        try:
            sys.setprofile(at_event)
            call()
            sys.setprofile(None)
        except KeyboardInterrupt:
            pass
        return place < 0

    states, made = [], [None]
    customops.enable()
    customops.disable()
    while True:
        if call is customops.disable:
            customops.enable()
        if not interrupted(len(states)):
            break
        states.append(customops.enabled())
        assert kernels == dict.fromkeys(kernels, states[-1]), states
        with customops.enable():
            assert all(kernels.values()), states
        if made[0]:
            with made[0]:
                pass
            assert customops.enabled() == (call is customops.enable), states
        customops.disable()
        assert not customops.enabled() and not any(kernels.values()), states
    assert states[0] == first and states == sorted(states, reverse=first), states
    assert states[-1] == last
