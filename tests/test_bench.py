"""The benchmark: every case has an input, results are held to torch's, and the files say so."""

import itertools
import json
import math
import os
import sys
from functools import partial

import numpy
import pytest
import reference
import torch
from conftest import NO_CUDA
from reference import bits

from customops import libraries
from customops.bench import __main__ as bench
from customops.bench import builds, cases, measure, peers, random_suite, report, sampler
from customops.bench.cases import Case
from customops.bench.peers import Contender
from customops.bench.strided import GRAIN_BYTES, RARE, Arena, Strided

TINY = ["--suite", "latency", "--only", "argmax (4, 4)", "--seconds", "0"]


def run(tmp_path, *arguments):
    """The exit status and the JSON of a run."""
    path = tmp_path / "figures.json"
    status = bench.main([*TINY, "--json", str(path), *arguments])
    return status, json.loads(path.read_text())


def instead(monkeypatch, name, call):
    monkeypatch.setitem(peers.CONTENDERS, name, lambda case, x: Contender(lambda: call(x)))


def wrong_index(x):
    return torch.argmax(x, 1) + 1


@pytest.mark.parametrize("suite", cases.SUITES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_names_of_a_suite_are_distinct(suite, device):
    names = [str(case) for case in cases.select(suite, device, 64 << 30)]
    assert names and len(set(names)) == len(names)


def test_the_batch_of_the_seeds_fits_in_memory():
    case = cases.select("seeds", "cuda", 16 << 30)[0]
    assert case.shape == (64, 4096, 4095)


def test_other_operators_and_dtypes_leave_no_case_that_makes_no_sense():
    chosen = cases.select("sweep", "cpu", 64 << 30, ops=["scale_min", "min"], dtype="int8")
    assert {(case.op, case.dtype) for case in chosen} == {("min", "int8")}
    assert "nan" not in {case.data for case in chosen}
    assert None not in {case.dim for case in chosen}


def test_the_cases_of_several_texts_are_left():
    chosen = cases.select("sweep", "cuda", 64 << 30, only=["(16,)", "(64, 151936)"])
    assert {case.shape for case in chosen} == {(16,), (64, 151936)}


@pytest.mark.parametrize("suite", cases.SUITES)
def test_a_case_is_read_as_it_is_written(suite):
    for case in cases.select(suite, "cuda", 64 << 30):
        assert str(type(case).parse(str(case))) == str(case)
    assert Case.parse("min (3,4) dim=0") == Case("min", (3, 4), 0)


WRONG_CONVOLUTIONS = (
    "kernel=9",
    "kernel=0",
    "stride=0",
    "filters=0",
    "int8",
    "nan",
    "graph",
    "x=1",
)


@pytest.mark.parametrize(
    "text",
    ["sum (3,) dim=0", "argmin 3 dim=0", "argmin () dim=0", "argmin (3,) dim=1"]
    + ["argmin (0,) dim=0", "argmin (3,)", "argmin (3,) dim=0 float31"]
    + ["argmin (3,) dim=0 int8 int8", "argmin (3,) dim=0 channels_last"]
    + ["min (3,) dim=None", "scale_min (3,) dim=0 int8", "softmax_max (3,) dim=0 int8"]
    + ["scale_min (3,) dim=0 mask=full", "argmax (300,) dim=0 index=uint8", "min (3,) dim=0 mask"]
    + ["argmin (3 4) dim=0", "argmin (,) dim=0", "argmin (3,,4) dim=0", "conv2d_argmin (3,) dim=0"]
    + ["conv2d_scale_min (1, 3, 8, 8) dim=2", "conv2d_scale_min (3, 8, 8) dim=1"]
    + [f"conv2d_scale_min (1, 3, 8, 8) dim=1 {how}" for how in WRONG_CONVOLUTIONS],
)
def test_what_is_no_case(text, capsys):
    """The error says in a line what it was, and what one looks like or takes."""
    with pytest.raises(SystemExit) as status:
        bench.main(["--case", text])
    (error,) = capsys.readouterr().err.splitlines()
    assert status.value.code == 2 and f"--case: {text!r}: " in error
    assert "invalid literal" not in error


@pytest.mark.parametrize(
    "text, why",
    [
        ("conv2d_scale_min (2, 3)", "it is not like 'conv2d_scale_min (8, 64, 56, 56) dim=1"),
        ("argmax 2,3", "float32': the sizes are not in brackets; dim= is missing, as in dim=1 or"),
        ("argmax 2,3 dim=1", "float32': the sizes are not in brackets"),
        ("argmax (2, 3)", "it is not like 'argmax (64, 1000) dim=-1 float32': dim= is missing"),
        ("argmax(64, 64) dim=1", "float32': there is no space between the operator and the sizes"),
        ("argmax (2, 3, 4) dim=0,1 float32", "float32': several dims are written dim=(0, 1)"),
        ("argmax (2, 3, 4) dim=[0, 1]", "float32': several dims are written dim=(0, 1)"),
        ("argmax (2, 3, 4) dim=(0, 3)", "dim 3 is out of range for 3 sizes"),
        ("argmax (2, 3, 4) dim=(0, -3)", "dim=(0, -3) names a dim twice"),
        ("max (2, 3) dim=(0, 1)", "max needs a dim: only argmin and argmax take dim=None and seve"),
        ("scale_min (3,) dim=0 float8_e5m2", "scale_min needs a floating dtype, not float8_e5m2"),
        ("argmax (3,) dim=0 uint16 mask=full", "under a mask torch has no answer of uint16"),
        (
            "sum (3,) dim=0",
            "there are argmin, argmax, min, max, scale_min, scale_max, softmax_max,",
        ),
        ("sum (3,) dim=0", "conv2d_scale_min, conv2d_scale_max"),
        ("min (3,) dim=None", "min needs a dim: only argmin and argmax take dim=None"),
        ("argmin (3, 4) dim=None mask=kept", "mask=kept needs a dim"),
        ("softmax_max (3,) dim=0 int8", "softmax_max needs a floating dtype, not int8"),
        ("argmax (3,) dim=0 int8 nan", "nan needs a floating dtype, not int8"),
        ("scale_min (3,) dim=0 mask=full", "scale_min takes no mask= and no index="),
        ("argmax (300,) dim=0 index=uint8", "uint8 cannot hold every index of 300 elements"),
        ("argmin (3,) dim=1", "dim 1 is out of range for 1 sizes"),
        ("argmin (0,) dim=0", "a size is 0"),
        ("argmin (3,) dim=0 channels_last", "channels_last needs four sizes"),
        ("conv2d_scale_min (1, 3, 8, 8) dim=1 kernel=9", "a kernel of 9 does not fit an image of"),
        ("conv2d_scale_min (1, 3, 8, 8) dim=1 stride=0", "stride must be at least 1"),
        ("conv2d_scale_min (1, 3, 8, 8) dim=2", "only dim=1, the channels"),
        ("conv2d_scale_min (1, 3, 8, 8) dim=1 int8", "a convolution needs a floating dtype"),
    ],
)
def test_why_it_is_no_case(text, why, capsys):
    with pytest.raises(SystemExit):
        bench.main(["--case", text])
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "long"])
def test_what_is_no_time(seconds, capsys):
    with pytest.raises(SystemExit) as status:
        bench.main(["--seconds", seconds])
    (error,) = capsys.readouterr().err.splitlines()
    assert status.value.code == 2 and f"{seconds!r} is no number of seconds" in error


