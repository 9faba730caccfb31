"""What Python callers give as arguments: other names, other types that stand for an int, and
TypeErrors for all else, in words of this package. (`torch.ops` takes what a schema takes.)"""

import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import torch
from torch import Tensor

_INT = {int}
SEVERAL = ("argmin", "argmax")  # the operators that take several dims
HAVE_OPTIONS = ("argmin", "argmax", "min", "max")  # mask and index_dtype
# Those whose dim has to be given, though it may be called axis, and what to call without one.
_OF_ALL = {
    "min": "; for the smallest of all elements use torch.min(input)",
    "max": "; for the largest of all elements use torch.max(input)",
    "softmax_max": "",
}


class Default:
    """The default of an argument with two names (dim and axis). It stands for `value`, and is not
    that: both names are an error if both are given, be it with the default."""

    def __init__(self, value: Any, shown: str = "") -> None:
        self.value = value
        self.shown = shown or repr(value)

    def __repr__(self) -> str:
        return self.shown


REQUIRED: Any = Default(None, "(required)")
NONE: Any = Default(None)
ONE: Any = Default(1)
FALSE: Any = Default(False)
TRUE: Any = Default(True)


def _refuse(op: str, name: str, takes: str, got: Any) -> NoReturn:
    kind = got if isinstance(got, type) else type(got)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    given = "None" if got is None else f"{module}{kind.__qualname__}"
    given = f"the class {given}" if isinstance(got, type) else given
    raise TypeError(f"reduceops::{op}: {name} must be {takes}, got {given}")


def check_input(op: str, input: Any, name: str = "input") -> None:
    if is_masked(input):
        how = " (give its get_data(), and its get_mask() as mask=)" if op in HAVE_OPTIONS else ""
        _refuse(op, name, f"a Tensor without a mask{how}", input)
    if not _stands_for_tensor(input):
        _refuse(op, name, "a Tensor", input)


def _stands_for_tensor(value: Any) -> bool:
    return hasattr(value, "__torch_function__") and not isinstance(value, type)


def is_masked(input: Any) -> bool:
    return type(input) is torch.masked.MaskedTensor


def check_scale(op: str, scale: Any) -> None:
    if isinstance(scale, Tensor) and scale.dim() > 0:
        kind = "nested tensor" if scale.is_nested else f"tensor of shape {list(scale.shape)}"
        raise TypeError(f"reduceops::{op}: scale must be a number or a 0-d tensor, got a {kind}")
    if not hasattr(scale, "__float__") or isinstance(scale, complex) or is_no_number(scale):
        _refuse(op, "scale", "a number or a 0-d tensor", scale)
    if isinstance(scale, int) and abs(scale) > sys.float_info.max:
        raise RuntimeError(f"reduceops::{op}: scale is too large for a float")


def is_no_number(scale: Any) -> bool:
    """An array, which torch's parser takes for a number if it has one element, or one of numpy's
    complex numbers, of which it takes the real part."""
    if isinstance(scale, torch.fx.Proxy):  # not known yet
        return False
    ndim, dtype = getattr(scale, "ndim", 0), getattr(scale, "dtype", None)
    return (isinstance(ndim, int) and ndim > 0) or getattr(dtype, "kind", "") == "c"


def check_options(op: str, mask: Any, index_dtype: Any) -> None:
    if mask is not None and not _stands_for_tensor(mask):
        _refuse(op, "mask", "a bool tensor or None", mask)
    if index_dtype is not None and not isinstance(index_dtype, (torch.dtype, torch.fx.Proxy)):
        _refuse(op, "index_dtype", "a torch.dtype or None", index_dtype)


def fit_schema(options: Mapping[str, Any]) -> bool:
    """Whether a schema's checks are enough for options of these types: torch takes an int for a
    dtype."""
    return all(type(value) is _PLAIN.get(name) for name, value in options.items())


_PLAIN = {"mask": Tensor, "index_dtype": torch.dtype}


def rename(
    op: str, options: Mapping[str, Any], takes: Iterable[str], dim: Any, keepdim: Any
) -> tuple[Any, Any, dict[str, Any]]:
    """`dim`, `keepdim` and the other options, of which only those in `takes` are known."""
    rest = dict(options)
    dim = one_of(op, "dim", dim, "axis", rest)
    keepdim = one_of(op, "keepdim", keepdim, "keepdims", rest)
    if unknown := sorted(set(rest) - set(takes)):
        known = ", ".join(("dim (or axis)", "keepdim (or keepdims)", *takes))
        raise TypeError(
            f"reduceops::{op}: there is no argument {unknown[0]!r} (by keyword: {known})"
        )
    return dim, keepdim, rest


