"""Runs each client whose library is installed, and says which is not. The exit status is 1 if a
result differs from torch's, or a library cannot be imported."""

import argparse
import importlib
import importlib.util
import sys

import torch

from . import CLIENTS


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m compile_examples.clients", description=__doc__)
    parser.parse_args(arguments)
    failed = False
    for name, library in CLIENTS.items():
        if importlib.util.find_spec(library) is None:
            print(f"{name}: skipped, for {library} is not installed (make clients)")
            continue
        try:
            print(f"{name}: {importlib.import_module(f'.{name}', __package__).run()}", flush=True)
        except Exception as error:  # of a client whose library is broken, too
            failed = True
            while before := error.__cause__ or error.__context__:  # transformers hides it
                error = before
            print(f"{name}: FAILED, {type(error).__name__}: {error}")
            if "torchvision::" in str(error):
                print(f"    it is not for torch {torch.__version__}: install both at once")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
