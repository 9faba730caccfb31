"""Who is measured: a way to run a case for every contender, and the answer they are held to."""

import importlib.metadata
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import customops

from .cases import SCALE, SOFTMAX, UNREDUCED, Case
from .strided import Strided

# Ours, as a Python function and as the operator below it; the second where the call itself counts.
OURS, OPERATOR = "ours", "torch.ops"
OURS_MAX = "ours: max"  # what softmax_max does besides is the rest of its time
PEERS = {
    "cpu": ("torch", "torch.max", "numpy", "compile"),
    "cuda": ("torch", "torch.max", "compile", "autotune", "cupy", "jax"),
}
PEERS_OF_OPTIONS = (OURS_MAX, "torch", "torch.max", "compile")


COMPILED = ("compile", "autotune")
PART_ELEMENTS = 1 << 24  # that a reference in float64 takes at once


class Unavailable(Exception):
    """Why a contender does not run a case."""


@dataclass
class Contender:
    call: Callable[[], Any]
    answer: Callable[[Any], Any] = lambda result: result  # None where it does not give the answer
    finish: Callable[[Any], Any] | None = None  # waits for a result that torch's streams don't
    own_memory: bool = False  # on a GPU; torch's allocator does not see it


def with_one_dim(case: Case | Strided, x: Tensor) -> tuple[Tensor, int | None]:
    """The input and dim for operators that take one dim or all: several are made one, by a copy
    where memory has them in another order."""
    if not isinstance(case.dim, tuple):
        return x, case.dim
    last = tuple(range(-len(case.dim), 0))
    return x.movedim(case.dims, last).flatten(last[0]), -1


def comparable(x: Tensor) -> Tensor:
    """The elements in a dtype that torch reduces, in the same order."""
    if x.dtype not in UNREDUCED:
        return x
    if x.dtype == torch.uint64:
        return x.view(torch.int64) ^ torch.iinfo(torch.int64).min
    return x.float() if x.dtype.is_floating_point else x.long()


