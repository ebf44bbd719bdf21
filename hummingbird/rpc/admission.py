"""Admission: every call of a service passes it, which checks the caller's name, the limits, and the call's duration.

A call has a thread of its own from its first byte, so that no call waits behind others. Where a limit is reached, the
call is refused at once, with a time to retry. A caller that leaves an answer unread, or a request unsent, blocks its
own call only, for at most `stall` seconds. Callers without a name (plain text on this host) are bound by the limits in
all only. Brief calls, which compute nothing, have limits of their own, so that a full service still answers them.
`Quota` counts resources in use for all services: calls, sessions, requests, bytes. `FairQueue` lets calls wait.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple
from weakref import WeakKeyDictionary

import grpc

from hummingbird.errors import ConfigError, OverloadError, UnavailableError
from hummingbird.rpc import spans
from hummingbird.rpc.security import Tokens
from hummingbird.rpc.status import code_of, refuse

MAX_MESSAGE = 4 << 20  # bytes of a message, by default as in gRPC
STOPPING = "this server is stopping"
_LOOK = 1.0  # seconds between two checks for stalled calls
_RETRY = 1.0  # seconds after which a caller may try again
BRIEF = 128  # brief calls at a time
_BRIEF_EACH, _BRIEF_STALL = 16, 10.0  # brief calls of one name; seconds that they may be unread, or unsent
_LAST = 4  # in the last quarter of a quota a name may hold
_PART = 8  # at most an eighth of the free room
_names: WeakKeyDictionary[grpc.ServicerContext, str | None] = WeakKeyDictionary()
_notes: WeakKeyDictionary[grpc.ServicerContext, dict[str, object]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Limits:
    """The limits that a service sets to its callers.

    requests: most calls at work at a time. per_client: most calls at work of one name. named: for some names, a limit
    of their own in place of `per_client`. The last quarter of `requests` is kept for names with few calls (`Quota`).
    message: most bytes of one message, in either direction. client_bytes: most bytes of messages in memory for one
    name's calls. connections: most open connections; further ones are closed at once. stall: seconds that a caller may
    leave a message unread, or a request unsent. seconds: longest duration of a call.
    Raises ConfigError for a number that is not above 0.
    """

    requests: int = 256
    per_client: int = 64
    message: int = MAX_MESSAGE
    client_bytes: int = 256 << 20
    connections: int = 16_000
    stall: float = 120.0
    seconds: float = 86_400.0
    named: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers = {**vars(self), **{f"named[{name!r}]": value for name, value in self.named.items()}}
        del numbers["named"]
        for name, value in numbers.items():
            if not value > 0:
                raise ConfigError(f"{name} is {value}", where="Limits", hint="more than 0")


class Quota:
    """Counts how much of a resource is in use, and limits it, in all and for each caller. Any thread may call it.

    things, state, where: words of the error, as in "calls" that are "at work" at "the server". hint: the error's hint.
    retry: seconds after which the error says to try again. most: limit in all. each: limit of one name. named: limits
    of the names that have their own. Callers without a name (None) are bound by `most` alone.
    spare: whether the last quarter of `most` is for names that hold little. A name gets some of that quarter only if it
    then holds at most an eighth of the free room, or a single thing; so a few names at their limit leave room for
    others, as with each further name the free room shrinks by an eighth (dynamic thresholds: Choudhury and Hahne,
    "Dynamic queue length thresholds for shared-memory packet switches", 1998).
    """

    def __init__(
        self,
        things: str,
        state: str,
        most: int,
        each: int,
        named: Mapping[str, int] | None = None,
        *,
        spare: bool = True,
        where: str = "",
        hint: str = "",
        retry: float = _RETRY,
    ) -> None:
        self._things, self._state, self._most, self._each, self._named = things, state, most, each, named or {}
        self._spare, self._where, self._hint, self._retry = spare, where, hint, retry
        self._held: Counter[str] = Counter()
        self._late: list[tuple[float, str, int]] = []  # amounts that names get back later: when, name, size
        self._lock = threading.Lock()
        self.taken = 0

    def check(self, name: str | None, size: int = 1) -> None:
        """Raise OverloadError unless the caller `name` may now take `size` more of the resource; take nothing."""
        with self._lock:
            self._check(name, size)

    def enter(self, name: str | None, size: int = 1) -> None:
        """Take `size` of the resource for the caller `name`, until `leave` gives it back.

        Raises OverloadError if this would exceed a limit.
        """
        with self._lock:
            self._check(name, size)
            self.taken += size
            if name is not None:
                self._held[name] += size

    def leave(self, name: str | None, size: int = 1, late: float = 0.0) -> None:
        """Give back `size` of the resource that `enter` has taken for a name.

        name: the caller's, or None. late: seconds for which this amount still counts against the name's own limit,
        though others may take it.
        """
        with self._lock:
            self.taken -= size
            if name is None:
                return
            if late:
                self._late.append((time.monotonic() + late, name, size))
            else:
                self._give_back(name, size)

    def _check(self, name: str | None, size: int) -> None:
        for late in [late for late in self._late if late[0] <= time.monotonic()]:
            self._late.remove(late)
            self._give_back(*late[1:])
        free = self._most - self.taken
        if size > free:
            raise self._full(f"{self._most} {self._things} are {self._state}, the most")
        if name is None:
            return
        held, each = self._held[name] + size, self._named.get(name, self._each)
        if held > each:
            raise self._full(f"{each} {self._things} of yours are {self._state}, the most")
        if self._spare and free - size < self._most // _LAST and held > max(1, free // _PART):
            rest = "the room that is left is for callers with few"
            raise self._full(f"{self.taken} {self._things} are {self._state}; {rest}")

    def _full(self, what: str) -> OverloadError:
        return OverloadError(what, where=self._where, hint=self._hint, retry_after=self._retry)

    def _give_back(self, name: str, size: int) -> None:
        self._held[name] -= size
        if not self._held[name]:  # names that are gone take no memory
            del self._held[name]


class FairQueue:
    """A queue in which calls wait for one of a limited number of places; a call works once it has a place.

    A free place goes to a call of the caller that has the fewest places; of several such calls, to the one that has
    waited longest. Callers without a name count as one caller. places: how many calls may work at a time. calls: the
    quota of all calls that work or wait.
    """

    def __init__(self, places: int, calls: Quota) -> None:
        self.places, self.calls = places, calls
        self._at_work: Counter[str | None] = Counter()
        self._waiting: list[WaitingCall] = []
        self.changed = threading.Condition()

    @property
    def at_work(self) -> int:
        """How many calls have a place in this queue, and so may work."""
        return sum(self._at_work.values())

    @property
    def waiting(self) -> int:
        """How many calls wait for a place in this queue."""
        return len(self._waiting)

    def enter(self, caller: str | None) -> WaitingCall:
        """Register a call of `caller`, a name or None; return its `WaitingCall`, which must `leave` in the end.

        The call can then `wait` for a place. Raises OverloadError if too many calls are registered, in all or of this
        caller.
        """
        self.calls.enter(caller)
        return WaitingCall(self, caller)

    def ask(self, call: WaitingCall) -> None:
        """Let a call wait for a place; it gets one at once if one is free. The caller holds `changed`."""
        self._waiting.append(call)
        self._assign()

    def leave(self, call: WaitingCall) -> None:
        """Remove a call, which may have a place, wait for one, or have never asked; give its place to another call."""
        with self.changed:
            if call.taken:
                self._at_work[call.caller] -= 1
            elif call in self._waiting:
                self._waiting.remove(call)
            if not self._at_work[call.caller]:  # names that are gone take no memory
                del self._at_work[call.caller]
            self._assign()
        self.calls.leave(call.caller)

    def _assign(self) -> None:
        while self._waiting and self.at_work < self.places:
            chosen = min(self._waiting, key=lambda call: self._at_work[call.caller])  # of equals the first
            self._waiting.remove(chosen)
            chosen.taken = True
            self._at_work[chosen.caller] += 1
        self.changed.notify_all()


class WaitingCall:
    """One call's entry in a `FairQueue`: it waits for a place, and gives it back.

    caller: the caller's name, or None. asked: whether the call has asked for a place. taken: whether it has got one.
    """

    def __init__(self, queue: FairQueue, caller: str | None) -> None:
        self._queue, self.caller = queue, caller
        self.asked = self.taken = False

    def wait(self, timeout: float) -> bool:
        """Wait for a place to work, at most `timeout` seconds; return whether this call has one now."""
        with self._queue.changed:
            if not self.asked:
                self.asked = True
                self._queue.ask(self)
            return self._queue.changed.wait_for(lambda: self.taken, timeout)

    def leave(self) -> None:
        """Give this call's place back, or stop waiting for one; call this once, at the call's end."""
        self._queue.leave(self)


class Record(NamedTuple):
    """The facts on a call that has ended, for the log and the metrics.

    method: the method's name. client: the caller's name, None if it has none. outcome: the name of the call's gRPC
    status, such as "OK". seconds: its duration. received, sent: bytes of its messages. notes: fields that the call's
    method adds to the log line.
    """

    method: str
    client: str | None
    outcome: str
    seconds: float
    received: int
    sent: int
    notes: Mapping[str, object] = MappingProxyType({})


class Call:
    """A call that a method works on, from its first byte until its caller has the answer or has gone.

    It counts the call's bytes, and says whether the service now waits for the caller. method: the method's name. brief:
    whether the method is a `Brief`. context: gRPC's.
    """

    def __init__(self, method: str, brief: bool, context: grpc.ServicerContext) -> None:
        self.method, self.brief, self.context = method, brief, context
        self.client: str | None = None
        self.started = time.monotonic()
        self.waiting: float | None = None  # the time since which the service waits for the caller
        self.received = self.sent = self.held = 0
        self.ends = 2  # ends still to come: the method's, and gRPC's

    def read(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the messages that the caller sends, `requests`, one after the other, and count their bytes.

        This sets no limit to the wait for a message: the method does.
        """
        for request in requests:
            self.received += len(request)
            yield request

    @contextmanager
    def for_caller(self) -> Iterator[None]:
        """Return a context in which this call counts as waiting for its caller to read or send a message.

        A call that waits so for longer than `Limits.stall` seconds is cancelled.
        """
        self.waiting = time.monotonic()
        try:
            yield
        finally:
            self.waiting = None


