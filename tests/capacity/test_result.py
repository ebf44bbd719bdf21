"""Intervals that cover, warm-ups that are found, Little's law, growth above the limit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hummingbird.capacity import recurrence, result
from hummingbird.capacity.arrivals import exponential, poisson
from hummingbird.capacity.system import Draws, Load, LoadOutcome, System
from hummingbird.errors import ConfigError


def markovian(rho: float, runs: int, requests: int, seed: int) -> LoadOutcome:
    """M/M/1 from an empty queue."""
    load = poisson(rho).load(runs, requests, seed)
    return recurrence.simulate(System(), load, Draws(exponential((runs, requests), seed, "online")))


@pytest.mark.slow
@pytest.mark.parametrize("rho, requests", [(0.5, 2000), (0.7, 5000)])
def test_95_percent_intervals_cover_the_true_p99(rho: float, requests: int) -> None:
    """The time in an M/M/1 is exponential of mean 1 / (1 - rho); 200 simulations of 20 runs, 25 at a time."""
    true, covered = math.log(100) / (1 - rho), 0
    for seed in range(8):
        for latency in np.split(markovian(rho, 500, requests, seed).latency, 25):
            found = result.quantile(latency[:, result.warm_up(latency) :], 0.99)
            covered += found.low <= true <= found.high
    assert 180 <= covered <= 198


def test_the_mean_of_the_runs_own_p99s_is_low_and_the_pool_s_is_not() -> None:
    latency = markovian(0.8, 400, 2000, 1).latency[:, 200:]
    true = math.log(100) / 0.2
    assert np.quantile(latency, 0.99, axis=1).mean() < 0.97 * true
    assert result.quantile(latency, 0.99).value == pytest.approx(true, rel=0.03)


def test_the_warm_up_is_left_out() -> None:
    noise = exponential((50, 1000), 1, "noise")
    series = noise + 5 * np.exp(-np.arange(1000) / 40)
    cut = result.warm_up(series)
    assert 80 <= cut <= 400
    assert result.warm_up(noise) <= 100
    assert result.mean(series[:, cut:]).value == pytest.approx(1, abs=0.02)
    assert result.warm_up(noise[:, :15]) == 0


def test_the_warm_up_skips_requests_that_nobody_was_served() -> None:
    series = exponential((3, 400), 1, "noise") + np.where(np.arange(400) < 60, 30.0, 0.0)
    series[:, 100:140] = math.nan
    assert result.warm_up(series) == 60


def test_quantiles_ask_for_enough_requests() -> None:
    assert [result.least_requests(q) for q in (0.5, 0.95, 0.99)] == [7, 90, 459]
    values = exponential((1, 459), 1, "values")
    assert result.quantile(values, 0.99).value > 0
    with pytest.raises(ConfigError, match="(?s)of 458 requests.*simulate 459"):
        result.quantile(values[:, 1:], 0.99)
    with pytest.raises(ConfigError, match="no quantile"):
        result.quantile(values, 1.0)


def test_student() -> None:
    """Tables of Student's t."""
    for degrees, point in {4: 2.776, 9: 2.262, 19: 2.093, 29: 2.045}.items():
        assert result.student(degrees) == pytest.approx(point, abs=1e-3)


def test_an_interval_is_that_of_its_sections_spread() -> None:
    """Ten runs of a value each: the spread is over n - 1; 2.262 is Student's t at 9 degrees."""
    found = result.mean(np.array([[-1.0], [1.0]] * 5))
    half = 2.262 * math.sqrt(10 / 9 / 10)
    assert found == pytest.approx((0.0, -half, half), rel=1e-3, abs=1e-9)


def test_sections_hold_every_value_once() -> None:
    for runs in (1, 3, 10, 17):
        values = np.arange(runs * 120, dtype=float).reshape(runs, 120)
        parts = result.sections(values)
        assert len(parts) >= 10
        assert sorted(np.concatenate(parts)) == list(range(runs * 120))


def test_latency_grows_above_the_limit() -> None:
    """By lambda / limit - 1 seconds a second."""
    assert result.growth(markovian(1.5, 20, 4000, 1)).value == pytest.approx(0.5, rel=0.03)
    assert abs(result.growth(markovian(0.5, 20, 4000, 1)).value) < 0.003


def test_little_s_law_holds_in_a_steady_state_only() -> None:
    steady, growing = markovian(0.7, 50, 3000, 1), markovian(1.5, 50, 3000, 1)
    assert abs(result.little(steady, 200)) < 0.01
    assert result.little(growing, 200) < -0.1


def test_a_constant_has_an_interval_of_no_width() -> None:
    outcome = recurrence.simulate(System(), Load(due=np.arange(100.0)[None]), Draws(np.full((1, 1), 0.5)))
    assert result.mean(outcome.latency) == (0.5, 0.5, 0.5)
