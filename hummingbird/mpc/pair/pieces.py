"""Large requests are made in pieces, one after the other, so that memory is bounded: a transfer takes some 40 bytes.

A request whose values have nothing in common is cut into requests of the same kind. Their fields are joined at the end.
A call makes the first pieces of all its requests in lock-step, then the second ones, and so on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hummingbird.mpc.correlations.field import Field
from hummingbird.mpc.correlations.request import Request

AT_ONCE = 1 << 21  # transfers of a piece
_LEAST = 1 << 12  # values of a piece: fewer would cost more rounds than they save memory
_SHAPES = (("shape",), ("size0", "size1"))  # parameters of kinds that do the same for each element of a tensor
_ELEMENTWISE = ("square", "b2a", "wraps", "binary", "additive", "lifted_product")


def pieces(request: Request[Any], transfers: float) -> list[Request[Any]]:
    """Cut a request into requests of at most `AT_ONCE` transfers or `_LEAST` values; [request] if it is not larger.

    transfers: how many it takes for each value.
    """
    made, most = request.params, max(_LEAST, int(AT_ONCE / max(transfers, 1.0)) // 32 * 32)
    if "count" in made:
        return _cut(request, made["count"], most, lambda n: {"count": n})
    if request.kind in _ELEMENTWISE and request.params.get("op", "mul") == "mul":
        names = next(names for names in _SHAPES if names[0] in made)
        if all(made[name] == made[names[0]] for name in names):
            return _cut(request, math.prod(made[names[0]]), most, lambda n: dict.fromkeys(names, (n,)))
    return [request]


def _cut(request: Request[Any], count: int, most: int, params: Any) -> list[Request[Any]]:
    if count <= most:
        return [request]
    return [replace(request, **params(min(most, count - at))) for at in range(0, count, most)]


def in_turn(cut: Sequence[Sequence[Request[Any]]]) -> list[list[tuple[int, Request[Any]]]]:
    """Arrange requests' pieces in groups that are made at once; return for each group the places and the pieces.

    cut: the pieces of each request.
    """
    rows = itertools.zip_longest(*cut)
    return [[(at, piece) for at, piece in enumerate(row) if piece is not None] for row in rows] or [[]]


def joined(item: Field, parts: Sequence[tuple[Field, Tensor]]) -> Tensor:
    """Join a field of a request from those of its pieces; return it in its shape.

    item: the field. parts: for each piece its field, and a tensor with the elements, and perhaps more behind them, or
    behind each row.
    """
    found = [_elements(own, tensor) for own, tensor in parts]
    return (found[0] if len(found) == 1 else torch.cat(found, -1)).reshape(item.shape)


def _elements(item: Field, found: Tensor) -> Tensor:
    if found.dim() > 1:
        found = found[..., : item.shape[-1]]
    return found.reshape(-1)[: math.prod(item.shape)].view(item.shape)
