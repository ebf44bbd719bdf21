"""Long runs in pieces that are simulated side by side, so that a vector over the pieces does what one over runs does.

Every piece but the first begins as if nobody were there and the store full. Then each begins anew with the state in
which the piece before it ended, until no beginning changes: by induction from the first piece on, all are as if they
had been simulated one after the other, bit for bit. A queue that empties forgets how it began, so that two or three
rounds do; where it never empties that would be as many as there are pieces, and nothing is won.

Source: the time-parallel simulation of Y.-B. Lin and E. Lazowska, "A Time-Division Algorithm for Parallel Simulation",
ACM Transactions on Modeling and Computer Simulation, 1991.
"""

from __future__ import annotations

import math

import numpy as np

from hummingbird.capacity.replay import Singles
from hummingbird.capacity.system import SERVED, Draws, Floats, Ints, Load, LoadOutcome, System
from hummingbird.capacity.workers import Start

_ROWS = 1000  # pieces at a time: more cost more than they save
_SHORTEST = 500  # requests of a piece: fewer forget too little
_FEWEST = 8  # pieces of a run that are worth it
_ROUNDS = 100


def of_each(system: System, load: Load) -> int:
    """Pieces to cut each run into; 1 where a state is more than slots and refills, or too large for so few requests."""
    turned_away = system.queue is not None or load.patience is not None
    if load.due is None or turned_away or system.replicas > 1 or system.batch > 1:
        return 1
    runs, requests = load.shape
    count = min(requests // _SHORTEST, _ROWS // runs, 4 * requests // _window(system))
    return count if count >= _FEWEST else 1


def _window(system: System) -> int:
    """Ends of refills that a state holds: of all tokens in store, and of all workers."""
    return system.store // system.per_refill + 1 + system.workers


def simulate(system: System, load: Load, seconds: Draws, need: Ints) -> LoadOutcome | None:
    """Follow every request of `load` through `system`, as `recurrence.simulate` does; None where nothing is won."""
    return _Pieces(system, load, seconds, need).run()


class _Pieces:
    """All pieces; row = run * pieces + piece."""

    def __init__(self, system: System, load: Load, seconds: Draws, need: Ints) -> None:
        assert load.due is not None
        self.system, self.seconds = system, seconds
        self.runs, self.requests = load.shape
        self.length = -(-self.requests // of_each(system, load))
        self.each = -(-self.requests // self.length)
        self.rows, self.window = self.runs * self.each, _window(system)
        self.due = self._cut(load.due, "edge")  # what is added at the end asks for nothing
        self.need = self._cut(need)
        self.request = self._cut(np.broadcast_to(seconds.request, load.shape))
        whole = {"first": load.first, "session": seconds.session}
        self.marks = {
            name: None if values is None else self._cut(np.broadcast_to(values, load.shape))
            for name, values in whole.items()
        }
        self.first_piece = np.arange(self.rows) % self.each == 0
        self.begun, self.taken = self._before()
        self.times = np.empty((4, self.rows, self.length))
        self.made: list[Floats] = [np.empty(0)] * self.rows  # ends of refills, and of those under way before them

    def _cut(self, values: np.ndarray, mode: str = "constant") -> np.ndarray:
        added = self.each * self.length - self.requests
        return np.pad(values, ((0, 0), (0, added)), mode=mode).reshape(self.rows, self.length)  # type: ignore[call-overload]

    def _before(self) -> tuple[Ints, Ints]:
        """Refills begun and tokens taken before each piece, which no time changes."""
        system = self.system
        needs = self.need if system.store else -(-self.need // system.per_refill)
        sums = needs.sum(1).reshape(self.runs, self.each)
        before = (np.cumsum(sums, axis=1) - sums).reshape(-1)
        if not system.store:
            return before, np.zeros_like(before)
        begun = (before + system.store - system.stored) // system.per_refill
        return np.where(self.first_piece, 0, begun), before

    def run(self) -> LoadOutcome | None:
        """Simulate pieces until all begin as the ones before them end; None where too many rounds do not get there."""
        state = np.repeat(self.due[:, :1], self.system.slots + self.window, axis=1)
        state[self.first_piece] = -math.inf
        todo = np.arange(self.rows)
        for _ in range(_ROUNDS):
            ended = self._simulate(todo, state[todo])
            after = np.flatnonzero(~self.first_piece[(todo + 1) % self.rows])
            following = todo[after] + 1
            ended = np.maximum(ended[after], self.due[following, :1])
            changed = (ended != state[following]).any(1)
            todo = following[changed]
            if not todo.size:
                return self._outcome()
            state[todo] = ended[changed]
        return None

    def _simulate(self, rows: Ints, state: Floats) -> Floats:
        """Simulate those pieces from a state; the one in which they end."""
        slots, system = self.system.slots, self.system
        start = Start(state[:, :slots], state[:, slots:], self.begun[rows], self.taken[rows], rows // self.each)
        first, session = (None if values is None else values[rows] for values in self.marks.values())
        draws = Draws(self.request[rows], self.seconds.refill, session)
        walk = Singles(system, Load(due=self.due[rows], first=first), draws, self.need[rows], start)
        found = walk.run()
        self.times[:, rows] = found.arrived, found.began, found.went, found.left
        ends = np.full((len(rows), self.window), -math.inf)
        if system.store:
            ends = walk.tokens.last(self.window)
            for row, values in zip(rows, walk.tokens.ends(before=system.workers - 1), strict=True):
                self.made[row] = values
        return np.hstack([np.sort(walk.slots.free, axis=1), ends])

    def _outcome(self) -> LoadOutcome:
        whole = self.times.reshape(4, self.runs, -1)[:, :, : self.requests]
        arrived, began, went, left = whole
        fate = np.full(arrived.shape, SERVED, dtype=np.int8)
        needs = self.need.reshape(self.runs, -1)[:, : self.requests]
        tokens = needs if self.system.tokens is not None else np.zeros_like(needs)
        return LoadOutcome(arrived, began, went, left, fate, tokens, self._refilled())

    def _refilled(self) -> Floats:
        """When each refill of every run ended: pieces tell of theirs, and how those under way before fall between."""
        if not self.system.store:
            return np.empty((0, 0))
        before = self.system.workers - 1
        made = [row[before:][np.isfinite(row[before:])] for row in self.made]
        count = self.begun + [len(ends) for ends in made]
        found = np.full((self.runs, count.max()), math.inf)
        for row, ends in enumerate(made):
            first, line = self.begun[row], found[row // self.each]
            late = min(before, first)
            under_way = self.made[row][before - late : before]
            np.copyto(line[first - late : first], under_way, where=under_way > self.due[row, 0])
            line[first : count[row]] = ends
        return found
