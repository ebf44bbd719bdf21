"""Smooth functions as tables of polynomials, for the protocol that looks one up in one round (protocols/poly.py).

A value with `fraction` bits of fraction is a whole number z of k bits, its upper w bits say which piece it is in. With
m = k - w, piece D is a polynomial in t = z / 2^m - D that serves all of -1 < t < 1: two segments, for a mask's low bits
decide whether a z between two pieces meets the one or the other. Its coefficients are those through Chebyshev's places,
in units of 2^-(scale + GUARD).

How many pieces, of which degree, a bound of the error decides: of all that keep it, those of the fewest bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

GUARD = 2  # bits of a coefficient below the result's last one
WIDEST = 8  # bits of z that choose a piece: at most 256 pieces
DEGREES = (1, 2, 3)
_SLACK = 16  # units of z that the roundings of parties, of which there are at most 2 of these, may take
_PLACES = 65  # of each piece, where its error is measured: of a degree of at most 4, the largest within 2^-7 of it


@dataclass(frozen=True)
class Function:
    """A smooth function of real numbers, and how steep it is at most.

    end: it is within 2^-14 of 0, of 1 or of -1, or of x where it `rises`, beyond +-end.
    """

    of: Callable[[Tensor], Tensor]
    slope: float
    end: float
    rises: bool


FUNCTIONS = {
    "sigmoid": Function(torch.sigmoid, 0.25, 11.0, False),
    "tanh": Function(torch.tanh, 1.0, 6.0, False),
    "silu": Function(torch.nn.functional.silu, 1.1, 13.0, True),
    "gelu-none": Function(torch.nn.functional.gelu, 1.13, 6.0, True),
    "gelu-tanh": Function(functools.partial(torch.nn.functional.gelu, approximate="tanh"), 1.13, 6.0, True),
}


@dataclass(frozen=True)
class Table:
    """A function as 2^w polynomials of `degree` in z, which has k bits, `fraction` of them of fraction.

    Results have `scale` bits of fraction.
    """

    name: str
    k: int
    fraction: int
    w: int
    degree: int
    scale: int

    @property
    def m(self) -> int:
        """Bits of z below those that choose a piece."""
        return self.k - self.w

    @property
    def shift(self) -> int:
        """Bits that are cut off a sum of terms."""
        return GUARD + self.degree * self.m

    @property
    def most(self) -> float:
        """The table is for |x| up to this."""
        return ((1 << self.k - 1) - (1 << self.m) - _SLACK) * 2.0**-self.fraction

    def widths(self, bits: int) -> list[int]:
        """Bits of the shares of each coefficient, lowest power first, where `bits` of the result's shares count."""
        return [bits + GUARD + power * self.m for power in range(self.degree + 1)]

    def error(self, parties: int) -> float:
        """Bound of the error, for |x| <= most: of the pieces, and of what is rounded.

        Every party rounds its share of z by half a unit, and its share of the result; a coefficient is rounded twice,
        each time by half a unit, as it is fitted and when the mask moves it.
        """
        function = FUNCTIONS[self.name]
        unit = 2.0**-self.scale
        rounded = parties / 2 * (function.slope * 2.0**-self.fraction + unit)
        return rounded + (self.degree + 1) * unit / 2**GUARD + fit_error(self, self.most)


@functools.lru_cache(256)
def pieces(table: Table) -> Tensor:
    """Coefficients of all pieces, int64 (2^w, degree + 1), lowest power of t first; piece D in row D mod 2^w."""
    count = table.degree + 1
    t = torch.cos((torch.arange(count, dtype=torch.float64) + 0.5) * (math.pi / count))
    number = torch.arange(1 << table.w)
    signed = (number + (1 << table.w - 1)) % (1 << table.w) - (1 << table.w - 1)
    x = (signed[:, None] + t) * 2.0 ** (table.m - table.fraction)
    values = FUNCTIONS[table.name].of(x)
    powers = torch.linalg.vander(t, N=count)
    found = torch.linalg.solve(powers, values.T).T
    return (found * 2.0 ** (table.scale + GUARD)).round().long()


@functools.cache
def fit_error(table: Table, most: float) -> float:
    """Bound of the error of pieces, on all values up to +-most that may meet them, coefficients as they are rounded."""
    t = torch.linspace(-1, 1, _PLACES, dtype=torch.float64)
    half = 1 << table.w - 1
    x = (torch.arange(-half, half)[:, None] + t) * 2.0 ** (table.m - table.fraction)
    rows = pieces(table).roll(half, 0).double() * 2.0 ** -(table.scale + GUARD)
    value = rows[:, -1:].expand_as(x)
    for power in reversed(range(table.degree)):
        value = value * t + rows[:, power, None]
    return float((value - FUNCTIONS[table.name].of(x)).abs()[x.abs() <= most].max()) * (1 + 2.0**-7)


def evaluate(table: Table, x: Tensor) -> Tensor:
    """The table at real x, of x's type: of the piece whose middle is nearest; values beyond 2^k wrap as they do in the
    protocol. The gradient is the function's own, where |x| <= most.
    """
    half, unit = 1 << table.k - 1, 1 << table.m
    z = torch.round(x.detach().double() * 2.0**table.fraction).clamp(-(2.0**62), 2.0**62).long()
    z = (z + half) % (2 * half) - half
    place = (z + unit // 2) >> table.m
    t = (z - place * unit).to(x.dtype) / unit
    rows = (pieces(table).to(x.device).double() * 2.0 ** -(table.scale + GUARD)).to(x.dtype)
    place = place % (1 << table.w)
    value = rows[place, table.degree]
    for power in reversed(range(table.degree)):
        value = value * t + rows[place, power]
    value = torch.round(value * 2.0**table.scale) * 2.0**-table.scale
    if not (torch.is_grad_enabled() and x.requires_grad):
        return value
    smooth = FUNCTIONS[table.name].of(x.clamp(-table.most, table.most))
    return smooth + (value - smooth).detach()


@functools.cache
def choose(name: str, most: float, fraction: int, integers: int) -> Table | None:
    """The table of the fewest bits for |x| <= most whose results are right in `integers` bits before the point, sign
    included; None if there is none.

    Its pieces err by half a unit of the result at most, 2^-(fraction + 1).
    """
    k = next(k for k in range(WIDEST, 62) if Table(name, k, fraction, WIDEST, 1, fraction).most >= most)
    tables = (Table(name, k, fraction, w, degree, fraction) for w in range(2, WIDEST + 1) for degree in DEGREES)
    bits = {table: table.widths(integers + fraction) for table in tables if table.most >= most}
    good = (table for table in sorted(bits, key=lambda table: sum(bits[table]) << table.w) if bits[table][-1] <= 64)
    return next((table for table in good if fit_error(table, most) <= 2.0 ** -(fraction + 1)), None)
