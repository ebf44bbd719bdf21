"""Requests of every run, one after the other: each a handful of numpy calls on vectors over the runs."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hummingbird.capacity.system import GAVE_UP, REJECTED, SERVED, Draws, Floats, Ints, Load, LoadOutcome, System
from hummingbird.capacity.workers import Start, Workers, tokens_of

Fates = NDArray[np.int8]
T = TypeVar("T", bound=np.generic)


class Replay:
    """State of all runs; row = run * replicas + replica. start: theirs, else idle ones."""

    def __init__(self, system: System, load: Load, seconds: Draws, need: Ints, start: Start | None = None) -> None:
        self.system, self.load = system, load
        runs, requests = load.shape
        self.runs, self.requests = runs, requests
        rows = runs * system.replicas
        start = start or Start.idle(system, rows)
        self.slots = Workers(start.slots)
        self.tokens = tokens_of(system, seconds, need, start)
        self.every = np.arange(runs)
        self.need = np.ascontiguousarray(need.T)
        self.online = _by_request(seconds.request, load)
        self.session = None if seconds.session is None else _by_request(seconds.session, load)
        self.arrived, self.began, self.went, self.left = (np.full((requests, runs), math.nan) for _ in range(4))
        self.fate = np.zeros((requests, runs), dtype=np.int8)

    def outcome(self) -> LoadOutcome:
        times = (self.arrived.T, self.began.T, self.went.T, self.left.T)
        tokens = np.where(self.fate == SERVED, self.need if self.system.tokens is not None else 0, 0)
        return LoadOutcome(*times, self.fate.T, tokens.T, self.tokens.ends())


def _by_request(values: NDArray[T], load: Load) -> NDArray[T]:
    return np.ascontiguousarray(np.broadcast_to(values, load.shape).T)


class Singles(Replay):
    """Requests one at a time."""

    def __init__(self, system: System, load: Load, seconds: Draws, need: Ints, start: Start | None = None) -> None:
        super().__init__(system, load, seconds, need, start)
        rows = self.runs * system.replicas
        self.patience = None if load.patience is None else _by_request(load.patience, load)
        self.queue = None if system.queue is None else Workers(np.full((rows, max(1, system.queue)), -math.inf))
        self.line = np.full(rows, -math.inf)  # when the last request left the line for tokens
        self.present = _Present(self.runs, system.replicas) if system.replicas > 1 else None
        self.asking = _Open(load) if load.due is not None else _Users(load, self.every)

    def run(self) -> LoadOutcome:
        for i in range(self.requests):
            at = self.asking.next(i)
            rows = self.every if self.present is None else self.present.join(at)
            left = self._serve(i, rows, at)
            self.asking.told(i, left, self.fate[i])
            if self.present is not None:
                self.present.until(rows, at, left)
        return self.outcome()

    def _serve(self, i: int, rows: Ints, at: Floats) -> Floats:
        """Serve request i of every run, or turn it away; when it left."""
        system, need = self.system, self.need[i]
        place, free = self.slots.first(rows)
        begin = np.maximum(at, free)
        go = np.maximum(self.tokens.ready(rows, begin, need), self.line[rows])  # the line for tokens is one
        end = go + self.online[i]
        if self.session is not None:
            end = end + np.where(self.asking.first(i), self.session[i], 0.0)
        self.arrived[i], self.began[i], self.went[i], self.left[i] = at, begin, go, end
        if self.queue is None and self.patience is None:
            self.slots.free[rows, place] = end
            self.tokens.take(rows, need, end if system.kept else go)
            return end
        return self._choose(i, rows, place)

    def _choose(self, i: int, rows: Ints, place: Ints) -> Floats:
        """Turn away or let go those of request i who do not stay; when each left."""
        system, at, begin, go = self.system, self.arrived[i], self.began[i], self.went[i]
        until = at + (math.inf if self.patience is None else self.patience[i])
        room = np.ones(len(rows), dtype=bool)
        if self.queue is not None:
            waiting = begin > at
            room = ~waiting | ((self.queue.first(rows)[1] <= at) & (system.queue != 0))
            held = room & waiting
            self.queue.take(rows[held], np.minimum(begin, until)[held])
        served = room & ((go if self.tokens.ahead else begin) <= until)
        slot = room & (begin <= until)  # it got one, and may have given up while blocked
        if self.tokens.ahead:
            self.line[rows[slot]] = np.maximum(self.line[rows], np.minimum(go, until))[slot]
        left = np.where(served, self.left[i], np.where(room, until, at))
        self.slots.free[rows[slot], place[slot]] = left[slot]
        go_on = left if system.kept else go
        self.tokens.take(rows[served], self.need[i][served], go_on[served])
        self.fate[i] = np.where(served, SERVED, np.where(room, GAVE_UP, REJECTED))
        self.began[i][~slot] = math.nan
        self.went[i][~served] = math.nan
        self.left[i] = left
        return left


class BatchReplay(Replay):
    """Requests several at a time: of each run the batch that begins next."""

    def run(self) -> LoadOutcome:
        b, system, due = self.system.batch, self.system, self.load.due
        assert due is not None
        late = np.full((self.runs, b), math.inf)
        due, need = np.hstack([due, late]), np.hstack([self.need.T, np.zeros((self.runs, b), dtype=np.int64)])
        self.arrived[:] = due[:, : self.requests].T
        rows, first = self.every, np.zeros(self.runs, dtype=np.int64)
        while rows.size:
            i = first[rows]
            window = i[:, None] + np.arange(b)
            arrivals = due[rows[:, None], window]
            place, free = self.slots.first(rows)
            begin = np.maximum(free, np.minimum(arrivals[:, -1], arrivals[:, 0] + system.hold))
            inside = arrivals <= begin[:, None]
            members = inside.sum(1)
            tokens = (need[rows[:, None], window] * inside).sum(1)
            go = self.tokens.ready(rows, begin, tokens)
            end = go + self.online[i, rows] + system.each * (members - 1)
            self.slots.free[rows, place] = end
            self.tokens.take(rows, tokens, end if system.kept else go)
            row, column = np.nonzero(inside)
            for times, values in ((self.began, begin), (self.went, go), (self.left, end)):
                times[window[row, column], rows[row]] = values[row]
            first[rows] = i + members
            rows = rows[first[rows] < self.requests]
        return self.outcome()


class _Open:
    """Arrivals at given times."""

    def __init__(self, load: Load) -> None:
        assert load.due is not None
        self.due = np.ascontiguousarray(load.due.T)
        self.marks = None if load.first is None else _by_request(load.first, load)

    def next(self, i: int) -> Floats:
        """When request i of every run comes."""
        return self.due[i]

    def first(self, i: int) -> NDArray[np.bool_] | bool:
        """Whether it begins a session; all do if nothing else is said."""
        return True if self.marks is None else self.marks[i]

    def told(self, i: int, left: Floats, fate: Fates) -> None:
        """Hear when request i left, and how."""


class _Users(_Open):
    """Users in a circle: of each run the one who asks next."""

    def __init__(self, load: Load, runs: Ints) -> None:
        assert load.think is not None
        self.runs, self.think = runs, np.ascontiguousarray(load.think[:, load.users :].T)
        self.asks = load.think[:, : load.users].copy()
        self.new = np.ones(self.asks.shape, dtype=bool)

    def next(self, i: int) -> Floats:
        self.who = self.asks.argmin(1)
        return self.asks[self.runs, self.who]

    def first(self, i: int) -> NDArray[np.bool_]:
        return self.new[self.runs, self.who]

    def told(self, i: int, left: Floats, fate: Fates) -> None:
        self.asks[self.runs, self.who] = left + self.think[i]
        self.new[self.runs, self.who] &= fate != SERVED


class _Present:
    """The requests at every replica: when each leaves, in as many columns as were there at a time."""

    def __init__(self, runs: int, replicas: int) -> None:
        self.base = np.arange(runs) * replicas
        self.leaves = np.full((runs, replicas, 1), -math.inf)

    def join(self, at: Floats) -> Ints:
        """Rows of the replicas with the fewest requests, the first of equals."""
        return self.base + (self.leaves > at[:, None, None]).sum(2).argmin(1)

    def until(self, rows: Ints, at: Floats, left: Floats) -> None:
        """The request that joined them at `at` leaves then."""
        flat = self.leaves.reshape(-1, self.leaves.shape[2])
        place = flat[rows].argmin(1)
        if (flat[rows, place] > at).any():
            more = np.full(self.leaves.shape, -math.inf)
            self.leaves = np.concatenate([self.leaves, more], axis=2)
            return self.until(rows, at, left)
        flat[rows, place] = left
