"""How a call would cut its work (its plan), without running it: for bug reports, and for tests.

python -m customops.plans 128 4096 4095 --dim 1 --dtype float32
"""

import argparse
import ctypes
import enum
import functools
import itertools
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import torch
from typing_extensions import Unpack  # which torch requires

from . import arguments, checks, failure, libraries

__all__ = [
    "BrokenPlan",
    "Candidate",
    "CpuPlan",
    "CudaPlan",
    "Walk",
    "cpu_plan",
    "cuda_constants",
    "cuda_plan",
    "explain",
]


class Walk(enum.IntEnum):
    """The ways to go over memory, in csrc/cuda."""

    ROWS = 0
    COLUMNS = 1
    BOXES = 2
    BULK_COLUMNS = 3
    WHOLE_ROWS = 4
    WHOLE_COLUMNS = 5
    SMALL = 6
    FILL = 7
    TILES = 8
    GATHER = 9


@dataclass(frozen=True)
class CudaPlan:
    """How the GPU kernels cut a reduction (see csrc/cuda/plan.h, which has the other fields, too).

    Attributes:
        walk: Which way to go over memory.
        blocks: How many of its blocks are launched.
        threads: How many a block has.
        parts: Into how many the reduced extent is cut.
        cluster: How many blocks combine their parts in the same launch.
        slices: Into how many the outputs are cut, of which this is the plan of the first.
        candidates: The walks that fit, of which this is one.
    """

    walk: Walk
    threads: int
    cluster: int
    blocks: int
    parts: int
    part_extent: int
    candidate_bytes: int
    folded: int  # columns or rows to an output, whose results are combined like those of parts
    # What some walks decide for themselves; 0 or False where this one does not.
    vector: bool
    realigned: bool
    shifted: bool
    spaced: bool
    flat: bool
    pairs: bool
    mapped: bool
    staged: bool
    listed: bool
    contiguous: bool
    pieces: bool
    packed: bool
    row_loads: bool
    outer_rows: int
    reading: int
    lanes: int
    loads: int
    batches: int
    runs: int
    units: int
    cross_side: int
    inner_side: int
    inner_lanes: int
    cross_lanes: int
    copied: bool
    masked: bool
    shares: int
    tile: int
    tiles: int
    across: int
    subtile: int
    stage_rows: int
    stage_pitch: int
    stage_bytes: int
    stages: int
    scratch_bytes: int
    # A candidate's plan has none of its own.
    slices: int = field(default=1, compare=False)
    candidates: "tuple[Candidate, ...]" = field(default=(), compare=False, repr=False)

    @property
    def partial_results(self) -> int:
        """How many of an output go through a workspace to a second kernel, if more than one."""
        return self.folded * self.parts // self.cluster


@dataclass(frozen=True)
class Candidate:
    """A walk that fits, and what it would cost.

    Attributes:
        plan: How it would cut the reduction.
        microseconds: Predicted for an H200, to compare walks with (csrc/cuda/plan/price.h).
        usual: Whether it was measured best for such inputs; another has to win by a margin.
    """

    plan: CudaPlan
    microseconds: float
    usual: bool


class BrokenPlan(Exception):
    """A plan that does not keep what it promises to its kernel (csrc/cuda/plan_check.h)."""


@dataclass(frozen=True)
class CpuPlan:
    """How the CPU kernels cut a reduction (see csrc/cpu/plan.h, which has the other fields, too).

    Attributes:
        rows: Whether the walk is that of rows.
        gathers: Whether it is that of gather; if neither, it is that of columns.
        tile: How many columns are taken at once; 1 of rows.
        parts: Into how many the reduced extent is cut.
        hides: Whether a mask that hides whole groups or nothing of them is applied to the results.
        orders: Whether a mask is copied into the order of the input first.
        stays: Whether the runs of a gather are long, and read where they lie.
    """

    rows: bool
    tile: int
    tiles: int
    units: int
    parts: int
    part_extent: int
    grain: int
    gathers: bool
    copies: bool
    columns: int
    slices: int
    by_parts: bool
    folds: bool
    hides: bool
    orders: bool
    stays: bool


