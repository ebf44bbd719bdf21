"""Hosts and links at work: steps under way get their shares, which change whenever one begins or ends.

A step takes core-seconds at a rate of at most its width, bits at the rate of the source's link up and the target's link
down, or half round trips, which are never shared. A step whose rate does not change keeps the end it has, so that one
which shares nothing ends exactly when `Service.step_seconds` says. Replicas have hosts of their own and one time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

from hummingbird.capacity.limit import capacity_of
from hummingbird.capacity.service import Compute, Phase, Rounds, Service, WorkStep
from hummingbird.capacity.sharing import Flow, shares

Then = Callable[[], None]
ENDS, ENDS_ALONE, ARRIVES, GIVES_UP, BEGINS = range(5)  # the order of what happens at one time
_MOST_SHARES = 1 << 16  # remembered


class _Task(NamedTuple):
    """A step as the machine runs it: what it waits for, who waits for it, and what it takes.

    amount: core-seconds, bits or, without a flow, seconds. flow: its number; None: it shares nothing.
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
    """The time, what is to happen, and the steps under way at every replica."""

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
        self._stale: dict[int, None] = {}  # replicas whose steps are others than at their last shares
        self._shared = [0] * replicas  # times that shares were given out
        self._known: dict[tuple[int, ...], dict[int, float]] = {}  # by what is under way, the rate of each flow

    def at(self, time: float, order: int, then: Then) -> None:
        """Call `then` at a time."""
        self._numbers += 1
        heappush(self._events, (time, order, self._numbers, then))

    def advance(self) -> None:
        """Go on to the next thing that happens, and let it happen."""
        for replica in self._stale:
            self._share(replica)
        self._stale.clear()
        self.now, _, _, then = heappop(self._events)
        then()

    def _share(self, replica: int) -> None:
        """Give out shares anew, and wait for the first step that ends with them."""
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
        """End a step, unless shares were given out since, and with them another end."""
        if shared == self._shared[replica]:
            self._running[replica].remove(step)
            self._stale[replica] = None
            step.then()

    def run(self, phase: Phase, factor: float, size: int, then: Then, replica: int = 0) -> None:
        """Run the steps of a phase, core-seconds `factor` times and all `size` times as many, then call `then`."""
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
        """The steps of a phase, whose flows get their numbers."""
        after = {step.name: tuple(n for n, o in enumerate(phase.steps) if step.name in o.after) for step in phase.steps}
        made = tuple(
            _Task(len(set(step.after)), after[step.name], *self._work(step), isinstance(step.work, Compute))
            for step in phase.steps
        )
        self._phases[id(phase)] = made
        return made

    def _work(self, step: WorkStep) -> tuple[float, int | None]:
        """The amount of a step, and its flow."""
        work, flow = step.work, self.service.flow(step)
        if isinstance(work, Rounds) or flow is None:
            return self.service.step_seconds(step), None
        amount = work.core_seconds if isinstance(work, Compute) else 8 * work.bytes
        if not amount or min(flow.cap, *(self._capacity[resource] for resource in flow.resources)) == math.inf:
            return 0.0, None  # no time
        if flow not in self._flows:
            self._flows.append(flow)
        return amount, self._flows.index(flow)
