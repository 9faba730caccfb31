"""The text of a graph: what it calls on what, without what differs from one torch to the next."""

import torch


def text(graph_module):
    lines = []
    for node in graph_module.graph.nodes:
        if node.op in ("call_function", "call_method"):
            arguments = ", ".join(map(str, node.args))
            keywords = "".join(f", {key}={value}" for key, value in node.kwargs.items())
            lines.append(f"{node.name} = {node.target}({arguments}{keywords})")
        elif node.op == "placeholder":
            lines.append(f"{node.name} = input")
        elif node.op == "output":
            lines.append(f"return {node.args[0]}")
    return "\n".join(lines)


def calls(graph_module):
    """The targets called, in order."""
    graphs = [m for m in graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    return [str(n.target) for g in graphs for n in g.graph.nodes if n.op == "call_function"]
