"""Fails where a wheel is not what an index takes: too large, for a newer glibc than its name says,
or with a library that is not stripped or has no SONAME; or a source distribution that does not have
the files that git has."""

import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

# The aim is 10 MB; the CUDA wheel has each kernel five times, for four architectures and as PTX.
MOST_BYTES = {"cpu": 1_000_000, "cuda": 21_000_000}
TORCHS = ("libtorch", "libc10")
# What manylinux_2_28 allows, as auditwheel's policy has it.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}


def run(*command: object) -> str:
    return subprocess.run(
        list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def differing_files(sdist: Path) -> list[str]:
    """Between a source distribution and git, but for what setuptools writes."""
    with tarfile.open(sdist) as archive:
        held = {member.name.partition("/")[2] for member in archive if not member.isdir()}
    tracked = set(run("git", "ls-files").splitlines())
    lacking = [f"lacks {name}" for name in sorted(tracked - held) if Path(name).exists()]
    own = re.compile(r"PKG-INFO|setup\.cfg|[^/]+\.egg-info/.*")
    strange = [f"has {name}" for name in sorted(held - tracked) if not own.fullmatch(name)]
    return lacking + strange


def audit(wheel: Path) -> list[str]:
    """What auditwheel sees: newer symbols than the name promises, or libraries that torch lacks.
    (Its own verdict is a plain linux wheel, as of every extension of torch, whose libraries are in
    another wheel.)"""
    told = json.loads(run(Path(sys.executable).with_name("auditwheel"), "show", "--json", wheel))
    print(f"{wheel.name}: {told['sym_tag']}, beside {', '.join(told['external_libs'])}")
    tag = re.compile(r"manylinux_(\d+)_(\d+)_")
    named, needed = tag.search(wheel.name), tag.match(told["sym_tag"])
    if not named:
        return ["its name promises no glibc"]
    found = []
    if not needed or tuple(map(int, needed.groups())) > tuple(map(int, named.groups())):
        found.append(f"its symbols are those of {told['sym_tag']}")
    strange = [name for name in told["external_libs"] if not name.startswith(TORCHS)]
    return found + [f"needs {name}, which torch does not bring" for name in strange]


def faults(wheel: Path) -> list[str]:
    found = []
    kind = "cuda" if "+cu" in wheel.name else "cpu"
    if wheel.stat().st_size > MOST_BYTES[kind]:
        found.append(f"{wheel.stat().st_size} bytes; at most {MOST_BYTES[kind]} are allowed")
    found += audit(wheel)
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        libraries = sorted(Path(folder).rglob("*.so"))
        if not libraries:
            found.append("has no library")
        for library in libraries:
            if f"Library soname: [{library.name}]" not in run("readelf", "-d", library):
                found.append(f"{library.name} has no SONAME")
            for name, version in re.findall(r"\b(\w+)_(\d[\d.]*)\b", run("readelf", "-V", library)):
                if tuple(map(int, version.split("."))) > NEWEST.get(name, (0,)):
                    found.append(f"{library.name} needs {name}_{version}")
            if ".symtab" in run("readelf", "-SW", library):
                found.append(f"{library.name} is not stripped")
    return found


def main() -> int:
    failed = {
        name: (faults if name.endswith(".whl") else differing_files)(Path(name))
        for name in sys.argv[1:]
    }
    print(json.dumps(failed, indent=2))
    return int(any(failed.values()) or not failed)


if __name__ == "__main__":
    sys.exit(main())
