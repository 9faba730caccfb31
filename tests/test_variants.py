"""The CPU kernels exist once per instruction set; each that this CPU has passes the same tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from customops import libraries

IN_USE = libraries.cpu.ask("reduceops_cpu_isa")
OTHERS = [isa for isa in libraries.cpu.ask("reduceops_cpu_isas").split(",") if isa != IN_USE]

# The part of each file that runs with each instruction set.
PARTS = {
    # The others have the code of one of these types, of the same width. (How parts are put together
    # does not depend on vectors.)
    "test_eager.py": (
        "layouts and (float32 or uint8 or bfloat16) or "
        "split and float32 and not columns or "
        "extents and (float32 or int8 or float16 or uint16 or float64 or int64) or "
        "(winner or first_nan or zeros) and (float16 or float32 or float64 or int8) "
        "and not bfloat16 and not uint"
    ),
    # What is multiplied at the end is so outside the kernels; masks are below; the two float8 are
    # one kernel; how a sign or a late element is looked for is one code for all types.
    "test_cpu_walks.py": (
        "not multiplied_at_the_end and not under_a_mask and not e4m3 and "
        "(not softmax_max or around) and "
        "(not (decided_early or late_element or both_signs) or float16)"
    ),
    "test_masks.py": "random",
}

ROOT = Path(__file__).parent.parent
ASK = "import sys; sys.path.insert(0, 'tests'); import test_variants; print(test_variants.IN_USE)"


def run(isa, *command):
    environment = {**os.environ, "REDUCEOPS_CPU_ISA": isa, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_the_baseline_is_there():
    assert "baseline" in {IN_USE, *OTHERS}


@pytest.mark.parametrize("isa", OTHERS)
def test_the_environment_chooses(isa):
    done = run(isa, "-c", ASK)
    assert done.stdout.strip() == isa, done.stderr


@pytest.mark.parametrize("isa", OTHERS)
def test_variant(isa):
    parts = " or ".join(f"{file} and ({expression})" for file, expression in PARTS.items())
    options = ("-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider")
    # (To look for the largest is a number that elements are turned by, the same with all of them.)
    only = ("-k", f"not large and cpu and not argmax and not scale_max and ({parts})")
    done = run(isa, "-m", "pytest", *(f"tests/{file}" for file in PARTS), *options, *only)
    assert done.returncode == 0, done.stdout[-5000:]
