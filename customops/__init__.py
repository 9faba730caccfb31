"""Fast arg-reductions for PyTorch: eager's answers, the lowest index on ties.

Importing this package loads the compiled libraries and registers the operators as
``torch.ops.reduceops.*``; the functions exported here are thin, typed wrappers over them.

See ``help(customops.min)`` and ``help(customops.max)`` for these two. They are not in ``__all__``,
because a star-import would hide Python's.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from . import failure

try:
    from . import interpreter  # noqa: F401  (first, before torch)
    from . import libraries as libraries

    libraries.load()
    from . import _register  # noqa: F401
    from . import onnx as onnx
    from .after_import import after_import
    from .conv2d import conv2d_scale_max, conv2d_scale_min
    from .distributed import pairs  # noqa: F401  (it registers)
    from .ops import argmax, argmin, scale_max, scale_min, softmax_max
    from .ops import max as max
    from .ops import min as min
    from .results import ProbabilityIndex, ValuesIndices
    from .switch import disable, enable, enabled
    from .version import __version__
except Exception as error:  # OSError: torch lacks a library of CUDA; AttributeError: it has changed
    if failure.is_asked_for():
        failure.show(failure.report(error))
        sys.exit(1)
    raise

if TYPE_CHECKING:
    from . import distributed as distributed
    from . import inductor as inductor
    from . import plans as plans
    from . import torch_ops as torch_ops
    from .inductor import inductor_options
    from .plans import explain

__all__ = [
    "ProbabilityIndex",
    "ValuesIndices",
    "argmax",
    "argmin",
    "conv2d_scale_max",
    "conv2d_scale_min",
    "disable",
    "enable",
    "enabled",
    "explain",
    "inductor_options",
    "scale_max",
    "scale_min",
    "softmax_max",
    "__version__",
]

after_import(
    "torch.distributed.tensor",
    lambda: importlib.import_module(".distributed.sharding", __name__),
)


if not TYPE_CHECKING:  # or a name that is misspelt would be one

    def __getattr__(name: str) -> Any:
        """What few programs use; Inductor alone takes a second to import."""
        if name in _MODULES:
            return importlib.import_module(f".{name}", __name__)
        if name in _LATER:
            return getattr(importlib.import_module(_LATER[name], __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is public, for a shell to complete: what comes later, too."""
    return sorted({*__all__, "min", "max", *_MODULES})


_MODULES = ("distributed", "inductor", "libraries", "onnx", "plans", "torch_ops")
_LATER = {"explain": ".plans", "inductor_options": ".inductor"}
