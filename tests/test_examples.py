"""ModelNew is Model in everything but speed; programs, demo and README do what they say."""

import importlib
import inspect
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import NO_CUDA
from torch import nn
from torch.utils.benchmark import Timer

import compile_examples.__main__ as demo
import compile_examples.clients.__main__ as clients
import customops
from compile_examples import (
    EXAMPLES,
    MORE_PROGRAMS,
    PROGRAMS,
    kernelbench,
    sharded_decoding,
    whole_model,
)
from compile_examples import level2_32_conv_scale_min as conv_scale_min
from compile_examples.clients import CLIENTS

ROOT = Path(__file__).parent.parent
LEVEL1 = [example for example in EXAMPLES if example is not conv_scale_min]
INDICES = [example for example in EXAMPLES if "arg" in example.__name__]
VALUES = [example for example in EXAMPLES if "arg" not in example.__name__]


def name(example):
    return example.__name__.rpartition(".")[2]


each_example = pytest.mark.parametrize("example", EXAMPLES, ids=name)
each_value = pytest.mark.parametrize("example", VALUES, ids=name)
modes = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def briefly(monkeypatch):
    """What is timed runs once: no test looks at its time."""
    monkeypatch.setattr(Timer, "blocked_autorange", lambda timer, **_: timer.timeit(1))


def small_inputs(example, device):
    if example is conv_scale_min:
        sizes = {"batch_size": 2, "height": 11, "width": 13}
    else:
        sizes = {"batch_size": 3, "dim1": 37, "dim2": 29}
    with torch.device(device):
        return example.get_inputs(**sizes)


def models(example, device):
    with torch.device(device):
        model = example.Model(*example.get_init_inputs())
        new = example.ModelNew(*example.get_init_inputs())
    new.load_state_dict(model.state_dict())
    return model, new


def assert_equal_results(example, inputs, compiled):
    model, new = models(example, inputs[0].device)
    with torch.no_grad():
        expected = model(*inputs)
        if compiled:
            new = torch.compile(new, fullgraph=True)
        result = new(*inputs)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    if example is conv_scale_min:  # another convolution rounds in another way
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    else:
        assert torch.equal(result, expected)


@pytest.mark.parametrize("example", LEVEL1, ids=name)
def test_published_sizes_of_level_1(example):
    with torch.device("meta"):
        (x,) = example.get_inputs()
    assert (x.shape, x.dtype) == ((128, 4096, 4095), torch.float32)
    assert example.get_init_inputs() == [1]


def test_published_sizes_of_level_2():
    with torch.device("meta"):
        (x,) = conv_scale_min.get_inputs()
    assert (x.shape, x.dtype) == ((64, 64, 256, 256), torch.float32)
    assert conv_scale_min.get_init_inputs() == [64, 128, 3, 2.0]


@each_example
def test_harness_form(example):
    for method in ("__init__", "forward"):
        signatures = [
            inspect.signature(getattr(c, method)) for c in (example.Model, example.ModelNew)
        ]
        assert signatures[0] == signatures[1]
    # The harness reads each file by itself and calls these without arguments.
    namespace = {}
    exec(Path(example.__file__).read_text(), namespace)
    for function in ("get_inputs", "get_init_inputs"):
        parameters = inspect.signature(namespace[function]).parameters.values()
        assert all(p.default is not p.empty for p in parameters)
    assert issubclass(namespace["ModelNew"], nn.Module)


@each_example
@modes
def test_equal_results(example, compiled, device):
    assert_equal_results(example, small_inputs(example, device), compiled)


@pytest.mark.parametrize("example", INDICES, ids=name)
def test_ties(example, device):
    x = torch.randint(0, 3, (3, 37, 29), device=device).float()
    assert_equal_results(example, [x], compiled=True)


@pytest.mark.parametrize("example", LEVEL1, ids=name)
@pytest.mark.parametrize("dim", [0, 2, -1, -3])
def test_other_dims(example, dim, device):
    (x,) = small_inputs(example, device)
    assert torch.equal(example.ModelNew(dim)(x), example.Model(dim)(x))


