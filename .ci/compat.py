"""Runs the tests of one wheel under several versions of torch; what `make compat` calls.

Each version has a virtual environment of its own in build/compat, with the wheel installed, and
the tests run in a folder that has them but not the package. At the end it also prints which private
names each torch lacks (tests/test_torch_private.py). The exit status is 1 if a test fails,
or the package does not even import, which does not keep the other versions from being tried.
"""

import argparse
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build/compat"
SKIPPED = ("customops*", "build", "dist", "setup.py", ".venv", ".git", "*_cache", "__pycache__")
NOT_COPIED = shutil.ignore_patterns(*SKIPPED)
LINE = "{:20}{:9}{:>8}{:>8}{:>9}{:>9}".format
LACKS = (
    "from customops import _torch_private as private; "
    "print(*map(': '.join, private.missing().items()), sep='\\n')"
)
VERSIONS = "import torch, platform; print(torch.__version__, platform.python_version())"


def copy_suite() -> Path:
    """A copy of the checkout without the package, which must be found where it is installed."""
    suite = FOLDER / "suite"
    shutil.rmtree(suite, ignore_errors=True)
    shutil.copytree(ROOT, suite, ignore=NOT_COPIED)
    return suite


def install(torch: str, wheel: Path) -> Path:
    """The Python of an environment with this torch and the wheel."""
    environment = FOLDER / f"torch-{torch}"
    python = environment / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    # Wheels of torch are gigabytes: pip is not to keep them a second time.
    pip = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    newest = ["--upgrade", "torch"] if torch == "newest" else [f"torch=={torch}"]
    subprocess.run([*pip, *newest, "-r", ROOT / "requirements/tools.txt"], check=True)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", wheel], check=True)
    return python


def output(python: Path, code: str, folder: Path) -> str:
    """What the code prints. (Its traceback goes where ours would.)"""
    run = subprocess.run([python, "-c", code], cwd=folder, check=True, stdout=subprocess.PIPE)
    return run.stdout.decode().strip()


def run_suite(
    torch: str, wheel: Path, suite: Path, options: list[str]
) -> tuple[str, int, list[str]]:
    """A line of the table, the status of pytest, and what this torch lacks."""
    python = install(torch, wheel)
    package = Path(output(python, "import customops; print(customops.__file__)", suite))
    assert package.is_relative_to(FOLDER / f"torch-{torch}"), package
    report = FOLDER / f"torch-{torch}.xml"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", f"--junitxml={report}", *options, "tests"]
    status = subprocess.run(command, cwd=suite).returncode
    line = describe(report, output(python, VERSIONS, suite).split(), status)
    return line, status, output(python, LACKS, suite).splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pytest", default="-n auto", help="arguments of pytest")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("torch", nargs="+", help="versions, as in 2.11.0, or `newest`")
    options = parser.parse_args()

    suite = copy_suite()
    lacking = []
    lines, failed = [LINE("torch", "python", "passed", "failed", "skipped", "minutes")], False
    for torch in options.torch:
        try:
            line, status, lacks = run_suite(
                torch, options.wheel, suite, shlex.split(options.pytest)
            )
        except subprocess.CalledProcessError as error:  # which has said why
            line, status, lacks = LINE(torch, *"-----") + f"  {error}", error.returncode, []
        lines.append(line)
        failed |= status != 0
        lacking += [f"torch {torch} lacks {name}" for name in lacks]
    print("", options.wheel.name, *lines, *lacking, sep="\n")
    return int(failed)


def describe(report: Path, versions: list[str], status: int) -> str:
    if not report.exists():
        return LINE(*versions, *["-"] * 4) + f"  pytest ended with status {status}"
    run = ElementTree.parse(report).find("testsuite")
    total, failures, errors, skipped = (
        int(run.get(key)) for key in ("tests", "failures", "errors", "skipped")
    )
    bad = failures + errors
    return LINE(
        *versions, total - bad - skipped, bad, skipped, f"{float(run.get('time')) / 60:.0f}"
    )


if __name__ == "__main__":
    sys.exit(main())
