"""A private-inference service as data: hosts, the steps of a refill and of a request, and the tokens between them.

A refill makes tokens (correlated randomness, garbled circuits) and a request uses some. A phase is a directed acyclic
graph of steps, each core-seconds on a host, bytes on the link from one host to another, or rounds of half a round trip
each. A store holds K = floor(store / bytes of a token), the least over the hosts. Units: seconds, bytes, bits/s.

Source: K. Garimella et al., "Characterizing and Optimizing End-to-End Systems for Private Inference", ASPLOS 2023.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hummingbird import records
from hummingbird.errors import ConfigError
from hummingbird.records import field

# Max-min fair shares of cores and links, as processors and TCP flows of equal round-trip times have them -------------
#
# Progressive filling (D. Bertsekas and R. Gallager, "Data Networks", 1992, section 6.5.2): the rates of all flows rise
# together; a flow stops at its own cap, or when one of its resources is used up. No flow can then have a higher rate
# unless a flow of at most that rate gets less.

Resource = tuple[str, str]  # "cores", "up" or "down", and the host's role


class Flow(NamedTuple):
    """The cores or links that one step uses while it runs: it uses all of them at one rate.

    resources: each as "cores", "up" or "down", and the host's role. cap: the largest rate, in cores or bits per second.
    """

    resources: tuple[Resource, ...]
    cap: float


def shares(flows: Sequence[Flow], capacity: Mapping[Resource, float]) -> list[float]:
    """Compute the rates of all flows while they share cores and links, by max-min fairness.

    So no flow could have a higher rate without taking from a flow whose rate is not higher than its own. capacity: of
    each resource, in cores or bits per second. Returns a rate for each flow; inf if nothing limits it.
    """
    rates = [0.0] * len(flows)
    left = dict(capacity)
    rising = set(range(len(flows)))
    while rising:
        users = Counter(resource for number in rising for resource in flows[number].resources)
        levels = {resource: left[resource] / count for resource, count in users.items()}
        bounds = {n: min([flows[n].cap, *(levels[resource] for resource in flows[n].resources)]) for n in rising}
        level = min(bounds.values())
        for number in [n for n, bound in bounds.items() if bound == level]:
            rates[number] = level
            rising.remove(number)
            for resource in flows[number].resources:
                left[resource] -= level if level < math.inf else 0.0
    return rates


# A service -----------------------------------------------------------------------------------------------------------


def check_number(value: object, where: str, least: float, unit: str, *, above: bool = False) -> None:
    """Raise ConfigError unless `value` is a finite number of at least `least` or, with `above`, larger than `least`.

    where: the name of the checked value, for the error. unit: its unit, for the error.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < least or (above and value == least):  # type: ignore[operator]
        hint = f"a number {'above' if above else 'from'} {least:g}, in {unit}"
        raise ConfigError(f"{value!r} is no number of {unit} that can be", where=where, hint=hint)


def check_count(value: object, where: str, least: int, unit: str) -> None:
    """Raise ConfigError unless `value` is an integer of at least `least`.

    where: the name of the checked value, for the error. unit: a word for what is counted, for the error.
    """
    if type(value) is not int or value < least:
        raise ConfigError(f"{value!r} {unit}", where=where, hint=f"a whole number from {least}")


