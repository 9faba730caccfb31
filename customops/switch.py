"""`enable()`: torch's own argmin, argmax, min and max run these kernels, in code left as it is."""

import contextlib
import ctypes
import functools
import inspect
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from . import _torch_private, libraries

_F = TypeVar("_F", bound=Callable[..., Any])

_lock = threading.RLock()  # a handler of a signal may fork while its thread has it
# A child of fork has no thread that would give it back.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
_held = [0]  # by how many calls of enable() and `with` blocks; disable() begins another list
_kernels_on: bool | None = False  # None while they are switched

# The code that all functions have which contextlib makes of generators.
_makers: tuple[Any, ...] = (contextlib.contextmanager, contextlib.asynccontextmanager)
_CONTEXT_MANAGERS = [make(id).__code__ for make in _makers]
_RUN_LATER = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
    lambda call: getattr(call, "__code__", None) in _CONTEXT_MANAGERS,
)


class Enabled(contextlib.ContextDecorator):
    """What `enable()` returns: a context manager that undoes its own call, and a decorator."""

    _of: list[int] | None = None  # the list in which it is counted
    _switched = False
    _entered = 0

    def __init__(self) -> None:
        self._hold(switched=True)

    def __enter__(self) -> "Enabled":
        self._hold(entered=1)
        return self

    def __exit__(self, *exception: object) -> None:
        self._hold(entered=-1)

    def __call__(self, function: _F) -> _F:
        """Enabled in every call of `function`, and not for having decorated it."""
        self._hold()
        name = getattr(function, "__qualname__", function)
        if isinstance(function, type):
            raise TypeError(
                f"customops.enable() cannot decorate the class {name}, whose methods run after it "
                "is made: decorate these"
            )
        if isinstance(function, torch.nn.Module):
            raise TypeError(
                f"customops.enable() cannot decorate the module {type(function).__name__}, in "
                "whose place there would be a function: decorate its forward"
            )
        inner: Any = function
        while isinstance(inner, functools.partial):
            inner = inner.func
        called = (inner, type(inner).__call__)  # of an object, its method
        if any(is_of(call) for is_of in _RUN_LATER for call in called):
            raise TypeError(
                f"customops.enable() cannot decorate {name}, which runs after its call has "
                "returned (async, a generator or a context manager): write "
                "`with customops.enable():` inside it"
            )
        return super().__call__(function)

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy: nothing on is its own, as where `disable` has ended it."""
        return vars(self) | {"_of": None}

    def _recreate_cm(self) -> "Enabled":
        return Enabled()

    def _hold(self, switched: bool = False, entered: int = 0) -> None:
        """Counts its blocks, or its own call until it is a block's; the kernels follow."""
        with _lock:
            # Nothing is called up to the `try`: no handler of a signal sees half of it.
            held = _held
            if self._of is not held:
                self._of, self._switched, self._entered = held, False, 0
            if not self._entered and entered < 0:
                entered = 0
            held[0] += switched - self._switched + entered
            self._switched = switched
            self._entered += entered
            try:
                _follow()
            except BaseException:
                if switched or entered > 0:  # what raises enables nothing
                    self._hold(entered=-entered)
                _follow()
                raise


def _follow() -> None:
    """Switches the kernels until they are as enabled() says, which a handler may change."""
    while _kernels_on != (on := enabled()):
        _set(on)


@functools.cache
def _sees_names() -> bool:
    """Named dims are not for our kernels; newer versions of torch have none."""
    has_names = "_ZN2at4impl9has_namesEPKN3c1010TensorImplE"
    return not hasattr(torch.Tensor, "names") or _torch_private.symbols()[has_names][1]


def _set(on: bool) -> None:
    """Switches every device's kernels, or raises, before any is switched if that can be."""
    global _kernels_on
    if on and not _sees_names():
        raise RuntimeError("customops.enable() cannot work: it cannot see this torch's named dims")
    loaded = [name for name in ("cpu", "cuda") if getattr(libraries, name).loaded]
    # Both may raise, so before any is switched.
    switches = {name: _switch_of(name) for name in loaded}
    for name in loaded if on else ():
        _hand_back(name)
    _kernels_on = None
    for name, switch in switches.items():
        if problem := switch(on):
            raise RuntimeError(f"customops.enable() cannot work on {name}: {problem.decode()}")
    _kernels_on = on


@functools.cache
def _switch_of(device: str) -> Callable[[bool], bytes | None]:
    library = getattr(libraries, device)
    return library.function(f"reduceops_{device}_switch", ctypes.c_char_p, ctypes.c_bool)