@each_example
def test_state_dicts_are_interchangeable(example, device):
    model, new = models(example, device)
    keys = list(model.state_dict())
    assert list(new.state_dict()) == keys
    assert keys == (["conv.weight", "conv.bias"] if example is conv_scale_min else [])
    model.load_state_dict(new.state_dict())


@each_example
@pytest.mark.parametrize("whole", [False, True], ids=["state_dict", "module"])
def test_saved_and_loaded(example, whole, device, tmp_path):
    inputs = small_inputs(example, device)
    _, new = models(example, device)
    torch.save(new if whole else new.state_dict(), tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=not whole)
    if not whole:
        state, loaded = loaded, example.ModelNew(*example.get_init_inputs()).to(device)
        loaded.load_state_dict(state)
    assert type(loaded) is example.ModelNew
    assert torch.equal(loaded(*inputs), new(*inputs))


# Inductor's cache on disk does not tell deterministic graphs apart, so only where it is not used.
@torch.backends.cudnn.flags(deterministic=True)
def train(model, inputs, compiled):
    """The losses and last gradients of three steps, in which the input learns as well."""
    parameters = [nn.Parameter(inputs[0].clone()), *model.parameters()]
    if compiled:
        model = torch.compile(model, backend="aot_eager", fullgraph=True)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(parameters[0]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), [p.grad for p in parameters]


@each_value
@modes
def test_trains_as_model_does(example, compiled, device):
    inputs = small_inputs(example, device)
    model, new = models(example, device)
    losses, gradients = train(new, inputs, compiled)
    expected_losses, expected_gradients = train(model, inputs, compiled=False)
    assert torch.equal(losses, expected_losses) and losses[-1] < losses[0]
    assert len(gradients) == len(expected_gradients)
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        assert gradient.count_nonzero() and torch.equal(gradient, expected)


@pytest.mark.parametrize("example", INDICES, ids=name)
def test_indices_have_no_gradient(example, device):
    (x,) = small_inputs(example, device)
    assert not example.ModelNew(1)(x.requires_grad_()).requires_grad


@pytest.mark.large
@NO_CUDA
@each_example
@modes
def test_equal_results_at_the_published_sizes(example, compiled):
    with torch.device("cuda"):
        inputs = example.get_inputs()
    assert_equal_results(example, inputs, compiled)


def test_demo(device, briefly, monkeypatch, capsys):
    """With two of the examples, for `make demo` runs all; with every program."""
    examples = INDICES[0], conv_scale_min
    monkeypatch.setattr(demo, "EXAMPLES", examples)
    assert demo.main(["--device", device, "--batch", "1"]) == 0
    *tables, more = capsys.readouterr().out.split("\n\n")
    listed = [line.split()[0] for line in more.splitlines()[1:]]
    assert listed == [*PROGRAMS, *MORE_PROGRAMS]
    rows = [line.split() for table in tables for line in table.splitlines()]
    right = [row[0] for row in rows if row[-1] == "yes"]
    programs = ["greedy_decoding", "kmeans", "segmentation", "segmentation_channels_last"]
    expected = [*map(name, examples), *programs]
    assert right == [model for model in expected for _ in ("eager", "compile")]
    modes = [row[-5] for row in rows if row[-1] == "yes"]
    assert modes == ["eager", "compile"] * len(expected)


def test_demo_fails_where_a_program_does(monkeypatch, capsys):
    wrong = lambda x, dim: torch.argmax(x, dim) * 0  # noqa: E731
    monkeypatch.setattr(customops, "argmax", wrong)
    assert not demo.run_program("greedy_decoding", "cpu")
    assert "the tokens are not those of torch" in capsys.readouterr().out


