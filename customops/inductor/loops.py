"""A reduction as a loop of Inductor's, fused with what comes before and after it."""

import ctypes
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch._inductor import config, ir, lowering
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.virtualized import V, ops
from torch.fx.experimental import _config as symbolic_config
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from .. import checks, libraries
from .._register import caches
from . import coarsening, keys, vectors
from .choice import Choice, Facts, choose
from .coarsening import Coarsening, Reads, plan, reads_along
from .keys import FLOAT32, FLOAT64, INT32, INT64, SUPPORTED, Order, Packed, number, rounded

_BACKENDS = {"cpu": "cpp", "cuda": "triton"}
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


# Calls of libraries that are none of Inductor's fallbacks.
_PRODUCTS = frozenset("mm addmm bmm baddbmm _int_mm _scaled_mm convolution".split())


def _is_written(node: torch.fx.Node) -> bool:
    """Whether the input of a reduction is a result of the graph, or read by a library."""
    others = [user for user in node.args[0].users if user is not node]
    for user in others:
        if user.op == "output" or user.target in lowering.fallbacks:
            return True
        if getattr(user.target, "_opname", None) in _PRODUCTS:
            return True
        if is_view(user.target):
            others.extend(user.users)
    return False


# Of Inductor's loops over a stored input those that one of ours is fused with.
_REDUCTIONS = frozenset(
    "sum mean var var_mean prod any all amax amin argmax argmin max min _scale_max_indices "
    "_scale_min_indices scale_max scale_min prepare_softmax_online".split()
)


def _is_reduced_twice(node: torch.fx.Node, rank: int, dims: Sequence[int]) -> bool:
    """Whether something else in the graph reduces the same dims of what a reduction reads."""
    others = [user for user in node.args[0].users if user is not node]
    for user in others:
        if user.target is torch.ops.prims.convert_element_type.default:
            others.extend(user.users)
        elif getattr(user.target, "_opname", None) in _REDUCTIONS:
            given = arguments_of(user).get("dim")
            given = [given] if isinstance(given, int) else given or range(rank)
            if sorted(d % rank for d in given) == sorted(dims):
                return True
    return False


def arguments_of(node: torch.fx.Node) -> dict[str, Any]:
    """Those of a call by the names of its schema, with the defaults that it leaves out."""
    taken = node.target._schema.arguments
    defaults = {argument.name: argument.default_value for argument in taken}
    return {**defaults, **dict(zip(defaults, node.args, strict=False)), **node.kwargs}


