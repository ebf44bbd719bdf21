"""Requests to a service at given times, whether or not earlier ones have been answered, and when each was.

As wrk2 and MLPerf's server scenario do, a latency counts from when a request was due, so that a service that falls
behind cannot slow down those who ask it.

Beside what was measured stands what the planner predicts for the same arrivals, twice: from the run's own seconds of
every request and refill, which shows that the recurrence is the service's; and from a calibration, which is what a plan
has. There the tolerance grows with the load rho: an error of the seconds of a request grows by 1 + 1 / (1 - rho) in a
queue (M/D/1).
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from hummingbird.capacity import recurrence
from hummingbird.capacity.arrivals import Trace
from hummingbird.capacity.engines import run
from hummingbird.capacity.result import EVENTS, RECURRENCE
from hummingbird.capacity.service import Service
from hummingbird.capacity.system import Draws, Floats, Load, System
from hummingbird.errors import HummingbirdError
from scripts.bench.serve_watched import Watched

QUANTILES = (0.5, 0.95, 0.99)
_THREADS = 128
_SETTLED = 0.2
ENGINES = (RECURRENCE, EVENTS)
TOLERANCE = 0.05
_RUNS = {RECURRENCE: 100, EVENTS: 40}  # of each prediction, or more for so many requests in all:
_LEAST = 1000


@dataclass(frozen=True)
class Figures:
    """Latencies in seconds, and requests per second from the first that was due to the last answer."""

    p50: float
    p95: float
    p99: float
    throughput: float

    @classmethod
    def of(cls, due: Floats, answered: Floats) -> Figures:
        """The figures of requests that were due and answered then."""
        quantiles = np.quantile(answered - due, QUANTILES).tolist()
        return cls(*quantiles, len(due) / float(answered.max() - due.min()))

    def errors(self, measured: Figures) -> dict[str, float]:
        """Relative errors of these figures."""
        return {name: getattr(self, name) / getattr(measured, name) - 1 for name in ("p50", "p95", "p99", "throughput")}


@dataclass(frozen=True)
class Offered:
    """Requests of one run, in the order in which they were due: when each was due and answered, and stood in line, was
    taken and done at the service, in seconds. sets: when the dealing of each began, and it was there. refused: times.
    """

    due: Floats
    answered: Floats
    lined: Floats
    taken: Floats
    done: Floats
    sets: Floats
    refused: int

    @property
    def figures(self) -> Figures:
        """As the client saw it."""
        return Figures.of(self.due, self.answered)


def offer(service: Watched, due: Floats) -> Offered:
    """Ask at the times `due`, seconds from now; a store is full at first, and kept so."""
    service.fill(service.kept or len(due))
    service.times(), service.sets()
    service.keep()
    return ask_at(service, due)


def ask_at(service: Watched, due: Floats) -> Offered:
    """Ask at the times `due`, seconds from now, of a service whose material is as it is."""
    started = time.perf_counter()
    with ThreadPoolExecutor(_THREADS) as pool:
        asked = [_submit(pool, service, number, float(at)) for number, at in enumerate(started + due)]
    time.sleep(_SETTLED)
    found, sets = service.times(), service.sets()
    if len(found) != len(due):
        raise HummingbirdError(f"of {len(due)} requests {len(found)} were answered at the service")
    outcomes = np.array(sorted((each.result() for each in asked), key=lambda outcome: outcome[1]))
    both = np.hstack([outcomes, found])[np.argsort(outcomes[:, 0])]
    return Offered(*both[:, :2].T, *both[:, 3:].T, sets=sets, refused=int(both[:, 2].sum()))


def ask_alone(service: Watched, idle: Floats) -> Floats:
    """Latencies in seconds of requests; each is due its pause after the answer to the one before."""
    latencies = []
    with ThreadPoolExecutor(1) as pool:
        for number, seconds in enumerate(idle.tolist()):
            due, answered, _ = _submit(pool, service, number, time.perf_counter() + seconds).result()
            latencies.append(answered - due)
    return np.array(latencies)


def _submit(pool: ThreadPoolExecutor, service: Watched, number: int, at: float) -> Future[tuple[float, float, int]]:
    """Ask request `number` at a time: when it was due, when it was answered, and how often it was refused."""

    def ask() -> tuple[float, float, int]:
        refused = service.ask(number)
        return at, time.perf_counter(), refused

    time.sleep(max(0.0, at - time.perf_counter()))
    return pool.submit(ask)


def own(offered: Offered, kept: int) -> Figures:
    """The recurrence's figures from a run's own seconds: of each request while none before it was under way, of each
    set from when there was room for it, and of what clients and parties take beside them.
    """
    order = np.argsort(offered.taken, kind="stable")
    taken, done = offered.taken[order], offered.done[order]
    lined = np.minimum.accumulate(offered.lined[order][::-1])[::-1]  # in the order in which they were taken
    start = float(lined[0])
    began = np.maximum(taken, np.concatenate([[-np.inf], np.maximum.accumulate(done)[:-1]]))
    seconds = done - began
    system, refill = System(), None
    if kept:
        there = offered.sets[: len(began), 1]
        room = np.maximum(began[: len(there)], np.concatenate([[-np.inf], there[:-1]]))
        refill = np.maximum(there - room, 0.0)[None] if len(there) else np.zeros((1, 1))
        system = System(tokens=kept, stored=kept)
    draws = Draws(np.maximum(seconds, 0.0)[None], refill)
    outcome = recurrence.simulate(system, Load(due=(lined - start)[None]), draws)
    beside = offered.answered[order] - offered.due[order] - (done - lined)
    latency = outcome.latency[0] + beside
    return Figures.of(offered.due[order], offered.due[order] + latency)


def predicted(service: Service, beside: float, due: Floats, engine: str, seed: int) -> Figures:
    """The figures that `capacity.run` predicts of a service for requests at these times. beside: seconds of each
    request that keep no other waiting (`Calibrated.beside`).
    """
    times = due - due[0]
    count = {"runs": max(_RUNS[engine], -(-_LEAST // len(times))), "requests": len(times)}
    result = run(service, None, Trace(tuple(times.tolist())), seed=seed, engine=engine, **count)
    throughput = len(due) / (result.outcome.left.max(1) + beside)
    quantiles = [result.quantile(q).value + beside for q in QUANTILES]
    return Figures(*quantiles, float(np.median(throughput)))


def tolerance(load: float) -> float:
    """The relative error that a calibration's 5 % may become at a load."""
    return TOLERANCE * (1 + 1 / (1 - load))
