"""Compiles a model that uses the operators into a package, which main.cpp runs without Python.

    python -m compile_examples.aoti_cpp.export MODEL.pt2

Given sizes too, as in `--sizes 3,4,5`, it prints what eager mode answers, as main.cpp prints it.
"""

import argparse
import re

import torch
from torch import Tensor, nn
from torch.export import Dim

import customops

from ..timing import add_device


class Model(nn.Module):
    """Several reductions of a (batch, channels, positions) tensor, and of a convolution of it."""

    def __init__(self):
        super().__init__()
        weight = torch.arange(36.0).remainder(5).sub(2)
        self.register_buffer("weight", weight.reshape(4, 1, 3, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        nearest = customops.argmin(x, 1)
        brightest = customops.argmax(x, [1, 2])
        values, indices = customops.min(x, -1)
        scaled = customops.scale_min(x, -2.0, dim=1)
        convolved = customops.conv2d_scale_min(x[:, None], self.weight, None, -2.0, padding=1)
        return nearest, brightest, values, indices, scaled, convolved


def make_input(sizes: list[int], device: str) -> Tensor:
    """Small numbers with many ties."""
    count = torch.Size(sizes).numel()
    x = torch.arange(count).mul(7).remainder(11).sub(5)
    return x.float().reshape(sizes).to(device)


def package(path: str, device: str) -> str:
    x = make_input([3, 4, 5], device)
    sizes = {d: Dim.DYNAMIC for d in range(3)}
    with torch.no_grad():
        program = torch.export.export(Model().to(device), (x,), dynamic_shapes=(sizes,))
        return torch._inductor.aoti_compile_and_package(program, package_path=path)


def show(result: Tensor) -> str:
    dtype = {torch.int64: "Long", torch.float32: "Float"}[result.dtype]
    return f"{dtype} {list(result.shape)}:" + "".join(f" {int(v)}" for v in result.flatten())


def _sizes(text: str) -> list[int]:
    if not re.fullmatch("[1-9][0-9]*(,[1-9][0-9]*){2}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not like 3,4,5: three sizes from 1 on")
    return [int(size) for size in text.split(",")]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", metavar="MODEL.pt2")
    add_device(parser, default="cpu", help="cpu (the default) or cuda")
    parser.add_argument("--sizes", type=_sizes, help="of an input to show the answers for")
    options = parser.parse_args(arguments)
    print("wrote", package(options.path, options.device))
    if options.sizes:
        x = make_input(options.sizes, options.device)
        print(*map(show, Model().to(options.device)(x)), sep="\n")


if __name__ == "__main__":
    main()
