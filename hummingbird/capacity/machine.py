"""Hosts and links at work: steps under way get their shares, which change whenever one begins or ends.

A step takes core-seconds at a rate of at most its width, bits at the rate of the source's link up and the target's link
down, or half round trips, which are never shared. A step whose rate does not change keeps the end it has, so that one
which shares nothing ends exactly when `Service.step_seconds` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

from hummingbird.capacity.service import Compute, Phase, Rounds, Service, Step
from hummingbird.capacity.sharing import Flow, shares

Then = Callable[[], None]
ENDS, ARRIVES, GIVES_UP = range(3)  # the order of what happens at one time


@dataclass
class _Running:
    flow: Flow
    left: float  # of its amount, at time `since`
    then: Then
    since: float = 0.0
    rate: float = 0.0
    end: float = math.inf


class Machine:
    """The time, what is to happen, and the steps under way."""

    def __init__(self, service: Service) -> None:
        self.service, self.now = service, 0.0
        self._capacity = {
            (kind, role): float(getattr(host, kind))
            for role, host in service.hosts.items()
            for kind in ("cores", "up", "down")
        }
        self._events: list[tuple[float, int, int, Then]] = []
        self._numbers = 0
        self._running: list[_Running] = []
        self._stale = False

    def at(self, time: float, order: int, then: Then) -> None:
        """Call `then` at a time."""
        self._numbers += 1
        heappush(self._events, (time, order, self._numbers, then))

    def advance(self) -> None:
        """Go on to the next thing that happens, and let it happen."""
        if self._stale:
            self._share()
        first = min(self._running, key=lambda step: step.end, default=None)
        if first is not None and (not self._events or first.end <= self._events[0][0]):
            self._running.remove(first)
            self._stale = True
            self.now = first.end
            first.then()
        else:
            self.now, _, _, then = heappop(self._events)
            then()

    def _share(self) -> None:
        rates = shares([step.flow for step in self._running], self._capacity)
        for step, rate in zip(self._running, rates, strict=True):
            if rate != step.rate:
                step.left = max(0.0, step.left - step.rate * (self.now - step.since))
                step.since, step.rate = self.now, rate
                step.end = self.now + step.left / rate
        self._stale = False

    def run(self, phase: Phase, factor: float, size: int, then: Then) -> None:
        """Run the steps of a phase, core-seconds `factor` times and all `size` times as many, then call `then`."""
        waits = {step.name: len(step.after) for step in phase.steps}
        left = len(phase.steps)
        if not left:
            then()

        def end(ended: Step) -> None:
            nonlocal left
            left -= 1
            if not left:
                then()
            for step in phase.steps:
                if ended.name in step.after:
                    waits[step.name] -= step.after.count(ended.name)
                    if not waits[step.name]:
                        self._start(step, factor, size, partial(end, step))

        for step in phase.steps:
            if not step.after:
                self._start(step, factor, size, partial(end, step))

    def _start(self, step: Step, factor: float, size: int, then: Then) -> None:
        work = step.work
        if isinstance(work, Rounds):
            self.at(self.now + size * self.service.step_seconds(step), ENDS, then)
            return
        if isinstance(work, Compute):
            amount = size * factor * work.core_seconds
            flow = Flow((("cores", work.host),), min(work.width, self.service.hosts[work.host].cores))
        else:
            amount = size * 8 * work.bytes
            flow = Flow((("up", work.source), ("down", work.target)), math.inf)
        if not amount or min(flow.cap, *(self._capacity[resource] for resource in flow.resources)) == math.inf:
            self.at(self.now, ENDS, then)  # no time
            return
        self._running.append(_Running(flow, amount, then, self.now))
        self._stale = True
