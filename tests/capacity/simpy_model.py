"""The same service written with simpy's processes, resources and containers: one run, no sharing of code or idea.

Requests are processes that wait for a slot, then in one line for tokens; refills are processes of their workers.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from hummingbird.capacity.system import GAVE_UP, REJECTED, SERVED, Draws, Load, System

Process = Generator[simpy.Event, Any, None]


class Model:
    """One run of a system without batches."""

    def __init__(self, system: System, load: Load, draws: Draws, run: int = 0) -> None:
        self.system, self.load, self.run, self.picks = system, load, run, draws.picks
        self.env = simpy.Environment()
        self.requests = load.shape[1]
        self.online = np.broadcast_to(draws.request, load.shape)[run]
        self.session = None if draws.session is None else np.broadcast_to(draws.session, load.shape)[run]
        self.sizes = load.sizes()[run]
        self.replicas = [Replica(self, number, draws) for number in range(system.replicas)]
        self.rows = np.full((self.requests, 5), math.nan)  # A, S, G, left, fate
        self.count = 0
        self.over = self.env.event()

    def simulate(self) -> np.ndarray:
        """(requests, 5): A, S, G, when it left, fate."""
        if self.load.due is not None:
            self.env.process(self.arrivals())
        else:
            for user in range(self.load.users):
                self.env.process(self.user(user))
        self.env.run(until=self.over)
        return self.rows

    def arrivals(self) -> Process:
        first = None if self.load.first is None else np.broadcast_to(self.load.first, self.load.shape)[self.run]
        requests = []
        for number, due in enumerate(self.load.due[self.run]):
            yield self.env.timeout(due - self.env.now)
            requests.append(self.env.process(self.request(number, first is None or bool(first[number]))))
        yield self.env.all_of(requests)
        self.over.succeed()

    def user(self, user: int) -> Process:
        think = self.load.think[self.run]
        new, wait = True, think[user]
        while True:
            yield self.env.timeout(wait)
            number, self.count = self.count, self.count + 1
            if number >= self.requests:
                return
            yield self.env.process(self.request(number, new))
            new = new and self.rows[number, 4] != SERVED
            if np.isfinite(self.rows[:, 4]).all():
                self.over.succeed()
            wait = think[self.load.users + number]

    def request(self, number: int, first: bool) -> Process:
        picks = range(len(self.replicas)) if self.picks is None else self.picks[self.run, number]
        replica = min((self.replicas[pick] for pick in picks), key=lambda one: one.present)
        replica.present += 1
        row = self.rows[number]
        row[0] = self.env.now
        yield from replica.serve(number, row, first)
        row[3] = self.env.now
        replica.present -= 1


class Replica:
    """Slots, workers and a store of their own."""

    def __init__(self, model: Model, number: int, draws: Draws) -> None:
        self.model, self.env, self.system, self.number = model, model.env, model.system, number
        system = self.system
        self.present = 0
        self.slots = simpy.Resource(self.env, system.slots)
        self.line = simpy.Resource(self.env, 1)  # its holder is the one who waits for tokens
        if draws.refill is not None:
            rows = model.load.shape[0] * system.replicas
            values = np.broadcast_to(draws.refill, (rows, draws.refill.shape[-1]))
            self.refills = values[model.run * system.replicas + number]
        self.begun = 0
        if system.store:
            self.level = simpy.Container(self.env, system.store, init=system.stored)
            room = system.store - system.stored
            self.room = simpy.Container(self.env, system.store, init=room)
            for _ in range(system.workers):
                self.env.process(self.worker())

    def next_refill(self) -> float:
        self.begun += 1
        return float(self.refills[(self.begun - 1) % len(self.refills)])

    def worker(self) -> Process:
        while True:
            yield self.room.get(self.system.per_refill)
            yield self.env.timeout(self.next_refill())
            yield self.level.put(self.system.per_refill)

    def serve(self, number: int, row: np.ndarray, first: bool) -> Process:
        model, system, env = self.model, self.system, self.env
        if system.queue is not None and self.slots.count == system.slots and len(self.slots.queue) >= system.queue:
            row[4] = REJECTED
            return
        patience = None if model.load.patience is None else model.load.patience[model.run, number]
        leave = env.event() if patience is None else env.timeout(patience)
        with self.slots.request() as slot:
            yield slot | leave
            if not slot.triggered:
                row[4] = GAVE_UP
                return
            row[1] = env.now
            need = system.per_request * int(model.sizes[number])
            if system.tokens == 0:
                times = [self.next_refill() for _ in range(math.ceil(need / system.per_refill))]
                for seconds in times:
                    yield env.timeout(seconds)
            elif system.tokens is not None:
                with self.line.request() as turn:
                    yield turn | leave
                    got = self.level.get(need) if turn.triggered else None
                    if got is not None:
                        yield got | leave
                    if got is None or not got.triggered:
                        if got is not None:
                            got.cancel()
                        row[4] = GAVE_UP
                        return
                if not system.kept:
                    self.room.put(need)
            row[2] = env.now
            yield env.timeout(model.online[number] * (1.0 if self.number else system.slow))
            if first and model.session is not None:
                yield env.timeout(model.session[number])
            if system.kept and system.tokens:
                self.room.put(need)
            row[4] = SERVED
