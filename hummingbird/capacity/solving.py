"""Finds the least, or largest, value of one input with which a service meets a goal: bisection with common random
numbers.

Latency is monotone, run by run, in the rate, in seconds, in tokens, slots, workers and replicas (F. Baccelli et al.,
1992); with the same draws in every trial, so are its quantiles. Elasticities show which inputs matter at the answer:
(change of the goal's figure in percent) / (change of an input in percent). No trial has a load so near to the limit
that its number of requests cannot show the steady state.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hummingbird.capacity import engines
from hummingbird.capacity.arrivals import Arrivals, Gaps, Users, poisson
from hummingbird.capacity.limit import binding, limits
from hummingbird.capacity.quantities import shown_rate
from hummingbird.capacity.result import RECURRENCE, HostCost, Result, cost_of
from hummingbird.capacity.service import Compute, Hosts, Service, check_count, check_number
from hummingbird.capacity.system import system_of
from hummingbird.errors import ConfigError

GOALS = {"mean": None, "p50": 0.5, "p95": 0.95, "p99": 0.99}
VARIED = ("rate", "store", "bandwidth", "split", "cores", "replicas")
REQUESTS, RUNS = 3000, 2  # of each trial
_CLOSE = 1.005  # ratio of the values next to the answer that meet and miss the goal, at the end of a search
_FAR = 2.0**20  # largest factor between the first value and the answer
_STEP = 1.1  # factor of an input, for elasticities
_MEMORIES = 10.0  # length of a run over the queue's memory
_USED = 0.05  # utilisation of a core or link below which it cannot matter much
_SPLIT = 0.004  # part of a link's bandwidth: precision of the best split
_MOST_CORES, _MOST_REPLICAS = 1 << 12, 1 << 14


@dataclass(frozen=True)
class Solution:
    """The answer of `solve`: the value of one input with which a service meets a goal.

    varied: the input that was varied. value: its value, in requests/s, bytes, bits/s, cores or replicas; for "split"
    the bits/s up. goal: the limited latency, such as "p99". most: the largest seconds that meet the goal. figure: the
    seconds that this latency has with the value. run: the simulation with the value. load: the rate of requests over
    the largest rate that the service can serve. heaviest: the largest load that a trial may have. at_limit: whether a
    higher rate might also meet the goal, which only longer simulations could show. trials: number of simulations.
    elasticities: for each input, by how many percent `figure` changes for 1 % more of the input. next_token: bytes of a
    store that has room for one more token; 0 without tokens. cost: by the hosts' prices.

    >>> phase = capacity.chain(("compute", capacity.Compute("server", 0.2)))
    >>> service = capacity.Service("one server", {"server": capacity.Host()}, request=phase)
    >>> found = capacity.solve(service, None, p99=2.0, vary="rate", runs=10, requests=1000)
    >>> found.figure <= 2.0, found.load < 1
    (True, True)
    """

    varied: str
    value: float
    goal: str
    most: float
    figure: float
    run: Result
    load: float
    heaviest: float
    at_limit: bool
    trials: int
    elasticities: Mapping[str, float]
    next_token: int
    cost: HostCost


class Trial(NamedTuple):
    """One trial of a search: a service, its simulation, and the latency that the goal limits.

    figure: this latency in seconds, such as the p99; inf without a simulation. run: the simulation; None for a load
    above the heaviest that is simulated.
    """

    figure: float
    service: Service
    run: Result | None = None


@dataclass
class _Search:
    """A search for the value of an input, such as the rate, that meets a goal; it runs and counts the trials.

    All trials use the same random numbers. goal: the limited latency, "mean", "p50", "p95" or "p99". most: the largest
    seconds that meet it. options: further arguments of `engines.run`. told: called before each simulation.
    """

    service: Service
    arrivals: Arrivals
    goal: str
    most: float
    options: dict[str, Any]
    told: Callable[[], object]
    trials: int = 0

    @property
    def heaviest(self) -> float:
        return heaviest(self.options["requests"])

    def load(self, service: Service, arrivals: Arrivals) -> float:
        return load_of(service, arrivals, self.options["engine"])

    def try_out(self, service: Service, arrivals: Arrivals, replicas: int = 1) -> Trial:
        if self.load(service, arrivals) / replicas > self.heaviest:
            return Trial(math.inf, service)
        self.trials += 1
        self.told()
        run = engines.run(service, None, arrivals, replicas=replicas, **self.options)
        return Trial(figure(run, self.goal), service, run)

    def meets(self, trial: Trial) -> bool:
        return trial.figure <= self.most


def figure(run: Result, goal: str) -> float:
    """Return the latency of a simulation that a goal limits, in seconds: its mean, or one of its quantiles.

    goal: "mean", "p50", "p95" or "p99". The result is inf if more requests arrive than can be served.
    """
    q = GOALS[goal]
    if run.overloaded:
        return math.inf
    return (run.means["latency"] if q is None else run.quantile(q)).value


def load_of(service: Service, arrivals: Arrivals, engine: str | None = None) -> float:
    """Compute the load: the rate at which requests reach the service, over the largest rate that the service can serve.

    It is 0 for arrivals of `Users`, who ask more slowly when answers are late. engine: if it is "recurrence", the
    limits of cores and links are ignored, because that engine computes as if no phases shared them.
    """
    if isinstance(arrivals, Users):
        return 0.0
    size = math.ceil(arrivals.mean_images / service.images)
    bounds = limits(dataclasses.replace(service, each=service.each / size))
    return arrivals.per_second() * size / binding(bounds, service, shared=engine != RECURRENCE).rate


def heaviest(requests: int) -> float:
    """Return the largest load at which a simulated run of `requests` requests is long enough to reach a steady state.

    A load is the rate of requests over the largest rate that a service can serve. A queue at this load depends on about
    the last 1 / (1 - load)^2 requests.
    """
    return max(0.0, 1 - math.sqrt(_MEMORIES / requests))


def solve(
    service: Service,
    at: Hosts | None,
    *,
    vary: str,
    p99: float | None = None,
    p95: float | None = None,
    p50: float | None = None,
    mean: float | None = None,
    arrivals: Arrivals | None = None,
    seed: int = 0,
    requests: int = REQUESTS,
    runs: int = RUNS,
    engine: str | None = None,
    told: Callable[[], object] = lambda: None,
) -> Solution:
    """Find the largest rate, or the least store, bandwidth, cores or replicas, with which a service meets a goal.

    at: machines and link to use in place of the service's own, or None. vary: the input to vary, "rate", "store",
    "bandwidth", "cores" or "replicas"; or "split" for the best division of a link's bandwidth into up and down.
    p99, p95, p50, mean: the goal, exactly one of them: the largest latency in seconds at this quantile, or on average.
    arrivals: required unless `vary` is "rate", which ignores their own rate. requests, runs: of each simulation; a load
    needs 10 / (1 - load)^2 requests to show its steady state. engine: "recurrence", "events" or None, as for `run`.
    told: called before each simulation. Returns a `Solution`.
    Raises ConfigError for a goal below an idle service's latency, and for a goal that no value meets.

    >>> phase = capacity.chain(("compute", capacity.Compute("server", 0.2)))
    >>> service = capacity.Service("one server", {"server": capacity.Host()}, request=phase)
    >>> found = capacity.solve(service, None, p99=2.0, vary="rate", runs=10, requests=1000)
    >>> 3 < found.value < 5  # requests per second; 5 is the limit
    True
    """
    given = {"p99": p99, "p95": p95, "p50": p50, "mean": mean}
    goals = {name: value for name, value in given.items() if value is not None}
    if len(goals) != 1:
        raise ConfigError(f"{len(goals)} goals", where="goal", hint=f"one of {', '.join(GOALS)}, in seconds: p99=2.0")
    if vary not in VARIED:
        raise ConfigError(f"vary={vary!r}", where="vary", hint=f"one of {', '.join(VARIED)}")
    ((goal, most),) = goals.items()
    check_number(most, goal, 0, "seconds", above=True)
    there = service if at is None else service.at(at)
    if arrivals is None and vary != "rate":
        raise ConfigError(f"varying {vary} needs arrivals", where="arrivals", hint="capacity.poisson(rate)")
    asked = arrivals if arrivals is not None else poisson(1.0)
    options: dict[str, Any] = {"seed": seed, "requests": requests, "runs": runs, "engine": engine}
    check_count(requests, "requests", 1, "requests")
    check_count(runs, "runs", 1, "runs")
    search = _Search(there, asked, goal, most, options, told)
    run, value = _SOLVERS[vary](search)
    changes = _elasticities(search, run)
    load = search.load(run.service, run.arrivals) / run.system.replicas
    size = max(run.service.token_bytes.values(), default=0)
    return Solution(
        varied=vary,
        value=value,
        goal=goal,
        most=most,
        figure=figure(run, goal),
        run=run,
        heaviest=search.heaviest,
        load=load,
        at_limit=vary == "rate" and load > search.heaviest / _CLOSE,
        trials=search.trials,
        elasticities=changes,
        next_token=(run.service.most_tokens + 1) * size,
        cost=cost_of(run),
    )


def idle(service: Service, goal: str) -> float:
    """Compute the latency in seconds of a service that has no other requests: its mean, or one of its quantiles.

    goal: "mean", "p50", "p95" or "p99". The time to make tokens is included only if they are made on demand.
    """
    phase, away = service.request, service.transit_seconds()
    seconds = [away + service.seconds(phase, factor) for factor in phase.factors or (1.0,)]
    if service.refill is not None and not service.most_tokens:
        refill = -(-service.request_tokens // service.refill_tokens) * service.seconds(service.refill)
        seconds = [each + refill for each in seconds]
    q = GOALS[goal]
    return float(np.mean(seconds) if q is None else np.quantile(seconds, q))


def _check_idle(search: _Search, service: Service, instead: str) -> None:
    """Raise ConfigError if `service` misses the search's goal even while it is idle.

    instead: other ways to meet the goal, for the error's hint.
    """
    least = idle(service, search.goal)
    if search.most < least:
        what = f"a {search.goal} of {search.most:g} s, below the {least:.4g} s that an idle service takes"
        raise ConfigError(what, where="goal", hint=f"a goal above that{instead}")


Solved = tuple[Result, float]


def _rate(search: _Search) -> Solved:
    gaps = search.arrivals
    if not isinstance(gaps, Gaps):
        hint = "capacity.poisson(rate), or another burstiness; `plan solve`: none of --hourly, --trace and --users"
        raise ConfigError("these arrivals have no rate to vary", where="arrivals", hint=hint)
    _check_idle(search, search.service, ", a faster link or more cores")
    first = search.heaviest / search.load(search.service, dataclasses.replace(gaps, rate=1.0))
    if not first:
        hint = "simulate 1,000 requests in a run, or more"
        what = f"runs of {search.options['requests']} requests, too short to show the steady state of any load"
        raise ConfigError(what, where="requests", hint=hint)
    return _bisect(
        search,
        lambda rate: search.try_out(search.service, dataclasses.replace(gaps, rate=rate)),
        first * (1 - 1e-9),
        up=False,
    )


def _bandwidth(search: _Search) -> Solved:
    service = search.service
    _check_idle(search, service.at(Hosts(bandwidth=1e18)), ", a shorter round trip or more cores")
    rates = [rate for host in service.hosts.values() for rate in (host.up, host.down) if rate < math.inf]
    if not rates:
        raise ConfigError("no link with a limit", where="vary", hint="vary something else than the bandwidth")
    return _bisect(
        search, lambda rate: search.try_out(service.at(Hosts(bandwidth=rate)), search.arrivals), min(rates), up=True
    )


def _bisect(search: _Search, at: Callable[[float], Trial], first: float, *, up: bool) -> Solved:
    """Find the value of the varied input that just meets the goal, by bisection; return its simulation and the value.

    at: simulates the service with a value of the input. first: the value tried first. up: whether larger values make
    the latency smaller. Raises ConfigError if no value meets the goal.
    """
    towards = 2.0 if up else 0.5  # the direction that helps
    good, bad, trial = first, math.nan, at(first)
    if search.meets(trial) and up:
        while search.meets(other := at(good / towards)) and good > first / _FAR:
            good, trial = good / towards, other
        bad = good / towards
    while not search.meets(trial):
        bad, good = good, good * towards
        if not first / _FAR < good < first * _FAR:
            raise _never(search, trial)
        trial = at(good)
    while max(good, bad) / min(good, bad) > _CLOSE:  # false for NaN, if the first value is the answer
        middle = math.sqrt(good * bad)
        other = at(middle)
        if search.meets(other):
            good, trial = middle, other
        else:
            bad = middle
    return _run_of(trial), good


def _run_of(trial: Trial) -> Result:
    assert trial.run is not None  # it met the goal
    return trial.run


def _never(search: _Search, trial: Trial) -> ConfigError:
    """Return the ConfigError for a goal that no value of the varied input meets.

    trial: the trial with the value that comes nearest to the goal.
    """
    what = f"{search.goal}={search.most:g} s is not met by any value"
    if trial.run and trial.figure < math.inf:
        reached = f"the best has {trial.figure:.4g} s"
    else:
        least = limits(trial.service)[0]
        reached = f"the best serves {shown_rate(least.rate)}, set by {least.cause}, and more comes or is near"
    return ConfigError(what, where="goal", hint=f"{reached}: vary something else, or ask for less")


def _store(search: _Search) -> Solved:
    service = search.service
    if not service.token_bytes:
        raise ConfigError("a service without tokens", where="vary", hint="vary something else than the store")
    size = max(service.token_bytes.values())
    first = max(service.refill_tokens, service.request_tokens * service.batch)

    def with_tokens(tokens: int) -> Service:
        return service.at(Hosts(store=tokens * size))

    _check_idle(search, with_tokens(first), ", a faster link or more cores")
    most = first + 4 * search.options["requests"] * service.request_tokens  # more tokens than a run can take
    run, tokens = _least(search, lambda n: search.try_out(with_tokens(n), search.arrivals), first, most)
    return run, tokens * size


def _cores(search: _Search) -> Solved:
    service = search.service
    _check_idle(search, service.at(Hosts(cores=_MOST_CORES)), " or a faster link")
    return _least(search, lambda n: search.try_out(service.at(Hosts(cores=n)), search.arrivals), 1, _MOST_CORES)


def _replicas(search: _Search) -> Solved:
    service, gaps = search.service, search.arrivals
    _check_idle(search, service, ", a faster link or more cores")
    if not isinstance(gaps, Gaps):
        hint = "capacity.poisson(rate); `plan solve`: --rate"
        raise ConfigError("replicas for arrivals without a rate", where="arrivals", hint=hint)
    apart = engines.shared(service, system_of(service)) and search.options["engine"] != RECURRENCE

    def at(count: int) -> Trial:
        if apart:  # the event engine simulates one replica, with its part of the requests
            return search.try_out(service, dataclasses.replace(gaps, rate=gaps.rate / count))
        return search.try_out(service, gaps, count)

    return _least(search, at, 1, _MOST_REPLICAS)


def _least(search: _Search, at: Callable[[int], Trial], first: int, most: int) -> Solved:
    """Find the least integer from `first` to `most` that meets the goal; return its simulation and the integer.

    at: simulates the service with the varied input, such as its cores, at an integer. Raises ConfigError if no integer
    meets the goal.
    """
    low, high, trial = first - 1, first, at(first)
    while not search.meets(trial):
        if high >= most:
            raise _never(search, trial)
        low, high = high, min(2 * high, most)
        trial = at(high)
    while high - low > 1:
        middle = (low + high) // 2
        other = at(middle)
        if search.meets(other):
            high, trial = middle, other
        else:
            low = middle
    return _run_of(trial), float(high)


def _split(search: _Search) -> Solved:
    """Find the division of a link's bandwidth into up and down with the least latency; return the simulation and the
    bits/s up.

    A golden-section search finds it, because the latency has one minimum: the time on the link is U/u + D/d if U bits
    go up at rate u, and D bits down at rate d. Raises ConfigError if this latency does not meet the goal.
    """
    service = search.service
    limited = [host for host in service.hosts.values() if host.up < math.inf and host.down < math.inf]
    if not limited:
        raise ConfigError("no host whose link has limits", where="vary", hint="give --up and --down")
    total = limited[0].up + limited[0].down
    _check_idle(search, service.at(Hosts(up=total, down=total)), ", a faster link or more cores")

    def at(part: float) -> tuple[float, Trial]:
        there = service.at(Hosts(up=part * total, down=(1 - part) * total))
        trial = search.try_out(there, search.arrivals)
        return (trial.figure if trial.run else 1e18 * search.load(there, search.arrivals)), trial

    golden = (math.sqrt(5) - 1) / 2
    low, high = 0.005, 0.995
    inner, outer = high - golden * (high - low), low + golden * (high - low)
    first, second = at(inner), at(outer)
    while high - low > _SPLIT:
        if first[0] <= second[0]:
            high, outer, second = outer, inner, first
            inner = high - golden * (high - low)
            first = at(inner)
        else:
            low, inner, first = inner, outer, second
            outer = low + golden * (high - low)
            second = at(outer)
    part, (_, best) = (inner, first) if first[0] <= second[0] else (outer, second)
    if not search.meets(best):
        raise _never(search, best)
    return _run_of(best), part * total


_SOLVERS: dict[str, Callable[[_Search], Solved]] = {
    "rate": _rate,
    "store": _store,
    "bandwidth": _bandwidth,
    "split": _split,
    "cores": _cores,
    "replicas": _replicas,
}


def _elasticities(search: _Search, run: Result) -> dict[str, float]:
    """Compute for each input, by its name, how strongly the latency that the goal limits depends on this input.

    The elasticity is (change of the latency in percent) / (change of the input in percent). It comes from a trial with
    10 % more of the input; a trial of the rate has less, because a higher rate may be above the limit. The elasticity
    is NaN if the trial has no finite latency. Only inputs that the run uses are in the result.
    """
    service, base, arrivals, replicas = run.service, figure(run, search.goal), run.arrivals, run.system.replicas

    def change(other: Service, process: Arrivals = arrivals) -> float:
        value = search.try_out(other, process, replicas).figure
        return math.log(value / base) / math.log(_STEP) if 0 < value < math.inf and base else math.nan

    found = {}
    if isinstance(arrivals, Gaps):  # a lower rate, since a higher one may be above the limit
        found["rate"] = -change(service, dataclasses.replace(arrivals, rate=arrivals.rate / _STEP))
    for name, used in sorted(run.utilisation.items(), key=lambda item: -item[1]):
        role, _, kind = name.rpartition(" ")
        if used < _USED or role not in service.hosts:  # "slots" names no host
            continue
        if kind == "cores":
            found[f"{role}'s speed"] = change(_faster(service, role))
        else:
            found[f"{role}'s {kind}"] = change(_wider(service, role, kind))
    if service.transit_seconds() >= _USED * base:
        for role in service.clients:
            links = [kind for kind in ("up", "down") if getattr(service.hosts[role], kind) < math.inf]
            found |= {f"{role}'s {kind}": change(_wider(service, role, kind)) for kind in links}
    if service.rtt:
        found["round trip"] = change(dataclasses.replace(service, rtt=service.rtt * _STEP))
    return found


def _wider(service: Service, role: str, kind: str) -> Service:
    """Return the service with `_STEP` (1.1) times the bandwidth in one direction of one host's link.

    role: the host's. kind: the direction, "up" or "down".
    """
    host = service.hosts[role]
    more = dataclasses.replace(host, **{kind: _STEP * getattr(host, kind)})
    return dataclasses.replace(service, hosts={**service.hosts, role: more})


def _faster(service: Service, role: str) -> Service:
    """Return the service with faster cores at one host: they compute `_STEP` (1.1) times as fast. role: the host's."""
    changed = {}
    for name, phase in service.phases().items():
        steps = []
        for step in phase.steps:
            work = step.work
            if isinstance(work, Compute) and work.host == role:
                work = dataclasses.replace(work, core_seconds=work.core_seconds / _STEP)
            steps.append(dataclasses.replace(step, work=work))
        changed[name] = dataclasses.replace(phase, steps=tuple(steps))
    faster = dataclasses.replace(service, **changed)  # type: ignore[arg-type]
    alone = service.seconds(service.request.computing)
    share = service.seconds(faster.request.computing) / alone if alone else 1.0
    return dataclasses.replace(faster, each=share * service.each)
