"""One kernel in place of the collective and what follows it, between GPUs of one host.

The GPUs write into each other's memory, which torch's symmetric memory makes possible; NVLink
multicast is not needed. Calls that are too large for the buffers take the collective, as do those
in a graph of torch.compile. What decides has to be the same on all ranks, or they wait for each
other: so whether a tensor requires a gradient does not.
"""

import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _torch_private, libraries

_ops = torch.ops.reduceops
_one_shot = _ops._one_shot.default
_one_shot = getattr(_one_shot, "_op", _one_shot)  # what calling an overload calls

CAPACITY = 4096  # words of a rank in a call for which there is room
SLOT_BYTES = 16  # of a word as it is sent: kSlotBytes in csrc/cuda/pack.h


class Exchange(NamedTuple):
    """What the kernel needs, and what has to stay alive for it."""

    buffers: Tensor  # the address of each rank's buffer
    state: Tensor  # the number of the last call
    rank: int
    timeout: int  # in ns
    buffer: Tensor  # this rank's: [2][ranks][CAPACITY] slots
    handle: object

    def fits(self, words: Tensor) -> bool:
        return 1 < words.size(1) <= CAPACITY and words.device == self.state.device

    def __call__(
        self, words: Tensor, x: Tensor, dims: Sequence[int], keepdim: bool, largest: bool
    ) -> tuple[Tensor, Tensor]:
        return _one_shot(
            *(words, x, dims, keepdim, largest),
            *(self.buffers, self.state, self.rank, CAPACITY, self.timeout),
        )

    def headers(self) -> Tensor:
        """The first word of each rank in the last call, which the next but one overwrites."""
        slots = self.buffer.view(torch.int64).view(2, -1, CAPACITY, 2)
        slots = slots[:, :, 0].index_select(0, self.state[:1] & 1)[0]
        return slots[:, 0] & 0xFFFFFFFF | slots[:, 1] << 32


exchanges: dict[dist.ProcessGroup, Exchange] = {}


def of_call(groups: Sequence[dist.ProcessGroup], words: Tensor) -> Exchange | None:
    """That of the only group, if it has one and this call is for it."""
    exchange = exchanges.get(groups[0]) if len(groups) == 1 else None
    return exchange if exchange is not None and exchange.fits(words) else None


def enable(group: dist.ProcessGroup, timeout: float) -> bool:
    """Whether all ranks of the group could; all of them call this."""
    forget_destroyed()
    if group in exchanges:
        return True
    limit, problems = _on_all_ranks(group, lambda: _nanoseconds(timeout))
    for rank, problem in enumerate(problems):
        if problem:
            raise RuntimeError(
                f"customops.distributed.enable_symmetric_memory: rank {rank}: {problem}"
            )
    # A rank that fails in a step must not leave the others in the next one.
    memory, problems = _on_all_ranks(group, _available_memory)
    if any(problems) or not _are_on_one_host(group):
        return False
    buffer, problems = _on_all_ranks(group, lambda: _buffer(memory, group))
    if any(problems):
        return False
    exchange, problems = _on_all_ranks(group, lambda: _connect(memory, group, buffer, limit))
    if any(problems):
        return False
    exchanges[group] = exchange
    return True


def disable(group: dist.ProcessGroup) -> None:
    exchange = exchanges.pop(group, None)
    if exchange is not None and exchange.state.is_cuda:
        torch.cuda.synchronize(exchange.state.device)  # kernels on any stream use the buffers


def forget_destroyed() -> None:
    """Frees what groups had that are no more."""
    for group in list(exchanges):
        try:
            dist.get_rank(group)
        except ValueError:  # torch does not know it
            disable(group)


def _on_all_ranks(group: dist.ProcessGroup, step: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a step gives on this rank, and why it failed on each: "" where it did not."""
    result, problem = None, ""
    try:
        result = step()
    except Exception as error:
        problem = repr(error)
    problems: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(problems, problem, group=group)
    return result, problems


def _nanoseconds(timeout: float) -> int:
    if not 0 < timeout < 2**63 / 1e9:
        raise ValueError(f"timeout is {timeout}; it takes a positive number of seconds")
    return round(timeout * 1e9)


def _available_memory() -> Any:
    if not libraries.cuda.loaded:
        raise RuntimeError(libraries.cuda.reason)
    memory = _torch_private.symmetric_memory()
    if memory is None:
        raise RuntimeError("this torch has no symmetric memory")
    return memory


def _are_on_one_host(group: dist.ProcessGroup) -> bool:
    hosts: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(hosts, socket.gethostname(), group=group)
    return len(set(hosts)) == 1


def _buffer(memory: Any, group: dist.ProcessGroup) -> Tensor:
    device = torch.device("cuda", torch.cuda.current_device())
    size = 2 * dist.get_world_size(group) * CAPACITY * SLOT_BYTES
    return memory.empty(size, dtype=torch.uint8, device=device).zero_()


def _connect(memory: Any, group: dist.ProcessGroup, buffer: Tensor, timeout: int) -> Exchange:
    handle = memory.rendezvous(buffer, group)
    ranks = range(dist.get_world_size(group))
    of_ranks = [handle.get_buffer(rank, buffer.shape, torch.uint8) for rank in ranks]
    addresses = [of_rank.data_ptr() for of_rank in of_ranks]
    buffers = torch.tensor(addresses, dtype=torch.int64, device=buffer.device)
    state = torch.zeros(2, dtype=torch.int32, device=buffer.device)
    torch.cuda.synchronize(buffer.device)  # the buffer is zero before any rank writes into it
    return Exchange(buffers, state, handle.rank, timeout, buffer, handle)
