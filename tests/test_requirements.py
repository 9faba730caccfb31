"""What the environment says must run is not skipped."""

import os

import conftest
import pytest
import torch

import customops
from customops import libraries


@conftest.NO_CUDA
def test_what_takes_a_device_runs_on_a_gpu():
    """Skipped for all such tests where there is none."""
    assert "cuda" in conftest.DEVICES
    assert libraries.why_not_on(torch.device("cuda")) is None


@pytest.mark.parametrize("what", conftest.NEEDS)
@pytest.mark.parametrize("value, ends", [("1", True), ("0", False), ("", False), (None, False)])
def test_what_is_required_is_not_skipped(what, value, ends, request, monkeypatch):
    monkeypatch.setitem(conftest.NEEDS, what, "there is none")
    for name in conftest.NEEDS:
        monkeypatch.delenv(f"REDUCEOPS_REQUIRE_{name}", raising=False)
    if value is not None:
        monkeypatch.setenv(f"REDUCEOPS_REQUIRE_{what}", value)
    if ends:
        with pytest.raises(
            pytest.UsageError, match=f"REDUCEOPS_REQUIRE_{what} is set, and there is none"
        ):
            conftest.pytest_configure(request.config)
    else:
        conftest.pytest_configure(request.config)


def test_a_fresh_python_finds_what_the_caller_finds(tmp_path, monkeypatch):
    (tmp_path / "mine.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code = "import mine, importlib.util as util; print(util.find_spec('customops').origin)"
    done = conftest.python("-c", code, cwd=os.sep)
    assert done.stdout.strip() == customops.__file__, done.stderr
