"""Which traced values are the same tensor in memory: a call that writes in place changes all of them.

`y = x; y += 1` changes x, and so does an in-place ReLU on the input of a residual branch. A list of steps has values,
not memory, so after a write every name of that tensor must stand for the new value. A write through a view would change
a part or another shape of it; where such a value is read later, the net is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from hummingbird.graph.build import Unsupported
from hummingbird.graph.ops.vocabulary import OPERATIONS

VIEWS = frozenset(name for name, op in OPERATIONS.items() if op.view)


class Aliases:
    """Storage and handle of each node: equal handles are one value, equal storages share memory."""

    def __init__(self, order: Sequence[Node]) -> None:
        self._order = {node: number for number, node in enumerate(order)}
        self._storage: dict[Node, int] = {}
        self._handle: dict[Node, int] = {}

    def fresh(self, node: Node) -> None:
        """`node` has memory of its own."""
        self._storage[node] = self._handle[node] = self._order[node]

    def same(self, node: Node, base: Node) -> None:
        """`node` is `base`."""
        self._storage[node], self._handle[node] = self._storage[base], self._handle[base]

    def view(self, node: Node, base: Node) -> None:
        """`node` may share memory with `base`, in another shape or order."""
        self._storage[node], self._handle[node] = self._storage[base], self._order[node]

    def written(self, node: Node, base: Node) -> list[Node]:
        """The nodes that are `base`, into which `node` writes; Unsupported if another view of it is read later."""
        sharing = [other for other, storage in self._storage.items() if storage == self._storage[base]]
        for other in sharing:
            later = any(self._order.get(user, -1) > self._order[node] for user in other.users)
            if later and self._handle[other] != self._handle[base]:
                raise Unsupported(
                    f"writes in place into memory that {other.name!r} shares as a view and that is read afterwards",
                    "use the form that is not in place",
                )
        return [other for other in sharing if self._handle[other] == self._handle[base]]
