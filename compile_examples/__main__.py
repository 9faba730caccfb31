"""Runs every example beside torch's own operators, eager and compiled, and prints a table.

Of the problems of KernelBench the batch is the published one on a GPU, halved until it fits, and a
small one on a CPU. The programs have small inputs. The exit status is 1 if a result differs from
torch's.
"""

import argparse
import functools
import importlib
import sys

import torch

from customops.bench import report

from . import EXAMPLES, MORE_PROGRAMS, PROGRAMS
from .timing import HEADER, Row, add_device, default_device, describe, milliseconds

CPU_BATCH = 2
# What makes the programs small.
SMALL = {
    "greedy_decoding": "--batch 2 --tokens 4 --vocabulary 8000 --layers 1",
    "kmeans": "--points 2000 --centroids 200 --steps 3",
    "segmentation": "--batch 1 --size 129",
}
MODES = {"eager": lambda model: model, "compile": lambda m: torch.compile(m, fullgraph=True)}


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
        # A convolution over slices of a batch adds in another order than one over all of it.
        convolves = any(True for _ in model.parameters())
        same = functools.partial(torch.allclose, rtol=1e-4, atol=1e-4) if convolves else torch.equal
        equal = same(ours(*inputs), expected)
        times = milliseconds(theirs, inputs), milliseconds(ours, inputs)
        rows.append(Row(name, shape, device, mode, *times, equal))
    return rows


def measure_what_fits(example, device: str, batch: int) -> list[Row]:
    """`measure` at the first of `batch`, `batch` / 2, ... that the GPU's memory holds."""
    while batch > 1:
        try:
            return measure(example, device, batch)
        except RuntimeError as error:  # of torch's kind, or of an operator of torch.ops
            if not isinstance(error, torch.OutOfMemoryError) and "out of memory" not in str(error):
                raise
            batch //= 2
    return measure(example, device, batch)


def run_program(name: str, device: str) -> bool:
    """Whether its results are torch's; it prints a table of its own."""
    program = importlib.import_module(f".{name}", __package__)
    print(f"\n{name}: {PROGRAMS[name]}")
    try:
        program.main(["--device", device, *SMALL[name].split()])
    except AssertionError as error:
        print(f"{name}: {error}")
        return False
    return True


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m compile_examples", description=__doc__)
    add_device(parser)
    parser.add_argument("--batch", type=report.count, help="the batch size of every example")
    options = parser.parse_args(arguments)
    device = options.device or default_device()
    on_cpu = torch.device(device).type == "cpu"
    print(describe(device), HEADER, sep="\n")
    all_equal = True
    for example in EXAMPLES:
        batch = options.batch or (CPU_BATCH if on_cpu else example.batch_size)
        for row in measure_what_fits(example, device, batch):
            print(row, flush=True)
            all_equal &= row.equal
    for program in PROGRAMS:
        all_equal &= run_program(program, device)
    print("\nEach of these is python -m compile_examples.NAME, and has --help:")
    for program, what in {**PROGRAMS, **MORE_PROGRAMS}.items():
        print(f"  {program:<18}{what}")
    return 0 if all_equal else 1


if __name__ == "__main__":
    sys.exit(main())
