"""The engine for phases that share no cores and links: latencies by a recurrence over requests, for all runs at once.

    B_j = max(a worker is free, B_{j-1}, G of the request that took token j - K)     E_j = B_j + T_off,j
    R_i = i-th smallest E        S_i = max(A_i, a slot is free)       G_i = max(S_i, R_i)       C_i = G_i + T_on,i

Every event happens with the last of its causes (a max-plus recurrence: F. Baccelli et al., "Synchronization and
Linearity", 1992), so each request is a handful of numpy calls on vectors over the runs, or over the pieces of long
runs. Three facts keep the recurrence exact: a refill that has not begun when request i goes begins after that, so R_i
is known; of r workers the next is free at the r-th largest of the ends so far; and with tokens and slots assigned in
order of arrival, S and G ascend.

The recurrence does not model shared cores and links (events.py does), priorities, or slots that become free out of
order.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hummingbird.capacity.system import GAVE_UP, REJECTED, SERVED, Draws, Floats, Ints, Load, LoadOutcome, System
from hummingbird.capacity.workers import Start, Workers, tokens_of
from hummingbird.errors import ConfigError, InputError

Fates = NDArray[np.int8]
T = TypeVar("T", bound=np.generic)


def simulate(system: System, load: Load, seconds: Draws) -> LoadOutcome:
    """Follow every request of `load` through a service with the rules `system`, by a recurrence; return the outcome.

    seconds: for each run of a phase its seconds; an online phase counts once for each request that the arrival brings.
    Raises ConfigError for rules that this recurrence does not follow exactly, and for a store too small for a request.
    10^6 requests take about 0.5 s of one core, in one run or in many. They take half a minute in one run whose queue
    never empties, with users, or where requests are turned away or join the shortest of several queues.
    """
    need = system.per_request * load.sizes()
    system.check_tokens(need)
    _check(system, load, seconds)
    if system.batch > 1:
        return BatchReplay(system, load, seconds, need).run()
    found = _in_pieces(system, load, seconds, need) if pieces_of(system, load) > 1 else None
    return Singles(system, load, seconds, need).run() if found is None else found


def _check(system: System, load: Load, seconds: Draws) -> None:
    if system.tokens is not None and seconds.refill is None:
        raise InputError("tokens without seconds of a refill", where="refill")
    varied = bool(np.ptp(seconds.request)) or seconds.session is not None or system.batch > 1
    if system.kept and system.slots > 1 and varied:
        hint = "use the event engine, one slot, or a constant online phase"
        raise ConfigError("tokens kept until requests end, which end out of order", where="kept", hint=hint)
    system.check_batches(load, seconds)


# Requests of every run, one after the other ---------------------------------------------------------------------------


class Replay:
    """Base class of the recurrence engine: it follows the requests of all runs at once, through slots and tokens.

    It stores when each request arrived, began, had its tokens, and left. Its arrays have a row for each replica (copy
    of the service) of a run: row number run * replicas + replica. need: tokens that each request takes, (runs,
    requests). start: the state to begin with; None: idle.
    """

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
    """Follows requests that are served one at a time, in all simulated runs at once: `run` returns the `LoadOutcome`.

    It serves request 0 of every simulated run first, then request 1 of every one, and so on.
    """

    def __init__(self, system: System, load: Load, seconds: Draws, need: Ints, start: Start | None = None) -> None:
        super().__init__(system, load, seconds, need, start)
        rows = self.runs * system.replicas
        self.patience = None if load.patience is None else _by_request(load.patience, load)
        self.queue = None if system.queue is None else Workers(np.full((rows, max(1, system.queue)), -math.inf))
        self.line = np.full(rows, -math.inf)  # when the last request left the line for tokens
        self.present = _Present(self.runs, system.replicas, seconds.picks) if system.replicas > 1 else None
        self.asking = _Open(load) if load.due is not None else _Users(load, self.every)

    def run(self) -> LoadOutcome:
        for i in range(self.requests):
            at = self.asking.next(i)
            rows = self.every if self.present is None else self.present.join(i, at)
            left = self._serve(i, rows, at)
            self.asking.told(i, left, self.fate[i])
            if self.present is not None:
                self.present.until(rows, at, left)
        return self.outcome()

    def _serve(self, i: int, rows: Ints, at: Floats) -> Floats:
        """Serve request i of every run, or turn it away; returns the times at which these requests leave.

        rows: for each run, the array row of the replica that the request joins. at: the request's arrival time in each
        run.
        """
        system, need = self.system, self.need[i]
        place, free = self.slots.first(rows)
        begin = np.maximum(at, free)
        go = np.maximum(self.tokens.ready(rows, begin, need), self.line[rows])  # the line for tokens is one
        end = go + self.online[i] * np.where(rows % system.replicas, 1.0, system.slow)
        if self.session is not None:
            end = end + np.where(self.asking.first(i), self.session[i], 0.0)
        self.arrived[i], self.began[i], self.went[i], self.left[i] = at, begin, go, end
        if self.queue is None and self.patience is None:
            self.slots.free[rows, place] = end
            self.tokens.take(rows, need, end if system.kept else go)
            return end
        return self._choose(i, rows, place)

    def _choose(self, i: int, rows: Ints, place: Ints) -> Floats:
        """Decide for each run whether request i is served, is rejected because the queue is full, or leaves when its
        patience ends.

        rows: for each run, the array row of the replica that the request joins. place: the index of this replica's slot
        that becomes free first. Returns the times at which the requests leave.
        """
        system, at, begin, go = self.system, self.arrived[i], self.began[i], self.went[i]
        until = at + (math.inf if self.patience is None else self.patience[i])
        room = np.ones(len(rows), dtype=bool)
        if self.queue is not None:
            waiting = begin > at
            room = ~waiting | ((self.queue.first(rows)[1] <= at) & (system.queue != 0))
            held = room & waiting
            self.queue.take(rows[held], np.minimum(begin, until)[held])
        served = room & ((go if self.tokens.ahead else begin) <= until)
        slot = room & (begin <= until)  # it got a slot, and may have given up while blocked
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
    """Follows requests that are served in batches, in all simulated runs at once: `run` returns the `LoadOutcome`.

    Each pass of its loop serves the next batch of every simulated run: it computes when the batch begins and ends.
    """

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
    """Arrivals in the recurrence engine at the times `Load.due`, which do not depend on when requests were answered."""

    def __init__(self, load: Load) -> None:
        assert load.due is not None
        self.due = np.ascontiguousarray(load.due.T)
        self.marks = None if load.first is None else _by_request(load.first, load)

    def next(self, i: int) -> Floats:
        """Return the time at which request i arrives, in each run."""
        return self.due[i]

    def first(self, i: int) -> NDArray[np.bool_] | bool:
        """Return for each run whether request i begins a session: a bool array (runs,), or True if all requests do."""
        return True if self.marks is None else self.marks[i]

    def told(self, i: int, left: Floats, fate: Fates) -> None:
        """Receive the times at which request i of every run left, and its fate (served, rejected or gave up).

        Does nothing: arrivals at fixed times do not depend on them.
        """


class _Users(_Open):
    """Arrivals in the recurrence engine of users, who wait for each answer, and think before they ask again.

    The next request of each run comes from the user who asks first.
    """

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
    """Knows how many requests each replica (copy of a service) of each run has, to send new ones where fewest are.

    It stores the times at which requests leave: an array (runs, replicas, n) with room for the n requests that a
    replica has at one time, at most. picks: as `Draws` has them.
    """

    def __init__(self, runs: int, replicas: int, picks: Ints | None) -> None:
        self.base, self.picks = np.arange(runs) * replicas, picks
        self.leaves = np.full((runs, replicas, 1), -math.inf)

    def join(self, request: int, at: Floats) -> Ints:
        """Return for each run the array row of the replica (copy of the service) with the fewest requests at time `at`.

        If several have equally few, it is the first. request: its number.
        """
        if self.picks is None:
            return self.base + (self.leaves > at[:, None, None]).sum(2).argmin(1)
        among = self.picks[:, request]
        leaves = np.take_along_axis(self.leaves, among[:, :, None], 1)
        fewest = (leaves > at[:, None, None]).sum(2).argmin(1)
        return self.base + np.take_along_axis(among, fewest[:, None], 1)[:, 0]

    def until(self, rows: Ints, at: Floats, left: Floats) -> None:
        """Note for each run one more request at a replica, from the time `at` to the time `left`, in seconds.

        rows: for each run, the array row of the replica that the request has joined. A request that has left by `at`
        makes room for this one.
        """
        flat = self.leaves.reshape(-1, self.leaves.shape[2])
        place = flat[rows].argmin(1)
        if (flat[rows, place] > at).any():
            more = np.full(self.leaves.shape, -math.inf)
            self.leaves = np.concatenate([self.leaves, more], axis=2)
            return self.until(rows, at, left)
        flat[rows, place] = left


# Long runs in pieces --------------------------------------------------------------------------------------------------
#
# A long run is cut into pieces that are simulated side by side, as vectors over pieces in place of vectors over runs.
#
# At first every piece but the first begins without requests and with a full store. In each further round a piece begins
# with the state in which the piece before it ended, until no piece's beginning changes. By induction from the first
# piece on, the result equals that of one piece after the other, bit for bit. A queue that empties forgets its
# beginning, so that two or three rounds suffice; where it never empties, as many rounds are needed as there are pieces,
# and nothing is gained.
#
# Source: the time-parallel simulation of Y.-B. Lin and E. Lazowska, "A Time-Division Algorithm for Parallel
# Simulation", ACM Transactions on Modeling and Computer Simulation, 1991.

_ROWS = 1000  # most pieces at a time: more cost more than they save
_SHORTEST = 500  # fewest requests of a piece: a shorter piece forgets its beginning too seldom
_FEWEST = 8  # pieces of a run below which cutting does not pay
_ROUNDS = 100


def pieces_of(system: System, load: Load) -> int:
    """Choose the number of pieces into which each run is cut, so that all pieces are simulated at once.

    It is 1, so that runs are not cut, if they are too short or too many, or if the times of slots and refills are not
    the only state of a run: with users, a bounded queue, patience, replicas or batches.
    """
    turned_away = system.queue is not None or load.patience is not None
    if load.due is None or turned_away or system.replicas > 1 or system.batch > 1:
        return 1
    runs, requests = load.shape
    count = min(requests // _SHORTEST, _ROWS // runs, 4 * requests // _window(system))
    return count if count >= _FEWEST else 1


def _window(system: System) -> int:
    """Return how many ends of refills must be known at the beginning of a piece of a run.

    They are those of the last refills that began: as many as fill the store, and one for each worker. From them the
    piece can be simulated.
    """
    return system.store // system.per_refill + 1 + system.workers


def _in_pieces(system: System, load: Load, seconds: Draws, need: Ints) -> LoadOutcome | None:
    """Simulate long runs by cutting each into pieces that are simulated all at once; return the outcome.

    seconds: those of every run of a phase. need: tokens that each request takes, (runs, requests). Returns None if
    after `_ROUNDS` repetitions some piece does not begin in the state in which the piece before it ended.
    """
    return _Pieces(system, load, seconds, need).run()


class _Pieces:
    """A simulation of long runs. It cuts each run into pieces, and simulates all pieces at once.

    Its arrays have a row for each piece: row number run * pieces + piece, where `pieces` is the number of pieces in a
    run. need: tokens that each request takes, (runs, requests).
    """

    def __init__(self, system: System, load: Load, seconds: Draws, need: Ints) -> None:
        assert load.due is not None
        self.system, self.seconds = system, seconds
        self.runs, self.requests = load.shape
        self.length = -(-self.requests // pieces_of(system, load))
        self.each = -(-self.requests // self.length)
        self.rows, self.window = self.runs * self.each, _window(system)
        self.due = self._cut(load.due, "edge")  # requests added at the end need no tokens
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
        self.made: list[Floats] = [np.empty(0)] * self.rows  # refill ends, after those of refills under way before

    def _cut(self, values: np.ndarray, mode: str = "constant") -> np.ndarray:
        added = self.each * self.length - self.requests
        return np.pad(values, ((0, 0), (0, added)), mode=mode).reshape(self.rows, self.length)  # type: ignore[call-overload]

    def _before(self) -> tuple[Ints, Ints]:
        """Count, for each piece, the refills that begin and the tokens that are taken in its run before the piece
        begins.

        Both numbers follow from the requests' tokens alone, without any times.
        """
        system = self.system
        needs = self.need if system.store else -(-self.need // system.per_refill)
        sums = needs.sum(1).reshape(self.runs, self.each)
        before = (np.cumsum(sums, axis=1) - sums).reshape(-1)
        if not system.store:
            return before, np.zeros_like(before)
        begun = (before + system.store - system.stored) // system.per_refill
        return np.where(self.first_piece, 0, begun), before

    def run(self) -> LoadOutcome | None:
        """Simulate pieces again and again, until each begins in the state in which the piece before it ended; return
        the outcome.

        Returns None if this is not reached after `_ROUNDS` repetitions.
        """
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
        """Simulate some pieces of runs, each from its own state; return their states at the end, in the form of
        `state`.

        rows: numbers of the pieces. state: float64 (pieces, slots + ends), a row for each of these pieces: the times at
        which slots become free, and then the last ends of refills.
        """
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
        """Return the times at which refills (runs that make tokens) ended, (runs, refills), ascending; inf for none.

        They are merged from the pieces of each run, and include refills that begin in one piece and end in the next.
        """
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
