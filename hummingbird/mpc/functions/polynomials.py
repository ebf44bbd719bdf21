"""Smooth functions as tables of polynomials, for protocols that look them up in one round (protocols/poly.py).

A value with `fraction` bits of fraction is an integer z of k bits, whose upper w bits choose a piece. With m = k - w,
piece D is a polynomial in t = z / 2^m - D that approximates the function for all -1 < t < 1. So pieces overlap, since
a mask's low bits decide which of two neighboring pieces evaluates z. A piece interpolates the function at the Chebyshev
nodes; its coefficients are in units of 2^-(scale + GUARD).

`choose` finds the number of pieces and their degree: of all tables that keep an error bound, that with the fewest bits.
The bound is absolute for activations, and relative for exp, 1/x and 1/sqrt(x), whose values differ by orders of
magnitude.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hummingbird.graph.ops import functions as expressions
from hummingbird.ring import SCALE

GAIN = 1 << SCALE  # the gain, and the stretch, that leave the function unchanged
GUARD = 2  # bits of fraction that coefficients have beyond the result's
WIDEST = 8  # bits of z that choose a piece: at most 256 pieces
WIDEST_OF_ROWS = 12  # the same for functions of one value for each row
DEGREES = (1, 2, 3)
_SLACK = 16  # units of z for the parties' rounding, half a unit each, for up to 32 parties
_LARGEST = 47  # log2 of a bound of all coefficients, in their units; moved by a mask they stay below 2^50
_PLACES = 65  # points of a piece at which errors are measured: up to degree 4 within 2^-7 of the largest error


@dataclass(frozen=True)
class Function:
    """A smooth function of real numbers, for which tables of polynomials are made.

    of: the function, on a tensor.
    slope: the largest magnitude of its derivative.
    """

    of: Callable[[Tensor], Tensor]
    slope: float


# Tables are symmetric around 0. These functions are shifted so that the needed interval is symmetric, too.
EXP_AT = 6.5  # "exp" is e^(x - this)
POWER_TO = 13.0  # "power" is e^x up to this
ROOT_AT = 0.5  # "root" is (x + this)^(-1/2), and "square-root" its reciprocal
_FLAT = 7 / 8  # left of this part of the least u, u^(-1/2) continues as its Taylor cubic, which is below it
# u^(1/2) continues there as a cubic that has the root's value, slope and curvature at the border and is 0 at u = 0.
_TO_ZERO = 15 / 8, -10 / 8, 3 / 8
SPANS = range(1, WIDEST_OF_ROWS - 1)
SPREADS = range(1, 10)


def reciprocal_at(span: int) -> float:
    """Return the number c for which the function named "reciprocal-SPAN" is 1 / (x + c).

    The table covers arguments x for which x + c lies in [0.996, 2^span + 0.43].
    """
    return 2.0 ** (span - 1) + 11 / 16


def root_at(spread: int) -> float:
    """Return the number c for which "root-SPREAD" is (x + c)^(-1/2), and "square-root-SPREAD" is (x + c)^(1/2).

    Both hold for x + c from 2^-spread to 1. Below 7/8 of 2^-spread each continues as a cubic, because the parties'
    rounding can lead to x + c = 0. There "root-SPREAD" is below 2.34 2^(spread / 2), for which a table has room, and
    "square-root-SPREAD" is 0.
    """
    return 0.5 - 2.0 ** -(spread + 6)


def _exp(x: Tensor) -> Tensor:
    return (x - EXP_AT).exp()


def _power(x: Tensor) -> Tensor:
    return x.clamp(max=POWER_TO + 1).exp()  # no value exceeds the bound; without it coefficients would grow


def _reciprocal(span: int, x: Tensor) -> Tensor:
    return (x + reciprocal_at(span)).clamp(min=0.5).reciprocal()


def _root(spread: int, at: float, x: Tensor) -> Tensor:
    u, flat = x + at, _FLAT * 2.0**-spread
    below = (1 - u / flat).clamp(0, 4)  # no value exceeds the bound; without it the cubic would outgrow coefficients
    return torch.where(u > flat, u, flat).rsqrt() * (1 + below * (1 / 2 + below * (3 / 8 + below * 5 / 16)))


def _square_root(spread: int, at: float, x: Tensor) -> Tensor:
    u, flat = x + at, _FLAT * 2.0**-spread
    t = (u / flat).clamp(-1, 1)  # no value is below -flat; without the bound the cubic would outgrow coefficients
    cubic = t * (_TO_ZERO[0] + t * (_TO_ZERO[1] + t * _TO_ZERO[2])) * math.sqrt(flat)
    return torch.where(u > flat, u.clamp(min=flat).sqrt(), cubic)


FUNCTIONS: dict[str, Function] = {
    "exp": Function(_exp, 5.0),
    "power": Function(_power, math.exp(POWER_TO)),
    "root": Function(functools.partial(_root, 2, ROOT_AT), 22.0),
    **{f"root-{n}": Function(functools.partial(_root, n, root_at(n)), 2.8 * 2.0 ** (1.5 * n)) for n in SPREADS},
    "square-root": Function(functools.partial(_square_root, 2, ROOT_AT), 12.0),
    **{
        f"square-root-{n}": Function(functools.partial(_square_root, n, root_at(n)), 6 * 2.0 ** (n / 2))
        for n in SPREADS
    },
    **{f"reciprocal-{span}": Function(functools.partial(_reciprocal, span), 1.01) for span in SPANS},
}


def is_function(name: str) -> bool:
    """Return whether a text is a key of FUNCTIONS or an expression (graph/ops/functions.py)."""
    return name in FUNCTIONS or expressions.is_expression(name)


@dataclass(frozen=True)
class PolynomialTable:
    """A smooth function of x as 2^w polynomials, one for each piece of an interval around 0.

    A party's program computes with the integer z = x 2^fraction, rounded, in place of the real number x.
    name: a key of FUNCTIONS, or an expression; both give a function f. The table's function of x is
        (gain / GAIN) f(x stretch / GAIN).
    k, fraction: how many bits z has, with its sign, and how many of them are bits of fraction.
    w: how many of z's upper bits choose the piece.
    degree: of the polynomials.
    scale: bits of fraction of the result.
    gain, stretch: integers, factors of the function's value and of its argument in units of 1 / GAIN.
    """

    name: str
    k: int
    fraction: int
    w: int
    degree: int
    scale: int
    gain: int = GAIN
    stretch: int = GAIN

    def of(self, x: Tensor) -> Tensor:
        """Compute the table's function itself at real x, without polynomials: (gain / GAIN) f(x stretch / GAIN)."""
        moved = x * (self.stretch / GAIN)
        known = FUNCTIONS.get(self.name)
        value = expressions.value(self.name, moved) if known is None else known.of(moved)
        return value * (self.gain / GAIN)

    @property
    def m(self) -> int:
        """How many low bits of the integer that stands for x do not choose a piece; the upper w bits do."""
        return self.k - self.w

    @property
    def shift(self) -> int:
        """How many low bits are cut off a polynomial's value, so that the result has `scale` bits of fraction."""
        return GUARD + self.degree * self.m

    @property
    def shown(self) -> str:
        """How many pieces of which degree the table has, as a text: "2^6 cubics"."""
        return f"2^{self.w} {('lines', 'parabolas', 'cubics')[self.degree - 1]}"

    @property
    def most(self) -> float:
        """The largest |x| for which the table is right."""
        return ((1 << self.k - 1) - (1 << self.m) - _SLACK) * 2.0**-self.fraction

    def widths(self, bits: int) -> list[int]:
        """Return how many bits the shares of a polynomial's coefficients have, by power, from power 0 on.

        bits: how many low bits of the result's shares must be right.
        """
        return [bits + GUARD + power * self.m for power in range(self.degree + 1)]

    def dealt(self, bits: int) -> int:
        """Return how many bits are dealt for a value if `bits` low bits of the result's shares must be right."""
        return sum(self.widths(bits)) << self.w

    def error(self, parties: int, reach: float | None = None) -> float:
        """Return a bound of the error of the table's results for |x| <= reach, if `parties` parties hold shares.

        reach: None for `most`. The bound adds up the error of the polynomials (`fit_error`) and rounding errors. Each
        party rounds its share of x, as an integer, and its share of the result by half a unit. A coefficient is rounded
        twice by half a unit: in the fit, and when the dealer shifts the table by a mask.
        """
        known, unit = FUNCTIONS.get(self.name), 2.0**-self.scale
        reach = self.most if reach is None else reach
        slope = steepest(self.name, reach * self.stretch / GAIN) if known is None else known.slope
        rounded = parties / 2 * (slope * (self.gain / GAIN) * (self.stretch / GAIN) * 2.0**-self.fraction + unit)
        return rounded + (self.degree + 1) * unit / 2**GUARD + fit_error(self, reach)


