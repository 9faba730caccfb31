"""What a process group is asked for once, as each question takes a microsecond."""

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor

from .._torch_private import direct_all_gather, process_groups

AllGather = Callable[[Tensor, Tensor], Any]


class Link(NamedTuple):
    ranks: int
    is_registered: bool  # with torch, as not all groups are, when it was first asked
    is_compared: bool  # what ranks call with: what the environment said at the first call
    all_gathers: tuple[AllGather, AllGather]  # (gathered, words): of a CPU, of a GPU

    def all_gather(self, gathered: Tensor, words: Tensor) -> None:
        self.all_gathers[words.is_cuda](gathered, words)


links: dict[ref, Link] = {}


def link_of(group: dist.ProcessGroup) -> Link:
    link = links.get(ref(group))
    if link is None:
        all_gathers = direct_all_gather(group, "cpu"), direct_all_gather(group, "cuda")
        is_traced = torch.compiler.is_dynamo_compiling()
        is_registered = not is_traced and group in process_groups()
        link = Link(group.size(), is_registered, is_compared(), all_gathers)
        if not is_traced:  # else not as fast as they can be
            links[ref(group, lambda gone: links.pop(gone, None))] = link
    return link


def objects_of_ranks(group: dist.ProcessGroup, mine: Any) -> list:
    """What each rank of the group gives, in the order of ranks."""
    gathered: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, mine, group=group)
    return gathered


def is_compared() -> bool:
    return dist.get_debug_level() == dist.DebugLevel.DETAIL
