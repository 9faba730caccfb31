"""Importing: once, twice, beside another copy of the library, in threads and subinterpreters."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import python_after_torch

import customops
from customops._register import overloads

PACKAGE = Path(customops.__file__).parent
ROOT = Path(__file__).parent.parent
LIBRARY = customops.libraries.cpu.path

WORKS = "assert customops.argmin(torch.tensor([2.0, 1.0])).item() == 1"
FORGET = "[sys.modules.pop(n) for n in list(sys.modules) if n.partition('.')[0] == 'customops']"
REFUSED = """
try:
    import customops
except ImportError as error:
    print(error)
"""


@pytest.mark.skipif(shutil.which("nm") is None, reason="there is no nm")
def test_the_libraries_need_no_python():
    """One build is for every version of it."""
    for library in LIBRARY.parent.glob("*.so"):
        command = ["nm", "-D", "--undefined-only", library]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        symbols = [line.split()[-1] for line in text.splitlines()]
        assert "aoti_torch_empty_strided" in symbols  # they are listed
        assert not [name for name in symbols if re.match("_?Py[A-Z_]", name)]


def run(*lines):
    """What a fresh Python prints."""
    done = python_after_torch("-c", "\n".join(("import sys, torch", *lines)))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_copy_of_the_library(tmp_path):
    copy = shutil.copy(LIBRARY, tmp_path)
    text = run(f"torch.ops.load_library({str(copy)!r})", REFUSED)
    assert str(copy) in text and str(LIBRARY) in text and "another library" in text


def test_a_library_of_other_sources(monkeypatch):
    """Whose operators are others, as after a `git pull` without a build."""
    known = {*overloads.REDUCTIONS, *overloads.CONVOLUTIONS, *overloads.INTERNAL}
    sources = (ROOT / "csrc" / "library.cpp").read_text()
    assert known == set(re.findall(r'm\.def\(\s*"(\w+)', sources))
    monkeypatch.setattr(overloads, "CONVOLUTIONS", ("argmedian", "scale_min"))
    with pytest.raises(ImportError, match=f"{LIBRARY} is .* lacks argmedian: build it again"):
        overloads.check()


def test_the_same_library_loaded_by_hand():
    run(f"torch.ops.load_library({str(LIBRARY)!r})", "import customops", WORKS)


@pytest.mark.parametrize("name", ["libreduceops.so", "renamed.so"])
def test_another_copy_afterwards(name, tmp_path):
    """It registers nothing: torch would crash."""
    copy = shutil.copy(LIBRARY, tmp_path / name)
    run("import customops", f"torch.ops.load_library({str(copy)!r})", WORKS)


def test_another_folder_of_the_package(tmp_path):
    folder = tmp_path / "customops"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = run(
        "import customops",
        "first = customops",
        FORGET,
        f"sys.path.insert(0, {str(tmp_path)!r})",
        REFUSED,
        "customops = first",
        WORKS,
    )
    assert f"imported before in this process, from {PACKAGE}" in text


def test_the_same_folder_twice():
    text = run("import customops", "first = customops", FORGET, REFUSED, "customops = first", WORKS)
    assert f"imported before in this process, from {PACKAGE}" in text


def test_several_threads_import_at_once():
    run(
        "import threading",
        "threads = [threading.Thread(target=exec, args=('import customops',)) for _ in range(8)]",
        "[thread.start() for thread in threads] and [thread.join() for thread in threads]",
        "import customops",
        WORKS,
    )


@pytest.mark.parametrize(
    "runtime, driver, torch_cuda, parts",
    [
        (13000, 13010, "13.0", ()),
        (13020, 13000, "13.0", ()),  # drivers take every minor version of their major one
        (13000, 0, "13.0", ()),  # no GPU
        (13000, 12080, "12.8", ("built with CUDA 13.0", "for CUDA 12.8", "newer driver")),
        (13000, 13010, "12.8", ("built with CUDA 13.0", "with CUDA 12.8", "12.8 or 12.9")),
        (12090, 13010, "13.0", ("built with CUDA 12.9", "with CUDA 13.0", "nvcc of CUDA 13")),
    ],
)
def test_another_cuda(runtime, driver, torch_cuda, parts):
    text = customops.libraries.why_doubtful(runtime, driver, torch_cuda)
    assert bool(text) == bool(parts) and all(part in text for part in parts), text


def test_the_doubt_is_a_warning(monkeypatch):
    libraries = customops.libraries
    for name, value in {"loaded": True, "load": lambda: None, "ask": lambda _: "1000,0"}.items():
        monkeypatch.setattr(libraries.cuda, name, value, raising=False)
    monkeypatch.setattr(libraries.cuda, "doubt", "")
    monkeypatch.setattr(libraries.cuda, "path", LIBRARY)
    monkeypatch.setattr(libraries.torch.version, "cuda", "13.0")
    with pytest.warns(UserWarning, match="customops: the CUDA library is built with CUDA 1.0"):
        libraries._load_cuda()
    assert "CUDA 13.0" in libraries.cuda.doubt


def test_a_folder_of_libraries_without_that_of_cuda(monkeypatch, tmp_path):
    libraries = customops.libraries
    monkeypatch.setenv("REDUCEOPS_LIBRARY_DIR", str(tmp_path))
    monkeypatch.setattr(libraries, "_FOLDER", tmp_path)
    monkeypatch.setattr(libraries, "cuda", libraries.Library(tmp_path / "libreduceops_cuda.so"))
    monkeypatch.setattr(libraries.torch.version, "cuda", "13.0")
    libraries._load_cuda()
    reason = f"REDUCEOPS_LIBRARY_DIR is '{tmp_path}', which has no libreduceops_cuda.so"
    assert libraries.cuda.reason == reason


def test_a_subinterpreter():
    """torch would hang in it."""
    text = run(
        "import customops, importlib.util",
        "known = importlib.util.find_spec('_interpreters')",
        "name = '_interpreters' if known else '_xxsubinterpreters'",
        "interpreters = importlib.import_module(name)",
        f"code = {REFUSED!r}",
        "interpreters.run_string(interpreters.create(), code)",
        WORKS,
    )
    assert "subinterpreter" in text


def test_it_imports_nothing_large():
    """That torch has not imported: sympy alone takes as long as half of torch.

    Nor does enable()."""
    text = run(
        "before = set(sys.modules)",
        "import contextlib, customops",
        "torch.Tensor.names = None",  # as before torch 2.13, whose named dims it looks for
        "with contextlib.suppress(RuntimeError):",
        "    customops.enable()",
        "print(*(set(sys.modules) - before))",
    )
    large = ("sympy", "mpmath", "torch._inductor", "torch._functorch", "torch._dynamo", "torch.fx")
    assert not [name for name in text.split() if name.startswith(large)]
    assert "customops.ops" in text.split()


def test_a_saved_program_exchanges_in_a_process_that_has_only_imported_this():
    text = run(
        "import customops",
        "op = 'reduceops::_one_shot_of_group'",
        "key = 'CompositeExplicitAutograd'",
        "print(torch._C._dispatch_has_kernel_for_dispatch_key(op, key))",
        "print('customops.distributed.exchange' in sys.modules)",
    )
    assert text.split() == ["True", "False"]
