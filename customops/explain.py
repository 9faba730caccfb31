"""The plan a call would run with, without running it: for tests and bug reports."""

import ctypes
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from . import checks, libraries


class Walk(enum.IntEnum):
    """The kernels of csrc/cuda, one file each."""

    ROWS = 0
    COLUMNS = 1
    BOXES = 2
    BULK_COLUMNS = 3
    WHOLE_ROWS = 4
    WHOLE_COLUMNS = 5
    SMALL = 6
    FILL = 7


@dataclass(frozen=True)
class CudaPlan:
    """How the GPU kernels cut a reduction (see csrc/cuda/plan.h)."""

    walk: Walk
    vector: bool
    lanes: int
    loads: int
    batches: int
    shares: int
    threads: int
    cluster: int
    blocks: int
    parts: int
    part_extent: int
    candidate_bytes: int
    tile: int
    tiles: int
    across: int
    subtile: int
    contiguous: bool
    stage_rows: int
    stage_pitch: int
    stage_bytes: int
    stages: int
    scratch_bytes: int
    runs: int
    reading: int
    pieces: bool
    mapped: bool

    @property
    def candidates(self) -> int:
        """How many of an output go through a workspace to a second kernel, if more than one."""
        return self.parts // self.cluster


class BrokenPlan(Exception):
    """A plan that does not keep what it promises to its kernel (csrc/cuda/plan_check.h)."""


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
    self: torch.Tensor,
    dim: int | Sequence[int] | None = None,
    *,
    multiprocessors: int = 132,
    address: int = 0,
    bulk: bool = True,
    tuning: Mapping[str, int] | None = None,
    mask: torch.Tensor | None = None,
    softmax: bool = False,
) -> CudaPlan:
    """The plan for reducing `dim` (None: all) of a tensor like `self`, which is not empty; its
    device does not matter, a meta tensor will do. `address` stands for the address of its first
    element in bytes, `bulk` for a GPU that has bulk copies (Hopper on), `tuning` for what
    REDUCEOPS_CUDA_TUNING sets: from 0 on, and where a value would be no use, the nearest that is.
    `mask` is like that of the call, `softmax` for softmax_max.
    Raises BrokenPlan if the kernel could not rely on the plan."""
    constants = cuda_constants()
    if unknown := set(tuning or ()) - set(constants):
        raise ValueError(f"no constants of the plan: {', '.join(sorted(unknown))}")
    for name, value in (tuning or {}).items():
        if not 0 <= value < 1 << 63:
            raise ValueError(f"{name} is {value}; it takes 0 to 2**63 - 1")
    values = list((constants | dict(tuning or {})).values())
    constants = (ctypes.c_int64 * len(values))(*values)
    strides = None
    if mask is not None:
        strides = (ctypes.c_int64 * max(self.dim(), 1))(*mask.expand(self.shape).stride())
    limits = (address, multiprocessors, bulk, strides, softmax, constants)
    fields, broken = _ask("reduceops_cuda_plan", _layout(self, dim), limits, 26)
    plan = CudaPlan(*fields)
    plan = replace(
        plan,
        walk=Walk(plan.walk),
        vector=bool(plan.vector),
        contiguous=bool(plan.contiguous),
        pieces=bool(plan.pieces),
        mapped=bool(plan.mapped),
    )
    if broken:
        raise BrokenPlan(f"a bug: the kernel relies on '{broken.decode()}', but not so in {plan}")
    return plan


def cuda_constants() -> dict[str, int]:
    """The constants of csrc/cuda/tuning.h, with their defaults."""
    constant = _function("reduceops_cuda_constant", ctypes.c_char_p)
    constants, value = {}, ctypes.c_int64()
    while name := constant(ctypes.c_int64(len(constants)), ctypes.byref(value)):
        constants[name.decode()] = value.value
    return constants


def cpu_plan(
    self: torch.Tensor, dim: int | Sequence[int] | None = None, *, threads: int = 1
) -> CpuPlan:
    """The plan for reducing `dim` (None: all) of a tensor like `self` with so many threads."""
    plan = CpuPlan(*_ask("reduceops_cpu_plan", _layout(self, dim), (threads,), 7)[0])
    return replace(plan, rows=bool(plan.rows))


def _layout(self: torch.Tensor, dim: int | Sequence[int] | None) -> tuple:
    if self.numel() == 0:
        raise ValueError(f"an empty tensor (shape {list(self.shape)}) has no plan: nothing runs")
    mask = sum(1 << d for d in checks.wrap_dims("explain", self.dim(), dim))
    array = ctypes.c_int64 * max(self.dim(), 1)
    strides = array(*self.stride())
    return self.dim(), array(*self.shape), strides, ctypes.c_uint64(mask), self.element_size()


def _function(name: str, result: type | None):
    function = getattr(ctypes.CDLL(str(libraries.cpu.path)), name)
    function.restype = result
    return function


def _ask(name: str, layout: tuple, rest: tuple, fields: int) -> tuple[list[int], bytes | None]:
    """The plan's fields, and what the function returns. `rest`: numbers, and arrays of them or
    None."""
    out = (ctypes.c_int64 * fields)()
    ndim, sizes, strides, mask, bytes_ = layout
    numbers = [ctypes.c_int64(x) if isinstance(x, int) else x for x in (bytes_, *rest)]
    ask = _function(name, ctypes.c_char_p)
    said = ask(ctypes.c_int64(ndim), sizes, strides, mask, *numbers, out)
    return list(out), said
