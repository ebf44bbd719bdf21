"""Material for the slices of a run: one background thread makes it ahead of its use, within a bound on memory.

A *supply* is the material of one slice: consecutive requests, each with its turn. The thread serves the supplies in the
order of their reservation, with two exceptions. A supply that a caller waits for comes first. Supplies in use come
before the others, and among them the one with the fewest bytes ready. Two slices whose requests alternate cannot block
each other, whatever the bound: material that a caller waits for is made even if the memory is full.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from hummingbird.errors import DealerError
from hummingbird.kernels.devices import on_this_card
from hummingbird.mpc.correlations.request import Material, ReceiverTurn, Request

BUFFER_BYTES = 256 << 20  # bytes of shares made and not handed out; a request that a caller waits for may exceed it
CALL_BYTES = 32 << 20  # bytes of shares that one call of `make` makes: an urgent supply waits for little else
CALL_REQUESTS = 256  # in one call, of at most a few hundred bytes of JSON each: well below a message's 4 MiB
_LEAVE = 2.0  # seconds for the thread to end


Requests = Sequence[Request[Any]]
Make = Callable[[Sequence[ReceiverTurn], Requests], Iterator[Material]]


class SupplyState:
    """The state of one supply in the background thread: how much of its material is made, and how much is taken.

    number: how many supplies were reserved before. turns, requests: the slice's requests in order, each with its
        receiver turn. make: yields their material, as in `Supplies`.
    """

    def __init__(self, number: int, turns: Sequence[ReceiverTurn], requests: Requests, make: Make) -> None:
        self.number, self.turns, self.requests, self.make = number, list(turns), list(requests), make
        self.sizes = [request.share_bytes for request in requests]
        self.ready: deque[Material] = deque()
        self.made = self.taken = 0
        self.wanted = self.dropped = False

    @property
    def held(self) -> int:
        return sum(self.sizes[self.taken : self.made])

    def drop(self) -> None:
        self.dropped = True  # no lock: the garbage collector may call this anywhere


class Supplies:
    """The background thread that makes material ahead of its use. `reserve(turns, requests)` queues requests for it.

    make: takes the turns of consecutive requests and the requests, and yields the material of each. It runs in the
        thread, never twice at a time. Its first error ends the thread, and is raised by the next call that waits for
        material.
    where: the name shown in errors.
    patience: takes a number of bytes of shares, and returns how many seconds to wait for them before the thread counts
        as stuck.
    cancel: takes nothing; `close` calls it to end a `make` that waits.
    buffer_bytes: bound on the bytes of shares that are made and not handed out.
    call_bytes: bound on the bytes of shares that one call of `make` makes.

    A subclass may choose in another way what the thread makes next (`next_job`), and how often an idle thread calls
    `idle`.
    """

    pulse: float | None = None  # seconds between two calls of `idle`; None: it is not called
    late = "is this machine overloaded?"  # the hint of the error for material that does not come in time

    def __init__(
        self,
        make: Make,
        where: str,
        patience: Callable[[int], float],
        cancel: Callable[[], None] = lambda: None,
        buffer_bytes: int = BUFFER_BYTES,
        call_bytes: int = CALL_BYTES,
    ) -> None:
        self._make, self._where, self._patience, self._cancel = make, where, patience, cancel
        self._buffer, self._call = buffer_bytes, min(call_bytes, buffer_bytes)
        self._changed = threading.Condition()
        self._queue: list[SupplyState] = []  # supplies with material that is still to be made or taken
        self._reserved = 0  # supplies so far
        self._steps = 0  # requests made so far
        self._failed: BaseException | None = None
        self._over = ""  # why no more material is handed out
        self.reason = ""  # the text of the error that ended the thread
        self._thread: threading.Thread | None = None
        self.most_held = 0  # bytes of shares: the maximum so far

    def reserve(self, turns: Sequence[ReceiverTurn], requests: Requests, make: Make | None = None) -> Supply:
        """Begin to make the material of these requests in the background; return it as a supply.

        turns: the receiver turn of each request: which party gets its correction.
        make: the function that makes this material, as the constructor's `make`; None: the one given to the
            constructor.
        """
        with self._changed:
            work = SupplyState(self._reserved, turns, requests, make or self._make)
            self._reserved += 1
            self._queue.append(work)
            self._changed.notify_all()
        self.begin()
        return Supply(self, work)

    def begin(self) -> None:
        """Start the thread, unless it runs."""
        with self._changed:
            if self._thread is None and not self._over:
                run = on_this_card(self._run)
                thread = threading.Thread(target=run, name="hummingbird-supplies", daemon=True)
                thread.start()
                self._thread = thread  # set after the start: `close` joins it, also if a signal raises here

    def correlation(self, work: SupplyState, request: Request[Any]) -> Material:
        """Return the material of a supply's next request, once it is made. work: the supply's state.

        request: must be the one that was reserved at this place, else DealerError. Also raises the thread's error, and
            DealerError if the material does not come in time.
        """
        expected = work.requests[work.taken] if work.taken < len(work.requests) else "nothing more"
        if request != expected and str(request) != str(expected):  # texts take time, and are equal for tuples and lists
            raise DealerError(
                f"a request for {request}, but {expected} was reserved at this place",
                where=self._where,
                hint="a net asks for the same on every input of one shape; does a layer of its own look at values?",
            )
        with self._changed:
            work.wanted = True
            self._changed.notify_all()
            try:
                self._wait(work)
            finally:
                work.wanted = False
            material = work.ready.popleft()
            work.taken += 1
            self._changed.notify_all()  # memory is free again
        return material

    def complete(self, supply: Supply) -> None:
        """Wait until all material of a supply is made and on its device, however much memory it takes.

        Raises the thread's error, and DealerError if the material does not come in time.
        """
        work = supply.work
        with self._changed:
            held = sum(other.held for other in self._queue)
            self._buffer = max(self._buffer, held + sum(work.sizes[work.made :]))
            self._changed.notify_all()
            self._wait(work, len(work.requests) - work.taken)
        for material in work.ready:
            if material.ready is not None:
                material.ready.wait()

    def _wait(self, work: SupplyState, count: int = 1) -> None:
        """Wait until the material of `count` more requests of a supply can be taken. work: the supply's state.

        Raises the error that ended the thread. Raises DealerError if the thread was closed, or if it makes nothing for
        longer than the constructor's `patience` says.
        """
        steps, limit = self._steps, self._patience(self._call + work.sizes[work.taken])
        deadline = time.monotonic() + limit
        while len(work.ready) < count:
            if self._failed is not None:
                error, self._failed, self._over = self._failed, None, "an earlier request failed"
                raise error
            if self._over:
                raise DealerError(self._over, where=self._where, hint="start the run again")
            if steps != self._steps:
                steps, deadline = self._steps, time.monotonic() + limit
            if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                raise DealerError(f"no correlated randomness for {limit:.0f} s", where=self._where, hint=self.late)

    def close(self, reason: str = "the client is closed") -> None:
        """End the thread, waiting 2 s at most, and drop the material. reason: the message of later errors."""
        with self._changed:
            self._over = self._over or reason
            self._changed.notify_all()
        self._cancel()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_LEAVE)
        with self._changed:
            for work in self._queue:
                work.ready.clear()
            self._queue.clear()

    # The thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                if (job := self.next_job()) is None:
                    return
                work, start, count = job
                some = slice(start, start + count)
                for material in work.make(work.turns[some], work.requests[some]):
                    with self._changed:
                        if self._over:
                            return
                        work.ready.append(material)
                        self._steps += 1
                        self._changed.notify_all()
                    del material
            except BaseException as error:  # noqa: BLE001 - `_wait` raises it in the caller
                with self._changed:
                    if not self._over:
                        self._failed, self.reason = error, str(error)
                    self._over = self._over or "an earlier request failed"
                    self._changed.notify_all()
                return

    def idle(self) -> None:
        """Do nothing; called every `pulse` seconds while the thread has nothing to do."""

    def next_job(self) -> tuple[SupplyState, int, int] | None:
        """Choose the thread's next work: return a supply's state, the index of its first request to make, and how many.

        Waits until there is work and memory for it. Returns None once the thread is to end.
        """
        while not self._over:
            if (job := self._chosen()) is not None:
                return job
            self.idle()
        return None

    def _chosen(self) -> tuple[SupplyState, int, int] | None:
        """Return the thread's next work; None once the thread is to end, or after `pulse` seconds without work."""
        with self._changed:
            while not self._over:
                self._queue = [w for w in self._queue if not w.dropped and w.taken < len(w.requests)]
                held = sum(work.held for work in self._queue)
                if (chosen := self._choose()) is not None:
                    start, count = chosen.made, self._fitting(chosen, self._buffer - held)
                    if count:
                        chosen.made += count
                        self.most_held = max(self.most_held, held + sum(chosen.sizes[start : start + count]))
                        return chosen, start, count
                if not self._changed.wait(self.pulse):
                    return None
            return None

    def _choose(self) -> SupplyState | None:
        open_ends = [work for work in self._queue if work.made < len(work.requests)]
        begun = [work for work in open_ends if work.taken or work.wanted]
        if begun:
            return min(begun, key=lambda work: (not (work.wanted and work.made == work.taken), work.held))
        return open_ends[0] if open_ends else None

    def _fitting(self, work: SupplyState, room: int) -> int:
        """Return how many of a supply's next requests the thread makes in its next call of `make`.

        work: the supply's state.
        room: bytes that the shares of these requests may have together.
        If a caller waits for this supply and nothing is ready, the number is at least 1, whatever the room.
        """
        left, count = min(room, self._call), 0
        for size in work.sizes[work.made : work.made + CALL_REQUESTS]:
            if size > left:
                break
            left, count = left - size, count + 1
        # A request that is larger than a call may be is made alone.
        alone = not count and work.sizes[work.made] <= room
        return max(count, int(alone or (work.wanted and work.made == work.taken)))


