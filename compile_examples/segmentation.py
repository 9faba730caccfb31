"""Semantic segmentation: from a network's coarse logits to a class for each pixel of the image.

The logits (N, classes, h, w) are upsampled to the image and the class is the argmax over channels,
as in DeepLab or FCN. The classes are those of torch, or it raises. Compiled, torch's argmax and
ours become part of the loop that upsamples, whose result is then never written to memory: the gain
is in eager mode.

    python -m compile_examples.segmentation
"""

import argparse
import sys

import torch
from torch import Tensor
from torch.nn import functional as F

import customops
from customops.bench import report

from .timing import HEADER, Row, add_device, default_device, describe, milliseconds


def upsample(logits: Tensor, size: int) -> Tensor:
    return F.interpolate(logits, size=(size, size), mode="bilinear", align_corners=False)


def classes_by_torch(logits: Tensor, size: int) -> Tensor:
    return upsample(logits, size).argmax(1)


def classes(logits: Tensor, size: int) -> Tensor:
    return customops.argmax(upsample(logits, size), 1)


@torch.no_grad()
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_device(parser)
    parser.add_argument("--batch", type=report.count, default=4)
    parser.add_argument("--classes", type=report.count, default=21, help="Cityscapes has 19")
    parser.add_argument(
        "--size", type=report.count, default=513, help="of the image; an eighth for logits"
    )
    options = parser.parse_args(arguments)
    device = options.device or default_device()

    torch.manual_seed(0)
    coarse = options.size // 8 + 1
    logits = torch.randn(options.batch, options.classes, coarse, coarse).to(device)
    logits[..., -coarse // 8 :] = 0  # an image of another shape, padded: all classes tie there
    inputs = {"": logits, "_channels_last": logits.to(memory_format=torch.channels_last)}
    print(describe(device), HEADER, sep="\n")
    for layout, x in inputs.items():
        torch.compiler.reset()
        for mode in ("eager", "compile"):
            compile = torch.compile(fullgraph=True) if mode == "compile" else lambda call: call
            theirs, ours = compile(classes_by_torch), compile(classes)
            theirs(x, options.size)
            # Compiled interpolation rounds in its own way, so the argmax is torch's on its result.
            expected = compile(upsample)(x, options.size).argmax(1)
            equal = torch.equal(ours(x, options.size), expected)
            times = (milliseconds(call, (x, options.size)) for call in (theirs, ours))
            shape = (*x.shape[:2], options.size, options.size)
            print(Row(f"segmentation{layout}", shape, device, mode, *times, equal))
            if not equal:
                raise AssertionError(f"{mode}: the classes are not those of torch")


if __name__ == "__main__":
    sys.exit(main())
