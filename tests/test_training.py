"""A few steps of training beside the same model with torch's operators: equal losses."""

import copy

import pytest
import torch
from conftest import needs_compiler
from torch import nn
from torch.utils.checkpoint import checkpoint

import customops
from compile_examples.level2_32_conv_scale_min import Model, ModelNew


class PointNet(nn.Module):
    """The largest feature over the points of a set; half of the features are zeros that tie."""

    def __init__(self, largest):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 4)
        self.largest = largest

    def forward(self, x):
        return self.head(self.largest(self.features(x), 1)[0])


class Quantizer(nn.Module):
    """Vectors replaced by their nearest centres, straight through for the gradient."""

    def __init__(self, argmin):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(8, 3))
        self.encode = nn.Linear(3, 3)
        self.argmin = argmin

    def forward(self, x):
        x = self.encode(x)
        distances = (x[:, :, None] - self.centres).square().sum(-1)
        nearest = self.centres[self.argmin(distances, -1)]
        return (x - nearest.detach()).square() + (x.detach() - nearest).square() + nearest


def pairs(name):
    """torch's model and ours, with equal parameters."""
    if name == "level2_32":
        model, new = Model(3, 8, 3, 2.0), ModelNew(3, 8, 3, 2.0)
        new.load_state_dict(model.state_dict())
        return model, new, (2, 3, 9, 11)
    make, ours, theirs = {
        "points": (PointNet, customops.max, torch.max),
        "quantizer": (Quantizer, customops.argmin, torch.argmin),
    }[name]
    model = make(theirs)
    new = copy.deepcopy(model)
    new.largest = new.argmin = ours
    return model, new, (4, 20, 3)


def losses(model, shape, device, wrap=lambda model: model, autocast=None, layout=None):
    """Of three steps, each over two accumulated batches."""
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    forward, history = wrap(model), []
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(2):
            x = torch.rand(shape, generator=generator).to(device)
            if layout:
                x = x.to(memory_format=layout)
            with torch.autocast(device, dtype=autocast, enabled=autocast is not None):
                loss = forward(x).square().mean()
            loss.backward()
            history.append(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return torch.stack(history)


def checkpointed(model):
    return lambda x: checkpoint(model, x, use_reentrant=False)


SETTINGS = {
    "plain": {},
    "checkpoint": {"wrap": checkpointed},
    "autocast": {"autocast": torch.bfloat16},
    "channels_last": {"layout": torch.channels_last},
}


# Inductor's cache on disk does not tell deterministic graphs apart, so only where it is not used.
@torch.backends.cudnn.flags(deterministic=True)
@pytest.mark.parametrize(
    "name, setting",
    [
        *(("level2_32", setting) for setting in SETTINGS),
        *((name, s) for name in ("points", "quantizer") for s in SETTINGS if s != "channels_last"),
    ],
)
def test_equal_losses(name, setting, device):
    torch.manual_seed(0)
    model, new, shape = pairs(name)
    expected = losses(model, shape, device, **SETTINGS[setting])
    assert torch.equal(losses(new, shape, device, **SETTINGS[setting]), expected)
    assert expected[-1] < expected[0]


@needs_compiler
@pytest.mark.parametrize("name", ["level2_32", "quantizer"])
def test_compiled_by_inductor(name, device):
    torch.manual_seed(0)
    model, new, shape = pairs(name)
    expected = losses(model, shape, device)
    compiled = losses(new, shape, device, lambda model: torch.compile(model, fullgraph=True))
    torch.testing.assert_close(compiled, expected, rtol=1e-3, atol=1e-4)
