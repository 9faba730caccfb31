"""Many callers: threads, DataLoader workers, streams; modules that are saved and autocast."""

import ctypes
import math
import mmap
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import data
import pytest
import reference
import torch
from conftest import NO_CUDA, python
from opspec import OPS, as_tuple, assert_same, each_op
from torch.utils.data import DataLoader, Dataset

import customops


def test_threads_do_not_disturb_each_other(device):
    """Small and large problems of every operator at once, with and without gradients."""
    problems = []
    for spec in OPS:
        for shape in ((5, 7), (64, 3001), (3001, 64), (300_000,)):
            x = data.make(shape, torch.float32, "ties").to(device)
            for dim in range(len(shape)):
                problems.append((spec, x, dim, spec.reference(x, *spec.arguments(dim, False))))
    start = threading.Barrier(8)

    def work(offset):
        start.wait()
        for i in range(len(problems)):
            spec, x, dim, expected = problems[(i + 11 * offset) % len(problems)]
            x = x.detach().requires_grad_(spec.differentiable and i % 2 == 0)
            result = spec.op(x, *spec.arguments(dim, False))
            assert_same(result, expected, spec.tolerance)
            if x.requires_grad:
                as_tuple(result)[0].sum().backward()
                if not spec.tolerance.ulps:  # a probability depends on every element
                    assert x.grad.count_nonzero() == as_tuple(result)[0].numel()
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


SMALL_STACKS = """
import threading
from concurrent.futures import ThreadPoolExecutor
import torch
import data
from opspec import OPS, assert_same

threading.stack_size(256 << 10)
thread = ThreadPoolExecutor(1)
for spec in OPS:
    for dtype in spec.dtypes:
        for shape in ((1000, 64), (3, 70_000), (70_000, 3), (40, 20, 70)):
            x = data.make(shape, dtype, "ties")
            for y in (x, x.flip(0)[..., ::2]):
                for dim in range(y.dim()):
                    arguments = spec.arguments(dim, False)
                    result = thread.submit(spec.op, y, *arguments).result()
                    context = (spec, dtype, shape, dim)
                    assert_same(result, spec.reference(y, *arguments), spec.tolerance, context)
"""


def test_small_stacks():
    """Of the calling thread, and of those that help it."""
    variables = {"OMP_STACKSIZE": "256k", "PYTHONPATH": os.path.dirname(__file__)}
    done = python("-X", "faulthandler", "-c", SMALL_STACKS, **variables)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr[-5000:]}"


# Another process, which no lock of Python's keeps from writing. Each byte of a file becomes 1, 2,
# 3, ..., or in turn 255, which makes NaNs, and 0.
WRITER = """
import ctypes, mmap, sys
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
bytes = (ctypes.c_char * len(memory)).from_buffer(memory)
print("writing", flush=True)
while True:
    for value in range(1, 100) if sys.argv[2] == "rising" else (255, 0):
        ctypes.memset(bytes, value, len(memory))
"""


