"""A service under load: which engine follows it, the figures of a run, and what is refused."""

from __future__ import annotations

import dataclasses
import json

import pytest

from hummingbird.capacity import (
    Compute,
    Host,
    Hosts,
    Phase,
    Prices,
    Send,
    Service,
    Step,
    Users,
    chain,
    constant,
    poisson,
    run,
)
from hummingbird.capacity.pricing import cost_of
from hummingbird.capacity.running import heaviest, load_of, shared
from hummingbird.errors import ConfigError


def queue(seconds: float = 1.0) -> Service:
    """Requests of constant time on one core, one at a time: M/D/1 under Poisson arrivals."""
    return Service("queue", {"server": Host()}, chain(("work", Compute("server", seconds))))


def stored() -> Service:
    """A store of 3 tokens that a link fills, while requests compute: nothing is shared."""
    hosts = {"client": Host(store=30, up=8e3, down=8e3), "server": Host(cores=2)}
    return Service(
        "stored",
        hosts,
        request=Phase((Step("work", Compute("server", 0.3)),), factors=(0.5, 1.5)),
        refill=chain(("tables", Send("server", "client", 500))),
        token_bytes={"client": 10},
    )


def test_the_mean_of_a_queue_in_closed_form() -> None:
    """M/D/1: T (1 + rho / (2 (1 - rho)))."""
    got = run(queue(), None, poisson(0.5), requests=4000, runs=20)
    mean = got.mean()
    assert mean.low < 1.5 < mean.high and mean.high - mean.low < 0.1
    assert got.engine == "recurrence" and got.why == "every phase has its cores and links to itself"
    assert got.utilisation["server", "cores"] == pytest.approx(0.5, abs=0.02)
    assert got.goodput == pytest.approx(0.5, abs=0.01)
    parts = {name: got.mean(values).value for name, values in got.parts.items()}
    assert sum(parts.values()) == pytest.approx(mean.value) and parts["online"] == pytest.approx(1.0)


def test_engines_agree_where_nothing_is_shared() -> None:
    assert shared(stored()) == []
    fast, slow = (run(stored(), None, poisson(1.2), requests=300, runs=2, engine=name) for name in ("auto", "events"))
    assert fast.engine == "recurrence" and slow.engine == "events"
    assert fast.outcome.latency == pytest.approx(slow.outcome.latency, rel=1e-9)
    assert fast.level == pytest.approx(slow.level) and 0 < fast.level < 3


def test_what_is_shared_is_named() -> None:
    """A second slot, a second refill, or a request on the refill's link."""
    assert shared(dataclasses.replace(stored(), workers=2)) == ["client's down"]
    assert shared(dataclasses.replace(stored(), slots=3)) == ["server's cores"]
    assert shared(dataclasses.replace(stored(), slots=2)) == []
    both = Phase((*stored().request.steps, Step("answer", Send("server", "client", 1))))
    assert shared(dataclasses.replace(stored(), request=both)) == ["client's down"]
    on_demand = stored().at(Hosts(store=0))
    assert shared(dataclasses.replace(on_demand, request=both)) == []  # one follows the other, in its slot
    got = run(dataclasses.replace(stored(), request=both), None, poisson(0.5), requests=300, runs=2)
    assert got.engine == "events" and got.why == "shared by what runs at the same time: client's down"
    neglected = run(dataclasses.replace(stored(), request=both), None, poisson(0.5), engine="recurrence", runs=2)
    assert "which it does not know: client's down" in neglected.why


def test_steps_side_by_side_share_their_host() -> None:
    both = Phase((Step("a", Compute("server", 1.0)), Step("b", Compute("server", 1.0))))
    service = Service("two", {"server": Host(cores=1)}, both)
    assert shared(service) == ["server's cores"] and service.seconds(service.request) == 1.0
    got = run(service, None, constant(0.1), requests=500, runs=1)
    assert got.engine == "events" and got.mean().value == pytest.approx(2.0)
    assert shared(service.at(Hosts(cores=2))) == []


def test_the_same_seed_gives_the_same_figures() -> None:
    one, same, other = (run(stored(), None, poisson(1.2), runs=3, seed=seed).figures() for seed in (1, 1, 2))
    assert json.dumps(one) == json.dumps(same) and one["mean_seconds"] != other["mean_seconds"]


def test_above_the_limit_latency_grows() -> None:
    """Twice the rate: in a second a second's work is left over."""
    got = run(queue(), None, poisson(2.0), requests=2000, runs=5)
    assert not got.stable and got.load == pytest.approx(2.0) and got.growth.value == pytest.approx(1.0, abs=0.1)
    with pytest.raises(ConfigError, match="a percentile of latency at 200%"):
        got.quantile(0.99)
    assert "growth_seconds_per_second" in got.figures() and "without" in got.table()
    assert run(queue(), None, poisson(2.0), queue=3).stable  # who does not fit is rejected
    assert run(queue(), None, Users(5, 0.1), requests=500).stable


def test_a_load_that_so_many_requests_cannot_show_says_so() -> None:
    assert heaviest(1000) == pytest.approx(0.9) and heaviest(5) == 0
    assert load_of(queue(), poisson(0.95)) == pytest.approx(0.95)
    assert "hint: --requests 4,000 shows" in run(queue(), None, poisson(0.95), requests=1000).table()
    assert "hint: --requests" not in run(queue(), None, poisson(0.85), requests=1000).table()


def test_replicas_and_rejections() -> None:
    alone, two = (run(queue(), None, poisson(0.8), replicas=number) for number in (1, 2))
    assert two.mean().value < alone.mean().value and two.load == pytest.approx(0.4)
    full = run(queue(), None, poisson(3.0), queue=1)
    assert 0.5 < full.rejected < 0.8
    sharing = dataclasses.replace(stored(), workers=2)
    with pytest.raises(ConfigError, match="replicas of a service that shares client's down"):
        run(sharing, None, poisson(0.1), replicas=2)


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="the quantile 0.99 of"):
        run(queue(), None, poisson(0.1), requests=20, runs=5).quantile(0.99)
    with pytest.raises(ConfigError, match="engine='steam'"):
        run(queue(), None, poisson(0.1), engine="steam")
    with pytest.raises(ConfigError, match="0 runs"):
        run(queue(), None, poisson(0.1), runs=0)


def test_prices_by_hand() -> None:
    """Two hosts at 0.5 a core-hour, 7.3 a GB-month of 1 GB, 10 a GB of 500 bytes for each of 3,600 images an hour."""
    prices = Prices(core_hour=0.5, gb_sent=10.0, gb_month=7.3)
    hosts = Hosts(store=1e9, bandwidth=1e6, prices=prices)
    got = run(stored(), hosts, constant(1.0), requests=3600, runs=1)
    cost = cost_of(got)
    assert cost.cores == pytest.approx(0.5 * 3) and cost.stored == pytest.approx(7.3 / 730)
    assert cost.sent == pytest.approx(10 * 3600 * 500 / 1e9, rel=1e-3)
    assert cost.per_thousand_images == pytest.approx(cost.hour / 3.6, rel=1e-3)
