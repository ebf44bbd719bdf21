"""The dealer's side of a polynomial look-up: a mask lambda, and the coefficients that every opened value would need.

For every X, the upper w bits of what will be opened, the dealer knows the piece D = X - L mod 2^w and the mask's low
bits l. With t = (v - l) / 2^m for an opened word's low bits v, it deals shares of

    T_j[X] = sum over i >= j of binomial(i, j) (-l / 2^m)^(i - j) c_i(D),        P_D(t) = sum of T_j[X] (v / 2^m)^j
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird.kernels.devices import put
from hummingbird.kernels.shares.words import Words
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.parameters import number, one_of
from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.functions import polynomials
from hummingbird.mpc.functions.polynomials import DEGREES, FUNCTIONS, GAIN, WIDEST_OF_ROWS, PolynomialTable

_AT_ONCE = 1 << 16  # coefficients of one power that the dealer moves at a time: they stay in a core's cache


class PolynomialShares(NamedTuple):
    """A party's part of a look-up.

    mask: its summand of lambda in the low k bits, int32 or int64 (count,). coefficients: additive shares of T_j, lowest
    power first, int32 or int64 (count 2^w,), each mod 2^(width of its power).
    """

    mask: Words
    coefficients: list[Words]


@dataclass(frozen=True)
class Polynomial(Request[PolynomialShares]):
    """`count` masks and tables of a function (`polynomials.Table`); results are wanted mod 2^bits."""

    kind = "poly"
    count: int = number()
    name: str = one_of(tuple(FUNCTIONS))
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
        """The table that is looked up."""
        return PolynomialTable(
            self.name, self.k, self.fraction, self.w, self.degree, self.scale, self.gain, self.stretch
        )

    @property
    def widths(self) -> list[int]:
        """Bits of the coefficients' shares, lowest power first."""
        return self.table.widths(self.bits)

    @cached_property
    def free(self) -> Fields:
        return {"mask": Field("ring", (self.count,), width=self.k)}

    @cached_property
    def derived(self) -> Fields:
        return {
            f"power_{power}": Field("ring", (self.count << self.w,), width=width)
            for power, width in enumerate(self.widths)
        }

    def derive(self, mask: Tensor) -> dict[str, Tensor]:
        lambda_ = mask.long() & ((1 << self.k) - 1)
        parts = [moved(self.table, part) for part in lambda_.split(max(1, _AT_ONCE >> self.w))]
        return {name: torch.cat(columns) for name, columns in zip(self.derived, zip(*parts, strict=True), strict=True)}

    def shares(self, **words: Words) -> PolynomialShares:
        return PolynomialShares(words["mask"], [words[name] for name in self.derived])


def moved(table: PolynomialTable, lambda_: Tensor) -> list[Tensor]:
    """T_j[X] for every X, int64 (n 2^w,) for each power, lowest first, from lambda, int64 (n,), in 0 .. 2^k - 1.

    Binomials by repeated Horner steps, in float64: a coefficient stays below 2^(scale + GUARD + degree + the bits of
    the function's largest value), 2^50, and is rounded once, at the end.
    """
    upper = torch.arange(1 << table.w, device=lambda_.device)
    piece = (upper - (lambda_ >> table.m)[:, None]) & ((1 << table.w) - 1)
    low = (lambda_ & ((1 << table.m) - 1)).double()[:, None] * -(2.0**-table.m)
    given = put(polynomials.pieces(table), lambda_.device).double()
    found = [given[:, power][piece] for power in range(table.degree + 1)]
    for done in range(table.degree):
        for power in reversed(range(done, table.degree)):
            found[power] += found[power + 1] * low
    return [column.round_().long().view(-1) for column in found]
