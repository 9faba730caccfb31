"""`torch.ops` too refuses a scale that requires a gradient.

torch makes a number of a 0-d tensor where it parses the arguments of a call, before any kernel. So
the check is put before that. (After ops.py, whose functions check by themselves.)
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .. import _torch_private, checks, ops  # noqa: F401


def _checked(op: str, call: Callable) -> Callable:
    def checked(*args, **keywords):
        scale = args[1] if len(args) > 1 else keywords.get("scale")
        if type(scale) is not float and isinstance(scale, Tensor):
            checks.check_scale(op, scale)
        return call(*args, **keywords)

    return checked


for _op in ("scale_min", "scale_max"):
    for _callable in (packet := getattr(torch.ops.reduceops, _op), packet.default):
        _callable._op = _checked(_op, _callable._op)
    _torch_private.register_builtin(packet._op, f"reduceops::{_op}")  # for torch.jit.script
