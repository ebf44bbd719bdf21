"""The event engine: against the recurrence where nothing is shared, and closed forms and hand counts where it is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from hummingbird.capacity import events, recurrence
from hummingbird.capacity.service import Compute, Flow, Host, Phase, Rounds, Send, Service, WorkStep, chain, shares
from hummingbird.capacity.system import REJECTED, SERVED, Draws, Load, System
from hummingbird.errors import ConfigError, InputError
from tests.capacity.systems import random_batches, random_case
from tests.capacity.test_recurrence import alike, simpy_alike

DIAMOND = Phase(
    (
        WorkStep("ask", Rounds(2)),
        WorkStep("left", Compute("server", 3.0, width=4), ("ask",)),
        WorkStep("right", Send("client", "server", 40.0), ("ask",)),
        WorkStep("join", Compute("client", 0.5), ("left", "right")),
    )
)


def wide(system: System) -> Service:
    """A service whose hosts and links nobody shares: as many cores and as many bits as all phases together use."""
    many = 1000
    hosts = {"client": Host(cores=many, up=3e4), "server": Host(cores=many, store=100, down=100.0)}
    return Service(
        "wide",
        hosts,
        request=chain(("think", Compute("server", 1.0)), ("send", Rounds(0.5))),
        refill=Phase((WorkStep("a", Compute("client", 0.5)), WorkStep("b", Compute("server", 2.0, width=3)))),
        session=chain(("setup", Compute("client", 1.0))),
        token_bytes={"server": 1},
        refill_tokens=system.per_refill,
        request_tokens=system.per_request,
        rtt=0.3,
    )


def seconds_of(service: Service, load: Load, factors: Draws) -> Draws:
    def of(phase: Phase, values: np.ndarray) -> np.ndarray:
        return np.vectorize(lambda factor: service.seconds(phase, factor))(values)

    session = None if factors.session is None else of(service.session, factors.session)
    refill = None if factors.refill is None else of(service.refill, factors.refill)
    return Draws(of(service.request, factors.request) * load.sizes(), refill, session, factors.picks)


@pytest.mark.parametrize("count", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_it_agrees_with_the_recurrence_where_nothing_is_shared(count: int) -> None:
    replicas = chosen = slow = 0
    for seed in range(1000, 1000 + count):
        system, load, factors = random_case(seed)
        service = wide(system)
        wanted = recurrence.simulate(system, load, seconds_of(service, load, factors))
        got = events.simulate(service, system, load, factors)
        alike(got, wanted, f"{seed}: {system}")
        replicas += system.replicas > 1
        chosen += system.choices is not None
        slow += system.slow > 1
    assert replicas > count // 5 and chosen and slow


@pytest.mark.parametrize("count", [15, pytest.param(60, marks=pytest.mark.slow)])
def test_batches_agree_with_the_recurrence(count: int) -> None:
    """Full ones, those that waited long enough, and those that a slot waited for."""
    sizes = set()
    for seed in range(count):
        system, load, factors = random_batches(seed)
        service = wide(system)
        wanted = recurrence.simulate(system, load, seconds_of(service, load, factors))
        got = events.simulate(service, system, load, factors)
        alike(got, wanted, f"{seed}: {system}")
        sizes |= set(np.unique(got.began[0], return_counts=True)[1])
    assert sizes >= {1, 2, 3, 4, 5}


@pytest.mark.parametrize("count", [10, pytest.param(30, marks=pytest.mark.slow)])
def test_places_that_are_freed_out_of_order_agree_with_simpy(count: int) -> None:
    """The recurrence refuses these."""
    for seed in range(count):
        system, load, factors = random_case(seed, plain=True)
        system = replace(system, kept=True, slots=3)
        service = wide(system)
        outcome = events.simulate(service, system, load, factors)
        simpy_alike(outcome, system, load, seconds_of(service, load, factors), f"{seed}: {system}")


def alone(service: Service, *due: float, slots: int = 9) -> list[float]:
    """Latencies of requests at these times."""
    load = Load(due=np.array([due]))
    outcome = events.simulate(service, System(slots=slots), load, Draws(np.ones((1, 1))))
    return list(outcome.latency[0])


def test_who_comes_as_a_place_becomes_free_has_it() -> None:
    """At the second 1 the first leaves, the second has the slot, and the third its place; the fourth finds none."""
    system, load = System(slots=1, queue=1), Load(due=np.array([[0.0, 0.5, 1.0, 1.25]]))
    service = Service("lone", {"server": Host()}, chain(("compute", Compute("server", 1.0))))
    once = Draws(np.ones((1, 1)))
    for found in (recurrence.simulate(system, load, once), events.simulate(service, system, load, once)):
        assert found.fate.tolist() == [[SERVED, SERVED, SERVED, REJECTED]]
        assert found.left[0, :3].tolist() == [1.0, 2.0, 3.0]


def test_a_phase_takes_its_longest_path() -> None:
    """1 round trip of 0.3 s, then 40 bytes at 100 bits/s beside 3 core-seconds on 2 cores, then 0.5 core-seconds."""
    hosts = {"client": Host(up=200.0), "server": Host(cores=2, down=100.0)}
    service = Service("diamond", hosts, DIAMOND, rtt=0.3)
    assert alone(service, 0.0, 10.0) == pytest.approx([0.3 + 3.2 + 0.5] * 2)
    assert service.seconds(service.request) == pytest.approx(4.0)


def test_two_requests_share_a_core_by_halves() -> None:
    """The first does 1 of its 2 s alone, both go on at half speed: it ends at 3, and the second's last second at 4."""
    service = Service("shared", {"a": Host()}, chain(("compute", Compute("a", 2.0))))
    assert alone(service, 0.0, 1.0) == pytest.approx([3.0, 3.0])
    assert alone(service, 0.0, 1.0, slots=1) == pytest.approx([2.0, 3.0])


