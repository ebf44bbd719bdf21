"""Products of two private values from a dealt product of masks (Beaver, CRYPTO 1991): one opening of both values.

A product mod 2^R depends on its operands mod 2^R only. So masks, openings and dealt shares have R bits, as many as
later layers read (mpc/plan/rounding_plan.py). The bits of a share above R are arbitrary.
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
from hummingbird.mpc.correlations.request import LIMIT, Request, Shares, one_of, options, shape, width
from hummingbird.mpc.protocols.interfaces import Operation
from hummingbird.mpc.session.session import Session


class TripleShares(NamedTuple):
    """A party's shares of random masks a and b, and of their product c; int32 for at most 32 bits, else int64."""

    a: Tensor
    b: Tensor
    c: Tensor


@dataclass(frozen=True)
class DealtProduct(Request[Shares]):
    """Base of requests for a product c = op(a, b, **kwargs) mod 2^bits of two random masks a and b.

    size0, size1: shapes of a and b, as torch's function of the name `op` takes them.
    op: a name of `ring.BILINEAR`, such as "matmul".
    kwargs: options of a convolution, such as its stride.
    """

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
    """Request for random masks a and b, uniform mod 2^bits, and for their product c = op(a, b, **kwargs).

    size0, size1: shapes of a and b, as torch's function of the name `op` takes them.
    """

    kind = "additive"

    @cached_property
    def free(self) -> Fields:
        return {"a": Field("ring", self.size0, width=self.bits), "b": Field("ring", self.size1, width=self.bits)}

    def shares(self, **tensors: Tensor) -> TripleShares:
        return TripleShares(**tensors)


