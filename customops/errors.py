"""How the public functions raise what their operators do."""

from typing import NoReturn


def throw(error: Exception) -> NoReturn:
    try:
        raise error
    finally:
        del error  # or the traceback would hold it by this frame: a cycle, and the input in it


def caused(found: Exception, error: Exception) -> Exception:
    """As `raise found from error` has it."""
    found.__cause__ = error
    return found


def is_out_of_memory(error: Exception) -> bool:
    """Whether C++ says so of a GPU; torch's own error, and that of somebody else, stays."""
    return type(error) is RuntimeError and "CUDA out of memory" in str(error)
