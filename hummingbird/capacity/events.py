"""The engine where phases share cores and links: events in the order of time, of one run after the other.

It follows the rules of `system` as queues of requests; how long a phase takes comes out of what else is under way
(`machine`). The recurrence is the same service where every phase has its hosts and links to itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from hummingbird.capacity.machine import ARRIVES, GIVES_UP, Machine
from hummingbird.capacity.service import Service
from hummingbird.capacity.system import GAVE_UP, REJECTED, SERVED, Draws, Floats, Load, Outcome, System
from hummingbird.errors import ConfigError, HummingbirdError, InputError


def simulate(
    service: Service, system: System, load: Load, factors: Draws, told: Callable[[int], None] | None = None
) -> Outcome:
    """Follow every request of `load` through `system`, whose phases are those of `service`.

    factors: of the core-seconds of each phase. told: how many requests have left, after each.
    A request takes about 0.2 ms with four steps. Raises ConfigError for batches and replicas, and for a store too small
    for a request.
    """
    if system.batch > 1 or system.replicas > 1:
        hint = "the recurrence knows them, where nothing is shared"
        raise ConfigError("the event engine has neither batches nor replicas", where="system", hint=hint)
    if system.tokens is not None and (service.refill is None or factors.refill is None):
        raise InputError("tokens, and no refill", where="refill")
    need = system.per_request * load.sizes()
    system.check_tokens(need)
    runs = [_Run(service, system, load, factors, run, told) for run in range(load.shape[0])]
    for run in runs:
        run.simulate()
    most = max(len(run.ends) for run in runs)
    ends = np.array([run.ends + [math.inf] * (most - len(run.ends)) for run in runs])
    times = np.array([run.times for run in runs])
    fates = np.array([run.fate for run in runs], dtype=np.int8)
    tokens = np.where(fates == SERVED, need if system.tokens is not None else 0, 0)
    arrived, began, went, left = (times[:, kind] for kind in range(4))
    return Outcome(arrived, began, went, left, fates, tokens, ends)


_A, _S, _G, _C = range(4)
_ROUNDING = 1e-6


class _Run:
    """One run: who is in a slot, who waits for one, and the store."""

    def __init__(
        self, service: Service, system: System, load: Load, factors: Draws, run: int, told: Callable[[int], None] | None
    ) -> None:
        self.service, self.system, self.load, self.run, self.told = service, system, load, run, told
        self.machine = Machine(service)
        self.sizes = load.sizes()[run]
        self.request = np.broadcast_to(factors.request, load.shape)[run]
        self.session = None if factors.session is None else np.broadcast_to(factors.session, load.shape)[run]
        self.refill = None if factors.refill is None else factors.refill[run % len(factors.refill)]
        self.times: Floats = np.full((4, load.shape[1]), math.nan)
        self.fate = [SERVED] * load.shape[1]
        self.slots = system.slots
        self.waiting, self.line = deque[int](), deque[int]()  # for a slot; for tokens, in one
        self.level, self.room, self.workers = system.stored, system.store - system.stored, system.workers
        self.begun, self.ends = 0, list[float]()
        self.arrivals, self.gone = 0, 0
        self.there, self.since = 0.0, 0.0  # request-seconds, counted by who is there, until then
        self.user: dict[int, int] = {}  # who made a request
        self.new = [True] * load.users

    def simulate(self) -> None:
        """Let everything happen until the last request has left."""
        self._refill()
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
        if self.arrivals < len(self.fate):
            self.user[self.arrivals] = user
            self._arrive(self.arrivals)

    def _count(self) -> None:
        """Count who was there since the last time."""
        self.there += (self.arrivals - self.gone) * (self.machine.now - self.since)
        self.since = self.machine.now

    def _arrive(self, number: int) -> None:
        self._count()
        self.arrivals += 1
        self.times[_A, number] = self.machine.now
        if self.slots:
            self._begin(number)
        elif self.system.queue is not None and len(self.waiting) >= self.system.queue:
            self._leave(number, REJECTED)
        else:
            self.waiting.append(number)
        if self.load.patience is not None and math.isnan(self.times[_C, number]):
            until = self.machine.now + float(self.load.patience[self.run, number])
            self.machine.at(until, GIVES_UP, partial(self._lose, number))

    def _lose(self, number: int) -> None:
        """Let a request go that still waits, for a slot or for tokens."""
        if number in self.waiting:
            self.waiting.remove(number)
            self._leave(number, GAVE_UP)
        elif number in self.line:
            self.line.remove(number)
            self._leave(number, GAVE_UP)
            self._free_slot()
            self._hand_out()

    def _begin(self, number: int) -> None:
        """Give a request a slot."""
        self.slots -= 1
        self.times[_S, number] = self.machine.now
        if self.system.tokens == 0:
            refills = -(-self._need(number) // self.system.per_refill)
            self.begun += refills
            self._make(number, self.begun - refills, refills)
        elif self.system.tokens is None:
            self._go(number)
        else:
            self.line.append(number)
            self._hand_out()

    def _make(self, number: int, refill: int, left: int) -> None:
        """Run the refills of a request one after another, then the request."""
        if not left:
            self._go(number)
        else:
            self._run_refill(refill, partial(self._make, number, refill + 1, left - 1))

    def _hand_out(self) -> None:
        """Give tokens to requests in the order of their line."""
        while self.line and self.level >= (need := self._need(self.line[0])):
            self.level -= need
            self.room += 0 if self.system.kept else need
            self._go(self.line.popleft())
        self._refill()

    def _need(self, number: int) -> int:
        return self.system.per_request * int(self.sizes[number])

    def _refill(self) -> None:
        while self.workers and self.system.store and self.room >= self.system.per_refill:
            self.workers -= 1
            self.room -= self.system.per_refill
            self.begun += 1
            self._run_refill(self.begun - 1, self._refilled)

    def _run_refill(self, number: int, then: Callable[[], None]) -> None:
        assert self.refill is not None and self.service.refill is not None
        self.machine.run(self.service.refill, float(self.refill[number % len(self.refill)]), 1, then)

    def _refilled(self) -> None:
        self.ends.append(self.machine.now)
        self.workers += 1
        self.level += self.system.per_refill
        self._hand_out()

    def _go(self, number: int) -> None:
        """Begin the online phase, or before it the session."""
        self.times[_G, number] = self.machine.now
        online = partial(self._online, number)
        if self.session is not None and self.service.session is not None and self._is_first(number):
            self.machine.run(self.service.session, float(self.session[number]), 1, online)
        else:
            online()

    def _is_first(self, number: int) -> bool:
        if self.load.due is None:
            return self.new[self.user[number]]
        return self.load.first is None or bool(np.broadcast_to(self.load.first, self.load.shape)[self.run, number])

    def _online(self, number: int) -> None:
        factor, size = float(self.request[number]), int(self.sizes[number])
        self.machine.run(self.service.request, factor, size, partial(self._done, number))

    def _done(self, number: int) -> None:
        if self.system.kept and self.system.store:
            self.room += self._need(number)
            self._refill()
        self._leave(number, SERVED)
        self._free_slot()

    def _free_slot(self) -> None:
        self.slots += 1
        if self.waiting:
            self._begin(self.waiting.popleft())

    def _leave(self, number: int, fate: int) -> None:
        self._count()
        self.times[_C, number] = self.machine.now
        self.fate[number] = fate
        self.gone += 1
        if self.told is not None:
            self.told(self.gone)
        if self.load.due is None:
            user = self.user[number]
            self.new[user] = self.new[user] and fate != SERVED
            self._think(user, self.load.users + number)
