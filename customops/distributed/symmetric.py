"""One kernel in place of the collective and what follows it, between GPUs of one host.

The GPUs write into each other's memory, which torch's symmetric memory makes possible; NVLink
multicast is not needed. Calls that are too large for the buffers take the collective. What decides
has to be the same on all ranks, or they wait for each other: so neither whether a tensor requires a
gradient nor whether the call is part of a graph does.
"""

import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _torch_private, libraries
from .._register import caches
from .links import objects_of_ranks

_ops, _raw_stream = torch.ops.reduceops, _torch_private.current_raw_stream
_one_shot = _torch_private.direct(_ops._one_shot.default)
_is_captured = torch.cuda.is_current_stream_capturing

CAPACITY = 4096  # words of a rank in a call for which there is room


def _fit(words: Tensor, device: torch.device) -> bool:
    """Whether the kernel takes them. (Eager mode and graphs have to agree on it, or ranks hang.)"""
    return 1 < words.size(1) <= CAPACITY and words.device == device


class Exchange(NamedTuple):
    """What the kernel needs, and what has to stay alive for it."""

    buffers: Tensor  # the address of each rank's buffer
    own: Tensor  # this rank's: (2, ranks, CAPACITY, 2), a word of 8 bytes in halves
    state: Tensor  # the number of the last call
    rank: int
    timeout: int  # in ns
    device: torch.device
    group_name: str
    streams: list[torch.cuda.Stream]  # that of the last call, and of the last in a CUDA graph
    handle: object

    def fits(self, words: Tensor) -> bool:
        return _fit(words, self.device)

    def __call__(
        self, words: Tensor, x: Tensor, dims: Sequence[int], largest: bool, keepdim: bool
    ) -> tuple[Tensor, Tensor]:
        captured = _is_captured()
        if _raw_stream(self.device.index) != self.streams[captured].cuda_stream:
            self._follow(captured)
        return _one_shot(words, x, dims, largest, keepdim, *self[:5])

    def _follow(self, captured: bool) -> None:
        """Has this stream wait for that of the last call, for calls come one after another. (A
        stream that is captured can wait for none that is not.)"""
        stream, last = torch.cuda.current_stream(self.device), self.streams[captured]
        with torch.cuda.stream(last):
            is_same_capture = _is_captured() == captured
        if is_same_capture:
            stream.wait_stream(last)
        self.streams[captured] = stream

    def headers(self) -> Tensor:
        """The first word of each rank in the last call, which the next but one overwrites."""
        slots = self.own[:, :, 0].index_select(0, self.state[:1] & 1)[0]
        return slots[:, 0] & 0xFFFFFFFF | slots[:, 1] << 32


exchanges: dict[ref, Exchange] = {}  # by group, for as long as it lives
devices: dict[str, torch.device] = {}  # the same by name, which a graph of torch.compile can ask
_retired: dict[int, Exchange] = {}  # of groups without, by id; kernels may still use the buffers


def exchange_of(group: dist.ProcessGroup) -> Exchange | None:
    return exchanges.get(ref(group))


def is_for(group: dist.ProcessGroup, words: Tensor) -> bool:
    """What `Exchange.fits` says, in a graph too."""
    device = devices.get(group.group_name)
    return device is not None and _fit(words, device)


def enable(group: dist.ProcessGroup, timeout: float) -> bool:
    """Whether all ranks of the group could; all of them call this."""
    forget_destroyed()
    limit, problems = _on_all_ranks(group, lambda: _nanoseconds(timeout))
    for rank, problem in enumerate(problems):
        if problem:
            raise RuntimeError(
                f"customops.distributed.enable_symmetric_memory: rank {rank}: {problem}"
            )
    if all(objects_of_ranks(group, _has_it(group))):
        exchanges[ref(group)] = exchanges[ref(group)]._replace(timeout=limit)
        return True
    disable(group)
    # A rank that fails in a step must not leave the others in the next one.
    memory, problems = _on_all_ranks(group, _available_memory)
    if any(problems) or len(set(objects_of_ranks(group, socket.gethostname()))) > 1:
        return False
    buffer, problems = _on_all_ranks(group, lambda: _buffer(memory, group))
    if any(problems):
        return False
    exchange, problems = _on_all_ranks(group, lambda: _connect(memory, group, buffer, limit))
    if any(problems):
        return False
    hold(group, exchange)
    return True


