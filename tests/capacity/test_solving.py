"""The least that meets a goal, against closed forms, and against what is just too little."""

from __future__ import annotations

import dataclasses
import math

import pytest

from hummingbird.capacity import (
    Compute,
    Host,
    Hosts,
    Phase,
    Prices,
    Rounds,
    Send,
    Service,
    WorkStep,
    chain,
    constant,
    poisson,
    run,
    solve,
)
from hummingbird.capacity.result import cost_of
from hummingbird.capacity.solving import heaviest, load_of
from hummingbird.errors import ConfigError


def queue() -> Service:
    """Requests of 1 s on one core, one at a time: M/D/1 under Poisson arrivals."""
    return Service("queue", {"server": Host()}, chain(("work", Compute("server", 1.0))))


def stored() -> Service:
    """A store of 3 tokens that a link fills, while requests compute: nothing is shared."""
    hosts = {"client": Host(store=30, up=8e3, down=8e3), "server": Host(cores=2)}
    return Service(
        "stored",
        hosts,
        request=Phase((WorkStep("work", Compute("server", 0.3)),), factors=(0.5, 1.5)),
        refill=chain(("tables", Send("server", "client", 500))),
        token_bytes={"client": 10},
    )


def test_prices_by_hand() -> None:
    """Two hosts at 0.5 a core-hour, 7.3 a GB-month of 1 GB, 10 a GB of 500 bytes for each of 3,600 images an hour."""
    prices = Prices(core_hour=0.5, gb_sent=10.0, gb_month=7.3)
    got = run(stored(), Hosts(store=1e9, bandwidth=1e6, prices=prices), constant(1.0), requests=3600, runs=1)
    cost = cost_of(got)
    assert cost.cores == pytest.approx(0.5 * 3) and cost.stored == pytest.approx(7.3 / 730)
    assert cost.sent == pytest.approx(10 * 3600 * 500 / 1e9, rel=1e-3)
    assert cost.per_thousand_images == pytest.approx(cost.hour / 3.6, rel=1e-3)


def test_the_load_that_requests_can_show() -> None:
    assert heaviest(1000) == pytest.approx(0.9) and heaviest(5) == 0
    assert load_of(queue(), poisson(0.95)) == pytest.approx(0.95)


def test_the_rate_of_a_queue_in_closed_form() -> None:
    """M/D/1 has the mean T (1 + rho / (2 (1 - rho))): 1.5 s at a rate of 0.5."""
    got = solve(queue(), None, mean=1.5, vary="rate", requests=1500, runs=20)
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

    many = solve(queue(), None, p95=2.0, vary="replicas", arrivals=poisson(3.0), requests=1500, runs=2)
    fewer = run(queue(), None, poisson(3.0), replicas=int(many.value) - 1, requests=1500, runs=2)
    assert many.figure <= 2.0 and (fewer.overloaded or fewer.quantile(0.95).value > 2.0)

    store = solve(stored(), None, p95=0.8, vary="store", arrivals=poisson(0.9), requests=1000, runs=4)
    less = run(stored(), Hosts(store=store.value - 10), poisson(0.9), requests=1000, runs=4)
    assert store.figure <= 0.8 < less.quantile(0.95).value and store.next_token == store.value + 10


def test_the_speed_of_batches() -> None:
    """Alone a request takes 1 s; of full batches of two the second 0.5 s more: all of it is computed."""
    pairs = dataclasses.replace(queue(), batch=2, hold=9.0, each=0.5)
    got = solve(pairs, None, mean=9.0, vary="rate", arrivals=constant(0.1), requests=1000, runs=1)
    assert got.at_limit and got.run.limit.rate == pytest.approx(2 / 1.5)
    assert got.elasticities["server's speed"] == pytest.approx(-1.5 / got.figure, rel=0.1)


def test_the_same_seed_gives_the_same_answer() -> None:
    one, same, other = (solve(queue(), None, mean=1.5, vary="rate", seed=seed, requests=400) for seed in (1, 1, 2))
    assert one.value == same.value != other.value and one.trials == same.trials


@pytest.mark.slow
@pytest.mark.parametrize("vary", ["rate", "bandwidth"])
def test_a_solve_by_the_event_engine_takes_few_trials(vary: str) -> None:
    """Two parties and a dealer as in docs/planning.md, whose links are shared: a bisection by the event engine."""
    roles = ("party-0", "party-1", "dealer")
    computing = [WorkStep(f"compute {role}", Compute(role, 0.03)) for role in roles[:2]]
    after = tuple(step.name for step in computing)
    pairs = [(roles[0], roles[1]), (roles[1], roles[0])]
    sending = [WorkStep(f"from {one}", Send(one, other, 5e5), after) for one, other in pairs]
    talking = WorkStep("rounds", Rounds(100), tuple(step.name for step in sending))
    service = Service(
        "two parties",
        {role: Host(cores=16, store=64e9, up=352e6, down=352e6) for role in roles},
        request=Phase((*computing, *sending, talking), factors=(0.9, 1.0, 1.3)),
        refill=chain(("deal", Compute("dealer", 0.01)), ("corrections", Send("dealer", "party-0", 7.34e6))),
        token_bytes={"party-0": 7_340_000},
        workers=2,
        slots=2,
        rtt=2e-3,
    )
    got = solve(service, None, p99=0.36, vary=vary, arrivals=poisson(4.0))
    assert got.run.engine == "events" and got.figure <= 0.36
    assert 10 < got.trials <= 40  # halvings of a range, and two more for each elasticity


def test_goals_that_cannot_be() -> None:
    for vary in ("rate", "replicas"):
        with pytest.raises(ConfigError, match="below the 1 s that an idle service takes"):
            solve(queue(), None, p99=0.9, vary=vary, arrivals=poisson(0.1))
    with pytest.raises(ConfigError, match=r"below the 0\.6 s that an idle service takes"):
        solve(linked(), None, p50=0.5, vary="bandwidth", arrivals=poisson(0.1))
    with pytest.raises(ConfigError, match="is not met by any value"):
        solve(queue(), None, p99=1.5, vary="cores", arrivals=poisson(2.0), requests=1000)  # one core at a time
    with pytest.raises(ConfigError, match="0 goals"):
        solve(queue(), None, vary="rate")
    with pytest.raises(ConfigError, match="2 goals"):
        solve(queue(), None, p99=3.0, p50=1.0, vary="rate")
    with pytest.raises(ConfigError, match="vary='weather'"):
        solve(queue(), None, p99=3.0, vary="weather")
    with pytest.raises(ConfigError, match="varying cores needs arrivals"):
        solve(queue(), None, p99=3.0, vary="cores")
    with pytest.raises(ConfigError, match="a service without tokens"):
        solve(queue(), None, p99=3.0, vary="store", arrivals=poisson(0.1))
    with pytest.raises(ConfigError, match="-1 is no number of seconds"):
        solve(queue(), None, p99=-1, vary="rate")
    with pytest.raises(ConfigError, match="no link with a limit"):
        solve(queue(), None, p99=3.0, vary="bandwidth", arrivals=poisson(0.1))
    with pytest.raises(ConfigError, match="the quantile"):
        solve(dataclasses.replace(queue(), slots=1), None, p99=3.0, vary="rate", requests=100, runs=1)
