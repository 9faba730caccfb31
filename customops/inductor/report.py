"""What was done in the graphs that this process has compiled: counted, and logged."""

import logging

from torch._dynamo.utils import counters

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
    dtype, size = str(x.get_dtype()).removeprefix("torch."), ", ".join(map(str, x.get_size()))
    kind = f"{dtype}[{size}] on {x.get_device().type}"
    record(CHOSEN, f"{str(op).removesuffix('.default')}({kind}) -> {what}")
