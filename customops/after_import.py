"""Runs something once a module has been imported, by whomever, and does not import it."""

import importlib.abc
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

log = logging.getLogger("customops")


def after_import(name: str, then: Callable[[], object]) -> None:
    if name in sys.modules:
        _run(name, then)
    else:
        sys.meta_path.insert(0, _Finder(name, then))


def _run(name: str, then: Callable[[], object]) -> bool:
    """Whether it did not fail: that is no reason for the import of another's module to fail."""
    try:
        then()
    except Exception:
        log.warning("customops does not work with this %s", name, exc_info=True)
        return False
    return True


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find the module, and has `then` run once that is imported. Who only
    asks where the module is, or fails to import it, changes nothing."""

    # It stays where it is: other threads that import go over sys.meta_path, and would miss one.
    def __init__(self, name: str, then: Callable[[], object]):
        self.name, self.then, self.is_done = name, then, False
        self.asking: set[int] = set()  # the threads in which it asks the others

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        thread = threading.get_ident()
        if fullname != self.name or self.is_done or thread in self.asking:
            return None
        self.asking.add(thread)
        try:  # all of them: it may be inside the finder of a tool
            specs = (_ask(finder, fullname, path, target) for finder in sys.meta_path)
            spec = next(filter(None, specs), None)
        finally:
            self.asking.remove(thread)
        if spec is not None:
            self._follow(spec)
        return spec

    def _follow(self, spec: ModuleSpec) -> None:
        # The second is that of an old loader, and takes a name.
        found = (name for name in ("exec_module", "load_module") if hasattr(spec.loader, name))
        method = next(found, None)
        if method is None:
            return
        execute = getattr(spec.loader, method)

        def execute_and_then(module: ModuleType | str) -> ModuleType | None:
            result = execute(module)
            # A loader may have other modules too.
            if getattr(module, "__name__", module) == self.name and not self.is_done:
                self.is_done = _run(self.name, self.then)  # if it fails, the next import runs it
            return result

        try:
            setattr(spec.loader, method, execute_and_then)
        except (AttributeError, TypeError):  # of a C type, or one with slots
            log.warning("customops cannot tell when %s is imported", self.name, exc_info=True)


def _ask(
    finder: Any, fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """As Python asks it: the second is of an old kind, which 3.12 passes over."""
    if find_spec := getattr(finder, "find_spec", None):
        return find_spec(fullname, path, target)
    find_module = getattr(finder, "find_module", None)
    if find_module is None or sys.version_info >= (3, 12):
        return None
    loader = find_module(fullname, path)
    return None if loader is None else spec_from_loader(fullname, loader)
