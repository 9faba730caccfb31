"""Builds of the libraries, measured in one run: a process for each takes a sample when it is asked
for one.

It loads the libraries alone: the Python code here may ask for operators that they lack. To it and
from it go lines of JSON: a case one way and an error, if any, the other; then a question for each
sample, and its seconds.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from customops import libraries

from . import measure, peers
from .strided import Arena, Strided

ASLEEP_SECONDS = 0.005  # after which the threads of a CPU's last call no longer spin

# The package without its __init__.py, which would register what those libraries lack.
_PROGRAM = """
import sys, types
package = sys.modules["customops"] = types.ModuleType("customops")
package.__path__ = [sys.argv[1]]
from customops.bench import builds
builds.serve()
"""


class Build:
    """Such a process. The operators below the Python functions are what it measures."""

    def __init__(self, folder: str, device: str, size: int) -> None:
        command = [sys.executable, "-c", _PROGRAM, str(Path(__file__).parents[1])]
        self._device = device
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "REDUCEOPS_LIBRARY_DIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ask("setup", [device, size, torch.get_num_threads()])

    def __enter__(self) -> "Build":
        return self

    def __exit__(self, *_) -> None:
        self._process.stdin.close()
        self._process.wait()

    def sampler(self, case: Strided) -> measure.Sampler:
        """Of the case. Raises RuntimeError where it does not run."""
        if error := self._ask("case", str(case)):
            raise RuntimeError(error)
        return self._sample

    def _sample(self) -> float:
        self._rest()
        seconds = self._ask("sample")
        self._rest()
        return seconds

    def _rest(self) -> None:
        if self._device == "cpu":
            time.sleep(ASLEEP_SECONDS)

    def _ask(self, what: str, of: object = None):
        print(json.dumps([what, of]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of a build ended with status {self._process.wait()}")
        return json.loads(answer)


@torch.no_grad()
def serve() -> None:
    """What such a process does."""
    libraries.load()
    arena = sample = None
    device = ""
    for line in sys.stdin:
        what, of = json.loads(line)
        answer = None
        if what == "setup":
            device, size, threads = of
            torch.set_num_threads(threads)
            arena = Arena(device, size)
        elif what == "case":
            try:
                sample = _warmed(_call(of, arena), measure.TIMED[device])
            except Exception as error:
                answer = measure.one_line(error)
        else:
            answer = sample()
        print(json.dumps(answer), flush=True)


def _warmed(call: Callable, timed: Callable[[Callable], measure.Sampler]) -> measure.Sampler:
    """After a call that is not timed: whoever was measured meanwhile has left caches of theirs."""
    call()
    sample = timed(call)

    def warmed() -> float:
        call()
        return sample()

    return warmed


def _call(text: str, arena: Arena) -> Callable[[], object]:
    case = Strided.parse(text)
    return peers.CONTENDERS[peers.OPERATOR](case, arena.view(case)).call
