"""Statistics of simulated runs: the beginning of the steady state, quantiles, confidence intervals, growth.

Warm-up: MSER-5 (K. P. White, "An effective truncation heuristic for bias reduction in simulation output", Simulation
1997) on the mean over runs: of means of five requests each, leave out the first d, at most half, for which the standard
error of the others is least. Quantiles are those of all runs' requests together, since a mean of the runs' quantiles is
biased low. Intervals: sectioning (S. Asmussen and P. Glynn, "Stochastic Simulation", 2007, section III.5), Student's t
with the spread of ten sections about the pooled value. A quantile q needs n requests with 1 - q^n >= 0.99: 459 for p99.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hummingbird.capacity.system import Floats, LoadOutcome
from hummingbird.errors import ConfigError

BATCH = 5
SECTIONS = 10
LIKELY = 0.99  # probability that the largest of the requests is above the quantile


class Interval(NamedTuple):
    """An estimate with the bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float


def warm_up(series: Floats) -> int:
    """Choose the number of requests to leave out at the beginning of every run, before the steady state.

    series: (runs, requests), NaN for no value. The result is 0 for fewer than 20 requests in a run.
    """
    count = np.isfinite(series).sum(0)
    total = np.where(np.isfinite(series), series, 0.0).sum(0)
    whole = series.shape[1] // BATCH * BATCH
    counts, totals = count[:whole].reshape(-1, BATCH).sum(1), total[:whole].reshape(-1, BATCH).sum(1)
    places = np.flatnonzero(counts)  # batches of five with a served request
    means = totals[places] / counts[places]
    if len(means) < 4:
        return 0
    left = np.arange(len(means), 0, -1)
    centred = means - means.mean()
    tail, squares = np.cumsum(centred[::-1])[::-1], np.cumsum(centred[::-1] ** 2)[::-1]
    error = (squares - tail**2 / left) / left**2
    return int(places[error[: len(means) // 2 + 1].argmin()]) * BATCH


def student(degrees: int) -> float:
    """Compute the 97.5 % quantile of Student's t distribution with this number of degrees of freedom.

    It is right within 0.001 from 4 degrees of freedom on (Abramowitz and Stegun, 26.7.5).
    """
    z, v = statistics.NormalDist().inv_cdf(0.975), degrees
    g1, g2 = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    g4 = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + g1 / v + g2 / v**2 + g3 / v**3 + g4 / v**4


def sections(values: Floats) -> list[Floats]:
    """Divide values (runs, requests) into nearly independent sections: groups of runs,
    or stretches of runs if these are few.

    NaN is left out, and so are empty sections.
    """
    runs = len(values)
    parts = np.array_split(values, min(runs, SECTIONS))
    if runs < SECTIONS:
        parts = [cut for run in parts for cut in np.array_split(run, math.ceil(SECTIONS / runs), axis=1)]
    return [found for part in parts if (found := part[np.isfinite(part)]).size]


def estimate(values: Floats, of: Callable[[Floats], float]) -> Interval:
    """Estimate a figure of values (runs, requests), with its 95 % confidence interval; NaN values are left out.

    of: computes the figure from an array of values. The interval follows from how much the figure differs between the
    parts of the data that `sections` makes. If the figure is above 0 in all parts, the interval is that of its
    logarithm: errors of a queue are factors, and not symmetric. Without any value the estimate is NaN; with too few
    parts the interval is NaN.
    """
    parts = sections(values)
    if not parts:
        return Interval(math.nan, math.nan, math.nan)
    value, values_of = of(np.concatenate(parts)), [of(part) for part in parts]
    if len(parts) < 5:
        return Interval(value, math.nan, math.nan)
    scale = min(value, *values_of) > 0
    errors = [math.log(part / value) if scale else part - value for part in values_of]
    spread = math.fsum(error**2 for error in errors) / (len(parts) - 1)
    half = student(len(parts) - 1) * math.sqrt(spread / len(parts))
    low, high = (value / math.exp(half), value * math.exp(half)) if scale else (value - half, value + half)
    return Interval(value, low, high)


def mean(values: Floats) -> Interval:
    """Estimate the mean of values (runs, requests), with its confidence interval."""
    return estimate(values, lambda part: float(part.mean()))


def least_requests(q: float) -> int:
    """Return the number of requests that an estimate of the quantile q needs."""
    return math.ceil(math.log(1 - LIKELY) / math.log(q))


def quantile(values: Floats, q: float) -> Interval:
    """Estimate the quantile q of values (runs, requests), with its confidence interval. Raises ConfigError for too few
    values.
    """
    if not 0 < q < 1:
        raise ConfigError(f"{q!r} is no quantile", where="q", hint="between 0 and 1: 0.99")
    count, least = int(np.isfinite(values).sum()), least_requests(q)
    if count < least:
        what = f"the quantile {q:g} of {count} requests"
        raise ConfigError(what, where="requests", hint=f"simulate {least} requests at least, after the warm-up")
    return estimate(values, lambda part: float(np.quantile(part, q)))


def growth(outcome: LoadOutcome) -> Interval:
    """Estimate the growth of the latency over the later half of every run, in seconds per second.

    It is positive if more requests arrive than can be served.
    """
    half = outcome.arrived.shape[1] // 2
    arrived, latency = outcome.arrived[:, half:], outcome.latency[:, half:]
    slopes = [_slope(x[np.isfinite(y)], y[np.isfinite(y)]) for x, y in zip(arrived, latency, strict=True)]
    return mean(np.array(slopes)[:, None])


def _slope(x: Floats, y: Floats) -> float:
    if len(x) < 2 or not np.ptp(x):
        return math.nan
    centred = x - x.mean()
    return float(centred @ y / (centred @ centred))


def little(outcome: LoadOutcome, cut: int = 0) -> float:
    """Compare a simulation with Little's law L = lambda W; returns L / (lambda W) - 1.

    In the time from the arrival of request `cut` to that of the last, L is the mean number of requests in the system,
    lambda their rate, and W the mean time in the system of those that arrive. The result is about 0 in a steady state;
    negative if requests pile up, positive if the start was busier than the rest.
    """
    low, high = outcome.arrived[:, cut, None], outcome.arrived[:, -1:]
    there = (np.clip(outcome.left, low, high) - np.clip(outcome.arrived, low, high)).sum()
    came = (outcome.left - outcome.arrived)[:, cut:].sum()
    return float(there / came - 1) if came else 0.0
