"""Fails where a wheel is not what an index takes: too large, for a newer glibc than its name says,
or with a library that is not stripped or has no SONAME."""

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MOST_BYTES = {"cpu": 2_000_000, "cuda": 10_000_000}


def run(*command: object) -> str:
    return subprocess.run(
        list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def faults(wheel: Path) -> list[str]:
    found = []
    kind = "cuda" if "+cu" in wheel.name else "cpu"
    kind = "cpu" if "+cpu" in wheel.name else kind
    if wheel.stat().st_size > MOST_BYTES[kind]:
        found.append(f"{wheel.stat().st_size} bytes; at most {MOST_BYTES[kind]} are allowed")
    named = re.search(r"manylinux_(\d+)_(\d+)_", wheel.name)
    auditwheel = Path(sys.executable).with_name("auditwheel")
    text = " ".join(run(auditwheel, "show", wheel).split())
    print(text)
    # (torch's own libraries make auditwheel call every extension of torch a plain linux wheel.)
    needed = re.search(r'constrains the platform tag to "manylinux_(\d+)_(\d+)_', text)
    if not named:
        found.append("its name promises no glibc")
    elif needed and tuple(map(int, needed.groups())) > tuple(map(int, named.groups())):
        found.append(f"needs manylinux_{'_'.join(needed.groups())}")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        libraries = sorted(Path(folder).rglob("*.so"))
        if not libraries:
            found.append("has no library")
        for library in libraries:
            if f"Library soname: [{library.name}]" not in run("readelf", "-d", library):
                found.append(f"{library.name} has no SONAME")
            if ".symtab" in run("readelf", "-SW", library):
                found.append(f"{library.name} is not stripped")
    return found


def main() -> int:
    failed = {wheel: faults(Path(wheel)) for wheel in sys.argv[1:]}
    print(json.dumps(failed, indent=2))
    return int(any(failed.values()) or not failed)


if __name__ == "__main__":
    sys.exit(main())
