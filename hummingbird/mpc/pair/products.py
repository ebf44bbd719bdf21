"""Material of products and squares: numbers of one party times bits of the other one, which are its choices (Gilboa).

    r^2 = (r^0)^2 + (r^1)^2 + 2 r^0 r^1        a b = a^0 b^0 + a^1 b^1 + a^0 b^1 + a^1 b^0

In a product of numbers x and y mod 2^B of different parties, transfer j has bit j of y as its choice and carries x as a
word of B - j bits. It takes B transfers and B (B + 1) / 2 bits, or one transfer and B bits less if it is doubled. The
choices of a b are the bits of b, those of b^1 in one direction and those of b^0 in the other. If b is broadcast, its
transfers carry a word of each element that it meets, so that rows times a factor cost 2 B transfers a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from hummingbird import prg
from hummingbird.kernels.cot import PAD_BLOCKS
from hummingbird.mpc.pair.carry import number
from hummingbird.mpc.pair.lockstep import Rounds, together
from hummingbird.mpc.pair.price import BACK, ROT, PairPrice, beside, returned, words
from hummingbird.mpc.pair.recipe import PairRecipe
from hummingbird.mpc.pair.transfers import Rot, Side
from hummingbird.mpc.protocols.beaver import RowProducts, SquarePair, Triple

_Fields = dict[str, Tensor]
_WORD = 64


@dataclass(frozen=True)
class Broadcast:
    """How elements of the smaller operand of an elementwise product meet those of the other one.

    size0, size1: shapes of the operands, which broadcast.
    """

    size0: tuple[int, ...]
    size1: tuple[int, ...]

    @property
    def size(self) -> tuple[int, ...]:
        """Return the shape of the result."""
        return tuple(torch.broadcast_shapes(self.size0, self.size1))

    @property
    def smaller(self) -> int:
        """Return which operand, 0 or 1, has fewer elements; 1 if neither has."""
        return int(math.prod(self.size1) <= math.prod(self.size0))

    @property
    def elements(self) -> int:
        """Return how many elements the smaller operand has; 0 if the result has none."""
        return math.prod((self.size0, self.size1)[self.smaller]) if math.prod(self.size) else 0

    @property
    def times(self) -> int:
        """Return how many elements of the other operand meet each of its elements; 1 if the result has none."""
        return math.prod(self.size) // self.elements if self.elements else 1

    @property
    def fits(self) -> bool:
        """Whether the larger operand has the shape of the result, so that only the smaller one is broadcast."""
        return math.prod((self.size0, self.size1)[1 - self.smaller]) == math.prod(self.size) or not self.elements

    @property
    def refused(self) -> str:
        """Say why two parties cannot make such a product; "" if they can."""
        if not self.fits:
            return "both of its operands are broadcast"
        most = PAD_BLOCKS  # a block of pads holds a word of any width
        return f"an element meets {self.times:,} others, more than {most:,}" if self.times > most else ""

    def arranged(self, found: Tensor) -> Tensor:
        """Return a tensor of the result's shape from one of shape (times, elements or more)."""
        size, small = self.size, (self.size0, self.size1)[self.smaller]
        small = (1,) * (len(size) - len(small)) + small
        repeated = [at for at, (here, whole) in enumerate(zip(small, size, strict=True)) if here != whole]
        order = repeated + [at for at in range(len(size)) if at not in repeated]
        shaped = found[:, : self.elements].reshape([size[at] for at in order])
        return shaped.permute([order.index(at) for at in range(len(size))])


def crossed(rots: Sequence[Rot], width: int, value: Tensor, doubled: int = 0) -> Rounds[Tensor]:
    """Return shares of the sender's numbers times the receiver's number, mod 2^width, int64 (rows, n).

    rots: transfers whose choices are the bits of the receiver's number, lowest first; bits without one count as 0.
    value: the sender's numbers, int64 (rows, n); of the receiver's only the shape is read.
    doubled: 1 for twice the product, else 0.
    Cost: `crossed_price`, 1 round.
    """
    found = yield from together(*(rot.words(width - j - doubled, row) for j, rot in enumerate(rots) for row in value))
    shifts = range(doubled, doubled + len(rots))
    if not len(value):
        return value
    rows = (torch.stack(found[at : at + len(value)]) for at in range(0, len(found), len(value)))
    return reduce(torch.add, (row << shift for row, shift in zip(rows, shifts, strict=True)), torch.zeros_like(value))