@pytest.mark.parametrize(
    "text, like",
    [
        ("argmax (3,4) dim=1", "argmax (3, 4) dim=1 float32"),
        (
            "conv2d_scale_max (1, 3, 2, 2) dim=1 kernel=1",
            "conv2d_scale_max (1, 3, 2, 2) dim=1 float32 filters=128 kernel=1",
        ),
        (
            "conv2d_scale_max (1, 3, 8, 8) dim=1 kernel=1 benchmark",
            "conv2d_scale_max (1, 3, 8, 8) dim=1 float32 filters=128 kernel=1 benchmark",
        ),
    ],
)
def test_what_a_case_leaves_out(text, like):
    assert str(bench._case(text)) == like


def test_cases_of_the_command_line(tmp_path):
    path = tmp_path / "figures.json"
    one, other = "argmax (3, 40) dim=-1 bfloat16", "min (40, 3) dim=0 float32 transposed"
    arguments = ["--case", one, "--case", other, "--peers", "torch", "--seconds", "0"]
    assert bench.main([*arguments, "--json", str(path)]) == 0
    figures = json.loads(path.read_text())
    assert [row["name"] for row in figures["cases"]] == [one, other]
    assert figures["suite"] == "cases"


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_a_random_input_has_different_elements_and_is_the_same_again(dtype):
    case = Case("argmax", (16, 16), 1, dtype)
    x = case.make_input("cpu")
    assert x.dtype == cases.DTYPES[dtype] and bits(x).unique().numel() > 1
    assert torch.equal(bits(x), bits(case.make_input("cpu")))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_ordered_inputs_are_ordered_along_the_dim(dim):
    def ordered(data):
        return Case("argmax", (3, 4, 5), dim, data=data).make_input("cpu")

    assert (ordered("sorted").diff(dim=dim) > 0).all()
    assert (ordered("reversed").diff(dim=dim) < 0).all()
    assert ordered("nan").isnan().all()


def test_layouts():
    x = Case("argmax", (2, 3, 4, 5), 1, layout="channels_last").make_input("cpu")
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert Case("argmax", (3, 4), 1, layout="transposed").make_input("cpu").t().is_contiguous()


@pytest.mark.parametrize("op", cases.OPS)
def test_every_cpu_peer_but_the_compiled_is_right_about_a_tiny_case(op):
    case = Case(op, (4, 6, 5), 1)
    x = case.make_input("cpu")
    expected = peers.reference(case, x)
    for name in (peers.OURS, peers.OPERATOR, "torch", "torch.max", "numpy"):
        try:
            contender = peers.CONTENDERS[name](case, x)
        except peers.Unavailable:
            assert op in ("min", "max") and name in ("torch.max", "numpy")
        else:
            assert peers.is_right(contender.answer(contender.call()), expected), name