def check_name(value: object, where: str) -> None:
    """Raise ConfigError unless `value` is a non-empty string of printable characters. where: its name, for errors."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ConfigError(f"{value!r} is no name", where=where, hint="one or more printable characters")


_NUMBER = records.anything("a number")  # the record's own __post_init__ checks it
_ROLE = records.text(1024)
_LINK = records.through(
    _NUMBER, lambda rate: math.inf if rate is None else rate, lambda rate: None if rate == math.inf else rate
)


@dataclass(frozen=True)
class Prices:
    """Prices of a host, in money: for an hour of a core, for 10^9 bytes sent, and for 10^9 bytes stored for a month.

    A month has 730 hours.

    >>> prices = capacity.Prices(core_hour=0.04, gb_sent=0.09, gb_month=0.08)
    """

    core_hour: float = field(_NUMBER, missing=True, default=0.0)
    gb_sent: float = field(_NUMBER, missing=True, default=0.0)
    gb_month: float = field(_NUMBER, missing=True, default=0.0)

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            check_number(value, f"prices.{name}", 0, "money")


@dataclass(frozen=True)
class Host:
    """A machine: its cores, its store of tokens, its link and its prices.

    cores: how many. store: size in bytes. up, down: bits per second of its link; inf: no limit.

    >>> party = capacity.Host(cores=16, store=64e9, up=352e6, down=352e6)
    """

    cores: int = field(_NUMBER, missing=True, default=1)
    store: float = field(_NUMBER, missing=True, default=0)
    up: float = field(_LINK, missing=True, default=math.inf)
    down: float = field(_LINK, missing=True, default=math.inf)
    prices: Prices = field(records.record(Prices), missing=True, default=Prices())

    def __post_init__(self) -> None:
        check_count(self.cores, "cores", 1, "cores")
        check_number(self.store, "store", 0, "bytes")
        for name in ("up", "down"):
            if getattr(self, name) != math.inf:
                check_number(getattr(self, name), name, 0, "bits per second", above=True)


@dataclass(frozen=True)
class Hosts:
    """Values that replace those of a service's hosts and link (`Service.at`); None leaves the service's own value.

    cores: of every host. store: bytes, of every host that keeps tokens. bandwidth: bits per second both up and down;
    up, down: bits per second in one direction; these three change only links that have a limit. rtt: round-trip time,
    in seconds. prices: of every host. Of the clients' hosts (`Service.clients`) only the link changes.

    >>> service = capacity.Service("idle", {"server": capacity.Host()}, request=capacity.chain())
    >>> service.at(capacity.Hosts(cores=4)).hosts["server"].cores
    4
    """

    cores: int | None = None
    store: float | None = None
    bandwidth: float | None = None
    rtt: float | None = None
    up: float | None = None
    down: float | None = None
    prices: Prices | None = None


@dataclass(frozen=True)
class Compute:
    """Work of a step: computing on a host.

    core_seconds: the seconds that one core would take. width: the most of the host's cores that it uses at a time.

    >>> work = capacity.Compute("party", core_seconds=0.4, width=2)  # 0.2 s on two cores
    """

    host: str = field(_ROLE)
    core_seconds: float = field(_NUMBER)
    width: int = field(_NUMBER, missing=True, default=1)

    def __post_init__(self) -> None:
        check_number(self.core_seconds, "core_seconds", 0, "seconds")
        check_count(self.width, "width", 1, "cores")


@dataclass(frozen=True)
class Send:
    """Work of a step: bytes over the link up of host `source` and the link down of host `target`.

    >>> work = capacity.Send("dealer", "party", 3e6)
    """

    source: str = field(_ROLE)
    target: str = field(_ROLE)
    bytes: float = field(_NUMBER)

    def __post_init__(self) -> None:
        check_number(self.bytes, "bytes", 0, "bytes")
        if self.source == self.target:
            hint = "bytes that stay on a host take no step"
            raise ConfigError(f"{self.source} sends to itself", where="target", hint=hint)


@dataclass(frozen=True)
class Rounds:
    """Work of a step: `rounds` messages, one after the other; each takes half a round-trip time.

    >>> work = capacity.Rounds(10)  # five round trips
    """

    rounds: float

    def __post_init__(self) -> None:
        check_number(self.rounds, "rounds", 0, "rounds")


Work = Compute | Send | Rounds


@dataclass(frozen=True)
class WorkStep:
    """One piece of work of a phase.

    after: names of the steps that must have ended before this one begins.

    >>> step = capacity.WorkStep("open", capacity.Rounds(2), after=("compute",))
    """

    name: str
    work: Work
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name, "step")

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the hosts that the step uses."""
        work = self.work
        if isinstance(work, Compute):
            return (work.host,)
        return (work.source, work.target) if isinstance(work, Send) else ()


