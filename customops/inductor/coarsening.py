"""Thread coarsening: several elements of a group that one thread of a GPU takes in turn.

What a reduction costs on a GPU is less the comparison of two elements than what Inductor's code
does for every element of a tile: keys are packed, and lanes and warps exchange them. Where a thread
first takes the best of a few elements, that is done once for all of these.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from unittest.mock import patch

import sympy
from torch._inductor import config, dependencies, ir
from torch._inductor.ops_handler import OpCounterCSE
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.virtualized import V, ops

from .keys import INT32, INT64, Order, constant

# Inductor's tiles are powers of two, of at most as many elements of a row, which a warp holds.
_TILE = 1024
IN_ONE_THREAD = 32  # elements of a group at most
_BLOCKS = 1056  # that fill an H200, and some more
# Operations of a few instructions. Where others come before a reduction, they bound a kernel, and
# copies of them take registers.
_LIGHT = {
    *("load", "constant", "index_expr", "indirect_indexing", "to_dtype", "to_dtype_bitcast"),
    *("add", "sub", "mul", "truediv", "neg", "abs", "square", "relu", "maximum", "minimum"),
    *("where", "lt", "le", "gt", "ge", "eq", "ne", "identity", "masked"),
    *("logical_and", "logical_or", "logical_not", "logical_xor"),
    *("bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor"),
    *("bitwise_left_shift", "bitwise_right_shift"),
}
_FEW = 24  # operations


@dataclass(frozen=True)
class Coarsening:
    """Of a dim of `extent` elements, threads take i, i + rest, i + 2 * rest ..., `count` in all."""

    dim: int
    extent: int
    rest: int
    hint: ReductionHint = ReductionHint.DEFAULT  # how what is left is reduced

    @property
    def count(self) -> int:
        return -(-self.extent // self.rest)

    def best(self, order: Order, load: Callable, index: Sequence[sympy.Expr]):
        """The best of those that `index` stands for, comparable, and how many come before it."""
        best, at = order.comparable(load(index)), constant(0, INT32)
        for number in range(1, self.count):
            place = [*index]
            place[self.dim] += self.rest * number
            inside, value = None, lambda place=place: order.comparable(load(place))
            if self.rest * (number + 1) > self.extent:
                inside = ops.lt(
                    ops.index_expr(place[self.dim], INT64), constant(self.extent, INT64)
                )
                other = 0.0 if order.floating else 0
                value = ops.masked(inside, value, other)
            else:
                value = value()
            earlier = order.comes_before(value, best)
            if inside is not None:
                earlier = ops.logical_and(inside, earlier)
            best = ops.where(earlier, value, best)
            at = ops.where(earlier, constant(number, INT32), at)
        return best, at


@dataclass(frozen=True)
class Reads:
    """What an expression reads along a dim, and what it computes of it."""

    neighbours: bool  # elements side by side in memory
    rows: bool  # such elements alone
    fused: bool  # what Inductor may compute in the loop that reads it
    reduced: bool  # of that, a reduction of the same group, as in a softmax
    biased: bool  # along the dim also what has fewer dims
    light: bool  # little is computed


def reads_along(load: Callable, size: Sequence[sympy.Expr], dim: int) -> Reads:
    symbols: list[sympy.Expr] = []

    def trace(index):
        symbols[:] = index
        return load(index)

    with patch.object(ir.FlexibleLayout, "allow_indexing", True):
        found = dependencies.extract_read_writes(trace, size)
        counter = OpCounterCSE(V.MockHandler())
        with V.set_ops_handler(counter):
            load(symbols)
    counted = counter.getvalue()
    neighbours = fused = reduced = scattered = biased = False
    reads = [read for read in found.reads if isinstance(read, dependencies.MemoryDep)]
    walked = {read: read.index.free_symbols & set(symbols) for read in reads}
    for read in reads:
        along = symbols[dim] in walked[read]
        # What has fewer dims than another (a bias) is little, and in a cache.
        little = any(walked[read] < more for more in walked.values())
        biased = biased or along and little
        if along and not little:
            step = read.index.subs(symbols[dim], symbols[dim] + 1) - read.index
            if sympy.simplify(step) == 1:
                neighbours = True
            else:
                scattered = True
        buffer = V.graph.try_get_buffer(read.name)
        if isinstance(buffer, ir.ComputedBuffer):
            # A pointwise one has the same elements, a reduction perhaps the same groups.
            is_reduction = isinstance(buffer.data, ir.Reduction)
            fused = fused or along != is_reduction
            reduced = reduced or is_reduction and not along
            scattered = scattered or along  # what it reads is not known here
    light = counted.num_ops <= _FEW and set(counted.used_ops) <= _LIGHT
    rows = neighbours and not scattered
    return Reads(neighbours, rows, fused, reduced, biased, light)


def parts(extent: int, itemsize: int, groups: int) -> int:
    """Into how many parts of equal size to cut few long rows, for all of a device. Inductor cuts
    into as many as it likes and then masks elements, which it reads one by one."""
    pack = 16 // itemsize
    if extent < 8 * _TILE or groups >= _BLOCKS // 2 or extent % pack:
        return 1
    most = min(_BLOCKS // max(groups, 1), extent // (2 * _TILE), _TILE)
    found = next((n for n in range(most, 0, -1) if extent % (n * pack) == 0), 1)
    return found if 2 * found > most else 1


def plan(extent: int, dim: int, reads: Reads, many: bool) -> Coarsening | None:
    """How to cut a dim, if at all; `many` groups are enough to fill a device with one thread for
    each."""
    strided = not (reads.neighbours or reads.fused)
    most = (IN_ONE_THREAD if reads.light else 24) if many and strided else 8
    if reads.fused:  # as Inductor, or its loops would not be fused with this one
        most = config.unroll_reductions_threshold - 1
    if extent <= most:
        return Coarsening(dim, extent, 1)  # nothing is left to be reduced
    if reads.fused:
        return None  # a thread has to take the elements that it has computed
    if reads.neighbours:
        return _plan_rows(extent, dim, reads.light)
    quarter = max(8, _power_of_two(-(-extent // 4)))
    if reads.light and reads.biased and extent <= 128:
        return Coarsening(dim, extent, quarter, ReductionHint.INNER)
    if extent > 64:
        return None  # Inductor's tiles are wide then, as memory likes it
    if not reads.light:
        return Coarsening(dim, extent, quarter)
    rest = max(8, _power_of_two(-(-extent // 8)))
    return Coarsening(dim, extent, rest, ReductionHint.OUTER)


def _plan_rows(extent: int, dim: int, light: bool) -> Coarsening | None:
    if extent < 512:
        return Coarsening(dim, extent, max(8, _power_of_two(-(-extent // 4))), ReductionHint.INNER)
    if not light and extent <= 8 * _TILE:
        return None  # copies of a function in wide tiles take seconds to compile
    rest = -(-extent // min(8, extent // 256))
    if rest <= _TILE:
        rest = _power_of_two(rest)
    if extent <= _TILE and extent % rest:
        return None  # a row is in registers, and what is masked is read one by one
    return Coarsening(dim, extent, rest, ReductionHint.INNER)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