def crossed_price(count: int, width: int, rows: int = 1, doubled: int = 0) -> PairPrice:
    """Return the price of `crossed` with `count` transfers, whose own price is in it."""
    return beside(*[ROT] * count, words(*[width - j - doubled for j in range(count)] * rows))


def numbers_of(rots: Sequence[Rot], width: int) -> Tensor:
    """Return numbers of `width` bits, int64 (n,), whose bits are the choices of transfers; the top ones are random."""
    low, n = number([rot.own for rot in rots], rots[0].n), rots[0].n
    return low + (prg.fresh().words(n) << len(rots)) if len(rots) < width else low


def _squared(side: Side, width: int) -> Rounds[tuple[Tensor, Tensor]]:
    """Draw shared numbers mod 2^width; return shares of them and of their squares, int64 (n,)."""
    rots = [side.rot() for _ in range(width - 1)]
    own = side.words() if side.sends or not rots else numbers_of(rots, width)
    product = yield from crossed(rots, width, own[None], doubled=1)
    return own, own * own + product[0]


def _square(request: SquarePair, side: Side, transfer_bits: float) -> Rounds[_Fields]:
    own, square = yield from _squared(side, request.bits)
    return {"r": own, "square": square}


def shared_product(side: Side, width: int, a: Tensor) -> Rounds[tuple[Tensor, Tensor]]:
    """Draw shared numbers b mod 2^width; return shares of b, int64 (n,), and of a b, int64 (rows, n).

    a: this party's share of a, int64 (rows, n).
    """
    main, back = [side.rot() for _ in range(width)], [side.back() for _ in range(width)]
    b = numbers_of(back if side.sends else main, width)
    one, two = yield from together(crossed(main, width, a), crossed(back, width, a))
    return b, a * b + one + two


def shared_product_price(width: int, rows: int) -> PairPrice:
    one = crossed_price(width, width, rows)
    return one | beside(*[BACK] * width, returned(one.sent))


def _multiply(request: Triple, side: Side, transfer_bits: float) -> Rounds[_Fields]:
    times = Broadcast(request.size0, request.size1).times
    a = side.wide(times).words().view(times, side.n)
    b, c = yield from shared_product(side, request.bits, a)
    return {"a": a, "b": b, "c": c}


def _arranged(request: Triple, fields: _Fields) -> _Fields:
    how = Broadcast(request.size0, request.size1)
    a, b = how.arranged(fields["a"]).flatten(), fields["b"]
    if not how.smaller:
        a, b = b, a
    return {"a": a, "b": b, "c": how.arranged(fields["c"]).flatten()}


def _rows(request: RowProducts, side: Side, transfer_bits: float) -> Rounds[_Fields]:
    length = request.shape[-1]
    flat, square = yield from _squared(side.wide(length), _WORD)
    a, squares = flat.view(length, side.n), square.view(length, side.n)
    b, products = yield from shared_product(side, request.bits, a)
    return {"a": a, "b": b, "squares": squares.sum(0), "products": products}


def _rows_price(request: RowProducts, transfer_bits: float) -> PairPrice:
    length = request.shape[-1]
    return crossed_price(_WORD - 1, _WORD, doubled=1).times(length) + shared_product_price(request.bits, length)


def _broadcast(request: RowProducts) -> Broadcast:
    return Broadcast(request.shape, (*request.shape[:-1], 1))


def _by_row(request: RowProducts, fields: _Fields) -> _Fields:
    how = _broadcast(request)
    return {**fields, **{name: how.arranged(fields[name]).flatten() for name in ("a", "products")}}


SQUARE = PairRecipe(
    SquarePair,
    lambda request: math.prod(request.shape),
    lambda request, _: crossed_price(request.bits - 1, request.bits, doubled=1),
    _square,
)
MULTIPLY = PairRecipe(
    Triple,
    lambda request: Broadcast(request.size0, request.size1).elements,
    lambda request, _: shared_product_price(request.bits, Broadcast(request.size0, request.size1).times),
    _multiply,
    _arranged,
    lambda request: Broadcast(request.size0, request.size1).refused,
    "give one operand the shape of the result, for fewer images at a time",
)
ROWS = PairRecipe(
    RowProducts,
    lambda request: math.prod(request.shape[:-1]),
    _rows_price,
    _rows,
    _by_row,
    lambda request: _broadcast(request).refused,
    "use shorter rows, or a dealer",
)
