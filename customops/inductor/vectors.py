"""Four operations of Inductor's C++ code, made cheaper.

Inductor casts the bits of a vector element by element, through memory, and waits for that; it makes
a vector of positions anew for each, element by element; and where there are 16-bit numbers in a
loop, so that one of their vectors is several of 32 bits, it widens these through memory, too. Each
takes several times as long as the rest of a loop that packs keys and positions. The extreme integer
of a vector, at the end of a loop, it finds lane by lane, storing and loading the vector each time,
which takes as long as hundreds of elements.

And one operation mended: results of two equal reductions of 16-bit floats, which are converted in
variables of one name, did not compile.
"""

import functools
import re

import torch
from torch._inductor import config, cpu_vec_isa
from torch._inductor.codegen import cpp
from torch._inductor.virtualized import V

_OF_LANES = re.compile(r"at::vec::vec_reduce_all<(int\d+_t), \d+>\(.*\}, (\w+)\)")
_LANES = (
    r"[&]() {{ constexpr int n = sizeof(\2) / sizeof(\1); __at_align__ \1 lanes[n]; "
    r"std::memcpy(lanes, static_cast<const void*>(&\2), sizeof(\2)); \1 found = lanes[0]; "
    r"for (int i = 1; i < n; i++) found = std::{0}(found, lanes[i]); return found; }}()"
)


def why_not() -> str | None:
    """Why no loop is safe: g++ 12, compiling vectors of AVX2 for AVX-512, makes the opposite of
    `a != b ? b : a` (as `a > b ? b : a` is where a is the largest integer). A kernel has none."""
    if str(cpu_vec_isa.pick_vec_isa()) != "avx2":
        return None
    # What the compiler is told: this CPU, or the one that is named, which older torch cannot.
    if torch.cpu._is_avx512_supported() or getattr(config.cpp, "march", None):
        return "Inductor writes for AVX2 and the compiler for AVX-512, which g++ 12 gets wrong"
    return None


@functools.cache
def improve() -> None:
    kernel, overrides = cpp.CppVecKernel, cpp.CppVecOverrides
    better = [  # all of them, or none where one is missing
        (
            overrides,
            "to_dtype_bitcast",
            _to_dtype_bitcast(overrides.to_dtype_bitcast),
        ),
        (kernel, "arange", _arange(kernel.arange)),
        (kernel, "get_to_dtype_expr", _widen(kernel.get_to_dtype_expr)),
        (kernel, "reduction", _in_lanes(kernel.reduction)),
        (kernel, "store_reduction", _in_a_scope(kernel.store_reduction)),
    ]
    for owner, name, function in better:
        setattr(owner, name, function)


def _to_dtype_bitcast(original):
    def to_dtype_bitcast(x, dtype, src_dtype):
        kernel = V.kernel
        in_lanes = dtype.itemsize >= 4 and getattr(x, "is_vec", False)
        if not in_lanes or kernel._get_num_vectors(dtype) != kernel._get_num_vectors(src_dtype):
            return original(x, dtype, src_dtype)
        return (
            f"[&]() {{ {kernel._get_vec_type(dtype)} cast; "
            f"static_assert(sizeof(cast) == sizeof({x})); "
            f"std::memcpy(static_cast<void*>(&cast), &{x}, sizeof(cast)); return cast; }}()"
        )

    return staticmethod(to_dtype_bitcast)


def _arange(original):
    """Of steps from 0 on, which the compiler moves out of the loop, plus the first position."""

    def arange(self, index, stride):
        if index.dtype is None or index.dtype.is_floating_point:
            return original(self, index, stride)
        vector = self._get_vec_type(index.dtype)
        steps = f"{vector}::arange(0, {stride}) + {vector}({index})"
        found = self.cse.generate(self.compute, steps)
        found.dtype, found.is_vec = index.dtype, True
        return found

    return arange


def _widen(original):
    """Of int32 to int64: each vector to two, for which there is an instruction."""

    def get_to_dtype_expr(self, src, dtype, src_dtype, *options, **keywords):
        widens = src.is_vec and src_dtype == torch.int32 and dtype == torch.int64
        count = self._get_num_vectors(src_dtype) if widens else 1
        if count == 1 or self._get_num_vectors(dtype) != 2 * count:
            return original(self, src, dtype, src_dtype, *options, **keywords)
        return (
            f"[&]() {{ at::vec::VectorizedN<int64_t, {2 * count}> wide; "
            f"for (int i = 0; i < {count}; i++) {{ "
            f"auto two = at::vec::convert<int64_t, 2, int32_t, 1>({src}[i]); "
            "wide[2 * i] = two[0]; wide[2 * i + 1] = two[1]; } return wide; }()"
        )

    return get_to_dtype_expr


def _in_lanes(original):
    """The extreme integer of a vector, which is stored once."""

    def reduction(self, dtype, src_dtype, reduction_type, value):
        result = original(self, dtype, src_dtype, reduction_type, value)
        lines = getattr(self.reduction_suffix, "_lines", None)
        known = reduction_type in ("min", "max") and dtype in (torch.int32, torch.int64)
        if known and lines and type(lines[-1]) is str:
            lines[-1] = _OF_LANES.sub(_LANES.format(reduction_type), lines[-1])
        return result

    return reduction


def _in_a_scope(original):
    """The variables of each store by themselves."""

    def store_reduction(self, name, index, value):
        self.reduction_suffix.writeline(cpp.DeferredLine(name, "{"))
        original(self, name, index, value)
        self.reduction_suffix.writeline(cpp.DeferredLine(name, "}"))

    return store_reduction
