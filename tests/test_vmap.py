"""vmap is a loop over the samples, whatever the batch dim."""

import data
import pytest
import torch
from opspec import all_dims, as_tuple, assert_same, each_op, ops
from torch import vmap


def loop(function, x, batch_dim):
    results = [as_tuple(function(sample)) for sample in x.unbind(batch_dim)]
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True))


def dims_of(spec, sample):
    yield from all_dims(sample) if sample.dim() else (0, -1)
    if spec.dims:
        yield None
        yield []
        if sample.dim() > 1:
            yield [-1, 0]


@each_op
@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 5)], ids=str)
def test_vmap_is_a_loop(spec, shape, device):
    x = data.make(shape, torch.float32, "ties").to(device)
    for batch_dim in all_dims(x):
        sample = x.select(batch_dim, 0)
        for dim in dims_of(spec, sample):
            for keepdim in (False, True):

                def function(x, dim=dim, keepdim=keepdim):
                    return spec.overload(dim)(x, *spec.arguments(dim, keepdim))

                context = (shape, batch_dim, dim, keepdim)
                actual = vmap(function, in_dims=batch_dim)(x)
                assert_same(actual, loop(function, x, batch_dim), spec.tolerance, context)


@each_op
def test_nested_vmap(spec, device):
    x = data.make((3, 4, 5, 6), torch.float32, "ties").to(device)

    def function(x):
        return spec.op(x, *spec.arguments(0, False))

    actual = as_tuple(vmap(vmap(function, in_dims=1), in_dims=2)(x))
    samples = [as_tuple(function(x[:, j, i])) for i in range(5) for j in range(4)]
    expected = [torch.stack(results).unflatten(0, (5, 4)) for results in zip(*samples, strict=True)]
    assert_same(actual, tuple(expected), spec.tolerance)


@each_op
def test_vmap_of_several_results_and_out_dims(spec, device):
    x = data.make((3, 4, 5), torch.float32, "ties").to(device)

    def function(x):
        return as_tuple(spec.op(x, *spec.arguments(1, True)))

    actual = vmap(function, out_dims=-1)(x)
    samples = map(function, x)
    expected = [torch.stack(results, dim=-1) for results in zip(*samples, strict=True)]
    assert_same(actual, tuple(expected), spec.tolerance)


@each_op
def test_unbatched_input(spec, device):
    x = data.make((3, 4), torch.float32, "ties").to(device)
    y = torch.zeros(2, device=device)
    actual = vmap(lambda y: (as_tuple(spec.op(x, *spec.arguments(1, False))), y)[0])(y)
    expected = as_tuple(spec.op(x, *spec.arguments(1, False)))
    assert_same(actual, tuple(torch.stack([result, result]) for result in expected))


@each_op
def test_dims_are_those_of_a_sample(spec, device):
    x = torch.ones(3, 4, device=device)
    for dim in (1, -2):
        with pytest.raises(IndexError, match=f"{spec.name}: dim {dim} is out of range for a 1-d"):
            vmap(lambda x, dim=dim: spec.op(x, *spec.arguments(dim, False)))(x)


@each_op
@pytest.mark.parametrize("function", ["op", "function"])
def test_an_empty_dim_is_that_of_a_sample(spec, function, device):
    call = getattr(spec, function)
    text = rf"{spec.name}: cannot reduce over dim 0, which has size 0 \(input shape \[0, 3\]\)"
    for dim in (0, -2, *(([0, 1], None) if spec.dims else ())):
        with pytest.raises(IndexError, match=text):
            vmap(lambda x, dim=dim: call(x, *spec.arguments(dim, False)), 1)(
                torch.empty(0, 2, 3, device=device)
            )


@pytest.mark.parametrize("name", ["argmin", "argmax"])
@pytest.mark.filterwarnings("error")  # a missing rule is a slow loop and a warning
def test_there_is_a_rule_for_every_overload(name, device):
    x = data.make((3, 4, 5), torch.float32, "ties").to(device)
    packet = getattr(ops, name)
    for overload, dim in ((packet.default, 0), (packet.default, None), (packet.dims, [0, 1])):
        assert_same(
            vmap(lambda x, o=overload, d=dim: o(x, d))(x),
            loop(lambda x, o=overload, d=dim: o(x, d), x, 0),
        )
