"""Smooth functions as quadratic splines: parabolas that meet with equal slopes, evaluated with a single product.

Between the first knot t_0 and the last one t_n, with u = min(max(x, t_0), t_n),

    f(x) = f(t_0) + b (u - t_0) + sum_j d_j relu(u - t_j)^2         for j < n
    relu(u - t_j)^2 = r_j (u - t_j)                                 r_j = relu(u - t_j) = relu(x - t_j) - relu(x - t_n)

so the sum is u (sum_j d_j r_j) - sum_j d_j t_j r_j: one product of private values for any number of knots. Outside of
the knots the curve is constant, or has slope 1/2 right of t_n: it stays close to the function for all x. The error
falls with the third power of the knots' distance, that of a linear spline with the second: for SiLU, 24 knots suffice
for 2^-14, but 2^-13 takes 61 chords.

SiLU and GELU are x / 2 plus an even function. As a function of |x| = 2 relu(x) - x the latter needs half as many knots,
after one more comparison.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird.graph.ops import functions
from hummingbird.mpc.layers.arithmetic import REALS, Arithmetic
from hummingbird.mpc.protocols.beaver import Times
from hummingbird.ring import SCALE, exponent_of

Function = Callable[[Tensor], Tensor]

TOLERANCE = 2.0**-14  # EfficientNet-B4, 128 layers, then errs by less than 1 % of its largest logit; by 3 % at 2^-12
FRACTION = 16  # bits of fraction of the bends d_j
LINE = SCALE + FRACTION  # bits of fraction of their products with knots
_TOP = SCALE + LINE + 3  # log2 in the ring: curves and their products stay below 8 if comparisons are right
_WITHIN = 7.0  # bound of curves and their products, below the 8 of _TOP
_UNIT = 2.0**-SCALE
_SPREAD = 0.0081  # largest error of a piece of width h: h^3 |f'''| times the maximum of Bernoulli's polynomial B_3, / 6
_FEEDBACK = 0.5  # part of the error at a knot that the next slope corrects: more would oscillate


class Curve(NamedTuple):
    """A function f as a quadratic spline: parabolas that meet at knots with equal slopes. Coefficients are integers.

    With knots t_0 to t_n and u = min(max(x, t_0), t_n) it is f(t_0) + b (u - t_0) + sum over j < n of d_j relu(u -
    t_j)^2.
    knots: t_0 to t_n, multiples of 2^-16, float64.
    value: f(t_0), in units of 2^-(32 + FRACTION).
    slope: b, in units of 2^-(16 + FRACTION).
    bends: d_j for j < n, in units of 2^-FRACTION.
    rises: whether the slope right of t_n is 1/2; otherwise it is 0, as it is left of t_0.
    error: the largest error between the knots.
    """

    knots: Tensor
    value: int
    slope: int
    bends: tuple[int, ...]
    rises: bool
    error: float

    @property
    def numbers(self) -> tuple[int, ...]:
        """The curve's value, slope and bends as integers: all that it consists of but its knots."""
        return self.value, self.slope, *self.bends

    @property
    def fraction(self) -> int:
        """How many bits of fraction the result has beyond 16: 1 if the curve rises, for the slope 1/2, else 0."""
        return 1 if self.rises else 0

    @property
    def start(self) -> float:
        """The curve's value at the first knot, as a float that is exact: the integer `value` times a power of two."""
        return self.value * 2.0 ** -(SCALE + LINE)

    @property
    def center(self) -> int:
        """About half of the distance from the first to the last knot, in units of 2^-16.

        The curve is evaluated with a product that has the factor u - t_0, where u is x clamped to the knots and t_0 the
        first knot. With this number subtracted, the factor is half as large.
        """
        return round(float(self.knots[-1] - self.knots[0]) / 2 / _UNIT)

    @property
    def factor(self) -> list[int]:
        """The coefficients of one factor of the product by which the curve is evaluated, one for each knot t_0 to t_n.

        The coefficient for t_j multiplies relu(x - t_j), in units of 2^-FRACTION. So the factor is the sum over j < n
        of d_j (relu(x - t_j) - relu(x - t_n)), with d_j the curve's bends.
        """
        return [*self.bends, -sum(self.bends)]

    @property
    def line(self) -> list[int]:
        """The coefficients of the linear part of the curve's function f(x), one for each knot t_0 to t_n.

        The coefficient for t_j multiplies relu(x - t_j), in units of 2^-(16 + FRACTION). f(x) is the sum of three
        terms: f(t_0); the product of u - t_0 - `center`, where u is x clamped to the knots, and of the sum that
        `factor` describes; and this linear part. It is b (u - t_0) + sum over j < n of d_j (center - (t_j - t_0)) r_j,
        where b is the curve's slope, d_j are its bends, and r_j = relu(x - t_j) - relu(x - t_n).
        """
        steps = [round(float(knot - self.knots[0]) / _UNIT) for knot in self.knots[:-1]]
        own = [bend * (self.center - step) for bend, step in zip(self.bends, steps, strict=True)]
        own[0] += self.slope
        return [*own, -sum(own)]


