"""The environment variables that the CPU library and the build read, and what they say of other
values."""

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import python, python_after_torch

import customops
from customops import libraries
from customops.environment import AT_RUN_TIME, OTHERS

PACKAGE = Path(customops.__file__).parent
ROOT = Path(__file__).parent.parent
CALL = "import torch; x = torch.rand(3 << 20); print(torch.ops.reduceops.argmax(x, 0).item())"
TWICE = """
import contextlib
with contextlib.suppress(ImportError):
    import customops
import customops
"""
WITHOUT_PYTHON = f"import torch; torch.ops.load_library({str(libraries.cpu.path)!r}); {CALL}"


def run(code, **variables):
    return python_after_torch("-c", code, cwd=ROOT, CUDA_VISIBLE_DEVICES="", **variables)


TAKEN = {"REDUCEOPS_CPU_ISA": "baseline", "REDUCEOPS_HUGE_PAGES": "0 or 1"}


@pytest.mark.parametrize("names", [*([name] for name in TAKEN), list(TAKEN)], ids=" ".join)
def test_values_that_are_not_taken(names):
    """ImportError in Python, the second time too; without it, an error at the first call."""
    for code, error in ((TWICE, "ImportError"), (WITHOUT_PYTHON, "RuntimeError")):
        done = run(code, **dict.fromkeys(names, "mmx"))
        last = done.stderr.strip().splitlines()[-1:]
        assert done.returncode == 1 and last and last[0].startswith(error), done.stderr
        for name in names:
            assert f'{name} is "mmx"; ' in last[0] and TAKEN[name] in last[0], last


@pytest.mark.parametrize(
    "name, says",
    [
        ("REDUCEOPS_FOO", "there is no variable REDUCEOPS_FOO; there are REDUCEOPS_CPU_ISA, "),
    ],
)
def test_names_that_are_not_known(name, says):
    done = run("import customops", **{name: "1"})
    last = done.stderr.strip().splitlines()[-1:]
    assert done.returncode == 1 and last and last[0].startswith("ImportError: customops: "), last
    assert says in last[0]
    assert f"not loaded    customops: {says}" in report(**{name: "1"}).stdout
    assert run("import customops", **{name: ""}).returncode == 0  # as one that is not set


def test_a_folder_of_libraries_is_that_of_the_import(tmp_path):
    """Though the process is elsewhere when they are asked."""
    folder = os.path.relpath(libraries.cpu.path.parent, ROOT)
    code = f"import os, customops; os.chdir({str(tmp_path)!r}); customops.enable()"
    done = run(code, REDUCEOPS_LIBRARY_DIR=folder)
    assert done.returncode == 0, done.stderr


def test_variables_of_a_service():
    """Of Kubernetes, which is called `reduceops`, or `reduceops-web`; of a link of Docker's."""
    address = "REDUCEOPS_PORT_80_TCP"
    of_one = "REDUCEOPS_SERVICE_HOST", "REDUCEOPS_SERVICE_PORT", "REDUCEOPS_SERVICE_PORT_HTTP_2"
    others = "REDUCEOPS_WEB_SERVICE_HOST", "REDUCEOPS_WEB_PORT_53_UDP_ADDR"
    ends = "START", "END", "PORT_START", "PORT_END"
    parts = (f"{address}_{part}" for part in ("PROTO", "PORT", "ADDR", *ends))
    of_docker = "REDUCEOPS_NAME", "REDUCEOPS_ENV_PATH"
    names = ("REDUCEOPS_PORT", address, *parts, *of_one, *others, *of_docker)
    done = run("import customops", **dict.fromkeys(names, "1"))
    assert done.returncode == 0, done.stderr
    for misspelt in ("REDUCEOPS_PORT_TCP", "REDUCEOPS_NAMES", "REDUCEOPS_ENV"):
        assert run("import customops", **{misspelt: "1"}).returncode == 1


def test_the_names_that_are_known():
    """Are those that the docs name, and setting one of the build or the tests is no error."""
    pages = [(ROOT / "docs" / page).read_text() for page in ("install.md", "testing.md")]
    of_docs = {name for page in pages for name in re.findall(r"`(REDUCEOPS_[A-Z_]+)[=`]", page)}
    assert of_docs == {*AT_RUN_TIME, *OTHERS}
    done = run("import customops", **dict.fromkeys(OTHERS, "1"))
    assert done.returncode == 0, done.stderr


