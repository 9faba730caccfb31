"""KernelBench level 1, problem 53: the smallest value over a dimension."""

import torch
from torch import Tensor, nn

import customops  # noqa: F401  (registers torch.ops.reduceops)

batch_size = 128
dim1 = 4096
dim2 = 4095


class Model(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return torch.min(x, dim=self.dim)[0]


class ModelNew(Model):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.reduceops.min(x, self.dim)[0]


def get_inputs(batch_size=batch_size, dim1=dim1, dim2=dim2):
    return [torch.rand(batch_size, dim1, dim2)]


def get_init_inputs():
    return [1]
