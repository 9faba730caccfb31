"""The operators in Inductor: as parts of its loops, and in place of torch's reductions.

``prefer`` says what the operators of a graph that is compiled become: ``"auto"`` (the default),
what costs less; ``"loop"``, a loop of Inductor's wherever there is one; ``"kernel"``, a call. It
holds for what is compiled afterwards: ``torch.compiler.reset()`` forgets the rest.
"""

import sys
import types

from .._register import caches
from .choice import PREFERENCES
from .rewrite import inductor_options, left_alone, rewrites

__all__ = ["inductor_options", "left_alone", "prefer", "rewrites"]

prefer = "auto"
"""What the operators of graphs become that are compiled from now on: "auto", "loop" or "kernel"."""


class _Checked(types.ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        if name == "prefer" and value not in PREFERENCES:
            raise ValueError(f"prefer must be one of {', '.join(PREFERENCES)}, got {value!r}")
        super().__setattr__(name, value)
        if name == "prefer":
            caches.set_cache_tag()


sys.modules[__name__].__class__ = _Checked
