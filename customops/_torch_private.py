"""What this package uses of torch that torch does not promise: every private Python name.

Each is looked up when this module is imported or, where that would import sympy, when it is first
needed. Where this torch has none the package still imports, and no answer is wrong: something is
slower, or an error. `missing()` says what, for these and for the C++ symbols of
csrc/torch_private.h. (Inductor's internals are imported by customops/inductor, when somebody uses
Inductor; without them the operators are kernels that it calls.)
"""

import contextlib
import ctypes
import functools
import importlib
import os
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad

from . import libraries

# Names that count as missing, for tests.
_hidden = set(filter(None, os.environ.get("REDUCEOPS_WITHOUT", "").split(",")))
LOST: dict[str, str] = {}  # what is lost without each
_missing: set[str] = set()


def _find(module: str, name: str, fallback: Any, without: str) -> Any:
    path = f"{module}.{name}"
    known = LOST.get(path, without)
    LOST[path] = known if without in known else f"{known}; {without}"
    try:
        if path in _hidden:
            raise AttributeError(path)
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found
    except (ImportError, AttributeError):
        _missing.add(path)
        return fallback


_later: list[Callable[[], Callable[..., Any]]] = []  # to be looked up yet


def _for_symbols(name: str, without: str) -> Callable[[Any], bool]:
    """A function of a condition on sizes. Numbers do not need it; to import it takes 0.35 s."""
    module = "torch.fx.experimental.symbolic_shapes"
    find = functools.cache(lambda: _find(module, name, bool, without))
    LOST[f"{module}.{name}"] = without
    _later.append(find)
    return lambda condition: condition if isinstance(condition, bool) else find()(condition)


