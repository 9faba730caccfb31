"""Keeps the exchanges of symmetric memory in their order, which all ranks have to share.

Inductor lowers an ordered operator and has what that made wait for the one before. But it names the
buffer that waits where its scheduler looks for the operation (torch 2.10 to 2.13), and so puts
kernels in an order of its own.
"""

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