_library = torch.library.Library("reduceops", "FRAGMENT")
_ONE = "(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"
_TWO = "(Tensor self, int dim, bool keepdim=False) -> (Tensor, Tensor)"
_SCHEMAS = {"argmin": _ONE, "argmax": _ONE, "min.dim": _TWO, "max.dim": _TWO}


@functools.cache
def _hand_back(device: str) -> None:
    """Where another extension has replaced a kernel of torch, ours go on to that one."""
    key, library = device.upper(), getattr(libraries, device)
    found = []  # all of them before anything is defined, which cannot be done again after an error
    for operation, (name, schema) in enumerate(_SCHEMAS.items()):
        lines = _torch_private.dispatch_dump(f"aten::{name}").splitlines()
        if any(line.startswith(f"{key}: ") and f"Register{key}" in line for line in lines):
            continue  # torch's own
        if not hasattr(torch.library, "get_kernel"):
            raise RuntimeError(
                f"customops.enable() cannot work: another extension has replaced aten::{name}, and "
                f"torch {torch.__version__} cannot hand back to it"
            )
        types = (ctypes.c_int, ctypes.c_char_p)
        call = library.function("reduceops_hand_back_to", None, *types)
        hand_back_to = functools.partial(call, operation)
        ours = f"_former_{device}_{name.partition('.')[0]}"
        found.append((ours, schema, _previous_kernel(name, key, hand_back_to), hand_back_to))
    for ours, schema, former, hand_back_to in found:
        _library.define(ours + schema)
        _library.impl(ours, former, key, with_keyset=True)
        hand_back_to(_static_bytes(f"reduceops::{ours}"))


def _previous_kernel(name: str, key: str, hand_back_to: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel that is registered now; torch's own once that extension has taken it away."""
    kernel = torch.library.get_kernel(f"aten::{name}", key)
    operation, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, operation), overload or "default")

    def former(keys: Any, *args: Any) -> Any:
        try:
            return kernel.call_boxed(keys, *args)
        except RuntimeError as error:
            if not _torch_private.is_of_removed_kernel(error):
                raise
        hand_back_to(None)
        return op.redispatch(keys, *args)

    return former


@functools.cache
def _static_bytes(text: str) -> bytes:
    """The bytes of a text, which C++ may go on to read."""
    return text.encode()


def enable() -> Enabled:
    """Lets torch's own operators run these kernels, in every thread of the process.

    ``torch.argmin(x, dim)``, ``torch.argmax(x, dim)``, ``torch.min(x, dim)``, ``torch.max(x, dim)``
    and the methods of these names then run this package's kernels, for strided tensors on the CPU
    and, where the CUDA library is loaded, on CUDA, of the dtypes that torch's operator takes too.
    Everything else is left to torch, errors included. Ties go to the lowest index.

    It stays until `disable`. In a ``with`` statement it lasts for the block, as a decorator
    for every call; these nest, and a block that ends leaves other blocks and switches alone.

    Where another extension had replaced a kernel of torch, what is left goes to that one, for as
    long as that extension keeps it there. One that replaces a kernel after the first call of
    `enable` replaces this package's, too: its own then runs.

    Returns:
        What a ``with`` statement or a decorator takes; it may be left alone.

    Raises:
        RuntimeError: This torch does not export its own kernels, or does not tell named dims; or
            another extension has replaced one, and this torch cannot hand calls back to it.
        TypeError: As the decorator of what runs after its call: a class, a generator, a context
            manager that is made of one, an async function or an object that is called as one.
            And of a module, which would be a function then.

    Example:
        >>> with customops.enable():
        ...     torch.argmax(torch.tensor([1.0, 3.0, 3.0]))
        tensor(1)
    """
    return Enabled()


def disable() -> None:
    """Ends every `enable()`, however many there were: torch's operators run torch's kernels again.

    `with` blocks that are still open, in other threads too, end here as well.

    Returns:
        Nothing.

    Example:
        >>> switch = customops.enable()
        >>> customops.disable()
        >>> customops.enabled()
        False
    """
    global _held
    with _lock:
        _held = [0]
        try:
            _follow()
        finally:
            _follow()  # again after an error of a signal's handler


def enabled() -> bool:
    """Whether torch's own operators run these kernels now.

    Returns:
        A bool.

    Example:
        >>> customops.enabled()
        False
        >>> with customops.enable():
        ...     customops.enabled()
        True
    """
    return _held[0] > 0
