"""A smooth function in one round: one masked opening selects a polynomial whose coefficients are dealt.

The parties cut the surplus fraction off their own shares (local), and open

    x^ = x + lambda  mod 2^k,      X = x^ >> m,   v = x^ mod 2^m,   L, l the same of lambda,   w = k - m bits

For D = X - L mod 2^w, as a signed number, and u = v - l, exactly x = 2^m D + u, where |u| < 2^m, for every x from
-2^(k-1) to 2^(k-1) - 2^m. For every X the dealer knows D and l. Let P_D be the polynomial of piece D, with coefficients
c_i(D). The dealer writes P_D(u / 2^m) as a polynomial in v and deals additive shares of its coefficients T_j[X], for
every X; the public X selects one row:

    T_j[X] = sum over i >= j of binomial(i, j) (-l / 2^m)^(i - j) c_i(D)
      f(x) ~ sum over j of T_j[X] (v / 2^m)^j

Every party evaluates this with its own shares. T_j has `scale` + GUARD bits of fraction. So the sum, in units of the
highest power, has shift = GUARD + degree m more bits than the result, and each party cuts them off its share: if the
sum is right mod 2^R, the result is right mod 2^(R - shift). For this, T_j itself is dealt mod 2^(R - (degree - j) m).

It takes k bits and one round, and no product of private values. Source: as for masked.py, one-time truth tables of a
function of a masked wire; polynomials in the mask's remainder are derived here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, cast

import torch
from torch import Tensor

from hummingbird import cost, kernels
from hummingbird.cost import Cost, packed
from hummingbird.kernels.shares.packing import Words, plain
from hummingbird.kernels.streams import Drawn
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.request import Draw, Request, layout, made, number, text
from hummingbird.mpc.functions.polynomials import DEGREES, GAIN, WIDEST_OF_ROWS, PolynomialTable, is_function, pieces
from hummingbird.mpc.session.session import Session


class PolynomialShares(NamedTuple):
    """A party's shares for a look-up of `count` values in a table of polynomials.

    mask: its summand of each value's mask, in the low k bits, int32 or int64 (count,).
    coefficients: for each power, lowest first, additive shares of the coefficients of all 2^w pieces, moved by the mask
        (`kernels.move_polynomials`): int32 or int64 (count 2^w,), each mod 2^(width of its power).
    """

    mask: Words
    coefficients: list[Words]


@dataclass(frozen=True)
class Polynomial(Request[PolynomialShares]):
    """Request for `count` masks and, for each mask, the coefficients of a function's table of polynomials.

    The coefficients are moved by the mask (`kernels.move_polynomials`), so that an opened value selects a row. Results
    are mod 2^bits; the other parameters are those of `PolynomialTable`.
    """

    kind = "poly"
    count: int = number()
    name: str = text(is_function, "the name of a function, or an expression")
    k: int = number(most=40)
    fraction: int = number(most=40)
    w: int = number(least=1, most=WIDEST_OF_ROWS)
    degree: int = number(least=DEGREES[0], most=DEGREES[-1])
    scale: int = number(most=40)
    gain: int = number(least=1, most=GAIN << 1)
    stretch: int = number(least=1, most=GAIN << 1)
    bits: int = number(least=1, most=64)

    def check(self) -> None:
        if self.w > self.k:
            raise ValueError(f"w {self.w} exceeds k {self.k}")
        if max(self.widths) > 64:
            raise ValueError(f"coefficients of {max(self.widths)} bits")

    @property
    def table(self) -> PolynomialTable:
        """The table of polynomials that this request's parameters describe."""
        return PolynomialTable(
            self.name, self.k, self.fraction, self.w, self.degree, self.scale, self.gain, self.stretch
        )

    @property
    def widths(self) -> list[int]:
        """How many bits the shares of the coefficients have, by power, from power 0 on."""
        return self.table.widths(self.bits)

    @cached_property
    def free(self) -> Fields:
        return {"mask": Field("ring", (self.count,), width=self.k, left=True, sparse=True)}

    @cached_property
    def derived(self) -> Fields:
        return {
            f"power_{power}": Field("ring", (self.count << self.w,), width=width, left=True, sparse=True)
            for power, width in enumerate(self.widths)
        }

    def derive(self, mask: Tensor) -> dict[str, Tensor]:
        table = self.table
        return dict(zip(self.derived, kernels.move_polynomials(pieces(table), mask.long(), table.m), strict=True))

    def correct_at_once(self, draw: Draw) -> list[Tensor]:
        table, (mask,) = self.table, self.free.values()
        lambda_ = mask.combine([plain(share) for share in draw(mask, 0)]).long()
        shares = cast("list[list[Drawn]]", [draw(item, 1) for item in self.derived.values()])
        out = kernels.deal_polynomials(pieces(table), lambda_, shares, table.m, self.widths)
        return [x.view(dtype) for x, (dtype, _) in zip(out, layout(self), strict=True)]

    def shares(self, **words: Words) -> PolynomialShares:
        return PolynomialShares(words["mask"], [words[name] for name in self.derived])