class Supply:
    """The material of one slice, made in the background; `correlation(request)` hands it out.

    The requests must come in the order in which they were reserved.

    supplies: the background thread. work: the state of this supply in it.
    """

    def __init__(self, supplies: Supplies, work: SupplyState) -> None:
        self._supplies, self.work = supplies, work
        weakref.finalize(self, work.drop)  # a slice that is given up keeps no memory

    def correlation(self, request: Request[Any]) -> Material:
        """Return this party's shares for the next request, waiting until they are made.

        Raises DealerError if `request` is not the one that was reserved at this place, or if the shares do not come in
        time; also raises the error that ended the background thread.
        """
        started = time.perf_counter()
        material = self._supplies.correlation(self.work, request)
        return replace(material, waiting_seconds=time.perf_counter() - started)


class StepSupplies:
    """The material of a conversation, step after step: that of the next step is made while a step runs.

    begin: takes a step's number, begins to make its material, and returns it as a supply.
    count: number of steps; None if it is not known: then no material is made ahead.
    """

    def __init__(self, begin: Callable[[int], Supply | OnDemand], count: int | None) -> None:
        self._begin, self._count = begin, count
        self._ahead: deque[Supply | OnDemand] = deque()
        self._begun = 0
        if count is not None:
            self._go_ahead()

    def _go_ahead(self) -> None:
        if self._count is None or self._begun < self._count:
            self._ahead.append(self._begin(self._begun))
            self._begun += 1

    def next(self) -> Supply | OnDemand:
        """Return the supply of the next step, and begin to make the material of the one behind it."""
        self._go_ahead()
        if not self._ahead:
            raise DealerError(f"all {self._begun} steps of this conversation are used", hint="begin another one")
        return self._ahead.popleft()

    def close(self) -> None:
        """Give up the material of the steps that are left."""
        self._ahead.clear()
        self._count = self._begun


class OnDemand:
    """A supply for a slice whose requests are not known in advance: material is made when the slice asks for it.

    correlation: takes a request, makes its material and returns it.
    """

    def __init__(self, correlation: Callable[[Request[Any]], Material]) -> None:
        self.correlation = correlation