@functools.lru_cache(256)
def pieces(table: PolynomialTable) -> Tensor:
    """Compute the coefficients of the table's polynomials, int64 (2^w, degree + 1), lowest power first.

    Piece D, a signed number, is in row D mod 2^w. Its polynomial's argument is t = z / 2^m - D, where z is the integer
    that stands for x and m the table's `m`; so t is 0 at the piece's middle. Coefficients are in units of 2^-(scale +
    GUARD). A piece on which an expression has a pole, is too large or does not exist is 0; `fit_error` counts it.
    """
    found, finite = _solved(table)
    found = found * 2.0 ** (table.scale + GUARD)
    exists = finite & ((found.abs() < 2.0**_LARGEST).all(1) | (table.name in FUNCTIONS))
    return torch.where(exists[:, None], found, 0).round().long()


def _solved(table: PolynomialTable) -> tuple[Tensor, Tensor]:
    """Return the unrounded coefficients of `pieces`, (2^w, degree + 1), and which rows have finite values, (2^w,)."""
    count = table.degree + 1
    t = torch.cos((torch.arange(count, dtype=torch.float64) + 0.5) * (math.pi / count))
    number = torch.arange(1 << table.w)
    signed = (number + (1 << table.w - 1)) % (1 << table.w) - (1 << table.w - 1)
    x = (signed[:, None] + t) * 2.0 ** (table.m - table.fraction)
    values = table.of(x)
    powers = torch.linalg.vander(t, N=count)
    return torch.linalg.solve(powers, values.T.nan_to_num()).T, values.isfinite().all(1)


