"""Latencies of a service at given arrivals, beside what the planner predicts for the same arrivals.

Twice: from the run's own seconds of every request and refill, which shows that the recurrence is the service's; and
from a calibration, which is what a plan has. There the tolerance grows with the load rho: an error of the seconds of a
request grows by 1 + 1 / (1 - rho) in a queue (M/D/1).
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from hummingbird.capacity import recurrence
from hummingbird.capacity.arrivals import Trace
from hummingbird.capacity.engines import run
from hummingbird.capacity.result import EVENTS, RECURRENCE
from hummingbird.capacity.system import Draws, Floats, Load, System
from hummingbird.errors import HummingbirdError
from scripts.serve_calibrate import Calibrated
from scripts.serve_watched import Watched

QUANTILES = (0.5, 0.95, 0.99)
ENGINES = (RECURRENCE, EVENTS)
TOLERANCE = 0.05
_THREADS = 128
_SETTLED = 0.2
_RUNS = {RECURRENCE: 100, EVENTS: 5}  # of each prediction, or more for so many requests in all:
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
    """Ask at the times `due`, seconds from now, whether or not earlier requests have been answered."""
    service.fill(service.kept or len(due))
    service.times(), service.sets()
    service.keep()
    asked: list[tuple[float, float, int]] = []

    def ask(number: int, at: float) -> None:
        refused = service.ask(number)
        asked.append((at, time.perf_counter(), refused))

    started = time.perf_counter()
    with ThreadPoolExecutor(_THREADS) as pool:
        for number, at in enumerate(started + due):
            time.sleep(max(0.0, at - time.perf_counter()))
            pool.submit(ask, number, float(at))
    time.sleep(_SETTLED)
    found, sets = service.times(), service.sets()
    if len(found) != len(due) or len(asked) != len(due):
        raise HummingbirdError(f"of {len(due)} requests {len(asked)} were answered, {len(found)} at the service")
    outcomes = np.array(sorted(asked, key=lambda outcome: outcome[1]))
    both = np.hstack([outcomes, found])[np.argsort(outcomes[:, 0])]
    return Offered(*both[:, :2].T, *both[:, 3:].T, sets=sets, refused=int(both[:, 2].sum()))


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


def predicted(calibrated: Calibrated, kept: int, cores: int, due: Floats, engine: str, seed: int) -> Figures:
    """The figures that `capacity.run` predicts for requests at these times."""
    times = due - due[0]
    service = calibrated.service("a service on this host", kept, cores)
    count = {"runs": max(_RUNS[engine], -(-_LEAST // len(times))), "requests": len(times)}
    result = run(service, None, Trace(tuple(times.tolist())), seed=seed, engine=engine, **count)
    throughput = len(due) / (result.outcome.left.max(1) + calibrated.beside)
    quantiles = [result.quantile(q).value + calibrated.beside for q in QUANTILES]
    return Figures(*quantiles, float(np.median(throughput)))


def tolerance(load: float) -> float:
    """The relative error that a calibration's 5 % may become at a load."""
    return TOLERANCE * (1 + 1 / (1 - load))
