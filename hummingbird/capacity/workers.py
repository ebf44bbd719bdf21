"""The state of the recurrence for all runs at once: slots and workers that become free, and tokens from refills.

Rows are runs (with replicas: run * replicas + replica); every method takes the rows that it applies to, each once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hummingbird.capacity.system import Draws, Floats, Ints, System
from hummingbird.errors import ConfigError

_MOST_BYTES = 4 << 30  # of the array of all refills' ends


class Start(NamedTuple):
    """The state with which a simulation begins.

    slots: (rows, slots), the times at which slots become free. ends: (rows, any), the last ends of refills that have
    begun, ascending. How long before the first arrival a time lies makes no difference. begun: number of refills that
    have begun. taken: number of tokens that were taken. run: for each row, the row of the array of refills' seconds to
    use.
    """

    slots: Floats
    ends: Floats
    begun: Ints
    taken: Ints
    run: Ints

    @classmethod
    def idle(cls, system: System, rows: int) -> Start:
        """Return the idle state: no requests, and `System.stored` tokens in store."""
        slots, ends = (np.full((rows, places), -math.inf) for places in (system.slots, system.workers))
        nothing = np.zeros(rows, dtype=np.int64)
        return cls(slots, ends, nothing, nothing, np.arange(rows))


class Workers:
    """Places of one kind, such as slots, of all runs at once: for each place the time from which it is free.

    The times are an array (rows, places), with a row for each run and replica.
    """

    def __init__(self, free: Floats) -> None:
        self.free = free.copy()

    def first(self, rows: Ints) -> tuple[Ints, Floats]:
        """Return, for each of these rows, the index of the place that becomes free first, and the time at which it
        does.
        """
        place = self.free[rows].argmin(1) if self.free.shape[1] > 1 else np.zeros_like(rows)
        return place, self.free[rows, place]

    def take(self, rows: Ints, until: Floats) -> None:
        """Occupy, in each of these rows, the place that becomes free first; it is free again at the times `until`."""
        self.free[rows, self.first(rows)[0]] = until


class NoTokens:
    """The supply of tokens (used up by requests) if requests need none; the base class of the other supplies."""

    ahead = False  # made before a request needs them

    def ready(self, rows: Ints, begin: Floats, need: Ints) -> Floats:
        """Return the times at which requests have all their tokens.

        rows: the array row of each request, which stands for a run and a replica in it. begin: the times at which the
        requests get their slots. need: how many tokens each takes.
        """
        return begin

    def take(self, rows: Ints, need: Ints, at: Floats) -> None:
        """Take tokens out of the stores of these array rows. A row stands for one replica in one run.

        need: how many tokens. at: the times, in seconds, from which their places in the stores are free again.
        """

    def ends(self, before: int = 0) -> Floats:
        """Return the times at which refills, which make tokens, ended, (rows, before + refills), ascending; inf for
        none.

        before: how many refills from before the start of the simulation to include; their ends come first.
        """
        return np.empty((0, 0))

    def last(self, count: int) -> Floats:
        """Return the times at which the `count` refills that began last end, (rows, count). A refill makes tokens."""
        return np.empty((0, 0))


class OnDemandRefill(NoTokens):
    """The supply of tokens made on demand: the refills that make a request's tokens run one after another in its
    slot.
    """

    def __init__(self, system: System, seconds: Floats, start: Start) -> None:
        self.per_refill = system.per_refill
        self.seconds, self.run = seconds, start.run
        self.done = start.begun.copy()

    def _refills(self, need: Ints) -> Ints:
        return -(-need // self.per_refill)

    def ready(self, rows: Ints, begin: Floats, need: Ints) -> Floats:
        refills, end = self._refills(need), begin
        for number in range(int(refills.max())):
            more = self.seconds[self.run[rows], (self.done[rows] + number) % self.seconds.shape[1]]
            end = np.where(number < refills, end + more, end)
        return end

    def take(self, rows: Ints, need: Ints, at: Floats) -> None:
        self.done[rows] += self._refills(need)


class SimulatedStore(NoTokens):
    """The supply of tokens from a store that workers keep full by refills.

    Tokens are counted as integers, without rounding.
    """

    ahead = True

    def __init__(self, system: System, seconds: Floats, most: Ints, start: Start) -> None:
        """Begin the first refills. seconds: of every refill. most: tokens that each row may take in all."""
        self.system, self.seconds, self.run = system, seconds, start.run
        rows, self.lead = start.ends.shape
        room = start.taken + most + system.store - system.stored
        refills = int((room // system.per_refill - start.begun).max(initial=0))
        if 8 * rows * (refills + self.lead) > _MOST_BYTES:
            hint = "fewer runs, or a store that is full at first"
            raise ConfigError(
                f"{refills} refills in each of {rows} runs take too much memory", where="tokens", hint=hint
            )
        # Column base + j: the j-th smallest end. The first columns: earlier ends, or idle workers at the beginning.
        self.ready_at = np.full((rows, self.lead + refills), math.inf)
        self.ready_at[:, : self.lead] = start.ends
        self.base = self.lead - start.begun
        self.begun, self.taken = start.begun.copy(), start.taken.copy()
        self._refill(np.arange(rows), np.zeros(rows))

    def ends(self, before: int = 0) -> Floats:
        return self.ready_at[:, self.lead - before :]

    def last(self, count: int) -> Floats:
        columns = (self.base + self.begun)[:, None] + np.arange(-count, 0)
        return np.take_along_axis(self.ready_at, columns, axis=1)

    def ready(self, rows: Ints, begin: Floats, need: Ints) -> Floats:
        last = self.taken[rows] + need - 1 - self.system.stored  # the last token, counted from the first made
        refill = np.maximum(last // self.system.per_refill, -1)
        return np.maximum(begin, self.ready_at[rows, self.base[rows] + refill])

    def take(self, rows: Ints, need: Ints, at: Floats) -> None:
        self.taken[rows] += need
        self._refill(rows, at)

    def _refill(self, rows: Ints, at: Floats) -> None:
        """Begin the refills for which stores have room from the times `at` on. rows: array rows, one for each store."""
        system, r = self.system, self.system.workers
        while rows.size:
            room = self.taken[rows] + system.store - system.stored
            due = room // system.per_refill > self.begun[rows]
            if not due.all():
                rows, at = rows[due], at[due]
            j = self.begun[rows]
            column = self.base[rows] + j
            begin = np.maximum(at, self.ready_at[rows, column - r])  # the r-th largest end: a worker is free
            end = begin + self.seconds[self.run[rows], j % self.seconds.shape[1]]
            self.ready_at[rows, column] = end
            if r > 1:  # only the r - 1 other refills under way may end later than this one
                columns = column[:, None] + np.arange(1 - r, 1)
                self.ready_at[rows[:, None], columns] = np.sort(self.ready_at[rows[:, None], columns], axis=1)
            self.begun[rows] = j + 1


def tokens_of(system: System, seconds: Draws, need: Ints, start: Start) -> NoTokens:
    """Make the supply of tokens for these rules. seconds.refill: seconds of every refill.

    need: tokens of each request.
    """
    if system.tokens is None or seconds.refill is None:
        return NoTokens()
    start = start._replace(run=start.run % len(seconds.refill))
    if not system.tokens:
        return OnDemandRefill(system, seconds.refill, start)
    return SimulatedStore(system, seconds.refill, np.repeat(need.sum(1), system.replicas), start)