def hold(group: dist.ProcessGroup, exchange: Exchange) -> None:
    exchanges[ref(group, _retire)], devices[exchange.group_name] = exchange, exchange.device
    caches.set_cache_tag()


def disable(group: dist.ProcessGroup) -> None:
    _retire(ref(group))
    _free()


def forget_destroyed() -> None:
    """Frees what destroyed groups had, whether or not somebody still holds the group."""
    for held in list(exchanges):
        group = held()
        try:
            dist.get_rank(group)
        except ValueError:  # torch does not know it
            _retire(held)
    _free()


def _retire(held: ref) -> None:
    """No call finds it any more. A group that is garbage may be collected anywhere, in the middle
    of a CUDA graph's capture too, which ends where anybody waits: so this does not."""
    exchange = exchanges.pop(held, None)
    if exchange is None:
        return
    _retired[id(exchange)] = exchange
    # After a new init_process_group another group has the name.
    if all(other.group_name != exchange.group_name for other in list(exchanges.values())):
        devices.pop(exchange.group_name, None)
    caches.set_cache_tag()


def _free() -> None:
    for key, exchange in list(_retired.items()):  # to which others may add, or free the same
        if exchange.state.is_cuda:
            torch.cuda.synchronize(exchange.device)  # kernels on any stream use the buffers
        _retired.pop(key, None)


def _has_it(group: dist.ProcessGroup) -> bool:
    """Whether this rank has an exchange, for the GPU that is current."""
    exchange = exchange_of(group)
    return exchange is not None and exchange.device.index == torch.cuda.current_device()


def _on_all_ranks(group: dist.ProcessGroup, step: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a step gives on this rank, and why it failed on each: "" where it did not."""
    result, problem = None, ""
    try:
        result = step()
    except Exception as error:
        problem = repr(error)
    return result, objects_of_ranks(group, problem)


def _nanoseconds(timeout: float) -> int:
    if not 0 < timeout < 2**63 / 1e9:
        raise ValueError(f"timeout is {timeout}; it takes a positive number of seconds")
    return max(1, round(timeout * 1e9))


def _available_memory() -> Any:
    if not libraries.cuda.loaded:
        raise RuntimeError(libraries.cuda.reason)
    memory = _torch_private.symmetric_memory()
    if memory is None:
        raise RuntimeError("this torch has no symmetric memory")
    return memory


def _buffer(memory: Any, group: dist.ProcessGroup) -> Tensor:
    device = torch.device("cuda", torch.cuda.current_device())
    shape = (2, dist.get_world_size(group), CAPACITY, 2)
    return memory.empty(shape, dtype=torch.int64, device=device).zero_()


def _connect(memory: Any, group: dist.ProcessGroup, own: Tensor, timeout: int) -> Exchange:
    handle = memory.rendezvous(own, group)
    ranks = range(dist.get_world_size(group))
    of_ranks = [handle.get_buffer(rank, own.shape, own.dtype) for rank in ranks]
    addresses = [of_rank.data_ptr() for of_rank in of_ranks]
    buffers = torch.tensor(addresses, dtype=torch.int64, device=own.device)
    state = torch.zeros(2, dtype=torch.int32, device=own.device)
    torch.cuda.synchronize(own.device)  # the buffer is zero before any rank writes into it
    streams = [torch.cuda.current_stream(own.device)] * 2
    name = group.group_name
    return Exchange(buffers, own, state, handle.rank, timeout, own.device, name, streams, handle)
