"""Simulates a service under a load: draws the random inputs, and chooses the engine, with the reason for it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from hummingbird.capacity import events, recurrence
from hummingbird.capacity.arrivals import Arrivals, Trace, choices
from hummingbird.capacity.limit import Resource, capacity_of, limits
from hummingbird.capacity.result import EVENTS, RECURRENCE, Result
from hummingbird.capacity.service import Compute, Hosts, Phase, Send, Service, WorkStep
from hummingbird.capacity.system import Draws, Floats, Load, System, system_of, transits
from hummingbird.errors import ConfigError

BATCHES = ("batch", "hold", "each")  # fields of the service that `rules` may replace
_SIZES = {RECURRENCE: (200, 5000), EVENTS: (10, 1000)}  # default numbers of runs, and of requests in each


def run(
    service: Service,
    at: Hosts | None,
    arrivals: Arrivals,
    *,
    seed: int = 0,
    runs: int | None = None,
    requests: int | None = None,
    engine: str | None = None,
    full: bool = True,
    progress: Callable[[int, int], None] | None = None,
    **rules: int | float | bool | None,
) -> Result:
    """Simulate a service under these arrivals, in `runs` runs of `requests` requests; return a `Result`.

    The same seed gives the same result. at: machines and link to use in place of the service's own, or None. full:
    whether stores are full at first, else empty. progress: called by the event engine with (requests done, requests in
    all).
    engine: "recurrence" computes as if no phases shared cores and links, "events" lets them share. None: "events" if
    the demand on a core or link may exceed its capacity, or if requests keep their tokens to the end and may end in
    another order than they began; else "recurrence". By default the recurrence simulates 10^6 requests, the event
    engine 10^4; both take seconds.
    rules: values that replace the service's own for the fields `queue`, `replicas`, `choices`, `slow`, `kept`, `batch`,
    `hold` and `each` of `System`.
    Raises ConfigError for rules that the engine does not support, and for requests of more tokens than a store holds.

    >>> phase = capacity.chain(("compute", capacity.Compute("server", 0.2)))
    >>> service = capacity.Service("one server", {"server": capacity.Host()}, request=phase)
    >>> result = capacity.run(service, None, capacity.poisson(2.5), runs=10, requests=1000)
    >>> result.engine, 0.2 < result.quantile(0.5).value < 0.5
    ('recurrence', True)
    """
    own = {name: value for name, value in rules.items() if name in BATCHES}
    service = dataclasses.replace(service if at is None else service.at(at), **own)  # type: ignore[arg-type]
    system = system_of(service, full=full, **rules)
    engine, why = _engine(service, system, engine)
    shape = _shape(arrivals, engine, runs, requests)
    load = arrivals.load(*shape, seed, per_request=service.images)
    away = transits(service, load)
    if load.think is not None:  # the transit delays a user's next request
        first = np.full((shape[0], load.users), service.transit_seconds())
        load = dataclasses.replace(load, think=load.think + np.hstack([first, away]))
    factors = drawn_factors(service, system, load, seed)
    if engine == RECURRENCE:
        outcome = recurrence.simulate(system, load, seconds(service, load, factors))
    else:
        total = shape[0] * shape[1]
        told = None if progress is None else lambda done: progress(done, total)
        outcome = events.simulate(service, system, load, factors, told)
    # The engines follow a request from its arrival at the service; requests in transit do not affect each other.
    outcome = dataclasses.replace(outcome, arrived=outcome.arrived - away)
    # Limits count the service's own requests; one arrival may bring several requests.
    sized = dataclasses.replace(service, each=service.each / float(load.sizes().mean()))
    return Result(service, system, arrivals, load, outcome, engine, why, limits(sized))


def _shape(arrivals: Arrivals, engine: str, runs: int | None, requests: int | None) -> tuple[int, int]:
    most = len(arrivals.due) if isinstance(arrivals, Trace) else math.inf
    default = _SIZES[engine]
    return runs or default[0], requests or int(min(default[1], most))


def _engine(service: Service, system: System, wanted: str | None) -> tuple[str, str]:
    """Choose the engine that simulates a service; return its name, "recurrence" or "events", and the reason in a few
    words.

    system: the rules of the service. wanted: the engine that the caller named. None: "events" if phases may compete for
    cores or links, or if requests keep their tokens to the end and may end in another order than they began; else
    "recurrence".
    """
    if wanted is not None:
        if wanted not in _SIZES:
            raise ConfigError(f"no engine {wanted!r}", where="engine", hint=f"one of {', '.join(_SIZES)}")
        return wanted, "it was asked for"
    crowded = shared(service, system)
    if crowded is not None:
        return EVENTS, f"phases share {'the ' if crowded[1] == 'cores' else 'the link '}{crowded[1]} of {crowded[0]}"
    if system.kept and system.slots > 1:
        return EVENTS, "tokens are kept until requests end, which end out of order"
    return RECURRENCE, "every phase has its cores and links to itself"


def shared(service: Service, system: System) -> Resource | None:
    """Find a core or link on which phases that run at the same time may ask for more than its capacity.

    Returns the host's role, and "cores", "up" or "down"; None if there is none. The demand of a phase may be
    overestimated: the demand of a step is added to that of all steps that may run beside it, although these may have to
    run one after another. Sharing among the steps of one phase is no reason: the seconds of the phase include it
    (`Service.seconds`).
    """
    with_slot = [service.request, service.session, service.refill if not system.store else None]
    for role in service.hosts:
        for kind in ("cores", "up", "down"):
            resource = (role, kind)
            has = capacity_of(service, resource)
            peak = max(_peak(service, phase, resource) for phase in with_slot if phase is not None)
            asked = system.slots * min(has, peak)
            if system.store and service.refill is not None:
                asked += system.at_once * min(has, _peak(service, service.refill, resource))
            if asked > has:
                return resource
    return None


def _peak(service: Service, phase: Phase, resource: Resource) -> float:
    """Compute the most of a resource that the steps of a phase may use at one time: a number of cores, or bits per
    second.

    resource: a host's role, and "cores", "up" or "down". Two steps may run at one time unless one of them waits,
    directly or through other steps, for the other.
    """
    before: dict[str, set[str]] = {}
    for step in phase.steps:
        before[step.name] = set(step.after).union(*(before[name] for name in step.after))
    rates = {step.name: _rate(service, step, resource) for step in phase.steps}
    together = (
        sum(rates[b.name] for b in phase.steps if a.name not in before[b.name] and b.name not in before[a.name])
        for a in phase.steps
    )
    return max(together, default=0.0)


def _rate(service: Service, step: WorkStep, resource: Resource) -> float:
    role, kind = resource
    work = step.work
    if isinstance(work, Compute) and (work.host, "cores") == resource:
        return float(min(work.width, service.hosts[role].cores)) if work.core_seconds else 0.0
    if isinstance(work, Send) and work.bytes and resource in ((work.source, "up"), (work.target, "down")):
        return min(service.hosts[work.source].up, service.hosts[work.target].down)
    return 0.0


def drawn_factors(service: Service, system: System, load: Load, seed: int) -> Draws:
    """Draw, for every run of every phase in a simulation, the factor by which the phase's core-seconds are multiplied.

    Each factor is drawn from `Phase.factors`: measured times of the phase, divided by their mean. seed: of the random
    numbers. Returns the factors as `Draws`.
    """
    runs, requests = load.shape
    tokens = int(load.sizes().sum(1).max()) * system.per_request

    def draw(phase: Phase | None, shape: tuple[int, int], name: str) -> Floats | None:
        if phase is None:
            return None
        if len(phase.factors) < 2:
            return np.full((1, 1), phase.factors[0] if phase.factors else 1.0)
        return np.array(phase.factors)[choices(len(phase.factors), shape, seed, name)]

    request = draw(service.request, load.shape, "request")
    assert request is not None
    refills = (runs * system.replicas, -(-tokens // system.per_refill))
    refill = draw(service.refill, refills, "refill") if system.tokens is not None else None
    sessions = service.session if load.first is None or load.first.any() else None  # None: no request begins a session
    picks = None
    if system.choices is not None:
        picks = choices(system.replicas, (*load.shape, system.choices), seed, "replicas")
        for place in range(1, system.choices):  # distinct: the next number that is free
            while (taken := (picks[..., :place] == picks[..., place : place + 1]).any(-1)).any():
                picks[..., place] = np.where(taken, (picks[..., place] + 1) % system.replicas, picks[..., place])
    return Draws(request, refill, draw(sessions, load.shape, "session"), picks)


def seconds(service: Service, load: Load, factors: Draws) -> Draws:
    """Compute how many seconds each run of each phase takes, as if no other phase used the same cores and links.

    factors: for each run of a phase, the factor by which its core-seconds are multiplied. Returns the seconds as
    `Draws`, for the recurrence engine. An arrival that brings several requests of the service has their online phases
    in one number: the seconds of one phase times the number of requests.
    """

    def of(phase: Phase | None, values: Floats | None) -> Floats | None:
        if phase is None or values is None:
            return None
        found, places = np.unique(values, return_inverse=True)
        return np.array([service.seconds(phase, float(factor)) for factor in found])[places].reshape(values.shape)

    request = of(service.request, factors.request)
    assert request is not None
    return dataclasses.replace(
        factors,
        request=request * load.sizes(),
        refill=of(service.refill, factors.refill),
        session=of(service.session, factors.session),
    )
