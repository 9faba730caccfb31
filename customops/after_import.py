"""Runs something once a module has been imported, by whomever, and does not import it."""

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, then: Callable[[], object]) -> None:
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the finders after it find the module, and has `then` run once that is imported. Who only
    asks where the module is, or fails to import it, changes nothing."""

    # It stays where it is: other threads that import go over sys.meta_path, and would miss one.
    def __init__(self, name: str, then: Callable[[], object]):
        self.name, self.then, self.is_done = name, then, False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != self.name or self.is_done:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._follow(spec)
                return spec
        return None

    def _follow(self, spec: ModuleSpec) -> None:
        if spec.loader is None:
            return
        execute = spec.loader.exec_module

        def execute_and_then(module: ModuleType) -> None:
            execute(module)
            # A loader may have other modules too.
            if module.__name__ == self.name and not self.is_done:
                self.then()
                self.is_done = True  # not before: if `then` fails, the next import runs it

        spec.loader.exec_module = execute_and_then  # type: ignore[method-assign]
