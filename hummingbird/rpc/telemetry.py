"""Telemetry of a service: health and a log; they hold no values and no texts of errors. Figures: rpc/metrics.py.

Health is gRPC's standard service, for load balancers and probes, without a token. The services "", "hummingbird" and
"readyz" are SERVING while the program serves; "livez" is SERVING as long as the program answers, so that a liveness
probe does not kill a program that waits for others. A program may name parts of it, such as the models that a party
serves: each is SERVING while the program serves and has it. Health has its own limits: its calls take no room from the
service's calls. Since probes have no names, connections share that room as names share a service's (admission.py): a
connection that leaves answers unread fills only its own part.

The log has one line of JSON for each call and each change of the service's state:

{"time": "2026-01-31T12:00:00.123Z", "service": "he-server", "event": "call", "method": "Turn", "client": "alice",
 "outcome": "OK", "ms": 41.2, "in": 1048592, "out": 262144}

A service adds fields of its own to its calls (`rpc.admission.note`).
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, TextIO

import grpc
from google.protobuf import message

from hummingbird.errors import EnvironmentProblem, InputError, NotFoundError, PeerError, needs
from hummingbird.rpc.admission import Admission, Limits, Quota, Record
from hummingbird.rpc.client import dial
from hummingbird.rpc.security import Tls
from hummingbird.rpc.service import Method
from hummingbird.rpc.status import explain

# Health ---------------------------------------------------------------------------------------------------------------

_WATCHERS, _WATCHERS_EACH = 32, 2  # calls of Watch at a time, in all and of one connection
_LIMITS = Limits(requests=128, per_client=8, stall=5.0)  # of calls of Check and Watch
_POLL = 0.2  # seconds between two checks whether a watcher is still connected
LIVE, READY = "livez", "readyz"  # names of services
_NAMES = ("", "hummingbird", READY, LIVE)


class Health:
    """gRPC's standard health service: probes ask it whether the program serves.

    `serving` is the current answer; callers are counted apart from those of the program's own methods.
    """

    def __init__(self) -> None:
        self.serving = False
        self.gate = Admission(_LIMITS, names=connection)
        self._parts: dict[str, bool] = {}
        self._changed = threading.Condition()
        self._watchers = Quota("watchers", "there", _WATCHERS, _WATCHERS_EACH)

    def set(self, serving: bool) -> bool:
        """Set whether the program serves, as the health service shall answer; return whether that is a change."""
        with self._changed:
            changed, self.serving = serving != self.serving, serving
            self._changed.notify_all()
            return changed

    def part(self, name: str, serving: bool | None) -> None:
        """Set whether a part of the program serves while the program does. serving: None for a part that is gone."""
        with self._changed:
            if serving is None:
                self._parts.pop(name, None)
            else:
                self._parts[name] = serving
            self._changed.notify_all()

    def handlers(self) -> dict[str, Method]:
        """Return the health service's two methods, Check and Watch, by name."""
        return {"Check": self._check, "Watch": self._watch}

    def _check(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        name = _asked(request)
        if not self._known(name):
            raise NotFoundError("no such service", hint=f"ask for {READY}, {LIVE}, or the empty name, the whole server")
        return _status(self._word(name))

    def _known(self, name: str) -> bool:
        return name in _NAMES or name in self._parts

    def _word(self, name: str) -> str:
        return "SERVING" if name == LIVE or (self.serving and self._parts.get(name, True)) else "NOT_SERVING"

    def _watch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        name = connection(context)
        self._watchers.enter(name)
        try:
            told, asked = "", _asked(request)
            while context.is_active():
                now = self._word(asked) if self._known(asked) else "SERVICE_UNKNOWN"
                if now != told:
                    told = now
                    yield _status(now)
                with self._changed:
                    self._changed.wait(_POLL)
        finally:
            self._watchers.leave(name)


def connection(context: grpc.ServicerContext) -> str | None:
    """Return the address and port from which a call comes, as text; None for a unix socket.

    The health service counts its callers by this, as they need no certificate or token. context: gRPC's, of the call.
    """
    peer: str = context.peer()
    return None if peer.startswith("unix") else peer


def _messages() -> Any:
    """Return gRPC's module of the health service's messages; it is imported here because few programs need it.

    Raises EnvironmentProblem if it is not installed.
    """
    with needs("serve", "gRPC's health service"):
        from grpc_health.v1 import health_pb2

    return health_pb2


def ask(address: str, tls: Tls | None = None, timeout: float = 10.0, name: str = READY) -> str:
    """Ask the health service of a program once; return its answer, "SERVING" or "NOT_SERVING". No token is needed.

    address: HOST:PORT or unix:PATH. timeout: seconds. name: the service whose health is asked for. Raises PeerError if
    nothing answers, and errors of `rpc.client.dial`.
    """
    with dial(address, tls) as channel:
        try:
            request = _messages().HealthCheckRequest(service=name).SerializeToString()
            answer = channel.unary_unary("/grpc.health.v1.Health/Check")(request, timeout=timeout)
            status = _messages().HealthCheckResponse.FromString(answer).status
        except grpc.RpcError as error:
            raise explain(error, address) from None
        except message.DecodeError:
            raise PeerError("the answer is not that of a health service", where=address) from None
    return "SERVING" if status == _messages().HealthCheckResponse.SERVING else "NOT_SERVING"


def _asked(request: bytes) -> str:
    """Return the name in a health request: the service whose health it asks for.

    request: the message, as bytes. Raises InputError if it is none.
    """
    try:
        return str(_messages().HealthCheckRequest.FromString(request).service)
    except message.DecodeError:
        raise InputError("malformed message: no health request") from None


def _status(name: str) -> bytes:
    data: bytes = _messages().HealthCheckResponse(status=name).SerializeToString()
    return data


# Log ------------------------------------------------------------------------------------------------------------------

_NAME = 80  # characters of a caller's name
_STRANGERS = 10  # lines per second for unknown callers, which must not fill the disk


class Log:
    """A log to which a service appends a JSON line for each call and event; only this user can read a new file.

    service: its name, for every line. path: the file, `-` for standard error. Raises EnvironmentProblem for a file that
    cannot be opened. If the disk is full later, lines are lost and counted in `lost`, but calls are still answered.
    """

    def __init__(self, service: str, path: str) -> None:
        self._service, self._lock = service, threading.Lock()
        self._file: TextIO | None = None
        self._second, self._strangers = 0, 0
        self.lost = 0
        if path == "-":
            return
        try:
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "a")
        except OSError as error:
            hint = "name a file that can be written"
            raise EnvironmentProblem(f"cannot write the log: {error.strerror}", where=path, hint=hint) from None

    def call(self, record: Record) -> None:
        """Write the line for a call that has ended.

        Of the calls of unknown callers only the first ten in a second are written.
        """
        if record.outcome == "UNAUTHENTICATED" and not self._room_for_stranger():
            return
        client = None if record.client is None else record.client[:_NAME]
        what = {"method": record.method, "client": client, "outcome": record.outcome}
        sizes = {"in": record.received, "out": record.sent}
        self.event("call", **what, ms=round(1e3 * record.seconds, 3), **sizes, **record.notes)

    def _room_for_stranger(self) -> bool:
        now = int(time.monotonic())
        with self._lock:
            self._strangers = self._strangers + 1 if now == self._second else 1
            self._second = now
            return self._strangers <= _STRANGERS

    def event(self, event: str, **fields: object) -> None:
        """Write a line on an event to this log.

        event: what has happened, in a word or two. fields: more facts, by name; values that JSON can hold.
        """
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json.dumps({"time": now, "service": self._service, "event": event, **fields}) + "\n"
        file = sys.stderr if self._file is None else self._file
        with self._lock:
            try:
                file.write(line)
                file.flush()
            except (OSError, ValueError):  # ValueError: closed
                self.lost += 1

    def close(self) -> None:
        """Close the log's file; may be called twice."""
        if self._file is not None:
            with self._lock:
                self._file.close()