class Admission:
    """Decides whether a program's servers take a call, and counts the calls at work and the bytes that they hold.

    limits: the limits to enforce. tokens: the callers that may call, with their tokens; None if callers need none.
    ended: called with the `Record` of every call that has ended, also of a refused one. names: returns the caller's
    name for a call's gRPC context; by default it reads the token or, without `tokens`, the certificate.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        tokens: Tokens | None = None,
        ended: Callable[[Record], object] = lambda record: None,
        names: Callable[[grpc.ServicerContext], str | None] | None = None,
    ) -> None:
        self.limits = limits = Limits() if limits is None else limits
        self.tokens, self._ended = tokens, ended
        self._name = names or (certified_name if tokens is None else tokens.name_of)
        self._calls: set[Call] = set()
        self._room = Quota("calls", "at work", limits.requests, limits.per_client, limits.named)
        self._brief_room = Quota("brief calls", "at work", BRIEF, _BRIEF_EACH)
        self._held: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._stopping = False
        self._closed = threading.Event()

    @property
    def in_flight(self) -> int:
        """How many calls are at work: admitted, and their callers have not read the answer yet."""
        return len(self._calls)

    def drain(self, timeout: float) -> bool:
        """Refuse new calls, and wait at most `timeout` seconds for the calls at work; return whether all have ended.

        Calls of a `Brief` are not waited for.
        """
        with self._changed:
            self._stopping = True
            return self._changed.wait_for(lambda: all(call.brief for call in self._calls), timeout)

    def watch(self) -> None:
        """Start a thread that, until `close`, cancels calls that stall or take too long."""
        threading.Thread(target=self._watch, name="hummingbird-gate", daemon=True).start()

    def close(self) -> None:
        """Stop the thread that `watch` has started; may be called twice."""
        self._closed.set()

    @contextmanager
    def call(self, method: str, context: grpc.ServicerContext, brief: bool = False) -> Iterator[Call]:
        """Return a context in which a method works on one call; it admits the call, or ends it with a gRPC status.

        Entering it gives the `Call`. An error in the block ends the call with a gRPC status, too. The call counts, with
        the bytes that it holds, until its caller has read the answer. method: the method's name. context: gRPC's, of
        the call. brief: whether the method is a `Brief`, whose calls are counted apart.
        """
        call, outcome, span = Call(method, brief, context), "OK", spans.Span()
        notes = _notes[context] = dict[str, object]()
        try:
            call.client = _names[context] = self._name(context)
            if not brief:
                span = spans.served(method, context)
            self._enter(call)
            if not context.add_callback(lambda: self._leave(call)):  # the call has ended meanwhile
                self._leave(call)
            try:
                yield call
            finally:
                call.waiting = time.monotonic()  # until the caller has read what is on its way
                self._leave(call)
            if not context.is_active():
                left = context.time_remaining()
                outcome = "CANCELLED" if left is None or left > 0 else "DEADLINE_EXCEEDED"
        except GeneratorExit:
            outcome = "CANCELLED"
            raise
        except Exception as error:
            outcome = code_of(error).name if context.is_active() else "CANCELLED"
            raise refuse(error, context) from None
        finally:
            seconds = time.monotonic() - call.started
            self._ended(Record(method, call.client, outcome, seconds, call.received, call.sent, notes))
            span.end(outcome, **notes)

    def hold(self, call: Call, size: int) -> None:
        """Note that a call holds `size` further bytes in memory until its end.

        Raises OverloadError if all calls of this caller then hold more than `Limits.client_bytes`.
        """
        if call.client is None:
            return
        with self._changed:
            if self._held[call.client] + size > self.limits.client_bytes:
                what = f"your calls hold {self._held[call.client] / 1e6:.0f} MB here, the limit is "
                raise OverloadError(f"{what}{self.limits.client_bytes / 1e6:.0f}", retry_after=_RETRY)
            self._held[call.client] += size
            call.held += size

    def _room_of(self, call: Call) -> Quota:
        return self._brief_room if call.brief else self._room

    def _enter(self, call: Call) -> None:
        with self._changed:
            if self._stopping:
                raise UnavailableError(STOPPING, hint="try again when it is back, or another one")
            self._room_of(call).enter(call.client)
            self._calls.add(call)

    def _leave(self, call: Call) -> None:
        """Note that one of a call's two ends has come: its method has returned, or gRPC has ended the call.

        After both the call no longer counts, and neither do the bytes that it held.
        """
        with self._changed:
            call.ends -= 1
            if call.ends:
                return
            self._calls.discard(call)
            self._room_of(call).leave(call.client)
            if call.client is not None:
                self._held[call.client] -= call.held
                if not self._held[call.client]:
                    del self._held[call.client]
            self._changed.notify_all()

    def _watch(self) -> None:
        while not self._closed.wait(min(_LOOK, self.limits.stall / 4)):
            now = time.monotonic()
            with self._changed:
                calls = list(self._calls)
            for call in calls:
                waiting, stall = call.waiting, self.limits.stall
                if call.brief:
                    stall = min(stall, _BRIEF_STALL)
                stalled = waiting is not None and now - waiting > stall
                if stalled or now - call.started > self.limits.seconds:
                    call.context.cancel()


def certified_name(context: grpc.ServicerContext) -> str | None:
    """Return the common name in the caller's certificate, which gRPC has verified; None in plain text.

    context: gRPC's, of the call. A certificate without a common name gives "sha256:" and its hash.
    """
    known = context.auth_context()
    name = next(iter(known.get("x509_common_name", [])), b"")
    if name:
        return str(name.decode(errors="replace"))
    certificate = next(iter(known.get("x509_pem_cert", [])), None)
    return None if certificate is None else f"sha256:{hashlib.sha256(certificate).hexdigest()}"


def note(context: grpc.ServicerContext, **fields: object) -> None:
    """Add fields to the line that the log will have for this call; the method that answers the call does so.

    context: gRPC's, of the call. fields: names and values, which must not be private.
    """
    _notes[context].update(fields)


def caller_name(context: grpc.ServicerContext) -> str | None:
    """Return the name of the caller of a call, as its admission has found it in the certificate or token.

    context: gRPC's, of the call. None in plain text without tokens.
    """
    return _names.get(context)
