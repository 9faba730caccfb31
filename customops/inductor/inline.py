"""Expressions of Inductor's without the buffers that it makes of their parts.

What is used twice Inductor computes into a buffer, and then fuses that with its reader if both run
over the same elements in the same order. A loop that takes them in another order has to compute
the part itself.
"""

from collections.abc import Callable, Sequence
from typing import Any

import sympy
from torch._inductor import ir
from torch._inductor.ops_handler import WrapperHandler
from torch._inductor.virtualized import OpsValue, V


def is_computed(buffer: Any) -> bool:
    """Whether it is a loop, which Inductor fuses with what reads it."""
    return isinstance(buffer, ir.ComputedBuffer) and isinstance(buffer.data, ir.Pointwise)


class _Inline(WrapperHandler):
    def __init__(self, handler: Any, place: Sequence[sympy.Expr]):
        super().__init__(handler)
        self.place, self.found = place, {}

    def load(self, name: str, index: sympy.Expr) -> Any:
        buffer = V.graph.try_get_buffer(name)
        if is_computed(buffer) and len(buffer.get_size()) == len(self.place):
            if buffer.make_indexer()(self.place) == index:
                if name not in self.found:
                    value = buffer.data.inner_fn(self.place)
                    self.found[name] = value.value if isinstance(value, OpsValue) else value
                return self.found[name]
        return self._inner.load(name, index)


def inlined(load: Callable) -> Callable:
    """Computes what `load` reads of buffers at the place that it is called for."""

    def load_inlined(index):
        with V.set_ops_handler(_Inline(V.get_ops_handler(), [*index])):
            return load(index)

    return load_inlined
