"""The devices that tests run on, and the marker of tests that need a lot of memory."""

import os

# Before torch is imported: idle threads of one pytest-xdist worker leave the cores to the others.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest  # noqa: E402
import torch  # noqa: E402

NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=NO_CUDA)]


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "large: needs gigabytes of memory; sizes depend on the device"
    )


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """No test depends on what an earlier one compiled."""
    yield
    torch._dynamo.reset()
