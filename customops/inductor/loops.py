"""A reduction as a loop of Inductor's, fused with what comes before and after it."""

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch._inductor import config, ir, lowering
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.virtualized import V, ops
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.functions import FloorDiv

from .. import checks, libraries
from . import branches, coarsening, keys
from .choice import Choice, Facts, choose
from .coarsening import Coarsening, Reads, plan, reads_along
from .keys import (
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    SUPPORTED,
    Order,
    Packed,
    Zeros,
    largest_zero,
    number,
    rounded,
    sign_of_zeros,
)
from .signs import may_be_negative_zero

_BACKENDS = {"cpu": "cpp", "cuda": "triton"}
_INTEGER = {FLOAT32: INT32, FLOAT64: INT64}
_MOST_ZEROS = 1 << 21  # of a group whose size is a symbol
_MOST_OPERATIONS = 100  # of elements taken in turn, for a compiler takes its time for them
# Inductor reduces as many elements in one go, the second number where it reads rows alone.
_IN_REGISTERS = (64, 1024)


def _of_32_bits(load: Callable) -> Callable:
    """In Triton an index may have 64 bits, of large inputs and where a size is a symbol, and so has
    what is made of it, whatever Inductor takes it for. A loop must not change the type of what it
    reduces to. (Of 32 bits nothing is left of this in machine code.)"""

    def element(*index):
        return ops.to_dtype(ops.to_dtype(load(*index), INT64), INT32)

    return element


class NoLoop(Exception):
    """Why a kernel has to be called."""


def _keeps_order(scale: float, dtype: torch.dtype) -> bool:
    """Whether products are in the order of what is multiplied, or in the reverse."""
    factor = scale if dtype == FLOAT64 else ctypes.c_float(scale).value
    return math.isfinite(factor) and factor != 0


def _hint(size) -> int:
    """A number that a size may be: that of the example, if it has one."""
    variables = V.graph.sizevars
    # (The second name is that of torch 2.10 to 2.12.)
    hint = getattr(variables, "optimization_hint", None) or variables.size_hint
    return hint(size, fallback=1 << 10)


def is_view(target: Any) -> bool:
    if target is torch.ops.aten._unsafe_view.default:
        return True
    returns = target._schema.returns if isinstance(target, torch._ops.OpOverload) else ()
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _is_computed(buffer: Any, extent: sympy.Expr) -> bool:
    """Whether it is a loop, which Inductor fuses with a reduction of `extent` elements."""
    data = buffer.data if isinstance(buffer, ir.ComputedBuffer) else buffer
    if isinstance(data, ir.Scan):  # if it is one of the same groups
        return V.graph.sizevars.statically_known_equals(sympy.prod(data.scan_ranges), extent)
    return isinstance(data, ir.Pointwise)


def _is_written(node: torch.fx.Node) -> bool:
    """Whether the input of a reduction is a result of the graph, or read by a library."""
    others = [user for user in node.args[0].users if user is not node]
    for user in others:
        if user.op == "output" or user.target in lowering.fallbacks:
            return True
        if is_view(user.target):
            others.extend(user.users)
    return False


