"""A script for ld that puts the functions of one template side by side, where they compress best.

python csrc/link_order.py OBJECT... > SCRIPT
"""

import re
import subprocess
import sys


def symbols(objects: list[str], *options: str) -> list[list[str]]:
    """[address, size, kind, name] of each local function."""
    command = ["nm", "--print-size", *options, *objects]
    text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [line.split(maxsplit=3) for line in text.splitlines() if re.match(r"\w+ \w+ t ", line)]


def template(name: str) -> str:
    """A demangled name without what differs from one instance to the next."""
    name = name.replace("(anonymous namespace)", "")
    before = ""
    while name != before:
        before, name = name, re.sub(r"<[^<>]*>", "", name)
    return name.partition("(")[0].split()[-1]


def main(objects: list[str]) -> None:
    order = {}
    named = zip(symbols(objects), symbols(objects, "--demangle"), strict=True)
    for (_, size, _, name), (*_, text) in named:
        order.setdefault(name, (template(text), int(size, 16)))
    sections = (f"*(.text*.{name})" for name in sorted(order, key=order.__getitem__))
    print("SECTIONS { .text.kernels : {", *sections, "} }", sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