def report(**variables):
    return python_after_torch("-m", "customops", CUDA_VISIBLE_DEVICES="", **variables)


@pytest.mark.parametrize("broken", ["absent", "no library"])
def test_the_report_says_why_nothing_is_loaded(broken, tmp_path):
    if broken == "no library":
        (tmp_path / "libreduceops.so").write_text("")
    done = report(REDUCEOPS_LIBRARY_DIR=str(tmp_path))
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert done.returncode == 1 and done.stderr == "", done.stderr
    assert {"customops", "torch", "python", "platform"} <= set(lines)
    assert str(tmp_path) in lines["not"]


def test_the_report_says_that_a_variable_of_tests_has_another_value():
    done = report(REDUCEOPS_WITHOUT="torch.nothing")
    assert done.returncode == 1 and done.stderr == "", done.stderr
    assert "not loaded    REDUCEOPS_WITHOUT names torch.nothing; it takes " in done.stdout


@pytest.mark.parametrize("broken", [{}, {"REDUCEOPS_LIBRARY_DIR": "/nothing"}])
def test_a_report_that_cannot_be_printed(broken):
    """As where a pipe has ended, or a disk is full: a line, no traceback."""
    command = [sys.executable, "-m", "customops"]
    with open("/dev/full", "w") as full:
        environment = {**os.environ, **broken}
        done = subprocess.run(
            command, env=environment, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "customops cannot print: No space left on device\n"


def test_the_report_without_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('there is no torch')")
    done = report(PYTHONPATH=f"{tmp_path}:{PACKAGE.parent}")
    assert done.returncode == 1 and done.stderr == "", done.stderr
    assert "there is no torch" in done.stdout


@pytest.mark.parametrize(
    "change, says, error",
    [
        ("del torch.library.register_fake", "'register_fake'", "AttributeError in .*_register"),
        ("torch.library.register_fake = {}.__getitem__", "'reduceops::", "KeyError in .*_register"),
        ("del torch.compiler.is_dynamo_compiling", "dynamo_compiling'", "AttributeError in .*ops"),
    ],
)
def test_the_report_with_a_torch_that_has_changed(change, says, error):
    """Whichever of our modules finds out: the report says which, and how."""
    done = run(
        f"import sys, torch; {change}; sys.argv = ['-m']; "
        "sys.orig_argv = ['python', '-m', 'customops']; import customops"
    )
    assert done.returncode == 1 and done.stderr == "", done.stderr
    assert re.search(f"^not loaded .*{says}", done.stdout, re.M), done.stdout
    assert re.search(rf"^error +{error}.*\.py:\d+$", done.stdout, re.M), done.stdout


def test_no_report_where_its_module_is_imported():
    done = run("import customops.__main__")
    assert done.returncode == 0 and done.stdout == "", done.stderr


def test_the_report_names_the_wheel_that_is_installed(tmp_path):
    version = customops.__version__
    (tmp_path / "customops-1.dist-info").mkdir()
    metadata = f"Name: customops\nVersion: {version}+cu130\n"
    (tmp_path / "customops-1.dist-info/METADATA").write_text(metadata)
    # Python finds the source first, or beside the wheel's metadata.
    for path, said in (
        (f"{PACKAGE.parent}:{tmp_path}", version),
        (str(tmp_path), f"{version}+cu130"),
    ):
        if path == str(tmp_path):
            (tmp_path / "customops").symlink_to(PACKAGE)
        done = python("-m", "customops", cwd=tmp_path, PYTHONPATH=path, PYTHONSAFEPATH="1")
        assert done.stdout.splitlines()[0].split() == ["customops", said], done.stderr


def test_a_warning_is_below_its_library_in_the_report():
    done = run(
        "import runpy, sys, customops; customops.libraries.cuda.doubt = 'why'; sys.argv = ['']; "
        "runpy.run_module('customops', run_name='__main__')"
    )
    assert re.search(r"^cuda library .*\ncuda warning +why$", done.stdout, re.M), done.stderr


def test_the_report_has_help():
    done = python_after_torch("-m", "customops", "--help")
    assert done.returncode == 0 and "bug report" in done.stdout, done.stderr


def test_an_import_that_fails_is_an_error_elsewhere(tmp_path):
    done = run("import customops", REDUCEOPS_LIBRARY_DIR=str(tmp_path))
    assert done.returncode == 1 and done.stdout == "" and "ImportError" in done.stderr


HUGE_PAGES = """
import torch, customops
x = torch.rand(3 << 20, 2)
result = torch.ops.reduceops.argmax(x, 1)
assert torch.equal(result, torch.argmax(x, 1))
middle, here = result.data_ptr() + (12 << 20), False
for line in open("/proc/self/smaps"):
    words = line.split()
    if "-" in words[0] and ":" not in words[0]:
        begin, end = (int(word, 16) for word in words[0].split("-"))
        here = begin <= middle < end
    elif here and words[0] == "VmFlags:":
        print("hg" in words)
"""


@pytest.mark.skipif(
    not os.path.exists("/sys/kernel/mm/transparent_hugepage"), reason="there are no huge pages"
)
@pytest.mark.parametrize("value, asked", [("0", False), ("1", True), ("", False)])
def test_huge_pages_are_asked_for(value, asked):
    """The kernel's flag of the memory under an output of 24 MiB. No value is the default."""
    variables = {"REDUCEOPS_HUGE_PAGES": value, "REDUCEOPS_CPU_ISA": ""}
    done = run(HUGE_PAGES, THP_MEM_ALLOC_ENABLE="0", **variables)
    assert done.stdout.strip() == str(asked), done.stderr


# As /proc/cpuinfo calls what -march=x86-64-v3 and -v4 let a compiler use.
V3 = set("ssse3 cx16 lahf_lm popcnt sse4_1 sse4_2 avx avx2 bmi1 bmi2 f16c fma abm movbe".split())
V4 = V3 | set("avx512f avx512bw avx512cd avx512dq avx512vl".split())


@pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() != "x86_64", reason="x86-64 Linux only"
)
def test_kernels_run_where_the_cpu_has_all_they_may_use():
    flags = set(re.search(r"^flags\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.M)[1].split())
    runnable = [isa for isa, needs in (("avx512", V4), ("avx2", V3)) if needs <= flags]
    assert libraries.cpu.ask("reduceops_cpu_isas").split(",") == [*runnable, "baseline"]


needs_setup = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="this is no checkout")


@needs_setup
@pytest.mark.parametrize(
    "mode, release, said",
    [
        ("1", "12.4", "the CUDA library needs nvcc >= 12.8, and {} is 12.4: install"),
        ("auto", "12.4", "warning: building the CUDA library needs nvcc >= 12.8, and {} is 12.4:"),
        ("auto", "12.4", "cpu"),
        ("1", "12.8", "cu128"),
        ("auto", "13.0", "cu130"),
    ],
)
def test_the_build_names_the_oldest_nvcc(mode, release, said, tmp_path):
    """By what a wheel is named after, which is not built."""
    nvcc = tmp_path / "bin/nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(f'#!/bin/sh\necho "Cuda compilation tools, release {release}, V{release}.61"\n')
    nvcc.chmod(0o755)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text("cuda = '13.0'")
    (tmp_path / "torch/__init__.py").touch()
    code = "import setup; print(setup.variant()); setup.find_nvcc()"
    variables = {"CUDA_HOME": str(tmp_path), "REDUCEOPS_CUDA": mode, "PYTHONPATH": str(tmp_path)}
    done = run(code, **variables)
    assert said.format(nvcc) in done.stdout + done.stderr
    assert done.stderr.count("warning") == (mode == "auto" and release == "12.4")


OF_A_BASE = """
import importlib.util, site, sys, sysconfig, setup
importlib.util.find_spec = lambda name: None  # an isolated build
sys.prefix, base = sys.argv[1:]
sysconfig.get_path = lambda name: f"{sys.prefix}/lib"
site.getsitepackages = lambda prefixes: [f"{prefix}/lib" for prefix in prefixes]
sys.base_prefix, site.getusersitepackages = base, lambda: f"{base}/user"
print(setup.torch_folder())
"""


@needs_setup
@pytest.mark.parametrize("seen", ["true", "false"])
def test_the_build_finds_torch_where_its_environment_sees_it(seen, tmp_path):
    """Of `python -m venv --system-site-packages`: beside the base's Python."""
    torch = tmp_path / "base/lib/torch"
    torch.mkdir(parents=True)
    (torch / "version.py").touch()
    (tmp_path / "pyvenv.cfg").write_text(f"include-system-site-packages = {seen}\n")
    done = python("-c", OF_A_BASE, tmp_path, tmp_path / "base", cwd=ROOT)
    assert done.stdout.strip() == (str(torch) if seen == "true" else "None"), done.stderr


@needs_setup
@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_an_environment_that_fails_is_not_taken_for_done(tmp_path):
    """As `python3 -m venv` does where there is no ensurepip, and leaves a Python without pip."""
    fails = tmp_path / "python"
    fails.write_text("#!/bin/sh\nmkdir -p .venv/bin; touch .venv/bin/python; exit 1\n")
    fails.chmod(0o755)
    command = ["make", "-C", tmp_path, "-f", ROOT / "Makefile", ".venv/bin/python"]
    for _ in range(2):
        done = subprocess.run([*command, f"PYTHON={fails}"], capture_output=True)
        assert done.returncode == 2, done.stderr


@needs_setup
def test_the_build_names_a_variable_that_it_does_not_know():
    code = "import sys, setup; sys.argv[1:] = ['build_ext']; setup.main()"
    done = run(code, REDUCEOPS_CUDAA="0")
    said = "error: customops: there is no variable REDUCEOPS_CUDAA; there are REDUCEOPS_CUDA, "
    assert done.returncode and said in done.stderr


@needs_setup
def test_the_build_needs_linux():
    done = run(
        "import sys, setup; sys.platform = 'win32'; sys.argv[1:] = ['build_ext']; setup.main()"
    )
    assert done.returncode and "error: customops needs Linux" in done.stderr


@needs_setup
@pytest.mark.parametrize(
    "lacks, said",
    [
        ("os.environ['CXX'] = 'no-compiler'", "a C++20 compiler, and no-compiler is none: install"),
        ("sys.modules['ninja'] = None", "ninja: pip install ninja"),
        ("sys.path[:] = [folder]; os.mkdir(folder + '/ninja')", "ninja: pip install ninja"),
        ("setup.torch_folder = lambda: None", "torch >= 2.10: pip install torch"),
    ],
    ids=["compiler", "ninja", "ninja but a folder", "torch"],
)
def test_what_a_wheel_lacks_is_said_in_one_line(lacks, said, tmp_path):
    """pip shows all that a build which fails has printed."""
    lacks = f"folder = {str(tmp_path)!r}; {lacks}"
    done = run(f"import os, sys, setup; {lacks}; sys.argv[1:] = ['bdist_wheel']; setup.main()")
    (line,) = (done.stdout + done.stderr).splitlines()
    assert done.returncode and line.startswith(f"error: building customops needs {said}")


STALE = """
import sys, setup
setup.check_tools = lambda: None
setup.BuildLibraries.run = lambda self: None
sys.modules["zopfli"] = None  # which takes its time
sys.argv[1:] = ["--quiet", "bdist_wheel", "--dist-dir", "dist"]
setup.main()
"""


@needs_setup
def test_a_wheel_has_no_module_of_an_earlier_build(tmp_path):
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "THIRD_PARTY_NOTICES.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(PACKAGE, tmp_path / "customops", ignore=shutil.ignore_patterns("lib"))
    stale = tmp_path / "customops/stale.py"
    for exists in (True, False):
        stale.touch() if exists else stale.unlink()
        done = python("-c", STALE, cwd=tmp_path, REDUCEOPS_CUDA="0")
        assert done.returncode == 0, done.stderr
        (wheel,) = (tmp_path / "dist").glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            assert ("customops/stale.py" in archive.namelist()) == exists
            assert "customops/ops.py" in archive.namelist()
