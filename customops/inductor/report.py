"""What was done in the graphs that this process has compiled: counted, and logged."""

import logging
from collections.abc import Iterable

import torch
from torch._dynamo.utils import counters

from .. import checks

REWRITTEN, LEFT_ALONE, CHOSEN = (
    "customops rewrote ",
    "customops left alone ",
    "customops lowered ",
)
log = logging.getLogger("customops.inductor")


def record(kind: str, line: str) -> None:
    # Inductor stores its counters with a graph in its cache, and adds them when it takes it out.
    counters["inductor"][kind + line] += 1
    log.info("%s%s", kind, line)


def recorded(*kinds: str) -> list[str]:
    found = [
        (key.removeprefix(kind), count)
        for key, count in counters["inductor"].items()
        for kind in kinds
        if key.startswith(kind)
    ]
    return [line for line, count in found for _ in range(count)]


def chosen(op, x, what: str) -> None:
    kind = described(x.get_dtype(), x.get_size(), x.get_device().type)
    record(CHOSEN, f"{str(op).removesuffix('.default')}({kind}) -> {what}")


def described(dtype: torch.dtype, sizes: Iterable, device: str) -> str:
    """A tensor in a line, as float32[64, 5000] on cpu."""
    return f"{checks.dtype_name(dtype)}[{', '.join(map(str, sizes))}] on {device}"
