"""`capacity.run`: which engine and why, and what the result tells."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from hummingbird import capacity
from hummingbird.capacity import Compute, Host, Hosts, Phase, Send, Service, Users, WorkStep, chain, constant, poisson
from hummingbird.capacity.arrivals import Arrivals
from hummingbird.capacity.result import Result
from hummingbird.errors import ConfigError

STORE = Service(
    "stored",
    {"party": Host(cores=2, store=10, up=8e6, down=8e6), "dealer": Host(up=8e6, down=8e6)},
    request=chain(("compute", Compute("party", 0.4, width=2))),
    refill=chain(("deal", Compute("dealer", 0.2)), ("send", Send("dealer", "party", 3e5))),
    token_bytes={"party": 1},
)


def test_the_engine_is_the_one_that_is_needed() -> None:
    def engine(service: Service, **rules: object) -> tuple[str, str]:
        result = capacity.run(service, None, poisson(0.5), runs=2, requests=20, **rules)
        return result.engine, result.why

    assert engine(STORE) == ("recurrence", "every phase has its cores and links to itself")
    assert engine(replace(STORE, slots=2)) == ("events", "phases share the cores of party")
    assert engine(replace(STORE, workers=2)) == ("events", "phases share the link down of party")
    assert engine(replace(STORE, workers=2), engine="recurrence") == ("recurrence", "it was asked for")
    wide = replace(STORE, workers=2, hosts=STORE.hosts | {"party": Host(cores=2, store=10)})
    assert engine(wide) == ("events", "phases share the cores of dealer")
    narrow = replace(STORE, slots=2, request=chain(("a", Compute("party", 0.2)), ("b", Compute("party", 0.2))))
    assert engine(narrow)[0] == "recurrence"  # one core each, one step after the other
    beside = replace(
        narrow, request=Phase((WorkStep("a", Compute("party", 0.2)), WorkStep("b", Compute("party", 0.2))))
    )
    assert engine(beside)[0] == "events"
    assert engine(narrow, kept=True) == ("events", "tokens are kept until requests end, which end out of order")
    with pytest.raises(ConfigError, match="no engine 'guess'"):
        engine(STORE, engine="guess")


def test_the_engines_agree_where_nothing_is_shared() -> None:
    varied = replace(STORE, request=replace(STORE.request, factors=(0.5, 1.0, 1.5)))
    by = [capacity.run(varied, None, poisson(1.5), runs=3, requests=200, engine=e) for e in ("recurrence", "events")]
    np.testing.assert_allclose(by[0].outcome.left, by[1].outcome.left, rtol=1e-9)


def test_the_result_of_an_m_d_1() -> None:
    """Requests every 1/3.5 s on average, 0.2 s each: rho 0.7, a store that is never empty."""
    fast = replace(STORE, refill=chain(("deal", Compute("dealer", 0.01))))
    got = capacity.run(fast, None, poisson(3.5), seed=3, runs=100, requests=3000)
    wait = 0.2 * 0.7 / 2 / 0.3
    means = got.means
    assert means["wait"].low < wait < means["wait"].high or means["wait"].value == pytest.approx(wait, rel=0.03)
    assert means["online"].value == pytest.approx(0.2) and means["blocked"].value < 1e-3
    assert got.quantile(0.5).value < got.quantile(0.95).value < got.quantile(0.99).value
    assert got.utilisation["slots"] == pytest.approx(0.7, rel=0.02)
    assert got.utilisation["party cores"] == pytest.approx(0.7, rel=0.02)
    assert got.levels["waiting"] == pytest.approx(3.5 * wait, rel=0.05)
    assert got.levels["stored"] == pytest.approx(10 - 3.5 * 0.01, abs=0.01)
    assert got.goodput == pytest.approx(3.5, rel=0.02)
    assert got.shares == {"served": 1.0, "rejected": 0.0, "gave up": 0.0}
    again = capacity.run(fast, None, poisson(3.5), seed=3, runs=100, requests=3000)
    assert got.figures() == again.figures()
    assert json.loads(json.dumps(got.figures(), allow_nan=False))["engine"] == "recurrence"
    assert "p99" in got.table() and "every phase has its cores and links to itself" in got.table()


def test_above_the_limit_there_is_growth_and_no_quantile() -> None:
    got = capacity.run(STORE, None, poisson(4.0), runs=20, requests=500)
    assert got.limit.rate == pytest.approx(2.0)  # a refill takes 0.5 s
    assert got.growth.value == pytest.approx(1.0, rel=0.1)
    with pytest.raises(ConfigError, match="above the limit of 2 .1 refill at a time.: latency grows"):
        got.quantile(0.5)
    figures = got.figures()
    assert figures["overloaded"] and "p99" not in figures and "growth" in figures
    turned_away = capacity.run(STORE, None, poisson(4.0), runs=20, requests=500, queue=2)
    assert turned_away.quantile(0.5).value > 0 and turned_away.shares["rejected"] > 0.3


def test_a_full_store_does_not_hide_an_overload() -> None:
    """None of 60 requests waits for a token, as 100 are there: the rate alone says that it cannot last."""
    got = capacity.run(STORE, Hosts(store=100), poisson(4.0), runs=20, requests=60)
    assert got.overloaded and not np.nanmax(got.outcome.went - got.outcome.began)


def test_random_times_lower_the_limit_and_growth_tells() -> None:
    """K = 1: a cycle lasts as long as the longer of T_on and T_off, on average more than the longer mean."""
    factors = (0.1, 1.9)
    one = replace(STORE, hosts=STORE.hosts | {"party": Host(cores=2, store=1, up=8e6, down=8e6)})
    one = replace(one, request=Phase(one.request.steps, factors), refill=chain(("deal", Compute("dealer", 0.2))))
    got = capacity.run(
        replace(one, refill=Phase(one.refill.steps, factors)), None, poisson(4.0), runs=50, requests=2000
    )
    assert got.limit.rate == pytest.approx(5.0)  # and 1 / 0.29 = 3.45 in truth
    assert got.overloaded


def test_batches_replicas_and_users() -> None:
    got = capacity.run(STORE, None, poisson(1.0), runs=10, requests=200, batch=4, hold=0.5, each=0.1)
    assert got.limit.rate == pytest.approx(2.0) and got.means["latency"].value > 0.2
    two = capacity.run(STORE, None, poisson(3.0), runs=10, requests=500, replicas=2)
    assert two.limit.rate == pytest.approx(4.0) and not two.overloaded
    users = capacity.run(STORE, None, Users(30, 1.0), runs=10, requests=500)
    assert not users.overloaded and users.goodput == pytest.approx(2.0, rel=0.1)


def test_two_choices_serve_many_groups_better_than_one() -> None:
    """Ten at 60 % of the largest rate: where one of them is slow, random choice fills its queue without end."""
    service = Service("one", {"party": Host()}, chain(("compute", Compute("party", 1.0))))

    def found(choices: int, slow: float = 1.0) -> Result:
        how = {"runs": 10, "requests": 3_000, "replicas": 10}
        return capacity.run(service, None, poisson(6.0), choices=choices, slow=slow, **how)

    assert found(2).quantile(0.99).value < 0.6 * found(1).quantile(0.99).value
    assert found(1, slow=3.0).overloaded and not found(2, slow=3.0).overloaded
    with pytest.raises(ConfigError, match="a choice among 3 of 2 replicas"):
        capacity.run(service, None, poisson(1.0), replicas=2, choices=3)


BATCHED = Service("batched", {"party": Host(cores=2)}, chain(("compute", Compute("party", 0.5, width=2))), slots=2)


@pytest.mark.parametrize("images", [1, 2])
def test_the_limit_of_batches_is_what_full_ones_reach(images: int) -> None:
    """Two batches of 4 at a time: 0.25 s, on both cores, for each image, and 0.1 s for each request but the first."""
    for engine in ("recurrence", "events"):
        rules = {"engine": engine, "batch": 4, "hold": 0.5, "each": 0.1}
        got = capacity.run(BATCHED, None, constant(100.0, images=images), runs=1, requests=2000, **rules)
        at_once = 2 if engine == "recurrence" else 1  # both batches share the cores
        assert got.limit.rate == pytest.approx(at_once * 4 / (0.25 * images + 0.3))
        left = got.outcome.left[0]
        assert got.overloaded and 1000 / (left[-1] - left[999]) == pytest.approx(got.limit.rate, rel=0.01)


def test_batches_use_cores_once_for_all_of_them() -> None:
    got = capacity.run(BATCHED, None, constant(4.0), runs=1, requests=2000, batch=4, hold=9.0)
    assert got.engine == "events" and got.utilisation["party cores"] == pytest.approx(0.25, rel=0.01)
    assert got.utilisation["slots"] == pytest.approx(0.25 / 2, rel=0.01)
    assert got.levels["in slots"] == pytest.approx(4 * 0.25, rel=0.01)


def test_more_than_a_link_has_is_no_use_of_it() -> None:
    """Nine refills at a time, of 0.2 s and 2.4 Mbit each: the recurrence gives each all of a link of 1 Mb/s."""
    each = 9 / 2.6 * 2.4  # Mb/s
    slow = replace(STORE, workers=9, slots=9, hosts=STORE.hosts | {"party": Host(cores=9, store=10, down=1e6)})
    for engine, asked in (("recurrence", {"party down": each, "dealer up": each / 8}), ("events", {})):
        got = capacity.run(slow, None, Users(9, 0.0), runs=4, requests=300, engine=engine)
        assert got.overcommitted == pytest.approx(asked) and max(got.utilisation.values()) <= 1.0
        assert ("asked of party down" in got.table()) == bool(asked)
        assert got.figures()["overcommitted"] == got.overcommitted


def test_sessions_cost_their_first_request() -> None:
    service = replace(STORE, session=chain(("setup", Compute("party", 1.0))))
    never, always = (
        capacity.run(service, None, constant(0.2, session=session), runs=2, requests=100) for session in (math.inf, 1)
    )
    assert never.means["online"].value == pytest.approx(0.2)
    assert always.means["online"].value == pytest.approx(1.2)


def test_requests_of_several_images_take_as_many_times() -> None:
    got = capacity.run(STORE, None, constant(0.1, images=3), runs=1, requests=50)
    assert got.means["online"].value == pytest.approx(0.6)
    assert got.limit.rate == pytest.approx(2.0 / 3)
    with pytest.raises(ConfigError, match="a request of 11 tokens"):
        capacity.run(STORE, None, constant(0.1, images=11), runs=1, requests=50)


@pytest.mark.parametrize(
    "arrivals, rules", [(poisson(9.0), {}), (poisson(1.0), {"batch": 3, "hold": 0.1}), (Users(2, 0.0), {})]
)
def test_one_short_run_tells_what_it_knows(arrivals: Arrivals, rules: dict[str, float]) -> None:
    """No interval of one run's growth, no limit of batches, no rate of users who never think."""
    for requests in (1, 40):
        got = capacity.run(STORE, None, arrivals, runs=1, requests=requests, **rules)
        assert "engine: " in got.table()
        assert json.loads(json.dumps(got.figures(), allow_nan=False))["requests"] == requests