def fit(function: Function, ends: tuple[float, float], rises: bool) -> Curve:
    """Find the curve of a function between `ends`, with an error of at most TOLERANCE and nearly the fewest knots.

    rises: whether the curve continues with slope 1/2 to the right, instead of 0 (`Curve`).
    """
    x = torch.linspace(*ends, 4001, dtype=torch.float64, device="cpu")
    # Pieces have equal errors if their widths are proportional to |f'''|^(-1/3).
    density = (_derivative(function, x, 3).abs() + 1e-9) ** (1 / 3)
    places = torch.cat([torch.zeros(1, dtype=torch.float64), ((density[1:] + density[:-1]) / 2).cumsum(0)])
    places *= x[1] - x[0]
    count = max(2, int(float(places[-1]) * (_SPREAD / TOLERANCE) ** (1 / 3)))
    while True:
        found = _through(function, _knots(x, places, count), rises)
        inside = torch.linspace(*ends, 20001, dtype=torch.float64, device="cpu")
        error = float((evaluate(found, inside) - function(inside)).abs().max())
        if error <= TOLERANCE:
            return found._replace(error=error)
        count += 1


def _knots(x: Tensor, places: Tensor, count: int) -> Tensor:
    """Choose `count` + 1 knots from the first to the last x; return them, rounded to multiples of 2^-16.

    x: ascending.
    places: a number for each x, ascending from 0. Interpolated between the x, it grows by the same amount from each
        knot to the next: knots are dense where it grows fast.
    """
    wanted = torch.linspace(0.0, float(places[-1]), count + 1, dtype=torch.float64, device="cpu")
    index = torch.searchsorted(places, wanted).clamp(1, len(x) - 1)
    part = (wanted - places[index - 1]) / (places[index] - places[index - 1])
    knots = torch.lerp(x[index - 1], x[index], part)
    return (knots / _UNIT).round() * _UNIT


def _through(function: Function, knots: Tensor, rises: bool) -> Curve:
    """Compute the quadratic spline of `function` with these knots. Returns a `Curve` whose `error` is not measured yet.

    The spline's slope is linear between the knots. It is the function's derivative at the knots, shifted so that the
    spline has about the function's values there.
    rises: whether the slope right of the last knot is 1/2 instead of 0.
    """
    values, slopes, widths = function(knots), _derivative(function, knots, 1), knots[1:] - knots[:-1]
    excess = (slopes[1:] + slopes[:-1]) / 2 - (values[1:] - values[:-1]) / widths
    slopes[1:-1] -= (excess[1:] + excess[:-1]) / 2
    slopes[[0, -1]] -= excess[[0, -1]]
    # Rounding to integers piece by piece: each piece corrects a part of the value's error at its first knot.
    unit = 2.0**FRACTION
    now = float(values[0])
    first = slope = round(float(slopes[0]) * unit / _UNIT) * _UNIT / unit
    curvatures = []
    for goal, value, width in zip(slopes[1:].tolist(), values[:-1].tolist(), widths.tolist(), strict=True):
        wanted = goal - _FEEDBACK * (now - value) / width
        curvatures.append(round((wanted - slope) / (2 * width) * unit))
        after = slope + 2 * curvatures[-1] / unit * width
        now, slope = now + width * (slope + after) / 2, after
    bends = [curvatures[0], *(b - a for a, b in zip(curvatures, curvatures[1:], strict=False))]
    start, rise = round(float(values[0]) * unit / _UNIT**2), round(first * unit / _UNIT)
    return Curve(knots, start, rise, tuple(bends), rises, 0.0)