def value_of(given: Any) -> Any:
    return given.value if isinstance(given, Default) else given


def one_of(op: str, name: str, given: Any, other: str, rest: dict[str, Any]) -> Any:
    """The argument that is called `name`, or in `rest`, which it leaves, `other`."""
    if other not in rest:
        return value_of(given)
    if not isinstance(given, Default):
        raise TypeError(f"reduceops::{op}: {name} and {other} are one argument, and both are given")
    return rest.pop(other)


def as_dim(op: str, dim: Any) -> Any:
    """An int, or for the operators that take several dims a list or None."""
    if op in SEVERAL:
        return as_dims(op, dim)
    several = ""
    if _is_sequence(dim):
        several = f" (of these operators {' and '.join(SEVERAL)} take several)"
    if op in ("min", "max") and isinstance(dim, Tensor):  # torch has an elementwise form
        _refuse(op, "dim", "an int", dim)
    if dim is None and op in _OF_ALL:
        raise TypeError(f"reduceops::{op}: dim must be given{_OF_ALL[op]}")
    return one_dim(op, dim, f"an int{several}")


def as_dims(op: str, dim: Any) -> Any:
    """An int, a list of them, or None."""
    if dim is None:
        return None
    if _is_sequence(dim):
        return [_as_int(op, one, "ints in a sequence") for one in dim]
    return one_dim(op, dim, "an int, a sequence of ints or None")


def one_dim(op: str, dim: Any, takes: str) -> Any:
    """An int. A tensor of one element stands for one; as its only dim, torch takes a 0-d one."""
    if isinstance(dim, Tensor) and dim.dim():
        _refuse(op, "dim", takes, dim)
    return _as_int(op, dim, takes)


def fit_int64(numbers: Any) -> bool:
    """Whether these have the 64 bits that schemas have for an int."""
    numbers = numbers if _is_sequence(numbers) else [numbers]
    return all(-1 << 63 <= n < 1 << 63 for n in numbers if isinstance(n, int))


def _as_int(op: str, number: Any, takes: str, name: str = "dim") -> Any:
    if isinstance(number, (int, torch.SymInt)) and not isinstance(number, bool):
        return number
    if isinstance(number, torch.fx.Proxy):  # of a graph's input
        return number
    if isinstance(number, (bool, float)):  # Dynamo can tell no more of a symbol
        _refuse(op, name, takes, number)
    of_bool = str(getattr(number, "dtype", "")).removeprefix("torch.") == "bool"
    if not of_bool:
        try:
            return operator.index(number)
        except TypeError:
            pass
    _refuse(op, name, takes, number)


def as_ints(op: str, name: str, numbers: Any, words: str = "") -> list[Any]:
    """Ints, of a sequence or of one for both sides of an image; `words` say what else is taken."""
    if type(numbers) is int:
        return [numbers] * 2
    if are_ints(numbers):
        return list(numbers)
    if _is_sequence(numbers):
        return [_as_int(op, one, "ints in a sequence", name) for one in numbers]
    takes = f"an int{',' if words else ' or'} a sequence of ints{words}"
    return [_as_int(op, numbers, takes, name)] * 2


def are_ints(numbers: Any) -> bool:
    """Whether it is a list or tuple of nothing but ints."""
    kind = type(numbers)
    return (kind is tuple or kind is list) and {*map(type, numbers)} <= _INT


def as_int(op: str, name: str, number: Any, words: str = "") -> Any:
    """An int; `words` say which."""
    return number if type(number) is int else _as_int(op, number, f"an int{words}", name)


def check_ints(op: str, name: str, numbers: Any) -> None:
    """Of what `as_ints` and `as_int` return."""
    if not fit_int64(numbers):
        raise RuntimeError(f"reduceops::{op}: {name} does not fit into 64 bits")


def _is_sequence(numbers: Any) -> bool:
    return isinstance(numbers, Sequence) and not isinstance(numbers, (str, bytes, bytearray))


def as_keepdim(op: str, keepdim: Any) -> Any:
    if not isinstance(keepdim, (bool, torch.fx.Proxy)):
        _refuse(op, "keepdim", "a bool", keepdim)
    return keepdim


def as_bool(op: str, keepdim: Any) -> bool:
    """As torch.ops takes a bool: of whatever has a truth of its own, which texts and lists have
    not, nor have arrays of several elements."""
    if keepdim is None or (hasattr(keepdim, "__bool__") and not isinstance(keepdim, type)):
        with suppress(RuntimeError, ValueError):  # several elements
            return bool(keepdim)
    _refuse(op, "keepdim", "a bool", keepdim)
