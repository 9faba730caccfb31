"""Sharded tensors: customops.distributed and DTensors, beside the answer of one process.

The checks run in one group of processes for each backend and size, and each is a test of its own.
"""

import datetime
import faulthandler
import functools
import gc
import importlib.util
import itertools
import json
import math
import os
import re
import subprocess
import sys
import time
import traceback
import unittest
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest import mock
from weakref import ref

import data
import pytest
import reference
import torch
import torch.distributed as dist
from conftest import NEEDS, NO_CUDA, python_after_torch
from opspec import Tolerance, as_tuple, assert_same
from reference import bits
from torch.autograd import forward_ad
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.utils.flop_counter import FlopCounterMode

import customops
from customops import _torch_private, distributed, libraries
from customops._register import caches
from customops.after_import import after_import
from customops.distributed import symmetric
from customops.distributed.compare import ShardCall, shards_problem
from customops.distributed.links import links

NO_GLOO = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")


def no_nccl(ranks):
    missing = not dist.is_nccl_available() or torch.cuda.device_count() < ranks
    return pytest.mark.skipif(missing, reason=f"there are no {ranks} GPUs")


ROOT = Path(__file__).parent.parent
OPS = ("argmin", "argmax", "min", "max")
REFERENCES = {op: getattr(reference, op if op.startswith("arg") else f"{op}_") for op in OPS}
_ops = torch.ops.reduceops


def kinds(dtype):
    return ("random",) if dtype == torch.bool else ("random", "ties", "special")


def cut(x, dim, sizes):
    """Shards of these sizes along a dim."""
    width = bits(x)
    return [part.view(x.dtype) for part in width.split(sizes, dim)]


# The operators before and after the collective, in one process.


def gathered(shards, dim, largest, start=None, size=(), scale=None):
    """What an all-gather makes of the words of the ranks."""
    starts = [[]] * len(shards) if start is None else [[s] for s in start]
    words = [
        _ops._pairs(shard, [dim], largest, scale, begin, list(size))
        for shard, begin in zip(shards, starts, strict=True)
    ]
    return torch.cat(words)


SPLITS = ([11], [6, 5], [4, 4, 3], [0, 11, 0], [1, 0, 2, 8], [2, 1, 1, 1, 1, 1, 1, 1, 2])


@pytest.mark.parametrize("dtype", data.DTYPES, ids=str)
def test_pairs(dtype, device):
    """Any split has the whole's answer, in 8 bytes for each output where elements have not 8."""
    for kind, split, dim, keepdim in itertools.product(kinds(dtype), SPLITS, (0, 1), (0, 1)):
        shape = (11, 5) if dim == 0 else (3, 11)
        x = data.make(shape, dtype, kind).to(device)
        shards = cut(x, dim, split)
        for largest, start in itertools.product((False, True), (None, "given")):
            begins = [sum(split[:i]) for i in range(len(split))]
            words = gathered(shards, dim, largest, start and begins)
            assert words.size(1) == 1 + shape[1 - dim] * (2 if dtype.itemsize == 8 else 1)
            result = _ops._unpack(words, shards[0], [dim], largest, bool(keepdim))
            expected = REFERENCES["max" if largest else "min"](x, dim, bool(keepdim))
            assert_same(result, expected, context=(kind, split, dim, keepdim, largest, start))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_pairs_of_products(dtype, device):
    """Products tie where elements do not: those that overflow, and those that round to one."""
    x = data.make((11, 40), dtype, "random")
    x[:2] = torch.tensor([[-60000.0], [-65504.0]]) if dtype == torch.float16 else -3.3e38
    x[2:4] = torch.tensor([[1.9921875], [1.984375]])
    x = x.to(device)
    for of, scale, largest, dim in itertools.product(
        (x, x[2:], x[2:4]), (2.0, 1.1, -1.1, 0.5), (False, True), (0, 1)
    ):
        words = gathered(cut(of, dim, [of.size(dim)]), dim, largest, scale=scale)
        result = _ops._unpack(words, of, [dim], largest, False)
        expected = REFERENCES["max" if largest else "min"](of * scale, dim, False)
        assert_same(result, expected, context=(scale, largest, dim))


@pytest.mark.parametrize("dtype", data.DTYPES, ids=str)
def test_pairs_of_masked_elements(dtype, device):
    """Groups of which no shard has an element, or only some; a mask of one row for all."""
    for split, dim in itertools.product(([11], [4, 4, 3], [1, 0, 2, 8]), (0, 1)):
        shape = (11, 6) if dim == 0 else (6, 11)
        x = data.make(shape, dtype, kinds(dtype)[-1])
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(len(split))) < 0.3
        mask.select(1 - dim, 2).fill_(False)
        for given, op in itertools.product((mask, mask.narrow(1 - dim, 1, 1)), ("min", "max")):
            masks = given.to(device).split(split, dim)
            words = [
                _ops._pairs(shard, [dim], op == "max", None, [], [], shard_mask)
                for shard, shard_mask in zip(cut(x.to(device), dim, split), masks, strict=True)
            ]
            result = _ops._unpack(torch.cat(words), x.to(device), [dim], op == "max")
            expected = reference.masked(op, x, dim, False, given)
            context = (split, dim, op)
            assert_same([r.cpu() for r in result], expected, context=context)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64])
def test_pairs_of_many_elements(dtype, device):
    """An index that needs more than 32 bits: the whole is only said to be that large."""
    x = data.make((3, 7), dtype, "ties").to(device)
    starts = (1 << 33, (1 << 33) + 7, 5)
    for largest in (False, True):
        words = gathered([x, x, x], 1, largest, starts, [1 << 34])
        assert words.size(1) == 1 + 3 * (2 if dtype.itemsize >= 4 else 1)
        values, indices = _ops._unpack(words, x, [1], largest)
        expected = REFERENCES["max" if largest else "min"](x, 1)
        assert_same((values, indices), (expected[0], expected[1] + 5))
    words = gathered([x, x], 1, True, starts[:2], [1 << 34])
    assert torch.equal(_ops._unpack(words, x, [1], True)[1], expected[1] + (1 << 33))


def test_pairs_over_several_dims(device):
    """Two of three reduced dims are cut, the first and the last."""
    x = data.make((4, 3, 5, 6), torch.float32, "ties").to(device)
    for op, dims in itertools.product(("min", "max"), ([0, 1, 3], [3, 0], [0, 1, 2, 3])):
        words = []
        for a, d in itertools.product((0, 3), (0, 1)):
            shard = x[a : 3 if a == 0 else 4, :, :, d : 1 if d == 0 else 6]
            begin = {0: a, 1: 0, 2: 0, 3: d}
            start, size = zip(*((begin[d], x.size(d)) for d in sorted(dims)), strict=True)
            words.append(_ops._pairs(shard, dims, op == "max", None, list(start), list(size)))
        result = _ops._unpack(torch.cat(words), shard, dims, op == "max")[1]
        # (The kept dims are whole in every shard.)
        assert torch.equal(result, reference.arg(op, x, dims))


def test_all_shards_are_empty(device):
    x = torch.empty(3, 0, device=device)
    values, indices = _ops._unpack(gathered([x, x], 1, True), x, [1], True)
    assert not values.any() and not indices.any()


