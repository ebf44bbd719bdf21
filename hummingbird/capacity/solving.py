"""The least, or the most, of one input with which a service meets a goal: bisection under common random numbers.

Latency is monotone, run by run, in the rate, in seconds, in tokens, slots, workers and replicas (F. Baccelli et al.,
1992); with the same draws at every trial so are its quantiles. Elasticities say what would help at the answer:
(change of the goal's figure in percent) / (change of an input in percent).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hummingbird.capacity import running
from hummingbird.capacity.arrivals import Arrivals, Gaps, poisson
from hummingbird.capacity.limit import limits
from hummingbird.capacity.pricing import Cost, cost_of
from hummingbird.capacity.running import Run
from hummingbird.capacity.service import Compute, Hosts, Service, check_number
from hummingbird.errors import ConfigError

GOALS = {"mean": None, "p50": 0.5, "p95": 0.95, "p99": 0.99}
VARIED = ("rate", "store", "bandwidth", "split", "cores", "replicas")
REQUESTS, RUNS = 500, 6  # of each trial
_CLOSE = 1.005  # of the answer: the ratio of what meets the goal and what does not
_FAR = 2.0**20  # of a search for something large enough
_STEP = 1.1  # of an input, for elasticities


@dataclass(frozen=True)
class Solution:
    """The answer: `value` of the input `varied` (requests/s, bytes, bits/s, cores, replicas; of a split: bits/s up).

    run: at the answer. trials: simulations. elasticities: of the goal's figure, by input. next_token: bytes of store
    with which one more token fits, 0 where none is stored. cost: by the hosts' prices.
    """

    varied: str
    value: float
    goal: str
    most: float
    figure: float
    run: Run
    trials: int
    elasticities: Mapping[str, float]
    next_token: int
    cost: Cost


def figure(run: Run, goal: str) -> float:
    """The goal's figure of a run, seconds; inf above the limit."""
    q = GOALS[goal]
    if not run.stable:
        return math.inf
    return (run.mean() if q is None else run.quantile(q)).value


@dataclass
class _Search:
    """Trials of one search, which keep the draws."""

    service: Service
    arrivals: Arrivals
    goal: str
    most: float
    options: dict[str, Any]
    told: Callable[[], object]
    trials: int = 0

    def run(self, service: Service, arrivals: Arrivals, replicas: int = 1) -> Run:
        self.trials += 1
        self.told()
        return running.run(service, None, arrivals, replicas=replicas, **self.options)

    def meets(self, run: Run) -> bool:
        return figure(run, self.goal) <= self.most


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
    engine: str = "auto",
    told: Callable[[], object] = lambda: None,
) -> Solution:
    """The largest rate, or the least store, bandwidth, cores or replicas, with which one goal in seconds is met.

    vary "split": the best part of the links' sum, up and down, of the hosts that have limits. arrivals: for all but the
    rate, whose arrivals may be given for their burstiness. told: called at each trial. Raises ConfigError for a goal
    below what an idle service takes, and for one that nothing meets.

        capacity.solve(net, capacity.Hosts(bandwidth=352e6), p99=2.0, vary="rate").value
    """
    goals = {
        name: value for name, value in (("p99", p99), ("p95", p95), ("p50", p50), ("mean", mean)) if value is not None
    }
    if len(goals) != 1:
        raise ConfigError(f"{len(goals)} goals", where="goal", hint=f"one of {', '.join(GOALS)}, in seconds: p99=2.0")
    if vary not in VARIED:
        raise ConfigError(f"vary={vary!r}", where="vary", hint=f"one of {', '.join(VARIED)}")
    ((goal, most),) = goals.items()
    check_number(most, goal, 0, "seconds", above=True)
    there = service if at is None else service.at(at)
    if arrivals is None and vary != "rate":
        raise ConfigError(f"{vary} for no rate", where="arrivals", hint="capacity.poisson(rate)")
    asked = arrivals if arrivals is not None else poisson(1.0)
    options = {"seed": seed, "requests": requests, "runs": runs, "engine": engine}
    search = _Search(there, asked, goal, most, options, told)
    solved, run, value = _SOLVERS[vary](search)
    changes = _elasticities(search, solved, run)
    size = max((bytes_ for bytes_ in solved.token_bytes.values()), default=0)
    return Solution(
        vary,
        value,
        goal,
        most,
        figure(run, goal),
        run,
        search.trials,
        changes,
        (solved.most_tokens + 1) * size,
        cost_of(run),
    )


