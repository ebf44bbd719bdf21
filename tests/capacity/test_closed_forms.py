"""Queues whose answer is known: both engines within four standard errors of it.

M/D/1 and M/G/1 (Pollaczek and Khinchine), M/M/c (Erlang C), make-to-stock (J. Buzacott and J. Shanthikumar, "Stochastic
Models of Manufacturing Systems", 1993): a store of K kept full by one worker, processor sharing.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from hummingbird.capacity import events, recurrence
from hummingbird.capacity.arrivals import exponential, gamma, poisson
from hummingbird.capacity.service import Compute, Host, Service, chain
from hummingbird.capacity.system import Draws, Floats, Load, LoadOutcome, System
from tests.support.covering import every

RUNS, REQUESTS, WARM = 100, 6000, 1000


def near(of_runs: Floats, wanted: float) -> None:
    """The mean of the runs' own numbers is within four of its standard errors."""
    error = of_runs.std(ddof=1) / math.sqrt(len(of_runs))
    assert abs(of_runs.mean() - wanted) < 4 * error, (of_runs.mean(), wanted, error)
    assert error < 0.05 * wanted  # or else it says little


def waits(outcome: LoadOutcome) -> Floats:
    return (outcome.began - outcome.arrived)[:, WARM:].mean(1)


def simulated(rate: float, online: Floats, refill: Floats | None = None, **rules: int) -> LoadOutcome:
    load = poisson(rate).load(RUNS, REQUESTS, seed=1)
    return recurrence.simulate(System(**rules), load, Draws(online, refill))


@pytest.mark.parametrize(
    "form", every(2, [0.4, 1.0, math.inf, 4.0]), ids=["broad", "exponential", "constant", "narrow"]
)
def test_pollaczek_and_khinchine(form: float) -> None:
    rho = 0.7
    online = np.ones((1, 1)) if form == math.inf else gamma((RUNS, REQUESTS), form, 2, "online")
    near(waits(simulated(rho, online)), rho * (1 + 1 / form) / 2 / (1 - rho))


@pytest.mark.parametrize("slots", [2, 5])
def test_erlang_c(slots: int) -> None:
    load = 0.8 * slots
    blocked = load**slots / math.factorial(slots) / (1 - load / slots)
    blocked /= sum(load**k / math.factorial(k) for k in range(slots)) + blocked
    outcome = simulated(load, exponential((RUNS, REQUESTS), 2, "online"), slots=slots)
    near((outcome.began > outcome.arrived)[:, WARM:].mean(1), blocked)
    near(waits(outcome), blocked / (slots - load))


@pytest.mark.parametrize("places", every(2, [4, 1]))
def test_make_to_stock(places: int) -> None:
    rate, speed = 0.75, 1.0
    refill = exponential((RUNS, REQUESTS), 2, "refill") / speed
    outcome = simulated(rate, np.zeros((1, 1)), refill, tokens=places, stored=places)
    blocked = (outcome.went - outcome.arrived)[:, WARM:]
    near((blocked > 0).mean(1), (rate / speed) ** places)
    near(blocked.mean(1), (rate / speed) ** places / (speed - rate))


def test_blocked_requests_of_a_bounded_queue() -> None:
    """M/M/1/3: the share that finds one served and two waiting."""
    rho = 0.8
    outcome = simulated(rho, exponential((RUNS, REQUESTS), 2, "online"), queue=2)
    near((outcome.fate == 1)[:, WARM:].mean(1), (1 - rho) * rho**3 / (1 - rho**4))


def test_the_machine_repair_model() -> None:
    """N users with exponential times: throughput by mean value analysis (M. Reiser and S. Lavenberg, 1980)."""
    users, think, length = 6, 4.0, 0.0
    for number in range(1, users + 1):
        residence = 1 + length
        length = number / (think + residence) * residence
    thoughts = think * exponential((RUNS, users + REQUESTS), 3, "think")
    load = Load(think=thoughts, users=users)
    outcome = recurrence.simulate(System(), load, Draws(exponential((RUNS, REQUESTS), 2, "online")))
    near(outcome.latency[:, WARM:].mean(1), residence)


@pytest.mark.parametrize("form", every(3, [0.4, 1.0, math.inf]), ids=["broad", "exponential", "constant"])
def test_processor_sharing(form: float) -> None:
    """E[S] / (1 - rho) for any law of S (L. Kleinrock, "Queueing Systems" II, 1976): one core, nobody waits."""
    rho, runs, requests = 0.6, 16, 900
    service = Service("shared", {"a": Host()}, chain(("compute", Compute("a", 1.0))), slots=10**6)
    factors = np.ones((1, 1)) if form == math.inf else gamma((runs, requests), form, 4, "online")
    load = poisson(rho).load(runs, requests, seed=5)
    outcome = events.simulate(service, System(slots=10**6), load, Draws(factors))
    assert (outcome.began == outcome.arrived).all()
    error = (latency := outcome.latency[:, 150:].mean(1)).std(ddof=1) / math.sqrt(runs)
    assert abs(latency.mean() - 1 / (1 - rho)) < 4 * error < 0.6
