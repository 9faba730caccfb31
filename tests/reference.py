"""What the operators must answer, by numpy: independent of our code and of torch's kernels.

numpy's argmin and argmax have the order that is promised (first NaN, else the first extreme,
-0.0 == 0.0) and compare every integer dtype exactly; torch's own lack uint16, uint32, uint64,
float8 and argmin of bool. test_reference.py compares the two where torch can.
"""

import numpy as np
import torch

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(x):
    """The elements of `x` as integers: equal in every bit, NaNs and signed zeros too."""
    return x.view(BITS[x.element_size()])


def truth(result):
    """On the CPU; of bools any non-zero byte is True."""
    result = result.cpu()
    return bits(result) != 0 if result.dtype == torch.bool else result


def decode_float8(raw, exponent_bits, mantissa_bits, has_infinity):
    """Float8 bit patterns as float32, by the formats' definition."""
    bias = (1 << (exponent_bits - 1)) - 1
    raw = raw.astype(np.int32)
    sign = np.where(raw & 0x80, -1.0, 1.0)
    exponent = (raw >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = raw & ((1 << mantissa_bits) - 1)
    normal = np.ldexp(1 + mantissa / (1 << mantissa_bits), exponent - bias)
    subnormal = np.ldexp(mantissa / (1 << mantissa_bits), 1 - bias)
    value = np.where(exponent == 0, subnormal, normal)
    top = exponent == (1 << exponent_bits) - 1
    if has_infinity:
        value = np.where(top, np.where(mantissa == 0, np.inf, np.nan), value)
    else:
        value = np.where(top & (mantissa == (1 << mantissa_bits) - 1), np.nan, value)
    return (sign * value).astype(np.float32)


# The value of each byte.
FLOAT8 = {
    torch.float8_e4m3fn: decode_float8(np.arange(256), 4, 3, has_infinity=False),
    torch.float8_e5m2: decode_float8(np.arange(256), 5, 2, has_infinity=True),
}


def to_numpy(x):
    """`x` as a numpy array of a type that holds each of its values exactly."""
    x = x.detach().cpu()
    if x.dtype == torch.bool:
        return bits(x).numpy() != 0  # any byte but zero is true, and numpy takes 2 for more than 1
    if x.dtype in (torch.bfloat16, torch.float16):  # numpy compares float16 one by one
        return x.to(torch.float32).numpy()
    if x.dtype in FLOAT8:
        return FLOAT8[x.dtype][bits(x).numpy()]
    return x.numpy()


def wrapped(x, dim):
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(x.dim()))
    dims = [dim] if isinstance(dim, int) else dim
    return sorted(d % max(x.dim(), 1) for d in dims)


def arg(extreme, x, dim=None, keepdim=False):
    """Indices by numpy; `extreme` is "min" or "max"."""
    if x.dim() == 0:
        return torch.zeros((), dtype=torch.int64, device=x.device)
    dims = wrapped(x, dim)
    kept = [d for d in range(x.dim()) if d not in dims]
    array = to_numpy(x).transpose(kept + dims)
    array = array.reshape([x.size(d) for d in kept] + [int(np.prod([x.size(d) for d in dims]))])
    indices = {"min": np.argmin, "max": np.argmax}[extreme](array, axis=-1)
    shape = [1 if d in dims else x.size(d) for d in range(x.dim())]
    shape = shape if keepdim else [x.size(d) for d in kept]
    return (
        torch.from_numpy(np.ascontiguousarray(indices, dtype=np.int64)).reshape(shape).to(x.device)
    )


def extreme(extreme, x, dim, keepdim=False):
    """(values, indices): the indices by numpy, the values are the elements of `x` there."""
    indices = arg(extreme, x, dim, keepdim)
    if x.dim() == 0:
        return x.clone(), indices
    at = indices if keepdim else indices.unsqueeze(dim)
    values = bits(x).gather(dim, at).view(x.dtype)
    return values if keepdim else values.squeeze(dim), indices


