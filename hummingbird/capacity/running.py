"""A service under load: which engine follows it and why, and what its requests see.

The recurrence is exact where every phase has its cores and links to itself, and fast. Where phases that run at the same
time use one core or link, their shares decide, and the event engine follows them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hummingbird.capacity import events, recurrence, statistics, telling
from hummingbird.capacity.arrivals import Arrivals, Users
from hummingbird.capacity.drawing import choices
from hummingbird.capacity.limit import Limit, Resource, capacity_of, limits, loads
from hummingbird.capacity.service import Compute, Hosts, Phase, Send, Service, check_count
from hummingbird.capacity.statistics import Estimate
from hummingbird.capacity.system import GAVE_UP, REJECTED, Draws, Floats, Load, Outcome, System, system_of
from hummingbird.errors import ConfigError

RECURRENCE, EVENTS = "recurrence", "events"
ENGINES = ("auto", RECURRENCE, EVENTS)
REQUESTS, RUNS = 2000, 10  # of a simulation, by default
_DRAWN = 4096  # refills with a draw of their own, before they are used again
_MEMORIES = 10.0  # times that a run is longer than a queue's memory
_NEAR = 1.0 - 1e-9  # of the limit: at it, the queue grows, too


@dataclass(frozen=True)
class Run:
    """Requests that a service was asked, and what became of them; times in seconds.

    engine, why: which followed it. limit: the largest rate in closed form, and its cause. load: requests of the service
    per second over that. first: requests left out of every run as its warm-up.
    """

    service: Service
    arrivals: Arrivals
    outcome: Outcome
    system: System
    engine: str
    why: str
    limit: Limit
    load: float
    seed: int
    first: int

    @property
    def stable(self) -> bool:
        """Whether the rate is below the limit, or no queue can grow: only then do requests have lasting latencies."""
        return self.load < _NEAR

    def steady(self, values: Floats) -> Floats:
        """Values (runs, requests) after the warm-up."""
        return values[:, self.first :]

    def quantile(self, q: float) -> Estimate:
        """The quantile q of latency, with its interval; ConfigError above the limit, or of too few requests."""
        self._check("a percentile")
        return statistics.quantile(self.steady(self.outcome.latency), q)

    def mean(self, values: Floats | None = None) -> Estimate:
        """The mean of latency, or of other values (runs, requests); ConfigError above the limit."""
        self._check("a mean")
        return statistics.mean(self.steady(self.outcome.latency if values is None else values))

    def _check(self, what: str) -> None:
        if not self.stable:
            said = f"{what} of latency at {self.load:.0%} of the largest rate, {self.limit.rate:.4g} requests/s"
            hint = f"latency grows without end: ask for less, or change {self.limit.cause}"
            raise ConfigError(said, where="rate", hint=hint)

    @property
    def parts(self) -> dict[str, Floats]:
        """The parts of latency (runs, requests): wait for a slot, blocked for tokens, and the online phase."""
        done = self.outcome
        return {
            "wait": np.where(done.served, done.began - done.arrived, np.nan),
            "blocked": np.where(done.served, done.went - done.began, np.nan),
            "online": np.where(done.served, done.left - done.went, np.nan),
        }

    @property
    def goodput(self) -> float:
        """Images per second that were served, from the first request to the last answer, as a mean of the runs."""
        done = self.outcome
        seconds = np.nanmax(done.left, axis=1) - done.arrived.min(axis=1)
        images = self._images * done.served.sum(axis=1)
        return float(np.mean(images / np.maximum(seconds, 1e-300)))

    @property
    def _images(self) -> float:
        return self.arrivals.mean_images

    @property
    def rejected(self) -> float:
        """The share of requests that found the queue full."""
        return float((self.outcome.fate == REJECTED).mean())

    @property
    def gave_up(self) -> float:
        """The share of requests that lost patience."""
        return float((self.outcome.fate == GAVE_UP).mean())

    @property
    def growth(self) -> Estimate:
        """Seconds by which latency grows in a second."""
        return statistics.growth(self.outcome)

    @property
    def in_system(self) -> float:
        """Requests that are there on average."""
        return float(statistics.in_system(self.outcome).mean())

    @property
    def utilisation(self) -> dict[Resource, float]:
        """The share of every core and link that requests and their refills used, over the whole of the runs."""
        done, used = self.outcome, dict[Resource, float]()
        seconds = float((np.nanmax(done.left, axis=1) - done.arrived.min(axis=1)).sum())
        refills = float(np.isfinite(done.refilled).sum())
        tokens = float(done.tokens[done.served].sum())
        served = tokens / self.service.request_tokens if tokens else float(done.served.sum())
        for phase, times in ((self.service.request, served), (self.service.refill, refills)):
            for resource, amount in loads(self.service, phase).items() if phase else ():
                used[resource] = used.get(resource, 0.0) + amount * times
        finite = {resource: capacity_of(self.service, resource) for resource in used}
        return {r: used[r] / (finite[r] * seconds) for r in used if finite[r] < math.inf and seconds}

    @property
    def level(self) -> float:
        """Tokens in the store when a request arrives, on average."""
        done = self.outcome
        if self.system.tokens is None or not self.system.store:
            return 0.0
        levels = []
        for run in range(len(done.arrived)):
            rows = done.refilled[run * self.system.replicas : (run + 1) * self.system.replicas]
            made = np.sort(rows[np.isfinite(rows)])
            took, size = np.sort(done.went[run]), done.tokens[run][np.argsort(done.went[run])]
            have = self.system.stored * self.system.replicas
            have = have + self.system.per_refill * np.searchsorted(made, done.arrived[run], side="right")
            gone = np.concatenate([[0], np.cumsum(size)])[np.searchsorted(took, done.arrived[run], side="left")]
            levels.append(float(np.mean(have - gone)))
        return float(np.mean(levels)) / self.system.replicas

    def figures(self) -> dict[str, Any]:
        """All figures, flat. ConfigError for too few requests."""
        used = {f"{role}'s {kind}": share for (role, kind), share in self.utilisation.items()}
        return {
            "service": self.service.name,
            "engine": self.engine,
            "why": self.why,
            "seed": self.seed,
            "runs": len(self.outcome.arrived),
            "requests": self.outcome.arrived.shape[1],
            "requests_per_second": self.arrivals.per_second(),
            "limit_requests_per_second": self.limit.rate,
            "limit_cause": self.limit.cause,
            "load": self.load,
            "stable": self.stable,
            "steady": self.load <= heaviest(self.outcome.arrived.shape[1]),
            "warm_up_requests": self.first,
            **(self._latencies() if self.stable else {"growth_seconds_per_second": self.growth.value}),
            "goodput_images_per_second": self.goodput,
            "rejected": self.rejected,
            "gave_up": self.gave_up,
            "requests_in_system": self.in_system,
            "tokens_in_store": self.level,
            "utilisation": used,
        }

    def _latencies(self) -> dict[str, float]:
        self.quantile(0.99)  # needs the most requests: its error names how many
        found: dict[str, float] = {}
        for name, q in (("mean", None), ("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            told = self.mean() if q is None else self.quantile(q)
            found |= {f"{name}_seconds": told.value, f"{name}_low": told.low, f"{name}_high": told.high}
            for part, values in self.parts.items():
                steady = self.steady(values)
                of = statistics.mean(steady) if q is None else statistics.quantile(steady, q)
                found[f"{part}_{name}_seconds"] = of.value
        return found

    def table(self) -> str:
        """The figures as text."""
        return telling.run_table(self.figures())


def load_of(service: Service, arrivals: Arrivals) -> float:
    """Requests of the service per second over the largest rate; 0 for users, who wait for their answers."""
    if isinstance(arrivals, Users):
        return 0.0
    return arrivals.per_second() * math.ceil(arrivals.mean_images / service.images) / limits(service)[0].rate


def heaviest(requests: int) -> float:
    """The largest load whose steady state so many requests in a row show: a queue forgets in 1 / (1 - load)^2."""
    return max(0.0, 1 - math.sqrt(_MEMORIES / requests))


def shared(service: Service) -> list[str]:
    """Cores and links that phases, or steps, which may run at the same time use together; none: nothing is shared."""
    asked: dict[Resource, float] = {}
    on_demand = service.refill is not None and not service.most_tokens
    at_once = min(service.workers, service.most_tokens // service.refill_tokens) if service.refill else 0
    phases = [(phase, service.slots) for phase in (service.session, service.request) if phase]
    if service.refill:
        phases.append((service.refill, service.slots if on_demand else at_once))
    serial: dict[Resource, float] = {}  # of phases of one slot, which follow one another
    for phase, times in phases:
        in_slot = phase is not service.refill or on_demand
        for resource, demand in _demand(service, phase).items():
            if in_slot:
                serial[resource] = max(serial.get(resource, 0.0), demand * times)
            else:
                asked[resource] = asked.get(resource, 0.0) + demand * times
    for resource, demand in serial.items():
        asked[resource] = asked.get(resource, 0.0) + demand
    over = [resource for resource, demand in asked.items() if demand > capacity_of(service, resource)]
    return [f"{role}'s {kind}" for role, kind in over]


def _demand(service: Service, phase: Phase) -> dict[Resource, float]:
    """What a phase asks of every core and link at most at one time: cores, and whole links."""
    before: dict[str, set[str]] = {}
    for step in phase.steps:
        before[step.name] = set(step.after).union(*(before[name] for name in step.after))
    users: dict[Resource, list[tuple[str, float]]] = {}
    for step in phase.steps:
        work = step.work
        if isinstance(work, Compute) and work.core_seconds:
            width = min(work.width, service.hosts[work.host].cores)
            users.setdefault((work.host, "cores"), []).append((step.name, width))
        elif isinstance(work, Send) and work.bytes:
            for resource in ((work.source, "up"), (work.target, "down")):
                if (rate := capacity_of(service, resource)) < math.inf:
                    users.setdefault(resource, []).append((step.name, rate))
    found = {}
    for resource, uses in users.items():
        ordered = all(a in before[b] or b in before[a] for a, _ in uses for b, _ in uses if a != b)
        found[resource] = max(demand for _, demand in uses) if ordered else sum(demand for _, demand in uses)
    return found


def run(
    service: Service,
    at: Hosts | None,
    arrivals: Arrivals,
    *,
    seed: int = 0,
    requests: int = REQUESTS,
    runs: int = RUNS,
    engine: str = "auto",
    full: bool = True,
    queue: int | None = None,
    replicas: int = 1,
    told: Callable[[int], None] | None = None,
) -> Run:
    """Simulate a service on machines `at` (None: its own) under these arrivals; the same seed gives the same figures.

    requests: of each of so many runs. engine: "auto" takes the recurrence where nothing is shared. full: whether stores
    are full at the start. queue: requests that may wait, one more is rejected. replicas: copies of the service, each
    with hosts and a store of its own. told: called with the number of requests that have left, by the event engine.
    Raises ConfigError for what an engine does not follow. Time: about 1 s for 10^6 requests by the recurrence, 0.2 ms a
    request and more by events.

        capacity.run(net, capacity.Hosts(bandwidth=352e6), capacity.poisson(4.0), seed=0).quantile(0.99)
    """
    for name, value in (("requests", requests), ("runs", runs), ("replicas", replicas)):
        check_count(value, name, 1, name)
    if engine not in ENGINES:
        raise ConfigError(f"engine={engine!r}", where="engine", hint=f"one of {', '.join(ENGINES)}")
    there = service if at is None else service.at(at)
    system = system_of(there, full=full, queue=queue, replicas=replicas)
    load = arrivals.load(runs, requests, seed, per_request=there.images)
    taken, why = _engine(there, engine, system)
    if taken == RECURRENCE:
        outcome = recurrence.simulate(system, load, _draws(there, load, seed, system, seconds=True))
    else:
        outcome = events.simulate(there, system, load, _draws(there, load, seed, system, seconds=False), told)
    best = limits(there)[0]
    best = Limit(best.rate * replicas, best.cause)
    bounded = queue is not None or arrivals.patience < math.inf or isinstance(arrivals, Users)
    asked = 0.0 if bounded else arrivals.per_second() * float(load.sizes().mean()) / best.rate
    first = statistics.warm_up(outcome.latency)
    return Run(there, arrivals, outcome, system, taken, why, best, asked, seed, first)


def _engine(service: Service, engine: str, system: System) -> tuple[str, str]:
    """The engine to take, and why."""
    together = shared(service)
    what = ", ".join(together)
    if engine == EVENTS:
        return EVENTS, f"asked for; shared: {what or 'nothing'}"
    if engine == RECURRENCE:
        return RECURRENCE, "asked for" + (
            f", although these are shared, which it does not know: {what}" if what else ""
        )
    if not together:
        return RECURRENCE, "every phase has its cores and links to itself"
    if system.replicas > 1:
        hint = "plan one replica at its part of the rate, or --engine recurrence, which neglects the sharing"
        raise ConfigError(f"replicas of a service that shares {what}", where="replicas", hint=hint)
    return EVENTS, f"shared by what runs at the same time: {what}"


def _draws(service: Service, load: Load, seed: int, system: System, *, seconds: bool) -> Draws:
    """For each time that a phase runs its factor, or its seconds."""
    runs, requests = load.shape

    def drawn(name: str, phase: Phase, shape: tuple[int, int]) -> Floats:
        factors = np.array(phase.factors or (1.0,))
        values = np.array([service.seconds(phase, factor) for factor in factors]) if seconds else factors
        if len(values) == 1:
            return np.broadcast_to(values, shape)
        return values[choices(len(values), shape, seed, name)]

    sizes = load.sizes() if seconds else np.ones(1, dtype=np.int64)
    refills = min(_DRAWN, requests * -(-system.per_request // system.per_refill) * int(load.sizes().max()))
    return Draws(
        request=drawn("request", service.request, (runs, requests)) * sizes,
        refill=drawn("refill", service.refill, (runs * system.replicas, refills)) if service.refill else None,
        session=drawn("session", service.session, (runs, requests)) if service.session else None,
    )
