"""The requests of clients at one party: those that wait, their answers, and every id until its deadline has passed.

An id belongs to the client that used it first, with the bytes it came with: the same again waits for the same answer or
gets it once more, anything else under it is refused, and no id is computed twice. What waits, and how many ids are
known, is bounded for each client and in all; answers are kept while there is room. gRPC's threads wait here; the thread
that runs the batches takes shares out and puts answers in.
"""

from __future__ import annotations

import hashlib
import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hummingbird.errors import AccessError, HummingbirdError, InputError, OverloadError, PeerError
from hummingbird.serving.message import MAX_BYTES, MOST_SECONDS, Request

_LINGER = 5.0  # seconds for which an id is kept beyond its deadline: other parties' clocks run a little apart


@dataclass(frozen=True)
class Limits:
    """Bounds on what waits at a party; bytes are those of messages. answers, answer_bytes: kept for repeats. ids, and
    ids_each of one client: known at a time, each until its deadline.
    """

    requests: int = 512
    requests_each: int = 64  # of one client
    bytes: int = 256 << 20
    bytes_each: int = 2 * MAX_BYTES  # a client has two requests under way
    answers: int = 4096
    answer_bytes: int = 256 << 20
    ids: int = 1 << 18
    ids_each: int = 1 << 16


@dataclass(eq=False, repr=False)
class Entry:
    """A request that this party holds, or held."""

    owner: str
    digest: bytes  # of the message
    size: int
    ends: float  # monotonic time of its deadline
    request: Request | None  # None once it is computed or dropped
    outcome: bytes | HummingbirdError | None = None
    done: threading.Event = field(default_factory=threading.Event)
    waiters: int = 1  # calls that wait for the outcome


