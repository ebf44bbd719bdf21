"""The engine for phases that share cores and links: a discrete-event simulation, one run after the other.

It follows the rules of `system` with queues of requests. The duration of a phase depends on the steps that run at the
same time (`Machine`); where every phase has its hosts and links to itself, the result equals that of recurrence.py.
Every replica has hosts, slots and a store of its own. A group of requests, a batch or a single request, is served as
one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from hummingbird.capacity.limit import capacity_of
from hummingbird.capacity.service import Compute, Flow, Phase, Rounds, Service, WorkStep, shares
from hummingbird.capacity.system import GAVE_UP, REJECTED, SERVED, Draws, Floats, Load, LoadOutcome, System
from hummingbird.errors import HummingbirdError, InputError

# The machine: hosts and links at work --------------------------------------------------------------------------------
#
# Running steps share cores and links; the shares are computed anew whenever a step begins or ends. A step takes
# core-seconds at a rate of at most its width, bits at the rate of the source's link up and the target's link down, or
# half round trips, which are never shared. A step whose rate does not change keeps its end, so that a step that shares
# nothing ends exactly when `Service.step_seconds` says. Replicas have hosts of their own and one clock.

Then = Callable[[], None]
ENDS, ENDS_ALONE, ARRIVES, GIVES_UP, BEGINS = range(5)  # the order of what happens at one time
_MOST_SHARES = 1 << 16  # remembered


class _Task(NamedTuple):
    """A step of a phase, with numbers in place of names.

    waits: number of steps that must end before this one. then: numbers of the steps that wait for this one. amount:
    core-seconds or bits; seconds if `flow` is None. flow: index of the `Flow`, a host's cores or a link, that the step
    shares; None: it shares none. computes: whether the step's work is `Compute`, whose amount is multiplied by a
    factor.
    """

    waits: int
    then: tuple[int, ...]
    amount: float
    flow: int | None
    computes: bool


@dataclass(eq=False)
class _Running:
    flow: int
    left: float  # of its amount, at time `since`
    then: Then
    since: float
    rate: float = 0.0
    end: float = math.inf


class Machine:
    """The simulated hosts and links of all replicas (equal copies of the service), which run the steps of phases.

    The event engine starts phases by `run`, and other events by `at`. There is one clock for all replicas, `now` in
    seconds, and a heap of coming events.
    """

    def __init__(self, service: Service, replicas: int = 1) -> None:
        self.service, self.now = service, 0.0
        self._capacity = {
            (kind, role): capacity_of(service, (role, kind))
            for role in service.hosts
            for kind in ("cores", "up", "down")
        }
        self._flows: list[Flow] = []
        self._phases: dict[int, tuple[_Task, ...]] = {}  # by the phase's id: the service keeps it alive
        self._events: list[tuple[float, int, int, Then]] = []
        self._numbers = 0
        self._running: list[list[_Running]] = [[] for _ in range(replicas)]
        self._stale: dict[int, None] = {}  # replicas whose running steps have changed since their last shares
        self._shared = [0] * replicas  # how often shares were computed
        self._known: dict[tuple[int, ...], dict[int, float]] = {}  # by the running flows, the rate of each flow

    def at(self, time: float, order: int, then: Then) -> None:
        """Schedule a call of the function `then` for the time `time`, in seconds.

        order: of several calls at one time, the one with the lowest `order` is first.
        """
        self._numbers += 1
        heappush(self._events, (time, order, self._numbers, then))

    def advance(self) -> None:
        """Advance the clock to the next event, and call its function."""
        for replica in self._stale:
            self._share(replica)
        self._stale.clear()
        self.now, _, _, then = heappop(self._events)
        then()

    def _share(self, replica: int) -> None:
        """Compute the speed of each running step of a replica, while these steps share the replica's cores and links.

        Then schedule the end of the step that ends first.
        """
        running = self._running[replica]
        self._shared[replica] += 1
        if not running:
            return
        rates = self._rates(running)
        for step in running:
            if (rate := rates[step.flow]) != step.rate:
                step.left = max(0.0, step.left - step.rate * (self.now - step.since))
                step.since, step.rate = self.now, rate
                step.end = self.now + step.left / rate
        first = min(running, key=lambda step: step.end)
        self.at(first.end, ENDS, partial(self._end, replica, first, self._shared[replica]))

    def _rates(self, running: list[_Running]) -> dict[int, float]:
        flows = tuple(sorted([step.flow for step in running]))
        rates = self._known.get(flows)
        if rates is None:
            if len(self._known) >= _MOST_SHARES:
                self._known.clear()
            found = shares([self._flows[flow] for flow in flows], self._capacity)
            rates = self._known[flows] = dict(zip(flows, found, strict=True))
        return rates

    def _end(self, replica: int, step: _Running, shared: int) -> None:
        """End a running step, at the time that was scheduled for its end.

        Do nothing if the speeds of the replica's steps have been computed anew meanwhile: then its end was scheduled
        anew. shared: how many times the speeds had been computed when this end was scheduled.
        """
        if shared == self._shared[replica]:
            self._running[replica].remove(step)
            self._stale[replica] = None
            step.then()

    def run(self, phase: Phase, factor: float, size: float, then: Then, replica: int = 0) -> None:
        """Start the steps of a phase on a replica, and call the function `then` when all steps have ended.

        factor: multiplies core-seconds. size: how many requests of the service run as one; it multiplies the amounts of
        all steps: core-seconds, bits, and the seconds of rounds. replica: number of the replica (copy of the service).
        """
        tasks = self._phases.get(id(phase)) or self._tasks(phase)
        waits = [task.waits for task in tasks]
        left = len(tasks)
        if not left:
            then()

        def start(number: int) -> None:
            task = tasks[number]
            amount = size * factor * task.amount if task.computes else size * task.amount
            if task.flow is None:
                self.at(self.now + amount, ENDS_ALONE, partial(end, task))
            else:
                self._running[replica].append(_Running(task.flow, amount, partial(end, task), self.now))
                self._stale[replica] = None

        def end(ended: _Task) -> None:
            nonlocal left
            left -= 1
            if not left:
                then()
            for number in ended.then:
                waits[number] -= 1
                if not waits[number]:
                    start(number)

        for number, task in enumerate(tasks):
            if not task.waits:
                start(number)

    def _tasks(self, phase: Phase) -> tuple[_Task, ...]:
        """Convert the steps of a phase to tasks: steps, and the cores or links that they use, have numbers in place of
        names.
        """
        after = {step.name: tuple(n for n, o in enumerate(phase.steps) if step.name in o.after) for step in phase.steps}
        made = tuple(
            _Task(len(set(step.after)), after[step.name], *self._work(step), isinstance(step.work, Compute))
            for step in phase.steps
        )
        self._phases[id(phase)] = made
        return made

    def _work(self, step: WorkStep) -> tuple[float, int | None]:
        """Return how much work a step is, and the number of its flow: the cores or links (`Flow`) that do the work.

        The amount is in core-seconds or bits. For a step that shares no core or link with others, the amount is in
        seconds, and the number is None.
        """
        work, flow = step.work, self.service.flow(step)
        if isinstance(work, Rounds) or flow is None:
            return self.service.step_seconds(step), None
        amount = work.core_seconds if isinstance(work, Compute) else 8 * work.bytes
        if not amount or min(flow.cap, *(self._capacity[resource] for resource in flow.resources)) == math.inf:
            return 0.0, None  # no time
        if flow not in self._flows:
            self._flows.append(flow)
        return amount, self._flows.index(flow)


# ---------------------------------------------------------------------------------------------------------------------

Group = tuple[int, ...]  # requests that are served as one


def simulate(
    service: Service, system: System, load: Load, factors: Draws, told: Callable[[int], None] | None = None
) -> LoadOutcome:
    """Follow every request of `load` through a service with the rules `system`, by discrete events; return the outcome.

    factors: for every run of a phase, the number by which its core-seconds are multiplied. told: called after each
    request that leaves, with the number of requests that have left. A request of nine steps takes about 0.05 ms. Raises
    ConfigError for a store too small for a request, and for batches with users, sessions, patience, a bounded queue or
    replicas.
    """
    if system.tokens is not None and (service.refill is None or factors.refill is None):
        raise InputError("tokens without a refill", where="refill")
    system.check_batches(load, factors)
    need = system.per_request * load.sizes()
    system.check_tokens(need)
    runs = [_Run(service, system, load, factors, run, told) for run in range(load.shape[0])]
    for run in runs:
        run.simulate()
    made = [replica.ends for run in runs for replica in run.replicas]
    most = max(map(len, made))
    ends = np.array([each + [math.inf] * (most - len(each)) for each in made])
    times = np.array([run.times for run in runs])
    fates = np.array([run.fate for run in runs], dtype=np.int8)
    tokens = np.where(fates == SERVED, need if system.tokens is not None else 0, 0)
    arrived, began, went, left = (times[:, kind] for kind in range(4))
    return LoadOutcome(arrived, began, went, left, fates, tokens, ends)


_A, _S, _G, _C = range(4)
_ROUNDING = 1e-6


class _Replica:
    """The state of a replica (copy of the service) in the event engine.

    It has the requests that wait for a slot, the groups (requests served as one) that wait for tokens, the numbers of
    free slots and workers, and the numbers of tokens and free places in the store.
    """

    def __init__(self, system: System, number: int, refill: Floats | None) -> None:
        self.number, self.refill = number, refill  # factors of the refills, by order of start
        self.present, self.slots = 0, system.slots
        self.waiting, self.line = deque[int](), deque[Group]()
        self.level, self.room, self.workers = system.stored, system.store - system.stored, system.workers
        self.begun, self.ends = 0, list[float]()


class _Run:
    """One run of the simulation: it follows every request, through a slot and its tokens, to its end on a replica."""

    def __init__(
        self, service: Service, system: System, load: Load, factors: Draws, run: int, told: Callable[[int], None] | None
    ) -> None:
        self.service, self.system, self.load, self.run, self.told = service, system, load, run, told
        self.machine = Machine(service, system.replicas)
        self.more = service.request.computing  # for each request of a batch but the first
        self.alone = service.seconds(self.more)
        self.sizes = load.sizes()[run]
        self.request = np.broadcast_to(factors.request, load.shape)[run]
        self.session = None if factors.session is None else np.broadcast_to(factors.session, load.shape)[run]
        self.picks = None if factors.picks is None else factors.picks[run]
        self.first = None if load.first is None else np.broadcast_to(load.first, load.shape)[run]
        refill = factors.refill
        rows = [None if refill is None else refill[(run * system.replicas + n) % len(refill)] for n in self._numbers]
        self.replicas = [_Replica(system, number, row) for number, row in enumerate(rows)]
        self.times: Floats = np.full((4, load.shape[1]), math.nan)
        self.fate = [SERVED] * load.shape[1]
        self.where: list[_Replica] = []  # of each request
        self.gone = 0
        self.there, self.since = 0.0, 0.0  # request-seconds in the system, counted up to the time `since`
        self.user: dict[int, int] = {}  # the user of each request
        self.new = [True] * load.users  # users none of whose requests were served yet

    @property
    def _numbers(self) -> range:
        return range(self.system.replicas)

    def simulate(self) -> None:
        """Run events until the last request has left.

        Raises HummingbirdError, for a defect of the engine, if the times of the requests contradict Little's law.
        """
        for replica in self.replicas:
            self._refill(replica)
        if self.load.due is not None:
            for number, due in enumerate(self.load.due[self.run]):
                self.machine.at(float(due), ARRIVES, partial(self._arrive, number))
        else:
            for user in range(self.load.users):
                self._think(user, user)
        while self.gone < len(self.fate):
            self.machine.advance()
        spent = float((self.times[_C] - self.times[_A]).sum())
        if abs(self.there - spent) > _ROUNDING * max(self.there, spent):  # Little's law: both are its L T
            what = f"requests spent {spent:.9g} s, and {self.there:.9g} s were counted"
            raise HummingbirdError(what, where="event engine", hint="this is a defect: please report it")

    def _think(self, user: int, time: int) -> None:
        """Let a user think, and then ask: the user's next request arrives load.think[run, time] seconds from now.

        user: number of the user. time: index of the thinking time in the row of this run.
        """
        assert self.load.think is not None
        after = float(self.load.think[self.run, time])
        self.machine.at(self.machine.now + after, ARRIVES, partial(self._ask, user))

    def _ask(self, user: int) -> None:
        if len(self.where) < len(self.fate):
            self.user[len(self.where)] = user
            self._arrive(len(self.where))

    def _count(self) -> None:
        """Bring `there` up to date: the seconds that all requests together have spent in the system.

        The seconds since the last update are added once for each request that is in the system.
        """
        self.there += (len(self.where) - self.gone) * (self.machine.now - self.since)
        self.since = self.machine.now

    def _arrive(self, number: int) -> None:
        self._count()
        among = self.replicas if self.picks is None else [self.replicas[pick] for pick in self.picks[number]]
        here = min(among, key=lambda replica: replica.present)
        here.present += 1
        self.where.append(here)
        self.times[_A, number] = self.machine.now
        if self.system.batch > 1:
            here.waiting.append(number)
            for after in (0.0, self.system.hold):  # a batch may be full now, or due after `hold`
                self.machine.at(self.machine.now + after, BEGINS, partial(self._gather, here))
        elif here.slots:
            self._begin(here, (number,))
        elif self.system.queue is not None and len(here.waiting) >= self.system.queue:
            self._leave(number, REJECTED)
        else:
            here.waiting.append(number)
        if self.load.patience is not None and math.isnan(self.times[_C, number]):
            until = self.machine.now + float(self.load.patience[self.run, number])
            self.machine.at(until, GIVES_UP, partial(self._lose, number))

    def _gather(self, here: _Replica) -> None:
        """Begin batches on the replica `here` while it has free slots and a batch is due.

        A batch is due if it is full, or if its first request has waited `System.hold` seconds.
        """
        b, waiting = self.system.batch, here.waiting
        while here.slots and waiting:
            if len(waiting) < b and self.machine.now < self.times[_A, waiting[0]] + self.system.hold:
                return
            self._begin(here, tuple(waiting.popleft() for _ in range(min(b, len(waiting)))))

    def _lose(self, number: int) -> None:
        """Remove request `number` if it still waits for a slot or for tokens; called at the time when its patience
        ends.
        """
        here = self.where[number]
        if number in here.waiting:
            here.waiting.remove(number)
            self._leave(number, GAVE_UP)
        elif (number,) in here.line:
            here.line.remove((number,))
            self._leave(number, GAVE_UP)
            self._free_slot(here)
            self._hand_out(here)

    def _begin(self, here: _Replica, group: Group) -> None:
        """Give a free slot of the replica `here` to a group (requests that are served as one), and then its tokens.

        If tokens are made on demand, the refills for them begin now; with a store, the group waits for them in line.
        """
        here.slots -= 1
        self.times[_S, group] = self.machine.now
        if self.system.tokens == 0:
            refills = -(-self._need(group) // self.system.per_refill)
            here.begun += refills
            self._make(here, group, here.begun - refills, refills)
        elif self.system.tokens is None:
            self._go(here, group)
        else:
            here.line.append(group)
            self._hand_out(here)

    def _make(self, here: _Replica, group: Group, refill: int, left: int) -> None:
        """Make a group's tokens on demand: run refills one after another, and then the group's online phase.

        here: the replica. group: requests that are served as one. refill: number of the next refill, counted from the
        start of the run. left: number of refills that are still to run.
        """
        if not left:
            self._go(here, group)
        else:
            self._run_refill(here, refill, partial(self._make, here, group, refill + 1, left - 1))

    def _hand_out(self, here: _Replica) -> None:
        """Give tokens to the groups in the queue of the replica `here`, first to the first, until too few are left.

        A group is a number of requests that are served as one; with its tokens it goes on. Then begin refills, which
        make tokens, until no worker is free or the store has no room for the tokens of another refill.
        """
        while here.line and here.level >= (need := self._need(here.line[0])):
            here.level -= need
            here.room += 0 if self.system.kept else need
            self._go(here, here.line.popleft())
        self._refill(here)

    def _need(self, group: Group) -> int:
        return self.system.per_request * sum(int(self.sizes[number]) for number in group)

    def _refill(self, here: _Replica) -> None:
        while here.workers and self.system.store and here.room >= self.system.per_refill:
            here.workers -= 1
            here.room -= self.system.per_refill
            here.begun += 1
            self._run_refill(here, here.begun - 1, partial(self._refilled, here))

    def _run_refill(self, here: _Replica, number: int, then: Callable[[], None]) -> None:
        assert here.refill is not None and self.service.refill is not None
        self.machine.run(self.service.refill, float(here.refill[number % len(here.refill)]), 1, then, here.number)

    def _refilled(self, here: _Replica) -> None:
        here.ends.append(self.machine.now)
        here.workers += 1
        here.level += self.system.per_refill
        self._hand_out(here)

    def _go(self, here: _Replica, group: Group) -> None:
        """Begin the online phase of a group, requests that are served as one, on the replica `here`.

        The session phase runs before it if the group's client is new.
        """
        self.times[_G, group] = self.machine.now
        first, online = group[0], partial(self._online, here, group)
        if self.session is not None and self.service.session is not None and self._is_first(first):
            self.machine.run(self.service.session, float(self.session[first]), 1, online, here.number)
        else:
            online()

    def _is_first(self, number: int) -> bool:
        if self.load.due is None:
            return self.new[self.user[number]]
        return self.first is None or bool(self.first[number])

    def _online(self, here: _Replica, group: Group) -> None:
        factor, size = float(self.request[group[0]]), int(self.sizes[group[0]])
        times = size * (1.0 if here.number else self.system.slow)
        self.machine.run(self.service.request, factor, times, partial(self._longer, here, group), here.number)

    def _longer(self, here: _Replica, group: Group) -> None:
        """Keep a batch in its slot for the time that its further requests add, and then end it.

        Each request after the first adds `System.each` seconds. here: the replica. group: the requests of the batch.
        """
        seconds, then = self.system.each * (len(group) - 1), partial(self._done, here, group)
        if not seconds:
            then()
        elif self.alone:
            self.machine.run(self.more, seconds / self.alone, 1, then, here.number)
        else:  # nothing is computed
            self.machine.at(self.machine.now + seconds, ENDS_ALONE, then)

    def _done(self, here: _Replica, group: Group) -> None:
        if self.system.kept and self.system.store:
            here.room += self._need(group)
            self._refill(here)
        for number in group:
            self._leave(number, SERVED)
        self._free_slot(here)

    def _free_slot(self, here: _Replica) -> None:
        here.slots += 1
        if self.system.batch > 1:
            self.machine.at(self.machine.now, BEGINS, partial(self._gather, here))
        elif here.waiting:
            self._begin(here, (here.waiting.popleft(),))

    def _leave(self, number: int, fate: int) -> None:
        self._count()
        self.times[_C, number] = self.machine.now
        self.fate[number] = fate
        self.where[number].present -= 1
        self.gone += 1
        if self.told is not None:
            self.told(self.run * len(self.fate) + self.gone)
        if self.load.due is None:
            user = self.user[number]
            self.new[user] = self.new[user] and fate != SERVED
            self._think(user, self.load.users + number)
