"""Arg-reductions over a dim that is sharded over the ranks of a process group.

Each rank has a shard of one tensor, cut along `dim`. All of them call the same function and get the
same answer, that of one device for the whole tensor: the lowest index on ties, the first NaN,
values with their bits. A rank reduces its shard, one all-gather exchanges an element and an index
for each output (8 bytes, or 16 where both do not fit), and every rank takes the best of them.

    values, tokens = customops.distributed.max(logits, -1)  # logits: of this rank's vocabulary

A `DTensor` needs none of this: these functions, `customops.argmin` and so on take it as it is.

Rank 0 has the first shard, rank 1 the next, and so on. Else each rank says by `offset` at which
index its shard begins; all ranks give it, or none. Shards may differ in size, and some may be
empty. (If all are, there is no element: index and value are 0.) The gradient of a value goes to the
element chosen, in the rank that has it; as the value is the same on all ranks, its gradient is
taken to be, too.

If ranks call with different dtypes, shapes or dims, results are undefined, or the ranks wait for
each other. TORCH_DISTRIBUTED_DEBUG=DETAIL makes that an error on all ranks, at the price of further
collectives. (Not while a CUDA graph is captured or torch.compile traces.)

The modules: functions (what is public), sharding (rules for DTensor), exchange (a shard reduced,
gathered, combined), pairs (its operators, for tracing), symmetric (one kernel in place of the
collective), compare (what ranks call with, where that is asked for).
"""

import importlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .functions import (
        argmax,
        argmin,
        disable_symmetric_memory,
        enable_symmetric_memory,
        max,
        min,
    )

__all__ = [
    "argmax",
    "argmin",
    "disable_symmetric_memory",
    "enable_symmetric_memory",
    "max",
    "min",
]


if not TYPE_CHECKING:  # or a name that is misspelt would be one

    def __getattr__(name: str) -> Any:
        """The functions, which import DTensor: that takes half a second."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if not torch.distributed.is_available():
            raise ImportError(
                "customops.distributed needs a torch that is built with torch.distributed"
            )
        functions = importlib.import_module(".functions", __name__)
        globals().update({public: getattr(functions, public) for public in __all__})
        return globals()[name]