class Inbox:
    """Every method may be called from any thread. arrived: called, without the lock, with each request that is new."""

    def __init__(self, limits: Limits, arrived: Callable[[bytes, Entry], None]) -> None:
        self.limits, self._arrived = limits, arrived
        self._lock = threading.Lock()
        self._entries: dict[bytes, Entry] = {}
        self._ends: list[tuple[float, bytes]] = []
        self._answered: dict[bytes, int] = {}  # bytes of the answers that are kept, by id, the oldest first
        self._answer_bytes = 0  # of all of them
        self._ids: Counter[str] = Counter()  # that are known, by owner
        self._requests: Counter[str] = Counter()  # that wait, by owner
        self._bytes: Counter[str] = Counter()
        self._requests_all = self._bytes_all = 0  # that wait, of all owners
        self._shut: HummingbirdError | None = None

    def put(self, owner: str, message: bytes, request: Request, now: float | None = None) -> Entry:
        """The entry of a request, new or known. Raises AccessError, InputError, OverloadError, PeerError,
        and what `shut` was given.

        now: seconds since 1970 at this party; None: the time.
        """
        digest = hashlib.blake2b(message, digest_size=16).digest()
        left = request.deadline / 1e3 - (time.time() if now is None else now)
        with self._lock:
            self._forget()
            known = self._entries.get(request.id)
            if known is not None:
                return self._again(known, owner, digest)
            if self._shut is not None:
                raise self._shut.with_traceback(None)
            self._check(owner, len(message), left)
            entry = Entry(owner, digest, len(message), time.monotonic() + left, request)
            self._entries[request.id] = entry
            heapq.heappush(self._ends, (entry.ends + _LINGER, request.id))
            self._ids[owner] += 1
            self._waits(owner, 1, entry.size)
        self._arrived(request.id, entry)
        return entry

    def _waits(self, owner: str, requests: int, size: int) -> None:
        """Count so many more of an owner's."""
        self._requests[owner] += requests
        self._bytes[owner] += size
        self._requests_all += requests
        self._bytes_all += size

    def _again(self, known: Entry, owner: str, digest: bytes) -> Entry:
        if known.owner != owner:
            hint = "ids are 128 random bits: draw a fresh one for every request"
            raise AccessError("this id belongs to another client", where="request", hint=hint)
        if known.digest != digest:
            hint = "a repeat has the same bytes; another input needs a fresh id and fresh shares"
            raise InputError("this id is known with other shares", where="request", hint=hint)
        known.waiters += 1
        return known

    def _check(self, owner: str, size: int, left: float) -> None:
        limits, clocks = self.limits, "is this host's clock right? Describe tells the party's"
        if left <= 0:
            raise PeerError(f"its deadline passed {-left:.1f} s ago", where="request", hint=clocks)
        if left > MOST_SECONDS:
            what = f"its deadline is in {left:.0f} s, and at most {MOST_SECONDS:.0f} s are allowed"
            raise InputError(what, where="request", hint=clocks)
        full = (
            (self._requests[owner] + 1, limits.requests_each, "requests of this client wait"),
            (self._requests_all + 1, limits.requests, "requests wait"),
            (self._bytes[owner] + size, limits.bytes_each, "bytes of this client wait"),
            (self._bytes_all + size, limits.bytes, "bytes wait"),
            (self._ids[owner] + 1, limits.ids_each, "ids of this client are known"),
            (len(self._entries) + 1, limits.ids, "ids are known"),
        )
        for count, most, what in full:
            if count > most:
                hint = "wait for answers before asking more"
                raise OverloadError(f"{most} {what} already", where="request", hint=hint)

    # The thread that runs batches -----------------------------------------------------------------------------------

    def take(self, id: bytes) -> Request | None:
        """The request with this id, to be computed now; None if it is not here."""
        with self._lock:
            entry = self._entries.get(id)
            return None if entry is None else entry.request

    def finish(self, id: bytes, outcome: bytes | HummingbirdError) -> Entry | None:
        """Answer a request, or refuse it; None, and nothing done, if it has an outcome or is not here."""
        with self._lock:
            entry = self._entries.get(id)
            if entry is None or entry.outcome is not None:
                return None
            entry.outcome, entry.request = outcome, None
            self._waits(entry.owner, -1, -entry.size)
            if not self._requests[entry.owner]:
                del self._requests[entry.owner], self._bytes[entry.owner]
            if isinstance(outcome, bytes):
                self._answered[id] = len(outcome)
                self._answer_bytes += len(outcome)
                self._forget_answers()
        entry.done.set()
        return entry

    def leave(self, entry: Entry) -> bool:
        """A call waits no more; whether nobody waits for this request now, though it has no outcome."""
        with self._lock:
            entry.waiters -= 1
            return entry.waiters == 0 and entry.outcome is None

    def shut(self, reason: HummingbirdError) -> None:
        """Refuse requests that are new from now on."""
        with self._lock:
            self._shut = reason

    def fail(self, reason: HummingbirdError) -> None:
        """`shut`, and refuse what waits; answers that are there remain."""
        self.shut(reason)
        with self._lock:
            waiting = [id for id, entry in self._entries.items() if entry.outcome is None]
        for id in waiting:
            self.finish(id, reason)

    @property
    def waiting(self) -> int:
        """Number of requests without an outcome."""
        with self._lock:
            return self._requests_all

    def _forget(self) -> None:
        """Drop ids whose deadline has passed, of requests that have their outcome."""
        now, kept = time.monotonic(), []
        while self._ends and self._ends[0][0] < now:
            _, id = heapq.heappop(self._ends)
            if self._entries[id].outcome is None:  # party 0 has still to decide on it
                kept.append((now + _LINGER, id))
                continue
            owner = self._entries.pop(id).owner
            self._ids[owner] -= 1
            if not self._ids[owner]:
                del self._ids[owner]
            self._answer_bytes -= self._answered.pop(id, 0)
        for item in kept:
            heapq.heappush(self._ends, item)

    def _forget_answers(self) -> None:
        """Let the oldest answers go that nobody is being sent, as many as are above the limits."""
        limits, count, size = self.limits, len(self._answered), self._answer_bytes
        going = []
        for id, octets in self._answered.items():
            if count <= limits.answers and size <= limits.answer_bytes:
                break
            if not self._entries[id].waiters:
                going.append(id)
                count, size = count - 1, size - octets
        for id in going:
            self._answer_bytes -= self._answered.pop(id)
            hint = "an answer is kept for a while only: ask again under a fresh id"
            self._entries[id].outcome = PeerError("this request was answered", where="request", hint=hint)
