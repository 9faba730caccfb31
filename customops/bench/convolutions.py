"""The suite `fused`: a convolution, times a number, and its smallest channel."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

import customops

from .cases import CONVOLUTIONS, DTYPES, SCALE, SUITES, Case
from .peers import OURS, Contender, Unavailable

SUITE = "fused"
# The operators that ours is one of, with our scale_min for the second.
APART = "apart"
COMPILED = {"compile": None, "autotune": "max-autotune-no-cudagraphs"}
PEERS = (APART, "torch", *COMPILED)
NUMBER = re.compile(r" (filters|kernel|stride|padding)=(\d+)")


@dataclass(frozen=True)
class Convolution(Case):
    """`shape` is that of the input."""

    filters: int = 128
    kernel: int = 3
    stride: int = 1
    padding: int = 0
    tf32: bool = True  # of float32, whether tensor cores may round its elements
    benchmark: bool = False  # torch.backends.cudnn.benchmark

    OPERATORS: ClassVar[tuple[str, ...]] = CONVOLUTIONS
    EXAMPLE: ClassVar[str] = "conv2d_scale_min (8, 64, 56, 56) dim=1 float32 filters=64 kernel=3"

    def __str__(self) -> str:
        said = [f"{super().__str__()} filters={self.filters} kernel={self.kernel}"]
        said += [f"stride={self.stride}"] * (self.stride != 1)
        said += [f"padding={self.padding}"] * (self.padding != 0)
        said += ["no TF32"] * (self.dtype == "float32" and not self.tf32)
        said += ["benchmark"] * self.benchmark
        return " ".join(said)

    @classmethod
    def parse(cls, text: str) -> "Convolution":
        """The case that is written so. Raises ValueError, which says why."""
        words = text.strip()
        options: dict[str, Any] = {}
        for name, word, value in (("benchmark", " benchmark", True), ("tf32", " no TF32", False)):
            options |= {name: value} if words.endswith(word) else {}
            words = words.removesuffix(word)
        for name, value in NUMBER.findall(words):
            options[name] = int(value)
        return replace(cls.read(NUMBER.sub("", words)), **options).checked()

    @property
    def tolerance(self) -> float:
        """Of sums in another order, of elements that may be rounded to TF32."""
        return 2e-3 if self.dtype == "float32" else 2e-2

    def problem(self) -> str:
        if self.op not in CONVOLUTIONS:  # by --op
            return f"{self.op} is not a convolution"
        if len(self.shape) != 4:
            return "a convolution needs four sizes: images, channels, height, width"
        if self.dim != 1:
            return "of a convolution only dim=1, the channels, can be timed"
        if not DTYPES[self.dtype].is_floating_point:
            return f"a convolution needs a floating dtype, not {self.dtype}"
        if not self.is_plain or self.has_options:
            return "a convolution takes random data and no options"
        for name in ("filters", "kernel", "stride"):
            if getattr(self, name) < 1:
                return f"{name} must be at least 1"
        if min(self.shape[2:]) + 2 * self.padding < self.kernel:
            return f"a kernel of {self.kernel} does not fit an image of {self.shape[2:]}"
        return ""

    def set_up(self) -> None:
        """Tells torch how to convolve, until the next case."""
        torch.backends.cudnn.benchmark = self.benchmark
        torch.backends.cudnn.allow_tf32 = self.tf32

    def parameters(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weight and bias, the same every time. No result is near zero."""
        torch.manual_seed(1)
        sum_of = self.shape[1] * self.kernel**2
        weight = torch.randn(self.filters, self.shape[1], self.kernel, self.kernel) / sum_of**0.5
        if self.layout == "channels_last":
            weight = weight.contiguous(memory_format=torch.channels_last)
        bias = torch.rand(self.filters) - 8
        return weight.to(x.device, x.dtype), bias.to(x.device, x.dtype)


def reference(case: Convolution, x: Tensor) -> Tensor:
    case.set_up()
    return _written_out(case, *case.parameters(x))(x)


def _written_out(case: Convolution, weight: Tensor, bias: Tensor) -> Callable[[Tensor], Tensor]:
    reduce = getattr(torch, case.extreme)
    convolve = partial(
        torch.nn.functional.conv2d,
        weight=weight,
        bias=bias,
        stride=case.stride,
        padding=case.padding,
    )
    return lambda x: reduce(convolve(x) * SCALE, dim=1, keepdim=True)[0]


def contender(name: str, case: Convolution, x: Tensor) -> Contender:
    """Who runs a case under this name; Unavailable where nobody has it."""
    weight, bias = case.parameters(x)
    written_out = _written_out(case, weight, bias)
    how = {"stride": case.stride, "padding": case.padding}
    scale = getattr(customops, case.op.removeprefix("conv2d_"))
    if name in COMPILED:
        return Contender(
            partial(torch.compile(written_out, fullgraph=True, mode=COMPILED[name]), x)
        )
    calls: dict[str, Callable[[], Any]] = {
        OURS: partial(getattr(customops, case.op), x, weight, bias, SCALE, **how),
        APART: lambda: scale(torch.nn.functional.conv2d(x, weight, bias, **how), SCALE),
        "torch": partial(written_out, x),
    }
    if name not in calls:
        raise Unavailable("no one function does this")
    return Contender(calls[name])


def suite(device: str, free_bytes: int) -> Iterator[Convolution]:
    case = partial(Convolution, "conv2d_scale_min", dim=1)
    if device == "cpu":
        for layout in ("contiguous", "channels_last"):
            for images, channels, side, filters in ((8, 64, 256, 128), (8, 32, 56, 64)):
                yield case((images, channels, side, side), filters=filters, layout=layout)
        return
    demo = (64, 64, 256, 256)
    for layout in ("channels_last", "contiguous"):
        yield case(demo, layout=layout)
        yield case(demo, layout=layout, benchmark=True)
        yield case(demo, layout=layout, tf32=False)
        for dtype in ("bfloat16", "float16"):
            yield case(demo, layout=layout, dtype=dtype)
    yield case(demo, layout="channels_last", dtype="bfloat16", benchmark=True)
    others: list[tuple[tuple[int, ...], dict[str, int]]] = [
        ((64, 64, 128, 128), {"filters": 32, "padding": 1}),
        ((64, 64, 128, 128), {"filters": 96, "padding": 1}),
        ((64, 64, 128, 128), {"filters": 256, "padding": 1}),
        ((64, 64, 128, 128), {"filters": 512, "padding": 1}),
        ((64, 64, 56, 56), {"filters": 130, "padding": 1}),
        ((64, 256, 56, 56), {"filters": 64, "kernel": 1}),
        ((64, 128, 56, 56), {"filters": 128, "stride": 2, "padding": 1}),
        ((64, 64, 56, 56), {"filters": 64, "kernel": 5, "padding": 2}),
        ((64, 3, 224, 224), {"filters": 64, "kernel": 7, "stride": 2, "padding": 3}),
        ((16, 512, 7, 7), {"filters": 512, "padding": 1}),
        ((64, 64, 14, 14), {"filters": 128, "padding": 1}),
        ((1, 64, 256, 256), {"filters": 128}),
        ((1, 64, 32, 32), {"filters": 128}),
    ]
    for shape, how in others:
        for dtype in ("float32", "bfloat16"):
            yield case(shape, dtype=dtype, layout="channels_last", **how)


SUITES[SUITE] = suite
