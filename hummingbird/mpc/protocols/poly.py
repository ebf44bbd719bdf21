"""A smooth function in one round: a masked opening whose answer is a polynomial with dealt coefficients.

The parties cut the surplus fraction off their own shares (local), and open

    x^ = x + lambda  mod 2^k,      X = x^ >> m,   v = x^ mod 2^m,   L, l the same of lambda,   w = k - m bits

For D = X - L mod 2^w, with its sign, and u = v - l, exactly x = 2^m D + u, where |u| < 2^m, for every x from -2^(k-1)
to 2^(k-1) - 2^m. For every X the dealer knows D and l. It deals additive shares of the coefficients T_j[X] of
P_D(u / 2^m) as a polynomial in v (correlations/poly.py), of which X, that is public, chooses one row:

    f(x) ~ sum over j of T_j[X] (v / 2^m)^j

Every party computes this of its own shares. T_j has `scale` + GUARD bits of fraction, so that the sum in units of the
highest power has shift = GUARD + degree m bits more than the result, which each party cuts off its share: of a sum that
is right mod 2^R the result is right mod 2^(R - shift). T_j itself is dealt mod 2^(R - (degree - j) m), no more.

k bits and one round, no product of private values. Source: as masked.py's, one-time truth tables of a function of a
masked wire; polynomials in the mask's remainder are derived here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird import cost, kernels
from hummingbird.cost import Cost
from hummingbird.kernels.shares.words import plain
from hummingbird.mpc.correlations.poly import Polynomial, PolynomialShares
from hummingbird.mpc.functions.polynomials import PolynomialTable
from hummingbird.mpc.session.session import Session

AT_ONCE = 1 << 24  # coefficients of one power that are dealt at a time, 128 MiB
TOGETHER = 2  # times as many are looked up by one message: what is dealt for them is held until it has come


def evaluate(session: Session, share: Tensor, table: PolynomialTable, scale: int, bits: int) -> Tensor:
    """Shares mod 2^bits of the table's function, at `table.scale`, int64 of any shape, from shares of x at `scale`.

    |x| <= table.most, and shares are right mod 2^(table.k + scale - table.fraction). Errors: `PolynomialTable.error`.
    Cost: `price`, table.k bits and 1 round for up to TOGETHER (AT_ONCE >> w) values.
    """
    parts = share.reshape(-1).split(TOGETHER * (AT_ONCE >> table.w))
    return torch.cat([_evaluate(session, part, table, scale, bits) for part in parts]).view(share.shape)


def _evaluate(session: Session, share: Tensor, table: PolynomialTable, scale: int, bits: int) -> Tensor:
    found = LookUp(session, share, table, scale, bits)
    return found.result(list(zip(found.words, *session.channel.exchange(*found.words).values(), strict=True)))


class LookUp:
    """A look-up whose opening others share: `words` is this party's part of the message, and `result` takes the parts
    of all parties. Arguments as of `evaluate`; cost: `LookUpPrice`, however many values.
    """

    def __init__(self, session: Session, share: Tensor, table: PolynomialTable, scale: int, bits: int) -> None:
        self._table, self._shape = table, share.shape
        sizes = table.k, table.fraction, table.w, table.degree, table.scale, table.gain, table.stretch
        parts = share.reshape(-1).split(AT_ONCE >> table.w)
        self._counts = [part.numel() for part in parts]
        self._dealt = [session.correlation(Polynomial(count, table.name, *sizes, bits)) for count in self._counts]
        pairs, shift = zip(parts, self._dealt, strict=True), scale - table.fraction
        self.words = [kernels.mask_words(part, own.mask, shift, table.k) for part, own in pairs]

    def result(self, frames: Sequence[Sequence[Tensor]]) -> Tensor:
        """Shares of the result, of the values' shape."""
        out = []
        for words, count in zip(frames, self._counts, strict=True):
            opened = kernels.open_words(list(words), count, self._table.k)
            out.append(combined(opened, self._dealt.pop(0), self._table))
        return torch.cat(out).view(self._shape)


class LookUpPrice(NamedTuple):
    """The price of a `LookUp`: bytes that it sends to another party, and bits that are dealt for it."""

    payload: int
    offline_bits: int

    @classmethod
    def of(cls, n: int, table: PolynomialTable, bits: int, parties: int) -> LookUpPrice:
        """For n values."""
        most = AT_ONCE >> table.w
        sizes = [most] * (n // most) + [n % most] * (n % most > 0 or not n)
        dealt = (cost.polynomial(size, table.k, table.w, table.widths(bits), parties).offline_bits for size in sizes)
        return cls(sum(cost.packed(size * table.k) for size in sizes), sum(dealt))


def combined(opened: Tensor, material: PolynomialShares, table: PolynomialTable) -> Tensor:
    """This party's share of the result, int64 (n,), from opened words, int64 (n,) in 0 .. 2^k - 1."""
    row = (torch.arange(opened.numel(), device=opened.device) << table.w) + (opened >> table.m)
    low, total = opened & ((1 << table.m) - 1), torch.zeros_like(opened)
    for power, words in enumerate(material.coefficients):
        place = (table.degree - power) * table.m
        total += (plain(words)[row].long() << place) * low**power  # mod 2^64: only the low R <= 64 bits count
    return (total + (1 << table.shift >> 1)) >> table.shift


def price(n: int, table: PolynomialTable, bits: int, parties: int) -> Cost:
    """Price of `evaluate` on n values."""
    most = TOGETHER * (AT_ONCE >> table.w)
    whole, rest = divmod(n, most)
    sizes = [most] * whole + [rest] * (rest > 0 or not whole)
    return sum((cost.opening(parties, *LookUpPrice.of(size, table, bits, parties)) for size in sizes), cost.FREE)