class Loop:
    """One reduction of an expression of Inductor's; NoLoop where a kernel is to be called."""

    def __init__(
        self,
        op: torch._ops.OpOverload,
        x: ir.TensorBox,
        dim: int | Sequence[int] | None,
        keepdim: bool,
        largest: bool,
        mask: ir.TensorBox | None = None,
        index_dtype: torch.dtype | None = None,
        *,
        scale: float | None = None,
        values: bool = True,
        indices: bool = True,
    ):
        self.x, self.scale, self.mask = x, scale, mask
        self.keepdim, self.values, self.indices = keepdim, values, indices
        self.index_dtype = index_dtype or INT64
        self.parts = 1  # that a dim is cut into, each reduced by itself
        self.device, self.size = x.get_device(), [sympy.sympify(n) for n in x.get_size()]
        kind = self.device.type
        if kind not in _BACKENDS or getattr(config, f"{kind}_backend", None) != _BACKENDS[kind]:
            raise NoLoop("no backend of Inductor that is known here")
        if kind == "cuda" and not libraries.cuda.loaded:
            raise NoLoop("the CUDA library is not loaded")
        if x.get_dtype() not in SUPPORTED:
            raise NoLoop(f"no loop for {x.get_dtype()}")
        dtype = x.get_dtype()
        if kind == "cuda" and dtype.is_floating_point and dtype.itemsize == 1:
            raise NoLoop("Triton does not keep every NaN of eight bits, and not every GPU has them")
        if not self.size:
            raise NoLoop("it has no dims")
        if kind == "cpu" and x.get_dtype() == torch.bool and _reads_bools(x):
            raise NoLoop("in memory any byte of a bool but zero is true")
        self.dims = checks.wrap_dims(op._opname, len(self.size), dim)
        self.order = Order(x.get_dtype(), largest)
        self.extent = sympy.prod([self.size[d] for d in self.dims])
        self.groups = sympy.prod([n for d, n in enumerate(self.size) if d not in self.dims])
        if free_unbacked_symbols(self.extent) and not self._is_known_to_have_elements():
            raise NoLoop("its extent depends on data, and a kernel says so where it is 0")
        limit = checks.INDEX_LIMITS[self.index_dtype]
        if index_dtype not in (None, INT64) and not self._is_at_most(limit):
            raise NoLoop("its extent may not fit the index_dtype")

    @property
    def for_threads(self) -> bool:
        """Whether it takes the forms for a GPU."""
        return self.device.type == "cuda"

    def choose(self, preference: str) -> Choice:
        return choose(self._facts(), preference)

    def results(self) -> tuple[Any, Any]:
        """The values and the indices, of which one may be None."""
        if not self.for_threads:
            if self._is_torchs_on_a_cpu():
                return None, self._own_index()
            if self.indices and self.order.dtype == INT64 and self._is_computed_alike():
                return self._in_two_steps(None, INT64)
            if self.indices or self.order.dtype.itemsize == 1 and self.order.floating:
                return self._packed(None)
            zeros = self._may_be_negative_zero()
            if zeros or self.order.width == 16:  # for to round each is slow
                return self._product_of_the_extreme(zeros), None
            return self._value_alone(), None
        dim = max(self.dims, key=lambda d: _hint(self.size[d]))
        reads, cut = reads_along(self._load(), self.size, dim), None
        if self.extent.is_number and len(self.dims) == 1 and reads.neighbours:
            width = self.order.dtype.itemsize
            self.parts = coarsening.parts(int(self.extent), width, _hint(self.groups))
        if not self.indices and not self._may_be_negative_zero():
            return self._value_alone(), None
        node = V.graph.current_node
        free = self.mask is None and self.parts == 1 and not _is_written(node)
        if self._is_torchs(reads, free):
            return None, self._own_index()
        if free and self.size[dim].is_number:  # (What is written is written in its own order.)
            many = _hint(self.groups) >= 1 << 12
            cut = plan(int(self.size[dim]), dim, reads, many, not self.indices)
        if cut is not None and self.extent == self.size[dim] and cut.rest == 1:
            return self._in_one_thread(cut)
        if not self.indices and self._has_branch(reads):
            return self._value_and_sign(), None
        if not self.indices and (zeros := self._zeros()):
            # In short rows, and of several inputs, it has little to gain from elements in turn.
            whole = self._is_at_most(64) if reads.neighbours else reads.several
            return self._value_with_zeros(zeros, None if whole else cut), None
        wide = self.order.width == 64  # and no integer holds a key and a position
        left = cut.rest * self.extent / self.size[dim] if cut else self.extent
        in_registers = self._is_in_registers(left, reads.rows)
        # (Two steps beside a store of strided elements take longer than one.)
        two = wide or cut is None and (free or reads.neighbours)
        if two and in_registers and self.mask is None:
            return self._in_two_steps(cut, INT32)
        return self._packed(cut)

    # What is reduced.

    def _load(self) -> Callable:
        load = self.x.make_loader()
        if self.scale is None:
            return load
        return lambda index: self._product(load(index))

    def _product(self, value):
        dtype = self.order.dtype
        wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
        product = ops.mul(rounded(value, dtype), number(self.scale, wide))
        return rounded(product, dtype)

    def _position(self, index):
        """Into the reduced dims, flattened in ascending order."""
        position = sympy.Integer(0)
        for d in self.dims:
            position = position * self.size[d] + index[d]
        return position

    def _group(self, index) -> list[sympy.Expr]:
        """Where the result of an element's group is."""
        zero = sympy.Integer(0)
        group = [(d, zero if d in self.dims else i) for d, i in enumerate(index)]
        return [i for d, i in group if self.keepdim or d not in self.dims]

    def _best(self, cut: Coarsening | None, word: torch.dtype, order: Order, load: Callable):
        """Of an index: an element, comparable, and its position, of `word`; the best of those that
        one thread takes."""
        if cut is None:
            return lambda index: (
                order.comparable(load(index)),
                keys.index(self._position(index), word),
            )
        step = cut.rest * sympy.prod([self.size[d] for d in self.dims if d > cut.dim])

        def best(index):
            element, at = cut.best(order, load, index)
            at = ops.mul(ops.to_dtype(at, word), keys.index(step, word))
            return element, ops.add(at, keys.index(self._position(index), word))

        return best

    def _left(self, cut: Coarsening | None) -> list[sympy.Expr]:
        """The sizes of what threads leave to be reduced."""
        left = [*self.size]
        if cut is not None:
            left[cut.dim] = sympy.Integer(cut.rest)
        return left

    @property
    def _factor(self) -> float:
        """What the elements are multiplied by."""
        return 1.0 if self.scale is None else self.scale

    @property
    def _turns(self) -> bool:
        """Whether products are in the reverse order of what is multiplied."""
        return self._factor < 0

    def _product_is_zero_for_zeros(self) -> bool:
        """And for nothing else, and products are in the order of what is multiplied, or in the
        reverse."""
        if self.scale is None or not _keeps_order(self.scale, self.order.dtype):
            return False
        with unset_fake_temporarily():
            return largest_zero(self.scale, self.order.dtype) == 0

    def _may_be_negative_zero(self) -> bool:
        if not self.order.floating:
            return False
        load, dtype = self.x.make_loader(), self.order.dtype
        return may_be_negative_zero(load, self.size, self._factor, dtype, not self.for_threads)

    # The forms of the loop.

    def _value_alone(self) -> ir.TensorBox:
        """Inductor's own minimum of integers, or of what has zeros of one sign only."""
        order, load = self.order, self._load()
        # (Floats are rounded in the end, which is less to do.)
        compared = load if order.floating else lambda index: order.comparable(load(index))
        extremes, size = self._reduce(compared, self.size, order.compared, order.extreme)
        load_extreme = extremes.make_loader()

        def value(index):
            found = load_extreme(index)
            return rounded(found, order.dtype) if order.floating else order.element(found)

        return self._result(size, value)

    def _packed(self, cut: Coarsening | None) -> tuple[Any, Any]:
        """The minimum of integers that hold a key and a position."""
        masked, load = self.mask is not None, self._load()
        form = Packed.of(self.order, self._bound(), self.values, masked)
        if form is None:
            raise NoLoop("no integer holds its elements and their positions")
        mask = lowering.expand(self.mask, [*self.size]).make_loader() if masked else None
        best = self._best(cut, form.word, self.order, load)

        def packed(index):
            if cut is not None:
                element, position = best(index)
                return form.pack(*self.order.key_of(element), position)
            position = keys.index(self._position(index), form.word)
            packed = form.pack(*self.order.key(load(index)), position)
            return ops.where(mask(index), packed, form.none()) if masked else packed

        hint = cut and cut.hint
        least, size = self._reduce(packed, self._left(cut), form.word, "min", hint=hint)
        load_least = least.make_loader()
        return (
            self._result(size, lambda index: form.value(load_least(index), masked)),
            self._indices(size, lambda index: form.position(load_least(index), masked), form.word),
        )

    def _is_torchs(self, reads: Reads, free: bool) -> bool:
        """Whether Inductor's own arg-reduction is as fast as ours, or faster, on a GPU: of rows of
        float64; of columns that are written, too; after a reduction of the same group, if not of
        rows in registers."""
        if self.values or self.mask is not None or self.parts > 1 or not self.order.floating:
            return False
        if len(self.dims) > 1 or _hint(self.groups) < 1 << 10:  # Inductor does not cut it
            return False
        if reads.neighbours:
            registers = self._is_in_registers(self.extent, reads.rows)
            return self.order.width == 64 or reads.reduced and not registers
        return reads.reduced or not free

    def _is_torchs_on_a_cpu(self) -> bool:
        """No integer holds a float64 and its position, and a kernel reads what is written for it.
        Inductor's arg-reduction is in vectors in rows of whole ones."""
        if self.values or self.mask is not None or self.order.dtype != FLOAT64:
            return False
        if len(self.dims) > 1 or not self.extent.is_number or self.extent % 16 != 0:
            return False
        return reads_along(self._load(), self.size, self.dims[0]).rows

    def _own_index(self) -> ir.TensorBox:
        load, order = self._load(), self.order
        own = "argmax" if order.largest else "argmin"
        index, size = self._reduce(
            lambda index: order.comparable(load(index)), self.size, order.compared, own
        )
        load_index = index.make_loader()
        return self._indices(size, load_index, INT64)

    def _in_one_thread(self, cut: Coarsening) -> tuple[Any, Any]:
        best, size = self._best(cut, INT64, self.order, self._load()), self._size_of_results()

        def of_group(index):
            index = [*index]
            for d in () if self.keepdim else self.dims:
                index.insert(d, sympy.Integer(0))
            return best(index)

        values = self._result(size, lambda index: self.order.element(of_group(index)[0]))
        indices = self._indices(size, lambda index: of_group(index)[1], INT64)
        for result in filter(None, (values, indices)):
            result.realize()  # or whoever reads it would compute it anew
        return values, indices

    def _in_two_steps(self, cut: Coarsening | None, word: torch.dtype) -> tuple[Any, Any]:
        """Inductor's own minimum or maximum, then the first position, of `word`, of what equals it.
        (On a GPU elements are in registers; the first step alone takes a third of a minimum of
        integers.)"""
        order, hint = self.order, cut and cut.hint
        best = self._best(cut, word, order, self._load())
        signed = self.values and order.floating
        left = self._left(cut)
        extremes, _ = self._reduce(
            lambda index: best(index)[0], left, order.compared, order.extreme, hint=hint
        )
        load_extreme = extremes.make_loader()

        def position(index):
            element, at = best(index)
            extreme = load_extreme(self._group(index))
            equal = ops.eq(element, extreme)
            if order.floating:  # a NaN is the extreme one, if there is one
                equal = ops.logical_or(equal, ops.ne(element, element))
            at = self._signed(element, at, word) if signed else at
            return ops.where(equal, at, ops.constant(torch.iinfo(word).max, word))

        positions, size = self._reduce(position, left, word, "min", hint=hint)
        load_position = positions.make_loader()
        return self._results(size, load_extreme, load_position, word, signed)

    def _signed(self, element, at, word):
        """A position and, below it, the sign of a float."""
        wide = self.order.compared
        wide = FLOAT64 if wide == FLOAT64 else FLOAT32
        sign = keys.sign(ops.to_dtype(element, wide), wide, word)
        return ops.add(ops.add(at, sign), at)

    def _results(self, size, load_extreme, load_position, word: torch.dtype, signed: bool):
        """With `signed` positions have a sign below."""

        def constant(value):
            return ops.constant(value, word)

        def position(index):
            position = load_position(index)
            position = ops.bitwise_right_shift(position, constant(1)) if signed else position
            # What equalled it may be gone, if somebody writes to the input meanwhile.
            return ops.minimum(position, keys.index(self.extent - 1, word))

        def value(index):
            extreme = load_extreme(index)
            if not signed:
                return self.order.element(extreme)
            dtype = self.order.compared
            negative = ops.ne(ops.bitwise_and(load_position(index), constant(1)), constant(0))
            zero = ops.where(negative, _zero(-0.0, dtype), _zero(0.0, dtype))
            is_zero = ops.eq(extreme, ops.constant(0.0, dtype))
            return self.order.element(ops.where(is_zero, zero, extreme))

        return self._result(size, value), self._indices(size, position, word)

    def _zeros(self) -> Zeros | None:
        """An order of floats with room for the positions of zeros."""
        wide = FLOAT64 if self.order.dtype == FLOAT64 else FLOAT32
        if self.extent.is_number:
            extent = int(self.extent)
        elif self._fits(_MOST_ZEROS):
            extent = _MOST_ZEROS
        else:
            return None
        zeros = Zeros(wide, self.order.largest, extent)
        return zeros if zeros.fits else None

    def _value_with_zeros(self, form: Zeros, cut: Coarsening | None) -> ir.TensorBox:
        """The values alone, by one extreme of integers: of the numbers multiplied, where products
        are in their order and zero where they are."""
        dtype, order, load = self.order.dtype, self.order, self._load()
        multiply = self._product_is_zero_for_zeros()
        if multiply:
            load, largest = self.x.make_loader(), order.largest != self._turns
            order, form = replace(order, largest=largest), replace(form, largest=largest)
        best = self._best(cut, form.word, order, load)

        def packed(index):
            element, at = best(index)
            return form.pack(ops.to_dtype(element, form.dtype), at)

        hint = cut and cut.hint
        own = "max" if form.largest else "min"
        extremes, size = self._reduce(packed, self._left(cut), form.word, own, hint=hint)
        load_extreme = extremes.make_loader()

        def value(index):
            found = ops.to_dtype(form.value(load_extreme(index)), dtype)
            if not multiply:
                return found
            # A compiler may make a product with -1 a negation, of NaNs too.
            return ops.where(ops.ne(found, found), found, self._product(found))

        return self._result(size, value)

    def _value_and_sign(self) -> ir.TensorBox:
        """The values alone on a GPU, as Inductor's own minimum of floats, and in blocks with a zero
        among the results the sign of the first zero."""
        dtype, load, own = self.order.dtype, self._load(), "max" if self.order.largest else "min"
        multiply = self._product_is_zero_for_zeros()
        if multiply:  # not elements but results
            load = self.x.make_loader()
            own = "max" if self.order.largest != self._turns else "min"
        wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
        extremes, size = self._reduce(load, self.size, dtype, own)
        load_extreme = extremes.make_loader()

        def is_zero(extreme):
            found = ops.to_dtype(rounded(extreme, dtype), wide)
            return ops.eq(found, ops.constant(0.0, wide))

        def sign(index):
            element = ops.to_dtype(rounded(load(index), dtype), wide)
            sign = sign_of_zeros(element, self._position(index), wide)
            # (So it comes after the extremes: not in their loop.)
            needed = is_zero(load_extreme(self._group(index)))
            return ops.where(needed, sign, keys.constant(0, _INTEGER[wide]))

        signs, _ = self._reduce(sign, self.size, _INTEGER[wide], "min")
        branches.only_where_zero(signs, extremes, dtype)
        load_sign = signs.make_loader()

        def value(index):
            found = rounded(load_extreme(index), dtype)
            odd = ops.bitwise_and(load_sign(index), keys.constant(1, _INTEGER[wide]))
            negative = ops.ne(odd, keys.constant(0, _INTEGER[wide]))
            zero = ops.where(negative, number(-0.0, wide), number(0.0, wide))
            found = ops.where(is_zero(found), ops.to_dtype(zero, dtype), found)
            if not multiply:
                return found
            # A compiler may make a product with -1 a negation, of NaNs too.
            return ops.where(ops.ne(found, found), found, self._product(found))

        return self._result(size, value)

    def _product_of_the_extreme(self, zeros: bool) -> ir.TensorBox:
        """The values alone, as Inductor's own minimum of floats, which vectorizes better than one
        of integers. The order of products is that of the numbers multiplied, so these are
        compared, and the extreme one is rounded and multiplied. Besides, with `zeros`, the sign of
        the first, which that minimum does not give."""
        load, dtype = self.x.make_loader(), self.order.dtype
        if not _keeps_order(self._factor, dtype):
            raise NoLoop("products with this scale are not in the order of what is multiplied")
        if not self._fits(1 << 30):
            raise NoLoop("its extent may be too large")
        own = "max" if self.order.largest != self._turns else "min"
        extremes, size = self._reduce(load, self.size, dtype, own)  # rounded, as they are written
        load_extreme, wide = extremes.make_loader(), FLOAT64 if dtype == FLOAT64 else FLOAT32

        # What is computed of a result is computed of what it is before it is in memory.
        is_read = any(user.op != "output" for user in V.graph.current_node.users)

        def product(index):
            found = load_extreme(index)
            if self.scale is not None:
                factor = number(self.scale, wide)
                found = ops.to_dtype(ops.mul(ops.to_dtype(found, wide), factor), dtype)
            return rounded(found, dtype) if is_read else found

        value = product
        if zeros:
            load_sign = self._sign_of_the_first_zero(load_extreme, own, wide)

            def value(index):
                sign = load_sign(index)
                odd = ops.bitwise_and(sign, keys.constant(1, _INTEGER[wide]))
                negative = ops.ne(odd, keys.constant(int(self._turns), _INTEGER[wide]))
                zero = ops.where(negative, number(-0.0, wide), number(0.0, wide))
                found = ops.lt(sign, keys.constant(0, _INTEGER[wide]))
                return ops.where(found, ops.to_dtype(zero, dtype), product(index))

        return self._result(size, value)

    def _sign_of_the_first_zero(self, load_extreme: Callable, own: str, wide: torch.dtype):
        """A loader of what `sign_of_zeros` finds among what is multiplied, of each group whose
        product is a zero; else of no negative integer."""
        load, word = self.x.make_loader(), _INTEGER[wide]
        with unset_fake_temporarily():
            least_bits = largest_zero(self._factor, self.order.dtype)

        def number_of(index):
            return ops.to_dtype(load(index), wide)

        def is_open(index):
            extreme = ops.to_dtype_bitcast(ops.to_dtype(load_extreme(index), wide), word, wide)
            magnitude = ops.bitwise_and(extreme, keys.constant(torch.iinfo(word).max, word))
            return ops.le(magnitude, keys.constant(least_bits, word))

        dim = max(self.dims, key=lambda d: _hint(self.size[d]))
        copies = _MOST_OPERATIONS // max(reads_along(load, self.size, dim).operations, 1)
        starts, left = _parts(self.size[dim], min(max(copies, 1), 16))

        def first(index):
            signs = []
            for start in starts:
                place = [*index]
                place[dim] += start
                at = self._position(place)
                signs.append(sign_of_zeros(number_of(place), at, wide, least_bits))
            return functools.reduce(ops.minimum, signs)

        def sign(index):
            # A branch: of most groups the elements are not computed anew.
            return ops.masked(is_open(self._group(index)), lambda: first(index), 0)

        size = [*self.size]
        size[dim] = left
        return self._reduce(sign, size, word, "min")[0].make_loader()

    # What loops are made of.

    def _pointwise(self, dtype, inner, size):
        return ir.Pointwise.create(device=self.device, dtype=dtype, inner_fn=inner, ranges=size)

    def _result(self, size, value) -> ir.TensorBox | None:
        return self._pointwise(self.order.dtype, value, size) if self.values else None

    def _indices(self, size, position, word) -> ir.TensorBox | None:
        """Of positions that are integers of `word`."""
        if not self.indices:
            return None

        def cast(index):
            at = position(index)
            if self.for_threads:
                # Threads without a group have any number, and Inductor asserts of what is an index
                # of a tensor that it is none out of range.
                at = ops.minimum(at, keys.index(self.extent - 1, word))
            return ops.to_dtype(at, self.index_dtype)

        return self._pointwise(self.index_dtype, cast, size)

    def _size_of_results(self) -> list[sympy.Expr]:
        one = sympy.Integer(1)
        return [
            one if d in self.dims else n
            for d, n in enumerate(self.size)
            if self.keepdim or d not in self.dims
        ]

    def _reduce(self, load, size, dtype, kind, *, hint=None):
        """The results, and their sizes."""
        kept = [d for d in range(len(size)) if d not in self.dims]
        results, reduced = self._size_of_results(), [size[d] for d in self.dims]

        def element(index, reduced):
            if self.keepdim:
                index = [index[d] for d in kept]
            place = dict(zip((*kept, *self.dims), (*index, *reduced), strict=True))
            return load([place[d] for d in range(len(size))])

        if self.parts == 1:
            return self._reduction(element, results, reduced, dtype, kind, hint), results
        part = reduced[0] // self.parts

        def element_of_part(index, reduced):
            return element(index[:-1], [index[-1] * part + reduced[0]])

        load_part = self._reduction(
            element_of_part, [*results, self.parts], [part], dtype, kind, ReductionHint.INNER
        ).make_loader()
        least = self._reduction(
            lambda index, reduced: load_part([*index, *reduced]),
            results,
            [sympy.Integer(self.parts)],
            dtype,
            kind,
        )
        return least, results

    def _reduction(self, load, size, reduced, dtype, kind, hint=None) -> ir.TensorBox:
        if self.for_threads and dtype == INT32:
            load = _of_32_bits(load)
        least = ir.Reduction.create(
            device=self.device,
            dst_dtype=INT64 if kind.startswith("arg") else dtype,
            src_dtype=dtype,
            inner_fn=load,
            ranges=size,
            reduction_ranges=reduced,
            reduction_type=kind,
            reduction_hint=hint or ReductionHint.DEFAULT,
        )
        if isinstance(least.data.data, ir.Reduction):  # and not code for each of few elements
            least.realize()
            # Nobody else reads it. Padded strides would only keep Inductor from seeing how
            # contiguous a loop is that never writes it.
            with config.patch(comprehensive_padding=False):
                buffer, _ = ir.as_storage_and_layout(least, freeze=True)
            if self.for_threads:
                # Were the result written in its place, Inductor would copy that in each run that it
                # times, and choose among configurations by the time of the copies. (Where it is not
                # fused away, it is freed when the graph ends.)
                V.graph.never_reuse_buffers.add(buffer.get_name())
        return least

    # What is known of it.

    def _is_known_to_have_elements(self) -> bool:
        return V.graph.sizevars.statically_known_leq(1, self.extent)

    def _is_at_most(self, limit: int) -> bool:
        return V.graph.sizevars.statically_known_leq(self.extent, limit)

    def _fits(self, limit: int) -> bool:
        """Whether the extent is at most as large. If it is a symbol, a guard makes sure of it."""
        if self._is_at_most(limit):
            return True
        symbols = self.extent.free_symbols
        if not symbols or free_unbacked_symbols(self.extent) or _hint(self.extent) > limit:
            return False
        V.graph.sizevars.check_leq(self.extent, sympy.Integer(limit))
        return True

    def _bound(self) -> int | None:
        """A power of two that the extent does not exceed."""
        bounds = (1 << n for n in (8, 15, 16, 23, 24))
        known = next(filter(self._is_at_most, bounds), None)
        return known or next((1 << n for n in (31, 32) if self._fits(1 << n)), None)

    def _is_in_registers(self, left: sympy.Expr, rows: bool) -> bool:
        """Whether Inductor holds a group in registers, so that two steps see the same values (in
        two loops a product and a sum may be rounded once in one of them and twice in the other);
        and has so many groups that it does not cut them."""
        if not config.triton.persistent_reductions:
            return False
        return left.is_number and left <= _IN_REGISTERS[rows] and _hint(self.groups) >= 1 << 10

    def _has_branch(self, reads: Reads) -> bool:
        """Whether to look for the first zero after the extreme is known, which then takes hardly
        any time in groups without one. Where one kernel reduces a group; and not where registers
        that hold elements for it, or the branch itself, cost more than what it saves."""
        many = _hint(self.groups) >= 1 << 10
        if self.parts > 1 or self.mask is not None or not many or not self._fits(1 << 30):
            return False
        if self._is_at_most(config.unroll_reductions_threshold):  # code for each element
            return False
        if self._is_in_registers(self.extent, reads.rows):
            return self.extent > 128 if reads.rows else reads.fused
        if self.order.width == 64 or not reads.light:
            return True
        # Of long rows it takes as long as Inductor's minimum. Of others integers take less.
        extent = _hint(self.extent)
        read = extent * self.order.dtype.itemsize * (2 if reads.several else 1)  # bytes of a group
        return reads.rows and extent >= 4096 and read >= 1 << 14

    def _is_computed_alike(self) -> bool:
        """Whether two loops of a CPU see the same elements: each operation is exact, or rounded to
        the nearest number, whatever the vectors are. And it is cheap to have it done twice."""
        if self.mask is not None or config.cpp.enable_floating_point_contract_flag != "off":
            return False
        return reads_along(self._load(), self.size, self.dims[-1]).light

    def _facts(self) -> Facts:
        inner = self.x.data
        while isinstance(inner, (ir.BaseView, ir.MutableBox)):
            inner = inner.data
        return Facts(
            device=self.device.type,
            groups=_hint(self.groups),
            extent=_hint(self.extent),
            itemsize=self.order.dtype.itemsize,
            stored=not _is_computed(inner, self.extent),
            written=_is_written(V.graph.current_node),
            indices=self.indices,
        )


def _parts(extent: sympy.Expr, count: int) -> tuple[list[sympy.Expr], sympy.Expr]:
    """Where at most `count` parts of a dim start, which may overlap, and their size."""
    count = min(count, int(extent)) if extent.is_number else count
    size = FloorDiv(extent + count - 1, sympy.Integer(count))
    last = sympy.Integer(max(count - 1, 1))
    return [FloorDiv(n * (extent - size), last) for n in range(count)], size


def _reads_bools(x: ir.TensorBox) -> bool:
    return any(V.graph.get_dtype(name) == torch.bool for name in x.get_read_names())


def _zero(value: float, dtype: torch.dtype):
    wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
    return ops.to_dtype(number(value, wide), dtype)
