"""Bools of any byte, as `view` and other libraries make them: all but zero are true."""

import pytest
import torch
from conftest import needs_compiler
from opspec import OPS, as_tuple, assert_same, bits

import customops

BOOL_OPS = [spec for spec in OPS if torch.bool in spec.dtypes]
SHAPES = [(n,) for n in (1, 2, 5, 17, 64, 130, 1031, 40_000)]
SHAPES += [(300, n) for n in (2, 3, 8, 40, 65, 300, 1031)] + [(3, 70, 129), (2, 5000, 4)]


def raw_bytes(shape, zeros, seed):
    """Bytes of which this part is zero, the others anything."""
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(1, 256, shape, generator=generator, dtype=torch.uint8)
    return raw.masked_fill(torch.rand(shape, generator=generator) < zeros, 0)


def layouts(raw):
    return {"contiguous": raw, "transposed": raw.transpose(0, -1), "step": raw[..., ::2]}


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "step"])
@pytest.mark.parametrize("spec", BOOL_OPS, ids=str)
def test_any_byte_but_zero_is_true(spec, layout, device):
    for seed, shape in enumerate(SHAPES):
        for zeros in (0, 0.01, 0.5, 0.99, 1):
            raw = layouts(raw_bytes(shape, zeros, seed))[layout]
            there = layouts(raw_bytes(shape, zeros, seed).to(device))[layout]
            for dim in range(raw.dim()):
                arguments = spec.arguments(dim, False)
                result = spec.op(there.view(torch.bool), *arguments)
                expected = spec.reference(raw != 0, *arguments)
                result = tuple(r.cpu() for r in as_tuple(result))
                assert_same(result, expected, context=(spec, shape, layout, zeros, dim))


def test_the_value_of_true_is_one(device):
    raw = torch.tensor([[0, 7, 255], [1, 2, 128]], dtype=torch.uint8, device=device)
    for op in (torch.ops.reduceops.max, torch.ops.reduceops.min):
        for dim in (0, 1):
            assert bits(op(raw.view(torch.bool), dim)[0]).max() <= 1


MASKED = [
    (shape, dim, dtype)
    for shape, dim in (((64, 256), 1), ((64, 7), 0), ((3, 20000), 1))
    for dtype in (torch.float32, torch.bfloat16)
]


@needs_compiler
def test_any_byte_but_zero_of_a_mask_is_true_when_compiled(device):
    """Where the first element is chosen, the backward looks whether the mask lets it take part."""

    @torch.compile
    def compiled(*inputs):
        pairs = zip(MASKED, inputs[::2], inputs[1::2], strict=True)
        return [customops.max(x + 1, dim, mask=mask) for (_, dim, _), x, mask in pairs]

    pool, generator = torch.tensor([0, 2, 128, 1], dtype=torch.uint8), torch.Generator()
    for several in (3, 4):
        made = []
        for shape, _, dtype in MASKED:
            x = torch.randn(shape, generator=generator.manual_seed(0)).to(dtype).to(device)
            made.append((x, pool[torch.randint(several, shape, generator=generator)].to(device)))
        runs = []
        for mask_of in (lambda raw: raw.view(torch.bool), lambda raw: raw != 0):
            inputs = [(x.clone().requires_grad_(), mask_of(raw)) for x, raw in made]
            results = compiled(*(tensor for pair in inputs for tensor in pair))
            sum(values.sum() for values, _ in results).backward()
            runs.append([(*found, x.grad) for found, (x, _) in zip(results, inputs, strict=True)])
        for case, *found in zip(MASKED, *runs, strict=True):
            assert_same(*found, context=case)
