"""KernelBench level 2, problem 32: a convolution, scaled, and its smallest channel.

They are one operator, which on a GPU is one kernel and writes nothing but the minima.
"""

import torch
from torch import Tensor, nn

import customops  # noqa: F401  (registers torch.ops.reduceops)

batch_size = 64
in_channels = 64
out_channels = 128
height = width = 256
kernel_size = 3
scale_factor = 2.0


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, scale_factor):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.scale_factor = scale_factor

    def forward(self, x: Tensor) -> Tensor:
        return torch.min(self.conv(x) * self.scale_factor, dim=1, keepdim=True)[0]


class ConvScaleMin(nn.Conv2d):
    """Scaled, and its smallest channel. It has the parameters of a convolution, and what wraps
    those for training (FSDP, say) finds them where they are used."""

    def __init__(self, in_channels, out_channels, kernel_size, scale_factor):
        super().__init__(in_channels, out_channels, kernel_size)
        self.scale_factor = scale_factor

    def forward(self, x: Tensor) -> Tensor:
        op = torch.ops.reduceops.conv2d_scale_min
        return op(x, self.weight, self.bias, self.scale_factor)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, scale_factor):
        super().__init__()
        self.conv = ConvScaleMin(in_channels, out_channels, kernel_size, scale_factor)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs(batch_size=batch_size, height=height, width=width):
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, scale_factor]
