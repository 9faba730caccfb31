"""`enable()`: torch's own argmin, argmax, min and max run these kernels, in code left as it is."""

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable

import torch

from . import _torch_private, libraries

_lock = threading.Lock()
_switches = 0  # enable() calls that are no `with` block's
_blocks = 0  # `with` blocks entered
_generation = 0  # grows when disable() ends them all


class Enabled(contextlib.ContextDecorator):
    """What `enable()` returns: a context manager that undoes its own call, and a decorator."""

    def __init__(self) -> None:
        with _lock:
            self._generation, self._switched, self._entered = _generation, True, 0
            _count(switches=1)

    def __enter__(self) -> "Enabled":
        with _lock:
            self._forget_what_disable_ended()
            _count(switches=-self._switched, blocks=1)
            self._switched = False
            self._entered += 1
        return self

    def __exit__(self, *exception: object) -> None:
        with _lock:
            self._forget_what_disable_ended()
            if self._entered:
                self._entered -= 1
                _count(blocks=-1)

    def __call__(self, function: Callable) -> Callable:
        """Enabled in every call of `function`, and not for having decorated it."""
        with _lock:
            self._forget_what_disable_ended()
            _count(switches=-self._switched)
            self._switched = False
        return super().__call__(function)

    def _recreate_cm(self) -> "Enabled":
        return Enabled()

    def _forget_what_disable_ended(self) -> None:
        if self._generation != _generation:
            self._generation, self._switched, self._entered = _generation, False, 0


def _count(switches: int = 0, blocks: int = 0) -> None:
    global _switches, _blocks
    _set(_switches + switches + _blocks + blocks > 0)
    _switches += switches
    _blocks += blocks


@functools.cache
def _sees_names() -> bool:
    """Named dims are not for our kernels; newer versions of torch have none."""
    has_names = "_ZN2at4impl9has_namesEPKN3c1010TensorImplE"
    return not hasattr(torch.Tensor, "names") or has_names not in _torch_private.missing()


def _set(on: bool) -> None:
    """Switches every device's kernels, or none and raises."""
    if on and not _sees_names():
        raise RuntimeError("customops.enable() cannot work: it cannot see this torch's named dims")
    for name in ("cpu", "cuda"):
        library = getattr(libraries, name)
        if not library.loaded:
            continue
        if on:
            _hand_back(name)
        switch = getattr(ctypes.CDLL(str(library.path)), f"reduceops_{name}_switch")
        switch.argtypes, switch.restype = [ctypes.c_bool], ctypes.c_char_p
        if problem := switch(on):
            _set(False)
            raise RuntimeError(f"customops.enable() cannot work on {name}: {problem.decode()}")


_library = torch.library.Library("reduceops", "FRAGMENT")
_ONE = "(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"
_TWO = "(Tensor self, int dim, bool keepdim=False) -> (Tensor, Tensor)"
_SCHEMAS = {"argmin": _ONE, "argmax": _ONE, "min.dim": _TWO, "max.dim": _TWO}


@functools.cache
def _hand_back(device: str) -> None:
    """Where another extension has replaced a kernel of torch, ours go on to that one."""
    key, library = device.upper(), ctypes.CDLL(str(getattr(libraries, device).path))
    for operation, (name, schema) in enumerate(_SCHEMAS.items()):
        lines = _torch_private.dispatch_dump(f"aten::{name}").splitlines()
        if any(line.startswith(f"{key}: ") and f"Register{key}" in line for line in lines):
            continue  # torch's own
        if not hasattr(torch.library, "get_kernel"):
            raise RuntimeError(
                f"customops.enable() cannot work: another extension has replaced aten::{name}, and "
                f"torch {torch.__version__} cannot hand back to it"
            )
        former = torch.library.get_kernel(f"aten::{name}", key)
        ours = f"_former_{device}_{name.partition('.')[0]}"
        _library.define(ours + schema)
        _library.impl(ours, former.call_boxed, key, with_keyset=True)
        call = library.reduceops_hand_back_to
        call.argtypes = [ctypes.c_int, ctypes.c_char_p]
        call(operation, _kept(f"reduceops::{ours}"))


@functools.cache
def _kept(text: str) -> bytes:
    """The bytes of a text, which C++ may go on to read."""
    return text.encode()


def enable() -> Enabled:
    """Lets torch's own operators run these kernels, in every thread of the process.

    ``torch.argmin(x, dim)``, ``torch.argmax(x, dim)``, ``torch.min(x, dim)``, ``torch.max(x, dim)``
    and the methods of these names then run this package's kernels, for strided tensors on the CPU
    and, where the CUDA library is loaded, on CUDA, of the dtypes that torch's operator takes too.
    Everything else is left to torch, errors included. Ties go to the lowest index.

    It stays until :func:`disable`. In a ``with`` statement it lasts for the block, as a decorator
    for every call; these nest, and a block that ends leaves other blocks and switches alone.

    Where another extension had replaced a kernel of torch, what is left goes to that one.

    RuntimeError where this torch does not export its own kernels.
    """
    return Enabled()


def disable() -> None:
    """Ends every `enable()`, however many there were: torch's operators run torch's kernels again.

    `with` blocks that are still open, in other threads too, end here as well.
    """
    global _generation
    with _lock:
        _count(-_switches, -_blocks)
        _generation += 1


def enabled() -> bool:
    """Whether torch's own operators run these kernels now."""
    return _switches + _blocks > 0
