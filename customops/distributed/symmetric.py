"""One kernel in place of the collective and what follows it, between GPUs of one host.

The GPUs write into each other's memory, which torch's symmetric memory makes possible; NVLink
multicast is not needed. Calls that are too large for the buffers take the collective, as do those
in a graph of torch.compile.
"""

import socket
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _torch_private, libraries

_ops = torch.ops.reduceops
_one_shot = _ops._one_shot.default
_one_shot = getattr(_one_shot, "_op", _one_shot)  # what calling an overload calls

CAPACITY = 4096  # words of a rank in a call (csrc/pairs.h)
SLOT_BYTES = 16  # of a word as it is sent (csrc/cuda/pack.h)


class Exchange(NamedTuple):
    """What the kernel needs, and what has to stay alive for it."""

    buffers: Tensor  # the address of each rank's buffer
    state: Tensor  # how many calls there were
    rank: int
    timeout: int  # in ns
    kept: tuple

    def fits(self, words: Tensor) -> bool:
        return 1 < words.size(1) <= CAPACITY and words.device == self.state.device

    def __call__(
        self, words: Tensor, x: Tensor, dims: Sequence[int], keepdim: bool, largest: bool
    ) -> tuple[Tensor, Tensor]:
        return _one_shot(
            *(words, x, dims, keepdim, largest),
            *(self.buffers, self.state, self.rank, CAPACITY, self.timeout),
        )


exchanges: dict[dist.ProcessGroup, Exchange] = {}


def of_call(groups: Sequence[dist.ProcessGroup], words: Tensor) -> Exchange | None:
    """That of the only group, if it has one and this call is for it."""
    exchange = exchanges.get(groups[0]) if len(groups) == 1 else None
    return exchange if exchange is not None and exchange.fits(words) else None


def enable(group: dist.ProcessGroup, timeout: float) -> bool:
    """Whether all ranks of the group could; all of them call this."""
    if group in exchanges:
        return True
    problem, exchange = "", None
    memory = _torch_private.symmetric_memory()
    if not libraries.cuda.loaded:
        problem = libraries.cuda.reason
    elif memory is None:
        problem = "this torch has no symmetric memory"
    hosts: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(hosts, (socket.gethostname(), problem), group=group)
    if any(found for _, found in hosts) or len({host for host, _ in hosts}) > 1:
        return False
    try:
        exchange = _make(memory, group, timeout)
    except RuntimeError as error:
        problem = str(error)
    dist.all_gather_object(hosts, problem, group=group)  # and every buffer is zero by now
    if exchange is None or any(hosts):
        return False
    exchanges[group] = exchange
    return True


def disable(group: dist.ProcessGroup) -> None:
    exchanges.pop(group, None)


def _make(memory, group: dist.ProcessGroup, timeout: float) -> Exchange:
    device, ranks = torch.device("cuda", torch.cuda.current_device()), dist.get_world_size(group)
    size = 2 * ranks * CAPACITY * SLOT_BYTES
    buffer = memory.empty(size, dtype=torch.uint8, device=device)
    buffer.zero_()
    handle = memory.rendezvous(buffer, group)
    state = torch.zeros(2, dtype=torch.int32, device=device)
    of_ranks = [handle.get_buffer(rank, (size,), torch.uint8) for rank in range(ranks)]
    buffers = torch.tensor([b.data_ptr() for b in of_ranks], dtype=torch.int64, device=device)
    torch.cuda.synchronize(device)
    return Exchange(buffers, state, handle.rank, round(timeout * 1e9), (buffer, handle))
