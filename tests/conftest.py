"""The devices that tests run on, what tests need of a machine, and the marker of large ones.

A test that needs a GPU or a compiler is skipped where there is none, unless the environment says
that there is one: with REDUCEOPS_REQUIRE_GPU=1 or REDUCEOPS_REQUIRE_COMPILER=1 pytest then ends
with an error.
"""

import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Before torch is imported: idle threads of one pytest-xdist worker leave the cores to the others.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Nor does Inductor compile and load a program in each process to know which vectors there are.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# What AOTInductor writes around its kernels is long, and runs once.
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")

import pytest  # noqa: E402
import torch  # noqa: E402

COMPILER = shlex.split(os.environ.get("CXX") or "c++")  # as setup.py has it

# What is missing, or None, by what the environment requires.
NEEDS = {
    "GPU": None if torch.cuda.is_available() else "there is no CUDA device",
    "COMPILER": None if shutil.which(COMPILER[0]) else "there is no C++ compiler",
}


def needs(what):
    return pytest.mark.skipif(NEEDS[what] is not None, reason=str(NEEDS[what]))


NO_CUDA = needs("GPU")
needs_compiler = needs("COMPILER")
# Thousands of tests take one of these. Where there is no GPU, test_requirements.py says so once.
DEVICES = ("cpu",) if NEEDS["GPU"] else ("cpu", "cuda")


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "large: needs gigabytes of memory; sizes depend on the device"
    )
    for what, missing in NEEDS.items():
        if missing and os.environ.get(f"REDUCEOPS_REQUIRE_{what}", "0") not in ("", "0"):
            raise pytest.UsageError(f"REDUCEOPS_REQUIRE_{what} is set, and {missing}")


def with_this_package(variables):
    """The environment of a process that finds the same package, with these in it."""
    import customops  # which conftest does not import before the tests

    packages = str(Path(customops.__file__).parent.parent)
    found = filter(None, (packages, os.environ.get("PYTHONPATH")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(found), **variables}


def python(*arguments, cwd=None, **variables):
    """What comes of a fresh Python that finds the same package, with these in its environment."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=with_this_package(variables),
        capture_output=True,
        text=True,
        timeout=300,
    )


# For each line of its input a fork, which does what the line says, and a line: how that ended.
FORKS = """
import json, os, runpy, signal, sys, torch
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()
signal.alarm(300)
(option, what, *arguments), cwd, variables, files = json.loads(line)
for number, name in enumerate((os.devnull, *files)):
    os.dup2(os.open(name, os.O_RDWR), number)
os.chdir(cwd)
os.environ.clear()
os.environ.update(variables)
sys.argv = [option, *arguments]
sys.orig_argv[1:] = [option, what, *arguments]
if option == "-m":
    runpy.run_module(what, run_name="__main__", alter_sys=True)
else:
    exec(what, {"__name__": "__main__"})
"""


@functools.cache
def forks():
    command, pipe = [sys.executable, "-c", FORKS], subprocess.PIPE
    environment = with_this_package({})
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)


def python_after_torch(*arguments, cwd=".", **variables):
    """What `python` gives with -c or -m, of a Python that has imported torch, and nothing else, in
    another environment: to import it takes seconds, so there is one from which all fork."""
    if "PYTHONPATH" in variables:  # perhaps of another torch
        return python(*arguments, cwd=cwd, **variables)
    arguments = [*map(str, arguments)]
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as errors:
        files = out.name, errors.name
        line = json.dumps((arguments, os.path.abspath(cwd), with_this_package(variables), files))
        print(line, file=forks().stdin, flush=True)
        code = int(forks().stdout.readline())
        return subprocess.CompletedProcess(arguments, code, out.read(), errors.read())


# Files, by the length of their tests.
LONGEST = ("test_cuda_on_cpu", "test_variants", "test_sharded", "test_guard_pages")


def pytest_collection_modifyitems(items):
    """The longest tests come first, lest one of several workers is left alone with them."""
    items.sort(key=lambda item: (*LONGEST, item.path.stem).index(item.path.stem))


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """No test depends on what an earlier one compiled."""
    yield
    if "torch._dynamo" in sys.modules:  # to import it takes seconds
        torch._dynamo.reset()


@pytest.fixture
def no_cached_graph(tmp_path, monkeypatch):
    """Inductor compiles every graph."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


@pytest.fixture
def number_of_threads():
    """What a test does to it ends with the test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
