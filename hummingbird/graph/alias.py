"""Aliases: which traced values are the same tensor in memory, and which calls write in place.

`y = x; y += 1` changes x, and so does an in-place ReLU on the input of a residual branch. A list of steps has values,
not memory, so after a write every name of the tensor must stand for the new value. A write through a view would change
a part or another shape of the tensor; where such a value is read later, the net is refused.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

from torch import fx, nn
from torch.fx import Node

from hummingbird.graph.build import Unsupported
from hummingbird.graph.ops.vocabulary import FUNCTIONS, IN_PLACE_OPERATORS, OPERATIONS

VIEWS = frozenset(name for name, op in OPERATIONS.items() if op.view)


class Aliases:
    """Tracks which traced values are the same and which share memory, to know what a write in place changes.

    Every node of the trace has two numbers, a handle and a storage: nodes with equal handles have the same value, nodes
    with equal storages share memory.
    """

    def __init__(self, order: Sequence[Node]) -> None:
        self._order = {node: number for number, node in enumerate(order)}
        self._storage: dict[Node, int] = {}
        self._handle: dict[Node, int] = {}

    def fresh(self, node: Node) -> None:
        """Note that the value of `node` is in memory of its own, which no earlier node's value shares."""
        self._storage[node] = self._handle[node] = self._order[node]

    def same(self, node: Node, base: Node) -> None:
        """Note that `node` is another name of the value of `base`: same elements, same memory."""
        self._storage[node], self._handle[node] = self._storage[base], self._handle[base]

    def view(self, node: Node, base: Node) -> None:
        """Note that `node` may share memory with `base`, but shows it in another shape or order."""
        self._storage[node], self._handle[node] = self._storage[base], self._order[node]

    def written(self, node: Node, base: Node) -> list[Node]:
        """Return the nodes whose value changes because `node` writes in place into the value of `base`.

        These are the nodes that `same` has made other names of this value, `base` included. Raises Unsupported if
        another view of that memory, in another shape or order, is read after the write.
        """
        sharing = [other for other, storage in self._storage.items() if storage == self._storage[base]]
        for other in sharing:
            later = any(self._order.get(user, -1) > self._order[node] for user in other.users)
            if later and self._handle[other] != self._handle[base]:
                raise Unsupported(
                    f"writes in place into memory that {other.name!r} shares as a view and that is read afterwards",
                    "use the form that is not in place",
                )
        return [other for other in sharing if self._handle[other] == self._handle[base]]


# Calls that write in place -------------------------------------------------------------------------------------------
#
# They stay in the graph even where nothing reads their result.


def in_place(root: nn.Module, node: fx.Node) -> bool:
    """Whether a call writes into its first argument, or into the tensor given as `out`.

    root: the module that is traced.
    """
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


@functools.lru_cache(1024)
def _parameters(function: Any) -> list[str]:
    """Return the names of a function's parameters; [] for a builtin function without a signature."""
    try:
        return list(inspect.signature(function).parameters) if callable(function) else []
    except ValueError:
        return []


def function_name(node: fx.Node) -> str:
    """Return the name of the function or method that a node calls."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "fn")
    return node.name.rstrip("0123456789").rstrip("_") if name == "fn" else name  # boolean_dispatch hides the name
