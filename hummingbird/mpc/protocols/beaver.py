"""Products of two private values, by dealt products of masks (Beaver, CRYPTO 1991): one opening of both, masked.

A product mod 2^R needs its operands mod 2^R and no more, so that masks, openings and what is dealt have R bits: as many
as later layers look at (mpc/plan/rounding_plan.py). The bits of a share above are anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hummingbird import cost, kernels, ring
from hummingbird.cost import Cost, packed
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.parameters import LIMIT, one_of, options, shape, width
from hummingbird.mpc.correlations.request import Request, Shares
from hummingbird.mpc.protocols.operation import Operation
from hummingbird.mpc.session.session import Session


class TripleShares(NamedTuple):
    """Shares of masks a and b, and of c, their product; int32 where at most 32 bits count."""

    a: Tensor
    b: Tensor
    c: Tensor


@dataclass(frozen=True)
class DealtProduct(Request[Shares]):
    """c = op(a, b, **kwargs) in Z_2^bits, for op of `ring.BILINEAR` and sizes as in torch."""

    size0: tuple[int, ...] = shape()
    size1: tuple[int, ...] = shape()
    op: str = one_of(ring.BILINEAR)
    kwargs: dict[str, Any] = options()
    bits: int = width()

    def check(self) -> None:
        _check_margins(self.size0, self.size1, self.op, self.kwargs)

    @cached_property
    def derived(self) -> Fields:
        size = _product_shape(self.size0, self.size1, self.op, self.kwargs)
        return {"c": Field("ring", size, width=self.bits)}

    def derive(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"c": ring.bilinear(self.op, a.long(), b.long(), self.bits, **self.kwargs)}


@dataclass(frozen=True)
class Triple(DealtProduct[TripleShares]):
    """a, b uniform; c = op(a, b, **kwargs)."""

    kind = "additive"

    @cached_property
    def free(self) -> Fields:
        return {"a": Field("ring", self.size0, width=self.bits), "b": Field("ring", self.size1, width=self.bits)}

    def shares(self, **tensors: Tensor) -> TripleShares:
        return TripleShares(**tensors)


def _product_shape(size0: Sequence[int], size1: Sequence[int], op: str, kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Shape of the product, found by torch on tensors that hold no data."""
    if op == "mul":  # for broadcasting on the meta device torch first imports its compiler, 1.6 s
        return tuple(torch.broadcast_shapes(size0, size1))
    a, b = torch.empty(size0, device="meta"), torch.empty(size1, device="meta")
    return tuple(getattr(torch, op)(a, b, **kwargs).shape)


