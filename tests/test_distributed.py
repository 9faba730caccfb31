"""DDP and FSDP2 wrap a model with our operators: two processes on the CPU, beside torch's."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from compile_examples.level2_32_conv_scale_min import Model, ModelNew

WORLD = 2


def make(cls, seed=0):
    torch.manual_seed(seed)
    return cls(3, 8, 3, 2.0)


def batch(rank, step):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.rand(2, 3, 9, 7, generator=generator)


def train(model, rank, steps=3):
    """The losses of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(batch(rank, step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def sharded(cls):
    model = make(cls)
    mesh = init_device_mesh("cpu", (WORLD,))
    fully_shard(model.conv, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def full_state(model):
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


def assert_equal_states(actual, expected):
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(actual[key], value), key


def check_ddp(rank, folder):
    model, new, compiled = (DistributedDataParallel(make(c)) for c in (Model, ModelNew, ModelNew))
    losses = train(model, rank)
    assert torch.equal(train(new, rank), losses)
    assert_equal_states(new.state_dict(), model.state_dict())
    torch.testing.assert_close(train(torch.compile(compiled, backend="aot_eager"), rank), losses)
    # All ranks have the same parameters, though each saw other data.
    weights = [torch.empty_like(new.module.conv.weight) for _ in range(WORLD)]
    dist.all_gather(weights, new.module.conv.weight.detach())
    assert torch.equal(*weights)


def check_fsdp(rank, folder):
    model, new = sharded(Model), sharded(ModelNew)
    assert torch.equal(train(new, rank), train(model, rank))
    assert new.conv.weight.to_local().size(0) == 8 // WORLD
    state, expected = full_state(new), full_state(model)
    if rank == 0:
        assert_equal_states(state, expected)
        torch.save(state, folder / "full.pt")
    # A sharded checkpoint, into a model that had other parameters.
    dcp.save({"model": get_model_state_dict(new)}, checkpoint_id=folder / "sharded")
    loaded = sharded(ModelNew)
    state = {"model": get_model_state_dict(loaded)}
    dcp.load(state, checkpoint_id=folder / "sharded")
    set_model_state_dict(loaded, state["model"])
    x = batch(rank, 7)
    assert torch.equal(loaded(x), new(x)) and torch.equal(new(x), model(x))


def worker(rank, folder):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=WORLD)
    try:
        for check in (check_ddp, check_fsdp):
            check(rank, folder)
            dist.barrier()
    finally:
        dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch is built without gloo")
def test_ddp_and_fsdp(tmp_path):
    torch.multiprocessing.spawn(worker, args=(tmp_path,), nprocs=WORLD)
    # What was trained in shards goes on in one process, in torch's own model too.
    state = torch.load(tmp_path / "full.pt")
    x = batch(0, 9)
    results = []
    for cls in (Model, ModelNew):
        model = make(cls, seed=1)
        model.load_state_dict(state)
        results.append(model(x))
    assert torch.equal(*results)
