"""What the examples share: the device, the time of a call, a line of the table."""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils.benchmark import Timer

from customops import libraries

LINE = "{:27}{:20}{:8}{:9}{:>9}{:>9}{:>7}  {}".format
HEADER = LINE("model", "shape", "device", "mode", "torch ms", "ours ms", "ratio", "equal")


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


def add_device(parser: argparse.ArgumentParser, **options) -> None:
    which = "cpu, cuda, cuda:1; by default a GPU if there is one"
    parser.add_argument("--device", **{"type": _device, "help": which} | options)


def _device(text: str) -> str:
    """One that this torch has."""
    try:
        if torch.empty(0, device=text).device.type not in ("cpu", "cuda"):
            raise RuntimeError(f"{text!r} is neither cpu nor cuda")
    except (AssertionError, RuntimeError) as error:  # the first of a torch without CUDA
        raise argparse.ArgumentTypeError(str(error).partition("\n")[0]) from None
    return text


def default_device() -> str:
    if torch.cuda.is_available():
        why_not = libraries.why_not_on(torch.device("cuda"))
        if why_not is None:
            return "cuda"
        print(f"not using the GPU: {why_not}")
    return "cpu"


def describe(device: str) -> str:
    on_cpu = torch.device(device).type == "cpu"
    where = f"{torch.get_num_threads()} threads" if on_cpu else torch.cuda.get_device_name(device)
    return f"torch {torch.__version__}, {device} ({where}), float32; ratio: torch ms / ours ms\n"


def milliseconds(call: Callable, inputs: tuple = ()) -> float:
    """The median of repeated runs; `call` has run before."""
    timer = Timer(
        "call(*inputs)",
        globals={"call": call, "inputs": inputs},
        num_threads=torch.get_num_threads(),
    )
    return timer.blocked_autorange(min_run_time=0.1).median * 1e3
