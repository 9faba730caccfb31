"""The search for constants of the plan, with times made up; only a GPU has real ones."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from customops.bench import tune
from customops.bench.cases import Case
from customops.plans import cuda_constants

H200 = {"multiprocessors": 132, "bulk": True}
COLUMNS, SHORT_ROWS = Case("argmax", (128, 4096, 4095), 1), Case("argmin", (2**20, 101), -1)
FLAT = Case("argmin", (2**28,), None)
CASES = [COLUMNS, SHORT_ROWS, FLAT]


def test_every_constant_has_values_to_try():
    for name, default in cuda_constants().items():
        tried = tune.values(name, default)
        assert tried and default not in tried and len(set(tried)) == len(tried)
        assert all(value >= 0 for value in tried)


def test_a_constant_affects_the_cases_whose_plan_it_changes():
    def affected(**tuning):
        return tune.affected(CASES, {}, tuning, H200)

    assert affected(segment_bytes=2048) == [COLUMNS]
    assert affected(tile_bytes=8192) == [SHORT_ROWS]
    assert affected(bulk=0) == [COLUMNS]
    assert affected(lane_loads=8) == affected(**cuda_constants()) == []
    assert not tune.affected(CASES, {"bulk": 0}, {"bulk": 0, "segment_bytes": 2048}, H200)


def timed(monkeypatch, seconds):
    """The tunings measured; `seconds` of a case under a tuning, None where it does not run."""
    measured = []

    def measure(cases, tuning, _):
        measured.append(dict(tuning))
        times = {case: seconds(case, tuning) for case in cases}
        return {case: time for case, time in times.items() if time}

    monkeypatch.setattr(tune, "measure", measure)
    return measured


def search(*names):
    return tune.search(names, CASES, H200, 0, lambda step: None)


def test_the_best_value_is_kept_for_what_follows(monkeypatch):
    default = cuda_constants()["tile_bytes"]

    times = {default: 4, default * 2: 3, default // 2: 2}

    def seconds(case, tuning):
        return times.get(tuning.get("tile_bytes", default), 5) if case == SHORT_ROWS else 1

    measured = timed(monkeypatch, seconds)
    tuning, rows = search("tile_bytes", "segment_bytes")
    assert tuning == {"tile_bytes": default // 2}
    ratios = {value: ratio for name, _, value, _, ratio in rows if name == "tile_bytes"}
    assert ratios[default * 2] == pytest.approx(3 / 4)
    assert ratios[default // 2] == pytest.approx(1 / 2)
    assert {t["tile_bytes"] for t in measured if "segment_bytes" in t} == {default // 2}


def test_noise_changes_nothing(monkeypatch):
    timed(monkeypatch, lambda case, tuning: 0.99 if tuning else 1)
    assert search("tile_bytes", "bulk")[0] == {}


def test_what_does_not_run_is_not_kept(monkeypatch, capsys):
    timed(monkeypatch, lambda case, tuning: None if "block_bytes" in tuning else 1)
    tuning, rows = search("block_bytes")
    assert tuning == {} and rows
    tune.show(tuning, rows)
    out = capsys.readouterr().out
    assert "does not run" in out and "no constant is to be changed" in out


def test_the_result_can_be_copied(capsys):
    tune.show({"tile_bytes": 1, "bulk": 0}, [("tile_bytes", 2, 1, 3, 0.5), ("bulk", 1, 0, 4, 0.75)])
    out = capsys.readouterr().out
    assert 'REDUCEOPS_CUDA_TUNING="tile_bytes=1,bulk=0"' in out
    assert "  int64_t tile_bytes = 1;\n" in out
    assert "| tile_bytes | 2 | 1 | 3 | 0.500 × | kept |" in out


def benchmark(monkeypatch, contenders):
    """The environment that the benchmark is run with; it writes these figures for each case."""
    seen = {}

    def run(command, env, **_):
        seen.update(env)
        path = next(word.removeprefix("--json=") for word in command if "--json=" in word)
        names = [word.removeprefix("--only=") for word in command if "--only=" in word]
        rows = [{"name": name, "contenders": contenders} for name in names]
        Path(path).write_text(json.dumps({"cases": rows}))
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    return seen


def test_times_come_from_the_benchmark_with_the_tuning(monkeypatch):
    seen = benchmark(monkeypatch, {"ours": {"right": True, "seconds": 2.5}})
    assert tune.measure(CASES, {"tile_bytes": 1}, 0.1) == dict.fromkeys(CASES, 2.5)
    assert seen["REDUCEOPS_CUDA_TUNING"] == "tile_bytes=1"
    benchmark(monkeypatch, {"ours": {"error": "RuntimeError: too many resources"}})
    assert tune.measure(CASES, {}, 0.1) == {}


def test_a_wrong_result_ends_the_search(monkeypatch):
    benchmark(monkeypatch, {"ours": {"right": False, "seconds": 2.5}})
    with pytest.raises(tune.WrongResult, match="wrong with 'bulk=0': argmax"):
        tune.measure(CASES, {"bulk": 0}, 0.1)


def test_a_constant_that_does_not_exist(capsys):
    with pytest.raises(SystemExit):
        tune.main(["stage"])
    assert "no constants of the plan: stage" in capsys.readouterr().err