@pytest.mark.parametrize("kind", ["rising", "nan"])
@pytest.mark.parametrize(
    "shape, dim, dtype",
    [
        ((1 << 16,), 0, torch.float32),
        ((8, 1 << 13), 1, torch.float64),
        ((64, 2000), 1, torch.int16),
        ((20_000, 3), 1, torch.float32),
        ((1000, 200), 0, torch.bfloat16),
    ],
    ids=str,
)
def test_inputs_that_somebody_writes_to(shape, dim, dtype, kind, tmp_path):
    """The index is one of the input's, whatever is written between two looks at an element."""
    path = tmp_path / "input"
    path.write_bytes(bytes(math.prod(shape) * dtype.itemsize))
    with open(path, "r+b") as file:
        x = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=dtype).view(shape)
    command = [sys.executable, "-c", WRITER, path, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout.readline()
            end = time.monotonic() + 0.2
            while time.monotonic() < end:
                for y in (x, x, x[..., ::2]):
                    indices = torch.ops.reduceops.argmax(y, dim)
                    assert indices.min() >= 0 and indices.max() < y.size(dim)
        finally:
            writer.kill()


@pytest.mark.parametrize(
    "scale, dtype",
    [
        *((scale, dtype) for scale in (None, 1.0) for dtype in data.FLOATS),
        (None, torch.float8_e5m2),
    ],
)
def test_values_that_somebody_writes_to(dtype, scale):
    """A result is some element's: of zeros and negative numbers none is a negative zero."""
    x, zero, negative = (torch.full((3, 8192), v).to(dtype) for v in (0.0, 0.0, -1.0))
    minus_zero, done = reference.bits(torch.tensor(-0.0).to(dtype)), threading.Event()

    def write():
        while not done.is_set():
            x.copy_(negative)
            x.copy_(zero)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            if scale is None:
                found = torch.ops.reduceops.min(x, 0)[0]
            else:
                found = torch.ops.reduceops.scale_min(x, scale, 0)
            assert not (reference.bits(found) == minus_zero).any()
    finally:
        done.set()
        writer.join()


class Mallinfo2(ctypes.Structure):
    """glibc's struct."""

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


MALLINFO2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
SCRATCH_BYTES = 1 << 20  # csrc/cpu/scratch.h


def allocated_bytes():
    """What malloc gave and has not got back. Resident pages would count what its arenas keep of
    freed memory, which is tens of megabytes more after one round of threads than after another."""
    MALLINFO2.restype = Mallinfo2
    info = MALLINFO2()
    return info.uordblks + info.hblkhd


@pytest.mark.skipif(MALLINFO2 is None, reason="only glibc >= 2.33 says what is allocated")
def test_many_threads_leave_no_memory_behind():
    """Each with scratch of its own, in rounds; REDUCEOPS_TEST_SECONDS lengthens them."""
    seconds = float(os.environ.get("REDUCEOPS_TEST_SECONDS", "0.5"))
    shapes = ((16,), (3, 5), (1000, 64), (64, 1000), (40, 20, 70))
    problems = []
    for dtype in (torch.int8, torch.bfloat16, torch.float32, torch.float64):
        for shape in shapes:
            x = data.make(shape, dtype, "ties")
            for dim in range(len(shape)):
                problems.append((x, dim, reference.argmax(x, dim)))

    def work(end):
        turns = 0
        while turns == 0 or time.monotonic() < end:
            for x, dim, expected in problems:
                assert torch.equal(torch.ops.reduceops.argmax(x, dim), expected)
            turns += 1
        return turns

    work(0)  # what the process allocates once
    before = allocated_bytes()
    for _ in range(5):
        with ThreadPoolExecutor(64) as pool:
            assert min(pool.map(work, [time.monotonic() + seconds] * 64)) > 0
    end = time.monotonic() + 60  # OpenMP's threads end some time after those they helped
    while (more := allocated_bytes() - before) >= SCRATCH_BYTES and time.monotonic() < end:
        time.sleep(0.01)
    assert more < SCRATCH_BYTES


class Rows(Dataset):
    """Module level, so that spawned workers can import it."""

    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        row = self.x[index]
        return customops.argmin(row), customops.max(row, 0)[0], customops.argmax(row, [1, 0])


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_data_loader_workers(start):
    x = data.make((8, 300, 70), torch.float32, "random")
    customops.argmin(x)  # so that threads exist before a fork
    loader = DataLoader(Rows(x), batch_size=4, num_workers=2, multiprocessing_context=start)
    batches = list(loader)
    for part, expected in enumerate((x.flatten(1).argmin(1), x.amax(1), x.flatten(1).argmax(1))):
        assert torch.equal(torch.cat([batch[part] for batch in batches]), expected)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return customops.scale_min(self.convolution(x), 2.0)


def test_modules_are_saved_and_loaded(tmp_path):
    first, second = Model(), Model()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt"))
    torch.save(first, tmp_path / "model.pt")
    third = torch.load(tmp_path / "model.pt", weights_only=False)
    x = torch.randn(2, 3, 8, 8)
    expected = (first.convolution(x) * 2.0).amin(1, keepdim=True)
    for module in (first, second, third):
        assert torch.equal(module(x), expected)


@each_op
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_autocast_gives_the_dtypes_of_torch(spec, dtype, device):
    """Those of the input but for softmax_max on a GPU, where torch.softmax is float32."""
    x = data.make((4, 50), dtype, "ties").to(device)
    arguments = spec.arguments(1, False)
    with torch.autocast(device, dtype=torch.bfloat16):
        actual, torchs = as_tuple(spec.op(x, *arguments)), as_tuple(spec.torch(x, *arguments))
    assert [r.dtype for r in actual] == [r.dtype for r in torchs]
    computed = x.to(actual[0].dtype) if actual[0].is_floating_point() else x
    assert_same(actual, as_tuple(spec.reference(computed, *arguments)), spec.tolerance)


def test_autocast_trains(device):
    module, other = (Model().to(device) for _ in range(2))
    other.load_state_dict(module.state_dict())
    x = torch.randn(2, 3, 8, 8, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        result = module(x)
        expected = torch.min(other.convolution(x) * 2.0, 1, keepdim=True)[0]
    assert result.dtype == torch.bfloat16 and torch.equal(result, expected)
    result.float().sum().backward()
    expected.float().sum().backward()
    assert torch.equal(module.convolution.weight.grad, other.convolution.weight.grad)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two CUDA devices")
@each_op
def test_a_device_that_is_not_current(spec):
    x = data.make((40, 500), torch.float32, "ties").to("cuda:1")
    with torch.cuda.device(0):
        for dim in (0, 1):
            arguments = spec.arguments(dim, False)
            assert_same(spec.op(x, *arguments), spec.reference(x, *arguments), spec.tolerance)


@NO_CUDA
@each_op
def test_the_current_stream_is_used(spec):
    """What a stream has not written yet is waited for, because the call is queued behind it."""
    late = data.make((2000, 3000), torch.float32, "smooth").cuda()
    x, stream = torch.zeros_like(late), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        x.copy_(late)
        result = spec.op(x, *spec.arguments(1, False))
    stream.synchronize()
    assert_same(result, spec.reference(late, *spec.arguments(1, False)), spec.tolerance)
