"""Products with the rows of a conversation that stay: keys and values of attention (protocols/cached_rows.py).

A chunk of a causal net (graph/causal.py) computes q k^T and w v with all rows of k and v so far. Its own new rows are
written by the same product, in one round with the other operand. Rows stay with the scale and the number of right bits
of their cache, which all plans of a decoder share (`kept`, set by mpc/plan/decoder.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hummingbird.bits import Rows
from hummingbird.cost import Cost
from hummingbird.mpc.layers.layer import Spec
from hummingbird.mpc.layers.products import MatMul
from hummingbird.mpc.layers.softmax_in_range import SoftmaxInRange, most_bits
from hummingbird.mpc.layers.weighted_mean import WeightedMean
from hummingbird.mpc.protocols import cached_rows
from hummingbird.mpc.protocols.cached_rows import CachedMatMul, CachedRows
from hummingbird.mpc.protocols.lifted_product import Operand
from hummingbird.mpc.protocols.poly import LookUpPrice
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared


class Cache:
    """Which cache a product reads, and how: the attributes of a step "cached_matmul".

    key: the cache's number in the net. turned: whether the rows are columns in the product (keys). places: how many of
    the first places take part, of `every` place of the conversation.
    """

    def __init__(self, attrs: dict[str, Any]) -> None:
        self.key, self.turned = int(attrs["key"]), bool(attrs["turned"])
        self.places, self.every = int(attrs["places"]), int(attrs["all"])

    def rows(self, session: Session, new: Tensor, bits: int) -> tuple[CachedRows, Tensor]:
        """Return the conversation's rows, and the new ones as (*batch, rows, length). bits: W of the rows."""
        new = new.transpose(-1, -2) if self.turned else new
        shape = (*new.shape[:-2], self.every, new.shape[-1])
        return cached_rows.cached(session, shape, self.key, bits), new

    def read(self, new: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the rows that a product reads as a factor. new: that of the new rows in the product."""
        if self.turned:
            return (*new[:-1], self.places)
        return (*new[:-2], self.places, new[-1])

    def request(self, x: Sequence[int], new: Sequence[int], value: int, width: int, bits: int) -> CachedMatMul:
        """Return the request of a product. x, new: shapes of the operand and of the new rows. value, bits: as there."""
        *batch, first, second = new
        rows = (self.places, *batch, first if self.turned else second)
        return CachedMatMul(tuple(x), rows, int(self.turned), self.key, value, width, bits)

    @property
    def constants(self) -> tuple[int, ...]:
        return self.key, int(self.turned), self.places, self.every


class ProductWithCache(MatMul):
    """Layer for a product of a private value with cached rows, to which it adds new ones, in 1 round.

    An element of the value costs as many bits as later layers read of the result, a new row's as many as its cache has.
    rounds: whether parties may round their own shares, as for `MatMul`.
    The third input, an attention mask, is read by `CachedMean` alone.
    """

    kept = 0  # set by the decoder: in how many bits all its plans read this cache

    def __init__(self, cache: Cache, rounds: bool) -> None:
        super().__init__(rounds)
        self.cache = cache

    @property
    def width(self) -> int:
        """How many low bits of the cache's rows are right."""
        return max(self.read, self.kept)

    @property
    def fractions(self) -> tuple[int, int]:
        given, self.given = self.given, self.given[:2]
        try:
            return super().fractions
        finally:
            self.given = given

    def out_scale(self, scales: Sequence[int]) -> int:
        return super().out_scale(scales[:2])

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        return super().valid(scales[:2], valid[:2])

    def needs_of_each(self, scales: Sequence[int], later: int) -> list[int]:
        left, right = self._shifts(scales[:2])
        of_rows = min(64, max(later, self.kept) + right)
        return [min(64, later + left), of_rows, *(0 for _ in scales[2:])]

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[1] if self.averages else super().bound(bounds)

    def constants(self) -> tuple[int, ...]:
        return (*super().constants(), *self.cache.constants, self.width)

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        x, new = (spec.shape for spec in inputs[:2])
        request = self.cache.request(x, new, self.read, self.width, self.read)
        return cached_rows.price(request, parties, math.prod(new))

    def forward(self, session: Session, x: Shared, y: Shared, *mask: Tensor) -> Shared:
        left, right = self._shifts([x.scale, y.scale])
        rows, new = self.cache.rows(session, y.share, self.width)
        operand, added = Operand(x.share.contiguous(), left, self.read), Operand(new, right, self.width)
        cache = self.cache
        out, _ = cached_rows.product(
            session, operand, rows, self.read, turned=cache.turned, places=cache.places, new=added
        )
        return Shared(out, self.out_scale([x.scale, y.scale]))

    def label(self) -> str:
        return f"cache {self.cache.key} of {self.cache.every} rows, {self.width} bits"


class CachedMean(WeightedMean):
    """Layer for weighted means of cached rows, to which it adds new ones, with weights from a softmax in a known range.

    product: the layer that it replaces. It takes 2 rounds, as `WeightedMean`; a new row is opened in the bits of its
    cache.
    """

    kept = 0

    def __init__(self, rows: Rows, softmax: SoftmaxInRange, product: ProductWithCache) -> None:
        super().__init__(rows, softmax)
        self.cache = product.cache

    @property
    def width(self) -> int:
        """How many low bits of the cache's rows are right."""
        return max(self._parts((self.cache.places,))[1].sums, self.kept)

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        needed = most_bits(self.rows), self.width + self._cut(scales[1])
        return 64 if all(low >= wanted for low, wanted in zip(valid[:2], needed, strict=True)) else 0

    def needs_of_each(self, scales: Sequence[int], later: int) -> list[int]:
        return [most_bits(self.rows), min(64, self.width + self._cut(scales[1])), 0]

    def constants(self) -> tuple[int, ...]:
        return (*super().constants(), *self.cache.constants, self.width)

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        x, new = (tuple(spec.shape) for spec in inputs[:2])
        found, sizes = self._parts(x)
        request = self.cache.request(x, new, found.value, self.width, sizes.sums)
        looked_up = LookUpPrice.of(math.prod(x[:-1]), found.reciprocal, found.factor, parties)
        opened = cached_rows.price(request, parties, math.prod(new), [looked_up])
        return opened + self._division_price(x, self.cache.read(new), parties)

    def breadth(self, inputs: Sequence[Spec]) -> int:
        x, new = inputs[:2]
        return super().breadth([x, new._replace(shape=self.cache.read(new.shape))])

    def forward(self, session: Session, x: Shared, y: Shared, *mask: Tensor) -> Shared:
        exp, cache = x.share, self.cache
        found, sizes = self._parts(exp.shape)
        more = self._per_row(exp, mask)
        inverse = self._inverse(session, exp, found, more)
        rows, new = cache.rows(session, y.share, self.width)
        operands = Operand(exp, 0, found.value), Operand(new, self._cut(y.scale), self.width)
        mean, (over,) = cached_rows.product(
            session, operands[0], rows, sizes.sums, turned=False, places=cache.places, new=operands[1], beside=[inverse]
        )
        return self._divided(session, mean * more, over, found, sizes)

    def label(self) -> str:
        return f"{super().label()}, cache {self.cache.key} of {self.cache.every} rows in {self.width}"
