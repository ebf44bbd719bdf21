"""gRPC's standard health service: SERVING or not, for load balancers and probes, without a token.

Of the services "", "hummingbird" and "readyz" it says whether the program serves; "livez" is SERVING as long as it
answers, so that a probe that ends what does not live leaves alone who waits for others.
Its own limits keep it apart from the service's calls: who asks for health takes no room of those. Connections share
its room as names share that of a service (room.py), for a probe needs no name: one connection that leaves answers
unread has no more than its own part of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf import message

from hummingbird.errors import InputError, NotFoundError, PeerError
from hummingbird.rpc.admission import Admission, Limits
from hummingbird.rpc.quota import Quota
from hummingbird.rpc.service import Method, dial, explain
from hummingbird.rpc.trust import Tls

_WATCHERS, _WATCHERS_EACH = 32, 2  # that watch at a time, and those of one connection
_LIMITS = Limits(requests=128, per_client=8, stall=5.0)  # watchers and those who ask once
_POLL = 0.2  # seconds between looks at whether a watcher is there
LIVE, READY = "livez", "readyz"  # names of services
_NAMES = ("", "hummingbird", READY, LIVE)


class Health:
    """gRPC's standard health service."""

    def __init__(self) -> None:
        self.serving = False
        self.gate = Admission(_LIMITS, names=connection)
        self._changed = threading.Condition()
        self._watchers = Quota("watchers", "there", _WATCHERS, _WATCHERS_EACH)

    def set(self, serving: bool) -> bool:
        """Whether this is a change."""
        with self._changed:
            changed, self.serving = serving != self.serving, serving
            self._changed.notify_all()
            return changed

    def handlers(self) -> dict[str, Method]:
        """The methods Check and Watch."""
        return {"Check": self._check, "Watch": self._watch}

    def _check(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        name = _asked(request)
        if name not in _NAMES:
            raise NotFoundError("no such service", hint=f"ask for {READY}, {LIVE}, or for nothing: the whole server")
        return _status(self._word(name))

    def _word(self, name: str) -> str:
        return "SERVING" if self.serving or name == LIVE else "NOT_SERVING"

    def _watch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        name = connection(context)
        with self._changed:
            self._watchers.check(name)
            self._watchers.take(name)
        try:
            told, asked = "", _asked(request)
            while context.is_active():
                now = self._word(asked) if asked in _NAMES else "SERVICE_UNKNOWN"
                if now != told:
                    told = now
                    yield _status(now)
                with self._changed:
                    self._changed.wait(_POLL)
        finally:
            with self._changed:
                self._watchers.take(name, -1)


def connection(context: grpc.ServicerContext) -> str | None:
    """The name of a call's connection: the caller's address and port; None on a unix socket, where it has none."""
    peer: str = context.peer()
    return None if peer.startswith("unix") else peer


def _messages() -> Any:
    """The messages of gRPC's health service, imported when the first one is read or made: few programs need them."""
    from grpc_health.v1 import health_pb2

    return health_pb2


def ask(address: str, tls: Tls | None = None, timeout: float = 10.0, name: str = READY) -> str:
    """The word of the health service at an address: SERVING or NOT_SERVING; of a service there by its name.

    A token is not needed. timeout: seconds. Raises as `rpc.service.connect`, and does not try again.
    """
    with dial(address, tls) as channel:
        try:
            request = _messages().HealthCheckRequest(service=name).SerializeToString()
            answer = channel.unary_unary("/grpc.health.v1.Health/Check")(request, timeout=timeout)
            status = _messages().HealthCheckResponse.FromString(answer).status
        except grpc.RpcError as error:
            raise explain(error, address) from None
        except message.DecodeError:
            raise PeerError("no answer of a health service", where=address) from None
    return "SERVING" if status == _messages().HealthCheckResponse.SERVING else "NOT_SERVING"


def _asked(request: bytes) -> str:
    """The service that a request for health asks for."""
    try:
        return str(_messages().HealthCheckRequest.FromString(request).service)
    except message.DecodeError:
        raise InputError("malformed message: no request for health") from None


def _status(name: str) -> bytes:
    data: bytes = _messages().HealthCheckResponse(status=name).SerializeToString()
    return data
