"""Refuses to be imported in a subinterpreter, where torch would wait for ever for a lock."""

import importlib.util

# The standard library's module by the versions of Python; from 3.13 on, and before.
for _name in ("_interpreters", "_xxsubinterpreters"):
    if importlib.util.find_spec(_name):
        _interpreters = importlib.import_module(_name)
        if _interpreters.get_current() != _interpreters.get_main():
            raise ImportError("customops needs torch, which does not work in a subinterpreter")
        break