def _check_margins(size0: Sequence[int], size1: Sequence[int], op: str, kwargs: dict[str, Any]) -> None:
    """Raise ValueError if a convolution's input with its margins and, transposed, its gaps exceeds the limit.

    The result's size does not bound them: dilation takes away what padding adds.
    """
    if not op.startswith("conv"):
        return
    spatial = int(op[-2])

    def option(name: str, default: int) -> list[int]:
        value = kwargs.get(name, default)
        return value * (spatial // len(value)) if isinstance(value, list) else [value] * spatial

    sides, margins, reach = size0[-spatial:], option("padding", 0), [0] * spatial
    if op.startswith("conv_transpose"):
        sides = [n * step for n, step in zip(sides, option("stride", 1), strict=True)]
        reach = [by * (n - 1) for by, n in zip(option("dilation", 1), size1[-spatial:], strict=True)]
    margins = [abs(far - margin) for far, margin in zip(reach, margins, strict=True)]
    padded = math.prod(size0[:-spatial]) * math.prod(n + 2 * m for n, m in zip(sides, margins, strict=True))
    if padded > LIMIT:
        raise ValueError(f"an input with its margins exceeds {LIMIT} elements")


def product(session: Session, op: str, x: Tensor, y: Tensor, options: dict[str, Any], bits: int = 64) -> Tensor:
    """Share of op(x, y, **options) mod 2^bits from shares of both, int64, with anything above; op of `ring.BILINEAR`.

    With e = x + a and d = y + b opened: xy = c + op(e, y) - op(a, d), y at party 0 alone being d less its share of b.
    Cost: `product_price`, `bits` bits per element of x and y, 1 round.
    """
    a, b, c = session.correlation(Triple(tuple(x.shape), tuple(y.shape), op, options, bits=bits))
    e, d = opened(session, bits, (x, a), (y, b))
    right = d - b if session.rank == 0 else -b.long()
    return c + ring.bilinear(op, e, right, bits, **options) - ring.bilinear(op, a.long(), d, bits, **options)


def product_price(left: int, right: int, out: int, parties: int, bits: int = 64) -> Cost:
    """Price of one `product` (matrix product, convolution, ...) of operands with these numbers of elements, for `out`
    results mod 2^bits: 1 round.
    """
    return cost.opening(parties, packed(bits * left) + packed(bits * right), 8 * packed(bits * out))


@dataclass(frozen=True)
class Times(Operation):
    """x y, element by element, with broadcasting; of shares of the result `bits` low bits are read."""

    bits: int = 64

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    def run(self, session: Session, x: Tensor, y: Tensor) -> Tensor:
        return product(session, "mul", x, y, {}, self.bits)

    def price(self, parties: int, x: Tensor, y: Tensor) -> Cost:
        return product_price(x.numel(), y.numel(), (x * y).numel(), parties, self.bits)


class SquareShares(NamedTuple):
    """Shares of a mask r and of r^2."""

    r: Tensor
    square: Tensor


@dataclass(frozen=True)
class SquarePair(Request[SquareShares]):
    """r uniform in Z_2^bits; r^2."""

    kind = "square"
    shape: tuple[int, ...] = shape()
    bits: int = width()

    @cached_property
    def free(self) -> Fields:
        return {"r": Field("ring", self.shape, width=self.bits)}

    @cached_property
    def derived(self) -> Fields:
        return {"square": Field("ring", self.shape, width=self.bits)}

    def derive(self, r: Tensor) -> dict[str, Tensor]:
        return {"square": r.long() * r}

    def shares(self, **tensors: Tensor) -> SquareShares:
        return SquareShares(**tensors)


def square(session: Session, x: Tensor, bits: int = 64) -> Tensor:
    """Share of x * x mod 2^bits from a share of x, int64 of any shape. Bits above are anything.

    With e = x + r opened, and r^2 dealt: x^2 = r^2 - 2 e r + e^2. Cost: `square_price`, `bits` bits per element and 1
    round.
    """
    r, squared = session.correlation(SquarePair(tuple(x.shape), bits=bits))
    (e,) = opened(session, bits, (x, r))
    out = squared - 2 * e * r
    return out + e * e if session.rank == 0 else out


def square_price(n: int, parties: int, bits: int = 64) -> Cost:
    """Price of `square` of n elements mod 2^bits: 1 round."""
    return cost.opening(parties, packed(bits * n), 8 * packed(bits * n))


@dataclass(frozen=True)
class ShiftedSquare(Operation):
    """x (x + shift) for a public number and x with 16 bits of fraction: a product for the price of a square."""

    shift: float

    def plain(self, x: Tensor) -> Tensor:
        return x * (x + self.shift)

    def run(self, session: Session, x: Tensor) -> Tensor:
        return square(session, x) + x * int(ring.encode(torch.tensor(self.shift, dtype=torch.float64)))

    def price(self, parties: int, x: Tensor) -> Cost:
        return square_price(x.numel(), parties)


class RowShares(NamedTuple):
    """Shares of masks a and b, of the sums of each row's a^2, and of a b."""

    a: Tensor
    b: Tensor
    squares: Tensor
    products: Tensor


@dataclass(frozen=True)
class RowProducts(Request[RowShares]):
    """a uniform in Z_2^64, of this shape, b in Z_2^bits for each row, the last dimension; sums of a^2, and a b."""

    kind = "rows"
    shape: tuple[int, ...] = shape()
    bits: int = width()

    def check(self) -> None:
        if not self.shape:
            raise ValueError("no rows")

    @cached_property
    def free(self) -> Fields:
        return {"a": Field("ring", self.shape), "b": Field("ring", (*self.shape[:-1], 1), width=self.bits)}

    @cached_property
    def derived(self) -> Fields:
        sums, products = (*self.shape[:-1], 1), Field("ring", self.shape, width=self.bits)
        return {"squares": Field("ring", sums), "products": products}

    def derive(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"squares": (a * a).sum(-1, keepdim=True), "products": a * b}

    def shares(self, **tensors: Tensor) -> RowShares:
        return RowShares(**tensors)


class OpenedRows:
    """Rows of private values, opened once behind a mask: the sums of their squares, and one product with a number for
    each row. Cost: `rows_price`, 64 bits per value, and `bits` for each row with the product: a round each.

    x: int64 (..., length). With e = x + a opened, the sums s of a^2 and the products c = a b dealt: the sum of x^2 is s
    less the sum of 2 e a, and that of e^2 more; x y is c + e y - a d, with d = y + b opened.
    """

    def __init__(self, session: Session, x: Tensor, bits: int) -> None:
        self._session, self._bits = session, bits
        self._shares = session.correlation(RowProducts(tuple(x.shape), bits=bits))
        (self._opened,) = opened(session, 64, (x, self._shares.a))

    def squares(self) -> Tensor:
        """A share of the sum of each row's squares mod 2^64, (..., 1)."""
        e = self._opened
        factor = e - 2 * self._shares.a if self._session.rank == 0 else -2 * self._shares.a
        return (e * factor).sum(-1, keepdim=True) + self._shares.squares

    def times(self, y: Tensor) -> Tensor:
        """A share of x y mod 2^bits, with anything above, from a share of y, (..., 1)."""
        a, b, _, c = self._shares
        (d,) = opened(self._session, self._bits, (y, b))
        return c + self._opened * (d - b if self._session.rank == 0 else -b.long()) - a * d


def rows_price(n: int, rows: int, parties: int, bits: int) -> Cost:
    """Price of `OpenedRows` of n elements in so many rows, with the sums of squares and one product mod 2^bits: 2
    rounds.
    """
    opened_once = cost.opening(parties, 8 * n, 64 * rows + 8 * packed(bits * n))
    return opened_once + cost.opening(parties, packed(bits * rows))


@dataclass(frozen=True)
class SquaredRows(Operation):
    """The sums of the squares of each row, the last dimension, which is kept; and a function for products of x with a
    number for each row, of which `bits` low bits are read. One opening of x for both.
    """

    bits: int

    def plain(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return x.square().sum(-1, keepdim=True), lambda factors: x * factors

    def run(self, session: Session, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        rows = OpenedRows(session, x, self.bits)
        return rows.squares(), rows.times

    def price(self, parties: int, x: Tensor) -> Cost:
        return rows_price(x.numel(), math.prod(x.shape[:-1]), parties, self.bits)


def opened(session: Session, bits: int, *pairs: tuple[Tensor, Tensor]) -> list[Tensor]:
    """The sums mod 2^bits of values and masks that the parties have shares of, int64 of their shapes: one round, `bits`
    bits per element.
    """
    mine = [kernels.mask_words(value.reshape(-1), mask.reshape(-1), 0, bits) for value, mask in pairs]
    frames = zip(mine, *session.channel.exchange(*mine).values(), strict=True)
    return [
        kernels.open_words(list(parts), value.numel(), bits).view(value.shape)
        for parts, (value, _) in zip(frames, pairs, strict=True)
    ]