AT_ONCE = 1 << 24  # coefficients of one power in one request: 128 MiB at most, of which a party that draws stores none
TOGETHER = 2  # requests that one message serves: their shares stay in memory until the message has come


def evaluate(session: Session, share: Tensor, table: PolynomialTable, scale: int, bits: int) -> Tensor:
    """Compute this party's share mod 2^bits of f(x), for the function f of a table; int64.

    The result has `table.scale` bits of fraction.
    share: its share of x, with `scale` bits of fraction, of any shape, right mod 2^(table.k + scale - table.fraction).
        |x| <= table.most.
    Errors: `PolynomialTable.error`.
    Cost: `price`, table.k bits per value and 1 round for up to TOGETHER (AT_ONCE >> w) values.
    """
    parts = share.reshape(-1).split(TOGETHER * (AT_ONCE >> table.w))
    return torch.cat([_evaluate(session, part, table, scale, bits) for part in parts]).view(share.shape)


def _evaluate(session: Session, share: Tensor, table: PolynomialTable, scale: int, bits: int) -> Tensor:
    found = LookUp(session, share, table, scale, bits)
    return found.result(list(zip(found.words, *session.channel.exchange(*found.words).values(), strict=True)))


class LookUp:
    """A look-up of private values in a table of polynomials, whose message can travel with other messages.

    share: this party's share of the values, with `scale` bits of fraction.
    bits: how many low bits of the results' shares are right.
    words: this party's part of the message. Once all parties' parts are there, `result` takes them.
    Cost: `LookUpPrice`, for any number of values.
    """

    def __init__(self, session: Session, share: Tensor, table: PolynomialTable, scale: int, bits: int) -> None:
        self._table, self._shape = table, share.shape
        sizes = table.k, table.fraction, table.w, table.degree, table.scale, table.gain, table.stretch
        parts = share.reshape(-1).split(AT_ONCE >> table.w)
        self._counts = [part.numel() for part in parts]
        requests = (made(Polynomial, count, table.name, *sizes, bits) for count in self._counts)
        self._dealt = [session.correlation(request) for request in requests]
        pairs, shift = zip(parts, self._dealt, strict=True), scale - table.fraction
        self.words = [kernels.mask_words(part, own.mask, shift, table.k) for part, own in pairs]

    def result(self, frames: Sequence[Sequence[Tensor]]) -> Tensor:
        """Return this party's share of the looked-up values, in their shape.

        frames: for each tensor of `words`, the parts of all parties.
        """
        out = []
        for words, count in zip(frames, self._counts, strict=True):
            opened = kernels.open_words(list(words), count, self._table.k)
            out.append(combined(opened, self._dealt.pop(0), self._table))
        return torch.cat(out).view(self._shape)


class LookUpPrice(NamedTuple):
    """Price of a `LookUp`, whose message travels with others.

    payload: bytes of its message to each other party.
    offline_bits: bits that are dealt for it.
    """

    payload: int
    offline_bits: int

    @classmethod
    def of(cls, n: int, table: PolynomialTable, bits: int, parties: int) -> LookUpPrice:
        """Return the price of looking up n values in `table`. bits: how many low bits of the results must be valid."""
        most = AT_ONCE >> table.w
        sizes = [most] * (n // most) + [n % most] * (n % most > 0 or not n)
        dealt = (8 * dealt_bytes(size, table.w, table.widths(bits)) for size in sizes)
        return cls(sum(packed(size * table.k) for size in sizes), sum(dealt))


def combined(opened: Tensor, material: PolynomialShares, table: PolynomialTable) -> Tensor:
    """Compute this party's share of a table's results, int64 (n,), from opened values and the dealt coefficients.

    opened: the values plus their masks mod 2^k, int64 (n,) in 0 .. 2^k - 1, for the table's k.
    material: this party's, with the coefficients.
    """
    return kernels.evaluate_opened(opened, material.coefficients, table.m, table.w, table.shift)


def price(n: int, table: PolynomialTable, bits: int, parties: int) -> Cost:
    """Return the price of looking up n values in `table` by `evaluate`.

    bits: how many low bits of the results must be right.
    """
    most = TOGETHER * (AT_ONCE >> table.w)
    whole, rest = divmod(n, most)
    sizes = [most] * whole + [rest] * (rest > 0 or not whole)
    return sum((cost.opening(parties, *LookUpPrice.of(size, table, bits, parties)) for size in sizes), cost.FREE)


def dealt_bytes(n: int, w: int, widths: Sequence[int]) -> int:
    """Return how many bytes are dealt for looking up n values: 2^w coefficients of each power.

    widths: bits of a coefficient, by power.
    """
    return sum(packed((n << w) * width) for width in widths)