@dataclass(frozen=True)
class Phase:
    """The steps of one kind of work: of a refill, a request, a session or a transit.

    steps: in any order; they are sorted so that a step comes after those that it waits for. factors: the measured
    core-seconds of several runs, each divided by the core-seconds of the steps; each simulated run of the phase draws
    one factor, and multiplies all its core-seconds by it. Without factors it is 1. Raises ConfigError for two steps of
    one name, a step that waits for an unknown one, and steps that wait for each other.

    >>> steps = (capacity.WorkStep(f"send to {host}", capacity.Send("dealer", host, 3e6)) for host in ("a", "b"))
    >>> phase = capacity.Phase(tuple(steps))  # at the same time: neither waits for the other
    """

    steps: tuple[WorkStep, ...]
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        names = [step.name for step in self.steps]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"two steps named {doubled[0]}", where="steps", hint="give each step a name of its own")
        for step in self.steps:
            if unknown := [name for name in step.after if name not in names]:
                hint = f"one of {', '.join(names)}"
                raise ConfigError(
                    f"waits for {unknown[0]}, which is no step here", where=f"step {step.name}", hint=hint
                )
        object.__setattr__(self, "steps", tuple(_ordered(self.steps)))
        for number, factor in enumerate(self.factors):
            check_number(factor, f"factors[{number}]", 0, "measured over mean", above=True)

    @property
    def computing(self) -> Phase:
        """The phase reduced to its `Compute` steps, in order: the work that each further request of a batch adds."""
        before: dict[str, set[str]] = {}
        found: list[WorkStep] = []
        for step in self.steps:
            before[step.name] = set(step.after).union(*(before[name] for name in step.after))
            if isinstance(step.work, Compute):
                after = tuple(one.name for one in found if one.name in before[step.name])
                found.append(WorkStep(step.name, step.work, after))
        return Phase(tuple(found))

    def times(self, count: int) -> Phase:
        """Return the phase for `count` requests that run at once.

        Each step has `count` times the core-seconds or bytes of one request; the number of rounds stays.
        """

        def more(work: Work) -> Work:
            if isinstance(work, Compute):
                return dataclasses.replace(work, core_seconds=count * work.core_seconds)
            return dataclasses.replace(work, bytes=count * work.bytes) if isinstance(work, Send) else work

        steps = tuple(dataclasses.replace(step, work=more(step.work)) for step in self.steps)
        return dataclasses.replace(self, steps=steps)


def _ordered(steps: Iterable[WorkStep]) -> list[WorkStep]:
    """Sort steps so that each comes after the steps that it waits for; otherwise their order stays.

    Raises ConfigError for a cycle of steps that wait for each other.
    """
    left, done, out = list(steps), set[str](), list[WorkStep]()
    while left:
        free = next((step for step in left if done.issuperset(step.after)), None)
        if free is None:
            names = ", ".join(step.name for step in left)
            hint = "remove one of their `after`"
            raise ConfigError("a cycle: these steps wait for one another", where=f"steps {names}", hint=hint)
        left.remove(free)
        done.add(free.name)
        out.append(free)
    return out


def chain(*steps: tuple[str, Work]) -> Phase:
    """Make a phase of steps that run one after another. steps: the name and the work of each.

    >>> phase = capacity.chain(("compute", capacity.Compute("party", 0.2)), ("open", capacity.Rounds(2)))
    >>> [step.after for step in phase.steps]
    [(), ('compute',)]
    """
    names = [name for name, _ in steps]
    return Phase(tuple(WorkStep(name, work, tuple(names[i - 1 : i])) for i, (name, work) in enumerate(steps)))


