"""The table of operators that drives every suite; a new operator is one more row."""

from collections.abc import Callable
from dataclasses import dataclass, field

import data
import pytest
import reference
import torch
from reference import bits

import customops

ops = torch.ops.reduceops


@dataclass(frozen=True)
class Tolerance:
    """How far a floating-point result may be from the expected one."""

    any_nan: bool = False  # its bits may be others
    any_zero: bool = False  # a zero may have the other sign
    ulps: int = 0


EXACT = Tolerance()
ANY_NAN = Tolerance(any_nan=True)  # for those that are computed and not copied
NUMBERS = Tolerance(any_nan=True, any_zero=True)  # for a value alone in a compiled loop


@dataclass(frozen=True)
class OpSpec:
    name: str
    op: Callable  # torch.ops.reduceops.<name>
    function: Callable  # customops.<name>
    reference: Callable  # what is promised, by numpy; see reference.py
    torch: Callable | None  # the torch operator it is the same as, where there is one
    dtypes: tuple
    leading: tuple = ()  # arguments between self and dim
    dims: bool = False  # takes None and several dims
    differentiable: bool = False
    selects: bool = True  # a gradient goes to the element chosen, and a backward needs no more
    tolerance: Tolerance = EXACT
    samples: tuple = field(default=(), repr=False)  # (shape, dim, keepdim)

    def __str__(self):
        return self.name

    def arguments(self, dim, keepdim):
        return (*self.leading, dim, keepdim)

    @property
    def only_floats(self):
        return data.FLOATS == self.dtypes

    @property
    def overloads(self):
        return (self.op.default, self.op.dims) if self.dims else (self.op.default,)

    def overload(self, dim):
        return self.op.dims if isinstance(dim, (list, tuple)) else self.op.default


_SAMPLES = (
    ((3, 4, 5), 1, True),
    ((3, 4, 5), -1, False),
    ((4, 5), 0, False),
    ((), 0, False),
    ((0, 3), 1, True),
)
_DIMS_SAMPLES = (
    *_SAMPLES,
    ((3, 4), None, False),
    ((3, 4, 5), [2, 0], False),
    ((3, 4, 5), [-1, 1], True),
    ((3, 4), [], True),
)


def _arg(name):
    return OpSpec(
        name=name,
        op=getattr(ops, name),
        function=getattr(customops, name),
        reference=getattr(reference, name),
        torch=getattr(torch, name),
        dtypes=data.DTYPES,
        dims=True,
        samples=_DIMS_SAMPLES,
    )


def _extreme(name):
    return OpSpec(
        name=name,
        op=getattr(ops, name),
        function=getattr(customops, name),
        reference=getattr(reference, name + "_"),
        torch=getattr(torch, name),
        dtypes=data.DTYPES,
        differentiable=True,
        samples=_SAMPLES,
    )


def _scaled(name):
    return OpSpec(
        name=name,
        op=getattr(ops, name),
        function=getattr(customops, name),
        reference=getattr(reference, name),
        torch=lambda x, scale, dim, keepdim: getattr(torch, name[-3:])(x * scale, dim, keepdim)[0],
        dtypes=data.FLOATS,
        leading=(-1.5,),
        differentiable=True,
        tolerance=ANY_NAN,
        samples=_SAMPLES,
    )


def _softmax_max():
    return OpSpec(
        name="softmax_max",
        op=ops.softmax_max,
        function=customops.softmax_max,
        reference=reference.softmax_max,
        torch=lambda x, dim, keepdim=False: torch.softmax(x, dim).max(dim, keepdim),
        dtypes=data.FLOATS,
        differentiable=True,
        selects=False,
        tolerance=Tolerance(any_nan=True, ulps=4),
        samples=_SAMPLES,
    )


OPS = (
    *(_arg("argmin"), _arg("argmax")),
    *(_extreme("min"), _extreme("max"), _softmax_max()),
    *(_scaled("scale_min"), _scaled("scale_max")),
)
DIFFERENTIABLE = tuple(spec for spec in OPS if spec.differentiable)
SELECTING = tuple(spec for spec in DIFFERENTIABLE if spec.selects)

each_op = pytest.mark.parametrize("spec", OPS, ids=str)
each_differentiable_op = pytest.mark.parametrize("spec", DIFFERENTIABLE, ids=str)
each_selecting_op = pytest.mark.parametrize("spec", SELECTING, ids=str)
each_op_and_dtype = pytest.mark.parametrize(
    "spec, dtype",
    [(spec, dtype) for spec in OPS for dtype in spec.dtypes],
    ids=lambda value: str(value).removeprefix("torch."),
)


def as_tuple(result):
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def assert_same(actual, expected, tolerance=EXACT, context=()):
    """Equal in every bit, or as near as that."""
    actual, expected = as_tuple(actual), as_tuple(expected)
    for a, e in zip(actual, expected, strict=True):
        assert (a.shape, a.dtype, a.device) == (e.shape, e.dtype, e.device), context
        bits_of_a, bits_of_e = (bits(x.detach().contiguous()) for x in (a, e))
        if torch.equal(bits_of_a, bits_of_e):
            continue
        same = bits_of_a == bits_of_e
        if a.dtype.is_floating_point:
            if tolerance.ulps:  # of numbers of one sign
                # The difference of two float64 is itself rounded, in torch too.
                ulps = tolerance.ulps * (2 if a.dtype == torch.float64 else 1)
                near = (bits_of_a.long() - bits_of_e.long()).abs() <= ulps
                same |= near & ~(a.isnan() | e.isnan())
            if tolerance.any_nan:
                same |= a.isnan() & e.isnan()
            if tolerance.any_zero:
                same |= (a.double() == 0) & (e.double() == 0)
        assert same.all(), (context, a, e)


def check(spec, x, dim, keepdim=False, context=()):
    """The operator agrees with its reference; results are contiguous, the input is left alone."""
    before = x.clone()
    arguments = spec.arguments(dim, keepdim)
    result = spec.overload(dim)(x, *arguments)
    context = (spec.name, x.dtype, tuple(x.shape), x.stride(), dim, keepdim, *context)
    assert all(r.is_contiguous() for r in as_tuple(result)), context
    assert torch.equal(bits(x.contiguous()), bits(before.contiguous())), ("input changed", *context)
    assert_same(result, spec.reference(x, *arguments), spec.tolerance, context)


def all_dims(x):
    return range(-x.dim(), x.dim())
