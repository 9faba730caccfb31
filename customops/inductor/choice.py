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
    stored: bool  # the input is in memory, as a kernel needs it
    written: bool  # else: it will be, for others read it there
    indices: bool  # positions are wanted, or a value alone that is found by its key
    shared: bool = False  # a loop of Inductor's reduces the same groups of it
    read: bool = False  # something is computed of the results
    reads_bools: bool = False  # for a mask
    mask: int = 0  # elements of one that is not in memory

    @property
    def bytes(self) -> int:
        return self.groups * self.extent * self.itemsize


@dataclass(frozen=True)
class Choice:
    loop: bool
    reason: str

    def __str__(self) -> str:
        return f"{'loop' if self.loop else 'kernel'} ({self.reason})"


@dataclass(frozen=True)
class Device:
    """Seconds, as measured by `python -m customops.bench --suite compiled`."""

    call: float  # of one more kernel
    stead: float  # of a kernel's call in the place of a loop
    few: int  # elements that a loop reduces in less than a call, beside what is computed of them
    write: float  # for a byte that is written for a kernel alone
    kernel: dict[int, float]  # for an element that a kernel reads, by its bytes
    loop: dict[int, float]  # for an element that a loop orders, beyond computing it
    read_bool: float  # for an element that a loop reads a bool for
    write_bool: float  # for an element of a mask that is written for a kernel alone


DEVICES = {
    # One core: 16-bit integers are no vectors in Inductor's C++.
    "cpu": Device(
        call=5e-6,
        stead=6e-6,
        few=0,
        write=0.12e-9,
        kernel={1: 0.02e-9, 2: 0.04e-9, 4: 0.1e-9, 8: 0.25e-9},
        loop={1: 0.6e-9, 2: 2e-9, 4: 0.15e-9, 8: 0.6e-9},
        read_bool=3.5e-9,  # Inductor's vectors of bools go through memory, one by one
        write_bool=15e-9,
    ),
    # An H200, all of it.
    "cuda": Device(
        call=3e-6,
        stead=0.0,
        few=1 << 14,
        write=0.25e-12,
        kernel={1: 0.25e-12, 2: 0.5e-12, 4: 1e-12, 8: 2e-12},
        loop={1: 0.2e-12, 2: 0.2e-12, 4: 0.4e-12, 8: 0.9e-12},
        read_bool=0.0,  # a kernel reads it as fast
        write_bool=0.25e-12,
    ),
}
# Else a value alone is Inductor's own minimum.
VALUE = {"cpu": 0.03e-9, "cuda": 0.5e-12}


def seconds(facts: Facts) -> tuple[float, float]:
    """What a loop and a kernel take, beyond what both do."""
    device, elements = DEVICES[facts.device], facts.groups * facts.extent
    order = device.loop[facts.itemsize] if facts.indices else VALUE[facts.device]
    order += facts.reads_bools * device.read_bool
    mask = facts.mask * device.write_bool
    if facts.stored and not facts.shared:  # so that either reads it
        takes_a_launch = facts.read and elements <= device.few
        return elements * order, device.stead + takes_a_launch * device.call + mask
    kernel = device.call + mask + elements * device.kernel[facts.itemsize]
    if not (facts.written or facts.stored):
        kernel += facts.bytes * device.write
    return elements * order, kernel


def choose(facts: Facts, prefer: str = "auto") -> Choice:
    """`prefer`: one of PREFERENCES, of which "auto" is the cheaper."""
    if prefer != "auto":
        return Choice(prefer == "loop", f"preferred: {prefer!r}")
    loop, kernel = seconds(facts)
    if loop <= kernel:
        return Choice(True, f"{1e6 * loop:.1f} us; a kernel {1e6 * kernel:.1f}")
    if facts.stored and not facts.shared:
        return Choice(False, "its input is in memory")
    return Choice(False, f"{1e6 * kernel:.1f} us; a loop {1e6 * loop:.1f}")
