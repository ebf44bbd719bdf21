"""The engine where phases share cores and links: events in the order of time, of one run after the other.

It follows the rules of `system` as queues of requests; how long a phase takes comes out of what else is under way
(`machine`). The recurrence is the same service where every phase has its hosts and links to itself. Every replica has
hosts, slots and a store of its own. Requests go as groups: a batch, or one alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from hummingbird.capacity.machine import ARRIVES, BEGINS, ENDS_ALONE, GIVES_UP, Machine
from hummingbird.capacity.service import Service
from hummingbird.capacity.system import GAVE_UP, REJECTED, SERVED, Draws, Floats, Load, LoadOutcome, System
from hummingbird.errors import HummingbirdError, InputError

Group = tuple[int, ...]  # requests that are served as one


def simulate(
    service: Service, system: System, load: Load, factors: Draws, told: Callable[[int], None] | None = None
) -> LoadOutcome:
    """Follow every request of `load` through `system`, whose phases are those of `service`.

    factors: of the core-seconds of each phase. told: how many requests have left, after each.
    A request takes about 0.05 ms with nine steps. Raises ConfigError for batches of what comes otherwise than to one
    queue, and for a store too small for a request.
    """
    if system.tokens is not None and (service.refill is None or factors.refill is None):
        raise InputError("tokens, and no refill", where="refill")
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
    """Who is there, who waits for a slot and who, in one line, for tokens; and the store."""

    def __init__(self, system: System, number: int, refill: Floats | None) -> None:
        self.number, self.refill = number, refill  # factors, by the order of start
        self.present, self.slots = 0, system.slots
        self.waiting, self.line = deque[int](), deque[Group]()
        self.level, self.room, self.workers = system.stored, system.store - system.stored, system.workers
        self.begun, self.ends = 0, list[float]()


class _Run:
    """One run: its requests, and its replicas."""

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
        self.first = None if load.first is None else np.broadcast_to(load.first, load.shape)[run]
        refill = factors.refill
        rows = [None if refill is None else refill[(run * system.replicas + n) % len(refill)] for n in self._numbers]
        self.replicas = [_Replica(system, number, row) for number, row in enumerate(rows)]
        self.times: Floats = np.full((4, load.shape[1]), math.nan)
        self.fate = [SERVED] * load.shape[1]
        self.where: list[_Replica] = []  # of each request
        self.gone = 0
        self.there, self.since = 0.0, 0.0  # request-seconds, counted by who is there, until then
        self.user: dict[int, int] = {}  # who made a request
        self.new = [True] * load.users

    @property
    def _numbers(self) -> range:
        return range(self.system.replicas)

    def simulate(self) -> None:
        """Let everything happen until the last request has left."""
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
        """Let a user think for that one of the times, then ask."""
        assert self.load.think is not None
        after = float(self.load.think[self.run, time])
        self.machine.at(self.machine.now + after, ARRIVES, partial(self._ask, user))

    def _ask(self, user: int) -> None:
        if len(self.where) < len(self.fate):
            self.user[len(self.where)] = user
            self._arrive(len(self.where))

    def _count(self) -> None:
        """Count who was there since the last time."""
        self.there += (len(self.where) - self.gone) * (self.machine.now - self.since)
        self.since = self.machine.now

    def _arrive(self, number: int) -> None:
        self._count()
        here = min(self.replicas, key=lambda replica: replica.present)
        here.present += 1
        self.where.append(here)
        self.times[_A, number] = self.machine.now
        if self.system.batch > 1:
            here.waiting.append(number)
            for after in (0.0, self.system.hold):  # a batch may be full now, or has waited long enough then
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
        """Begin the batches that are full, or whose first request has waited so long."""
        b, waiting = self.system.batch, here.waiting
        while here.slots and waiting:
            if len(waiting) < b and self.machine.now < self.times[_A, waiting[0]] + self.system.hold:
                return
            self._begin(here, tuple(waiting.popleft() for _ in range(min(b, len(waiting)))))

    def _lose(self, number: int) -> None:
        """Let a request go that still waits, for a slot or for tokens."""
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
        """Give a group a slot."""
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
        """Run the refills of a group one after another, then the group."""
        if not left:
            self._go(here, group)
        else:
            self._run_refill(here, refill, partial(self._make, here, group, refill + 1, left - 1))

    def _hand_out(self, here: _Replica) -> None:
        """Give tokens to groups in the order of their line."""
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
        """Begin the online phase, or before it the session."""
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
        self.machine.run(self.service.request, factor, size, partial(self._longer, here, group), here.number)

    def _longer(self, here: _Replica, group: Group) -> None:
        """Compute for the other requests of a batch."""
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