def _product_shape(size0: Sequence[int], size1: Sequence[int], op: str, kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Return the shape of the product op(a, b, **kwargs), which torch finds on meta tensors.

    size0, size1: shapes of a and b.
    """
    if op == "mul":  # to broadcast on the meta device, torch first imports its compiler: 1.6 s
        return tuple(torch.broadcast_shapes(size0, size1))
    a, b = torch.empty(size0, device="meta"), torch.empty(size1, device="meta")
    return tuple(getattr(torch, op)(a, b, **kwargs).shape)


def _check_margins(size0: Sequence[int], size1: Sequence[int], op: str, kwargs: dict[str, Any]) -> None:
    """Raise ValueError if a convolution's input, together with its margins, has more elements than a request may have.

    size0, size1: shapes of input and weights. op, kwargs: torch's name of the convolution, and its options.
    A convolution's margins are its padding. Those of a transposed convolution are the difference between the dilated
    kernel's reach and the padding, and its strides put gaps between the input's elements. The size of the result bounds
    none of this: dilation removes what padding adds.
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
    """Compute a share of op(x, y, **options) mod 2^bits, int64, from shares of x and y. The bits above are arbitrary.

    op: a name of `ring.BILINEAR`, such as "matmul".
    x, y: this party's shares, int64, in shapes that torch's `op` takes.
    The dealer deals shares of masks a and b and of c = op(a, b). The parties open e = x + a and d = y + b. The product
    is c + op(e, y) - op(a, d). A party uses its shares of c and a; for y it takes minus its share of b, to which party
    0 adds d.
    Cost: `product_price`, `bits` bits per element of x and y, 1 round.
    """
    a, b, c = session.correlation(Triple(tuple(x.shape), tuple(y.shape), op, options, bits=bits))
    e, d = opened(session, bits, (x, a), (y, b))
    right = d - b if session.rank == 0 else -b.long()
    return c + ring.bilinear(op, e, right, bits, **options) - ring.bilinear(op, a.long(), d, bits, **options)


def product_price(left: int, right: int, out: int, parties: int, bits: int = 64) -> Cost:
    """Return the price of `product`, a product such as a matrix product or a convolution: 1 round.

    left, right, out: numbers of elements of the operands and of the result.
    bits: the result is mod 2^bits.
    """
    return cost.opening(parties, packed(bits * left) + packed(bits * right), 8 * packed(bits * out))


@dataclass(frozen=True)
class Times(Operation):
    """Operation that gives the product x y, element by element, with broadcasting.

    bits: how many low bits of the result's shares later layers read.
    """

    bits: int = 64

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    def run(self, session: Session, x: Tensor, y: Tensor) -> Tensor:
        return product(session, "mul", x, y, {}, self.bits)

    def price(self, parties: int, x: Tensor, y: Tensor) -> Cost:
        return product_price(x.numel(), y.numel(), (x * y).numel(), parties, self.bits)


@dataclass(frozen=True)
class Dots(Operation):
    """Operation that multiplies two values and sums the products along the last dimension, which then has size 1.

    The other dimensions are broadcast. A sum costs the dealer one number, whatever the rows' length.
    shift: how many bits of fraction are cut off both values before; every party rounds its own share.
    bits: how many low bits of the result's shares later layers read.
    """

    shift: int
    bits: int

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sum(-1, keepdim=True)

    def run(self, session: Session, x: Tensor, y: Tensor) -> Tensor:
        x, y = ((value + (1 << self.shift >> 1)) >> self.shift for value in (x, y))
        found = product(session, "matmul", x.unsqueeze(-2).contiguous(), y.unsqueeze(-1).contiguous(), {}, self.bits)
        return found.squeeze(-1)

    def price(self, parties: int, x: Tensor, y: Tensor) -> Cost:
        out = math.prod(torch.broadcast_shapes(x.shape[:-1], y.shape[:-1]))
        return product_price(x.numel(), y.numel(), out, parties, self.bits)


class SquareShares(NamedTuple):
    """A party's shares of a random mask r and of r^2."""

    r: Tensor
    square: Tensor


@dataclass(frozen=True)
class SquarePair(Request[SquareShares]):
    """Request for random masks r, uniform mod 2^bits, of this shape, and for r^2; a square uses them."""

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
    """Compute a share of x * x mod 2^bits from a share of x, int64 of any shape. The bits above are arbitrary.

    A dealer deals a mask r and r^2; with e = x + r opened, x^2 = r^2 - 2 e r + e^2. Cost: `square_price`, `bits` bits
    per element, 1 round.
    """
    r, squared = session.correlation(SquarePair(tuple(x.shape), bits=bits))
    (e,) = opened(session, bits, (x, r))
    out = squared - 2 * e * r
    return out + e * e if session.rank == 0 else out


def square_price(n: int, parties: int, bits: int = 64) -> Cost:
    """Return the price of `square` on n elements, mod 2^bits: 1 round."""
    return cost.opening(parties, packed(bits * n), 8 * packed(bits * n))


@dataclass(frozen=True)
class ShiftedSquare(Operation):
    """Operation that gives x (x + shift), for the price of a square; x has 16 bits of fraction.

    shift: a public real number.
    """

    shift: float

    def plain(self, x: Tensor) -> Tensor:
        return x * (x + self.shift)

    def run(self, session: Session, x: Tensor) -> Tensor:
        return square(session, x) + x * int(ring.encode(torch.tensor(self.shift, dtype=torch.float64)))

    def price(self, parties: int, x: Tensor) -> Cost:
        return square_price(x.numel(), parties)


class RowShares(NamedTuple):
    """A party's shares of what is dealt for a `RowProducts`, for rows x of values and one factor y for each row.

    a: of the masks of all values in x. b: of the masks of the factors y.
    squares: of the sum of a^2 over each row.
    products: of a b.
    """

    a: Tensor
    b: Tensor
    squares: Tensor
    products: Tensor


@dataclass(frozen=True)
class RowProducts(Request[RowShares]):
    """Request for what it takes to compute, for each row x of shared values, the sum of x^2, and x y for one factor y.

    A row is a vector along the last dimension of `shape`; every row has its own y, a shared number. Dealt are random
    masks: a for the values, of this shape, uniform mod 2^64, and b for the factors, one number for each row, uniform
    mod 2^bits. Also dealt: the sum of a^2 over each row, and the product a b.
    """

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
    """Rows of private values x, opened once behind a mask, to sum each row's squares and to multiply each row.

    x: this party's share, int64 (..., length).
    bits: the product of a row with a factor y is right mod 2^bits.
    The opened value is e = x + a, with a mask a. Of a, two things are dealt: s, the sum of a^2 over each row, and c,
    the product of a and a mask b of y. The sum of x^2 over a row is then s plus the sum of e^2 - 2 e a. And the product
    of x and y is c + e y - a d, where d = y + b is opened.
    Cost: `rows_price`. One round opens x, 64 bits per value; another opens y, `bits` bits per row.
    """

    def __init__(self, session: Session, x: Tensor, bits: int) -> None:
        self._session, self._bits = session, bits
        self._shares = session.correlation(RowProducts(tuple(x.shape), bits=bits))
        (self._opened,) = opened(session, 64, (x, self._shares.a))

    def squares(self) -> Tensor:
        """Return a share of the sum of each opened row's squares mod 2^64, (..., 1). Nothing is sent."""
        e = self._opened
        factor = e - 2 * self._shares.a if self._session.rank == 0 else -2 * self._shares.a
        return (e * factor).sum(-1, keepdim=True) + self._shares.squares

    def times(self, y: Tensor) -> Tensor:
        """Compute a share of x y mod 2^bits, where x are the opened rows; takes one round.

        y: this party's share of a factor for each row, (..., 1).
        `bits` is that of the constructor; the result's bits above are arbitrary.
        """
        a, b, _, c = self._shares
        (d,) = opened(self._session, self._bits, (y, b))
        return c + self._opened * (d - b if self._session.rank == 0 else -b.long()) - a * d


def rows_price(n: int, rows: int, parties: int, bits: int) -> Cost:
    """Return the price of an `OpenedRows` with its sums of squares and one product mod 2^bits: 2 rounds.

    n: number of values in all rows.
    rows: number of rows.
    """
    opened_once = cost.opening(parties, 8 * n, 64 * rows + 8 * packed(bits * n))
    return opened_once + cost.opening(parties, packed(bits * rows))


@dataclass(frozen=True)
class SquaredRows(Operation):
    """Operation that gives the sum of each row's squares, and a function that multiplies each row by a number.

    The function takes a number for each row, (..., 1), and returns the products. Sum and products take one opening of
    the rows. A row is a vector along the last dimension, which the sums keep with size 1.
    bits: how many low bits of the products later layers read.
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
    """Open values behind masks: return each value plus its mask, mod 2^bits, int64 in the value's shape.

    pairs: this party's share of a value, and its share of the mask. Cost: one round, `bits` bits per element.
    """
    mine = [kernels.mask_words(value.reshape(-1), mask.reshape(-1), 0, bits) for value, mask in pairs]
    frames = zip(mine, *session.channel.exchange(*mine).values(), strict=True)
    return [
        kernels.open_words(list(parts), value.numel(), bits).view(value.shape)
        for parts, (value, _) in zip(frames, pairs, strict=True)
    ]