def ranks(extreme, array):
    """Of each element of a numpy array a finite number: the higher, the more extreme."""
    if array.dtype.itemsize < 8:  # float64 holds each, and has room beyond
        with np.errstate(invalid="ignore"):  # signalling NaNs
            rank = np.array(array, np.float64)
        if extreme == "min":
            np.negative(rank, out=rank)
        if array.dtype.kind == "f":
            np.nan_to_num(rank, copy=False, nan=2e300, posinf=1e300, neginf=-1e300)
        return rank
    _, rank = np.unique(array, return_inverse=True)  # NaNs are the highest
    rank = rank.reshape(array.shape)
    if extreme == "min":
        rank = rank.max(initial=0) - rank
        if array.dtype.kind == "f":
            rank = np.where(np.isnan(array), array.size, rank)
    return rank


def identity(extreme, dtype):
    """What every element beats, as a tensor of one element."""
    if dtype == torch.bool:
        return torch.tensor([extreme == "min"])
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.tensor([info.max if extreme == "min" else info.min], dtype=dtype)
    value = 448.0 if dtype == torch.float8_e4m3fn else np.inf  # it has no infinity
    return torch.tensor([value if extreme == "min" else -value], dtype=torch.float64).to(dtype)


def arg_masked(extreme, x, mask, dim=None, keepdim=False):
    """The index of the first extreme element that takes part; 0 where there is none."""
    return arg("max", _ranks_of_present(extreme, x, mask), dim, keepdim)


def _ranks_of_present(extreme, x, mask):
    """-inf for those that do not take part."""
    rank = np.where(to_numpy(mask.expand(x.shape)), ranks(extreme, to_numpy(x)), -np.inf)
    return torch.from_numpy(np.asarray(rank)).to(x.device)


def extreme_masked(extreme, x, mask, dim, keepdim=False):
    """(values, indices); the identity where none takes part."""
    index = arg_masked(extreme, x, mask, dim, keepdim=True)
    rank = _ranks_of_present(extreme, x, mask)
    if x.dim() == 0:
        values, none = x, rank == -np.inf
    else:
        values = bits(x).gather(dim, index).view(x.dtype)
        none = rank.gather(dim, index) == -np.inf
    none_there = bits(identity(extreme, x.dtype).to(x.device))[0]
    values = torch.where(none, none_there, bits(values)).view(x.dtype)
    if keepdim or not x.dim():
        return values, index
    return values.squeeze(dim), index.squeeze(dim)


def argmin(x, dim=None, keepdim=False):
    return arg("min", x, dim, keepdim)


def argmax(x, dim=None, keepdim=False):
    return arg("max", x, dim, keepdim)


def min_(x, dim, keepdim=False):
    return extreme("min", x, dim, keepdim)


def max_(x, dim, keepdim=False):
    return extreme("max", x, dim, keepdim)


def scale_min(x, scale, dim=1, keepdim=True):
    return extreme("min", x * scale, dim, keepdim)[0]


def scale_max(x, scale, dim=1, keepdim=True):
    return extreme("max", x * scale, dim, keepdim)[0]


def softmax_max(x, dim, keepdim=False):
    """(probability, index), in more precision than the operator has."""
    index = arg("max", x, dim, keepdim=True)
    wide = to_numpy(x).astype(np.longdouble if x.dtype == torch.float64 else np.float64)
    if x.dim() == 0:
        wide, index, dim, keepdim = wide[None], index[None], 0, False
    with np.errstate(all="ignore"):  # infinities and NaNs
        largest = np.take_along_axis(wide, index.cpu().numpy(), dim)
        shares = np.exp((wide - largest).astype(np.float64))  # of long doubles it takes long
        probability = 1 / shares.sum(dim, keepdims=True, dtype=wide.dtype)
        if x.dtype == torch.float64:
            probability = probability.astype(np.float64)
    probability = torch.from_numpy(np.ascontiguousarray(probability)).to(x.dtype).to(x.device)
    return tuple(r if keepdim else r.squeeze(dim) for r in (probability, index))


def masked(name, x, dim, keepdim, mask, index_dtype=None):
    """What argmin, argmax, min or max of the elements where `mask` is True is to answer."""
    kind = index_dtype or torch.int64
    if name.startswith("arg"):
        return arg_masked(name[-3:], x, mask, dim, keepdim).to(kind)
    values, index = extreme_masked(name, x, mask, dim, keepdim)
    if x.dtype == torch.bool:
        values = bits(values) != 0  # True is 1, whatever byte it was
    return values, index.to(kind)