def test_no_outputs(device):
    x = torch.empty(0, 4, device=device)
    values, indices = _ops._unpack(gathered([x, x], 1, True), x, [1], True, True)
    assert values.shape == indices.shape == (0, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_opcheck(dtype, device):
    x = data.make((3, 4, 5), dtype, "ties").to(device)
    mask = x > 0
    for arguments in (
        (x, [1], True, None, [], []),
        (x, [0, 2], False, None, [1, 2], [4, 7]),
        (x, [1], True, None, [], [], mask),
    ):
        torch.library.opcheck(_ops._pairs.default, arguments)
        words = _ops._pairs(*arguments)
        torch.library.opcheck(_ops._unpack.default, (words, x, arguments[1], True, True))


def test_words_that_are_none(device):
    x = torch.zeros(3, 4, device=device)
    words = _ops._pairs(x, [1], True, None, [], [])
    for wrong in (words[0], words[:, 1:], words.int(), words[:0], words.T, words.repeat(1, 2)):
        with pytest.raises(RuntimeError, match="words"):
            _ops._unpack(wrong, x, [1], True)
    with pytest.raises(RuntimeError, match="words"):  # which would be narrow
        _ops._unpack(words, x.double(), [1], True)
    for start, size in (([1, 2], []), ([1], [4]), ([], [4]), ([-1], [])):
        with pytest.raises(RuntimeError, match="start|lie"):
            _ops._pairs(x, [1], True, None, start, size)
    with pytest.raises(RuntimeError, match="size is too large"):
        _ops._pairs(x, [0, 1], True, None, [0, 0], [1 << 62, 4])


# The words have room, the values beside them have none.
WITHOUT_MEMORY = """
import resource, torch, customops
torch.set_num_threads(1)
x = torch.zeros(2, 1).expand(2, 1 << 26)
torch.ops.reduceops._pairs(x[:, :4], [0], True, None, [], [])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (5 << 27), -1))
torch.ops.reduceops._pairs(x, [0], True, None, [], [])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process")
def test_without_memory():
    done = python_after_torch("-c", WITHOUT_MEMORY)
    assert "RuntimeError: reduceops: cannot allocate 268435456 bytes" in done.stderr


def test_pairs_of_masked_products(device):
    x = torch.zeros(3, 4, device=device)
    for given in (x, x.to("meta")):
        with pytest.raises(RuntimeError, match="a scale and a mask"):
            _ops._pairs(given, [1], True, 2.0, [], [], given > 0)


@NO_GLOO
def test_bench(tmp_path):
    figures, picture = tmp_path / "figures.json", tmp_path / "picture.png"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "customops.bench.distributed", "--batch", "2,3", "--vocabulary", "501"]
    command += ["--dtype", "float32", "--samples", "2", "--json", figures, "--plot", picture]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(figures.read_text())
    assert figures["ranks"] == 2 and picture.stat().st_size > 0
    assert [(row["batch"], row["vocabulary"]) for row in figures["cases"]] == [(2, 500), (3, 500)]
    for row in figures["cases"]:
        contenders = row["contenders"]
        assert all(f["right"] and f["samples"] == 2 for f in contenders.values()), contenders
        received = [contenders[name]["wire_bytes"] for name in ("ours", "all-gather + torch")]
        assert received == [8 + 8 * row["batch"], row["batch"] * 250 * 4]


CALL = ShardCall("argmax", "float32", "cpu", 1, [4], 8, 8)


@pytest.mark.parametrize(
    "other, problem",
    [
        ({}, ""),
        ({"extent": 0}, ""),
        ({"op": "argmin"}, "differ in op: argmax on rank 0, argmin on rank 1"),
        ({"dtype": "int8"}, "differ in dtype: float32 on rank 0, int8 on rank 1"),
        ({"device": "cuda"}, "differ in device: cpu on rank 0, cuda on rank 1"),
        ({"dim": 0}, "differ in dim: 1 on rank 0, 0 on rank 1"),
        ({"shape": [5]}, r"differ in shape: \[4\] on rank 0, \[5\] on rank 1"),
        ({"offset": 8}, "offset is None on rank 0 and 8 on rank 1"),
        ({"pair_bytes": 16}, "differ in pair bytes: 8 on rank 0, 16 on rank 1"),
        ({"error": "it is wrong"}, "rank 1: it is wrong"),
    ],
)
def test_what_differs_between_ranks(other, problem):
    assert re.search(problem or "^$", shards_problem([CALL, CALL._replace(**other)]))


@pytest.mark.parametrize(
    "shards, problem",
    [
        ([(0, 8), (8, 8)], ""),
        ([(8, 8), (0, 8)], ""),
        ([(0, 8), (8, 0), (8, 1), (3, 0)], ""),
        ([(0, 8), (9, 8)], "no rank has elements 8 to 8, between the shard of rank 0 and rank 1's"),
        ([(2, 8), (10, 8)], "no rank has elements 0 to 1, between the start and rank 0's"),
        ([(7, 8), (0, 8)], "the shards of ranks 1 and 0 both have element 7"),
        ([(None, 0), (None, 0)], "cannot reduce over dim 1, which is empty on all ranks"),
    ],
)
def test_offsets_that_overlap_or_leave_holes(shards, problem):
    assert shards_problem([CALL._replace(offset=o, extent=n) for o, n in shards]) == problem


def test_rules_come_with_dtensor():
    """In either order of the imports, and without importing what the program does not use."""
    first = "import sys, customops; assert 'torch.distributed.tensor' not in sys.modules"
    second = "import torch.distributed.tensor"
    check = "from customops._register import autograd; assert autograd.of_subclass"
    for lines in ((first, second, check), (second, "import customops", check)):
        done = python_after_torch("-c", "\n".join(lines), cwd=ROOT)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("methods", [(), ("load_module",), ("exec_module", "load_module")])
def test_after_import_beside_finders_of_an_old_kind(methods, monkeypatch):
    """Python passes over one without find_spec, and takes a loader that has only load_module.
    Before 3.12 it asks for one by find_module as well."""
    ran, loads = [], []
    loader = SimpleNamespace(**{method: loads.append for method in methods})
    spec = importlib.machinery.ModuleSpec("imported_later", loader)
    finders = SimpleNamespace(), SimpleNamespace(find_spec=lambda name, *_: spec)
    monkeypatch.setattr(sys, "meta_path", [*finders, *sys.meta_path])
    after_import("imported_later", functools.partial(ran.append, 1))
    assert importlib.util.find_spec("imported_later") is spec and ran == []
    if methods:
        is_old = methods == ("load_module",)
        module = "imported_later" if is_old else SimpleNamespace(__name__="imported_later")
        getattr(loader, methods[0])(module)
        assert loads == [module] and ran == [1]


def test_after_import_asks_as_python_does(monkeypatch):
    loader = SimpleNamespace(exec_module=print)
    old = SimpleNamespace(find_module=lambda name, path: loader if "later" in name else None)
    monkeypatch.setattr(sys, "meta_path", [old])
    after_import("imported_later", print)
    spec = importlib.util.find_spec("imported_later")
    assert (spec and spec.loader) is (loader if sys.version_info < (3, 12) else None)


def test_after_import_by_a_loader_that_cannot_be_changed(monkeypatch):
    class Slots:
        __slots__ = ()
        create_module = exec_module = staticmethod(lambda _: None)

    spec = importlib.machinery.ModuleSpec("imported_later", Slots())
    finder = SimpleNamespace(find_spec=lambda name, *_: spec if "later" in name else None)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    after_import("imported_later", print)
    with unittest.TestCase().assertLogs("customops") as logged:
        importlib.import_module("imported_later")
    del sys.modules["imported_later"]
    assert "cannot tell when imported_later is imported" in logged.output[0]


def test_after_import(tmp_path, monkeypatch):
    """Neither who asks where a module is nor an import that fails is its import; what fails is
    logged, and runs again."""
    (tmp_path / "imported_later.py").write_text("import imported_before_it")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before, ran = list(sys.meta_path), []
    for mark in (1, 2):
        after_import("imported_later", functools.partial(ran.append, mark))
    assert importlib.util.find_spec("imported_later") is not None
    with pytest.raises(ImportError):
        importlib.import_module("imported_later")
    assert ran == []
    monkeypatch.setitem(sys.modules, "imported_before_it", SimpleNamespace())
    importlib.import_module("imported_later")
    assert sorted(ran) == [1, 2] and sys.meta_path[2:] == before
    del sys.modules["imported_later"]
    importlib.import_module("imported_later")
    assert sorted(ran) == [1, 2]
    del sys.modules["imported_later"]

    tries = iter([ZeroDivisionError("not yet"), None])

    def fail_once():
        if error := next(tries):
            raise error

    after_import("imported_later", fail_once)
    assert sys.meta_path[3:] == before
    # A tool may put finders into some of its own.
    inside = [SimpleNamespace(find_spec=finder.find_spec) for finder in sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", inside)
    check = unittest.TestCase()
    for logs in (check.assertLogs, check.assertNoLogs):
        with logs("customops") as said:
            importlib.import_module("imported_later")
        assert said is None or "ZeroDivisionError: not yet" in said.output[0]
        del sys.modules["imported_later"]
    assert next(tries, "none") == "none"


def test_torch_without_distributed(monkeypatch):
    monkeypatch.setattr(dist, "is_available", lambda: False)
    with pytest.raises(ImportError, match="built with torch.distributed"):
        distributed.__getattr__("argmax")


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=NO_CUDA)])
def test_one_shot(dtype, device):
    """The kernels of three ranks, on streams of one GPU: they wait for each other."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    for stream in streams:  # memory is not to be asked for while a kernel waits
        with torch.cuda.stream(stream):
            torch.empty(1, device=device)
    shape = (2, 3, symmetric.CAPACITY, 2)
    own = [torch.zeros(shape, dtype=torch.int64, device=device) for _ in streams]
    states = [torch.zeros(2, dtype=torch.int32, device=device) for _ in streams]
    buffers = torch.tensor([buffer.data_ptr() for buffer in own], device=device)
    for call, batch in enumerate((1, 7, 128, 129, 2000, 3, 3)):
        x = data.make((batch, 12), dtype, "special", seed=call).to(device)
        shards = cut(x, 1, [5, 0, 7])
        words = gathered(shards, 1, True)
        torch.cuda.synchronize()
        results = []
        for rank, stream in reversed(list(enumerate(streams))):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(call % 2 * rank * 100_000)
                of_rank = (words[rank : rank + 1], shards[rank], [1], True, call % 2 == 0)
                given = (buffers, own[rank], states[rank], rank, 10**10)
                results.append(_ops._one_shot(*of_rank, *given))
        torch.cuda.synchronize()
        expected = REFERENCES["max"](x, 1, call % 2 == 0)
        for result in results:
            assert_same(result, expected, context=(call, batch))
        exchange = symmetric.Exchange(buffers, own[1], states[1], 1, 1, device, "", [], None)
        assert torch.equal(exchange.headers(), words[:, 0])
    of_buffers = ({5: buffers[0]}, {5: buffers.double()}, {5: buffers.cpu()})
    of_state = ({7: states[0].long()}, {7: states[0][:1]})
    of_others = ({0: words}, {8: 3}, {6: own[0][0]}, {6: own[0][:, :2]})
    for wrong in of_buffers + of_state + of_others:
        arguments = [*of_rank, *given]
        for place, value in wrong.items():
            arguments[place] = value
        with pytest.raises(RuntimeError, match="_one_shot"):
            _ops._one_shot(*arguments)


@pytest.mark.parametrize("call", [2, 3, -1])
def test_headers_in_symmetric_memory(device, call):
    """Where the kernel has put them: the halves of a word, each below the number of the call."""
    headers = [-1, ~5, 1 << 40]
    slots = torch.zeros(2, 3, symmetric.CAPACITY, 2, dtype=torch.int64)
    slots[1 - call % 2] = 77
    for rank, header in enumerate(headers):
        halves = header & 0xFFFFFFFF, header >> 32 & 0xFFFFFFFF
        slots[call % 2, rank, 0] = torch.tensor([call << 32 | half for half in halves])
    state = torch.tensor([call, 0], dtype=torch.int32, device=device)
    exchange = symmetric.Exchange(state, slots.to(device), state, 0, 1, device, "", [], None)
    assert exchange.headers().tolist() == headers


def test_a_timeout_that_is_less_than_a_nanosecond():
    assert symmetric._nanoseconds(1e-10) == 1  # 0 would be over before it begins


def test_without_a_group():
    with pytest.raises(RuntimeError, match="init_process_group"):
        distributed.argmax(torch.zeros(3), 0)


# In a group of processes: each check is called on all ranks, with the rank's device.


def split_of(rank, world, total, uneven):
    """This rank's [begin, end): even, or with an empty shard and the rest unlike."""
    sizes = [total // world] * world
    if uneven:
        sizes = [0, *[1 + 2 * r for r in range(world - 1)]]
    sizes[-1] += total - sum(sizes)
    begin = sum(sizes[:rank])
    return begin, begin + sizes[rank]


def narrowed(x, dim, begin, end):
    return bits(x).narrow(dim, begin, end - begin).view(x.dtype)


def check_plain(rank, world, device, dtypes=data.DTYPES):
    """Every dtype, even and uneven shards, one of them empty; offsets given and not."""
    for dtype in dtypes:
        for kind, uneven, (dim, keepdim) in itertools.product(
            kinds(dtype), (False, True), ((0, True), (-1, False))
        ):
            x = data.make((16, 3) if dim == 0 else (3, 16), dtype, kind).to(device)
            begin, end = split_of(rank, world, 16, uneven)
            shard = narrowed(x, dim, begin, end)
            for op, offset in itertools.product(OPS, (None, begin)):
                result = getattr(distributed, op)(shard, dim, keepdim, offset=offset)
                expected = REFERENCES[op](x, dim, keepdim)
                assert_same(result, expected, context=(dtype, kind, uneven, dim, op, offset))


def check_mask(rank, world, device):
    """Each rank's own, of its shard or broadcast to it; one rank's alone; groups without any."""
    x = data.make((3, 16), torch.float32, "ties").to(device)
    mask = (torch.arange(48, device=device) % 3 == 1).view(3, 16)
    mask[1] = False
    for uneven, op in itertools.product((False, True), OPS):
        begin, end = split_of(rank, world, 16, uneven)
        shard, call = x[:, begin:end], getattr(distributed, op)
        for hides in (mask, mask[:1], mask[1:2], mask[1:2, :1]):
            part = hides if hides.size(1) == 1 else hides[:, begin:end]
            expected = reference.masked(op, x.cpu(), 1, False, hides.cpu())
            for offset in (None, begin):
                result = as_tuple(call(shard, 1, offset=offset, mask=part))
                assert_same([r.cpu() for r in result], expected, context=(op, uneven, offset))
        last = begin <= 15 < end  # has what pads the whole
        result = as_tuple(call(shard, 1, mask=part.new_zeros(1) if last else None))
        whole = torch.arange(16, device=device) < split_of(world - 1, world, 16, uneven)[0]
        expected = reference.masked(op, x.cpu(), 1, False, whole.cpu())
        assert_same([r.cpu() for r in result], expected, context=(op, uneven))
    with pytest.raises(RuntimeError, match="max: a mask of shape .* does not broadcast"):
        distributed.max(x, 1, mask=mask[:, :5])
    with pytest.raises(RuntimeError, match="mask is under a transform of torch.func"):
        torch.vmap(lambda mask: distributed.max(x, 1, mask=mask))(mask[None])
    with pytest.raises(TypeError, match="max: mask must be a bool tensor or None, got list"):
        distributed.max(x, 1, mask=[True])
    sharded, of_mesh = (
        distribute_tensor(t, mesh_of(device, (world,)), [Shard(1)]) for t in (x, mask)
    )
    expected = reference.masked("max", x.cpu(), 1, False, mask.cpu())
    result = distributed.max(sharded, 1, mask=of_mesh)
    assert_same([r.full_tensor().cpu() for r in result], expected)
    with pytest.raises(RuntimeError, match="input and mask must be DTensors, both or none"):
        distributed.max(x, 1, mask=of_mesh)


def check_mask_gradient(rank, world, device):
    """Of a group without any element there is none, in graphs neither."""
    x = data.make((3, 16), torch.float64, "smooth").to(device)
    mask = (torch.arange(48, device=device) % 3 == 1).view(3, 16)
    mask[1] = False
    begin, end = split_of(rank, world, 16, uneven=True)
    whole = x.clone().requires_grad_()
    customops.max(whole, 1, mask=mask).values[::2].square().sum().backward()
    for f in (distributed.max, torch.compile(distributed.max, fullgraph=True, backend="aot_eager")):
        shard = x[:, begin:end].clone().requires_grad_()
        f(shard, 1, mask=mask[:, begin:end]).values[::2].square().sum().backward()
        assert torch.equal(shard.grad, whole.grad[:, begin:end])
    torch._dynamo.reset()


def check_ties_and_nans(rank, world, device):
    """The lowest index and the first NaN, with its bits, though other ranks have the same."""
    x = torch.zeros(4, 4 * world, device=device)
    x[0, ::2] = -0.0  # equal to the others
    x[1, 1::4] = 5.0
    width = x.view(torch.int32)
    for r in range(world):  # a NaN of its own in every shard, and one row with the last rank's only
        width[2, 4 * r + 2] = 0x7FC00001 + r
    width[3, -1] = -1
    shard = x[:, 4 * rank : 4 * rank + 4]
    for op in OPS:
        assert_same(getattr(distributed, op)(shard, 1), REFERENCES[op](x, 1), context=(op,))


def check_offsets_in_another_order(rank, world, device):
    x = torch.arange(3 * world, device=device).remainder(2).float()
    begin = 3 * (world - 1 - rank)
    shard = x[begin : begin + 3]
    result = distributed.max(shard, 0, offset=begin)
    assert_same(result, REFERENCES["max"](x, 0))
    before = 2**62 - 3 * (world - 1)  # so that the last shard begins as far away as it may
    values, indices = REFERENCES["max"](x, 0)
    for mask in (None, shard == shard):
        result = distributed.max(shard, 0, offset=before + begin, mask=mask)
        assert_same(result, (values, indices + before))


def check_one_collective(rank, world, device):
    """The all-gather of the pairs, and no other communication."""
    x = data.make((3, 4), torch.float32, "ties").to(device)
    sharded = DTensor.from_local(x, mesh_of(device, (world,)), [Shard(1)], run_check=False)
    calls = {
        1: [
            lambda: distributed.max(x, 1),
            lambda: distributed.argmin(x, 1, offset=4 * rank),
            lambda: customops.argmin(sharded, 1),
            lambda: customops.min(sharded, 1, mask=sharded > 0),
            lambda: customops.softmax_max(sharded, 1),
        ],
        0: [lambda: customops.max(sharded, 0)],
    }
    for count, call in [(n, call) for n, some in calls.items() for call in some]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            call()
        names = [event.name for event in profile.events()]
        found = [name for name in names if name.startswith(("gloo:", "nccl:"))]
        assert len(found) == count and all("all_gather" in name for name in found), names


def check_groups(rank, world, device):
    """Of single ranks and of all but one; the others may not call."""
    x = data.make((3, world), torch.float32, "ties").to(device)
    alone = [dist.new_group([r]) for r in range(world)][rank]
    assert_same(distributed.min(x, 1, group=alone), REFERENCES["min"](x, 1))
    group = dist.new_group(list(range(1, world)))
    if rank > 0:
        shard = x[:, rank : rank + 1]
        assert_same(distributed.max(shard, 1, group=group), REFERENCES["max"](x[:, 1:], 1))
    else:
        with pytest.raises(RuntimeError, match="rank 0 is not in the group"):
            distributed.max(x, 1, group=group)


def check_destroyed_groups(rank, world, device):
    """Of one that no call has used, torch says no more than of one that it never knew."""
    x = data.make((3, world), torch.float32, "ties").to(device)
    for is_used in (False, True):
        group = dist.new_group([*range(world)])
        if is_used:
            distributed.argmin(x[:, rank : rank + 1], 1, group=group)
        dist.destroy_process_group(group)
        for options in ({}, {"mask": x > 0}) if is_used else ({"mask": x > 0},):
            with pytest.raises(RuntimeError, match="argmin: torch does not know the group"):
                distributed.argmin(x, 1, group=group, **options)


def check_groups_that_are_not_registered(rank, world, device):
    """As those that torch.distributed._dist2 makes."""
    group = dist.new_group([*range(world)])
    x = data.make((3, world), torch.float32, "ties").to(device)
    shard = x[:, rank : rank + 1]
    with mock.patch.dict(dist.distributed_c10d._pg_map):
        del dist.distributed_c10d._pg_map[group]
        for _ in range(2):
            assert_same(distributed.argmin(shard, 1, group=group), reference.argmin(x, 1))
            assert_same(tuple(distributed.max(shard, 1, group=group)), reference.max_(x, 1))
    dist.destroy_process_group(group)


def check_errors(rank, world, device):
    """What every rank sees by itself is an error before anything is exchanged."""
    x = torch.zeros(3, 4, device=device)
    with pytest.raises(IndexError, match="^customops.distributed.argmax: dim 2 is out of range"):
        distributed.argmax(x, 2)
    with pytest.raises(RuntimeError, match="min: dtype complex64 is not supported"):
        distributed.min(x.to(torch.complex64), 1)
    for offset, mask in itertools.product((-1, 2**62 + 1, 2**63 - 1), (None, x == 0)):
        with pytest.raises(RuntimeError, match=f"offset is {offset}"):
            distributed.min(x, 1, offset=offset, mask=mask)
    for name, wrong, takes in (
        *(
            ("dim", wrong, "an int, the dim that is sharded")
            for wrong in (1.5, True, None, [1], torch.tensor(0.5), torch.tensor([1]))
        ),
        *(("offset", wrong, "an int") for wrong in (1.5, True, "1")),
        *(("keepdim", wrong, "a bool") for wrong in ("a", 1, None)),
    ):
        with pytest.raises(
            TypeError, match=f"^customops.distributed.max: {name} must be {takes}, got "
        ):
            distributed.max(x, **{"dim": 1, name: wrong})
    with pytest.raises(RuntimeError, match="offset does not fit into 64 bits"):
        distributed.argmin(x, 1, offset=1 << 63)
    for wrong, name in (([1, 2], "list"), (x.cpu().numpy(), "ndarray")):
        with pytest.raises(TypeError, match=f"input must be a tensor, got {name}"):
            distributed.max(wrong, 0)
    masked = torch.masked.masked_tensor(x, x == 0)
    with pytest.raises(TypeError, match="max: input must be a Tensor without a mask"):
        distributed.max(masked, 1)
    for wrong in (x.to("meta"), x.to_sparse(), torch.nested.nested_tensor([x, x])):
        with pytest.raises(RuntimeError, match="supported: strided tensors on cpu and cuda"):
            distributed.argmax(wrong, 1)
    quantized = torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)
    with pytest.raises(RuntimeError, match="argmax: dtype quint8 is not supported"):
        distributed.argmax(quantized, 1)
    kind = "mask must be a strided tensor, got a nested {} one"
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([x[0] == 0, x[0, 1:] == 0], layout=layout)
        with pytest.raises(RuntimeError, match=kind.format(str(layout).removeprefix("torch."))):
            distributed.argmax(x, 1, mask=nested)
    with pytest.raises(RuntimeError, match="mask must be a bool tensor, got quint8"):
        distributed.argmax(x, 1, mask=quantized)
    mesh = mesh_of(device, (world,))
    for wrong in (mesh, "tp"):
        with pytest.raises(TypeError, match="group must be a ProcessGroup"):
            distributed.argmax(x, 1, group=wrong)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        for mode in (nullcontext(), FlopCounterMode(display=False)):
            with mode, pytest.raises(RuntimeError, match="input has a tangent"):
                distributed.max(dual, 1)
        distributed.argmax(dual, 1)
        distributed.argmax(dual, 1, mask=x > 0)
    for call in (
        lambda x: distributed.max(x, 1)[0],
        lambda x: distributed.argmax(x, 1),
        lambda _: distributed.argmax(x, 1, mask=x > 0),
    ):
        with pytest.raises(RuntimeError, match="under a transform of torch.func"):
            torch.func.grad(lambda x, call=call: x.sum() + call(x.detach()).sum())(x)
    for function, what in (
        (torch.func.grad(lambda x: distributed.max(x, 1)[0].sum()), "under a transform"),
        (lambda x: distributed.max(forward_ad.make_dual(x, x), 1), "has a tangent"),
    ):
        with forward_ad.dual_level(), pytest.raises(RuntimeError, match=what):
            torch.compile(function, backend="eager", fullgraph=True)(x)
    with forward_ad.dual_level():
        of_dual = lambda x: distributed.argmax(forward_ad.make_dual(x, x), 1)  # noqa: E731
        torch.compile(of_dual, backend="eager", fullgraph=True)(x)
    with pytest.raises(RuntimeError, match="neither group nor offset"):
        distributed.min(distribute_tensor(x, mesh, [Shard(1)]), 1, offset=0)


GRADIENTS = tuple(itertools.product((False, True), (0, 1), (False, True)))


def check_gradient(rank, world, device, cases=GRADIENTS, prepare=lambda f: f):
    for uneven, dim, offset in cases:
        x = data.make((16, 3) if dim == 0 else (3, 16), torch.float64, "smooth").to(device)
        begin, end = split_of(rank, world, 16, uneven)
        shard = narrowed(x, dim, begin, end).clone().requires_grad_()
        f = prepare(distributed.max)
        values, indices = f(shard, dim, True, offset=begin if offset else None)
        assert not indices.requires_grad
        weight = torch.arange(1.0, 4.0, device=device, dtype=x.dtype).view_as(values)
        (gradient,) = torch.autograd.grad((values * weight).sum(), shard)
        expected = torch.zeros_like(x).scatter(dim, x.argmax(dim, True), weight)
        assert torch.equal(gradient, narrowed(expected, dim, begin, end)), (uneven, dim, offset)


def check_changed_in_place(rank, world, device):
    """Results are their caller's to change, and the gradient is still that of the element."""
    x = data.make((3, 4 * world), torch.float64, "smooth").to(device)
    shard = x[:, 4 * rank : 4 * rank + 4].clone().requires_grad_()
    chosen = torch.zeros_like(x).scatter(1, x.argmax(1, True), 1.0)[:, 4 * rank : 4 * rank + 4]

    def plain(shard):
        return distributed.max(shard, 1, True)[0].sub_(1)

    for call in (plain, torch.compile(plain, backend="aot_eager")):
        values = call(shard)
        assert torch.equal(values, x.max(1, True)[0] - 1)
        (gradient,) = torch.autograd.grad(values.sum(), shard)
        assert torch.equal(gradient, chosen)
    sharded = distribute_tensor(x, mesh_of(device, (world,)), [Shard(1)]).requires_grad_()
    for op in (customops.max, customops.softmax_max):
        values = op(sharded, 1, True)[0]
        (expected,) = torch.autograd.grad(values.sum() * 2, sharded, retain_graph=True)
        (gradient,) = torch.autograd.grad(values.mul_(2).sum(), sharded)
        assert torch.equal(gradient.to_local(), expected.to_local()), op


def check_second_derivative(rank, world, device):
    x = torch.arange(2.0 * world, device=device, dtype=torch.float64)[2 * rank : 2 * rank + 2]
    x.requires_grad_()
    values = distributed.max(x, 0)[0]
    (first,) = torch.autograd.grad(values**3, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x) if rank == world - 1 else (None,)
    if second is not None:
        assert second.tolist() == [0.0, 6.0 * (2 * world - 1)]


def mesh_of(device, shape):
    return init_device_mesh(device.type, shape)


def meshes(world, device):
    yield mesh_of(device, (world,))
    if world > 1:
        yield mesh_of(device, (2, world // 2))


def placements_on(mesh):
    if 1 in mesh.shape and mesh.ndim > 1:  # as good as fewer dims
        return (Shard(0), Shard(1)), (Shard(1), Shard(1)), (Shard(1), Replicate())
    return itertools.product((Shard(0), Shard(1), Shard(2), Replicate()), repeat=mesh.ndim)


# On (4, 5, 6): an operator's name and the arguments between `self` and keepdim.
CALLS = (
    *(("argmin", (dim,)) for dim in (0, 1, 2, -1, None, [0, 2], [1, 2], [])),
    *(("max", (dim,)) for dim in (0, 1, 2)),
    *(("scale_min", (-1.5, dim)) for dim in (0, 1, 2)),
    ("argmax", (1,)),
    ("min", (1,)),
    ("scale_max", (0.5, 1)),
)


def replicated(result):
    return [r.full_tensor() for r in (result if isinstance(result, tuple) else (result,))]


def check_dtensor(rank, world, device):
    """Every placement on one mesh dim and on two, uneven shards too."""
    x = data.make((4, 5, 6), torch.float32, "ties").to(device)
    turns = itertools.cycle(((False,), (True,)))  # of each call both, for CALLS is of odd length
    for mesh in meshes(world, device):
        for placements in placements_on(mesh):
            sharded = distribute_tensor(x, mesh, placements)
            every = [(call, (False, True) if mesh.ndim == 1 else next(turns)) for call in CALLS]
            for (op, arguments), keepdim in ((c, k) for c, keepdims in every for k in keepdims):
                result = getattr(customops, op)(sharded, *arguments, keepdim)
                expected = getattr(customops, op)(x, *arguments, keepdim)
                context = (op, arguments, keepdim, mesh.shape, placements)
                check_placements(result, arguments[-1], keepdim, placements)
                expected = expected if isinstance(expected, tuple) else (expected,)
                assert_same(replicated(result), expected, context=context)


def check_placements(results, dim, keepdim, placements):
    """Kept dims stay sharded, reduced ones are replicated."""
    dims = range(3) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    dims = [d % 3 for d in dims]
    for result in results if isinstance(results, tuple) else (results,):
        assert isinstance(result, DTensor)
        for before, after in zip(placements, result.placements, strict=True):
            if isinstance(before, Replicate) or before.dim in dims:
                assert after == Replicate()
            else:
                assert after == Shard(
                    before.dim - (0 if keepdim else sum(d < before.dim for d in dims))
                )


def check_dtensor_dtypes(rank, world, device):
    mesh = mesh_of(device, (world,))
    for dtype in data.DTYPES:
        x = data.make((3, 9), dtype, kinds(dtype)[-1]).to(device)
        begin = min(rank * -(-9 // world), 9)
        local = narrowed(x, 1, begin, min(begin + -(-9 // world), 9))
        sharded = DTensor.from_local(
            local, mesh, [Shard(1)], run_check=False, shape=x.shape, stride=x.stride()
        )
        for op in OPS:
            result = getattr(distributed, op)(sharded, 1)
            result = result if isinstance(result, tuple) else (result,)
            assert_same([r.to_local() for r in result], REFERENCES[op](x, 1), context=(dtype, op))


def check_dtensor_partial(rank, world, device):
    """Terms of a sum, which have no extreme element before they are added."""
    x = torch.arange(12.0, device=device).view(3, 4)
    terms = x * (rank + 1) * (-1) ** rank
    mesh = mesh_of(device, (world,))
    partial = DTensor.from_local(terms, mesh, [Partial()])
    total = sum(x * (r + 1) * (-1) ** r for r in range(world))
    for op, dim in itertools.product(OPS, (0, 1)):
        result = replicated(getattr(customops, op)(partial, dim))
        expected = getattr(customops, op)(total, dim)
        assert_same(result, expected if isinstance(expected, tuple) else (expected,))
    mesh = mesh_of(device, (2, world // 2))
    partial = DTensor.from_local(x, mesh, [Partial(), Shard(1)])
    whole = partial.full_tensor()
    assert torch.equal(customops.argmax(partial, 1).full_tensor(), whole.argmax(1))


def check_dtensor_in_another_order(rank, world, device):
    """Of the dims of the mesh, which cut one dim: that of the ranks is not that of the elements."""
    mesh = mesh_of(device, (2, world // 2))
    row, column = mesh.get_coordinate()

    def sharded(x):
        found = distribute_tensor(x, mesh, [Shard(0), Shard(0)])
        if entries := getattr(found._spec, "shard_order", None):  # from torch 2.13 on
            found._spec.shard_order = (entries[0]._replace(mesh_dims=(1, 0)),)
            found.to_local().copy_(x.chunk(world // 2)[column].chunk(2)[row])
        return found

    x = data.make((8, 3), torch.float32, "ties").to(device)
    mask = torch.rand(8, 3, generator=torch.Generator().manual_seed(0)).to(device) < 0.5
    in_order = distribute_tensor(x, mesh, [Shard(0), Shard(0)])
    for op, dim in itertools.product(OPS, (0, 1)):
        call = getattr(customops, op)
        assert_same(replicated(call(sharded(x), dim)), as_tuple(call(x, dim)), context=op)
        found = replicated(call(in_order, dim, mask=sharded(mask)))
        assert_same(found, as_tuple(call(x, dim, mask=mask)), context=op)


def check_dtensor_gradient(rank, world, device):
    x = data.make((4, 5, 6), torch.float64, "smooth").to(device)
    for mesh in meshes(world, device):
        for placements in placements_on(mesh):
            for call in (lambda t: customops.max(t, 1)[0], lambda t: customops.scale_min(t, -1.5)):
                sharded = distribute_tensor(x, mesh, placements).requires_grad_()
                whole = x.clone().requires_grad_()
                call(sharded).square().sum().backward()
                call(whole).square().sum().backward()
                # Where shards are uneven, torch 2.11 replicates the gradient of any to_local().
                like = distribute_tensor(x, mesh, placements).requires_grad_()
                (like.to_local() * 2).sum().backward()
                assert sharded.grad.placements == like.grad.placements, (mesh, placements)
                torch.testing.assert_close(sharded.grad.full_tensor(), whole.grad)


def check_dtensor_second_derivative(rank, world, device):
    """With respect to the input, and to a weight that all ranks have."""
    x, w = (
        data.make(shape, torch.float64, "smooth").to(device) for shape in ((4, 5, 6), (4, 1, 6))
    )
    mask = x > x.amin(1, True)
    calls = (
        lambda t, _: customops.max(t, 1, True)[0],
        lambda t, _: customops.max(t, 1)[0].unsqueeze(1),
        lambda t, mask: customops.min(t, 1, True, mask=mask)[0],
        lambda t, mask: customops.min(t, 1, mask=mask)[0].unsqueeze(1),
        lambda t, _: customops.scale_min(t, -1.5),
        lambda t, _: customops.scale_min(t, -1.5, 1, False).unsqueeze(1),
    )
    for mesh in meshes(world, device):
        for number, placements in enumerate(placements_on(mesh)):
            # Two dims have many placements, each for some of the calls; of two ranks one has all.
            turns = 1 if mesh.ndim == 1 and world == 2 else 3 * mesh.ndim
            for call in calls[number % turns :: turns]:
                sharded = distribute_tensor(x, mesh, placements), distribute_tensor(w, mesh)
                results = []
                for of, present in (
                    (sharded, distribute_tensor(mask, mesh, placements)),
                    ((x.clone(), w.clone()), mask),
                ):
                    input, weight = (t.requires_grad_() for t in of)
                    values = (call(input, present) ** 3 * weight).sum()
                    (first,) = torch.autograd.grad(values, input, create_graph=True)
                    results.append(torch.autograd.grad((first * input.detach()).sum(), of))
                for result, expected in zip(*results, strict=True):
                    torch.testing.assert_close(result.full_tensor(), expected)
    sharded = distribute_tensor(x, mesh, [Shard(1)] * mesh.ndim).requires_grad_()
    probability = customops.softmax_max(sharded, 1)[0].sum()
    (first,) = torch.autograd.grad(probability, sharded, create_graph=True)
    with pytest.raises(RuntimeError, match="softmax_max: there is no second derivative"):
        first.sum().backward()


def check_dtensor_options(rank, world, device):
    """mask=, index_dtype= and softmax_max, of any placement and with a gradient."""
    x = data.make((4, 5, 6), torch.float32, "smooth").to(device)
    mask = (torch.arange(30, device=device) % 3 == 1).view(5, 6)
    options = ({"index_dtype": torch.uint8}, {"mask": mask}, {"mask": mask[:1]})
    calls = [(getattr(customops, op), given) for op, given in itertools.product(OPS, options)] + [
        (customops.softmax_max, {})
    ]
    for mesh in meshes(world, device):
        for number, placements in enumerate(placements_on(mesh)):
            sharded = distribute_tensor(x, mesh, placements).requires_grad_()
            whole = x.clone().requires_grad_()
            # Of many placements each is for some of the calls, of which some have a gradient.
            for call, given in calls if mesh.ndim == 1 else calls[number % 3 :: 3]:
                of_mesh = dict(given)
                if "mask" in given:
                    of_mesh["mask"] = distribute_tensor(given["mask"], mesh)
                results, expected = call(sharded, 1, **of_mesh), call(whole, 1, **given)
                results = results if isinstance(results, tuple) else (results,)
                expected = expected if isinstance(expected, tuple) else (expected,)
                gathered = [r.full_tensor() for r in results]
                if call is customops.softmax_max:  # a sum, whose order depends on the shape
                    torch.testing.assert_close(
                        gathered.pop(0), expected[0].detach(), rtol=1e-6, atol=0
                    )
                assert_same(gathered, expected[-len(gathered) :], context=(call, given, placements))
                if expected[0].requires_grad:
                    results[0].square().sum().backward()
                    expected[0].square().sum().backward()
            torch.testing.assert_close(sharded.grad.full_tensor(), whole.grad)
    with pytest.raises(RuntimeError, match="self and mask must be DTensors"):
        customops.argmin(sharded, 1, mask=mask)


def check_dtensor_mask_of_another_mesh(rank, world, device):
    """The ranks in another order, which have other rows of it."""
    x = torch.zeros(2 * world, 3, device=device)
    meshes = [DeviceMesh(device.type, ranks) for ranks in (range(world), range(world)[::-1])]
    of_first, of_second = (DTensor.from_local(x, mesh, [Shard(0)]) for mesh in meshes)
    with pytest.raises(RuntimeError, match="argmax: self and mask must be on one mesh"):
        customops.argmax(of_first, 1, mask=of_second == 0)


def check_dtensor_of_other_chunks(rank, world, device):
    """Sizes that torch would not cut: where they begin is not known."""
    mesh = mesh_of(device, (world,))
    for width in (1, 7):
        local = torch.zeros(3, width if rank == 0 else 11 - width, device=device)
        x = DTensor.from_local(local, mesh, [Shard(1)], shape=(3, 11), stride=(11, 1))
        for call in (customops.argmax, customops.softmax_max):
            with pytest.raises(RuntimeError, match=r"shard has size \d+ in dim 1"):
                call(x, 1)


def check_dtensor_softmax(rank, world, device):
    """What a shard cannot see: larger elements, NaN and infinities in others; and empty shards."""
    mesh, inf, nan = mesh_of(device, (world,)), float("inf"), float("nan")
    for dtype, columns in itertools.product(
        (torch.float16, torch.bfloat16, torch.float32, torch.float64), (2 * world, world + 1, 1)
    ):
        x = data.make((6, columns), dtype, "smooth").to(device)
        x[0, -1] = x[1, 0] = x[1, -1] = nan
        x[2, : columns // 2] = x[3] = -inf
        x[4, -1] = inf
        result = customops.softmax_max(distribute_tensor(x, mesh, [Shard(1)]), 1)
        expected = reference.softmax_max(x, 1)
        ulps = 1 if dtype.itemsize == 2 else 4  # 16 bits are rounded once
        tolerance = Tolerance(any_nan=True, ulps=ulps)
        assert_same(replicated(result), expected, tolerance, (dtype, columns))
    # Within the shards before the last the probability is too small for float16.
    x = torch.zeros(1, 1_500_000 * world, dtype=torch.float16, device=device)
    x[0, -1] = 15.0
    result = customops.softmax_max(distribute_tensor(x, mesh, [Shard(1)]), 1)
    expected = reference.softmax_max(x, 1)
    assert_same(replicated(result), expected, Tolerance(ulps=4), "float16")
    # Ranks without a row, and so without a result.
    for mesh, rows in itertools.product(meshes(world, device), (0, 1)):
        x = data.make((rows, 2 * world), torch.float32, "smooth").to(device)
        placements = [Shard(0)] * (mesh.ndim - 1) + [Shard(1)]
        result = customops.softmax_max(distribute_tensor(x, mesh, placements), 1)
        expected = reference.softmax_max(x, 1)
        assert_same(replicated(result), expected, Tolerance(ulps=4), (placements, rows))


CONVOLUTIONS = ("conv2d_scale_min", "conv2d_scale_max")


def check_dtensor_conv2d(rank, world, device):
    """A batch that stays sharded, and all else; a gradient of what each rank has a part of."""
    shapes = (5, 4, 6, 5), (6, 4, 3, 3), (6,)
    whole = [data.make(shape, torch.float64, "ties").to(device) for shape in shapes]
    for mesh, op in zip(meshes(world, device), CONVOLUTIONS, strict=False):
        call, everywhere = getattr(customops, op), [Replicate()] * mesh.ndim
        for of_input, of_weight, dim in (
            (Shard(0), Shard(1), 1),
            (Shard(0), Replicate(), 0),
            (Shard(3), Shard(0), -1),
        ):
            placed = ([p, *everywhere[1:]] for p in (of_input, of_weight, Replicate()))
            given = [distribute_tensor(x, mesh, p) for x, p in zip(whole, placed, strict=True)]
            options = {"padding": 1, "stride": (2, 1), "dim": dim, "keepdim": dim != 0}
            with torch.no_grad():
                result, expected = call(*given, -2.0, **options), call(*whole, -2.0, **options)
            stays = of_input == Shard(0) and dim != 0
            assert list(result.placements) == [of_input if stays else Replicate(), *everywhere[1:]]
            assert_same(result.full_tensor(), expected, context=(of_input, of_weight, dim))
            leaves = [[t.detach().requires_grad_() for t in some] for some in (given, whole)]
            for some in leaves:
                call(*some, -2.0, **options).square().sum().backward()
            for sharded, like in zip(*leaves, strict=True):
                assert torch.equal(sharded.grad.full_tensor(), like.grad)
    mixed = [[x.bfloat16(), *(y.float() for y in others)] for x, *others in (given, whole)]
    with torch.autocast(device.type, torch.bfloat16):
        for scale in (-2.0, torch.tensor(-2.0, device=device)):
            result, expected = (call(*tensors, scale) for tensors in mixed)
            assert_same(result.full_tensor(), expected, context=scale)
    for some in ((given[0], *whole[1:]), (whole[0], *given[1:])):
        leaves = [t.detach().requires_grad_() for t in some]
        for tensors in (some, leaves):
            with pytest.raises(RuntimeError, match="must be DTensors, all or none"):
                call(*tensors, 2.0)


def check_dtensor_tensor_scale(rank, world, device):
    """Scales that are 0-d tensors: values with their bits, and the gradients of all."""
    x = data.make((4, 6), torch.float64, "ties").to(device)
    x[0] = torch.tensor([1.0, 2.0, 1.0, 3.0, -0.0, 1.0])
    images, weight, bias = (
        data.make(shape, torch.float64, "ties").to(device)
        for shape in ((5, 4, 6, 5), (6, 4, 3, 3), (6,))
    )
    mesh = mesh_of(device, (world,))

    def compared(call, whole, placed, **options):
        scale = torch.tensor(-2.0, dtype=torch.float64, device=device)
        given = [distribute_tensor(t, mesh, [p]) for t, p in zip(whole, placed, strict=True)]
        results = []
        for tensors in (given, whole):
            leaves = [t.detach().clone().requires_grad_() for t in (*tensors, scale)]
            result = call(*leaves, **options)
            result.square().sum().backward()
            results.append([result.detach(), *(leaf.grad for leaf in leaves)])
        for sharded, like in zip(*results, strict=True):
            found = sharded.full_tensor() if isinstance(sharded, DTensor) else sharded
            torch.testing.assert_close(found, like, equal_nan=True)
            if like is results[1][0]:
                assert torch.equal(torch.signbit(found), torch.signbit(like))

    for end in ("min", "max"):
        for placement in (Shard(0), Shard(1), Replicate()):
            scale_of = getattr(customops, f"scale_{end}")
            compared(scale_of, [x], [placement], dim=1)
            compared(scale_of, [x], [placement], dim=1, keepdim=False)
        convolve = getattr(customops, f"conv2d_scale_{end}")
        for of_input, of_weight in ((Shard(0), Shard(0)), (Shard(2), Replicate())):
            placed = [of_input, of_weight, Replicate()]
            compared(convolve, [images, weight, bias], placed, padding=1)


def check_dtensor_modes(rank, world, device):
    """Below autograd too, and as torch.ops."""
    x = data.make((3, 8), torch.float32, "ties").to(device)
    sharded = distribute_tensor(x, mesh_of(device, (world,)), [Shard(1)])
    with torch.inference_mode():
        assert_same(replicated(customops.min(sharded, 1)), REFERENCES["min"](x, 1))
    with torch.no_grad():
        assert_same(replicated(_ops.max(sharded, 1)), REFERENCES["max"](x, 1))
        for name in ("_scale_min_indices", "_scale_max_indices"):
            results = replicated(getattr(_ops, name)(sharded, -2.0, 1, False))
            assert_same(results, getattr(_ops, name)(x, -2.0, 1, False))
    assert_same(replicated(_ops.argmax.dims(sharded, [0, 1])), (reference.argmax(x),))
    with pytest.raises(IndexError, match="argmax: dim 2 is out of range"):
        customops.argmax(sharded, 2)
    with pytest.raises(RuntimeError, match="scale_min: the input must be a floating-point tensor"):
        customops.scale_min(distribute_tensor(x.int(), sharded.device_mesh, [Shard(1)]), 2.0)
    empty = distribute_tensor(x[:, :0], sharded.device_mesh, [Shard(1)])
    with pytest.raises(IndexError, match="dim 1, which has size 0"):
        customops.argmax(empty, 1)


def check_dtensor_of_some_ranks(rank, world, device):
    """A rank that is not in the mesh has no part in it."""
    mesh = DeviceMesh(device.type, list(range(world - 1)))
    x = data.make((3, 8), torch.float32, "ties").to(device)
    result = customops.max(distribute_tensor(x, mesh, [Shard(1)]), 1)
    assert [r.shape for r in result] == [(3,), (3,)]
    if rank < world - 1:
        assert_same([r.to_local() for r in result], REFERENCES["max"](x, 1))
    images, filters = torch.ones(4, 2, 3, 3, device=device), torch.ones(5, 2, 1, 1, device=device)
    images = distribute_tensor(images, mesh, [Shard(0)])
    result = customops.conv2d_scale_min(images, distribute_tensor(filters, mesh), None, 2.0)
    assert result.shape == (4, 1, 3, 3) and (result.to_local() == 4.0).all()


def check_dtensor_of_a_wrong_shard(rank, world, device):
    """Also in a dim that is kept, or ranks would send words of different sizes."""
    mesh = mesh_of(device, (1, world))
    x = torch.ones(2, 8 // world, device=device)
    wrong = DTensor.from_local(
        x, mesh, [Shard(0), Shard(1)], run_check=False, shape=torch.Size((3, 8)), stride=(8, 1)
    )
    with pytest.raises(RuntimeError, match="this rank's shard has size 2 in dim 0"):
        customops.max(wrong, 1)


@contextmanager
def graphs():
    """The graphs that torch.compile hands to its backend."""
    found = []

    def backend(graph, inputs):
        from torch._dynamo.backends.debugging import aot_eager

        found.append(graph)
        return aot_eager(graph, inputs)

    yield found, backend
    torch._dynamo.reset()


def check_compiled(rank, world, device, collective="all_gather"):
    """One graph with one collective; a second one for all other batch sizes."""
    x = data.make((3, 16), torch.float32, "ties").to(device)
    begin, end = split_of(rank, world, 16, uneven=True)
    some = torch.arange(48, device=device).view(3, 16) % 5 > 0
    for op, offset, mask in (("argmin", None, None), ("max", begin, None), ("max", None, some)):
        with graphs() as (found, backend):

            @torch.compile(fullgraph=True, backend=backend)
            def f(x, mask, op=op, offset=offset):
                return getattr(distributed, op)(x, 1, offset=offset, mask=mask)

            for batches in range(1, 4):
                whole, present = torch.cat([x] * batches), None
                if mask is not None:
                    present = torch.cat([mask] * batches)
                result = f(whole[:, begin:end], present if mask is None else present[:, begin:end])
                expected = whole if mask is None else whole.masked_fill(~present, -math.inf)
                assert_same(result, REFERENCES[op](expected, 1), context=(op, offset, batches))
            assert len(found) == 2
            for graph in found:
                targets = [str(node.target) for node in graph.graph.nodes]
                assert sum(collective in target for target in targets) == 1, targets


def check_recorded(rank, world, device):
    """torch.jit.trace would keep what the other ranks sent in the one call that it sees."""
    for op in OPS:
        with pytest.raises(RuntimeError, match="cannot record what ranks exchange"):
            torch.jit.trace(lambda x, op=op: getattr(distributed, op)(x, 1), torch.zeros(3, 8))


def check_compiled_errors(rank, world, device):
    """As of the operators: a dim's goes through Dynamo, the text of another is in that of Dynamo's,
    and where a graph may break they are those of eager mode."""
    x = torch.zeros(3, 8, device=device)
    group = dist.new_group()  # of which nothing is known yet
    cases = (
        (IndexError, {"dim": 2}, "max: dim 2 is out of range for a 2-d tensor"),
        (RuntimeError, {"dim": 1, "offset": -1}, "max: offset is -1"),
        (RuntimeError, {"dim": 1, "mask": x}, "max: mask must be a bool tensor, got float32"),
        (TypeError, {"dim": 1.5}, "max: dim must be an int, the dim that is sharded"),
    )
    # An argument may be a constant of the graph, or a symbol: in turn.
    for number, (full, (kind, options, text)) in enumerate(itertools.product((True, False), cases)):
        constant, given = (options, {}) if (number + full) % 2 else ({}, options)

        @torch.compile(fullgraph=full, backend="eager", dynamic=True)
        def f(x, constant=constant, **given):
            return distributed.max(x, group=group, **constant, **given)[0]

        torch._dynamo.reset()
        # (Before torch 2.13 Dynamo wraps an operator's.)
        own = (RuntimeError,) if full or kind is IndexError else ()
        with pytest.raises((kind, *own), match=text):
            f(x, **given)
    assert ref(group) not in links  # of which a trace cannot see the fastest
    assert distributed.max(x, 1, group=group)[1].tolist() == [0, 0, 0]


def check_compiled_first(rank, world, device):
    """A graph's call is the first with a group."""
    x, group = torch.zeros(3, 8, device=device), dist.new_group()
    for mask in (None, x == 0):

        @torch.compile(fullgraph=True, backend="eager")
        def f(x, mask=mask):
            return distributed.max(x, 1, group=group, mask=mask)[1]

        assert f(x).tolist() == [0, 0, 0]


def check_compiled_gradient(rank, world, device):
    def prepare(f):
        torch._dynamo.reset()
        return torch.compile(f, fullgraph=True, backend="aot_eager")

    check_gradient(rank, world, device, ((True, 1, False), (False, 0, True)), prepare)


def check_compiled_dtensor(rank, world, device):
    """A mesh of two dims where there are more than two ranks; else of one."""
    x = data.make((4, 6, 8), torch.float32, "ties").to(device)
    mesh = list(meshes(world, device))[world > 2]
    for placement in (Shard(0), Shard(1))[: 3 - mesh.ndim]:
        placements = [placement, Shard(1)][: mesh.ndim]
        sharded = distribute_tensor(x, mesh, placements).requires_grad_()
        with graphs() as (found, backend):

            @torch.compile(fullgraph=True, backend=backend)
            def f(x):
                values, indices = customops.max(x, 1)
                return values, indices, customops.argmin(x, [0, 2])

            results = f(sharded)
            assert len(found) == 1
        expected = (*REFERENCES["max"](x, 1), reference.argmin(x, [0, 2]))
        assert_same([r.full_tensor() for r in results], expected, context=(placements,))
        results[0].sum().backward()
        whole = torch.zeros_like(x).scatter(1, x.argmax(1, True), 1.0)
        assert torch.equal(sharded.grad.full_tensor(), whole)
    if world > 2:
        return
    with graphs() as (found, backend):
        scaled = torch.compile(customops.scale_min, backend=backend, dynamic=True)
        for scale in (2.5, -1.5, -3.5):
            expected = reference.scale_min(x, scale, 1, True)
            result = scaled(sharded, scale)
            assert_same(result.full_tensor().detach(), expected)
        assert len(found) == 1
        sharded.grad = None
        result.sum().backward()
    whole = torch.zeros_like(x).scatter(1, (x * scale).argmin(1, True), scale)
    assert torch.equal(sharded.grad.full_tensor(), whole)


def check_cuda_graph(rank, world, device):
    x = data.make((64, 256), torch.bfloat16, "ties").to(device)
    shard = x.chunk(world, 1)[rank].contiguous()
    for op in OPS:
        call = getattr(distributed, op)
        for _ in range(3):
            call(shard, 1)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = call(shard, 1)
        graph.replay()
        torch.cuda.synchronize()
        assert_same(result, REFERENCES[op](x, 1))


def check_symmetric_memory(rank, world, device):
    """One kernel in place of collective and unpack; not on a CPU, and not for large calls."""
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")  # it is not needed
    possible = distributed.enable_symmetric_memory(timeout=60)
    reachable = device.type == "cuda" and (world == 1 or torch.cuda.can_device_access_peer(0, 1))
    assert possible == reachable
    if possible:
        check_plain(rank, world, device)
        check_ties_and_nans(rank, world, device)
        check_gradient(rank, world, device)
        check_dtensor(rank, world, device)
        check_symmetric_replays(rank, world, device)
        check_symmetric_streams(rank, world, device)
        check_compiled(rank, world, device, collective="one_shot")
        assert distributed.enable_symmetric_memory(timeout=30)  # as this rank has it already
        assert symmetric.exchange_of(dist.group.WORLD).timeout == 30 * 10**9
        if rank == 0:
            distributed.disable_symmetric_memory()
        assert distributed.enable_symmetric_memory(timeout=60)
        check_plain(rank, world, device)
    distributed.disable_symmetric_memory()
    check_ties_and_nans(rank, world, device)


class Symmetric:
    """In place of the kernel: its answer, by a collective."""

    def __init__(self, group):
        self.group, self.group_name, self.words = group, group.group_name, []

    def fits(self, words):
        return True

    def __call__(self, words, x, dims, largest, keepdim):
        self.words.append((tuple(words.shape), hash(words.cpu().numpy().tobytes())))
        self.gathered = words.new_empty(dist.get_world_size(self.group), words.size(1))
        dist.all_gather_into_tensor(self.gathered, words, group=self.group)
        return _ops._unpack(self.gathered, x, dims, largest, keepdim)

    def headers(self):
        return self.gathered[:, 0].contiguous()


def check_one_transport(rank, world, device):
    """Neither a shard that requires a gradient nor a graph of one rank decides how all exchange."""
    x = data.make((3, 4 * world), torch.float32, "smooth").to(device)
    shard = x[:, 4 * rank : 4 * rank + 4].clone().requires_grad_(rank == world - 1)
    exchange = Symmetric(dist.group.WORLD)
    compiled = torch.compile(distributed.max, fullgraph=True, backend="aot_eager", dynamic=True)
    before = compiled if rank == 0 else distributed.max
    assert_same(before(shard.detach(), 1), REFERENCES["max"](x, 1))
    with (
        mock.patch.dict(symmetric.exchanges, {ref(exchange.group): exchange}),
        mock.patch.dict(symmetric.devices, {exchange.group_name: device}),
    ):
        for calls, (offset, of_graph) in enumerate(
            itertools.product((None, 4 * rank), range(-1, world)), 1
        ):
            f = compiled if rank == of_graph else distributed.max
            values, indices = f(shard, 1, offset=offset)
            assert len(exchange.words) == calls
            assert_same((values.detach(), indices), REFERENCES["max"](x, 1))
            if shard.requires_grad:
                (gradient,) = torch.autograd.grad(values.sum(), shard)
                expected = torch.zeros_like(x).scatter(1, x.argmax(1, True), 1.0)
                assert torch.equal(gradient, expected[:, 4 * rank : 4 * rank + 4])


def check_order_of_exchanges(rank, world, device):
    """A graph has all of eager mode's, unused and equal ones too, in its order: other ranks may be
    in eager mode."""
    a, b = (data.make(shape, torch.float32, "smooth").to(device) for shape in ((5, 64), (3, 700)))

    def exchanges(a, b):
        distributed.max(a, 1)
        first = distributed.argmax(torch.relu(a), 1)
        second = distributed.argmin(torch.relu(b), 1)
        again = distributed.argmax(torch.relu(a), 1)
        return again, distributed.max(b * 2, 1)[0], second, first

    exchange = Symmetric(dist.group.WORLD)
    backends = ["aot_eager", *["inductor"] * (NEEDS["COMPILER"] is None)]
    with (
        mock.patch.dict(symmetric.exchanges, {ref(exchange.group): exchange}),
        mock.patch.dict(symmetric.devices, {exchange.group_name: device}),
    ):
        for backend, gradient in itertools.product(backends, (False, True)):
            given = a.clone().requires_grad_(gradient), b.clone().requires_grad_(gradient)
            expected, in_order = exchanges(*given), exchange.words
            exchange.words = []
            results = torch.compile(exchanges, backend=backend, fullgraph=True)(*given)
            assert exchange.words == in_order and len(in_order) == 5
            assert all(map(torch.equal, results, expected))
            exchange.words = []
            torch._dynamo.reset()


def check_symmetric_memory_of_one_rank(rank, world, device):
    """What fails on one rank ends on all, in the same step; and what one frees."""

    def fail(*_, **__):
        raise OverflowError

    memory = SimpleNamespace(empty=fail, rendezvous=fail)
    with (
        mock.patch.object(_torch_private, "symmetric_memory", lambda: memory),
        mock.patch.object(libraries, "cuda", SimpleNamespace(loaded=True)),
    ):
        assert not distributed.enable_symmetric_memory()
        with pytest.raises(RuntimeError, match="rank 1: .*timeout is inf"):
            distributed.enable_symmetric_memory(timeout=float("inf") if rank == 1 else 60)
    state = torch.zeros(2, dtype=torch.int32, device=device)

    def hold(group, name):
        given = (state, state, state, rank, 1, device, name, [], None)
        symmetric.hold(group, symmetric.Exchange(*given))

    group = dist.new_group()
    caches.set_cache_tag()  # what other checks held is gone
    name, before = group.group_name, torch.compiler.config.cache_key_tag
    hold(group, name)
    assert ",symmetric;" in torch.compiler.config.cache_key_tag  # a DTensor's graph is another one
    symmetric.disable(group)
    assert torch.compiler.config.cache_key_tag == before
    hold(group, name)
    dist.destroy_process_group(group)
    distributed.disable_symmetric_memory()
    assert not symmetric.exchanges and name not in symmetric.devices
    # A group that is gone, whose name another one has now: nobody sends to its ranks.
    group, name = dist.new_group(), dist.group.WORLD.group_name
    hold(group, name)
    x = data.make((3, 4 * world), torch.float32, "ties").to(device)
    shard = x[:, 4 * rank : 4 * rank + 4].clone().requires_grad_(rank == 0)
    compiled = torch.compile(distributed.max, fullgraph=True, backend="aot_eager")
    result = (compiled if rank == 1 else distributed.max)(shard, 1)
    assert_same(tuple(r.detach() for r in result), REFERENCES["max"](x, 1))
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert not symmetric.exchanges and name not in symmetric.devices
    # Garbage is collected anywhere, and waits for no GPU; who disables does.
    group, state = dist.new_group(), mock.Mock(is_cuda=True)
    hold(group, group.group_name)
    with mock.patch.object(torch.cuda, "synchronize") as wait:
        dist.destroy_process_group(group)
        del group
        gc.collect()
        assert not symmetric.exchanges and not wait.called
        wait.side_effect = RuntimeError("captured")  # nothing is freed that kernels may use
        with pytest.raises(RuntimeError, match="captured"):
            distributed.disable_symmetric_memory()
        wait.reset_mock(side_effect=True)
        for calls in (1, 1):
            distributed.disable_symmetric_memory()
            assert wait.call_count == calls


def check_symmetric_replays(rank, world, device):
    """Many calls behind each other, of changing sizes and in graphs, while ranks run apart."""
    graphs = []
    for batch in (1, 3, 128, 129, 1000, 4095, 5000):
        x = data.make((batch, 8 * world), torch.bfloat16, "ties", seed=batch).to(device)
        shard = x[:, 8 * rank : 8 * rank + 8].clone()
        distributed.max(shard, 1)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = distributed.max(shard, 1)
        graphs.append((graph, result, shard, x))
    for i in range(500):
        graph, result, shard, x = graphs[i % len(graphs)]
        shard.copy_(shard.neg())  # the next answer is another one
        x.neg_()
        graph.replay()
        if i % 7 == rank:
            torch.cuda.synchronize()
        eager = distributed.max(shard, 1)
        if i % 50 < len(graphs):
            expected = REFERENCES["max"](x, 1)
            assert_same(result, expected, context=(i,))
            assert_same(eager, expected, context=(i,))


def check_symmetric_streams(rank, world, device):
    """Calls on two streams come one after another, though one is late; and graphs of one rank."""
    x = data.make((40, 8 * world), torch.bfloat16, "ties").to(device)
    first, second = x[:, 8 * rank : 8 * rank + 8], x[:8, 8 * rank : 8 * rank + 8].neg()
    compiled = torch.compile(distributed.max, fullgraph=True, backend="aot_eager")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    for i in range(20):
        with torch.cuda.stream(side):
            torch.cuda._sleep(i % 3 * (rank + 1) * 100_000)
            late = distributed.max(first, 1)
        soon = (compiled if i % world == rank else distributed.max)(second, 1)
        torch.cuda.synchronize()
        assert_same(late, REFERENCES["max"](x, 1), context=(i,))
        assert_same(soon, REFERENCES["max"](x[:8].neg(), 1), context=(i,))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        before = distributed.max(second, 1)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep((rank + 1) * 100_000)
            late = distributed.max(first, 1)
        soon = distributed.max(second, 1)
        torch.cuda.current_stream().wait_stream(side)
    for i in range(20):
        graph.replay()
        torch.cuda.synchronize()
        assert_same(late, REFERENCES["max"](x, 1), context=(i,))
        for result in (before, soon):
            assert_same(result, REFERENCES["max"](x[:8].neg(), 1), context=(i,))


ONLY_WITH_SYMMETRIC_MEMORY = ("check_symmetric_replays", "check_symmetric_streams")
CHECKS = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_") and name not in ("check_placements", *ONLY_WITH_SYMMETRIC_MEMORY)
}


MOST_SECONDS = 120  # of a check


def worker(rank, world, backend, names, folder):
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world)
    for name in names:
        with open(folder / f"{name}.{rank}", "w") as failure:
            # Ranks that wait for each other end, too, and say where.
            faulthandler.dump_traceback_later(MOST_SECONDS, exit=True, file=failure)
            try:
                CHECKS[name](rank, world, device)
            except BaseException:
                failure.write(traceback.format_exc())
                failure.flush()
                os._exit(1)  # the others wait for this rank, and are ended with it
        os.remove(folder / f"{name}.{rank}")
        (folder / name).touch()
    faulthandler.cancel_dump_traceback_later()
    dist.barrier()
    dist.destroy_process_group()


# Of them, those to which a third rank or a second dim of the mesh makes a difference.
MORE_RANKS = (
    *("ties_and_nans", "offsets_in_another_order", "groups", "gradient", "dtensor"),
    *("dtensor_partial", "dtensor_in_another_order", "dtensor_gradient"),
    *("dtensor_second_derivative", "dtensor_options"),
    *("dtensor_softmax", "dtensor_conv2d", "dtensor_tensor_scale", "compiled_dtensor"),
)
ON_GPUS = ("cuda_graph", "symmetric_memory")
GROUPS = {
    "gloo-2": (("gloo", 2, tuple(name for name in CHECKS if name != "cuda_graph")), [NO_GLOO]),
    "gloo-4": (("gloo", 4, MORE_RANKS), [NO_GLOO]),
    "nccl-1": (("nccl", 1, ON_GPUS), [NO_CUDA, no_nccl(1)]),
    "nccl-2": (("nccl", 2, tuple(CHECKS)), [NO_CUDA, no_nccl(2)]),
    "nccl-4": (("nccl", 4, (*MORE_RANKS, *ON_GPUS)), [no_nccl(4)]),
}


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Has the checks of a group run, once: the folder that says how far the processes came, and
    what went wrong."""

    @functools.cache
    def folder_of(group):
        folder = tmp_path_factory.mktemp("ranks")
        backend, world, names = GROUPS[group][0]
        try:
            torch.multiprocessing.spawn(worker, args=(world, backend, names, folder), nprocs=world)
        except Exception as error:
            (folder / "error").write_text(str(error))
        return folder

    return folder_of


@pytest.mark.parametrize(
    "group, name",
    [
        pytest.param(group, name, marks=marks, id=f"{group}-{name}")
        for group, ((_, _, names), marks) in GROUPS.items()
        for name in names
    ],
)
def test_in_a_group(checked, group, name):
    folder = checked(group)
    failures = [text for path in folder.glob(f"{name}.*") if (text := path.read_text())]
    assert not failures, "\n".join(failures)
    error = folder / "error"
    assert (folder / name).exists(), error.read_text() if error.exists() else "it did not run"


def fail_dtensors_in_detail(rank):
    mesh = mesh_of(torch.device("cpu"), (2,))

    def shard(width, dtype=torch.float32, rows=3, placement=None):
        local, placements = torch.zeros(rows, width, dtype=dtype), [placement or Shard(1)]
        return DTensor.from_local(local, mesh, placements, shape=(rows, 4), stride=(4, 1))

    x = shard(2)
    assert customops.argmax(x, 1).to_local().tolist() == [0, 0, 0]
    for given, keywords, text in (
        ((x, shard(2, torch.half)), {}, "differ in dtype: float32 on rank 0, float16 on rank 1"),
        ((x, shard(2, rows=2)), {}, r"differ in shape: \[3, 4\] on rank 0, \[2, 4\] on rank 1"),
        ((x, shard(4, placement=Replicate())), {}, "differ in placements"),
        ((x, x), {"dim": rank}, r"differ in dim: \[0\] on rank 0, \[1\] on rank 1"),
        ((x, x), {"dim": 1 + rank}, "rank 1: .*dim 2 is out of range"),
        ((x, shard(1)), {}, "rank 1: .*shard has size 1 in dim 1"),
        ((x, x), {"mask": (None, x == 0)[rank]}, "differ in mask: none on rank 0, bool"),
        ((x, x.to_local()), {"mask": x == 0}, "rank 1: .*must be DTensors, both or none"),
    ):
        with pytest.raises(RuntimeError, match=text):
            customops.max(given[rank], **{"dim": 1} | keywords)
    images = torch.ones(4, 2, 3, 3)
    whole, filters, bias = (
        distribute_tensor(local, mesh) for local in (images, torch.ones(5, 2, 1, 1), torch.ones(5))
    )
    sharded, wrong = (
        DTensor.from_local(images[:n], mesh, [Shard(0)], shape=(4, 2, 3, 3), stride=(18, 9, 3, 1))
        for n in (2, 2 - rank)
    )
    for given, keywords, text in (
        ((sharded, sharded.half()), {}, "rank 1: .*weight must have the dtype of input"),
        ((sharded, whole), {}, "differ in placements"),
        ((sharded, images), {}, "rank 1: .*must be DTensors, all or none"),
        ((sharded, sharded), {"bias": (None, bias)[rank]}, "differ in bias: none on rank 0"),
        ((sharded, sharded), {"stride": (1 + rank, 1)}, r"stride: \[1, 1\] on rank 0, \[2, 1\]"),
        ((wrong, wrong), {}, "rank 1: .*shard has size 1 in dim 0"),
    ):
        with pytest.raises(RuntimeError, match=text):
            keywords = {"bias": None, "scale": 2.0} | keywords
            customops.conv2d_scale_min(given[rank], filters, **keywords)


def watch_one_rank_in_detail(rank, x):
    """A mode that only this rank has neither hides its call from the others nor stops them."""
    mesh, half = mesh_of(torch.device("cpu"), (2,)), x[:, 2 * rank : 2 * rank + 2]
    sharded = DTensor.from_local(half, mesh, [Shard(1)])
    with FlopCounterMode(display=False) if rank == 0 else nullcontext():
        assert torch.equal(distributed.max(half, 1)[0], x[:, 3])
        assert torch.equal(customops.max(sharded, 1)[0].to_local(), x[:, 3])
        with pytest.raises(RuntimeError, match="differ in dtype: float32 on rank 0, float16"):
            distributed.max((half, half.half())[rank], 1)
        with pytest.raises(RuntimeError, match="rank 0: .*dim 2 is out of range"):
            customops.argmax(sharded, 2 - rank)


def fails_in_detail(rank, folder):
    """Calls that do not fit each other, then one rank ends."""
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    x = torch.arange(12.0).view(3, 4)
    values, _ = distributed.max(x[:, 2 * rank : 2 * rank + 2], 1)  # an ordinary call
    assert torch.equal(values, x[:, 3])
    problems = (
        ([x, x.half()], {}, "the ranks differ in dtype: float32 on rank 0, float16 on rank 1"),
        ([x, x[:2]], {}, r"the ranks differ in shape: \[3\] on rank 0, \[2\] on rank 1"),
        ([x, x[None]], {}, "the ranks differ in shape"),
        ([x, x[0]], {}, "rank 1: .*dim 1 is out of range"),
        ([x[:, :0]] * 2, {}, "empty on all ranks"),
        ([x, x.to_sparse()], {}, "rank 1: .*sparse_coo float32 tensor"),
        ([torch.nested.nested_tensor([x, x]), x], {}, "rank 0: .*nested strided float32 tensor"),
        ([x, [1.0]], {}, "rank 1: .*got list"),
        ([x] * 2, {"keepdim": [True, "a"][rank]}, "rank 1: .*keepdim must be a bool"),
        ([x] * 2, {"offset": 3 * rank}, "the shards of ranks 0 and 1 both have element 3"),
        ([x] * 2, {"offset": 5 * rank}, "no rank has elements 4 to 4"),
        ([x] * 2, {"offset": None if rank else 0}, "offset is 0 on rank 0 and None on rank 1"),
    )
    for shards, keywords, text in problems:
        with pytest.raises(RuntimeError, match=text):
            distributed.max(shards[rank], 1, **keywords)
    fail_dtensors_in_detail(rank)
    watch_one_rank_in_detail(rank, x)
    with (  # nothing can be compared while a CUDA graph is captured
        mock.patch.object(torch.cuda, "is_initialized", lambda: True),
        mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: True),
        mock.patch.object(dist, "all_gather_object", side_effect=AssertionError),
    ):
        distributed.max(x, 1)
    if rank == 1:
        os._exit(0)
    with pytest.raises(RuntimeError):
        distributed.max(x, 1)
    (folder / "done").touch()
    os._exit(0)  # the group cannot be left in order


@NO_GLOO
def test_faults(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    torch.multiprocessing.spawn(fails_in_detail, args=(tmp_path,), nprocs=2)
    assert (tmp_path / "done").exists()


def is_left_alone(rank, folder, direct):
    torch.cuda.set_device(rank)
    rendezvous, timeout = f"file://{folder}/rendezvous", datetime.timedelta(seconds=5)
    dist.init_process_group("nccl", rendezvous, timeout, 2, rank)
    x = torch.zeros(3, 4, device="cuda")
    assert not direct or distributed.enable_symmetric_memory(timeout=3)
    distributed.max(x, 1)
    torch.cuda.synchronize()
    (folder / f"{rank}").touch()
    if rank == 0:
        distributed.max(x, 1)
        torch.cuda.synchronize()
        time.sleep(60)
    os._exit(0)


@pytest.mark.parametrize(
    "direct", [pytest.param(d, marks=no_nccl(2), id=f"nccl-2-{d}") for d in (False, True)]
)
def test_killed_rank(tmp_path, monkeypatch, direct):
    """The other ends with an error of torch after the timeout."""
    # Four times that is what torch 2.11 waits for files for debugging, by default a minute.
    monkeypatch.setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "100")
    context = torch.multiprocessing.get_context("spawn")
    ranks = [context.Process(target=is_left_alone, args=(r, tmp_path, direct)) for r in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(50)
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    assert codes[0] not in (0, None) and codes[1] == 0 and (tmp_path / "0").exists(), codes