@pytest.mark.parametrize(
    "text",
    [
        *(
            f"{op} (4, 6, 5) dim=1 float32 mask={mask}"
            for op in ("argmin", "max")
            for mask in cases.MASKS
        ),
        *(f"argmax (40, 6) dim=0 {dtype} mask=full" for dtype in ("uint8", "bfloat16", "int64")),
        *(f"min (40, 6) dim=0 float32 index={dtype}" for dtype in cases.INDEX_DTYPES),
        "argmax (40, 6) dim=None float32 mask=last index=uint8",
        *(
            f"softmax_max (40, 60) dim={dim} {dtype}"
            for dim in (0, 1)
            for dtype in ("float32", "float64")
        ),
    ],
)
def test_peers_of_options_are_right_about_a_tiny_case(text):
    case = Case.parse(text)
    assert str(case) == text.replace(" index=int64", "")
    x = case.make_input("cpu")
    expected = peers.reference(case, x)
    for name in (peers.OURS, peers.OPERATOR, "torch", "torch.max", peers.OURS_MAX):
        try:
            contender = peers.CONTENDERS[name](case, x)
        except peers.Unavailable:
            continue
        answer = contender.answer(contender.call())
        if answer is None:
            assert name == peers.OURS_MAX or case.dim is None
        elif isinstance(answer, torch.Tensor) and isinstance(expected, tuple):
            assert peers.is_right(answer, expected[1]), name
        else:
            assert peers.is_right(answer, expected, case.tolerance), name


