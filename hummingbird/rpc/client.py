"""Calls of a service over gRPC: a channel that has answered, calls of one message or of streams, retry and failover.

    channel = connect("unix:/run/user/1000/echo.sock")
    answer = call(channel, "Echo", b"hello", timeout=10)

Every call has a deadline, and `connect` returns only a channel that has answered: a missing service is an error, not a
hang. `Retry` decides when a caller asks again while a service is away or full:

    retry = Retry(timeout, (0.1, 2.0))
    while True:
        try:
            return ask(timeout=retry.left)
        except PeerError as error:
            time.sleep(retry.failed(error))

`Patience` does the same for `connect`, and knows the errors of gRPC that no further attempt would mend.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc
import grpc.experimental

from hummingbird.errors import HummingbirdError, OverloadError, PeerError, TrustError, UnavailableError
from hummingbird.rpc import CHUNK, spans
from hummingbird.rpc.admission import MAX_MESSAGE, STOPPING
from hummingbird.rpc.security import HEADER, Tls, check_address
from hummingbird.rpc.service import KEEPALIVE, PREFIX, STREAM, message_options
from hummingbird.rpc.signals import check
from hummingbird.rpc.status import explain

_PAUSE = 0.05  # seconds between attempts to reach a service
_REFUSED = 5  # closed connections after which a connection counts as refused

# Retry and failover ---------------------------------------------------------------------------------------------------


class Retry:
    """Decides when to ask again until a question is answered.

    timeout: seconds from now within which attempts begin. pauses: first and longest pause, in seconds, between attempts
    at a service that is away; each pause is twice the one before. A service that is full, or lacks a part for a
    while, says itself how long to wait.
    passing: classes of errors after which another attempt may succeed. tries: most attempts.
    """

    def __init__(
        self,
        timeout: float,
        pauses: tuple[float, float],
        *,
        passing: tuple[type[HummingbirdError], ...] = (UnavailableError, OverloadError),
        tries: float = float("inf"),
    ) -> None:
        self._deadline, (self._pause, self._longest) = time.monotonic() + timeout, pauses
        self._shortest, self._passing, self._tries = pauses[0], passing, tries
        self._failure: HummingbirdError | None = None

    @property
    def left(self) -> float:
        """Seconds left in which further attempts may begin; below 0 when it is too late."""
        return self._deadline - time.monotonic()

    def failed(self, error: HummingbirdError, anywhere: Callable[[float], float] = float) -> float:
        """Take note of a failed attempt: return the seconds until the next one, or raise an error.

        `error` is raised if it is not in `passing`, or if the time or the attempts are used up. If the deadline had
        passed already, the failure of the attempt before is raised instead: it says more than that the time was too
        short.
        anywhere: where several services may answer the question: called with the seconds for which the service that
        has failed is not to be asked, it returns the seconds until some service may be asked.
        """
        now = time.monotonic()
        if self._failure is not None and now > self._deadline:
            raise self._failure from None
        if not isinstance(error, self._passing):
            raise error from None
        rest = self._pause
        if isinstance(error, (OverloadError, UnavailableError)) and error.retry_after is not None:
            rest = max(error.retry_after, self._shortest)
        else:
            self._pause = min(2 * self._pause, self._longest)
        self._failure, pause = error, anywhere(rest)
        self._tries -= 1
        if self._tries < 1 or now + pause > self._deadline:
            raise error from None
        return pause


class Patience:
    """Decides how long a caller goes on trying to connect to a service that does not answer yet.

    address: of the service, for errors. timeout: seconds for all attempts together.
    """

    def __init__(self, address: str, timeout: float) -> None:
        self._address = address
        self._retry = Retry(timeout, (_PAUSE, _PAUSE), passing=(PeerError,))
        self._closed = 0  # attempts

    @property
    def glance(self) -> float:
        """Seconds that the next attempt to connect may take: those left in all, but from 0.1 to 10."""
        return min(max(self._retry.left, 0.1), 10.0)

    def bear(self, error: grpc.RpcError) -> float:
        """Return how many seconds to wait before the next attempt to connect, after one has failed with `error`.

        Raises an error if no further attempt can succeed or the time is used up: PeerError, or AccessError for a caller
        that the service does not know.
        """
        details = str(error.details())
        if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise explain(error, self._address) from None
        if "handshake" in details.lower() or "verification" in details.lower():
            hint = "both sides need certificates of one authority, the service's for the name in its address"
            raise PeerError(f"TLS failed: {details}", where=self._address, hint=hint) from None
        # A service that rejects our certificate, or expects TLS where we send none, closes without a message (TLS 1.3
        # allows that). So does a service that is just ending: hence five times.
        self._closed += "closed" in details.lower() or "reset" in details.lower()
        if self._closed == _REFUSED:
            hint = "does it expect TLS, a certificate of another authority than ours, or has it no room?"
            raise PeerError(f"the connection is refused: {details}", where=self._address, hint=hint) from None
        told = explain(error, self._address)
        if not isinstance(told, UnavailableError) or told.what != STOPPING:
            hint = "is the service running, and is its address right?"
            told = PeerError(f"nothing answers: {details}", where=self._address, hint=hint)
        return self._retry.failed(told)


# Connections and calls ------------------------------------------------------------------------------------------------


def connect(
    address: str,
    tls: Tls | None = None,
    timeout: float = 60.0,
    *,
    token: str | None = None,
    largest: int = MAX_MESSAGE,
) -> grpc.Channel:
    """Connect to a service, and return the channel once the service has answered; retry for `timeout` seconds.

    address: HOST:PORT or unix:PATH. With `tls`, the service must show a certificate that the authority in `tls` has
    signed for the address's host name (`localhost` for a unix socket). token: the token of a caller without a
    certificate. largest: most bytes of a message, in either direction.
    Raises InputError and TrustError (see `check_address`), EnvironmentProblem (certificate files), AccessError for a
    caller that the service does not know, and PeerError, at once if the handshake itself is refused.
    """
    channel = dial(address, tls, largest)
    if token is not None:
        channel = grpc.intercept_channel(channel, _Token(token))
    try:
        _wait_for_answer(channel, address, timeout)
    except BaseException:
        channel.close()
        raise
    return channel


def dial(address: str, tls: Tls | None = None, largest: int = MAX_MESSAGE) -> grpc.Channel:
    """Return a gRPC channel to a service, without connecting; the service need not listen yet.

    address: HOST:PORT or unix:PATH. tls: certificate files; None for plain text. largest: most bytes of a message, in
    either direction. Raises InputError and TrustError (see `check_address`), and EnvironmentProblem for certificate
    files.
    """
    # The thread that wants a streamed answer reads it.
    options = [*channel_options(address, largest), (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1)]
    credentials = channel_credentials(address, tls)
    if credentials is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, credentials, options=options)


def channel_options(address: str, largest: int) -> list[tuple[str, int | str]]:
    """Return gRPC's options for a channel to an address, as a list of (name, value).

    largest: most bytes of a message, in either direction.
    """
    options: list[tuple[str, int | str]] = [
        ("grpc.enable_http_proxy", 0),  # no proxy from the environment in between
        # No min_reconnect_backoff_ms: gRPC also ends an attempt after that time, even within its TLS handshake.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.http2.max_pings_without_data", 0),
        # A streamed answer comes in frames as large as its messages, some of them ahead. Together with reading in the
        # thread that wants the answer, this saves a tenth of the processor time of ReLUs whose material is dealt
        # meanwhile.
        ("grpc.http2.max_frame_size", CHUNK),
        ("grpc.http2.lookahead_bytes", STREAM),
        ("grpc.http2.bdp_probe", 0),
        *KEEPALIVE,
        *message_options(largest),
    ]
    if address.startswith("unix:"):
        options.append(("grpc.ssl_target_name_override", "localhost"))
    return options


def channel_credentials(address: str, tls: Tls | None) -> grpc.ChannelCredentials | None:
    """Return gRPC's credentials for a channel to an address, made from the certificate files; None for plain text.

    tls: the files; None for plain text. Raises InputError, TrustError and EnvironmentProblem for an address or files
    that cannot be used.
    """
    check_address(address, tls)
    if tls is None:
        return None
    if tls.ca is None:
        raise TrustError("a caller needs the certificate of the service's authority", where=address, hint="Tls(ca=...)")
    cert, key, ca = tls.read()
    return grpc.ssl_channel_credentials(ca, key, cert)


class _Detail(
    NamedTuple(
        "_Detail",
        [
            ("method", Any),
            ("timeout", Any),
            ("metadata", Any),
            ("credentials", Any),
            ("wait_for_ready", Any),
            ("compression", Any),
        ],
    ),
    grpc.ClientCallDetails,
):
    """The details of one call, as an interceptor hands them back to gRPC: method, timeout, metadata ..."""


class _Token(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamStreamClientInterceptor):
    """A gRPC interceptor that adds the caller's token to the metadata of every call of a channel."""

    def __init__(self, token: str) -> None:
        self._metadata = (HEADER, f"Bearer {token}")

    def _with(self, go_on: Any, details: Any, request: Any) -> Any:
        metadata = [*(details.metadata or ()), self._metadata]
        names = ("method", "timeout", "credentials", "wait_for_ready", "compression")
        return go_on(_Detail(metadata=metadata, **{name: getattr(details, name) for name in names}), request)

    intercept_unary_unary = intercept_unary_stream = intercept_stream_stream = _with


