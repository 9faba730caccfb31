"""Arg-reductions for PyTorch: the same answer everywhere, at memory speed.

Importing this package loads the compiled libraries and registers the operators as
``torch.ops.reduceops.*``; the functions exported here are thin, typed wrappers over them.
"""

from . import libraries

libraries.load()

from . import autograd, fake, unsupported, vmap  # noqa: E402, F401  (registered by importing)
from . import onnx as onnx  # noqa: E402
from .ops import argmax, argmin, max, min, scale_max, scale_min  # noqa: E402
from .version import __version__  # noqa: E402

__all__ = ["argmax", "argmin", "max", "min", "scale_max", "scale_min", "__version__"]