def test_the_limit_of_options_is_what_has_to_be_read_and_written(tmp_path):
    path = tmp_path / "figures.json"
    case = "max (64, 1000) dim=1 float32 mask=full index=uint16"
    arguments = ["--case", case, "--peers", "torch,torch.max", "--seconds", "0"]
    assert bench.main([*arguments, "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["cases"]
    assert row["mask_bytes"] == 64000 and row["output_bytes"] == 64 * (4 + 2)
    moved = row["input_bytes"] + row["mask_bytes"] + row["output_bytes"]
    assert row["limit_seconds"] == pytest.approx(moved / row["read_bytes_per_second"])
    assert row["contenders"]["ours"]["right"] is True


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("dim", [None, 0, 1, (0, 1), (-1, 0)])
def test_every_dtype_has_a_reference_which_ours_gives(dtype, dim):
    for op in ("argmax", "argmin", *(("min", "max") if isinstance(dim, int) else ())):
        case = Case(op, (4, 6), dim, dtype)
        assert Case.parse(str(case)) == case
        x = case.make_input("cpu")
        contender = peers.CONTENDERS[peers.OURS](case, x)
        assert peers.is_right(contender.answer(contender.call()), peers.reference(case, x)), op
        of_numpy = getattr(reference, op if op.startswith("arg") else f"{op}_")(x, dim)
        assert peers.is_right(of_numpy, peers.reference(case, x)), op


@pytest.mark.parametrize("text", ["argmax (9, 2) dim=0 uint64", "max (9, 2) dim=0 float8_e4m3fn"])
def test_a_wrong_answer_of_a_dtype_that_torch_does_not_reduce(text):
    case = Case.parse(text)
    x = case.make_input("cpu")
    other = getattr(reference, case.op if case.op == "argmax" else "max_")(x.roll(1, 0), 0)
    assert not peers.is_right(other, peers.reference(case, x))


def test_nothing_but_the_reference_is_right():
    x = torch.tensor([0.0, torch.nan])
    assert peers.is_right(x.numpy(), x)
    assert not peers.is_right(torch.tensor([torch.nan, 0.0]), x)
    assert not peers.is_right(x.reshape(2, 1), x)
    assert not peers.is_right((x, torch.tensor([1, 1])), (x, torch.tensor([1, 0])))


def test_the_figures_of_a_run(tmp_path, capsys):
    arguments = ["--suite", "scaling", "--only", "(1024,)", "--peers", "torch,torch.max,numpy"]
    status, figures = run(tmp_path, *arguments, "--threads", "1,2")
    assert status == 0
    assert figures["command"].startswith("python -m customops.bench --suite latency")
    assert figures["versions"]["torch"] == torch.__version__
    assert figures["machine"]["cores"] >= 1 and figures["machine"]["cpu_kernels"]
    assert [line["threads"] for line in figures["summary"]] == [1, 2]
    assert [row["threads"] for row in figures["cases"]] == [1, 2]
    row = figures["cases"][0]
    contenders = row["contenders"]
    assert list(contenders) == ["ours", "torch", "torch.max", "numpy"]
    right = {name: contender["right"] for name, contender in contenders.items()}
    assert right == {"ours": True, "torch": True, "torch.max": None, "numpy": True}
    assert (row["input_bytes"], row["output_bytes"]) == (4096, 8)
    assert row["limit_seconds"] == pytest.approx(4104 / row["read_bytes_per_second"])
    for contender in contenders.values():
        assert contender["samples"] >= 5
        assert contender["quartiles"][0] <= contender["seconds"] <= contender["quartiles"][1]
        assert contender["share"] == pytest.approx(row["limit_seconds"] / contender["seconds"])
    best = min(("torch", "numpy"), key=lambda name: contenders[name]["seconds"])
    assert row["best_peer"] == best
    ratio = contenders[best]["seconds"] / contenders["ours"]["seconds"]
    assert row["best_peer_ratio"] == pytest.approx(ratio)
    assert "| argmax (1024,) dim=None float32, 1 thread |" in capsys.readouterr().out


def test_a_wrong_peer_is_marked_and_not_compared_with(tmp_path, monkeypatch, capsys):
    instead(monkeypatch, "torch", wrong_index)
    status, figures = run(tmp_path, "--peers", "torch,numpy")
    row = figures["cases"][0]
    assert status == 0
    assert row["contenders"]["torch"]["right"] is False
    assert row["best_peer"] == "numpy" and row["torch_ratio"] is None
    assert "µs†" in capsys.readouterr().out


def test_a_time_that_cannot_be_measured_is_not_compared_with(tmp_path, monkeypatch, capsys):
    times = iter([1e-6, -1e-9])

    def sampler(*_):
        seconds = next(times)
        return lambda: seconds, "host clock less another's"

    monkeypatch.setattr(measure, "_sampler", sampler)
    path = tmp_path / "figures.json"
    arguments = ["--case", "argmax (4, 4) dim=1 float32", "--peers", "torch", "--seconds", "0"]
    assert bench.main([*arguments, "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["cases"]
    assert row["contenders"]["torch"]["error"] == "too short to be measured"
    assert row["best_peer"] is None and "seconds" in row["contenders"]["ours"]
    assert "| 1.00 µs |" in capsys.readouterr().out


@pytest.mark.parametrize("name", [peers.OURS, peers.OPERATOR])
def test_a_wrong_result_of_ours_fails_the_run(name, tmp_path, monkeypatch, capsys):
    instead(monkeypatch, name, wrong_index)
    status, figures = run(tmp_path, "--peers", "torch")
    assert status == 1
    assert figures["cases"][0]["contenders"][name]["right"] is False
    assert f"WRONG: argmax (4, 4) dim=1 float32 host: {name}" in capsys.readouterr().err


def test_an_error_of_ours_fails_the_run_and_one_of_a_peer_does_not(tmp_path, monkeypatch):
    def fail(x):
        raise RuntimeError("no such kernel\nand so on")

    instead(monkeypatch, "numpy", fail)
    status, figures = run(tmp_path, "--peers", "torch,numpy")
    assert status == 0
    assert figures["cases"][0]["contenders"]["numpy"] == {"error": "RuntimeError: no such kernel"}
    instead(monkeypatch, "ours", fail)
    assert run(tmp_path, "--peers", "torch,numpy")[0] == 1


def test_a_peer_that_does_not_run_a_case_says_why(tmp_path):
    _, figures = run(tmp_path, "--peers", "numpy", "--dtype", "bfloat16")
    assert "BFloat16" in figures["cases"][0]["contenders"]["numpy"]["error"]


def test_random_cases_that_need_more_memory_than_there_is(monkeypatch, capsys):
    monkeypatch.setattr(bench.measure, "available_bytes", lambda device: 0)
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--suite", "random", "--cases", "1"])
    assert "the cases need a storage of" in capsys.readouterr().err


def test_an_input_larger_than_memory_is_skipped(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench.measure, "available_bytes", lambda device: 10)
    status, figures = run(tmp_path, "--peers", "torch")
    assert status == 2
    assert figures["cases"][0]["skipped"] == "not enough memory"
    out, error = capsys.readouterr()
    assert error.splitlines()[-1] == "no case was measured: not enough memory"
    assert "| argmax (4, 4) dim=1 float32 host, " in out
    assert "not measured: argmax (4, 4) dim=1 float32 host: not enough memory" in out


def test_without_rich_and_matplotlib(tmp_path, monkeypatch, capsys):
    for module in ("rich", "rich.console", "rich.table", "matplotlib"):
        monkeypatch.setitem(sys.modules, module, None)
    assert run(tmp_path, "--peers", "torch")[0] == 0
    with pytest.raises(SystemExit):
        run(tmp_path, "--plot", str(tmp_path / "plot.png"))
    assert "--plot needs matplotlib: pip install" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--peers", "scipy"], "'scipy' is not one of 'ours: max', torch,"),
        (["--threads", "0"], "'0' is neither a number of threads"),
        (["--suite", "scaling", "--only", "no such case"], "no case of the suite is left"),
        (["--case", "argmin (3,) dim=0"], "--case says it all"),
        (["--json", "no/x.json"], "--json: no/x.json cannot be written: No such file or directory"),
        (["--json", "/proc/x.json"], "--json: /proc/x.json cannot be written: "),
        (["--plot", "/proc/x.png"], "--plot: /proc/x.png cannot be written: "),
        (["--plot", "/"], "--plot: / cannot be written: Is a directory"),
        (["--plot", "plot.txt"], "--plot: a name that ends in .png or .svg"),
        (["--peers", "torch,loop"], "--peers loop and kernel: add --suite compiled"),
        (["--suite", "random", "--peers", "loop"], "--peers loop and kernel: add --suite compiled"),
        (["--seed", "1"], "--seed: add --suite random"),
        (["--options"], "--options: add --suite random"),
        (["--compile-share", "0"], "--compile-share: add --suite random"),
        (["--compile-processes", "4"], "--compile-processes: add --suite random"),
        (["--peers", "torch,apart"], "--peers apart: add --suite fused"),
    ],
)
def test_arguments_that_make_no_sense(arguments, message, capsys):
    with pytest.raises(SystemExit) as status:
        bench.main([*TINY, *arguments])
    (error,) = capsys.readouterr().err.splitlines()
    assert status.value.code == 2 and message in error


def test_a_file_is_left_as_it_was_until_there_are_figures(tmp_path):
    (tmp_path / "old.json").write_text("old")
    for name in ("new.json", "old.json"):
        assert report.file(str(tmp_path / name)) == str(tmp_path / name)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_the_help_says_what_is_measured_unless_told_otherwise(capsys):
    with pytest.raises(SystemExit):
        bench.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "cpu (the default) or cuda" in text and "sweep (the default), " in text
    suites = text.partition("what to measure: ")[2].partition(" --case")[0]
    assert all(f"{suite}" in suites for suite in (*cases.SUITES, bench.RANDOM, bench.COMPILED))
    assert "of --suite compiled: loop, kernel" in text


def test_what_a_report_of_a_slow_case_needs_is_printed(tmp_path, capsys):
    _, figures = run(tmp_path, "--peers", "torch")
    title = capsys.readouterr().out.splitlines()[0]
    assert f"{figures['machine']['cpu_kernels']} kernels" in title
    assert f"customops {figures['versions']['customops']}" in title


@pytest.mark.parametrize(
    "case, share, warns",
    [
        ("argmax (64, 1000) dim=1 float32", 1.4, False),
        ("argmax (64, 1000) dim=1 float32", 45, True),
        ("argmax (64, 1000) dim=1 float32 nan", 45, False),
        ("argmax (64, 1000) dim=1 bool", 45, False),
    ],
)
def test_a_share_that_cannot_be(case, share, warns, capsys):
    """The machine was busy when the bandwidth was measured. (Of NaNs and bools not all is read.)"""
    row = {"name": case, "threads": 1, "input_bytes": 1, **vars(Case.parse(case))}
    row |= {"contenders": {"ours": {"seconds": 1.0, "right": True, "share": share}}}
    row |= {"torch_ratio": None, "best_peer_ratio": None}
    report.show([row], ["ours"], "title")
    out = capsys.readouterr().out
    assert (f"warning: {case}: the bandwidth measured is too low" in out) == warns


def test_several_ranks_are_started_by_torchrun(monkeypatch, capsys):
    from customops.bench import distributed

    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit) as status:
        distributed.main([])
    error = capsys.readouterr().err.splitlines()[-1]
    assert status.value.code == 2 and "start it by torchrun, as in torchrun --nproc" in error


@pytest.mark.parametrize(
    "visible, left", [(None, "0"), ("2,3", "2"), ("GPU-5a", "GPU-5a"), ("", "")]
)
def test_one_gpu_is_left_visible(visible, left, monkeypatch):
    monkeypatch.setattr(os, "environ", {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    bench.use_one_gpu()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == left


@pytest.mark.parametrize(
    "arguments",
    [
        TINY,
        ["--suite", "scaling", "--only", "(1024,)", "--seconds", "0"],
        ["--suite", "sweep", "--only", "argmax (4096,)", "--seconds", "0", "--threads", "1,2"],
    ],
)
def test_the_plots(arguments, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.png"
    assert bench.main([*arguments, "--peers", "torch", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_the_times_that_cannot_be_measured(tmp_path, monkeypatch):
    times = itertools.cycle([1e-6, -1e-9])  # of ours, and of its peer
    monkeypatch.setattr(measure, "_sampler", lambda *_: (partial(float, next(times)), ""))
    test_the_plots(["--suite", "scaling", "--only", "(1024,)", "--seconds", "0"], tmp_path)


@pytest.mark.parametrize("columns, locale", [(90, "C"), (200, "C.UTF-8")])
def test_the_table_on_a_terminal(columns, locale, tmp_path, monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LC_ALL", locale)
    assert run(tmp_path, "--peers", "numpy")[0] == 0
    out = capsys.readouterr().out
    assert f"{'|' if locale == 'C' else '│'} argmax (4, 4) dim=1" in out
    assert out.isascii() == (locale == "C")
    assert ("torch.ops" in out) == (columns == 200)


@pytest.mark.parametrize(
    "variables, in_ascii",
    [
        ({"LC_ALL": "C"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),  # which Python has set
        ({"LANG": "POSIX"}, True),
        ({"LANG": "C", "LC_CTYPE": "de_DE.UTF-8"}, False),
        ({"LANG": "C.UTF-8"}, False),
        ({"LC_CTYPE": "C.UTF-8"}, False),  # of a container that has no locale
    ],
)
def test_the_table_on_a_terminal_of_the_locale_c(variables, in_ascii, monkeypatch, capsys):
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    report.use_plain_characters()
    report.show_table(["µs"], [["1 – 2"]], "2 × 3 → 6")
    assert capsys.readouterr().out.isascii() == in_ascii


FEW = ["--suite", "random", "--cases", "3", "--seed", "6", "--threads", "1"]


def run_random(tmp_path, *arguments):
    """The exit status and the JSON of a run."""
    path = tmp_path / "figures.json"
    status = bench.main([*FEW, "--json", str(path), *arguments])
    return status, json.loads(path.read_text())


def test_a_seed_always_means_the_same_cases():
    """On every machine, with every Python and torch: what others measured can be asked for."""
    assert [str(case) for case in sampler.sample(0, 3, "cuda")] == [
        "Strided('max', (2, 1, 9111040, 2), (1, 4, 4, 2), 0, 'int32', 2)",
        "Strided('max', (3, 4, 2347280, 1, 2), (18778240, 1, 8, 8, 4), 0, 'bool', 3)",
        "Strided('scale_min', (10, 182, 512, 15), (1397760, 7680, 15, 1), 0, 'float16', 3)",
    ]
    assert sampler.sample(0, 3, "cuda") == sampler.sample(0, 9, "cuda")[:3]
    assert sampler.sample(0, 9, "cuda") != sampler.sample(1, 9, "cuda")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_random_cases_have_every_layout_and_their_sizes(device):
    chosen = sampler.sample(3, 500, device)
    for case in chosen:
        least, most = sampler.LEAST_BYTES[device], sampler.MOST_BYTES[device]
        assert least <= case.moved_bytes(device) <= most
        assert math.prod(case.shape) <= 1 << 28
        assert Strided.parse(str(case)) == case
        assert eval(str(case)) == case

    def some(property_of):
        return any(property_of(case) for case in chosen)

    assert {len(case.shape) for case in chosen} == {1, 2, 3, 4, 5}
    assert {case.op for case in chosen} == set(cases.OPS)
    assert {case.dtype for case in chosen} == {*sampler.FLOATS, *sampler.INTEGERS}
    assert some(lambda case: case.dim is None) and some(lambda case: isinstance(case.dim, tuple))
    assert some(lambda case: case.offset) and some(lambda case: 0 in case.strides)
    assert some(lambda case: 1 not in case.strides) and some(lambda case: 1 in case.shape)
    assert some(lambda case: len(case.shape) > 2 and case.strides[1] == 1)


@pytest.mark.parametrize("device", GRAIN_BYTES)
def test_the_bytes_that_have_to_be_read(device):
    """By counting the sectors or lines of every element's address."""
    dice = sampler.Dice("bytes")
    for _ in range(300):
        case = sampler._draw_any(dice, dice.between(16, 4096))
        if math.prod(case.shape) > 1 << 16:
            continue
        index = numpy.indices(case.shape).reshape(len(case.shape), -1)
        offsets = case.offset + numpy.array(case.strides) @ index
        grains = numpy.unique(offsets * case.element_bytes // GRAIN_BYTES[device])
        assert case.read_bytes(device) == len(grains) * GRAIN_BYTES[device], case
        assert case.span_bytes == (offsets.max() + 1) * case.element_bytes


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_a_storage_has_no_nan_and_no_extreme_of_a_type(dtype):
    size = RARE if dtype == "bool" else 8192
    case = Strided("argmax", (size,), (1,), 0, dtype, 0)
    x = Arena("cpu", case.span_bytes).view(case)
    values = reference.to_numpy(x)
    assert numpy.unique(values).size > 1
    assert torch.equal(bits(x), bits(Arena("cpu", case.span_bytes).view(case)))
    if x.dtype.is_floating_point:
        assert numpy.isfinite(values).all()
    elif x.dtype == torch.bool:
        assert x.sum() == 1 and x.view(torch.uint8).max() == 1
        least = Strided("argmin", (size,), (1,), 0, dtype, 0)
        assert torch.equal(Arena("cpu", case.span_bytes).view(least), ~x)
    else:
        limits = torch.iinfo(x.dtype)
        assert limits.min < values.min() and values.max() < limits.max


@pytest.mark.parametrize("dim", [None, 1, (0, 2), (1, 2, 3)])
@pytest.mark.parametrize("name", [peers.OURS, peers.OPERATOR, "torch", "torch.max", "numpy"])
def test_contenders_reduce_several_dims_of_any_strides(name, dim):
    """The reference is numpy's, of a copy."""
    case = Strided("argmin", (5, 6, 7, 8), (9, 600, 45, 1), 3, "int16", dim)
    x = Arena("cpu", case.span_bytes).view(case)
    last = tuple(range(-len(case.dims), 0))
    moved = numpy.moveaxis(x.numpy(), case.dims, last)
    expected = torch.tensor(moved.reshape(*moved.shape[: last[0]], -1).argmin(-1))
    assert torch.equal(peers.reference(case, x), expected)
    contender = peers.CONTENDERS[name](case, x)
    answer = contender.answer(contender.call())
    assert (
        answer is None if (name, dim) == ("torch.max", None) else peers.is_right(answer, expected)
    )


def test_only_a_lower_index_of_the_same_value_is_as_right():
    x = torch.tensor([[1.0, 3.0, 3.0, 3.0]])
    case = Strided("max", (1, 4), (4, 1), 0, "float32", 1)

    def right(index, value=3.0, torchs=2):
        expected = torch.tensor([3.0]), torch.tensor([torchs])
        answer = torch.tensor([value]), torch.tensor([index])
        return random_suite.is_right(case, x, answer, expected)

    assert right(2) and right(1)
    assert not right(3) and not right(0) and not right(-1) and not right(4)
    assert not right(1, value=1.0)


def test_the_quantiles_of_known_ratios():
    rows = [{"limit_ratio": i / 100, "best_peer_ratio": None} for i in range(1, 201)]
    found = random_suite.summary(rows)
    assert list(found) == ["limit_ratio"]
    assert found["limit_ratio"]["cases"] == 200
    quantiles = {"0": 0.01, "0.01": 0.03, "0.5": 1.01, "0.9": 1.81}
    assert quantiles.items() <= found["limit_ratio"]["quantiles"].items()
    assert found["limit_ratio"]["below"]["0.9"] == 89


def test_random_cases_with_options(tmp_path):
    """Masks in the order of the input and in others, of some dims or all, and softmax_max."""
    chosen = sampler.sample(3, 200, "cpu", options=True)
    assert all(eval(str(case)) == Strided.parse(str(case)) == case for case in chosen)
    assert {case.has_options for case in chosen} == {True, False}
    assert all(case.has_options != (case.op == cases.SOFTMAX) for case in chosen)
    masks = [case.mask for case in chosen if case.mask and len(case.shape) > 2]
    assert any(0 in mask and max(mask) > 0 for mask in masks) and any(max(m) == 0 for m in masks)
    assert any(case.mask == case.strides for case in chosen)
    status, figures = run_random(tmp_path, "--options", "--peers", "torch")
    assert status == 0
    assert [row["name"] for row in figures["cases"]] == list(
        map(str, sampler.sample(6, 3, "cpu", options=True))
    )


def test_the_figures_of_random_cases(tmp_path, capsys):
    status, figures = run_random(tmp_path)
    assert status == 0
    names = [str(case) for case in sampler.sample(6, 3, "cpu")]
    assert [row["name"] for row in figures["cases"]] == names
    out = capsys.readouterr().out
    for row in figures["cases"]:
        contenders = row["contenders"]
        assert list(contenders) == ["ours", "torch", "torch.max", "numpy"]
        assert contenders["ours"]["right"] is True
        assert row["read_bytes"] > 0 and row["output_bytes"] > 0 and row["plan"]["units"] > 0
        ours = contenders["ours"]["seconds"]
        assert row["limit_ratio"] == pytest.approx(row["limit_seconds"] / ours)
        best = contenders[row["best_peer"]]["seconds"]
        assert row["best_peer_ratio"] == pytest.approx(best / ours)
        assert row["name"] in out
    assert figures["summary"]["best_peer_ratio"]["cases"] == 3
    assert "| best peer / ours | 3 |" in out


def test_another_build_is_measured_in_a_process_of_its_own(tmp_path):
    folder = str(libraries.cpu.path.parent)
    status, figures = run_random(tmp_path, "--cases", "1", "--peers", "torch", "--before", folder)
    row = figures["cases"][0]
    seconds = {name: figures["seconds"] for name, figures in row["contenders"].items()}
    assert status == 0 and list(seconds) == ["ours", "torch", "now", "before"]
    assert row["before_ratio"] == pytest.approx(seconds["before"] / seconds["now"])
    assert row["best_peer"] == "torch"


def test_a_listed_suite_against_another_build(tmp_path):
    folder, path = str(libraries.cpu.path.parent), tmp_path / "figures.json"
    case = "argmax (3, 40, 5, 6) dim=-3 int16 channels_last"
    few = ["--seconds", "0.001", "--peers", "torch", "--json", str(path)]
    assert bench.main(["--case", case, "--before", folder, *few]) == 0
    (row,) = json.loads(path.read_text())["cases"]
    assert row["name"] == "Strided('argmax', (3, 40, 5, 6), (1200, 1, 240, 40), 0, 'int16', 1)"
    assert row["contenders"]["ours"]["right"] is True and row["before_ratio"] > 0


@pytest.mark.parametrize(
    "chosen",
    [
        ["--case", "argmax (3, 40) dim=1 mask=kept"],
        ["--case", "min (3, 40) dim=1 index=int32"],
        ["--suite", "fused"],
    ],
)
def test_what_is_not_measured_against_another_build(chosen, capsys):
    with pytest.raises(SystemExit):
        bench.main([*chosen, "--before", str(libraries.cpu.path.parent), "--device", "cpu"])
    assert "--before measures no cases with masks" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--samples", "0"], "--samples: at least 1"),
        (["--device", "cuda"], "--device cuda: torch finds no GPU"),
        (["--batch", "8,0"], "'0' is no number from 1 on"),
        (["--plot", "plot.txt"], "--plot: a name that ends in .png or .svg"),
    ],
)
def test_distributed_arguments_that_make_no_sense(arguments, message, monkeypatch, capsys):
    distributed = pytest.importorskip("customops.bench.distributed")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        distributed.main(arguments)
    assert message in capsys.readouterr().err


def test_a_build_that_does_not_load_ends_the_run(tmp_path, capfd):
    (tmp_path / libraries.cpu.path.name).write_text("no library")
    with pytest.raises(RuntimeError, match="ended with status 1"):
        builds.Build(str(tmp_path), "cpu", 64)
    assert f"cannot load {tmp_path}" in capfd.readouterr().err


@NO_CUDA
def test_random_cases_on_a_gpu(tmp_path):
    folder = str(libraries.cuda.path.parent)
    arguments = ["--device", "cuda", "--compile-share", "0.4", "--compile-processes", "2"]
    status, figures = run_random(tmp_path, *arguments, "--before", folder)
    assert status == 0 and figures["summary"]["before_ratio"]["cases"] == 3
    compiled = [row["contenders"].get("compile") for row in figures["cases"]]
    assert [figures is not None and figures["right"] for figures in compiled] == [
        False,
        False,
        True,
    ]
    for row in figures["cases"]:
        assert row["plan"]["walk"] and 0 < row["limit_ratio"] < 2


def test_a_case_that_torch_refuses_is_skipped(tmp_path, monkeypatch):
    def refuse(case, x):
        raise RuntimeError("torch cannot")

    monkeypatch.setattr(peers, "reference", refuse)
    status, figures = run_random(tmp_path, "--cases", "1")
    assert status == 2  # nothing was measured
    assert figures["cases"][0]["skipped"] == "RuntimeError: torch cannot"


def test_a_wrong_result_of_ours_fails_a_random_run(tmp_path, monkeypatch, capsys):
    def wrong(case, x):
        return Contender(lambda: peers.with_one_dim(case, x)[0].argmax(-1) * 0 - 1)

    monkeypatch.setitem(peers.CONTENDERS, "ours", wrong)
    case = "Strided('argmax', (64, 1000), (1000, 1), 0, 'float32', 1)"
    status, figures = run_random(tmp_path, "--peers", "torch", "--case", case)
    assert status == 1
    assert [row["name"] for row in figures["cases"]] == [case]
    assert f"WRONG: {case}: ours" in capsys.readouterr().err


def test_the_compiled_peers_take_part_in_a_share():
    setting = random_suite.Setting("cpu", ["torch", "compile"], 0, compile_share=0.2)
    chosen = [number for number in range(1000) if "compile" in setting.peers_of(number)]
    assert len(chosen) == 200 and numpy.diff(chosen).max() < 10
    assert all("torch" in setting.peers_of(number) for number in range(10))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_list_is_measured_by_no_one(device, monkeypatch, capsys):
    """And needs no GPU."""
    monkeypatch.setattr(random_suite, "run", None)
    assert bench.main([*FEW, "--list", "--device", device]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [Strided.parse(line) for line in lines] == sampler.sample(6, 3, device)


@pytest.mark.parametrize(
    "text",
    ["Strided()", "Strided('argmax', (3,), (1, 1), 0, 'int8', 0)", "Strided(print())"]
    + ["Strided('argmax', (3,), (1,), 0, 'int8', 1)", "Strided('sum', (3,), (1,), 0, 'int8', 0)"]
    + ["Strided('min', (3,), (1,), 0, 'int8', None)", "Strided('min', (3,), (-1,), 0, 'int8', 0)"]
    + ["Strided('scale_min', (3,), (1,), 0, 'int8', 0)", "Strided('min', 3, 1, 0, 'int8', 0)"]
    + ["Strided('argmax', (3, 3), (3, 1), 0, 'int8', (1, 0))", "Strided('argmax', ("],
)
def test_what_is_no_case_of_any_strides(text, capsys):
    """The error says in our words what it was."""
    with pytest.raises(SystemExit):
        bench.main(["--suite", "random", "--case", text])
    error = capsys.readouterr().err
    assert "is not like" in error
    assert not any(words in error for words in ("__init__", "not supported between", "malformed"))


@pytest.mark.parametrize(
    "text, why",
    [
        ("Strided('argmax', (9, 4), (1, 9), (0, 1), 'float32', 1)", "the offset, after the strid"),
        ("Strided('argmax', (9, 4), (1, 9), 0, 'float32')", "it has 5 fields, and there are six"),
        ("Strided('argmax', 9, (1, 9), 0, 'float32', 1)", "the shape and the strides are tuples"),
        ("Strided('argmax', (9, 4), (1, 9), 0, 'float32', '1')", "the dim, after the dtype, is an"),
        ("Strided('argmax', (9,), (1,), 0, 'float32', 0, 1)", "the strides of the mask, after the"),
        ("Strided('argmax', (9,), (1,), 0, float32, 0)", "its fields are numbers, words in quotes"),
        ("Strided(argmax", "it is another expression"),
    ],
)
def test_why_it_is_no_case_of_any_strides(text, why, capsys):
    with pytest.raises(SystemExit):
        bench.main(["--suite", "random", "--case", text])
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--only", "argmax"], "not with --only"),
        (["--case", "argmax (3,) dim=0"], "as --list prints it"),
        (["--cases", "0"], "at least 1"),
        (["--compile-share", "2"], "from 0 to 1"),
        (["--before", "nowhere"], "there is no nowhere/libreduceops"),
        (["--threads", "1,2"], "one number"),
        (["--suite", "sweep", "--list"], "add --suite random"),
        (
            ["--suite", "sweep", "--case", "Strided('min', (3,), (1,), 0, 'int8', 0)"],
            "add --suite random",
        ),
    ],
)
def test_random_arguments_that_make_no_sense(arguments, message, capsys):
    with pytest.raises(SystemExit) as status:
        bench.main([*FEW, *arguments])
    assert status.value.code == 2
    assert message in capsys.readouterr().err
