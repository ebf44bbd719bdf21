"""Requests to a service at given times, whether or not earlier ones have been answered, and when each was.

As wrk2 and MLPerf's server scenario do, a latency counts from when a request was due, so that a service that falls
behind cannot slow down those who ask it.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from hummingbird.capacity.system import Floats
from hummingbird.errors import HummingbirdError
from scripts.bench.serve_watched import Watched

QUANTILES = (0.5, 0.95, 0.99)
_THREADS = 128
_SETTLED = 0.2


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
