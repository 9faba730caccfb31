"""ONNX: `torch.onnx.export(..., dynamo=True)` of models that use the operators."""

from collections.abc import Callable
from typing import Any

__all__ = ["translation_table"]


def translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The `custom_translation_table` of torch.onnx.export, with every operator of this library.

    The operators become standard ONNX operators: the model runs without this package.

    Returns:
        A dict of overloads, and of functions that write ONNX.

    Raises:
        ImportError: onnxscript, which torch.onnx.export needs as well, is not installed.

    Example:
        >>> table = customops.onnx.translation_table()  # as custom_translation_table=table
        >>> torch.ops.reduceops.argmin.default in table
        True
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "customops.onnx.translation_table() needs the package onnxscript "
            "(pip install onnx onnxscript)"
        ) from error
    from .functions import table

    return table()