def _is_read(node: torch.fx.Node) -> bool:
    """Whether something in the graph is computed of a result."""
    users = list(node.users)
    if any(user.target is operator.getitem for user in users):
        return any(map(_is_read, users))
    return any(user.op != "output" for user in users)


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
        why = libraries.why_not_on(self.device) if kind == "cuda" else vectors.why_not()
        if why:
            raise NoLoop(why)
        if x.get_dtype() not in SUPPORTED:
            raise NoLoop(f"no loop for {x.get_dtype()}")
        dtype = x.get_dtype()
        if kind == "cuda" and dtype.is_floating_point and dtype.itemsize == 1:
            raise NoLoop("Triton does not keep every NaN of eight bits, and not every GPU has them")
        if kind == "cpu" and _has_denormals(dtype) and caches.are_denormals_zero():
            raise NoLoop("denormals are zero to this thread, and may not be to a loop's others")
        if not self.size:
            raise NoLoop("it has no dims")
        if kind == "cpu" and x.get_dtype() == torch.bool and _reads_bools(x):
            raise NoLoop("any byte of a bool in memory but zero is true")
        # (Vectors of a mask's bytes 2 and 128 were read as false.)
        if kind == "cpu" and mask is not None and torch.__version__ < "2.13" and _reads_bools(mask):
            raise NoLoop("before torch 2.13 some bytes of a mask in memory are read wrongly")
        self.dims = checks.wrap_dims(op._opname, len(self.size), dim)
        self.order = Order(x.get_dtype(), largest)
        self.extent = sympy.prod([self.size[d] for d in self.dims])
        self.groups = sympy.prod([n for d, n in enumerate(self.size) if d not in self.dims])
        if not self._has_elements():
            raise NoLoop("its extent may be 0, which a kernel says")
        if kind == "cpu" and dtype.itemsize == 2 and scale is None:
            if self._has_elements_in_memory():
                raise NoLoop("Inductor's C++ does not keep every NaN of 16 bits")
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
        if not self._has_elements_in_memory():
            return self._by_a_form()
        is_wanted, self.indices = self.indices, True
        # With a mask a group may have no element, which the form knows.
        self.values = self.mask is not None
        try:
            values, index = self._by_a_form()
        except NoLoop as why:
            raise NoLoop(f"a value in memory is read at its position, and {why}") from None
        if values is None:
            load = self._element_at(index.make_loader())
            values = self._pointwise(self.order.dtype, load, self._size_of_results())
        if not self.for_threads:
            values.realize()  # or each element that is computed of it would look it up anew
        return values, index if is_wanted else None

    def _by_a_form(self) -> tuple[Any, Any]:
        if not self.for_threads:
            if self.indices and self._is_torchs_on_a_cpu():
                return self._own()
            if self.indices and self.order.dtype == INT64 and self._is_computed_alike():
                return self._in_two_steps(None, INT64)
            if self.indices or self.order.width == 8 and self.order.floating:
                return self._packed(None)
            return self._value_alone(), None
        dim = max(self.dims, key=lambda d: _hint(self.size[d]))
        reads, cut = reads_along(self._load(), self.size, dim), None
        if self._is_shared():
            reads = replace(reads, fused=True)
        if self.extent.is_number and len(self.dims) == 1 and reads.neighbours:
            width = self.order.dtype.itemsize
            self.parts = coarsening.parts(int(self.extent), width, _hint(self.groups))
        if not self.indices:
            return self._value_alone(), None
        node = V.graph.current_node
        free = self.mask is None and self.parts == 1 and not _is_written(node)
        if self._is_torchs(reads, free):
            return self._own()
        if free and self.size[dim].is_number:  # (What is written is written in its own order.)
            many = _hint(self.groups) >= 1 << 12
            cut = plan(int(self.size[dim]), dim, reads, many)
        if cut is not None and self.extent == self.size[dim] and cut.rest == 1:
            return self._in_one_thread(cut)
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
        return rounded(self._times_scale(rounded(value, self.order.dtype)), self.order.dtype)

    def _times_scale(self, value):
        wide = FLOAT64 if self.order.dtype == FLOAT64 else FLOAT32
        product = ops.mul(ops.to_dtype(value, wide), number(self.scale, wide))
        return ops.to_dtype(product, self.order.dtype)

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

    def _masked(self, load: Callable, last: Callable) -> Callable:
        """With what every element beats in place of those that do not take part."""
        takes_part = lowering.expand(self.mask, [*self.size]).make_loader()
        return lambda index: ops.where(takes_part(index), load(index), last())

    # The forms of the loop.

    def _value_alone(self) -> ir.TensorBox:
        """Inductor's own minimum or maximum, whose zeros have either sign. Products are in the
        order of what is multiplied, or in the reverse, so that its extreme is all to multiply."""
        order, scale = self.order, self.scale
        multiply = scale is not None and _keeps_order(scale, order.dtype)
        load = self.x.make_loader() if multiply else self._load()
        compared, own = load, "max" if order.largest else "min"
        by_keys = self._by_keys
        if by_keys:
            compared, own = lambda index: order.comparable(load(index)), order.extreme
        elif multiply and scale < 0:
            own = "min" if order.largest else "max"
        if self.mask is not None:
            last = order.last if by_keys else order.last_element
            compared = self._masked(compared, lambda: ops.constant(last, order.compared))
        extremes, size = self._reduce(compared, self.size, order.compared, own)
        load_extreme = extremes.make_loader()
        # What is only written is rounded then.
        is_read = _is_read(V.graph.current_node)
        is_buffer = isinstance(extremes.data.data, ir.ComputedBuffer)  # no code for each element
        if not (by_keys or multiply or is_read):
            return extremes

        def value(index):
            found = load_extreme(index)
            if by_keys:
                return order.element(found)
            if self.for_threads or not is_buffer:  # else it is read from memory
                found = rounded(found, order.dtype)
            found = self._times_scale(found) if multiply else found
            return rounded(found, order.dtype) if is_read else found

        return self._result(size, value)

    def _packed(self, cut: Coarsening | None) -> tuple[Any, Any]:
        """The minimum of integers that hold a key and a position."""
        masked, load = self.mask is not None, self._load()
        form = Packed.of(self.order, self._bound(), self.values, masked)
        if form is None:
            raise NoLoop("no integer holds its elements and their positions")
        best = self._best(cut, form.word, self.order, load)

        def packed(index):
            if cut is not None:
                element, position = best(index)
                return form.pack(*self.order.key_of(element), position)
            position = keys.index(self._position(index), form.word)
            return form.pack(*self.order.key(load(index)), position)

        if masked:
            packed = self._masked(packed, form.none)
        hint = cut and cut.hint
        least, size = self._reduce(packed, self._left(cut), form.word, "min", hint=hint)
        load_least = least.make_loader()

        def position(index):
            return form.position(load_least(index), masked)

        def value(index):
            found = form.value(load_least(index), masked)
            if not self._has_elements_in_memory():
                return found
            none = form.is_none(load_least(index))  # of a mask
            return self.order.where(none, found, self._element_at(position)(index))

        return self._result(size, value), self._indices(size, position, form.word)

    def _is_torchs(self, reads: Reads, free: bool) -> bool:
        """Whether Inductor's own arg-reduction is as fast as ours, or faster, on a GPU: of 64 bits,
        which leave a packed integer no room, and of integers of 32, which it compares for less than
        floats. Of floats without their values: of columns that are written, too, or whose number is
        a symbol; after a reduction of the same group, if not of rows in registers."""
        if self.mask is not None or self.parts > 1 or len(self.dims) > 1:
            return False
        if _hint(self.groups) < 1 << 10:  # Inductor cuts it
            return False
        order = self.order
        if order.width == 64 or order.width == 32 and not order.floating:
            return reads.neighbours or not self._is_at_most(coarsening.IN_ONE_THREAD)
        if self.values or not order.floating:
            return False
        if reads.neighbours:
            return reads.reduced and not self._is_in_registers(self.extent, reads.rows)
        return reads.reduced or not free or not self.extent.is_number

    def _is_torchs_on_a_cpu(self) -> bool:
        """No integer holds a float64 and its position, and a kernel reads what is written for it.
        Inductor's arg-reduction is in vectors in rows of whole ones, and of few elements it takes
        less than a kernel's call."""
        if self.mask is not None or self.order.dtype != FLOAT64:
            return False
        if len(self.dims) > 1 or not self.extent.is_number:
            return False
        if _hint(self.groups) * self.extent <= 1 << 12:
            return True
        if self.extent % 16 != 0:
            return False
        return reads_along(self._load(), self.size, self.dims[0]).rows

    def _own(self) -> tuple[Any, Any]:
        """Inductor's own arg-reduction, and its own extreme beside it."""
        load, order = self._load(), self.order
        index, size = self._reduce(
            lambda index: order.comparable(load(index)),
            self.size,
            order.compared,
            f"arg{order.extreme}",
        )
        load_index = index.make_loader()
        values = self._value_alone() if self.values else None
        if values is not None and order.floating:
            values = self._with_zeros_at(load_index, values)
        return values, self._indices(size, load_index, INT64)

    def _with_zeros_at(self, load_index: Callable, values: ir.TensorBox) -> ir.TensorBox:
        """The extremes of one dim, of which a zero has the sign of the element at its index."""
        load, load_value = self._element_at(load_index), values.make_loader()

        def value(index):
            found = load_value(index)
            is_zero = ops.eq(found, ops.constant(0.0, self.order.dtype))
            return ops.where(is_zero, load(index), found)

        return self._pointwise(self.order.dtype, value, values.get_size())

    def _element_at(self, load_index: Callable) -> Callable:
        """Of a group the element where its index is, that of one dim, as it is in memory: with a
        zero's sign and the bits of a NaN."""
        load, (dim,), last = self._load(), self.dims, self.extent - 1

        def element(index):
            place = [*index]
            at = ops.minimum(ops.to_dtype(load_index(index), INT64), keys.index(last, INT64))
            at = ops.indirect_indexing(at, self.extent, check=False, wrap_neg=False)
            place[dim : dim + self.keepdim] = [at]
            return load(place)

        return element

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

    @property
    def _by_keys(self) -> bool:
        """Whether values alone are compared as keys."""
        wide = self.order.floating and self.order.width > 8
        return not wide and self.order.dtype not in (INT32, INT64)

    def _has_elements(self) -> bool:
        """Whether a graph is not run with an empty dim: what depends on data may be one, a package
        takes any size, and so does a graph with torch's backed_size_oblivious."""
        variables = V.graph.sizevars
        if free_unbacked_symbols(self.extent):
            return variables.statically_known_leq(1, self.extent)
        if V.graph.aot_mode:
            return self.extent.is_number
        if not symbolic_config.backed_size_oblivious:  # 0 has a graph of its own
            return True
        return variables.shape_env.bound_sympy(self.extent).lower >= 1

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
        if not config.triton.persistent_reductions or config.triton.multi_kernel:
            return False
        return left.is_number and left <= _IN_REGISTERS[rows] and _hint(self.groups) >= 1 << 10

    def _is_computed_alike(self) -> bool:
        """Whether two loops of a CPU see the same elements: each operation is exact, or rounded to
        the nearest number, whatever the vectors are. And it is cheap to have it done twice."""
        if self.mask is not None or config.cpp.enable_floating_point_contract_flag != "off":
            return False
        return reads_along(self._load(), self.size, self.dims[-1]).light

    def _facts(self) -> Facts:
        mask = self.mask
        computed = mask is not None and not self._is_stored(mask)
        return Facts(
            device=self.device.type,
            groups=_hint(self.groups),
            extent=_hint(self.extent),
            itemsize=self.order.dtype.itemsize,
            stored=self._is_stored(self.x),
            written=_is_written(V.graph.current_node),
            indices=self.indices or self._by_keys or self._has_elements_in_memory(),
            shared=self._is_shared(),
            read=_is_read(V.graph.current_node),
            reads_bools=mask is not None
            and any(V.graph.get_dtype(name) == torch.bool for name in mask.get_read_names()),
            mask=_hint(sympy.prod(mask.get_size())) if computed else 0,
        )

    def _has_elements_in_memory(self) -> bool:
        """Whether values are floats, which a form may change the bits of, and can be read again."""
        return self.values and self.order.floating and self._is_stored(self.x)

    def _is_stored(self, x: ir.TensorBox) -> bool:
        inner = x.data
        while isinstance(inner, (ir.BaseView, ir.MutableBox)):
            inner = inner.data
        return not _is_computed(inner, self.extent)

    def _is_shared(self) -> bool:
        """Whether Inductor reads a stored input once for this and for another reduction of a GPU:
        where it cuts neither."""
        if not self.for_threads or (_hint(self.groups) < 1 << 12 < _hint(self.extent)):
            return False
        if not self._is_stored(self.x):
            return False
        return _is_reduced_twice(V.graph.current_node, len(self.size), self.dims)


def _reads_bools(x: ir.TensorBox) -> bool:
    """Or bytes, of which bools may be a view."""
    return any(V.graph.get_dtype(name).itemsize == 1 for name in x.get_read_names())


def _has_denormals(dtype: torch.dtype) -> bool:
    """Whether some of its elements are denormals where Inductor computes: in float32 or float64."""
    return dtype.is_floating_point and torch.finfo(dtype).tiny <= torch.finfo(FLOAT32).tiny


def _zero(value: float, dtype: torch.dtype):
    wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
    return ops.to_dtype(number(value, wide), dtype)
