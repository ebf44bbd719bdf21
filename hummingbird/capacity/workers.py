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
    """The state with which a simulation begins; its arrays have a row for each replica of each run.

    slots: (rows, slots), the times at which slots become free. ends: (rows, n), the ends of the n refills that began
    last, ascending. A time before the first arrival may be any such time, also -inf. begun: number of refills that have
    begun. taken: number of tokens that were taken. run: for each row, the row that it uses in the array of refills'
    seconds.
    """

    slots: Floats
    ends: Floats
    begun: Ints
    taken: Ints
    run: Ints

    @classmethod
    def idle(cls, system: System, rows: int) -> Start:
        """Return the idle state of `rows` replicas: no requests, and `System.stored` tokens in each store."""
        slots, ends = (np.full((rows, places), -math.inf) for places in (system.slots, system.workers))
        nothing = np.zeros(rows, dtype=np.int64)
        return cls(slots, ends, nothing, nothing, np.arange(rows))


class Workers:
    """Places of one kind, such as slots or workers, of all runs at once: when each place becomes free.

    The times are an array (rows, places), with a row for each run and replica.
    """

    def __init__(self, free: Floats) -> None:
        self.free = free.copy()

    def first(self, rows: Ints) -> tuple[Ints, Floats]:
        """Find in each of these rows the place that becomes free first; return the places' indices, and the times.

        rows: array rows, one for each replica of each run. Both results are arrays (rows,).
        """
        place = self.free[rows].argmin(1) if self.free.shape[1] > 1 else np.zeros_like(rows)
        return place, self.free[rows, place]

    def take(self, rows: Ints, until: Floats) -> None:
        """Occupy in each of these rows the place that becomes free first, until the time that `until` has
        for this row.
        """
        self.free[rows, self.first(rows)[0]] = until


class NoTokens:
    """Gives requests their tokens in the recurrence, if they need none; also the base class of the other ways to get
    tokens.

    Its arrays have a row for each replica (copy of the service) of each run.
    """

    ahead = False  # made before a request needs them

    def ready(self, rows: Ints, begin: Floats, need: Ints) -> Floats:
        """Return the time at which each request has its slot and all its tokens; here this is `begin`, as requests need
        no tokens.

        rows: for each request, the array row of its run and replica. begin: the times at which the requests get their
        slots. need: how many tokens each takes.
        """
        return begin

    def take(self, rows: Ints, need: Ints, at: Floats) -> None:
        """Take one request's tokens out of the store of each of these rows; here nothing is done, as there is no store.

        rows: array rows, one for each replica of each run. need: how many tokens each request takes. at: the times, in
        seconds, from which the places of these tokens in the stores are free again.
        """

    def ends(self, before: int = 0) -> Floats:
        """Return when refills (runs that make tokens) ended: (rows, before + refills), ascending; inf fills the rest of
        a row.

        A row stands for one replica of one run. before: how many refills that began before the simulation to include;
        their ends come first. Here the result is empty, as there are no refills.
        """
        return np.empty((0, 0))

    def last(self, count: int) -> Floats:
        """Return the times at which the last `count` refills that began end: (rows, count), ascending.

        A refill is a run that makes tokens; a row stands for one replica of one run. Here the result is empty, as there
        are no refills.
        """
        return np.empty((0, 0))


class OnDemandRefill(NoTokens):
    """Makes each request's tokens on demand: the refills for them run one after another in the request's slot."""

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
    """Gives requests tokens from a store; workers run refills, which make tokens, as soon as the store has room for
    them.

    Each replica has a store of its own. Tokens are counted as integers, without rounding.
    """

    ahead = True

    def __init__(self, system: System, seconds: Floats, most: Ints, start: Start) -> None:
        """Begin the first refills of all stores.

        seconds: how long every refill takes, in order of start. most: how many tokens each row (a replica of a run) may
        take in all. start: the state to begin with. Raises ConfigError if the times of all refills would take too much
        memory.
        """
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
        """Begin all refills for which the stores of these rows have room from the times `at` on.

        rows: array rows, one for each store. at: one time for each of these rows, in seconds.
        """
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
    """Make the object that gives tokens to requests by the rules `system`.

    It is a `NoTokens` (requests need none), an `OnDemandRefill` (made when a request needs them) or a `SimulatedStore`.
    seconds: has the seconds of every refill. need: how many tokens each request takes, (runs, requests). start: the
    state to begin with.
    """
    if system.tokens is None or seconds.refill is None:
        return NoTokens()
    start = start._replace(run=start.run % len(seconds.refill))
    if not system.tokens:
        return OnDemandRefill(system, seconds.refill, start)
    return SimulatedStore(system, seconds.refill, np.repeat(need.sum(1), system.replicas), start)
