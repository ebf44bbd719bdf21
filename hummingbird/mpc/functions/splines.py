"""Functions as linear splines: f(x) = f(t_0) + s (x - t_0) + sum_j c_j relu(x - t_j).

They serve softmax and its logarithm, on intervals as long as rows, and piecewise linear functions; smooth.py has the
activations. Each chord of f is as long as the allowed error permits. Then its endpoints are moved by its mean error, so
that errors have mean zero and do not add up in a sum. Left and right of the knots a spline continues along the line
that f approaches. All slopes are integers in units of the fixed point.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird.mpc.layers.arithmetic import REALS, Arithmetic
from hummingbird.ring import SCALE

_GRID = 2.0**-SCALE


class Fit(NamedTuple):
    """A linear spline of x: value + slopes[0] (x - knots[0]) + the sum over j of bends[j] relu(x - knots[j]).

    knots: multiples of 2^-16, float64.
    value: the spline's value at the first knot, in units of 2^-(16 + fraction).
    slopes: the slopes before the first knot, from each knot to the next, and after the last knot, in units of
        2^-fraction.
    fraction: bits of fraction of slopes.
    error: the largest error between the knots.
    """

    knots: Tensor
    value: int
    slopes: tuple[int, ...]
    fraction: int
    error: float

    @property
    def bends(self) -> list[int]:
        """The change of slope at each knot, in units of 2^-fraction."""
        return [after - before for before, after in itertools.pairwise(self.slopes)]

    @property
    def numbers(self) -> tuple[int, ...]:
        """All integers of the spline but its knots: the value at the first knot, then the slopes."""
        return self.value, *self.slopes

    @property
    def start(self) -> float:
        """The spline's value at the first knot, as a float that is exact: the integer `value` times a power of two."""
        return self.value * 2.0 ** -(SCALE + self.fraction)


def fit(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    ends: tuple[float, float],
    allowed: Tensor | None = None,
    fraction: int = SCALE,
) -> Fit:
    """Fit a linear spline of `function` with few knots, chosen among x, that keeps errors within `allowed`; return it.

    x: ascending, float64.
    ends: the slopes left and right of x, which are those of the function's asymptotes. With the slopes at the ends of
        x, the spline of a sigmoid would err by 1 at 20,000.
    allowed: the largest error at each x; None: every x becomes a knot.
    fraction: bits of fraction of slopes.
    Slopes are integers in units of 2^-fraction. Each is chosen to meet the function at the next knot, so that rounding
    errors do not add up.
    """
    at = x if allowed is None else x[_longest_chords(x, function(x), allowed)]
    at = (at / _GRID).round() * _GRID
    values, unit = function(at), 2.0**fraction
    if allowed is not None:
        errors = torch.stack([_mean_error(function, *chord) for chord in itertools.pairwise(at.tolist())])
        values[1:-1] -= (errors[1:] + errors[:-1]) / 2
    start = now = round(float(values[0]) * unit / _GRID)
    slopes = [round(ends[0] * unit)]
    for length, goal in zip((at[1:] - at[:-1]).tolist(), values[1:].tolist(), strict=True):
        slopes.append(round((goal * unit / _GRID - now) / (length / _GRID)))
        now += slopes[-1] * round(length / _GRID)
    slopes.append(round(ends[1] * unit))
    found = Fit(at, start, tuple(slopes), fraction, 0.0)
    inside = torch.linspace(float(at[0]), float(at[-1]), 4001, dtype=torch.float64)
    return found._replace(error=float((evaluate(found, inside) - function(inside)).abs().max()))


def _mean_error(function: Callable[[Tensor], Tensor], left: float, right: float) -> Tensor:
    """Return the mean difference between a chord and the function, for x from `left` to `right`.

    The chord is the straight line that meets the function at both ends; the function is subtracted from it. The mean is
    taken by the trapezoidal rule.
    """
    weight = torch.linspace(0.0, 1.0, 65, dtype=torch.float64)
    values = function(left + (right - left) * weight)
    distance = torch.lerp(values[0], values[-1], weight) - values
    return distance[1:-1].sum() / 64