def test_the_demo_names_every_program():
    folder = ROOT / "compile_examples"
    programs = {path for path in folder.rglob("*.py") if '"__main__":' in path.read_text()}
    paths = (path.relative_to(folder).with_suffix("") for path in programs)
    names = {".".join(path.parts).removesuffix(".__main__") for path in paths} - {"__main__"}
    assert names == {*PROGRAMS, *MORE_PROGRAMS}


@pytest.mark.parametrize(
    "name, arguments, says",
    [
        *((name, ["--device", "gpu"], "gpu") for name in [*PROGRAMS, "__main__"]),
        ("whole_model", ["--device", "cuda:9"], "9|CUDA|NVIDIA"),
        ("kmeans", ["--device", "meta"], "neither cpu nor cuda"),
        ("aoti_cpp.export", ["model.pt2", "--device", "gpu"], "gpu"),
        *(
            ("aoti_cpp.export", ["model.pt2", "--sizes", sizes], "'[^']*' is not like 3,4,5")
            for sizes in ("3,4", "a,b,c", "3,4,0")
        ),
        (
            "sharded_decoding",
            [],
            "torchrun --nproc-per-node 2 -m compile_examples.sharded_decoding",
        ),
    ],
)
def test_bad_arguments_are_an_error_of_one_line(name, arguments, says, monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit) as status:
        importlib.import_module(f"compile_examples.{name}").main(arguments)
    line = capsys.readouterr().err.splitlines()[-1]
    assert status.value.code == 2 and ": error: " in line and re.search(says, line)


each_program = pytest.mark.parametrize("name", PROGRAMS)


@pytest.mark.parametrize("name", CLIENTS)
def test_client(name):
    pytest.importorskip(CLIENTS[name], reason="make clients installs it")
    importlib.import_module(f"compile_examples.clients.{name}").run()


def test_clients_have_help(capsys):
    with pytest.raises(SystemExit) as status:
        clients.main(["--help"])
    assert status.value.code == 0 and "each client whose library" in capsys.readouterr().out


def test_a_client_that_fails_says_what_came_first(monkeypatch, capsys):
    def fail(name, package):
        try:
            raise RuntimeError("operator torchvision::nms does not exist")
        except RuntimeError as error:
            raise ImportError("hidden") from error

    monkeypatch.setattr(clients.importlib, "import_module", fail)
    monkeypatch.setattr(clients, "CLIENTS", {"one": "torch", "other": "no_such_library"})
    assert clients.main([]) == 1
    failed, hint, skipped = capsys.readouterr().out.splitlines()
    assert failed == "one: FAILED, RuntimeError: operator torchvision::nms does not exist"
    assert f"is not for torch {torch.__version__}" in hint
    assert skipped.startswith("other: skipped, for no_such_library is not installed")


@each_program
def test_program_raises_where_results_differ(name, monkeypatch):
    program = importlib.import_module(f"compile_examples.{name}")
    last = lambda x, dim: x.new_full(x.sum(dim).shape, x.size(dim) - 1, dtype=torch.int64)  # noqa: E731
    monkeypatch.setattr(customops, "argmin", last)
    monkeypatch.setattr(customops, "argmax", last)
    with pytest.raises(AssertionError, match="eager: .* not those of torch"):
        program.main(["--device", "cpu", *demo.SMALL[name].split()])


DECODING = "--batch 2 --tokens 4 --vocabulary 500 --layers 1".split()


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs"),
        ),
    ],
)
def test_sharded_decoding(device):
    """Two processes choose the tokens of one; the padding is never chosen."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "compile_examples.sharded_decoding", "--device", device, *DECODING]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = [line.split() for line in run.stdout.splitlines() if "sharded_decoding" in line]
    assert [(row[-5], row[-1]) for row in rows] == [("eager", "yes"), ("compile", "yes")]


@pytest.mark.parametrize(
    "ranks, arguments, backend",
    [
        ({"WORLD_SIZE": 4, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}, [], "nccl"),
        ({"WORLD_SIZE": 4}, [], "gloo"),
        ({"WORLD_SIZE": 4}, ["--device", "cpu"], "gloo"),
    ],
    ids=["several machines", "one machine", "cpu"],
)
def test_where_sharded_decoding_runs(ranks, arguments, backend, monkeypatch):
    """On a GPU for each of a machine's processes, else on the CPU. Only torchrun says how many."""
    for variable in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    for variable, number in {"RANK": 2, **ranks}.items():
        monkeypatch.setenv(variable, str(number))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    backends = []
    monkeypatch.setattr(torch.distributed, "init_process_group", backends.append)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: None)
    monkeypatch.setattr(sharded_decoding, "run", lambda *_: None)
    sharded_decoding.main(arguments)
    assert backends == [backend]