def _derivative(function: Function, x: Tensor, times: int) -> Tensor:
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        y = function(x)
        for _ in range(times):
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y.detach()


def evaluate(curve: Curve, x: Tensor, n: Arithmetic = REALS) -> Tensor:
    """Evaluate the curve at x, and return the result.

    n: the kind of numbers. With `REALS` the result is real, in x's type; on shares it has 16 + `curve.fraction` bits of
        fraction.
    """
    y = n.relus(n.precise(x, LINE), curve.knots.tolist())
    line, factor = n.weighted(y, curve.line, LINE), n.weighted(y, curve.factor, FRACTION)
    moved = y[0] - y[-1] - n.constant(curve.center * _UNIT)
    # Comparisons undecided up to d continue a parabola by d: bends add up to less than 2.
    top = _TOP + max(0, 2 * exponent_of(2 * n.undecided))
    whole = n.constant(curve.start, LINE) + line + n.apply(Times(top + 2), moved, factor)
    (inside,) = n.cut(LINE - curve.fraction, whole, top=top)
    return (inside + n.times(y[-1], 1, 1) if curve.rises else inside).to(x.dtype)


class Tailed(NamedTuple):
    """A function as `gain` times a curve.

    It is constant to the left of the curve's knots, and has the slope 0, 1 or -1 to their right.
    """

    curve: Curve
    gain: int


@functools.cache
def tailed(text: str, rises: bool) -> Tailed | None:
    """Return a function with tails (`graph.ops.functions.tails`) as a curve, with an error of at most 2 TOLERANCE.

    text: the function as an expression. rises: whether it is x itself for x above 0.
    Returns None for a function whose left tail has a slope, or whose curve would leave the range that `evaluate` has.
    """
    left, right = functions.tails(text, rises)
    if left is None or right is None or left.slope or abs(right.slope) > 1 or left.at >= right.at:
        return None
    gain = 2 * right.slope or 1
    inside = torch.linspace(left.at, right.at, 4001, dtype=torch.float64, device="cpu")
    values = functions.value(text, inside) / gain
    steep = float((values[1:] - values[:-1]).abs().max() / (inside[1] - inside[0]))
    if max(float(values.abs().max()), steep * (right.at - left.at) / 2) > _WITHIN:
        return None
    return Tailed(fit(lambda x: functions.value(text, x) / gain, (left.at, right.at), rises=bool(right.slope)), gain)


# The function, and the |x| from which on it is within 2^-14 of its asymptote.
_SQUASHING = {"sigmoid": (torch.sigmoid, 11.0), "tanh": (torch.tanh, 6.0)}
_EVEN: dict[str, tuple[Function, float]] = {
    "silu": (torch.nn.functional.silu, 13.0),
    "gelu-none": (torch.nn.functional.gelu, 6.0),
    "gelu-tanh": (functools.partial(torch.nn.functional.gelu, approximate="tanh"), 6.0),
}


@functools.cache
def squashing(name: str) -> Curve:
    """Return the curve of a function that is constant far from 0, with an error of at most TOLERANCE.

    name: "sigmoid" or "tanh".
    """
    function, end = _SQUASHING[name]
    return fit(function, (-end, end), rises=False)


@functools.cache
def even(name: str) -> Curve:
    """Return the curve of SiLU(x) - x / 2 or GELU(x) - x / 2 for x >= 0. This difference is an even function.

    name: "silu", "gelu-none" or "gelu-tanh".
    """
    function, end = _EVEN[name]
    return fit(lambda x: function(x) - x / 2, (0.0, end), rises=True)
