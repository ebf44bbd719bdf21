"""The least that meets a goal, against closed forms, and against what is just too little."""

from __future__ import annotations

import dataclasses
import math

import pytest

from hummingbird.capacity import Compute, Host, Hosts, Rounds, Send, Service, chain, constant, poisson, run, solve
from hummingbird.errors import ConfigError
from tests.capacity.test_running import queue, stored


def test_the_rate_of_a_queue_in_closed_form() -> None:
    """M/D/1 has the mean T (1 + rho / (2 (1 - rho))): 1.5 s at a rate of 0.5."""
    got = solve(queue(), None, mean=1.5, vary="rate", requests=4000, runs=20)
    assert got.value == pytest.approx(0.5, rel=0.03) and got.figure <= 1.5 and not got.at_limit
    assert got.elasticities["server's speed"] < -1 and got.elasticities["rate"] > 0.3


def test_a_goal_that_is_far_stops_at_the_heaviest_load() -> None:
    got = solve(queue(), None, mean=100.0, vary="rate", requests=1000, runs=10)
    assert got.at_limit and got.value == pytest.approx(0.9, rel=1e-3)


def linked() -> Service:
    """1,000 bytes up and 250 down of a client whose two directions have 10 kbit/s together."""
    hosts = {"client": Host(up=5e3, down=5e3), "server": Host(cores=4)}
    up, work, down = Send("client", "server", 1000), Compute("server", 2.0, 4), Send("server", "client", 250)
    steps = ("up", up), ("work", work), ("down", down)
    return Service("linked", hosts, chain(*steps, ("talk", Rounds(10))), rtt=0.02)


def test_the_bandwidth_of_an_idle_service() -> None:
    """0.5 s of work and 0.1 s of rounds leave 1.4 s for 1,250 bytes."""
    got = solve(linked(), None, p50=2.0, vary="bandwidth", arrivals=constant(0.01), requests=1000, runs=1)
    assert got.value == pytest.approx(8 * 1250 / 1.4, rel=0.006)
    assert got.elasticities["round trip"] == pytest.approx(0.05, abs=0.01)


def test_the_best_split_in_closed_form() -> None:
    """U / u + D / (B - u) is least at u = B sqrt U / (sqrt U + sqrt D)."""
    got = solve(linked(), None, mean=60.0, vary="split", arrivals=constant(0.01), requests=1000, runs=1)
    up = 1e4 * math.sqrt(1000) / (math.sqrt(1000) + math.sqrt(250))
    assert got.value == pytest.approx(up, rel=0.01)


def test_cores_and_replicas_and_tokens_are_the_least() -> None:
    """One less does not meet the goal."""
    cores = solve(linked(), None, p50=2.95, vary="cores", arrivals=constant(0.01), requests=1000, runs=1)
    assert cores.value == 3  # 8 (1000 + 250) / 5000 + 0.1 + 2 / cores = 2.1 + 2 / cores

    many = solve(queue(), None, p95=2.0, vary="replicas", arrivals=poisson(3.0), requests=4000, runs=2)
    fewer = run(queue(), None, poisson(3.0), replicas=int(many.value) - 1, requests=4000, runs=2)
    assert many.figure <= 2.0 and (not fewer.stable or fewer.quantile(0.95).value > 2.0)

    store = solve(stored(), None, p95=0.8, vary="store", arrivals=poisson(0.9), requests=2000, runs=4)
    less = run(stored(), Hosts(store=store.value - 10), poisson(0.9), requests=2000, runs=4)
    assert store.figure <= 0.8 < less.quantile(0.95).value and store.next_token == store.value + 10


def test_the_same_seed_gives_the_same_answer() -> None:
    one, same, other = (solve(queue(), None, mean=1.5, vary="rate", seed=seed, requests=1000) for seed in (1, 1, 2))
    assert one.value == same.value != other.value and one.trials == same.trials


def test_goals_that_cannot_be() -> None:
    for vary in ("rate", "replicas"):
        with pytest.raises(ConfigError, match="below the 1 s that an idle service takes"):
            solve(queue(), None, p99=0.9, vary=vary, arrivals=poisson(0.1))
    with pytest.raises(ConfigError, match=r"below the 0\.6 s that an idle service takes"):
        solve(linked(), None, p50=0.5, vary="bandwidth", arrivals=poisson(0.1))
    with pytest.raises(ConfigError, match="is not met, however much there is"):
        solve(queue(), None, p99=1.5, vary="cores", arrivals=poisson(2.0), requests=1000)  # one core at a time
    with pytest.raises(ConfigError, match="0 goals"):
        solve(queue(), None, vary="rate")
    with pytest.raises(ConfigError, match="2 goals"):
        solve(queue(), None, p99=3.0, p50=1.0, vary="rate")
    with pytest.raises(ConfigError, match="vary='weather'"):
        solve(queue(), None, p99=3.0, vary="weather")
    with pytest.raises(ConfigError, match="cores for no rate"):
        solve(queue(), None, p99=3.0, vary="cores")
    with pytest.raises(ConfigError, match="a service without tokens"):
        solve(queue(), None, p99=3.0, vary="store", arrivals=poisson(0.1))
    with pytest.raises(ConfigError, match="-1 is no number of seconds"):
        solve(queue(), None, p99=-1, vary="rate")
    with pytest.raises(ConfigError, match="no link with a limit"):
        solve(queue(), None, p99=3.0, vary="bandwidth", arrivals=poisson(0.1))
    with pytest.raises(ConfigError, match="the quantile"):
        solve(dataclasses.replace(queue(), slots=1), None, p99=3.0, vary="rate", requests=100, runs=1)
