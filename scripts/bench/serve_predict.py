"""Latencies of a service at given arrivals, beside what the planner predicts for the same arrivals.

Twice: from the run's own seconds of every request and refill, which shows that the recurrence is the service's; and
from a calibration, which is what a plan has. There the tolerance grows with the load rho: an error of the seconds of a
request grows by 1 + 1 / (1 - rho) in a queue (M/D/1).
"""

from __future__ import annotations

import numpy as np

from hummingbird.capacity import recurrence
from hummingbird.capacity.arrivals import Trace
from hummingbird.capacity.engines import run
from hummingbird.capacity.result import EVENTS, RECURRENCE
from hummingbird.capacity.service import Service
from hummingbird.capacity.system import Draws, Floats, Load, System
from scripts.bench.serve_offered import QUANTILES, Figures, Offered

ENGINES = (RECURRENCE, EVENTS)
TOLERANCE = 0.05
_RUNS = {RECURRENCE: 100, EVENTS: 40}  # of each prediction, or more for so many requests in all:
_LEAST = 1000


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
