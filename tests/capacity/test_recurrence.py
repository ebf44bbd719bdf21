"""The recurrence against the same service in simpy, a batch server written as a loop, and a store of floats."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace

import numpy as np
import pytest

from hummingbird.capacity import recurrence
from hummingbird.capacity.arrivals import exponential, gamma, poisson
from hummingbird.capacity.system import GAVE_UP, REJECTED, SERVED, Draws, Load, LoadOutcome, System
from hummingbird.errors import ConfigError, InputError
from tests.capacity.simpy_model import Model
from tests.capacity.systems import random_case
from tests.support.covering import every

CASES = 300
TIMES = ("arrived", "began", "went", "left")


def near(got: np.ndarray, wanted: np.ndarray, where: str = "") -> None:
    """Alike to 1e-9, NaN where NaN is wanted."""
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9, err_msg=where)


def alike(got: LoadOutcome, wanted: LoadOutcome, where: str = "") -> None:
    """Every time and fate of two engines."""
    assert (got.fate == wanted.fate).all(), where
    for name in TIMES:
        near(getattr(got, name), getattr(wanted, name), f"{name} of {where}")


def simpy_alike(got: LoadOutcome, system: System, load: Load, draws: Draws, where: str) -> None:
    for run in range(load.shape[0]):
        rows = Model(system, load, draws, run).simulate()
        assert (rows[:, 4] == got.fate[run]).all(), where
        for column, name in enumerate(TIMES):
            near(getattr(got, name)[run], rows[:, column], f"{name} of {where}")


@pytest.mark.parametrize("fifty", every(CASES // 50, range(CASES // 50)))
def test_it_agrees_with_simpy_on_300_random_systems(fifty: int) -> None:
    for seed in range(50 * fifty, 50 * fifty + 50):
        system, load, draws = random_case(seed)
        outcome = recurrence.simulate(system, load, draws)
        simpy_alike(outcome, system, load, draws, f"{seed}: {system}")


@pytest.mark.parametrize("count", [50, pytest.param(CASES, marks=pytest.mark.slow)])
def test_the_random_systems_hold_every_mechanism_and_fate(count: int) -> None:
    """Each set shows every mechanism: the 50 systems that the quick tier compares with simpy, and all 300."""
    seen: dict[str, int] = {}
    fates: dict[int, int] = {}
    blocked = 0
    for seed in range(count):
        system, load, draws = random_case(seed)
        marks = {
            "ahead": system.store > 0,
            "on demand": system.tokens == 0,
            "no tokens": system.tokens is None,
            "slots": system.slots > 1,
            "workers": system.workers > 1 and system.store > 1,
            "several tokens": system.per_refill > 1 and system.store > 1,
            "queue": system.queue is not None,
            "replicas": system.replicas > 1,
            "kept": system.kept,
            "users": load.users > 0,
            "patience": load.patience is not None,
            "sizes": load.size is not None,
            "session": draws.session is not None,
        }
        for name, there in marks.items():
            seen[name] = seen.get(name, 0) + there
        outcome = recurrence.simulate(system, load, draws)
        for fate in (SERVED, REJECTED, GAVE_UP):
            fates[fate] = fates.get(fate, 0) + int((outcome.fate == fate).sum())
        blocked += int((outcome.went > outcome.began).sum()) if system.store else 0
    assert min(seen.values()) >= count // 15, seen
    assert min(fates.values()) > 2 * count // 3 and blocked > 10 * count // 3, (fates, blocked)


def one_batch_after_another(system: System, load: Load, draws: Draws, run: int) -> list[tuple[float, float, float]]:
    """(S, G, C) of every request: heaps of slots and tokens, in plain Python."""
    due, slots = list(load.due[run]), [0.0] * system.slots
    ready = [0.0] * system.stored
    workers, refill = [0.0] * system.workers, 0
    room = [0.0] * (system.store - system.stored)  # times at which places became free
    out: list[tuple[float, float, float]] = []
    while len(out) < len(due):
        i = len(out)
        full = due[i + system.batch - 1] if i + system.batch <= len(due) else math.inf
        start = max(heapq.heappop(slots), min(full, due[i] + system.hold))
        members = [time for time in due[i : i + system.batch] if time <= start]
        while len(room) >= system.per_refill:
            free = max(sorted(heapq.heappop(room) for _ in range(system.per_refill)))
            begin = max(free, heapq.heappop(workers))
            end = begin + draws.refill[run, refill]
            refill += 1
            heapq.heappush(workers, end)
            for _ in range(system.per_refill):
                heapq.heappush(ready, end)
        need = system.per_request * len(members)
        go = max([start, *(heapq.heappop(ready) for _ in range(need))])
        for _ in range(need):
            heapq.heappush(room, go)
        end = go + draws.request[run, i] + system.each * (len(members) - 1)
        heapq.heappush(slots, end)
        out += [(start, go, end)] * len(members)
    return out


@pytest.mark.parametrize("slots, workers, per_refill", [(1, 1, 1), (2, 1, 1), (1, 3, 2), (3, 2, 1)])
def test_batches_agree_with_a_loop(slots: int, workers: int, per_refill: int) -> None:
    shape = (3, 200)
    system = System(
        slots=slots, workers=workers, tokens=20, stored=7, per_refill=per_refill, batch=4, hold=0.5, each=0.1
    )
    load = poisson(2.5 * slots).load(*shape, seed=1)
    draws = Draws(exponential(shape, 2, "online"), 0.3 * per_refill * gamma((3, 400), 2.0, 2, "refill"))
    got = recurrence.simulate(system, load, draws)
    for run in range(3):
        wanted = np.array(one_batch_after_another(system, load, draws, run))
        for column, name in enumerate(("began", "went", "left")):
            near(getattr(got, name)[run], wanted[:, column], name)
    assert 1.2 < np.mean([len(set(run)) for run in got.began]) ** -1 * 200 < 4  # batches, and not all full


def one_worker(due: np.ndarray, token: float, store: float) -> np.ndarray:
    """Latencies where a refill of 1.5 s begins if the store has room for one token more, all in one unit of size."""
    held, free, refilled, ready, out = token * 0, 0.0, 0.0, list[float](), list[float]()
    for at in due:
        while held + token <= store:
            refilled += 1.5
            ready.append(refilled)
            held += token
        go = max(at, free, ready.pop(0))
        held -= token
        refilled, free = max(refilled, go), go + 0.1
        out.append(free - at)
    return np.array(out)


def test_a_store_of_floats_loses_a_token() -> None:
    """Three tokens of 100 MB fit into 300 MB; 0.1 + 0.1 + 0.1 GB do not fit into 0.3 GB."""
    load = poisson(0.5).load(1, 400, seed=1)
    draws = Draws(np.full((1, 1), 0.1), np.full((1, 1), 1.5))
    latency = recurrence.simulate(System(tokens=300 // 100), load, draws).latency[0]
    near(one_worker(load.due[0], 100, 300), latency)
    assert one_worker(load.due[0], 0.1, 0.3).mean() > 1.05 * latency.mean()


CHANGES = {
    "a faster refill": lambda s, d: (s, replace(d, refill=0.9 * d.refill)),
    "a faster online phase": lambda s, d: (s, replace(d, request=0.9 * d.request)),
    "a place more": lambda s, d: (replace(s, tokens=s.tokens + 1), d),
    "a worker more": lambda s, d: (replace(s, workers=s.workers + 1), d),
    "a slot more": lambda s, d: (replace(s, slots=s.slots + 1), d),
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_request_is_later_for_more_of_anything(change: str) -> None:
    shape = (20, 300)
    system = System(slots=2, workers=2, tokens=5, per_refill=1)
    load = poisson(1.0).load(*shape, seed=3)
    draws = Draws(1.6 * exponential(shape, 4, "online"), 1.7 * exponential((20, 400), 4, "refill"))
    before = recurrence.simulate(system, load, draws)
    more, faster = CHANGES[change](system, draws)
    after = recurrence.simulate(more, load, faster)
    assert (after.left <= before.left + 1e-9).all()
    assert after.latency.mean() < before.latency.mean()


def test_no_latency_falls_as_the_rate_rises() -> None:
    shape, system = (20, 300), System(slots=2, tokens=4, stored=4)
    draws = Draws(exponential(shape, 4, "online"), 0.6 * exponential((20, 400), 4, "refill"))
    slow, fast = (recurrence.simulate(system, poisson(r).load(*shape, seed=3), draws).latency for r in (1.2, 1.4))
    assert (fast >= slow - 1e-9).all() and fast.mean() > slow.mean()


def test_times_scale() -> None:
    for seed in range(40):
        system, load, draws = random_case(seed)

        def scaled(times: np.ndarray | None) -> np.ndarray | None:
            return None if times is None else 7.3 * times

        slower = replace(load, due=scaled(load.due), think=scaled(load.think), patience=scaled(load.patience))
        phases = Draws(scaled(draws.request), scaled(draws.refill), scaled(draws.session), draws.picks)
        got, wanted = recurrence.simulate(system, slower, phases), recurrence.simulate(system, load, draws)
        assert (got.fate == wanted.fate).all()
        near(got.left, 7.3 * wanted.left)


@pytest.mark.parametrize(
    ("slots", "workers", "places", "online", "refill"),
    every(3, [(1, 3, 2, 0.5, 2.0), (2, 1, 4, 3.0, 1.0), (2, 3, 9, 0.1, 2.0)]),
)
def test_requests_that_all_wait_leave_at_the_closed_limit(
    slots: int, workers: int, places: int, online: float, refill: float
) -> None:
    """min(c / T_on, min(r, K) / T_off), for constant times the largest circuit mean."""
    load = Load(due=np.zeros((1, 4000)))
    system = System(slots=slots, workers=workers, tokens=places)
    left = recurrence.simulate(system, load, Draws(np.full((1, 1), online), np.full((1, 1), refill))).left[0]
    limit = min(slots / online, min(workers, places) / refill)
    assert 2000 / (left[-1] - left[1999]) == pytest.approx(limit, rel=1e-3)


def test_what_it_cannot_do_exactly_is_refused() -> None:
    load = poisson(1.0).load(2, 10, seed=0)
    online, refill = exponential((2, 10), 0, "online"), np.ones((1, 1))
    with pytest.raises(ConfigError, match="(?s)end out of order.*event engine"):
        recurrence.simulate(System(tokens=3, slots=2, kept=True), load, Draws(online, refill))
    recurrence.simulate(System(tokens=3, slots=2, kept=True), load, Draws(refill, refill))  # constant: in order
    with pytest.raises(ConfigError, match="batches go with"):
        recurrence.simulate(System(batch=2, queue=1), load, Draws(online))
    with pytest.raises(InputError, match="without seconds of a refill"):
        recurrence.simulate(System(tokens=3), load, Draws(online))


def test_a_request_that_no_store_can_serve_is_refused_and_only_that() -> None:
    """Every small system either is refused, or serves all; simpy's model would wait for ever otherwise."""
    refused = 0
    for tokens in range(1, 7):
        for per_refill in range(1, 5):
            for need in range(1, 5):
                for stored in range(tokens + 1):
                    system = System(tokens=tokens, stored=stored, per_refill=per_refill, per_request=need)
                    stock, left, served = stored, tokens - stored, 0
                    for _ in range(30):  # the store fills as far as it can, then serves
                        stock, left = stock + left // per_refill * per_refill, left % per_refill
                        if stock < need:
                            break
                        stock, left, served = stock - need, left + need, served + 1
                    try:
                        system.check_tokens(np.array([[need]]))
                        assert served == 30, system
                    except ConfigError:
                        refused += 1
                        assert served < 30, system
    assert refused > 50


def test_bad_loads_are_refused() -> None:
    with pytest.raises(InputError, match="out of order"):
        Load(due=np.array([[2.0, 1.0]]))
    with pytest.raises(InputError, match="not finite"):
        Load(due=np.array([[1.0, math.nan]]))
    with pytest.raises(InputError, match="not both"):
        Load()
    with pytest.raises(InputError, match="at least 0"):
        Draws(np.array([[-1.0]]))
    with pytest.raises(ConfigError, match="5 tokens at time 0"):
        System(tokens=4, stored=5)