def test_a_narrow_step_leaves_what_it_cannot_use() -> None:
    """4 cores: a step of width 1 keeps one, the wide one takes the three others."""
    steps = (WorkStep("narrow", Compute("a", 2.0)), WorkStep("wide", Compute("a", 9.0, width=4)))
    service = Service("x", {"a": Host(cores=4)}, Phase(steps))
    assert alone(service, 0.0) == pytest.approx([2 + 3 / 4])  # 6 by 2 s, the last 3 on all cores


def test_a_link_is_shared_by_direction() -> None:
    """Both ways at once each at full speed; two up at half."""
    hosts = {"a": Host(up=8.0, down=8.0), "b": Host()}
    both = Service("x", hosts, Phase((WorkStep("up", Send("a", "b", 5)), WorkStep("down", Send("b", "a", 5)))))
    assert alone(both, 0.0) == pytest.approx([5.0])
    up = Service("x", hosts, Phase((WorkStep("one", Send("a", "b", 5)), WorkStep("two", Send("a", "b", 1)))))
    assert alone(up, 0.0) == pytest.approx([6.0])


def test_max_min_fair_shares() -> None:
    """The example of Bertsekas and Gallager in small: a flow over both links, others over one each."""
    x, y = ("up", "a"), ("down", "b")
    flows = [Flow((x, y), math.inf), Flow((x,), math.inf), Flow((y,), math.inf), Flow((y,), 0.1)]
    assert shares(flows, {x: 1.0, y: 3.0}) == pytest.approx([0.5, 0.5, 2.4, 0.1])
    assert shares([Flow((x,), math.inf)] * 3, {x: 1.0}) == pytest.approx([1 / 3] * 3)
    assert shares([], {}) == []


def test_no_share_can_grow_but_at_the_cost_of_a_smaller_one() -> None:
    rng = np.random.default_rng(1)
    resources = [("cores", str(number)) for number in range(4)]
    for _ in range(200):
        capacity = {resource: float(rng.uniform(0.1, 5)) for resource in resources}
        flows = []
        for _ in range(int(rng.integers(1, 8))):
            used = tuple(resources[i] for i in rng.permutation(4)[: rng.integers(1, 4)])
            flows.append(Flow(used, float(rng.choice([math.inf, rng.uniform(0.1, 2)]))))
        rates = shares(flows, capacity)
        use = {r: sum(rate for f, rate in zip(flows, rates, strict=True) if r in f.resources) for r in resources}
        assert all(use[r] <= capacity[r] * (1 + 1e-12) for r in resources)
        for flow, rate in zip(flows, rates, strict=True):
            largest_there = [
                r
                for r in flow.resources
                if use[r] > capacity[r] * (1 - 1e-12)
                and all(other <= rate * (1 + 1e-12) for f, other in zip(flows, rates, strict=True) if r in f.resources)
            ]
            assert rate == flow.cap or largest_there, (flows, capacity, rates)


def test_refills_that_share_a_link_promise_no_more_than_it_carries() -> None:
    """Seven refills at a time over one link, as requests that wait all the time see them."""
    hosts = {"client": Host(store=10, up=80.0), "server": Host(cores=100)}
    service = Service(
        "x",
        hosts,
        request=chain(("compute", Compute("server", 0.01))),
        refill=chain(("send", Send("client", "server", 10))),
        token_bytes={"client": 1},
        workers=7,
    )
    load = Load(due=np.zeros((1, 60)))
    system = System(tokens=10, workers=7)
    got = events.simulate(service, system, load, Draws(np.ones((1, 1)), np.ones((1, 1))))
    alone = recurrence.simulate(system, load, Draws(np.full((1, 1), 0.01), np.ones((1, 1))))
    assert got.left[0, -1] == pytest.approx(60 + 0.01, rel=0.2) and got.left[0, -1] > 55
    assert alone.left[0, -1] < 60 / 6


def test_replicas_share_nothing_with_one_another() -> None:
    """Two requests at two hosts of one core each take as long as one; three at three slots of two hosts share."""
    service = Service("x", {"a": Host()}, chain(("compute", Compute("a", 1.0))))

    def latencies(requests: int, **rules: int) -> list[float]:
        load = Load(due=np.zeros((1, requests)))
        return list(events.simulate(service, System(**rules), load, Draws(np.ones((1, 1)))).latency[0])

    assert latencies(2, slots=2, replicas=2) == pytest.approx([1.0, 1.0])
    assert latencies(2, slots=2) == pytest.approx([2.0, 2.0])
    assert latencies(3, slots=2, replicas=2) == pytest.approx([2.0, 1.0, 2.0])


def test_batches_share_a_core() -> None:
    """Two batches of two at a time, each 1 s and 0.25 s more for its second request, at half the speed."""
    service = Service("x", {"a": Host()}, chain(("compute", Compute("a", 1.0))))
    load = Load(due=np.zeros((1, 4)))
    got = events.simulate(service, System(slots=2, batch=2, each=0.25), load, Draws(np.ones((1, 1))))
    assert list(got.latency[0]) == pytest.approx([2.5] * 4)


def test_what_it_does_not_know_is_refused() -> None:
    service = Service("x", {"a": Host()}, chain(("compute", Compute("a", 1.0))))
    load = Load(due=np.zeros((1, 2)))
    with pytest.raises(ConfigError, match="batches go with"):
        events.simulate(service, System(batch=2, replicas=2), load, Draws(np.ones((1, 1))))
    with pytest.raises(InputError, match="without a refill"):
        events.simulate(service, System(tokens=2), load, Draws(np.ones((1, 1))))
