"""What Inductor makes of the operators: a loop of its own, or a kernel that it calls.

What a kernel reads must be in memory. In a loop what comes before the reduction, and what comes
after it, is computed where it is needed. choice.py decides; where nothing of Inductor fits, or its
internals are others than those this was written for, the kernel is called.

Imported when Inductor is (see _register/fake.py).
"""

import functools
import logging
import operator
from collections.abc import Callable

import torch
from torch._inductor import lowering
from torch._inductor.virtualized import V

from .._register.caches import preference
from .._register.overloads import overloads
from . import report, vectors
from .loops import Loop, NoLoop
from .softmax import SoftmaxLoop

log = logging.getLogger(__name__)


def register() -> None:
    vectors.improve()
    for end in ("min", "max"):
        for name, loop in (
            (f"arg{end}", _arg),
            (end, _extreme),
            (f"scale_{end}", _scaled),
            (f"_scale_{end}_indices", _scaled_with_indices),
        ):
            for op in overloads(name):
                _register(op, functools.partial(loop, end == "max"))
    _register(torch.ops.reduceops.softmax_max.default, _softmax)


def _register(op: torch._ops.OpOverload, loop: Callable) -> None:
    # As Inductor does with an operator unknown to it.
    call = lowering.fallback_handler(op, add_to_fallback_set=False)

    @lowering.register_lowering(op, type_promotion_kind=None)
    def lower(self, *args, **options):
        try:
            results = looped(loop(op, self, *args, **options))
        except NoLoop as reason:
            report.chosen(op, self, f"kernel ({reason})")
        except Exception:
            text = "%s is not fused: a bug of customops, or an Inductor that is not known to it"
            log.warning(text, op, exc_info=True)
        else:
            return results
        return call(self, *args, **options)

    def looped(loop: Loop):
        choice = loop.choose(preference())
        if not choice.loop:
            raise NoLoop(choice.reason)
        wanted = loop.results()
        report.chosen(op, loop.x, str(choice))
        return wanted if len(op._schema.returns) > 1 else next(filter(None, wanted))


def _are_read() -> tuple[bool, bool]:
    """Which of two results the graph has a use for."""
    users = V.graph.current_node.users
    read = {user.args[1] % 2 for user in users if user.target is operator.getitem}
    both = not read or any(user.target is not operator.getitem for user in users)
    return both or 0 in read, both or 1 in read


def _arg(largest, op, self, dim=None, keepdim=False, *, mask=None, index_dtype=None):
    return Loop(op, self, dim, keepdim, largest, mask, index_dtype, values=False)


def _extreme(largest, op, self, dim, keepdim=False, *, mask=None, index_dtype=None):
    values, indices = _are_read()
    return Loop(op, self, dim, keepdim, largest, mask, index_dtype, values=values, indices=indices)


def _scaled(largest, op, self, scale, dim=1, keepdim=True):
    return Loop(op, self, dim, keepdim, largest, scale=scale, indices=False)


def _scaled_with_indices(largest, op, self, scale, dim, keepdim):
    return Loop(op, self, dim, keepdim, largest, scale=scale)


def _softmax(op, self, dim, keepdim=False):
    _, indices = _are_read()
    return SoftmaxLoop(op, self, dim, keepdim, indices=indices)
