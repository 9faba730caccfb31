"""Every walk of the GPU on the small inputs of the eager tests, whatever the plan would choose."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import NO_CUDA, python
from cuda_shapes import TUNINGS

ROOT = Path(__file__).parent.parent

PARTS = {
    "layouts": "layouts",
    "dims": "every_set_of_dims",
    "values": "extents or winner or first_nan or zeros or split or sorted",
}


def run(tuning, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider"]
        + list(arguments),
        env={**os.environ, "REDUCEOPS_CUDA_TUNING": tuning, "PYTEST_ADDOPTS": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


@NO_CUDA
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("tuning", TUNINGS)
def test_walk(tuning, part):
    done = run(
        TUNINGS[tuning], "tests/test_eager.py", "-k", f"cuda and not large and ({PARTS[part]})"
    )
    assert done.returncode == 0, done.stdout[-5000:]


@NO_CUDA
@pytest.mark.parametrize("tuning", ["gathered", "gathered by results", "gathered as if many"])
def test_gathers_under_a_mask_and_of_sums(tuning):
    tests = "groups_of_a_few or another_order or every_layout or extents_around"
    files = "tests/test_masks.py", "tests/test_softmax_max.py"
    done = run(TUNINGS[tuning], *files, "-k", f"cuda and ({tests})")
    assert done.returncode == 0, done.stdout[-5000:]


@NO_CUDA
def test_rows_under_a_mask_and_of_sums():
    """Those of 16 bits held by as few threads as those of large inputs."""
    files = "tests/test_masks.py", "tests/test_softmax_max.py"
    done = run(TUNINGS["held as if many"], *files, "-k", "cuda and (rows or layouts or random)")
    assert done.returncode == 0, done.stdout[-5000:]


@NO_CUDA
def test_reliability_before_hopper():
    """Its own walks take all of the shapes, clusters and bulk copies none."""
    done = run(TUNINGS["before Hopper"], "tests/test_cuda_reliability.py")
    assert done.returncode == 0, done.stdout[-5000:]


@NO_CUDA
@pytest.mark.parametrize(
    "tuning", ["stage=1", "stage_bytes", "stage_bytes=", "stage_bytes=1k", "stage_bytes=-1"]
)
def test_a_tuning_that_does_not_exist(tuning):
    ask = "import torch, customops; customops.argmin(torch.ones(2, device='cuda'))"
    done = python("-c", ask, REDUCEOPS_CUDA_TUNING=tuning)
    assert f"no constant of the plan is set by '{tuning}'; it takes name=value" in done.stderr
