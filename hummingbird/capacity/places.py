"""State of the recurrence in every run at once: places that free themselves, and tokens that refills make.

Rows are runs (with replicas: run * replicas + replica); every method takes the rows that it is about, each once.
"""

from __future__ import annotations

import math

import numpy as np

from hummingbird.capacity.system import Draws, Floats, Ints, System
from hummingbird.errors import ConfigError

_MOST_BYTES = 4 << 30  # of the ends of all refills


class Places:
    """Places of every row, each of which is free from a time on."""

    def __init__(self, rows: int, places: int) -> None:
        self.free = np.full((rows, places), -math.inf)

    def first(self, rows: Ints) -> tuple[Ints, Floats]:
        """The place of each row that is free first, and when."""
        place = self.free[rows].argmin(1) if self.free.shape[1] > 1 else np.zeros_like(rows)
        return place, self.free[rows, place]

    def take(self, rows: Ints, until: Floats) -> None:
        """Take the first place of each row until then."""
        self.free[rows, self.first(rows)[0]] = until


class NoTokens:
    """Requests that need none."""

    ahead = False  # made before a request needs them

    def ready(self, rows: Ints, begin: Floats, need: Ints) -> Floats:
        """When requests that begin at `begin` have the `need` tokens that each takes."""
        return begin

    def take(self, rows: Ints, need: Ints, at: Floats) -> None:
        """Take them; their places are free from `at` on."""

    def ends(self) -> Floats:
        """(rows, refills), when each refill ended, ascending; inf for none."""
        return np.empty((0, 0))


class OnDemand(NoTokens):
    """Each request's refills one after another, in its slot, once it has begun."""

    def __init__(self, system: System, rows: int, seconds: Floats) -> None:
        self.per_refill = system.per_refill
        self.seconds = np.broadcast_to(seconds, (rows, np.shape(seconds)[-1]))
        self.done = np.zeros(rows, dtype=np.int64)

    def _refills(self, need: Ints) -> Ints:
        return -(-need // self.per_refill)

    def ready(self, rows: Ints, begin: Floats, need: Ints) -> Floats:
        refills, end = self._refills(need), begin
        for number in range(int(refills.max())):
            more = self.seconds[rows, (self.done[rows] + number) % self.seconds.shape[1]]
            end = np.where(number < refills, end + more, end)
        return end

    def take(self, rows: Ints, need: Ints, at: Floats) -> None:
        self.done[rows] += self._refills(need)


class Store(NoTokens):
    """A store that its workers keep full; integers count tokens, as sums of their sizes would lose some."""

    ahead = True

    def __init__(self, system: System, rows: int, seconds: Floats, most: int) -> None:
        """most: tokens that any row may take in all."""
        self.system = system
        self.seconds = np.broadcast_to(seconds, (rows, np.shape(seconds)[-1]))
        refills = (most + system.store - system.stored) // system.per_refill
        if 8 * rows * (refills + system.workers) > _MOST_BYTES:
            hint = "fewer runs, or a store that is full at first"
            raise ConfigError(f"{refills} refills in each of {rows} runs", where="tokens", hint=hint)
        # Column r + j: the j-th smallest end. The first r columns: the workers, idle at first.
        self.ready_at = np.full((rows, system.workers + refills), math.inf)
        self.ready_at[:, : system.workers] = -math.inf
        self.begun = np.zeros(rows, dtype=np.int64)
        self.taken = np.zeros(rows, dtype=np.int64)
        self._refill(np.arange(rows), np.zeros(rows))

    def ends(self) -> Floats:
        return self.ready_at[:, self.system.workers :]

    def ready(self, rows: Ints, begin: Floats, need: Ints) -> Floats:
        last = self.taken[rows] + need - 1 - self.system.stored  # the last token, counted from the first made
        refill = np.maximum(last // self.system.per_refill, -1)
        return np.maximum(begin, self.ready_at[rows, self.system.workers + refill])

    def take(self, rows: Ints, need: Ints, at: Floats) -> None:
        self.taken[rows] += need
        self._refill(rows, at)

    def _refill(self, rows: Ints, at: Floats) -> None:
        """Begin what has room from `at` on."""
        system, r = self.system, self.system.workers
        while rows.size:
            room = self.taken[rows] + system.store - system.stored
            due = room // system.per_refill > self.begun[rows]
            if not due.all():
                rows, at = rows[due], at[due]
            j = self.begun[rows]
            begin = np.maximum(at, self.ready_at[rows, j])  # the r-th largest end: a worker is free
            end = begin + self.seconds[rows, j % self.seconds.shape[1]]
            if r == 1:
                self.ready_at[rows, j + 1] = end
            else:  # only the r - 1 other refills under way may end later than this one
                columns = j[:, None] + np.arange(1, r + 1)
                self.ready_at[rows, j + r] = end
                self.ready_at[rows[:, None], columns] = np.sort(self.ready_at[rows[:, None], columns], axis=1)
            self.begun[rows] = j + 1


def tokens_of(system: System, rows: int, seconds: Draws, need: Ints) -> NoTokens:
    """How requests come by their tokens; seconds.refill: of every refill."""
    if system.tokens is None or seconds.refill is None:
        return NoTokens()
    if not system.tokens:
        return OnDemand(system, rows, seconds.refill)
    return Store(system, rows, seconds.refill, int(need.sum(1).max(initial=0)))