_NAMES = ("reduceops::explain", "customops.plans.cuda_plan")  # in errors of shared checks
_OF_H200 = 132  # multiprocessors


def _kind(
    input: torch.Tensor, layout: tuple[Any, ...], softmax: bool, indices: bool, values: bool
) -> tuple[bool, int]:
    """Whether it is `softmax_max`, and what is stored, as numbers."""
    if not (indices or values):
        raise ValueError("reduceops::explain: there is nothing to store: no indices, no values")
    if softmax:
        checks.check_scalable("explain", input.dtype)
    if softmax and layout[3].value.bit_count() > 1:
        raise ValueError("reduceops::explain: softmax_max reduces one dim")
    return bool(softmax), bool(indices) + 2 * bool(values)


@checks.errors_name("customops.plans.cuda_plan", *_NAMES)
def cuda_plan(
    input: torch.Tensor,
    dim: int | Sequence[int] | None = None,
    *,
    multiprocessors: int = _OF_H200,
    address: int = 0,
    bulk: bool = True,
    tuning: Mapping[str, int] | None = None,
    mask: torch.Tensor | None = None,
    softmax: bool = False,
    values: bool = False,
    indices: bool = True,
) -> CudaPlan:
    """How a GPU would reduce `dim` of a tensor; there need be none.

    Args:
        input: A tensor of the shape, strides and dtype, which is not empty. Its device does not
            matter: a meta tensor will do.
        dim: One dim, several, or None for all.
        multiprocessors: Of the GPU: those of an H200, unless given. A GPU that `input` is on has
            ``torch.cuda.get_device_properties(input.device).multi_processor_count``.
        address: Stands for the address of the first element, in bytes.
        bulk: Whether the GPU has bulk copies, and the shared memory for them, as Hopper does.
        tuning: Used in place of REDUCEOPS_CUDA_TUNING: from 0 on, and where a value would be no
            use, the nearest that is.
        mask: One like that of the call.
        softmax: Whether the plan is for `softmax_max`.
        values: Whether it is for what gives values.
        indices: Whether it is for what gives indices.

    Returns:
        A `CudaPlan`.

    Raises:
        TypeError: An argument is of another type.
        ValueError: The tensor is empty; a number is out of range, or a constant not known; several
            dims of `softmax_max`; neither values nor indices.
        IndexError: A dim is out of range.
        RuntimeError: The dtype or layout is not supported; `mask` or REDUCEOPS_CUDA_TUNING does
            not fit.
        BrokenPlan: The kernel could not rely on the plan, which is a bug.

    Example:
        >>> x = torch.empty(128, 4096, 4095, device="meta")
        >>> customops.plans.cuda_plan(x, 1).walk.name
        'BULK_COLUMNS'
    """
    constants = _constants(tuning)
    address = _number("address", address, 0, 63)
    multiprocessors = _number("multiprocessors", multiprocessors, 1, 31)
    array = (ctypes.c_int64 * len(constants))(*constants.values())
    layout, mask_strides = _layout(input, dim), _mask_strides(input, mask)
    kind = _kind(input, layout, softmax, indices, values)
    limits = (address, multiprocessors, bool(bulk), mask_strides, *kind, array)
    fields = len(_fields("cuda"))
    plans = len(Walk) + 2  # two that gather, and one that is folded
    most = fields + 2 + plans * (fields + 2)
    said, broken = _ask("reduceops_cuda_plan", layout, limits, most)
    chosen, (slices, count, *rest) = said[:fields], said[fields:]
    rows = (rest[i * (fields + 2) :] for i in range(count))
    candidates = tuple(
        Candidate(_cuda_plan(row[:fields]), row[fields] / 1e3, bool(row[fields + 1]))
        for row in rows
    )
    plan = replace(_cuda_plan(chosen), slices=slices, candidates=candidates)
    if broken:
        raise BrokenPlan(f"a bug: the kernel relies on '{broken.decode()}', but not so in {plan}")
    return plan