def reference(case: Case | Strided, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    """What eager torch gives: the lowest index, the first NaN."""
    function = getattr(torch, case.extreme)
    if case.scaled:
        return function(x * SCALE, case.dim, keepdim=True)[0]
    if case.op == SOFTMAX:
        return _largest_softmax(x, case.dim), x.max(case.dim)[1]
    x = with_mask(case, comparable(x), case.make_mask(x.device.type))
    x, dim = with_one_dim(case, x)
    # Not argmax of all dims: it takes no bool.
    values, indices = function(x.flatten(), 0) if dim is None else function(x, dim)
    return indices if case.op.startswith("arg") else (values, indices)


def _largest_softmax(x: Tensor, dim: int) -> Tensor:
    """In float64, some of the elements at a time: torch's own softmax rounds more than ours may."""
    largest = x.amax(dim, keepdim=True).double()
    at_once = max(1, x.size(dim) * PART_ELEMENTS // x.numel())
    parts = (_sum((part - largest).exp_(), dim) for part in x.split(at_once, dim))
    return (1 / sum(parts)).to(x.dtype)


def _sum(x: Tensor, dim: int) -> Tensor:
    """By halves: one after the other, as torch adds columns on a GPU, rounds more than ours may."""
    while (count := x.size(dim)) > 1:
        first, second, last = x.split((count // 2, count // 2, count % 2), dim)
        x = torch.cat((first + second, last), dim)
    return x.squeeze(dim)


def with_mask(case: Case | Strided, x: Tensor, mask: Tensor | None) -> Tensor:
    """What does not take part filled with what every element beats."""
    if mask is None:
        return x
    low, high = -math.inf, math.inf
    if x.dtype == torch.bool:
        low, high = False, True
    elif not x.dtype.is_floating_point:
        low, high = torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max
    return x.masked_fill(~mask, high if case.extreme == "min" else low)


def is_right(answer: Any, expected: Tensor | tuple[Tensor, Tensor], tolerance: float = 0.0) -> bool:
    if isinstance(expected, tuple):
        pairs = zip(answer, expected, strict=True)
        return all(is_right(*pair, tolerance) for pair in pairs)
    answer = comparable(as_tensor(answer).to(expected.device))
    if answer.shape != expected.shape:
        return False
    if tolerance and expected.dtype.is_floating_point:
        answer, expected = answer.double(), expected.double()
        return torch.allclose(answer, expected, rtol=tolerance, atol=0, equal_nan=True)
    if expected.dtype == torch.int64:
        answer = answer.long()  # of some dtypes nothing else is implemented
    return bool(((answer == expected) | ((answer != answer) & (expected != expected))).all())


def as_tensor(result: Any) -> Tensor:
    if isinstance(result, Tensor):
        return result
    if hasattr(result, "__dlpack__"):
        return torch.from_dlpack(result)
    return torch.as_tensor(result)


def _ours(case: Case | Strided, x: Tensor) -> Contender:
    function = getattr(customops, case.op)
    return Contender(partial(function, x, *_arguments(case), **_options(case, x)))


def _operator(case: Case | Strided, x: Tensor) -> Contender:
    function = getattr(torch.ops.reduceops, case.op)
    return Contender(partial(function, x, *_arguments(case), **_options(case, x)))


def _ours_max(case: Case | Strided, x: Tensor) -> Contender:
    if case.op != SOFTMAX:
        raise Unavailable("another operator")
    return Contender(partial(customops.max, x, case.dim), answer=lambda result: None)


def _arguments(case: Case | Strided) -> tuple:
    return (SCALE, case.dim) if case.scaled else (case.dim,)


def _options(case: Case | Strided, x: Tensor) -> dict[str, Any]:
    if not case.has_options:
        return {}
    return {"mask": case.make_mask(x.device.type), "index_dtype": getattr(torch, case.index)}


def _by_torch(case: Case | Strided, function: Callable) -> Callable:
    """What one writes without our options, as a function of the input and the mask."""
    if case.op == SOFTMAX:
        return lambda x, mask: torch.softmax(x, case.dim).max(case.dim)
    dtype = getattr(torch, case.index)

    def run(x, mask):
        result = function(*with_one_dim(case, with_mask(case, x, mask)))
        if isinstance(result, Tensor):
            return result.to(dtype)
        return result[0], result[1].to(dtype)

    return run


def _scaled_extreme(case: Case | Strided) -> Callable[[Tensor], Tensor]:
    function = getattr(torch, case.extreme)
    return lambda x: function(x * SCALE, case.dim, keepdim=True)[0]


def _torch(case: Case | Strided, x: Tensor) -> Contender:
    if case.scaled:
        return Contender(partial(_scaled_extreme(case), x))
    function = getattr(torch, case.op, None)
    if case.has_options or case.op == SOFTMAX:
        return Contender(partial(_by_torch(case, function), x, case.make_mask(x.device.type)))
    return Contender(_on_one_dim(function, case, x))


def _on_one_dim(function: Callable, case: Case | Strided, x: Tensor) -> Callable[[], Any]:
    """Making several dims one is part of the call."""
    if isinstance(case.dim, tuple):
        return lambda: function(*with_one_dim(case, x))
    return partial(function, x, case.dim)


def _torch_max(case: Case | Strided, x: Tensor) -> Contender:
    """Torch's other way: max over a dim for an argmax, amax of the product for scale_max.

    Over all dims torch.max finds no index: shown, but not compared with.
    """
    if case.scaled:
        function = getattr(torch, f"a{case.extreme}")
        return Contender(lambda: function(x * SCALE, case.dim, keepdim=True))
    if not case.op.startswith("arg"):
        raise Unavailable("the same as torch")
    function = getattr(torch, case.extreme)
    if case.has_options and case.dim is not None:
        call = partial(_by_torch(case, function), x, case.make_mask(x.device.type))
        return Contender(call, answer=lambda result: result[1])
    if case.dim is None:
        return Contender(partial(function, x), answer=lambda result: None)
    return Contender(_on_one_dim(function, case, x), answer=lambda result: result[1])


def _compiled(case: Case | Strided, x: Tensor, mode: str | None = None) -> Contender:
    function = getattr(torch, case.op, None)
    if case.has_options or case.op == SOFTMAX:
        run = torch.compile(_by_torch(case, function), fullgraph=True, mode=mode)
        return Contender(partial(run, x, case.make_mask(x.device.type)))
    run = _scaled_extreme(case) if case.scaled else lambda x: function(*with_one_dim(case, x))
    return Contender(partial(torch.compile(run, fullgraph=True, mode=mode), x))


def _array_function(case: Case | Strided, np: Any) -> Callable:
    """The case in NumPy's vocabulary, which CuPy and JAX share."""
    if case.has_options or case.op == SOFTMAX:
        raise Unavailable("no one function does this")
    if case.scaled:
        function = getattr(np, case.extreme)
        return lambda a: function(a * a.dtype.type(SCALE), axis=case.dim, keepdims=True)
    if not case.op.startswith("arg"):
        raise Unavailable("no one function gives values and indices")
    function = getattr(np, case.op)
    if not isinstance(case.dim, tuple):
        return lambda a: function(a, axis=case.dim)
    last = tuple(range(-len(case.dim), 0))

    def on_one_dim(a):
        moved = np.moveaxis(a, case.dims, last)
        return function(moved.reshape(*moved.shape[: last[0]], -1), axis=-1)

    return on_one_dim


def _numpy(case: Case | Strided, x: Tensor) -> Contender:
    import numpy

    return Contender(partial(_array_function(case, numpy), x.numpy()))


def _cupy(case: Case | Strided, x: Tensor) -> Contender:
    import cupy

    function, array = _array_function(case, cupy), cupy.from_dlpack(x)
    if case.timing == "host":  # on the default stream, which torch and CuPy share
        return Contender(partial(function, array), own_memory=True)

    def call():
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            return function(array)

    return Contender(call, own_memory=True)


def _jax(case: Case | Strided, x: Tensor) -> Contender:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    jax.config.update("jax_enable_x64", True)
    function, array = _array_function(case, jax.numpy), jax.dlpack.from_dlpack(x)
    if array.unsafe_buffer_pointer() != x.data_ptr():
        raise Unavailable("JAX would copy an input of this layout")
    call = partial(jax.jit(function), array)
    return Contender(call, finish=jax.block_until_ready, own_memory=True)


CONTENDERS: dict[str, Callable[[Case | Strided, Tensor], Contender]] = {
    OURS: _ours,
    OPERATOR: _operator,
    OURS_MAX: _ours_max,
    "torch": _torch,
    "torch.max": _torch_max,
    "numpy": _numpy,
    "compile": _compiled,
    # CUDA graphs are left to the measurement: theirs would copy the input first.
    "autotune": partial(_compiled, mode="max-autotune-no-cudagraphs"),
    "cupy": _cupy,
    "jax": _jax,
}


def versions() -> dict[str, str | None]:
    """Versions of the contenders' packages, None where one is not installed."""
    found: dict[str, str | None] = {"customops": customops.__version__, "torch": torch.__version__}
    installed = importlib.metadata.packages_distributions()
    for package in ("numpy", "triton", "cupy", "jax"):
        names = installed.get(package)
        found[package] = importlib.metadata.version(names[0]) if names else None
    return found
