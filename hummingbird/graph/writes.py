"""Which calls write in place: they stay in the graph even where nothing reads what they give."""

from __future__ import annotations

import inspect
from typing import Any

from torch import fx, nn

from hummingbird.graph.ops.vocabulary import FUNCTIONS, IN_PLACE_OPERATORS


def in_place(root: nn.Module, node: fx.Node) -> bool:
    """Whether a call of this net writes into its first argument, or into `out`."""
    if node.op == "call_module":
        return bool(getattr(root.get_submodule(str(node.target)), "inplace", False))
    if node.op not in ("call_function", "call_method"):
        return False
    if node.kwargs.get("out") is not None:
        return True
    name = function_name(node)
    if node.target in IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__")):
        return True
    for known in (FUNCTIONS.get(node.target), node.target):
        names = _parameters(known)
        if "inplace" in names:
            position = names.index("inplace") - (known is not node.target)  # rules begin with the builder
            return bool(node.kwargs.get("inplace", node.args[position] if position < len(node.args) else False))
    return False


def _parameters(function: Any) -> list[str]:
    """Names of a function's parameters; [] where it does not tell."""
    try:
        return list(inspect.signature(function).parameters) if callable(function) else []
    except ValueError:  # a builtin
        return []


def function_name(node: fx.Node) -> str:
    """The name of the function or method that a node calls."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "fn")
    return node.name.rstrip("0123456789").rstrip("_") if name == "fn" else name  # boolean_dispatch hides the name
