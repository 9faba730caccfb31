"""Finds and loads the two shared libraries, and remembers why one is not loaded."""

import ctypes
import functools
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import environment
from .version import MIN_TORCH

# As the loader names it, whatever the folder of the process is later.
_FOLDER = Path(os.environ.get("REDUCEOPS_LIBRARY_DIR") or Path(__file__).parent / "lib").resolve()


@dataclass
class Library:
    """A shared library. `reason` says why it is not loaded, `doubt` why it may fail though it is;
    both are empty if there is no such thing."""

    path: Path
    loaded: bool = False
    reason: str = "not loaded yet"
    doubt: str = ""

    def load(self) -> None:
        try:
            torch.ops.load_library(self.path)
        except OSError as error:
            self.reason = str(error.__cause__ or error)  # the cause is the loader's own message
        else:
            self.loaded, self.reason = True, ""

    def ask(self, function: str, *numbers: int | ctypes.c_int64) -> str | None:
        """Calls an exported `const char* function(int...)`. None if that returns null, or if the
        library, built from another version, does not have it."""
        try:
            answer = self.function(function, ctypes.c_char_p)(*numbers)
        except AttributeError:
            return None
        return None if answer is None else answer.decode()

    def function(self, name: str, result: Any = ctypes.c_int, *arguments: Any) -> Any:
        """An exported C function, with the types of ctypes; AttributeError where there is none."""
        found = getattr(ctypes.CDLL(str(self.path)), name)
        found.restype, found.argtypes = result, arguments or None
        return found


cpu = Library(_FOLDER / "libreduceops.so")
cuda = Library(_FOLDER / "libreduceops_cuda.so")


def why_not_on(device: torch.device) -> str | None:
    """Why the kernels do not run on this GPU, or None. (Asking initialises CUDA.)"""
    if not cuda.loaded:
        return f"the CUDA library is not loaded: {cuda.reason}"
    index = torch.cuda.current_device() if device.index is None else device.index
    return cuda.ask("reduceops_cuda_problem", index)


@functools.cache  # for importlib.reload; what failed fails again
def load() -> None:
    """Loads what this torch can use; ImportError where that leaves no operators."""
    _check_environment()
    _check_torch()
    _check_first()
    _load_cpu()
    _load_cuda()
    vars(torch.ops.reduceops)["package"] = str(Path(__file__).parent)


def _check_environment() -> None:
    environment.check()
    if os.environ.get("REDUCEOPS_LIBRARY_DIR") and not cpu.path.exists():
        raise ImportError(
            f"REDUCEOPS_LIBRARY_DIR is {str(_FOLDER)!r}; it takes a folder with {cpu.path.name}"
        )


def _check_torch() -> None:
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < MIN_TORCH:
        needed = "{}.{}".format(*MIN_TORCH)
        raise ImportError(
            f"customops needs torch >= {needed}, and torch {torch.__version__} is here"
        )


def _check_first() -> None:
    """A process has room for one package and one library: torch would crash at a second."""
    operators = torch.ops.reduceops
    if not hasattr(operators, "argmin"):
        return
    if hasattr(operators, "package"):
        raise ImportError(
            f"customops was imported before in this process, from {operators.package}, and its "
            "operators cannot be registered twice: use that module, or start another process"
        )
    if not _is_mapped(cpu.path):  # else somebody has called torch.ops.load_library with it
        others = sorted(path for path in torch.ops.loaded_libraries if "libreduceops" in path)
        raise ImportError(
            f"customops cannot load {cpu.path}: another library has registered the operators "
            f"reduceops::* in this process ({', '.join(others) or 'of unknown path'})"
        )


def _is_mapped(path: Path) -> bool:
    try:
        ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


def _load_cpu() -> None:
    if not cpu.path.exists():
        text = f"customops is not built: there is no {cpu.path}"
        if (Path(__file__).parent.parent / "setup.py").exists():
            text += (
                ". An installed customops is hidden by this folder, which is a checkout: start "
                "Python in another one, or build this one with `make build`, or with `pip install "
                "--no-build-isolation -e .` beside an installed torch"
            )
        raise ImportError(text)
    cpu.load()
    if not cpu.loaded:
        raise ImportError(f"customops cannot load {cpu.path}: {cpu.reason}")
    if error := cpu.ask("reduceops_cpu_error"):
        raise ImportError(f"customops: {error}")


def _load_cuda() -> None:
    if torch.version.cuda is None:
        cuda.reason = f"torch {torch.__version__} is built without CUDA"
    elif not cuda.path.exists() and os.environ.get("REDUCEOPS_LIBRARY_DIR"):
        cuda.reason = f"REDUCEOPS_LIBRARY_DIR is {str(_FOLDER)!r}, which has no {cuda.path.name}"
    elif not cuda.path.exists():
        cuda.reason = (
            "the CUDA library was not built: install a wheel with +cu in its version, or build "
            "with nvcc and REDUCEOPS_CUDA=1"
        )
    else:
        cuda.load()
    if cuda.loaded and (versions := cuda.ask("reduceops_cuda_versions")):
        runtime, driver = map(int, versions.split(","))
        cuda.doubt = why_doubtful(runtime, driver, torch.version.cuda or "")
        if cuda.doubt:
            warnings.warn(f"customops: {cuda.doubt}", stacklevel=2)


def why_doubtful(runtime: int, driver: int, torch_cuda: str) -> str:
    """Why the CUDA library may not work here, or "".

    Args:
        runtime: The CUDA that it is built with, as CUDA numbers them: 12080 is 12.8.
        driver: The newest CUDA that the driver is for, likewise; 0 if there is no driver.
        torch_cuda: The CUDA that torch is built with, as "12.8".
    """
    ours, drivers = (f"{number // 1000}.{number % 1000 // 10}" for number in (runtime, driver))
    if driver and driver // 1000 < runtime // 1000:
        return (
            f"the CUDA library is built with CUDA {ours}, for which the driver (for CUDA {drivers})"
            " is too old: install a newer driver, or build with an older CUDA"
        )
    major = torch_cuda.partition(".")[0]
    if major != str(runtime // 1000):
        takes = "12.8 or 12.9" if major == "12" else major  # nvcc before 12.8 cannot build it
        return (
            f"the CUDA library is built with CUDA {ours}, and torch {torch.__version__} with CUDA "
            f"{torch_cuda}: install a torch for CUDA {runtime // 1000}, or build from source with "
            f"nvcc of CUDA {takes}"
        )
    return ""