@functools.cache
def fit_error(table: PolynomialTable, most: float, least: float | None = None) -> float:
    """Return a bound of the error of the table's polynomials, with rounded coefficients, for |x| <= most.

    Each polynomial counts on its own piece and on half of each neighbor: a random mask decides which of two neighboring
    pieces evaluates an x between their middles.
    least: None for a bound of the error itself; otherwise the error is divided by max(|f(x)|, least), for the table's
        function f.
    """
    return _error(table, pieces(table).double() * 2.0 ** -(table.scale + GUARD), most, least) * (1 + 2.0**-7)


def fits(table: PolynomialTable, most: float, allowed: float) -> bool:
    """Return whether `fit_error(table, most)` is at most `allowed`.

    Tables of other scales and fractions have polynomials of the same functions, but for roundings. If these err by too
    much unrounded, which is known from the first of such tables, nothing else is computed.
    """
    alike = replace(table, k=table.w, fraction=table.fraction - table.m, scale=0)
    rounded = (table.degree + 1) * 2.0 ** -(table.scale + GUARD + 1)
    least = _unrounded_error(alike, most) * (1 - 2.0**-20) - rounded  # a millionth for this computation's own roundings
    return least * (1 + 2.0**-7) <= allowed and fit_error(table, most) <= allowed


@functools.cache
def _unrounded_error(table: PolynomialTable, most: float) -> float:
    """Return the largest error of the table's polynomials for |x| <= most, with unrounded coefficients."""
    return _error(table, _solved(table)[0], most, None)


def _error(table: PolynomialTable, rows: Tensor, most: float, least: float | None) -> float:
    """Return the largest error for |x| <= most of polynomials with coefficients `rows`, in the order of `pieces`."""
    t = torch.linspace(-1, 1, _PLACES, dtype=torch.float64)
    half = 1 << table.w - 1
    x = (torch.arange(-half, half)[:, None] + t) * 2.0 ** (table.m - table.fraction)
    rows = rows.roll(half, 0)
    value = rows[:, -1:].expand_as(x)
    for power in reversed(range(table.degree)):
        value = value * t + rows[:, power, None]
    wanted = table.of(x)
    error = (value - wanted).abs()
    if least is not None:
        error = error / wanted.abs().clamp(min=least)
    return float(error[x.abs() <= most].nan_to_num(nan=math.inf).max())


