"""Reductions that Inductor's Triton code does only in blocks with a group that needs them.

Inductor's minimum of floats leaves it open which sign a zero has where a group has zeros of both.
That a zero is the minimum is rare and seen in the minimum, so that what finds the sign of the first
is behind a branch.
"""

import functools
import re

import torch
from torch._inductor import ir
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.virtualized import V

_RESULT = re.compile(r"(\w+) = triton_helpers\.min2\(.*")
# Rounded to the dtype, a float32 of this magnitude or less may be a zero.
_ZERO = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}


def only_where_zero(reduction: ir.TensorBox, extremes: ir.TensorBox, dtype: torch.dtype) -> None:
    """Has a minimum of integers found in blocks in which one of the `extremes`, floats that are
    rounded to `dtype`, is a zero. In others it may be anything; it may be found in all of them."""
    improve()
    name, of = (ir.as_storage_and_layout(box)[0].get_name() for box in (reduction, extremes))
    word = str(reduction.get_dtype()).removeprefix("torch.")
    _conditions()[name] = (of, f"(tl.abs({{}}) <= {_ZERO.get(dtype, 0.0)!r}).to(tl.{word})")


def _conditions() -> dict[str, tuple[str, str]]:
    """Of a reduction of the graph that is lowered: the extremes, and what to ask of them."""
    return V.graph.__dict__.setdefault("customops_conditions", {})


@functools.cache
def improve() -> None:
    reduction, body = TritonKernel.reduction, TritonKernel.codegen_body
    TritonKernel.reduction, TritonKernel.codegen_body = _reduction(reduction), _body(body)


def _reduction(original):
    """Of elements in registers it is the last line of the code so far; of a loop, noted."""

    def reduction(self, dtype, src_dtype, reduction_type, value):
        result = original(self, dtype, src_dtype, reduction_type, value)
        condition, lines = _condition_of(self), self.compute._lines
        if not self.persistent_reduction:
            self.__dict__.setdefault("customops_conditions", []).append(condition)
        elif condition is not None:
            lines[-1:] = _branch(lines[-1:], [condition])
        return result

    return reduction


def _body(original):
    """A loop and what ends it, where all that it does is such reductions."""

    def codegen_body(self):
        conditions = self.__dict__.pop("customops_conditions", [])
        alone = conditions and None not in conditions and not self.stores
        first, lines = len(self.body._lines), self.body._lines
        original(self)
        if alone:
            lines[first:] = _branch(lines[first:], conditions)

    return codegen_body


def _condition_of(kernel: TritonKernel) -> str | None:
    """Code, an integer for each group that is not 0 where it needs the reduction whose code is
    being made; None if all do, or that is not known."""
    node = getattr(kernel.current_node, "node", None)
    found = _conditions().get(node.get_name()) if node is not None else None
    extreme = kernel.cse.store_cache.get(found[0]) if found else None
    return found[1].format(extreme) if extreme is not None else None


def _branch(lines: list, conditions: list[str]) -> list:
    """The code of reductions, each with a condition, behind a branch, if they are found in it."""
    texts = [line for line in lines if type(line) is str]
    results = [found[1] for line in texts if (found := _RESULT.fullmatch(line))]
    if len(results) != len(conditions):
        return lines
    return [
        *(f"{result} = {code}" for result, code in zip(results, conditions, strict=True)),
        f"if tl.max({' | '.join(results)}) != 0:",
        *(f"    {line}" if type(line) is str else line.with_prefix("    ") for line in lines),
    ]