def _constants(tuning: Mapping[str, int] | None) -> dict[str, int]:
    """The constants in use with it."""
    constants = cuda_constants()
    if tuning is None:
        tuning = _tuning_of_environment(constants)
    if unknown := set(tuning) - set(constants):
        raise ValueError(
            f"reduceops::explain: no constants of the plan: {', '.join(sorted(unknown))}; "
            f"there are {', '.join(sorted(constants))}"
        )
    return constants | {name: _number(name, value, 0, 63) for name, value in tuning.items()}


def _tuning_of_environment(known: Iterable[str]) -> dict[str, int]:
    """As csrc/cuda/entry.cu reads it for a call."""
    tuning, rest = {}, os.environ.get("REDUCEOPS_CUDA_TUNING", "")
    while rest:
        item, _, rest = rest.partition(",")
        name, _, value = item.partition("=")
        if name not in known or not (value.isdecimal() and value.isascii()) or int(value) >> 63:
            raise RuntimeError(
                f"reduceops: REDUCEOPS_CUDA_TUNING: no constant of the plan is set by '{item}'; it "
                f"takes name=value with a value from 0 on and one of {', '.join(known)}"
            )
        tuning[name] = int(value)
    return tuning


def _cuda_plan(numbers: Sequence[int]) -> CudaPlan:
    kinds = CudaPlan.__annotations__
    fields = zip(_fields("cuda"), numbers, strict=True)
    return CudaPlan(**{n: kinds[n](number) for n, number in fields})


@functools.cache
def _fields(device: str) -> tuple[str, ...]:
    """The names of a plan's numbers, in the order of csrc/explain.cpp."""
    ask = libraries.cpu.function(f"reduceops_{device}_plan_field", ctypes.c_char_p)
    names = itertools.takewhile(bool, (ask(ctypes.c_int64(i)) for i in itertools.count()))
    return tuple(name.decode().rpartition(".")[2] for name in names)


class Limits(TypedDict, total=False):
    """What `cuda_plan` takes by keyword."""

    multiprocessors: int
    address: int
    bulk: bool
    tuning: Mapping[str, int] | None
    mask: torch.Tensor | None
    softmax: bool
    values: bool
    indices: bool