def _refuse(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        raise NotImplementedError(f"customops: {what} with torch {torch.__version__}")

    return refuse


def _require(condition: bool, message: Callable[[], str]) -> None:
    if not condition:
        raise RuntimeError(message())


_NO_GRADIENTS = "gradients and modes of Python do not work"
_NO_TRANSFORMS = "gradients under torch.func do not work"
_NO_MASKED_VMAP = "vmap of calls with a mask or an index_dtype does not work"

compiler_settings: dict[str, Any] = _find(
    *("torch.compiler", "config._config", {}),
    "after an upgrade of this package Inductor's cache may serve code that the former one made",
)
AutoDispatchBelowAutograd = _find(
    "torch._C", "_AutoDispatchBelowAutograd", _refuse(_NO_GRADIENTS), _NO_GRADIENTS
)
are_transforms_active = _find(
    *("torch._C", "_are_functorch_transforms_active", lambda: True),
    "a call with a gradient takes some us more, and gradients are contiguous",
)
dispatch_modes = _find(
    *("torch._C", "_len_torch_dispatch_stack", lambda: 1),
    "a convolution with a gradient is never one kernel, a call of customops.distributed takes more",
)
is_transformed = _find(
    *("torch._C", "_functorch.is_functorch_wrapped_tensor", lambda _: False),
    "customops.distributed under torch.func gets an error of torch",
)
unwrap_dead_wrappers = _find(
    *("torch._functorch.utils", "unwrap_dead_wrappers", lambda args: args),
    "a tensor that outlives its torch.func transform is an error",
)
SingleLevelFunction = _find(
    *("torch.autograd.function", "_SingleLevelFunction", torch.autograd.Function),
    _NO_TRANSFORMS,
)
enable_single_level_autograd_function = _find(
    *("torch._functorch.utils", "enable_single_level_autograd_function"),
    *(_refuse(_NO_TRANSFORMS), _NO_TRANSFORMS),
)
if SingleLevelFunction is torch.autograd.Function:
    enable_single_level_autograd_function = _refuse(_NO_TRANSFORMS)
set_forward_gradients = _find(
    "torch.autograd.forward_ad", "_set_fwd_grad_enabled", _refuse(_NO_TRANSFORMS), _NO_TRANSFORMS
)
current_interpreter = _find(
    *("torch._functorch.pyfunctorch", "retrieve_current_functorch_interpreter"),
    *(_refuse(_NO_MASKED_VMAP), _NO_MASKED_VMAP),
)
vmap_helper = _find(
    *("torch._functorch.autograd_function", "custom_function_call_vmap_helper"),
    *(_refuse(_NO_MASKED_VMAP), _NO_MASKED_VMAP),
)
current_raw_stream = _find(
    *("torch._C", "_cuda_getCurrentRawStream"),
    lambda device: torch.cuda.current_stream(device).cuda_stream,
    "a call with symmetric memory takes some us more",
)
_dispatch_mode_stack = _find(
    *("torch.utils._python_dispatch", "_get_current_dispatch_mode_stack", None),
    "with TORCH_DISTRIBUTED_DEBUG=DETAIL nothing is compared under a TorchDispatchMode",
)
_TRACED = tuple(
    _find(module, name, type(None), "with TORCH_DISTRIBUTED_DEBUG=DETAIL tracing waits for ranks")
    for module, name in (
        ("torch._subclasses.fake_tensor", "FakeTensor"),
        ("torch._subclasses.functional_tensor", "FunctionalTensor"),
    )
)
statically_known_true = _for_symbols(
    "statically_known_true",
    "a traced call with an index_dtype is compiled for one side of its limit",
)
guard_or_false = _for_symbols("guard_or_false", "sizes that depend on data are errors when traced")
_check = _find(
    *("torch", "_check", lambda condition, message=str: _require(bool(condition), message)),
    "a mask over sizes that depend on data is an error when traced",
)


def check(condition: Any, message: Callable[[], str]) -> None:
    """RuntimeError unless the condition holds, which may be a symbol: what a graph asks when it
    runs."""
    # `is`: to ask a symbol for its truth would compile a graph for it.
    if condition is False:
        raise RuntimeError(message())
    if torch.compiler.is_dynamo_compiling():
        _check(condition)  # by its own message: before torch 2.13 it takes none that is computed
    elif condition is not True:
        _check(condition, message)


make_wrapper_subclass = _find(
    *("torch", "Tensor._make_wrapper_subclass", _refuse("no exception can pass through C++")),
    "an exception of a hook or a mode becomes a RuntimeError",
)
register_builtin = _find(
    *("torch.jit._builtins", "_register_builtin", lambda function, name: None),
    "torch.jit.script does not know scale_min and scale_max",
)
NestedTensor = _find(
    *("torch.nested._internal.nested_tensor", "NestedTensor", None),
    "a jagged tensor gets an error of torch",
)
compiled_autograd_key = _find(
    *("torch.autograd.function", "Function._compiled_autograd_key"),
    *(_refuse("compiled autograd does not work"), "compiled autograd does not work"),
)
_has_direct = bool(
    _find("torch", "ops.reduceops.argmin.default._op", None, "every call takes some us more")
)
register_namedtuple = _find(
    *("torch.utils._pytree", "_register_namedtuple", lambda kind, *, serialized_type_name: None),
    "torch.export.save() refuses a program that returns what min or max return, as it is",
)
dispatch_dump = _find(
    *("torch._C", "_dispatch_dump", lambda _: ""),
    "with enable(), what is left to torch takes some us more",
)
has_avx512 = _find(
    *("torch.cpu", "_is_avx512_supported", lambda: False),
    "a cached graph may be that of another CPU",
)
_NO_ORDER = "a graph may exchange in another order than eager mode"
_register_effect = _find(
    *("torch._higher_order_ops.effects", "_register_effectful_op"),
    *(lambda op, effect: None, _NO_ORDER),
)
_ORDERED = _find("torch._higher_order_ops.effects", "_EffectType.ORDERED", None, _NO_ORDER)
_BELOW_AUTOGRAD = "a call below autograd with numbers that are symbols is an error"
_is_excluded = _find(
    "torch._C", "_dispatch_tls_is_dispatch_key_excluded", lambda key: False, _BELOW_AUTOGRAD
)
_AUTOGRAD = _find("torch._C", "DispatchKey.AutogradFunctionality", None, _BELOW_AUTOGRAD)
_unpack_dual = _find(
    *("torch._VF", "_unpack_dual", forward_ad.unpack_dual),
    "a process's first gradient takes longer",
)
_without_dispatch = _find(
    *("torch._C", "_DisableTorchDispatch", contextlib.nullcontext),
    "a graph has nodes that nothing needs",
)


def direct(op: Any) -> Callable[..., Any]:
    """What calling an overload calls, or a packet of them, which saves a Python frame."""
    return op._op if _has_direct else functools.partial(type(op).__call__, op)


def with_direct(op: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """An overload, which is all that torch.compile knows, and `direct` of it."""
    return op, direct(op)


def replace_direct(
    op: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[..., Any]:
    """Puts in place of `direct(op)` what `make` makes of it, and returns that, by which `op` is
    hashed from then on."""
    call = make(direct(op))
    if _has_direct:
        op._op = call
    else:  # an object is called by its class

        def __call__(self: Any, /, *args: Any, **keywords: Any) -> Any:
            return call(*args, **keywords)

        op.__class__ = type(type(op).__name__, (type(op),), {"__call__": __call__})
    return call


def is_real(x: torch.Tensor) -> bool:
    """Whether a call computes, though modes of Python may watch, and is not traced for a graph."""
    if torch.compiler.is_dynamo_compiling() or isinstance(x, _TRACED):
        return False
    if _dispatch_mode_stack is None:
        return dispatch_modes() == 0
    return not any(mode.is_infra_mode() for mode in _dispatch_mode_stack())


def register_ordered(op: torch._ops.OpOverload) -> None:
    """Has graphs keep all calls of an operator, in their order."""
    _register_effect(op, _ORDERED)


def has_tangent(x: torch.Tensor) -> bool:
    """Whether x is a dual number, also where a graph runs, of which torch.autograd.forward_ad does
    not know."""
    # Not asked where that is an error: below autograd, and of layouts that operators refuse.
    is_below = _AUTOGRAD is not None and _is_excluded(_AUTOGRAD)
    if is_below or x.layout is not torch.strided or x.is_nested:
        return False
    with _without_dispatch():
        return _unpack_dual(x, level=0)[1] is not None


def functional_all_gather(x: torch.Tensor, group: Any) -> torch.Tensor:
    """As an operator, which a graph can hold. (Looked up by those who call it, for a torch without
    torch.distributed has no such operators.)"""
    collectives = torch.ops._c10d_functional
    ranks = torch.distributed.get_world_size(group)
    gathered = collectives.all_gather_into_tensor(x, ranks, group.group_name)
    return collectives.wait_tensor(gathered)


def are_in_order(x: Any) -> bool:
    """Whether the dims of a mesh that cut one dim of a DTensor do so one after the other: from
    torch 2.13 on they may in another order. Not if that cannot be told."""
    order = getattr(getattr(x, "_spec", None), "shard_order", None)
    if order is not None:
        return all([*mesh_dims] == sorted(mesh_dims) for _, mesh_dims in order)
    cut = [placement.dim for placement in x.placements if placement.is_shard()]
    return torch.__version__ < "2.13" or len(cut) == len(set(cut))


def group_named(name: str) -> Any:
    """The process group with this name, which torch's own functional collectives look up so."""
    distributed: Any = torch.distributed.distributed_c10d
    return distributed._resolve_process_group(name)


def is_of_removed_kernel(error: RuntimeError) -> bool:
    """Whether torch says so of what torch.library.get_kernel had found: its words are all there is
    to know it by."""
    return "SafeKernelFunction has been invalidated" in str(error)


class _All:
    def __contains__(self, _: object) -> bool:
        return True


def process_groups() -> Any:
    """Those that were not destroyed; all where this torch has another list of them."""
    return getattr(torch.distributed.distributed_c10d, "_pg_map", _All())


def direct_all_gather(group: Any, device_type: str) -> Callable[[torch.Tensor, torch.Tensor], Any]:
    """`dist.all_gather_single(gathered, x, group)` for tensors of a device type, without what it
    does in Python and the dispatcher, which takes as long as a kernel; that itself where this torch
    has not what is used."""
    distributed, backend = torch.distributed, None
    if not torch.compiler.is_dynamo_compiling():  # which cannot look into a group
        with contextlib.suppress(AttributeError, RuntimeError):  # it has none for them
            backend = group._get_backend(torch.device(device_type))
    method = getattr(backend, "_allgather_base", None)
    options = getattr(distributed.distributed_c10d, "AllgatherOptions", None)
    if method is None or options is None or not hasattr(options, "asyncOp"):
        public = getattr(distributed, "all_gather_single", None)
        public = public or distributed.all_gather_into_tensor
        weak = weakref.ref(group)
        return lambda gathered, x: public(gathered, x, group=weak())
    options = options()
    options.asyncOp = False

    def all_gather(gathered: torch.Tensor, x: torch.Tensor) -> None:
        work = method(gathered, x, options)
        if work is not None:
            work.wait()

    return all_gather


_SYMMETRIC_MEMORY = "torch.distributed._symmetric_memory"


def symmetric_memory() -> Any:
    """`torch.distributed._symmetric_memory`; None where this torch has not what is used of it,
    and ranks then exchange by collectives. Imported by those who ask for it."""
    try:
        memory = importlib.import_module(_SYMMETRIC_MEMORY)
    except ImportError:
        return None
    has_all = all(hasattr(memory, name) for name in ("empty", "rendezvous"))
    return memory if has_all and _SYMMETRIC_MEMORY not in _hidden else None


def symbols() -> dict[str, tuple[str, bool]]:
    """The C++ symbols: what is lost without each, and whether it is there."""
    types = (ctypes.c_size_t, ctypes.c_bool, *map(ctypes.POINTER, (ctypes.c_char_p, ctypes.c_bool)))
    ask = libraries.cpu.function("reduceops_torch_symbol", ctypes.c_char_p, *types)
    without, found = ctypes.c_char_p(), ctypes.c_bool()
    answers: dict[str, tuple[str, bool]] = {}
    cuda = libraries.cuda.loaded
    while name := ask(len(answers), cuda, ctypes.byref(without), ctypes.byref(found)):
        answers[name.decode()] = (without.value or b"").decode(), found.value
    return answers


def relevant() -> dict[str, str]:
    """Of `missing()`, what changes something with this torch."""
    no_use = {
        "torch._C._cuda_getCurrentRawStream": torch.version.cuda is None,
        # torch 2.13 took named dims away.
        "_ZN2at4impl9has_namesEPKN3c1010TensorImplE": not hasattr(torch.Tensor, "names"),
    }
    return {name: without for name, without in missing().items() if not no_use.get(name)}


def missing() -> dict[str, str]:
    """The private names that this torch lacks, and what is lost without each."""
    for find in _later:
        find()
    lacking = {name: LOST[name] for name in LOST if name in _missing}
    return lacking | {name: without for name, (without, found) in symbols().items() if not found}


def _check_hidden() -> None:
    known = {*LOST, *symbols(), _SYMMETRIC_MEMORY}
    if unknown := ", ".join(sorted(_hidden - known)):
        raise ImportError(f"REDUCEOPS_WITHOUT names {unknown}; it takes {', '.join(sorted(known))}")


if _hidden:
    _check_hidden()
