"""A pass for Inductor: torch's reductions in a compiled graph become operators of this package.

What an operator then becomes, a loop or a kernel, is chosen when Inductor lowers it (lowering.py).
The value alone of a product is rewritten only where a kernel can read what is multiplied, for
Inductor's own loop is as fast.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._inductor import config, custom_graph_pass, list_mode_options, lowering
from torch._subclasses import FakeTensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from .. import checks, libraries
from .._register import caches
from ..version import __version__
from . import convolution, report
from .loops import arguments_of, is_view

aten = torch.ops.aten
ops = torch.ops.reduceops

_REDUCTIONS = {
    **{aten.argmin.default: "min", aten.min.dim: "min", aten.amin.default: "min"},
    **{aten.argmax.default: "max", aten.max.dim: "max", aten.amax.default: "max"},
}
# Besides what it has no code for, Inductor calls a library for these or ends a kernel with them.
_STORED = {
    *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default),
    *(aten.convolution.default, aten.sort.default, aten.sort.stable),
    *(aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim),
    *(aten.prod.default, aten.prod.dim_int, aten.cumsum.default, aten.cumprod.default),
    *_REDUCTIONS,
}
# Newer versions of torch tell a pass of this kind whether the graph is for inference.
_Aware = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", None)


def inductor_options(
    *, mode: str | None = None, min_elements: int = 16384, **options: Any
) -> dict[str, Any]:
    """Options for ``torch.compile(model, options=...)`` that make Inductor use these operators.

    Args:
        mode: One of torch.compile's, which takes no mode beside options.
        min_elements: Reductions of fewer elements are left alone: a kernel saves less time than it
            takes to call it.
        options: Inductor's own, which prevail over the mode's. Of them
            ``post_grad_custom_post_pass`` runs after the rewriting, and without one that of
            ``torch._inductor.config`` does, as it is at this call.

    Returns:
        A dict for ``torch.compile``.

    Raises:
        RuntimeError: torch does not know the mode.
        TypeError: `min_elements` is no int.
        ValueError: `min_elements` is negative.

    Example:
        >>> options = customops.inductor_options(mode="max-autotune", min_elements=1000)
        >>> compiled = torch.compile(lambda x: x.argmax(1), options=options)
    """
    if type(min_elements) is not int:
        raise TypeError(f"inductor_options: min_elements must be an int, got {min_elements!r}")
    if min_elements < 0:
        raise ValueError(f"inductor_options: min_elements must be at least 0, got {min_elements}")
    merged = {**(list_mode_options(mode) if mode else {}), **options}
    configured = config.post_grad_custom_post_pass
    then = merged.get("post_grad_custom_post_pass", configured) or ()
    then = tuple(then) if isinstance(then, (list, tuple)) else (then,)
    return {**merged, "post_grad_custom_post_pass": RewriteReductions(min_elements, then)}


def rewrites() -> list[str]:
    """What was rewritten into what, and what each operator became, a loop or a kernel.

    Returns:
        A line each, of the graphs that this process has compiled or taken from Inductor's cache.

    Example:
        >>> options = customops.inductor_options(min_elements=1)
        >>> found = torch.compile(lambda x: x.argmax(1), options=options)(torch.ones(3, 4))
        >>> any("aten.argmax" in line for line in customops.inductor.rewrites())
        True
    """
    return report.recorded(report.REWRITTEN, report.CHOSEN)


def left_alone() -> list[str]:
    """The reductions that find a position or follow a product, and were not rewritten, and why.

    Returns:
        A line each, as of `rewrites`.

    Example:
        >>> options = customops.inductor_options()  # which leave out small inputs
        >>> found = torch.compile(lambda x: x.argmin(1), options=options)(torch.ones(3, 4))
        >>> any("aten.argmin" in line for line in customops.inductor.left_alone())
        True
    """
    return report.recorded(report.LEFT_ALONE)


@dataclass(frozen=True)
class RewriteReductions(_Aware or custom_graph_pass.CustomGraphPass):
    """The pass of `inductor_options`; `then` are the user's."""

    min_elements: int
    then: tuple[Callable, ...]

    def __call__(self, graph: Graph, is_inference: bool = False) -> None:
        for line in convolution.rewrite(graph, self.min_elements):
            report.record(report.REWRITTEN, line)
        for node in list(graph.nodes):
            reduction = _match(node)
            if reduction is None:
                continue
            try:
                line = f"{reduction} -> {_rewrite(reduction, self.min_elements)}"
                report.record(report.REWRITTEN, line)
            except _LeftAlone as reason:
                report.record(report.LEFT_ALONE, f"{reduction}: {reason}")
        for other in self.then:
            other(graph, is_inference) if _Aware and isinstance(other, _Aware) else other(graph)

    def uuid(self) -> Any | None:
        """Tells Inductor's cache one pass from another; None, no caching, if the user's do not."""
        others = [other.uuid() if hasattr(other, "uuid") else None for other in self.then]
        if None in others:
            return None
        ours = (caches.version(), caches.preference(), __version__, libraries.cuda.loaded)
        graphs = (*convolution.version(), caches.are_denormals_zero(), self.min_elements)
        return (*ours, *graphs, *others)


