"""The plan a call would run with, without running it: for tests and bug reports."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from . import libraries


@dataclass(frozen=True)
class CudaPlan:
    """How the GPU kernels cut a reduction (see csrc/cuda/plan.h)."""

    rows: bool
    vector: bool
    lanes: int
    shares: int
    threads: int
    blocks: int
    parts: int
    part_extent: int


@dataclass(frozen=True)
class CpuPlan:
    """How the CPU kernels cut a reduction (see csrc/cpu/plan.h)."""

    rows: bool
    tile: int
    tiles: int
    units: int
    parts: int
    part_extent: int
    grain: int


def cuda_plan(
    self: torch.Tensor, dim: Sequence[int] | None = None, *, multiprocessors: int = 132, address=0
) -> CudaPlan:
    """The plan for reducing `dim` (None: all) of a tensor like `self`; its device does not matter,
    a meta tensor will do. `address` stands for the address of its first element in bytes."""
    layout = _layout(self, dim)
    return CudaPlan(*_ask("reduceops_cuda_plan", layout, (address, multiprocessors), 8, bools=2))


def cpu_plan(self: torch.Tensor, dim: Sequence[int] | None = None, *, threads: int = 1) -> CpuPlan:
    """The plan for reducing `dim` (None: all) of a tensor like `self` with so many threads."""
    return CpuPlan(*_ask("reduceops_cpu_plan", _layout(self, dim), (threads,), 7, bools=1))


def _layout(self: torch.Tensor, dim: Sequence[int] | None) -> tuple:
    dims = range(self.dim()) if dim is None else dim
    mask = sum(1 << (d % self.dim()) for d in dims)
    array = ctypes.c_int64 * max(self.dim(), 1)
    strides = array(*self.stride())
    return self.dim(), array(*self.shape), strides, ctypes.c_uint64(mask), self.element_size()


def _ask(name: str, layout: tuple, rest: tuple[int, ...], fields: int, bools: int) -> list:
    function = getattr(ctypes.CDLL(str(libraries.cpu.path)), name)
    function.restype = None
    out = (ctypes.c_int64 * fields)()
    ndim, sizes, strides, mask, bytes_ = layout
    function(ctypes.c_int64(ndim), sizes, strides, mask, *map(ctypes.c_int64, (bytes_, *rest)), out)
    return [bool(x) for x in out[:bools]] + list(out[bools:])
