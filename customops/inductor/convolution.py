"""A convolution, times a number, and its extreme channel become one operator on a GPU, where cuDNN
has a kernel for that: Inductor calls a kernel for the convolution and writes its result."""

import ctypes
import math
import operator
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.fx import Graph, Node

from .. import libraries
from . import report

aten = torch.ops.aten
ops = torch.ops.reduceops

_ENDS = {
    **{aten.amin.default: "min", aten.min.dim: "min"},
    **{aten.amax.default: "max", aten.max.dim: "max"},
}
_QUESTION = "reduceops_cuda_convolution_not_fused"
_MANY = (1 << 20) - 1  # of a size that is not known; products of three fit 64 bits


def version() -> tuple[str | None, ...]:
    """What the choices depend on beside the graph: the library and torch's settings."""
    if not libraries.cuda.loaded:
        return ()
    sizes = (128, 64, 3, 3, 1 << 20)  # with which the kernel is faster
    return tuple(_why_not_fused(*sizes, width) for width in (2, 4))


def rewrite(graph: Graph, min_elements: int) -> list[str]:
    """Puts the operators into a graph; a line for each, what it was and what it is. Convolutions
    whose result has fewer elements are left alone."""
    return [line for node in list(graph.nodes) if (line := _rewrite(node, min_elements))]


def _rewrite(node: Node, min_elements: int) -> str | None:
    end = _ENDS.get(node.target) if node.op == "call_function" else None
    if end is None or not node.users or node.kwargs or len(node.args) < 2:
        return None
    x, dim, keepdim = (*node.args, False)[:3]
    result = [node]
    if node.target in (aten.min.dim, aten.max.dim):
        result = list(node.users)
        if any(user.target is not operator.getitem or user.args[1] % 2 for user in result):
            return None  # the position is wanted, too
    product, scale = x, 1.0
    if x.target in (aten.mul.Tensor, aten.mul.Scalar) and not x.kwargs:
        x, scale = x.args
    if not _is_alone(product) or not _is_alone(x):
        return None
    scale = as_float(scale)
    if scale is None or scale == 0 or not math.isfinite(scale):
        return None
    if x.target is not aten.convolution.default or x.kwargs or x.args[6]:  # transposed
        return None
    kind = x.meta["val"]
    if [d % 4 for d in ([dim] if isinstance(dim, int) else dim)] != [1] or kind.dim() != 4:
        return None
    if product.meta["val"].dtype != kind.dtype or not _is_faster(x):
        return None
    if math.prod(hint(size, _MANY) for size in kind.shape) < min_elements:
        return None
    input, weight, bias, stride, padding, dilation, _, _, groups = x.args
    target = getattr(ops, f"conv2d_scale_{end}").default
    arguments = (input, weight, bias, scale, stride, padding, dilation, groups, 1, keepdim)
    with node.graph.inserting_before(node):
        new = node.graph.call_function(target, arguments)
    new.meta = {**node.meta, "val": result[0].meta["val"]}
    for old in result:
        old.replace_all_uses_with(new)
    for old in dict.fromkeys((*result, node, product, x)):
        node.graph.erase_node(old)
    convolved = report.described(kind.dtype, kind.shape, "cuda")
    return f"aten.convolution, {node.target} ({convolved}, dim=[1]) -> {target}"


def as_float(number: Any) -> float | None:
    """A number of a graph; None for what is no number, or an integer that no float64 is."""
    if type(number) is int and abs(number) <= 1 << 53:
        return float(number)
    return number if type(number) is float else None


def _is_alone(node: Node) -> bool:
    """Whether nothing else needs a node's result."""
    return isinstance(node, Node) and len(node.users) == 1


def _is_faster(convolution: Node) -> bool:
    """As csrc/cuda/conv2d.cu decides when it is called."""
    x, weight, *_, groups = convolution.args
    values = [node.meta.get("val") for node in (x, weight)]
    if not all(isinstance(value, FakeTensor) for value in values) or groups != 1:
        return False
    if not values[0].is_cuda or libraries.why_not_on(values[0].device):
        return False
    batch, _, rows, columns = convolution.meta["val"].shape
    sizes = [hint(size, _MANY) for size in (*values[1].shape, batch * rows * columns)]
    return _why_not_fused(*sizes, values[0].dtype.itemsize) is None


def _why_not_fused(*numbers: int) -> str | None:
    return libraries.cuda.ask(_QUESTION, *map(ctypes.c_int64, numbers))


def hint(size: int | torch.SymInt, unknown: int) -> int:
    """The size that is compiled for, without a guard on it; `unknown` where none is known."""
    if isinstance(size, torch.SymInt):
        return size.node.hint if size.node.has_hint() else unknown
    return size