class _LeftAlone(Exception):
    """Why a reduction is not rewritten."""


@dataclass
class _Reduction:
    """A reduction of torch: what it reduces, and the nodes that are its results."""

    node: Node
    self: Node
    dims: list[int] | None
    keepdim: bool
    values: list[Node] = field(default_factory=list)
    indices: list[Node] = field(default_factory=list)
    # The input is this number times the input of its node.
    scale: float | None = None

    def __str__(self) -> str:
        x = self.self.meta["val"]
        name = str(self.node.target).removesuffix(".default")
        return f"{name}({report.described(x.dtype, x.shape, x.device.type)}, dim={self.dims})"


def _match(node: Node) -> _Reduction | None:
    """The reduction that a node is, if there may be something to gain."""
    if node.op != "call_function" or node.target not in _REDUCTIONS or not node.users:
        return None
    self, dim, keepdim = arguments_of(node).values()
    if not _is_tensor(self):
        return None
    dims = [dim] if isinstance(dim, int) else list(dim or range(self.meta["val"].dim()))
    reduction = _Reduction(node, self, dims, keepdim, scale=_scale(self))
    if node.target in (aten.min.dim, aten.max.dim):
        if any(user.target is not operator.getitem for user in node.users):
            return None
        for user in node.users:
            (reduction.indices if user.args[1] % 2 else reduction.values).append(user)
    elif node.target in (aten.amin.default, aten.amax.default):
        reduction.values.append(node)
    else:
        reduction.indices.append(node)
    # For a value alone Inductor's own code is as good.
    return reduction if reduction.indices or reduction.scale is not None else None


def _scale(node: Node) -> float | None:
    """The number by which the node multiplies, if our operators multiply like that."""
    if node.target not in (aten.mul.Tensor, aten.mul.Scalar):
        return None
    x, scale = node.args
    if not _is_tensor(x):
        return None
    dtype = x.meta["val"].dtype
    if dtype not in checks.SCALABLE or node.meta["val"].dtype != dtype:
        return None
    return convolution.as_float(scale)


def _is_tensor(argument: Any) -> bool:
    return isinstance(argument, Node) and isinstance(argument.meta.get("val"), FakeTensor)


def _uncopied(node: Node) -> Node:
    """The same elements, in another order in memory."""
    while node.target is aten.clone.default and _is_tensor(node.args[0]):
        node = node.args[0]
    return node


