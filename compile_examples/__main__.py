"""Runs every example beside torch's own operators, eager and compiled, and prints a table.

The batch is the published one on a GPU, halved until it fits, and a small one on a CPU. The exit
status is 1 if a result differs from torch's.
"""

import argparse
import sys
from typing import NamedTuple

import torch
from torch.utils.benchmark import Timer

from customops import libraries

from . import EXAMPLES

CPU_BATCH = 2
MODES = {"eager": lambda model: model, "compile": lambda m: torch.compile(m, fullgraph=True)}
LINE = "{:26}{:20}{:8}{:9}{:>9}{:>9}{:>7}  {}".format


class Row(NamedTuple):
    model: str
    shape: tuple[int, ...]
    device: str
    mode: str
    torch_ms: float
    ours_ms: float
    equal: bool

    def __str__(self) -> str:
        times = f"{self.torch_ms:.3f}", f"{self.ours_ms:.3f}", f"{self.torch_ms / self.ours_ms:.2f}"
        equal = "yes" if self.equal else "NO"
        return LINE(self.model, str(self.shape), self.device, self.mode, *times, equal)


def default_device() -> str:
    if torch.cuda.is_available():
        if libraries.cuda.loaded:
            return "cuda"
        print(f"not using the GPU: {libraries.cuda.reason}")
    return "cpu"


def milliseconds(model, inputs) -> float:
    """The median of repeated runs; `model` has run before."""
    timer = Timer(
        "model(*inputs)",
        globals={"model": model, "inputs": inputs},
        num_threads=torch.get_num_threads(),
    )
    return timer.blocked_autorange(min_run_time=0.3).median * 1e3


@torch.no_grad()
def measure(example, device: str, batch: int) -> list[Row]:
    """A row for each mode."""
    torch.compiler.reset()
    with torch.device(device):
        inputs = example.get_inputs(batch_size=batch)
        model = example.Model(*example.get_init_inputs())
        new = example.ModelNew(*example.get_init_inputs())
    new.load_state_dict(model.state_dict())
    name, shape = example.__name__.rpartition(".")[2], tuple(inputs[0].shape)
    eager = model(*inputs)
    rows = []
    for mode, prepare in MODES.items():
        theirs, ours = prepare(model), prepare(new)
        # Compiling may change how a convolution rounds, and how torch's own argmin breaks ties.
        result = theirs(*inputs)
        expected = result if result.is_floating_point() else eager
        equal = torch.equal(ours(*inputs), expected)
        times = milliseconds(theirs, inputs), milliseconds(ours, inputs)
        rows.append(Row(name, shape, device, mode, *times, equal))
    return rows


def measure_what_fits(example, device: str, batch: int) -> list[Row]:
    """`measure` at the first of `batch`, `batch` / 2, ... that the GPU's memory holds."""
    while batch > 1:
        try:
            return measure(example, device, batch)
        except torch.OutOfMemoryError:
            batch //= 2
    return measure(example, device, batch)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m compile_examples", description=__doc__)
    parser.add_argument("--device", help="cpu, cuda, cuda:1; by default a GPU if there is one")
    parser.add_argument("--batch", type=int, help="the batch size of every example")
    options = parser.parse_args(arguments)
    device = options.device or default_device()
    on_cpu = torch.device(device).type == "cpu"
    where = f"{torch.get_num_threads()} threads" if on_cpu else torch.cuda.get_device_name(device)

    print(f"torch {torch.__version__}, {device} ({where}), float32; ratio: torch ms / ours ms\n")
    print(LINE("model", "shape", "device", "mode", "torch ms", "ours ms", "ratio", "equal"))
    all_equal = True
    for example in EXAMPLES:
        batch = options.batch or (CPU_BATCH if on_cpu else example.batch_size)
        for row in measure_what_fits(example, device, batch):
            print(row, flush=True)
            all_equal &= row.equal
    return 0 if all_equal else 1


if __name__ == "__main__":
    sys.exit(main())