def idle(service: Service, goal: str) -> float:
    """The goal's figure of a service that nobody else asks, with its tokens made, or made on demand."""
    phase = service.request
    seconds = [service.seconds(phase, factor) for factor in phase.factors or (1.0,)]
    if service.refill is not None and not service.most_tokens:
        refill = -(-service.request_tokens // service.refill_tokens) * service.seconds(service.refill)
        seconds = [each + refill for each in seconds]
    q = GOALS[goal]
    return float(np.mean(seconds) if q is None else np.quantile(seconds, q))


def _check_idle(search: _Search, service: Service, where: str) -> None:
    least = idle(service, search.goal)
    if search.most < least:
        what = f"a {search.goal} of {search.most:g} s, below the {least:.4g} s that an idle service takes"
        hint = f"a goal above that{where}"
        raise ConfigError(what, where="goal", hint=hint)


Solved = tuple[Service, Run, float]


def _rate(search: _Search) -> Solved:
    if not isinstance(search.arrivals, Gaps):
        hint = "capacity.poisson(rate), or another burstiness"
        raise ConfigError("the rate of arrivals that have none", where="arrivals", hint=hint)
    _check_idle(search, search.service, ", a faster link or more cores")
    gaps = search.arrivals

    def at(rate: float) -> Run:
        return search.run(search.service, dataclasses.replace(gaps, rate=rate))

    high = limits(search.service)[0].rate / gaps.mean_images * search.service.images
    low, found = high, None
    while found is None or not search.meets(found):  # at a rate low enough it is idle
        low /= 2
        if low < high / _FAR:
            raise ConfigError(f"no rate meets {search.goal}={search.most:g} s", where="goal", hint="a later goal")
        found = at(low)
        high = high if search.meets(found) else low
    while high / low > _CLOSE:
        middle = math.sqrt(low * high)
        run = at(middle)
        low, high, found = (middle, high, run) if search.meets(run) else (low, middle, found)
    return search.service, found, low


def _least(
    search: _Search, first: float, set_to: Callable[[float], Service], whole: bool, most: float = _FAR
) -> Solved:
    """The least value from `first` on, at most `most` times that, of an input of the service."""

    def at(value: float) -> Run:
        return search.run(set_to(value), search.arrivals)

    high = first
    found = at(high)
    while not search.meets(found):
        if high >= most * first:
            what = f"{search.goal}={search.most:g} s is not met, however much there is"
            cause = limits(set_to(high))[0]
            hint = f"the largest rate is {cause.rate:.4g} requests/s, set by {cause.cause}"
            raise ConfigError(what, where="goal", hint=hint)
        high = min(high * 2, most * first)
        found = at(high)
    low = high / 2 if high > first else first / _FAR if not whole else first - 1
    low = low if not whole else math.floor(low)
    while (high - low > 1) if whole else (high / low > _CLOSE):
        middle = (low + high) // 2 if whole else math.sqrt(low * high)
        run = at(middle)
        low, high, found = (low, middle, run) if search.meets(run) else (middle, high, found)
    return set_to(high), found, high


def _store(search: _Search) -> Solved:
    service = search.service
    if not service.token_bytes:
        raise ConfigError("a service without tokens", where="vary", hint="vary something else than the store")
    size = max(service.token_bytes.values())
    first = max(service.refill_tokens, service.request_tokens)

    def with_tokens(tokens: float) -> Service:
        return service.at(Hosts(store=int(tokens) * size))

    _check_idle(search, with_tokens(first), ", a faster link or more cores")
    solved, run, tokens = _least(search, first, with_tokens, whole=True)
    return solved, run, tokens * size


def _bandwidth(search: _Search) -> Solved:
    service = search.service
    _check_idle(search, service.at(Hosts(bandwidth=1e18)), ", a shorter round trip or more cores")
    rates = [rate for host in service.hosts.values() for rate in (host.up, host.down) if rate < math.inf]
    if not rates:
        raise ConfigError("no link with a limit", where="vary", hint="vary something else than the bandwidth")
    return _least(search, min(rates), lambda rate: service.at(Hosts(bandwidth=rate)), whole=False)


def _cores(search: _Search) -> Solved:
    service = search.service
    _check_idle(search, service.at(Hosts(cores=1 << 20)), " or a faster link")
    return _least(search, 1, lambda cores: service.at(Hosts(cores=int(cores))), whole=True)


def _replicas(search: _Search) -> Solved:
    service = search.service
    _check_idle(search, service, ", a faster link or more cores")
    if not isinstance(search.arrivals, Gaps):
        raise ConfigError("replicas for arrivals without a rate", where="arrivals", hint="capacity.poisson(rate)")
    shares_something = bool(running.shared(service)) and search.options["engine"] != running.RECURRENCE
    gaps = search.arrivals

    def at(count: int) -> Run:
        if shares_something:  # the event engine follows one, at its part of independent clients
            return search.run(service, dataclasses.replace(gaps, rate=gaps.rate / count))
        return search.run(service, gaps, replicas=count)

    low, high = 0, 1
    found = at(high)
    while not search.meets(found):
        if high >= 1 << 14:
            hint = "a later goal, or another service"
            raise ConfigError(f"{high} replicas do not meet {search.goal}={search.most:g} s", where="goal", hint=hint)
        low, high = high, high * 2
        found = at(high)
    while high - low > 1:
        middle = (low + high) // 2
        run = at(middle)
        low, high, found = (low, middle, run) if search.meets(run) else (middle, high, found)
    return service, found, high


def _split(search: _Search) -> Solved:
    """Golden section over the part that goes up: latency has one valley there, as U/u + D/d has."""
    service = search.service
    limited = [host for host in service.hosts.values() if host.up < math.inf and host.down < math.inf]
    if not limited:
        raise ConfigError("no host whose link has limits", where="vary", hint="give --up and --down")
    total = limited[0].up + limited[0].down

    def at(part: float) -> tuple[float, Run]:
        run = search.run(service.at(Hosts(up=part * total, down=(1 - part) * total)), search.arrivals)
        value = figure(run, search.goal)
        return (value if value < math.inf else 1e18 * run.load), run

    golden = (math.sqrt(5) - 1) / 2
    low, high = 0.005, 0.995
    inner, outer = high - golden * (high - low), low + golden * (high - low)
    first, second = at(inner), at(outer)
    while high - low > 0.004:
        if first[0] <= second[0]:
            high, outer, second = outer, inner, first
            inner = high - golden * (high - low)
            first = at(inner)
        else:
            low, inner, first = inner, outer, second
            outer = low + golden * (high - low)
            second = at(outer)
    part, (value, run) = (inner, first) if first[0] <= second[0] else (outer, second)
    if not value <= search.most:
        reached = f"{value:.4g} s" if value < 1e17 else "no lasting latency"
        what = f"{search.goal}={search.most:g} s is met by no split: the best, {part * total / 1e6:.4g} Mb/s up, has {reached}"
        raise ConfigError(what, where="goal", hint="a later goal, a lower rate or more bandwidth")
    return run.service, run, part * total


_SOLVERS: dict[str, Callable[[_Search], Solved]] = {
    "rate": _rate,
    "store": _store,
    "bandwidth": _bandwidth,
    "split": _split,
    "cores": _cores,
    "replicas": _replicas,
}


def _elasticities(search: _Search, service: Service, run: Run) -> dict[str, float]:
    """Of the goal's figure at the answer, for 10 % more of each input; nan where the limit is passed."""
    base, arrivals, replicas = figure(run, search.goal), run.arrivals, run.system.replicas

    def change(other: Service, process: Arrivals = arrivals) -> float:
        value = figure(search.run(other, process, replicas), search.goal)
        return math.log(value / base) / math.log(_STEP) if 0 < value < math.inf and base else math.nan

    found = {}
    if isinstance(arrivals, Gaps):  # 10 % less, since 10 % more may be above the limit
        fewer = dataclasses.replace(arrivals, rate=arrivals.rate / _STEP)
        found["rate"] = -change(service, fewer)
    for role, host in service.hosts.items():
        for kind in ("up", "down"):
            if (rate := getattr(host, kind)) < math.inf:
                faster = dataclasses.replace(host, **{kind: _STEP * rate})
                more = dataclasses.replace(service, hosts={**service.hosts, role: faster})
                if any(role in step.roles for phase in service.phases().values() for step in phase.steps):
                    found[f"{role}'s {kind}"] = change(more)
        if _computes(service, role):
            found[f"{role}'s speed"] = change(_faster(service, role))
    if service.rtt:
        found["round trip"] = change(dataclasses.replace(service, rtt=service.rtt * _STEP))
    return found


def _computes(service: Service, role: str) -> bool:
    steps = [step for phase in (service.refill, service.request) if phase for step in phase.steps]
    return any(isinstance(step.work, Compute) and step.work.host == role for step in steps)


def _faster(service: Service, role: str) -> Service:
    """The same service with cores of a host that need less time for everything."""
    changed = {}
    for name, phase in service.phases().items():
        steps = []
        for step in phase.steps:
            work = step.work
            if isinstance(work, Compute) and work.host == role:
                work = dataclasses.replace(work, core_seconds=work.core_seconds / _STEP)
            steps.append(dataclasses.replace(step, work=work))
        changed[name] = dataclasses.replace(phase, steps=tuple(steps))
    return dataclasses.replace(service, **changed)