def _wait_for_answer(channel: grpc.Channel, address: str, timeout: float) -> None:
    patience = Patience(address, timeout)
    while True:
        try:
            call(channel, "Ping", b"", timeout=patience.glance)
            return
        except grpc.RpcError as error:
            pause = patience.bear(error)
        check()
        time.sleep(pause)


def call(channel: grpc.Channel, method: str, request: bytes, *, timeout: float) -> bytes:
    """Send one message to a service's method, and return the answer, as bytes.

    channel: to the service. method: its name. timeout: seconds. Raises grpc.RpcError, which `status.explain`
    translates.
    """
    answer: bytes = method_of(channel, method)(request, timeout=timeout, metadata=spans.header())
    return answer


def method_of(channel: grpc.Channel, method: str) -> grpc.UnaryUnaryMultiCallable:
    """Return a callable for one method of a service, which takes a message and a timeout, and returns the answer.

    It serves for many calls. Its `future(message, timeout=...)` begins a call without waiting.
    """
    return channel.unary_unary(PREFIX + method)


def begin(channel: grpc.Channel, method: str, request: bytes, *, timeout: float) -> Any:
    """Begin a call of a service's method with one message; return gRPC's future at once, whose result() is the answer.

    channel: to the service. method: its name. timeout: seconds. result() raises grpc.RpcError, which `status.explain`
    translates.
    """
    return method_of(channel, method).future(request, timeout=timeout, metadata=spans.header())


def stream(channel: grpc.Channel, method: str, request: bytes, *, timeout: float) -> Any:
    """Send one message to a method that answers by several; return the stream of the answers, to iterate.

    channel: to the service. method: its name. timeout: seconds for the whole call. Iterating raises grpc.RpcError,
    which `status.explain` translates. After its end the stream has `trailing_metadata()`.
    """
    return channel.unary_stream(PREFIX + method)(request, timeout=timeout, metadata=spans.header())


def exchange(channel: grpc.Channel, method: str, requests: Iterator[bytes], *, timeout: float) -> Any:
    """Begin a call in which both sides send several messages; return the stream of the answers, to iterate.

    channel: to the service. method: its name. requests: the messages to send; a thread of gRPC iterates them. timeout:
    seconds for the whole call. Iterating raises grpc.RpcError, which `status.explain` translates.
    """
    return channel.stream_stream(PREFIX + method)(requests, timeout=timeout, metadata=spans.header())
