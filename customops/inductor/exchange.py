"""Keeps exchanges in their order. Inductor has ordered operators wait for each other too, but names
a buffer where its scheduler looks for an operation (torch 2.10 to 2.13)."""

import torch
from torch._inductor import lowering
from torch._inductor.virtualized import V


def register() -> None:
    op = torch.ops.reduceops._one_shot_of_group.default
    call = lowering.fallback_handler(op, add_to_fallback_set=False)

    @lowering.register_lowering(op, type_promotion_kind=None)
    def lower(*args):
        first = len(V.graph.operations)
        results = call(*args)
        for before in V.graph.effectful_ops.values():
            for operation in V.graph.operations[first:]:
                waits = V.graph.additional_star_deps[operation.get_operation_name()]
                waits.add(before.get_name())
        return results