@dataclass(frozen=True)
class Service:
    """A service as data: its hosts, its phases, and its tokens. `service_json.to_text` writes it to a file.

    hosts: by role, such as "client". A token is one unit of the material that requests use up. request: the online
    phase of a request. refill: the phase that makes `refill_tokens` tokens; None: requests need no tokens. session: the
    phase that each client runs once, or None.
    transit: the phase of a request's way there and back, outside of its slot; None: it takes no time. A host that only
    the transit names is the client's: every client has one of its own, which bounds no rate and costs the service
    nothing.
    token_bytes: bytes of one token on each host that keeps it. request_tokens: tokens that a request takes. workers:
    how many refills run at a time. slots: how many requests are served at a time. batch: requests that are served as
    one; a batch begins when it is full or its first request has waited `hold` seconds, and takes `each` seconds more
    for every request but the first.
    images: of one request. rtt: round-trip time between any two hosts, seconds. notes: the origin of these figures.

    >>> work = capacity.Compute("server", core_seconds=0.2), capacity.Send("server", "client", bytes=1e6)
    >>> hosts = {"server": capacity.Host(up=100e6), "client": capacity.Host()}
    >>> service = capacity.Service("one", hosts, request=capacity.chain(("compute", work[0]), ("answer", work[1])))
    >>> round(service.seconds(service.request), 3)
    0.28
    """

    name: str
    hosts: Mapping[str, Host]
    request: Phase
    refill: Phase | None = None
    session: Phase | None = None
    transit: Phase | None = None
    token_bytes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    refill_tokens: int = 1
    request_tokens: int = 1
    workers: int = 1
    slots: int = 1
    batch: int = 1
    hold: float = 0.0
    each: float = 0.0
    images: int = 1
    rtt: float = 0.0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        for name in ("rtt", "hold", "each"):
            check_number(getattr(self, name), name, 0, "seconds")
        for name in ("refill_tokens", "request_tokens", "workers", "slots", "batch", "images"):
            check_count(getattr(self, name), name, 1, name.replace("_", " "))
        for role in self.hosts:
            check_name(role, "hosts")
        for title, phase in self.phases().items():
            for step in phase.steps:
                for role in step.roles:
                    self._check_role(role, f"{title}, step {step.name}")
        for role, size in self.token_bytes.items():
            self._check_role(role, "token_bytes")
            check_count(size, f"token_bytes of {role}", 1, "bytes of a token")
        if (self.refill is None) != (not self.token_bytes):
            hint = "give both a refill and the bytes of a token on each host that keeps it, or neither"
            raise ConfigError("tokens without a refill, or a refill without tokens", where="token_bytes", hint=hint)
        most = self.most_tokens
        for name in ("refill_tokens", "request_tokens"):
            if 0 < most < getattr(self, name):
                what = f"{name.partition('_')[0]} of {getattr(self, name)} tokens, but the stores hold {most}"
                raise ConfigError(f"a {what}: it would wait for ever", where=name, hint="a larger store")

    def _check_role(self, role: str, where: str) -> None:
        if role not in self.hosts:
            raise ConfigError(f"unknown host {role}", where=where, hint=f"one of {', '.join(self.hosts) or 'none'}")

    def phases(self) -> dict[str, Phase]:
        """Return the phases that the service has, by name: session, refill, transit, request."""
        found = {"session": self.session, "refill": self.refill, "transit": self.transit, "request": self.request}
        return {name: phase for name, phase in found.items() if phase is not None}

    @property
    def clients(self) -> frozenset[str]:
        """Names of the hosts that only the transit, a request's way there and back, uses: every client has its own."""
        named = {name: {role for step in phase.steps for role in step.roles} for name, phase in self.phases().items()}
        return frozenset(named.pop("transit", set()).difference(*named.values()))

    @property
    def most_tokens(self) -> int:
        """Number of tokens for which every host that keeps tokens has room; 0 if requests need no stored tokens."""
        if not self.token_bytes:
            return 0
        return min(int(self.hosts[role].store) // size for role, size in self.token_bytes.items())

    def at(self, hosts: Hosts) -> Service:
        """Return this service with the cores, stores, links and prices of `hosts` in place of its own.

        What is None in `hosts` stays as it is.
        """
        changed, clients = {}, self.clients
        for role, host in self.hosts.items():
            given = {
                "cores": hosts.cores if role not in clients else None,
                "store": hosts.store if role in self.token_bytes else None,
                "up": _first(hosts.up, hosts.bandwidth) if host.up != math.inf else None,
                "down": _first(hosts.down, hosts.bandwidth) if host.down != math.inf else None,
                "prices": hosts.prices if role not in clients else None,
            }
            new = {name: value for name, value in given.items() if value is not None}
            changed[role] = dataclasses.replace(host, **new)  # type: ignore[arg-type]
        rtt = self.rtt if hosts.rtt is None else hosts.rtt
        there = dataclasses.replace(self, hosts=changed, rtt=rtt)
        alone = self.seconds(self.request.computing)
        share = there.seconds(self.request.computing) / alone if alone else 1.0
        return dataclasses.replace(there, each=share * self.each)

    def step_seconds(self, step: WorkStep, factor: float = 1.0) -> float:
        """Compute the seconds of a step if no other step uses its hosts and links. factor: multiplies core-seconds."""
        work = step.work
        if isinstance(work, Compute):
            return factor * work.core_seconds / min(work.width, self.hosts[work.host].cores)
        if isinstance(work, Send):
            return 8 * work.bytes / min(self.hosts[work.source].up, self.hosts[work.target].down)
        return work.rounds * self.rtt / 2

    def transit_seconds(self, requests: int = 1) -> float:
        """Compute the seconds of the transit, the way there and back, of `requests` requests that are sent together.

        Nothing else uses their links meanwhile. The result is 0 if this service has no transit phase.
        """
        return self.seconds(self.transit.times(requests)) if self.transit is not None else 0.0

    def seconds(self, phase: Phase, factor: float = 1.0) -> float:
        """Compute the seconds that a phase takes if nothing but its own steps uses the hosts and links.

        Its own steps share cores and links as `shares` says. Where no two of them use one core or link at the same
        time, the result is the length of the longest path of steps. factor: multiplies core-seconds.
        """
        now, ends, waiting = 0.0, dict[str, float](), list(phase.steps)
        running: dict[str, tuple[WorkStep, float, float, float]] = {}  # seconds left at a time, if alone; at what speed
        while waiting or running:
            for step in [step for step in waiting if all(ends.get(name, math.inf) <= now for name in step.after)]:
                waiting.remove(step)
                running[step.name] = step, self.step_seconds(step, factor), now, 1.0
                ends[step.name] = now + running[step.name][1]
            for name, speed in self._speeds([step for step, *_ in running.values()]).items():
                step, left, since, before = running[name]
                if speed != before:
                    left = max(0.0, left - before * (now - since))
                    running[name], ends[name] = (step, left, now, speed), now + left / speed
            now = min(ends[name] for name in running)
            running = {name: state for name, state in running.items() if ends[name] > now}
        return now

    def _speeds(self, steps: Sequence[WorkStep]) -> dict[str, float]:
        """Compute the speed of each of these steps, by name, while all of them run; alone, a step has speed 1."""
        flows = {step.name: flow for step in steps if (flow := self.flow(step)) is not None}
        alone = {n: min(f.cap, *(self._capacity(resource) for resource in f.resources)) for n, f in flows.items()}
        used = Counter(resource for flow in flows.values() for resource in flow.resources)
        if not any(count > 1 for count in used.values()):
            return {step.name: 1.0 for step in steps}
        rates = shares(list(flows.values()), {resource: self._capacity(resource) for resource in used})
        speeds = {n: rate / alone[n] if alone[n] < math.inf else 1.0 for n, rate in zip(flows, rates, strict=True)}
        return {step.name: speeds.get(step.name, 1.0) for step in steps}

    def flow(self, step: WorkStep) -> Flow | None:
        """Return the cores or links that a step uses, as a `Flow`; None for `Rounds`, which only wait."""
        work = step.work
        if isinstance(work, Compute):
            return Flow((("cores", work.host),), min(work.width, self.hosts[work.host].cores))
        return Flow((("up", work.source), ("down", work.target)), math.inf) if isinstance(work, Send) else None

    def _capacity(self, resource: tuple[str, str]) -> float:
        kind, role = resource
        return float(getattr(self.hosts[role], kind))


def _first(*values: float | None) -> float | None:
    """Return the first value that is not None; None if there is none."""
    return next((value for value in values if value is not None), None)
