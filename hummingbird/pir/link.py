"""One server as the client sees it: something in this process, or connected over gRPC."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from typing import Protocol

import grpc

from hummingbird.errors import PeerError
from hummingbird.wire import service
from hummingbird.wire.service import Tls

_CALLS = 64  # under way at a time
_GRACE = 5.0  # seconds; a call ends by its own deadline


class Link(Protocol):
    """The interface of one server to its clients; `Remote` and `Server` have it."""

    name: str

    def begin(self, message: bytes, method: str = "Answer") -> Callable[[], bytes]:
        """Send a message; the result waits for what comes back. Methods: Describe, Answer, Deposit,
        Collect, Update."""


class Remote:
    """A server at an address, connected. timeout: seconds, to connect and for each message.

    Raises the errors of `service.connect`; its methods raise PeerError, which names the server.
    """

    def __init__(self, name: str, address: str, tls: Tls | None, timeout: float) -> None:
        self.name, self.timeout = f"{name} ({address})", timeout
        try:
            self._channel = service.connect(address, tls, timeout)
        except PeerError as error:
            raise PeerError(error.what, where=self.name, hint=error.hint) from None
        self._calls = ThreadPoolExecutor(_CALLS, thread_name_prefix="pir-client")

    def begin(self, message: bytes, method: str = "Answer") -> Callable[[], bytes]:
        """Send a message, as `Link.begin` does; one more method is Metrics."""
        # In a thread, so that both servers' calls run at the same time, each with its own deadline.
        done = self._calls.submit(self._call, method, message)

        def finish() -> bytes:
            try:
                return done.result(self.timeout + _GRACE)
            except TimeoutError:  # the call never began
                hint = f"a client has {_CALLS} calls under way at most"
                raise PeerError("no answer in time", where=self.name, hint=hint) from None

        return finish

    def close(self) -> None:
        """Disconnect, which ends all calls; may be called twice."""
        self._channel.close()
        self._calls.shutdown()

    def _call(self, method: str, message: bytes) -> bytes:
        try:
            return service.call(self._channel, method, message, timeout=self.timeout)
        except grpc.RpcError as error:
            raise service.explain(error, self.name) from None
        except ValueError:  # what gRPC says of a closed channel
            raise PeerError("the client is closed", where=self.name, hint="make a new one") from None