def evaluate(curve: Fit, x: Tensor, n: Arithmetic = REALS) -> Tensor:
    """Evaluate the spline at x, and return the result.

    n: the kind of numbers. With `REALS` the result is real, in x's type; on shares it has 16 + `curve.fraction` bits of
        fraction.
    """
    y, z = n.above(n.precise(x, curve.fraction), curve.knots.tolist())
    line: Tensor | float = n.constant(curve.start, curve.fraction)
    if curve.slopes[0]:
        line = line + n.times(z, curve.slopes[0], curve.fraction)
    return n.weighted(y, curve.bends, curve.fraction, line).to(x.dtype)


def _longest_chords(x: Tensor, y: Tensor, allowed: Tensor) -> list[int]:
    """Choose knots among x so that straight lines from knot to knot approximate a function; return the knots' indices.

    Each next knot is as far away as the errors of the line to it stay within `allowed`.
    y: the function's values at x. allowed: the largest error at each x.
    """
    index = [0]
    while index[-1] < len(x) - 1:
        start, reach, too_far = index[-1], index[-1] + 1, len(x)
        while too_far - reach > 1:
            end = (reach + too_far) // 2
            part = slice(start, end + 1)
            chord = torch.lerp(y[start], y[end], (x[part] - x[start]) / (x[end] - x[start]))
            inside = bool(((chord - y[part]).abs() <= allowed[part]).all())
            reach, too_far = (end, too_far) if inside else (reach, end)
        index.append(reach)
    return index


@functools.cache
def hard_sigmoid() -> Fit:
    """Return the spline of min(max(x / 6 + 1 / 2, 0), 1), which is exact up to the rounding of 1 / 6."""
    return fit(torch.nn.functional.hardsigmoid, torch.tensor([-3.0, 3.0], dtype=torch.float64), (0.0, 0.0))


# Of slopes of 1/x, which fall to 1 / length^2: for length 2^17 rounding errs by 2^-9 of 1/x. Values stay below 2^58.
FINE = 8  # the highest m of a window in which a spline compares, if the window is chosen for it
RECIPROCAL_FRACTION = 40
LOGARITHM_FRACTION = 40  # log x < 12 stays below 2^60
LONGEST = 1 << 17  # values in a row
_RELATIVE = 2.0**-9
_ABSOLUTE = 2.0**-11


@functools.cache
def exponential(length: int) -> Fit:
    """Fit the spline of e^x for x <= 0, for a softmax over rows of `length` values; it is constant far to the left.

    The error is at most 2^-9 max(e^x, 1 / length).
    """
    start = -math.log(length) - 7.0  # values further left add less than e^-7 < 2^-10 to a sum of `length`
    x = torch.linspace(start, 0.0, 4001, dtype=torch.float64)
    return fit(torch.exp, x, (0.0, 1.0), _RELATIVE * torch.exp(x).clamp(min=1 / length))


@functools.cache
def reciprocal(length: int) -> Fit:
    """Fit the spline of 1/x on [1, length], with relative error 2^-9."""
    x = torch.linspace(0.0, math.log(max(2, length)), 4001, dtype=torch.float64).exp()
    return fit(torch.reciprocal, x, (-1.0, 0.0), _RELATIVE / x, RECIPROCAL_FRACTION)


@functools.cache
def logarithm(length: int) -> Fit:
    """Fit the spline of log x on [1, length], with an error of 2^-11; it continues as straight lines outside."""
    length = max(2, length)
    x = torch.linspace(0.0, math.log(length), 4001, dtype=torch.float64).exp()
    return fit(torch.log, x, (1.0, 1 / length), torch.full_like(x, _ABSOLUTE), LOGARITHM_FRACTION)