def test_kernelbench_without_a_file_that_is_left(capsys):
    with pytest.raises(SystemExit) as status:
        kernelbench.main(["no folder", "--only", "nonsense"])
    assert status.value.code == 2 and "no file is left by --only" in capsys.readouterr().err


WHOLE = ["--batch", "1", "--size", "16", "--seconds", "0"]


@pytest.mark.parametrize("layout", [[], ["--channels-last"]], ids=["", "channels_last"])
def test_whole_model(layout, device, tmp_path, capsys):
    path = tmp_path / "figures.json"
    arguments = [*WHOLE, *layout, "--device", device, "--json", str(path)]
    assert whole_model.main(arguments) == 0
    figures = json.loads(path.read_text())
    assert figures["shape"] == [1, 64, 16, 16] and figures["versions"]["torch"] == torch.__version__
    measured = [(row["pass"], row["mode"]) for row in figures["cases"]]
    assert measured == list(itertools.product(whole_model.PASSES, ("eager", "compile")))
    for row in figures["cases"]:
        assert row["ratio"] == pytest.approx(row["torch"]["seconds"] / row["ours"]["seconds"])
        for name in ("torch", "ours"):
            assert row[name]["right"] and row[name]["samples"] >= 5
            assert device == "cpu" or row[name]["peak_bytes"] > 0
    assert "| forward + backward, compile |" in capsys.readouterr().out


def test_whole_model_fails_where_results_differ(monkeypatch, capsys):
    monkeypatch.setattr(whole_model, "MODES", {"eager": lambda model: model})
    forward = conv_scale_min.ModelNew.forward
    monkeypatch.setattr(conv_scale_min.ModelNew, "forward", lambda self, x: forward(self, x) * 1.1)
    assert whole_model.main([*WHOLE, "--device", "cpu"]) == 1
    assert "| NO |" in capsys.readouterr().out


class Largest(nn.Module):
    def forward(self, x):
        return x.amax(1)


class Smallest(nn.Module):
    def forward(self, x):
        return x.amin(1)


def example_of(model, new):
    return SimpleNamespace(
        __name__="example",
        Model=model,
        ModelNew=new,
        get_inputs=lambda batch_size: [torch.rand(batch_size, 3)],
        get_init_inputs=lambda: [],
        batch_size=4,
    )


@pytest.mark.parametrize("new, status", [(Largest, 0), (Smallest, 1)])
def test_demo_fails_where_results_differ(new, status, monkeypatch, capsys):
    monkeypatch.setattr(demo, "EXAMPLES", (example_of(Largest, new),))
    monkeypatch.setattr(demo, "PROGRAMS", {})
    monkeypatch.setattr(demo, "MODES", {"eager": lambda model: model})
    assert demo.main(["--device", "cpu"]) == status
    assert ("NO" in capsys.readouterr().out) == bool(status)


def test_demo_halves_the_batch_until_it_fits(monkeypatch):
    tried = []

    def measure(example, device, batch):
        tried.append(batch)
        if batch > limit:
            raise torch.OutOfMemoryError
        return batch

    monkeypatch.setattr(demo, "measure", measure)
    limit = 3
    assert demo.measure_what_fits(None, "cuda", 12) == 3 and tried == [12, 6, 3]
    limit = 0
    with pytest.raises(torch.OutOfMemoryError):
        demo.measure_what_fits(None, "cuda", 2)
