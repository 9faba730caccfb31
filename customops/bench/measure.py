"""How it is measured: samples of seconds, taken in turns, and what they are compared with.

On a CPU, and for the Python call itself, by the host's clock. On a GPU by events: a large input is
read from cold L2, a small one in replays of a CUDA graph. Times are in seconds, sizes in bytes.
"""

import ctypes
import gc
import sys
import time
from collections.abc import Callable, Collection
from functools import cache, partial
from pathlib import Path
from statistics import median
from timeit import Timer

import torch
from torch import Tensor

from customops import libraries

from . import convolutions, peers
from .cases import Case
from .convolutions import Convolution
from .peers import OURS, Contender
from .strided import Strided

COLD_BYTES = 32 << 20  # inputs from here on are read from cold L2 on a GPU
FLUSH_BYTES = 256 << 20  # read to make L2 cold
MORE_FLUSHES = (1, 4, 16)  # before a call that takes the host longer than the flush takes the GPU
BATCH_SECONDS = 1e-3  # a sample by the host's clock is so long at least
CALLS = 20  # in a CUDA graph, or queued where that cannot be
LEAST_SAMPLES = 5
FAR_BEHIND = 3  # times ours: two samples are enough

Sampler = Callable[[], float]


def limits_of(properties) -> dict[str, int | bool]:
    """What `cuda_plan` is told of a GPU by torch's properties of it, as the library knows it."""
    shared_bytes = 227 << 10  # of a block, which walks by bulk copies need
    has_room = properties.shared_memory_per_block_optin >= shared_bytes
    bulk = properties.major >= 9 and has_room
    return {"multiprocessors": properties.multi_processor_count, "bulk": bulk}


def stores_of(case: Case | Strided) -> dict[str, bool]:
    """What a plan is told of what a case stores."""
    return {"values": not case.op.startswith("arg"), "indices": not case.scaled}


def measure(
    case: Case,
    names: list[str],
    device: str,
    threads: int | None,
    seconds: float,
    ceiling: float | None,
) -> dict:
    """The figures of a case, as report.py describes them.

    Each contender takes at least LEAST_SAMPLES samples and then up to `seconds`. `ceiling` is the
    read bandwidth in bytes/s, None to measure it between the contenders. `threads` is what torch
    is set to, None on a GPU.
    """
    row = {
        "name": str(case),
        **{key: getattr(case, key) for key in ("op", "shape", "dim", "dtype", "layout", "data")},
        **{"mask": case.mask, "index": case.index, "mask_bytes": case.mask_bytes},
        **{"group": case.group, "threads": threads, "input_bytes": case.input_bytes},
    }
    if "torch._dynamo" in sys.modules:  # to import it takes seconds
        torch.compiler.reset()
    if case.input_bytes * 2.5 > available_bytes(device):
        return row | {"skipped": "not enough memory", "contenders": {}}
    x = case.make_input(device)
    convolves = isinstance(case, Convolution)
    expected = convolutions.reference(case, x) if convolves else peers.reference(case, x)
    outputs = expected if isinstance(expected, tuple) else (expected,)
    output_bytes = sum(
        output.numel() * (output.itemsize if output.dtype != torch.int64 else case.index_bytes)
        for output in outputs
    )

    figures, samplers = {}, {}
    for name in names:
        try:
            contender = (
                convolutions.contender(name, case, x)
                if convolves
                else peers.CONTENDERS[name](case, x)
            )
            figures[name] = {"right": _check(contender, expected, case.tolerance)}
            figures[name]["workspace_bytes"] = _workspace(contender, device, output_bytes)
            samplers[name], figures[name]["method"] = _sampler(contender, case, device)
        except Exception as error:
            figures[name] = {"error": one_line(error)}
    bound_by_memory = case.timing != "host"
    if bound_by_memory and ceiling is None:
        samplers["read"] = wall(reader(x))
    samples = in_turns(samplers, seconds)

    read = samples.pop("read", None)
    row["output_bytes"] = output_bytes
    for name, taken in samples.items():
        # Less the time of a tiny call, that of one as short may be nothing.
        lost = median(taken) <= 0
        figures[name] |= {"error": "too short to be measured"} if lost else summary_of(taken)
    if bound_by_memory:
        ceiling = case.input_bytes / median(read) if read else ceiling
        row["read_bytes_per_second"] = ceiling
        row["limit_seconds"] = (case.input_bytes + case.mask_bytes + output_bytes) / ceiling
        for measured in figures.values():
            if "seconds" in measured:
                measured["share"] = row["limit_seconds"] / measured["seconds"]
    return row | {"contenders": figures, **compare(figures)}


