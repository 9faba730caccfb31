"""No byte outside a CPU tensor is read or written: around it are pages that may not be touched."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import COMPILER, needs_compiler

from customops import libraries

FOLDER = Path(__file__).parent / "guard_pages"
EXAMPLES = os.environ.get("REDUCEOPS_TEST_EXAMPLES", "1500")

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(platform.system() != "Linux", reason="maps memory as Linux does"),
]


@pytest.fixture(scope="module")
def allocator(tmp_path_factory):
    target, home = tmp_path_factory.mktemp("guard") / "allocator.so", Path(torch.__file__).parent
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", abi, "-isystem", home / "include"]
    libs = [f"-L{home / 'lib'}", "-lc10"]
    command = [*COMPILER, *flags, FOLDER / "allocator.cpp", "-o", target, *libs]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    return target


@pytest.mark.parametrize("isa", libraries.cpu.ask("reduceops_cpu_isas").split(","))
def test_nothing_outside_is_touched(isa, allocator):
    environment = {**os.environ, "REDUCEOPS_CPU_ISA": isa, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-X", "faulthandler", FOLDER / "main.py", allocator, "1", EXAMPLES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-3000:]
    assert done.stdout.count("\n") == int(EXAMPLES)
