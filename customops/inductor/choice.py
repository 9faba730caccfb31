"""Whether a reduction in a compiled graph becomes a loop of Inductor's or a call of a kernel."""

from dataclasses import dataclass

PREFERENCES = ("auto", "loop", "kernel")


@dataclass(frozen=True)
class Facts:
    """What the choice is made from. Sizes that are symbols are those of the example."""

    device: str  # "cpu" or "cuda"
    groups: int
    extent: int
    itemsize: int
    contiguous: bool  # neighbours in memory are reduced
    stored: bool  # a kernel finds the input in memory
    shared: bool  # others use it, too
    reads: int  # elements that the producer reads for one of its own
    operations: int  # that it computes for one of its own
    word: int  # bytes of the integers that a loop compares
    indirect: bool  # it reads from where other data says, which is not vectorized
    indices: bool  # positions are wanted


@dataclass(frozen=True)
class Choice:
    loop: bool
    reason: str

    def __str__(self) -> str:
        return f"{'loop' if self.loop else 'kernel'} ({self.reason})"


def choose(facts: Facts, prefer: str = "auto") -> Choice:
    if prefer != "auto":
        return Choice(prefer == "loop", f"preferred: {prefer!r}")
    if facts.stored:
        return Choice(False, "its input is in memory")
    return Choice(True, "nothing is written before it")