def evaluate(table: PolynomialTable, x: Tensor, random: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Compute the table's results for real x, as a simulation does; return them in x's type.

    x is rounded to an integer of k bits as in the protocol, where larger numbers wrap. Without `random` it is rounded
    to the nearest, and so is the result, the value of the polynomial whose piece has the nearest middle. With `random`
    roundings go up or down, and one of the two next pieces is taken, with the chances that masks and shares of two
    parties have. The gradient is that of the table's function, for |x| <= table.most.
    random: returns numbers from 0 to 1, float64 of its argument's shape, at random.
    """
    half, unit = 1 << table.k - 1, 1 << table.m

    def rounded(value: Tensor) -> Tensor:
        return torch.round(value) if random is None else torch.floor(value + random(value).to(value))

    z = rounded(x.detach().double() * 2.0**table.fraction).clamp(-(2.0**62), 2.0**62).long()
    z = (z + half) % (2 * half) - half
    place = (z + (unit // 2 if random is None else (random(x) * unit).long())) >> table.m
    t = (z - place * unit).to(x.dtype) / unit
    rows = (pieces(table).to(x.device).double() * 2.0 ** -(table.scale + GUARD)).to(x.dtype)
    place = place % (1 << table.w)
    value = rows[place, table.degree]
    for power in reversed(range(table.degree)):
        value = value * t + rows[place, power]
    value = rounded(value * 2.0**table.scale) * 2.0**-table.scale
    if not (torch.is_grad_enabled() and x.requires_grad):
        return value
    smooth = table.of(x.clamp(-table.most, table.most))
    return smooth + (value - smooth).detach()


@functools.cache
def steepest(name: str, most: float) -> float:
    """Return the largest slope of an expression for |x| <= most, between neighbours of 2^12 + 1 points."""
    x = torch.linspace(-most, most, (1 << 12) + 1, dtype=torch.float64)
    slopes = (expressions.value(name, x).diff() / x.diff()).abs()
    return float(slopes[slopes.isfinite()].max())


def least_k(most: float, fraction: int, widest: int = WIDEST) -> int:
    """Return the fewest bits that x 2^fraction has as an integer so that 2^widest pieces are right for |x| <= most."""
    return next(k for k in range(widest, 62) if PolynomialTable("", k, fraction, widest, 1, 0).most >= most)


@functools.cache
def choose(
    name: str,
    most: float,
    fraction: int,
    integers: int,
    scale: int | None = None,
    allowed: float | None = None,
    least: float | None = None,
    widest: int = WIDEST,
    gain: int = GAIN,
    stretch: int = GAIN,
    k: int | None = None,
) -> PolynomialTable | None:
    """Choose the table of a function for |x| <= most whose coefficients have the fewest bits in all.

    Returns None if no table has both an error within the bound and coefficients of at most 64 bits.
    name: a key of FUNCTIONS, or an expression.
    fraction: bits of fraction of x.
    integers: how many integer bits of the results, with the sign, must be right.
    scale: bits of fraction of the results; None: `fraction`.
    allowed: bound of the polynomials' error, as `fit_error` finds it; None: half a unit of the result, 2^-(scale + 1).
    least: None if `allowed` bounds the error itself; otherwise `allowed` bounds the error divided by max(|f(x)|,
        least).
    widest: the most bits of x that choose a piece.
    gain, stretch: factors of the function's value and of its argument, as integers in units of 1 / GAIN.
    k: how many bits x has as an integer; None: as many as hold `most`. These are those of `least_k` with the most
        pieces, or one more: `most` may be so near to a power of two that few pieces need a wider interval.
    """
    scale = fraction if scale is None else scale
    allowed = 2.0 ** -(scale + 1) if allowed is None else allowed
    ks = range(least_k(most, fraction, widest), least_k(most, fraction, 2) + 1) if k is None else (k,)
    sizes = itertools.product(ks, range(2, widest + 1), DEGREES)
    tables = (PolynomialTable(name, k, fraction, w, degree, scale, gain, stretch) for k, w, degree in sizes)
    bits = integers + scale
    good = [table for table in tables if table.most >= most and table.widths(bits)[-1] <= 64]
    good.sort(key=lambda table: table.dealt(bits))
    return next((table for table in good if fit_error(table, most, least) <= allowed), None)
