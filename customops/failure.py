"""What `python -m customops` prints where the package cannot be imported: a bug report, too.

Python imports a package before its `__main__`, so an error of the import would come first.
"""

import os
import platform
import sys
import traceback
from pathlib import Path

from .version import __version__


def is_asked_for() -> bool:
    """Whether this is the import before `python -m customops`."""
    given = getattr(sys, "argv", [])  # which an embedded interpreter may lack
    module = sys.orig_argv[-len(given) :][:1]
    return given[:1] == ["-m"] and module in ([__package__], [f"-m{__package__}"])


def show(text: str) -> None:
    """Prints it, and says in a line why not."""
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more
        sys.exit(f"customops cannot print: {error.strerror}")


def version() -> str:
    """That of the wheel, which says what it is for, as 0.2.0+cpu does; else that of the source."""
    from importlib import metadata  # which imports much

    try:
        wheel = metadata.distribution("customops")
    except metadata.PackageNotFoundError:
        return __version__
    # A wheel that is installed elsewhere is not what Python has imported.
    return wheel.version if wheel.locate_file("customops") == Path(__file__).parent else __version__


def report(error: Exception) -> str:
    """The versions, and why nothing is loaded."""
    torch = sys.modules.get("torch")  # it may be what cannot be imported
    libraries = sys.modules.get(f"{__package__}.libraries")
    lines = versions(getattr(torch, "__version__", "cannot be imported"))
    if libraries:
        lines.append(("cpu library", str(libraries.cpu.path)))
    *_, frame = traceback.extract_tb(error.__traceback__)
    where = f"{type(error).__name__} in {frame.filename}:{frame.lineno}"
    return table([*lines, ("not loaded", str(error)), ("error", where)])


def versions(torch: str) -> list[tuple[str, str]]:
    """What a report begins with."""
    return [
        ("customops", version()),
        ("torch", torch),
        ("python", platform.python_version()),
        ("platform", platform.platform()),
    ]


def table(lines: list[tuple[str, str]]) -> str:
    return "\n".join(f"{label:<13} {value}" for label, value in lines)
