"""softmax_max as loops of Inductor's: the largest element, and the sum of its shares."""

import dataclasses

import torch
from torch._inductor import ir, lowering
from torch._inductor.virtualized import ops

from .choice import Choice, Facts
from .coarsening import reads_along
from .keys import FLOAT32, FLOAT64, rounded
from .loops import Loop, NoLoop

_aten = torch.ops.aten


class SoftmaxLoop(Loop):
    """Of rows that a GPU holds in registers, so that what comes before is computed once. The
    probability is the largest share of sum(exp(x - largest)), in float32 or float64 of rounded
    elements."""

    def __init__(
        self, op: torch._ops.OpOverload, x: ir.TensorBox, dim: int, keepdim: bool, *, indices: bool
    ):
        super().__init__(op, x, dim, True, largest=True, indices=indices)
        self.leaves_out_dim = not keepdim

    def choose(self, preference: str) -> Choice:
        if not self.for_threads:
            raise NoLoop("a CPU's kernel is faster than a loop of exponentials")
        rows = reads_along(self._load(), self.size, *self.dims).rows
        if not (rows and self._is_in_registers(self.extent, rows)):
            raise NoLoop("a loop would compute its input twice")
        return super().choose(preference)

    def results(self) -> tuple[ir.TensorBox, ir.TensorBox | None]:
        largest, index = super().results()
        dtype = self.order.dtype
        wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
        load = self.x.make_loader()
        x = self._pointwise(
            wide, lambda index: ops.to_dtype(rounded(load(index), dtype), wide), self.size
        )
        largest = lowering.to_dtype(largest, wide)
        shares = self._call(_aten.exp.default, self._call(_aten.sub.Tensor, x, largest))
        # Not 1: a GPU may contract a product and this difference, and see a larger element.
        top = self._call(_aten.amax.default, shares, self.dims, True)
        total = self._call(_aten.sum.dim_IntList, shares, self.dims, True)
        probability = lowering.to_dtype(self._call(_aten.div.Tensor, top, total), dtype)
        if self.leaves_out_dim:
            (dim,) = self.dims
            probability = self._call(_aten.squeeze.dim, probability, dim)
            index = index and self._call(_aten.squeeze.dim, index, dim)
        return probability, index

    def _facts(self) -> Facts:
        return dataclasses.replace(super()._facts(), shared=super()._is_shared())

    def _is_shared(self) -> bool:
        return True  # by the sum

    def _has_elements_in_memory(self) -> bool:
        return False  # none of its results is an element

    @staticmethod
    def _call(op: torch._ops.OpOverload, *arguments) -> ir.TensorBox:
        return lowering.lowerings[op](*arguments)
