"""Tells torch's caches of graphs and their code which version of this package had a part in them.

torch looks for a graph before it traces it, and compiles a backward in another thread. So the tag
is set when this package is imported, as what holds where the program has set none. Where it has,
ours is put behind it when our operators are traced.
"""

import functools
import hashlib
import re
import sys
from pathlib import Path

import torch

from .. import _torch_private
from ..version import __version__


@functools.cache
def version() -> str:
    """Of all code: a gradient, a check or an exchange is a part of a graph as a loop is. (Of a
    package without its sources, the release.)"""
    digest, package = hashlib.sha256(__version__.encode()), Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        if path.parent.name != "bench" and path.is_file():  # editors make links to nothing
            digest.update(path.read_bytes())
    return digest.hexdigest()


def preference() -> str:
    inductor = sys.modules.get(f"{__package__.partition('.')[0]}.inductor")
    return getattr(inductor, "prefer", "auto")


def are_denormals_zero() -> bool:
    """Whether they are to this thread, after torch.set_flush_denormal(True)."""
    return sys.float_info.min / 2 == 0


def _exchange() -> str:
    """By which ranks exchange: a graph with a DTensor is for one of the two."""
    symmetric = sys.modules.get(f"{__package__.partition('.')[0]}.distributed.symmetric")
    return ",symmetric" if getattr(symmetric, "devices", None) else ""


def set_cache_tag() -> None:
    # What Inductor and the compiler write for, of which torch does not ask a cached graph.
    vectors = f"{torch.backends.cpu.get_cpu_capability()},{_torch_private.has_avx512()}"
    flushed = ",flushed" if are_denormals_zero() else ""
    tag = f"customops.inductor={version()},{preference()},{vectors}{flushed}{_exchange()};"
    entry, config = _torch_private.compiler_settings.get("cache_key_tag"), torch.compiler.config
    if entry is not None:  # what holds in every thread: of the environment, or else torch's
        of_environment = isinstance(getattr(entry, "env_value_default", None), str)
        name = "env_value_default" if of_environment else "default"
        setattr(entry, name, _tagged(getattr(entry, name), tag))
    if tag not in config.cache_key_tag:
        config.cache_key_tag = _tagged(config.cache_key_tag, tag)


def _tagged(others: str, tag: str) -> str:
    return re.sub(r"customops\.inductor=[^;]*;", "", others) + tag


set_cache_tag()