@checks.errors_name("customops.explain", *_NAMES)
def explain(
    input: torch.Tensor, dim: int | Sequence[int] | None = None, **options: Unpack[Limits]
) -> str:
    """A table of the walks (ways to go over memory) that a GPU could take to reduce `dim`.

    Args:
        input: A tensor of the shape, strides and dtype. Nothing is run: it may be on any device, or
            a meta tensor. (`cpu_plan` has what a CPU does.) A GPU that it is on is not asked what
            it has: see `options`.
        dim: One dim, several, or None for all.
        options: What else there is to the call, by keyword: its `mask`, ``values=True`` for `min`
            and `max`, ``softmax=True`` for `softmax_max`. And of which GPU, by default an H200:
            `multiprocessors`, `bulk`, `address` and `tuning`, as `cuda_plan` takes them.

    Returns:
        The table as text, a line for each walk, the cheapest first. It has the time predicted for
        an H200, the blocks and threads of the walk, its parts and its cluster. "taken" is the walk
        that the call takes. "usual" is the one measured to be best for such inputs, which is taken
        unless another is clearly cheaper. Of outputs that are reduced in slices, which the first
        line says, it has the plan of the first slice.

    Raises:
        TypeError: An argument is of another type.
        ValueError: The tensor is empty; a number is out of range; several dims of `softmax_max`;
            neither values nor indices.
        IndexError: A dim is out of range.
        RuntimeError: The dtype or layout is not supported; `mask` or REDUCEOPS_CUDA_TUNING does
            not fit.
        BrokenPlan: The kernel could not rely on the plan, which is a bug.

    Example:
        >>> table = customops.explain(torch.empty(128, 4096, 4095, device="meta"), 1)
        >>> table.splitlines()[1]
        'walk          predicted  blocks  threads  parts  cluster'
    """
    known = Limits.__annotations__
    if unknown := sorted(set(options) - set(known)):
        raise TypeError(
            f"customops.explain: there is no argument {unknown[0]!r} "
            f"(by keyword: dim, {', '.join(known)})"
        )
    plan = cuda_plan(input, dim, **options)
    multiprocessors = operator.index(options.get("multiprocessors", _OF_H200))
    cheaper = 100 - _constants(options.get("tuning"))["margin"]
    on_cpu = " (this tensor is on a CPU: customops.plans.cpu_plan)" if input.is_cpu else ""
    slices = f", for the first of {plan.slices} slices" if plan.slices > 1 else ""
    legend = (
        f"The plan of a GPU of {multiprocessors} multiprocessors{slices}{on_cpu}; "
        f"times for an H200. usual: measured best, kept unless another is {cheaper} % cheaper"
    )
    rows: list[tuple[str, ...]] = [
        ("walk", "predicted", "blocks", "threads", "parts", "cluster", "")
    ]
    for candidate in sorted(plan.candidates, key=lambda candidate: candidate.microseconds):
        p = candidate.plan
        notes = ["folded"] * (p.folded > 1) + ["taken"] * (p == plan)
        notes += ["usual"] * candidate.usual
        figures = (p.blocks, p.threads, p.parts, p.cluster)
        time = f"{candidate.microseconds:.1f} us"
        rows.append((p.walk.name.lower(), time, *map(str, figures), ", ".join(notes)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if i in (0, 6) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join([legend, *(line.rstrip() for line in lines)])


def cuda_constants() -> dict[str, int]:
    """The constants of the GPU's plans (csrc/cuda/tuning.h).

    Returns:
        Each with its default. REDUCEOPS_CUDA_TUNING takes them.

    Example:
        >>> "walk" in customops.plans.cuda_constants()
        True
    """
    constant = libraries.cpu.function("reduceops_cuda_constant", ctypes.c_char_p)
    constants: dict[str, int] = {}
    value = ctypes.c_int64()
    while name := constant(ctypes.c_int64(len(constants)), ctypes.byref(value)):
        constants[name.decode()] = value.value
    return constants


@checks.errors_name("customops.plans.cpu_plan", *_NAMES)
def cpu_plan(
    input: torch.Tensor,
    dim: int | Sequence[int] | None = None,
    *,
    threads: int = 1,
    mask: torch.Tensor | None = None,
    softmax: bool = False,
    values: bool = False,
    indices: bool = True,
) -> CpuPlan:
    """How the CPU kernels would reduce `dim` of a tensor.

    Args:
        input: A tensor of the shape, strides and dtype, which is not empty.
        dim: One dim, several, or None for all.
        threads: How many run.
        mask: One like that of the call.
        softmax: Whether the plan is for `softmax_max`.
        values: Whether it is for what gives values.
        indices: Whether it is for what gives indices.

    Returns:
        A `CpuPlan`.

    Raises:
        TypeError: An argument is of another type.
        ValueError: The tensor is empty; a number is out of range; several dims of `softmax_max`;
            neither values nor indices.
        IndexError: A dim is out of range.
        RuntimeError: The dtype or layout is not supported; `mask` does not fit.

    Example:
        >>> customops.plans.cpu_plan(torch.empty(128, 64), 1).rows
        True
    """
    names, kinds = _fields("cpu"), CpuPlan.__annotations__
    threads = _number("threads", threads, 1, 31)
    layout = _layout(input, dim)
    kind = (input.dtype == torch.bool, *_kind(input, layout, softmax, indices, values))
    rest = (threads, _mask_strides(input, mask), *kind)
    numbers, _ = _ask("reduceops_cpu_plan", layout, rest, len(names))
    return CpuPlan(**{n: kinds[n](number) for n, number in zip(names, numbers, strict=True)})


def _number(name: str, number: Any, least: int, bits: int) -> int:
    number = int(arguments.as_int("explain", name, number))
    if not least <= number < 1 << bits:
        raise ValueError(
            f"reduceops::explain: {name} is {number}; it takes {least} to 2**{bits} - 1"
        )
    return number


def _layout(input: torch.Tensor, dim: int | Sequence[int] | None) -> tuple[Any, ...]:
    arguments.check_input("explain", input)
    dim = arguments.as_dims("explain", dim)
    checks.check_dtype("explain", input.dtype)
    if not checks.is_strided(input):
        raise RuntimeError("reduceops::explain: input must be a strided tensor")
    if input.numel() == 0:
        raise ValueError(
            f"reduceops::explain: an empty tensor (shape {list(input.shape)}) has no plan: nothing "
            "runs"
        )
    mask = sum(1 << d for d in checks.wrap_dims("explain", input.dim(), dim))
    array = ctypes.c_int64 * max(input.dim(), 1)
    strides = array(*input.stride())
    return input.dim(), array(*input.shape), strides, ctypes.c_uint64(mask), input.element_size()


def _mask_strides(input: torch.Tensor, mask: torch.Tensor | None) -> "ctypes.Array[Any] | None":
    if mask is None:
        return None
    arguments.check_options("explain", mask, None)
    checks.check_mask_kind("explain", mask)
    checks.check_mask("explain", mask.to("meta"), input.to("meta"))
    return (ctypes.c_int64 * max(input.dim(), 1))(*mask.expand(input.shape).stride())


def _ask(
    name: str, layout: tuple[Any, ...], rest: tuple[Any, ...], fields: int
) -> tuple[list[int], bytes | None]:
    """The plan's fields, and what the function returns. `rest`: numbers, and arrays of them or
    None."""
    out = (ctypes.c_int64 * fields)()
    ndim, sizes, strides, mask, bytes_ = layout
    numbers = [ctypes.c_int64(x) if isinstance(x, int) else x for x in (bytes_, *rest)]
    ask = libraries.cpu.function(name, ctypes.c_char_p)
    said = ask(ctypes.c_int64(ndim), sizes, strides, mask, *numbers, out)
    return list(out), said


def main(arguments: list[str] | None = None) -> None:
    """Prints the walks (ways to go over memory) that a GPU could take, and what each would cost."""
    parser = argparse.ArgumentParser(prog="python -m customops.plans", description=main.__doc__)
    parser.add_argument("sizes", nargs="+", type=int, metavar="SIZE")
    parser.add_argument("--strides", nargs="+", type=int, metavar="STRIDE", help="in elements")
    parser.add_argument(
        "--dim", type=int, action="append", help="reduced; again for several (default: all dims)"
    )
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args(arguments)
    dtype = getattr(torch, options.dtype, None)
    if not isinstance(dtype, torch.dtype):
        parser.error(f"torch has no dtype {options.dtype}")
    if options.strides and len(options.strides) != len(options.sizes):
        parser.error("a stride for each size")
    for name, numbers in (("size", options.sizes), ("stride", options.strides or [0])):
        if min(numbers) < 0:
            parser.error(f"a {name} is negative")
        if max(numbers) >> 63:  # of which torch's error has several lines
            parser.error(f"{max(numbers)} does not fit into 64 bits")
    try:
        x = torch.empty(options.sizes, dtype=dtype, device="meta")
        if options.strides:
            x = x.new_empty_strided(options.sizes, options.strides)
        table = explain(x, options.dim)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        parser.error(str(error).partition("\n")[0])
    failure.show(table)


if __name__ == "__main__":
    main()
