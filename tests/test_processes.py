"""Threads, processes, memory that ends or is to stay, signals, and importing more than once."""

import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import data
import fuzz
import pytest
import torch
from conftest import NO_CUDA, python_after_torch

import customops

# Sanitizers reserve address space and keep what is freed.
measures_memory = pytest.mark.skipif(
    not Path("/proc/self/statm").exists() or "san.so" in os.environ.get("LD_PRELOAD", ""),
    reason="needs Linux, and no sanitizer",
)


def run(code, *arguments):
    """Runs `code` in a fresh Python."""
    done = python_after_torch("-c", code, *arguments)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr[-5000:]}"
    return done.stdout


@pytest.mark.usefixtures("number_of_threads")
def test_many_threads_make_random_calls(device):
    """The same calls in each thread, in an order of its own: others differ at any moment."""
    cases = fuzz.some(250, 0, fuzz.cases([device], elements=(64, 4096, 100_000)))

    def work(thread):
        for i in range(len(cases)):
            cases[(i * (2 * thread + 1)) % len(cases)].check()

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, range(12)))


def argmax_of_rows(x):
    """Module level, so that workers can import it."""
    return customops.argmax(x, 1)


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_worker_processes(start):
    """With the number of threads that DataLoader gives its workers; see below."""
    x = data.make((300, 3001), torch.float32, "ties")
    expected = customops.argmax(x, 1)  # in several threads, before a fork
    context = multiprocessing.get_context(start)
    with context.Pool(2, torch.set_num_threads, (1,)) as pool:
        results = pool.map_async(argmax_of_rows, [x] * 4).get(timeout=120)
    assert all(torch.equal(result, expected) for result in results)


# After a fork, threads of the parent do not exist; GNU's OpenMP waits for them all the same, under
# torch's own operators too. Small inputs need none.
AFTER_A_FORK = """
import os, torch, customops
small, large = torch.rand(5, 7), torch.rand(1000, 3001)
expected = [customops.argmin(x, 1) for x in (small, large)]
child = os.fork()
if child == 0:
    right = torch.equal(customops.argmin(small, 1), expected[0])
    torch.set_num_threads(1)
    right &= torch.equal(customops.argmin(large, 1), expected[1])
    os._exit(0 if right else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.equal(customops.argmin(large, 1), expected[1])
"""


def test_a_forked_process_and_its_parent_go_on():
    run(AFTER_A_FORK)


# Another thread is inside enable() when the process forks: nobody in the child would leave it.
FORK_BESIDE_ENABLE = """
import os, signal, threading, torch, customops
from customops import switch
stop = threading.Event()

def toggle():
    while not stop.is_set():
        with customops.enable():
            pass

thread = threading.Thread(target=toggle)
thread.start()
for _ in range(50):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with customops.enable():
            right = torch.equal(torch.argmin(torch.ones(3, 4), 1), torch.zeros(3, dtype=torch.long))
        os._exit(0 if right else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
with switch._lock:  # as a handler of a signal may find it
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
stop.set()
thread.join()
"""


def test_a_process_forks_beside_a_thread_that_enables():
    run(FORK_BESIDE_ENABLE)


GROWTH = """
import gc, sys, threading, torch, customops
device = sys.argv[1]
shapes = [(5, 7), (64, 3001), (3001, 64), (300_000,), (2, 64, 33, 9)]
inputs = [torch.rand(shape, device=device) for shape in shapes]
leaves = [x.clone().requires_grad_() for x in inputs]

def calls(count, gradients):
    for i in range(count):
        x, leaf = inputs[i % 5], leaves[i % 5]
        customops.argmin(x), customops.argmax(x, [0]), customops.min(x, -1, True)
        customops.scale_max(x, 2.0, 0)
        if gradients:
            customops.max(leaf, -1)[0].sum().backward()
            leaf.grad = None
        for wrong in (lambda: customops.argmin(x, 9), lambda: customops.scale_min(x, "two")):
            try:
                wrong()
            except (IndexError, RuntimeError, TypeError):
                pass

def in_threads(count):
    for _ in range(count):
        threads = [threading.Thread(target=calls, args=(5, False)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

def used():
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * 4096
    return resident, torch.cuda.memory_allocated() if device == "cuda" else 0

def growth(work, before, count):
    work(before)
    start = used()
    work(count)
    return [b - a for a, b in zip(start, used())]

print(*growth(lambda count: calls(count, True), 200, 1000))
print(*growth(in_threads, 20, 40))
"""


