"""Servers as clients see them: in this process, or over gRPC; both are asked at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from typing import Protocol

import grpc

from hummingbird.errors import (
    ConfigError,
    HummingbirdError,
    OverloadError,
    PeerError,
    TrustError,
    UnavailableError,
)
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc.service import Tls
from hummingbird.rpc.status import explain

_CALLS = 64  # in progress at a time
_GRACE = 5.0  # seconds; a call ends by its own deadline


class TableServer(Protocol):
    """Interface by which a client uses one of the two servers: `Remote` for a server at an address, `Server` in this
    process.
    """

    name: str

    def begin(self, message: bytes, method: str = "Answer") -> Callable[[], bytes]:
        """Send a message to the server without waiting; return a function that waits for the answer and returns it.

        message: the packed request. method: the call of the server: Describe, Answer, Offer, Switch, Update or
        PastUpdate.
        """


class Remote:
    """A client's connection to one server at an address.

    name: of the server, for errors. timeout: seconds, to connect and for each message. token: of the caller, in place
    of a client certificate. Raises the errors of `rpc.client.connect`; its methods raise PeerError, naming the server.
    """

    def __init__(self, name: str, address: str, tls: Tls | None, timeout: float, token: str | None = None) -> None:
        self.name, self.timeout = f"{name} ({address})", timeout
        try:
            self._channel = rpc_client.connect(address, tls, timeout, token=token)
        except PeerError as error:
            raise type(error)(error.what, where=self.name, hint=error.hint) from None
        self._calls = ThreadPoolExecutor(_CALLS, thread_name_prefix="pir-client")

    def begin(self, message: bytes, method: str = "Answer") -> Callable[[], bytes]:
        """Send a message to the server without waiting; return a function that waits for the answer and returns it.

        message: the packed request. method: the call of the server: Describe, Answer, Offer, Switch, Update,
        PastUpdate, or Metrics, which asks for the server's counters.
        """
        # In a thread, so that both servers' calls run at the same time, each with its own deadline.
        done = self._calls.submit(self._call, method, message)

        def finish() -> bytes:
            try:
                return done.result(self.timeout + _GRACE)
            except TimeoutError:  # the call never began
                hint = f"a client has at most {_CALLS} calls in progress"
                raise PeerError("no answer in time", where=self.name, hint=hint) from None

        return finish

    def close(self) -> None:
        """Disconnect, which ends all calls; may be called twice."""
        self._channel.close()
        self._calls.shutdown()

    def _call(self, method: str, message: bytes) -> bytes:
        try:
            return rpc_client.call(self._channel, method, message, timeout=self.timeout)
        except grpc.RpcError as error:
            raise explain(error, self.name) from None
        except ValueError:  # gRPC's error for a closed channel
            raise PeerError("the client is closed", where=self.name, hint="make a new one") from None


def connected(
    servers: Sequence[str | TableServer],
    tls: Tls | None,
    timeout: float,
    where: str,
    tokens: Sequence[str] | None = None,
) -> list[TableServer]:
    """Connect to the servers of party 0 and party 1 within `timeout` seconds; returns both connections.

    servers: each an address, or a server in this process, which is returned unchanged. tokens: of the caller, one for
    each server. where: location in errors. Raises ConfigError unless there are two servers and, if any, two tokens;
    TrustError if both servers or both tokens are the same; and the errors of `Remote`.
    """
    both = isinstance(servers, Sequence) and not isinstance(servers, str) and len(servers) == 2
    if not both or not all(isinstance(server, str) or hasattr(server, "begin") for server in servers):
        hint = "the addresses of parties 0 and 1, or pir.local_servers(table)"
        raise ConfigError(f"expected two servers, got {servers!r}", where=where, hint=hint)
    if servers[0] == servers[1]:
        hint = "give two servers of operators that do not collude"
        raise TrustError("one server would get both keys, and read the index", where=where, hint=hint)
    given = [None, None] if tokens is None else list(tokens)
    if len(given) != 2:
        raise ConfigError(f"{len(given)} tokens for two servers", where=where, hint="one for each, in their order")
    if tokens is not None and given[0] == given[1]:
        hint = "have a token made by each operator"
        raise TrustError(
            "with the same token for both, one server could call the other in your name", where=where, hint=hint
        )
    links: list[TableServer] = []
    deadline = time.monotonic() + timeout
    try:
        for party, server in enumerate(servers):
            left = max(0.1, deadline - time.monotonic())
            remote = isinstance(server, str)
            links.append(Remote(f"server {party}", server, tls, left, given[party]) if remote else server)  # type: ignore
    except BaseException:
        disconnect(links)
        raise
    return links


def disconnect(links: Sequence[TableServer]) -> None:
    """Close the connections to both servers; may be called twice. Servers in this process stay as they are."""
    for link in links:
        if isinstance(link, Remote):
            link.close()


def ask(links: Sequence[TableServer], messages: Sequence[bytes], method: str, where: str) -> list[bytes]:
    """Send one message to each server at the same time; returns the answers of party 0 and party 1.

    links: the connections to both. messages: for party 0 and party 1. method: as for `TableServer.begin`. where:
    location in the error if both fail. Raises PeerError, naming every server that failed.
    """
    waiting = [link.begin(message, method) for link, message in zip(links, messages, strict=True)]
    answers: list[bytes] = []
    errors: list[HummingbirdError] = []
    for finish in waiting:
        try:
            answers.append(finish())
        except HummingbirdError as error:
            errors.append(error)
    if len(errors) == 2:
        what = "; ".join(f"{link.name}: {error.what}" for link, error in zip(links, errors, strict=True))
        what = f"neither server answers: {what}"
        passing = [error.retry_after for error in errors if isinstance(error, (OverloadError, UnavailableError))]
        if len(passing) == 2:  # both may come back
            retry = max((seconds for seconds in passing if seconds is not None), default=None)
            raise UnavailableError(what, where=where, hint=errors[0].hint, retry_after=retry)
        raise PeerError(what, where=where, hint=errors[0].hint)
    if errors:
        raise errors[0]
    return answers