def free() -> None:
    """Gives memory back before the next case."""
    gc.collect()
    _trim()
    if "cupy" in sys.modules:
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def available_bytes(device: str) -> int:
    """Of memory, on the device."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    fields = Path("/proc/meminfo").read_text().split()
    return int(fields[fields.index("MemAvailable:") + 1]) * 1024


def cuda_ceiling(seconds: float) -> float:
    """The GPU's read bandwidth in bytes/s."""
    size = min(4 << 30, available_bytes("cuda") // 2)
    read = reader(torch.ones(size // 4, dtype=torch.int32, device="cuda"))
    return size / median(in_turns({"read": cold(read)}, seconds)["read"])


def reader(x: Tensor) -> Callable[[], object]:
    """A plain read of the bytes of `x`: on the current stream, or by torch's threads."""
    if not x.is_cuda:
        read = libraries.cpu.function("reduceops_cpu_read")
        return partial(read, ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(x.nbytes))
    read = libraries.cuda.function("reduceops_cuda_read")

    def read_on_stream() -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        read(ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(x.nbytes), stream)

    return read_on_stream


def _check(contender: Contender, expected, tolerance: float) -> bool | None:
    """Whether the answer is right, None where there is none. The first call: it warms up too."""
    answer = contender.answer(contender.call())
    return None if answer is None else peers.is_right(answer, expected, tolerance)


def _workspace(contender: Contender, device: str, output_bytes: int) -> int | None:
    """Bytes allocated at the peak of a call besides the output; None where that is not known."""
    if device == "cuda" and contender.own_memory:
        return None
    peak = peak_bytes(contender.call, device)
    return None if peak is None else max(0, peak - output_bytes)


def peak_bytes(call: Callable, device: str) -> int | None:
    """Bytes allocated at the peak of a call besides what there was; None where not known."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    _trim()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts at what is resident now
    except OSError:
        return None
    before = _resident("VmRSS:")
    result = call()
    peak = _resident("VmHWM:")
    del result
    return peak - before


def _resident(field: str) -> int:
    fields = Path("/proc/self/status").read_text().split()
    return int(fields[fields.index(field) + 1]) * 1024


def _trim() -> None:
    """Gives glibc's free memory back, so that a peak does not hide in it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


def _sampler(contender: Contender, case: Case, device: str) -> tuple[Sampler, str]:
    """A sampler of seconds per call, and what it does in words."""
    if device == "cpu":
        return wall(contender.call), "host clock"
    if case.timing == "host":
        return _host(contender.call), "host clock, calls only"
    graph = case.timing == "graph" or case.input_bytes < COLD_BYTES
    if contender.finish:
        if graph:
            return _queued_elsewhere(contender), "host clock, calls queued"
        return _waited_for(contender), "cold L2, host clock less that of a tiny call"
    if not graph:
        return cold(contender.call), "cold L2, events"
    try:
        return _replayed(contender.call), "CUDA graph"
    except RuntimeError:
        torch.cuda.synchronize()
        return _queued(contender.call), "events, calls queued (no graph)"


def wall(call: Callable) -> Sampler:
    """Seconds of a call by the host's clock."""
    timer = Timer(call)
    once = timer.timeit(1)
    if once < BATCH_SECONDS:
        once = timer.timeit(10) / 10
    number = max(1, round(BATCH_SECONDS / once))
    return lambda: timer.timeit(number) / number


def _host(call: Callable) -> Sampler:
    """The host's part of a call; what it enqueues on the GPU is waited for between samples."""
    timer = Timer(call)

    def sample() -> float:
        torch.cuda.synchronize()
        return timer.timeit(CALLS) / CALLS

    return sample


def _events(enqueue: Callable, calls: int = 1) -> Sampler:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample() -> float:
        start.record()
        enqueue()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / calls

    return sample


@cache
def _flusher() -> Callable[[], object]:
    return reader(torch.ones(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda"))


def _flush() -> None:
    """Fills L2 with other data; the launch that follows hides behind it. By reading: what is
    written there would be written back to memory while the next kernel runs."""
    _flusher()()


def cold(call: Callable) -> Sampler:
    """Seconds of a call's work on the GPU, from cold L2."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample() -> float:
        for flushes in MORE_FLUSHES:
            for _ in range(flushes):
                _flush()
            start.record()
            call()
            end.record()
            if not start.query():  # else the GPU has waited for the host, whose time is not asked
                break
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    return sample


# How a call that memory bounds is timed; its first call is over.
TIMED = {"cpu": wall, "cuda": cold}


def _queued(call: Callable) -> Sampler:
    def several() -> None:
        for _ in range(CALLS):
            call()

    return _events(several, calls=CALLS)


def _replayed(call: Callable) -> Sampler:
    """CALLS calls in one graph, so that its launch does not count."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):  # around the capture too, which does not end it when it fails
        for _ in range(3):
            call()
        stream.synchronize()
        # Relaxed: other allocators than torch's may grow.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
            for _ in range(CALLS):
                call()
    graph.replay()
    return _events(graph.replay, calls=CALLS)


def _queued_elsewhere(contender: Contender) -> Sampler:
    def sample() -> float:
        start = time.perf_counter()
        for _ in range(CALLS):
            result = contender.call()
        contender.finish(result)
        return (time.perf_counter() - start) / CALLS

    return sample


def _waited_for(contender: Contender) -> Sampler:
    """What calling and waiting costs by itself is taken off, as seen on a tiny input."""
    import jax

    tiny = Contender(partial(jax.jit(jax.numpy.argmax), jax.numpy.zeros(16)))

    def waited(call: Callable) -> float:
        _flush()
        torch.cuda.synchronize()
        start = time.perf_counter()
        contender.finish(call())
        return time.perf_counter() - start

    waited(tiny.call)
    return lambda: waited(contender.call) - waited(tiny.call)


def in_turns(
    samplers: dict[str, Sampler], seconds: float, hurried: Collection[str] = ()
) -> dict[str, list[float]]:
    """Samples of all in turns, so that the machine's noise hits all alike. One of the `hurried`
    takes no more once it is far behind ours."""
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    spent = dict.fromkeys(samplers, 0.0)
    running = set(samplers)
    while running:
        for name in [name for name in samplers if name in running]:
            start = time.perf_counter()
            samples[name].append(samplers[name]())
            spent[name] += time.perf_counter() - start
            enough = spent[name] >= seconds and len(samples[name]) >= LEAST_SAMPLES
            if enough or (name in hurried and _far_behind(samples[name], samples[OURS])):
                running.discard(name)
    return samples


def _far_behind(samples: list[float], ours: list[float]) -> bool:
    return len(samples) > 1 and min(samples) > FAR_BEHIND * min(ours)


def summary_of(samples: list[float]) -> dict:
    """Median, quartiles and how many."""
    ordered = sorted(samples)
    return {
        "seconds": median(ordered),
        "quartiles": [ordered[len(ordered) // 4], ordered[len(ordered) * 3 // 4]],
        "samples": len(ordered),
    }


def compare(figures: dict[str, dict]) -> dict:
    """Times of torch and of the fastest peer with the right answer, as multiples of ours."""
    times = {name: f["seconds"] for name, f in figures.items() if f.get("right") and "seconds" in f}
    ours = times.pop(peers.OURS, None)
    times.pop(peers.OPERATOR, None)
    best = min(times, key=times.get, default=None)
    return {
        "best_peer": best,
        "best_peer_ratio": times[best] / ours if best and ours else None,
        "torch_ratio": times["torch"] / ours if "torch" in times and ours else None,
    }


def one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}"[:200] if lines else type(error).__name__