@measures_memory
def test_memory_does_not_grow(device):
    """Over 7000 calls, two in seven of them errors, and over 320 threads that come and go."""
    for line in run(GROWTH, device).splitlines():
        resident, allocated = map(int, line.split())
        assert resident < 4 << 20 and allocated == 0, line


OUT_OF_MEMORY = """
import resource, torch, customops
row = torch.rand(1, 2)
many = row.expand(1 << 26, 2)  # of 512 MiB of indices
large = torch.rand(2_000_000)  # in parts, whose candidates need memory too
expected = torch.argmin(large)
assert customops.argmin(large) == expected  # all threads exist

def space():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * 4096

attempts = [
    lambda: customops.argmin(many, 1),
    lambda: customops.argmax(many, [1]),
    lambda: customops.max(many, 1),
    lambda: customops.scale_min(many, 2.0, 1),  # 256 MiB
    lambda: customops.argmax(many.t(), 0),
]
for spare in (0, 4 << 10, 1 << 20, 200 << 20):
    resource.setrlimit(resource.RLIMIT_AS, (space() + spare, resource.RLIM_INFINITY))
    for attempt in attempts:
        try:
            attempt()
        except (RuntimeError, MemoryError):
            pass
        else:
            raise AssertionError(f"there is memory, with {spare} bytes")
        assert customops.argmin(row, 1).item() == row.argmin()
        try:
            assert customops.argmin(large) == expected
        except MemoryError:
            pass
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert customops.argmin(large) == expected
"""


@measures_memory
def test_out_of_memory_is_an_error_and_the_next_call_works():
    run(OUT_OF_MEMORY)


STRIDED = """
import resource, torch, customops
square = torch.rand(4000, 4000)
inputs = [(square.t(), 1), (square.t(), 0), (square[:, ::2], 1), (square[::2, 1:], 0)]
inputs += [(square.view(40, 100, 4000).transpose(0, 2), 1)]
expected = [torch.min(x, dim) for x, dim in inputs]
for x, dim in inputs:
    customops.min(x[:2000], dim)  # all threads exist, with their scratch
with open("/proc/self/statm") as file:
    space = int(file.read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (space + (4 << 20), resource.RLIM_INFINITY))
for (x, dim), (values, indices) in zip(inputs, expected):
    found = customops.min(x, dim)
    assert torch.equal(found[0], values) and torch.equal(found[1], indices), (x.shape, dim)
    try:
        x.clone(memory_format=torch.contiguous_format)
    except (RuntimeError, MemoryError):
        continue
    raise AssertionError("there is memory for a copy")
"""


@measures_memory
def test_strided_inputs_are_read_where_they_are():
    """With too little memory for a copy of them."""
    run(STRIDED)


@NO_CUDA
def test_out_of_gpu_memory_is_an_error_and_the_next_call_works():
    row = torch.rand(1, 2, device="cuda")
    many = row.expand(1 << 40, 2)
    for call in (customops.argmin, customops.max, customops.argmax):
        with pytest.raises(RuntimeError):
            call(many, 1)
        assert customops.argmin(row, 1).item() == row.argmin().item()


def test_a_keyboard_interrupt_corrupts_nothing():
    """Between any two lines of Python, in the midst of calls; none is lost and no result wrong."""
    inputs = [data.make(shape, torch.float32, "ties") for shape in ((64, 30_001), (5, 7))]
    expected = [x.argmin(1) for x in inputs]
    interrupts, armed = 0, False

    def interrupt(*_):
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        while interrupts < 100:
            try:
                armed = True
                while True:
                    for x, indices in zip(inputs, expected, strict=True):
                        assert torch.equal(customops.argmin(x, 1), indices)
            except KeyboardInterrupt:
                interrupts += 1
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


USE = """
def use():
    x = torch.tensor([[2.0, 1.0], [3.0, 5.0]], requires_grad=True)
    ops = torch.ops.reduceops
    assert ops.argmin(x, 1).tolist() == [1, 0]
    ops.max(x, 0)[0].sum().backward()
    assert x.grad.tolist() == [[0, 0], [1, 1]]
    assert torch.vmap(lambda row: ops.argmax(row, 0))(x.detach()).tolist() == [0, 1]
    assert ops.argmin(torch.empty(3, 4, device="meta"), 0).shape == (4,)
"""


def test_the_package_is_reloaded():
    run(
        "import importlib, sys, torch, customops\n" + USE + "use()\n"
        "assert importlib.reload(customops) is customops\n"
        "use()\n"
        "assert customops.argmin(torch.tensor([2.0, 1.0])) == 1"
    )
