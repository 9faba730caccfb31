"""Reductions that Inductor's Triton code does only in blocks with a group that needs them.

Inductor's minimum of floats leaves it open which sign a zero has where a group has zeros of both.
That a zero is the minimum is rare and seen in the minimum, so that what finds the sign of the first
is behind a branch.
"""

import functools

import torch
from torch._inductor import ir
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.virtualized import V

# Rounded to the dtype, a float32 of this magnitude or less may be a zero.
_ZERO = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}


def only_where_zero(reduction: ir.TensorBox, extremes: ir.TensorBox, dtype: torch.dtype) -> None:
    """Has a minimum of integers found in blocks in which one of the `extremes`, floats that are
    rounded to `dtype`, is a zero. In others it may be anything; it may be found in all of them."""
    improve()
    name, of = (ir.as_storage_and_layout(box)[0].get_name() for box in (reduction, extremes))
    _conditions()[name] = (of, _ZERO.get(dtype, 0.0))


def _conditions() -> dict[str, tuple[str, float]]:
    """Of a reduction of the graph that is lowered: the extremes, and the largest that may be a
    zero."""
    return V.graph.__dict__.setdefault("customops_conditions", {})


@functools.cache
def improve() -> None:
    reduction, body = TritonKernel.reduction, TritonKernel.codegen_body
    TritonKernel.reduction, TritonKernel.codegen_body = _reduction(reduction), _body(body)


def _reduction(original):
    """Of elements in registers it is the last line of the code so far; of a loop, noted."""

    def reduction(self, dtype, src_dtype, reduction_type, value):
        result = original(self, dtype, src_dtype, reduction_type, value)
        made = self.__dict__.setdefault("customops_made", {})
        if str(result) in made:  # before, for another buffer: no code is added
            return result
        made[str(result)] = condition = _condition_of(self)
        if not self.persistent_reduction:
            self.__dict__.setdefault("customops_in_loop", []).append(result)
        elif condition is not None:
            lines = self.compute._lines
            lines[-1:] = _branch(lines[-1:], {result: condition})
        return result

    return reduction


def _body(original):
    """A loop and what ends it, where all that it does is such reductions."""

    def codegen_body(self):
        results = self.__dict__.pop("customops_in_loop", [])
        conditions = {result: self.customops_made[str(result)] for result in results}
        alone = conditions and None not in conditions.values() and not self.stores
        first, lines = len(self.body._lines), self.body._lines
        original(self)
        if alone:
            lines[first:] = _branch(lines[first:], conditions)

    return codegen_body


def _condition_of(kernel: TritonKernel) -> str | None:
    """Code for whether each group needs the reduction whose code is being made; None if all do, or
    that is not known."""
    node = getattr(kernel.current_node, "node", None)
    found = _conditions().get(node.get_name()) if node is not None else None
    extreme = kernel.cse.store_cache.get(found[0]) if found else None
    return f"(tl.abs({extreme}) <= {found[1]!r})" if extreme is not None else None


def _branch(lines: list, conditions: dict) -> list:
    """The code of results, each with a condition, behind a branch; as it is, where not every one is
    found in it. (Where several programs share a group, they have put together its extreme before,
    and so take the same way.)"""
    texts = [line for line in lines if type(line) is str]
    for result in conditions:
        if sum(line.startswith(f"{result} = triton_helpers.min2(") for line in texts) != 1:
            return lines
    words = {result: str(result.dtype).removeprefix("torch.") for result in conditions}
    return [
        *(f"{result} = {code}.to(tl.{words[result]})" for result, code in conditions.items()),
        f"if tl.max({' | '.join(map(str, conditions))}) != 0:",
        *(f"    {line}" if type(line) is str else line.with_prefix("    ") for line in lines),
    ]
