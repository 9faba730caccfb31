"""Fails where an installed package does not do what a new user tries first: its import, the lines
of README.md, which is named by the argument, and `python -m customops`."""

import platform
import re
import runpy
import sys
from pathlib import Path

import torch

import customops


def main() -> None:
    assert Path(customops.__file__).is_relative_to(sys.prefix), customops.__file__
    blocks = re.findall(r"^```python\n(.*?)^```", Path(sys.argv[1]).read_text(), re.M | re.S)
    found: dict = {}
    for code in blocks:
        exec(code, found)
    logits = found["logits"]
    assert torch.equal(found["tokens"], torch.argmax(logits, -1))
    assert torch.equal(found["values"], torch.min(logits, 1).values)
    assert torch.equal(found["flat"], torch.argmax(logits))
    sys.argv = ["customops"]
    runpy.run_module("customops", run_name="__main__")
    print(f"Python {platform.python_version()}, torch {torch.__version__}: fine")


if __name__ == "__main__":
    main()
