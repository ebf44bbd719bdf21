"""Matrix products term by term, by transfers: for small matrices, which fill an encrypted polynomial badly.

All terms of a b that have the same element of b take its bits as choices (products.py), and are then summed. A term
takes B (B + 1) bits, an element of b two transfers for each of its B bits. b is the operand with fewer elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird import prg
from hummingbird.mpc.pair.encrypted import PairKeys
from hummingbird.mpc.pair.lockstep import Rounds, together
from hummingbird.mpc.pair.products import shared_product, shared_product_price
from hummingbird.mpc.pair.recipe import MaterialRecipe, Part, halved
from hummingbird.mpc.pair.transfers import Side
from hummingbird.mpc.protocols.beaver import Triple
from hummingbird.mpc.protocols.lifted_matmul import terms


@dataclass(frozen=True)
class ProductTerms:
    """The terms of a matrix product, (..., i, j, l), by the elements of one of its matrices.

    sizes: of both matrices, (..., i, j) and (..., j, l), at least 1 each. own: which of them, 0 or 1.
    """

    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    own: int

    @property
    def size(self) -> tuple[int, ...]:
        """The shape of the matrix."""
        return self.sizes[self.own]

    @property
    def count(self) -> int:
        """The number of its elements."""
        return math.prod(self.size)

    @property
    def times(self) -> int:
        """How many terms have each of its elements."""
        return math.prod(terms(*self.sizes)) // self.count

    def rows(self, number: Tensor) -> Tensor:
        """Return what each element meets, int64 (times, count). number: of each element of the other matrix."""
        return _of_terms(self.sizes, 1 - self.own, number).flatten()[self._order].t()

    def arranged(self, found: Tensor) -> Tensor:
        """Return terms (times, count or more) in their order, (..., i, j, l)."""
        flat = torch.empty(self.times * self.count, dtype=found.dtype)
        flat[self._order.flatten()] = found[:, : self.count].t().flatten()
        return flat.view(terms(*self.sizes))

    @property
    def _order(self) -> Tensor:
        """The numbers of the terms that have an element, a row for each element, int64 (count, times)."""
        element = _of_terms(self.sizes, self.own, torch.arange(self.count).view(self.size))
        return element.flatten().argsort(stable=True).view(self.count, self.times)


def _of_terms(sizes: tuple[tuple[int, ...], tuple[int, ...]], own: int, number: Tensor) -> Tensor:
    """Return for each term the number of its element of matrix `own`, (..., i, j, l). number: of each element."""
    return number.view(sizes[own]).unsqueeze((-1, -3)[own]).expand(terms(*sizes))


class _ByTerms(MaterialRecipe[Triple]):
    """Small matrix products of random matrices."""

    kind = Triple
    instead = ""

    def refuses(self, request: Triple) -> str:
        return ""

    def parts(self, request: Triple, transfer_bits: float) -> list[Part]:
        found = _terms_of(request)
        return halved(found.count, shared_product_price(request.bits, found.times))

    def made(
        self,
        request: Triple,
        sides: Sequence[Side],
        keys: PairKeys | None,
        rank: int,
        transfer_bits: float,
        weights: Mapping[int, Tensor],
    ) -> Rounds[dict[str, Tensor]]:
        found = _terms_of(request)
        a = prg.fresh().words(math.prod(found.sizes[1 - found.own]))
        rows = found.rows(a)
        rows = F.pad(rows, (0, sum(side.n for side in sides) - found.count)).split([side.n for side in sides], 1)
        each = yield from together(
            *(shared_product(side, request.bits, half) for side, half in zip(sides, rows, strict=True))
        )
        b = torch.cat([half for half, _ in each])[: found.count]
        c = found.arranged(torch.cat([half for _, half in each], 1)).sum(-2).flatten()
        return {"a": a, "b": b, "c": c} if found.own else {"a": b, "b": a, "c": c}


def _terms_of(request: Triple) -> ProductTerms:
    sizes = (1, *request.size0)[-max(2, len(request.size0)) :], (*request.size1, 1)[: max(2, len(request.size1))]
    return ProductTerms(sizes, int(math.prod(sizes[1]) <= math.prod(sizes[0])))


BY_TERMS = _ByTerms()