def _rewrite(reduction: _Reduction, min_elements: int) -> str:
    """Puts an operator in the place of a reduction, and names it."""
    _check_input(reduction.self.meta["val"], min_elements)
    end, dims, keepdim = _REDUCTIONS[reduction.node.target], reduction.dims, reduction.keepdim
    if reduction.indices and (len(reduction.self.users) > 1 or len(dims) != 1):
        reduction.scale = None  # the product is an input as any other
    if reduction.scale is not None:
        if len(reduction.self.users) > 1:
            raise _LeftAlone("the product is used elsewhere, too")
        if len(dims) != 1 or not reduction.self.meta["val"].dim():
            raise _LeftAlone("a product that is not reduced over one dim")
        x = _uncopied(reduction.self.args[0])
        if not reduction.indices:
            _check_value_alone(x.meta["val"], *dims)
            _check_stored(x)
        name = f"_scale_{end}_indices" if reduction.indices else f"scale_{end}"
        target, arguments = getattr(ops, name).default, (reduction.scale, *dims, keepdim)
    else:
        x = _uncopied(reduction.self)
        if reduction.values:
            target, arguments = getattr(ops, end).default, (*dims, keepdim)
        elif len(dims) == 1:
            target, arguments = getattr(ops, f"arg{end}").default, (*dims, keepdim)
        else:
            target, arguments = getattr(ops, f"arg{end}").dims, (dims, keepdim)
    _replace(reduction, target, (x, *arguments))
    return str(target).removesuffix(".default")


def _check_input(x: Tensor, min_elements: int) -> None:
    if x.device.type not in ("cpu", "cuda"):
        raise _LeftAlone(f"there are no kernels for {x.device.type}")
    if x.device.type == "cuda" and (why := libraries.why_not_on(x.device)):
        raise _LeftAlone(f"there are no kernels for cuda: {why}")
    if not checks.is_strided(x) or x.dtype not in checks.SUPPORTED:
        raise _LeftAlone(f"there are no kernels for a {checks.layout_name(x)} tensor of {x.dtype}")
    if convolution.hint(x.numel(), min_elements) < min_elements:
        raise _LeftAlone(f"it has fewer than {min_elements} elements")


def _check_value_alone(x: Tensor, dim: int) -> None:
    """Passes the products whose extreme value our CPU kernels find faster than Inductor's code,
    which does not round 16-bit products, and is good where neighbours are reduced."""
    if x.device.type != "cpu":
        return
    stride = x.stride(dim)
    if x.dtype.itemsize < 4 or (isinstance(stride, int) and stride == 1):
        raise _LeftAlone("Inductor's own code for its value alone is as fast")


def _check_stored(node: Node) -> None:
    """Passes what is in memory for a kernel to read: an input, what a library has computed, what
    another reduction has, and views of these. (A forecast: Inductor decides when it lowers the
    graph, which is where lowering.py asks it.)"""
    while node.op == "call_function" and (node.target is operator.getitem or is_view(node.target)):
        node = node.args[0]
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return  # an input, a constant, a subgraph's result
    if target is aten.convolution.default and node.args[2] is not None:
        # Inductor adds the bias itself on a GPU.
        if node.meta["val"].device.type != "cpu":
            raise _LeftAlone("Inductor fuses it with the bias of a convolution")
    elif target in lowering.lowerings and target not in (*_STORED, *lowering.fallbacks):
        raise _LeftAlone(f"Inductor fuses it with {target}")


def _replace(reduction: _Reduction, target: torch._ops.OpOverload, arguments: tuple) -> None:
    graph, old = reduction.node.graph, reduction.node
    with graph.inserting_before(old):
        new = graph.call_function(target, arguments)
        x = reduction.self.meta["val"]
        with x.fake_mode:
            value = target(*map_arg(arguments, lambda node: node.meta["val"]))
        new.meta = {**old.meta, "val": value}
        results = [new]
        if isinstance(value, tuple):
            results = [graph.call_function(operator.getitem, (new, i)) for i in range(2)]
            for result, part in zip(results, value, strict=True):
                result.meta = {**old.meta, "val": part}
    for node in reduction.values:
        node.replace_all_uses_with(results[0])
    for node in reduction.indices:
        node.replace_all_uses_with(results[-1])
    for node in dict.fromkeys((*reduction.values, *reduction.indices, old)):
        graph.erase_node(node)
    if reduction.scale is not None:
        graph.erase_node(reduction.self)
