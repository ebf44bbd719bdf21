"""Services over gRPC without generated code: a method takes bytes and answers with bytes, or with a stream of them, or
takes a stream and answers with one.

Trust is decided by the address: plain text stays on this host (unix sockets, loopback); everything else needs mutual
TLS, in which both sides show a certificate of the run's own authority. An error of this package raised in a method
travels as the status details, word for word; of any other the type alone, since its text may hold data. Every call has
a deadline and `connect` returns a channel that has answered, so a missing service is an error, not a hang.
"""

from __future__ import annotations

import inspect
import ipaddress
import logging
import os
import socket
import ssl
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from hummingbird.errors import EnvironmentProblem, HummingbirdError, InputError, PeerError, TrustError

# A streamed answer comes in messages of this size. Measured over a unix socket, 40 MB take 70 ms in messages of 64 KiB,
# 50 ms at 256 KiB, 42 ms at 1 MiB and 47 ms above. The limit on a message is gRPC's own default, for long requests.
CHUNK = 1 << 20
MAX_MESSAGE = 4 << 20
WORKERS = 32  # methods at work or waiting at a time
_DETAILS = 600  # characters of an error on the wire: gRPC's headers hold 8 KiB, an escaped character up to 12 bytes
_PREFIX = "/hummingbird/"
_KEEPALIVE = [("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 10_000)]
_LIMITS = [("grpc.max_send_message_length", MAX_MESSAGE), ("grpc.max_receive_message_length", MAX_MESSAGE)]
_log = logging.getLogger(__name__)

Method = Callable[[bytes, grpc.ServicerContext], "bytes | Iterator[bytes]"]


class Exchange(NamedTuple):
    """A method of two streams: a generator function that reads the caller's messages while it yields its own."""

    function: Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]


@dataclass(frozen=True)
class Tls:
    """Mutual TLS: paths of this side's certificate chain and key, and of everyone's authority (PEM, no passphrase)."""

    cert: str | os.PathLike[str]
    key: str | os.PathLike[str]
    ca: str | os.PathLike[str]

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """For plain sockets: the connecting and the accepting side; both demand the other's certificate, TLS 1.3.

        EnvironmentProblem for files that cannot be used.
        """
        _read(self)
        pair = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for context in pair:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_cert_chain(self.cert, self.key)
                context.load_verify_locations(self.ca)
            except ssl.SSLError as error:  # what OpenSSL refuses by its own rules, a short key for instance
                what = f"not usable TLS files: {error.reason or 'OpenSSL refuses them'}"
                raise EnvironmentProblem(what, where=str(self.cert)) from None
        return pair


# Both sides -----------------------------------------------------------------------------------------------------------


def check_address(address: str, tls: Tls | None) -> None:
    """InputError unless `address` is unix:PATH or HOST:PORT; TrustError for another host in plain text."""
    hint = "use unix:PATH, HOST:PORT or [IPV6]:PORT"
    if address.startswith("unix:"):
        if not 0 < len(os.fsencode(address[5:])) <= 107:  # sockaddr_un holds 108 bytes, the last one zero
            raise InputError("a unix socket's path has 1 to 107 bytes", where=address, hint="use a shorter directory")
        return
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not host or (":" in host and not bracketed) or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InputError(f"not an address: {address!r}", hint=hint)
    if tls is None and not _loopback(host.strip("[]")):
        raise TrustError(
            "plain text is for unix sockets and loopback addresses only: on a network, seeds could be read or replaced",
            where=address,
            hint="give certificates (mutual TLS), or use unix:PATH or 127.0.0.1:PORT on one host",
        )


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(tls: Tls) -> tuple[bytes, bytes, bytes]:
    """The three files, parsed here because gRPC accepts anything and then fails at every handshake, in its log only."""
    content = []
    for path in (tls.cert, tls.key, tls.ca):
        try:
            content.append(Path(path).read_bytes())
        except OSError as error:
            raise EnvironmentProblem(f"cannot read a TLS file: {error.strerror}", where=str(path)) from None
    path = tls.cert
    try:
        certified = x509.load_pem_x509_certificates(content[0])[0].public_key()
        path = tls.key
        public = load_pem_private_key(content[1], None).public_key()
        path = tls.ca
        x509.load_pem_x509_certificates(content[2])
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        hint = "PEM files are needed, the key without a passphrase"
        raise EnvironmentProblem(f"not a usable TLS file: {error}", where=str(path), hint=hint) from None
    if certified != public:
        raise EnvironmentProblem(f"the key does not belong to the certificate {tls.cert}", where=str(tls.key))
    return content[0], content[1], content[2]


# Server ---------------------------------------------------------------------------------------------------------------


def serve(handlers: Mapping[str, Method | Exchange], address: str, tls: Tls | None = None) -> grpc.Server:
    """Start a server of the named methods; a generator function makes a streaming one, an `Exchange` two streams.

    Keep the result: a server that is garbage collected stops. With `tls`, clients without a certificate of its
    authority are refused. A unix socket is made for this user only.
    Raises InputError and TrustError (see `check_address`), EnvironmentProblem (bad certificates, address in use).

        server = serve({"Echo": lambda request, context: request}, "unix:/run/user/1000/echo.sock")
    """
    check_address(address, tls)
    if address.startswith("unix:"):
        _claim(address[5:])
    server = grpc.server(
        ThreadPoolExecutor(WORKERS, thread_name_prefix="hummingbird-service"),
        options=[
            ("grpc.so_reuseport", 0),  # otherwise two servers share a port, and sessions fall apart
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
            *_KEEPALIVE,
            *_LIMITS,
        ],
        maximum_concurrent_rpcs=8 * WORKERS,
    )
    methods = {"Ping": grpc.unary_unary_rpc_method_handler(lambda request, context: b"")}
    for name, function in handlers.items():
        if isinstance(function, Exchange):
            methods[name] = grpc.stream_stream_rpc_method_handler(_streaming(function.function))
        elif inspect.isgeneratorfunction(function):
            methods[name] = grpc.unary_stream_rpc_method_handler(_streaming(function))
        else:
            methods[name] = grpc.unary_unary_rpc_method_handler(_unary(function))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_PREFIX.strip("/"), methods),))
    mask = os.umask(0o077)  # whoever can open a unix socket can call the service
    try:
        if tls is None:
            server.add_insecure_port(address)
        else:
            cert, key, ca = _read(tls)
            server.add_secure_port(address, grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True))
    except RuntimeError as error:
        hint = "is another process using it, and does the address belong to this host?"
        raise EnvironmentProblem(f"cannot listen: {error}", where=address, hint=hint) from None
    finally:
        os.umask(mask)
    server.start()
    return server


def common_name(context: grpc.ServicerContext) -> str | None:
    """The common name in the caller's verified certificate; None in plain text."""
    names = context.auth_context().get("x509_common_name", [])
    return names[0].decode(errors="replace") if names else None


def _claim(path: str) -> None:
    """Remove a socket that a killed server has left; gRPC would take it away from a living one just as well."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISSOCK(mode):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
                return
            except OSError:
                pass  # cannot tell: leave it alone
    raise EnvironmentProblem("cannot listen: the path is in use", where=f"unix:{path}", hint="choose another path")


def _unary(function: Method) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            result = function(request, context)
            assert isinstance(result, bytes)
            return result
        except Exception as error:
            raise _refuse(error, context) from None

    return answer


def _streaming(function: Callable[..., Any]) -> Callable[[Any, grpc.ServicerContext], Iterator[bytes]]:
    def answer(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            yield from function(request, context)
        except Exception as error:
            raise _refuse(error, context) from None

    return answer


def _refuse(error: Exception, context: grpc.ServicerContext) -> Exception:
    """End the call with the error's text; abort() itself raises, the result is for readers and checkers."""
    if isinstance(error, HummingbirdError):
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error)[:_DETAILS])
    _log.error("a method failed", exc_info=error)
    context.abort(grpc.StatusCode.INTERNAL, f"the service failed: {type(error).__name__}")
    return error


# Client ---------------------------------------------------------------------------------------------------------------


def connect(address: str, tls: Tls | None = None, timeout: float = 60.0) -> grpc.Channel:
    """A channel to a service that has answered; keeps trying for `timeout` seconds while nothing listens.

    With `tls`, the service must show a certificate of its authority, for the address's host name (`localhost` for a
    unix socket). Raises InputError and TrustError (see `check_address`), EnvironmentProblem (certificate files), and
    PeerError, early where the handshake itself is refused.
    """
    check_address(address, tls)
    options: list[tuple[str, int | str]] = [
        ("grpc.enable_http_proxy", 0),  # a proxy from the environment must not get in between
        # No min_reconnect_backoff_ms: gRPC ends an attempt after that time too, in the middle of its TLS handshake.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.http2.max_pings_without_data", 0),
        *_KEEPALIVE,
        *_LIMITS,
    ]
    if tls is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        cert, key, ca = _read(tls)
        if address.startswith("unix:"):
            options.append(("grpc.ssl_target_name_override", "localhost"))
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, cert), options=options)
    try:
        _wait_for_answer(channel, address, time.monotonic() + timeout)
    except BaseException:
        channel.close()
        raise
    return channel


def _wait_for_answer(channel: grpc.Channel, address: str, deadline: float) -> None:
    closed = 0
    while True:
        left = deadline - time.monotonic()
        try:
            call(channel, "Ping", b"", timeout=min(max(left, 0.1), 10.0))
            return
        except grpc.RpcError as error:
            details = str(error.details())
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise explain(error, address) from None
            if "handshake" in details.lower() or "verification" in details.lower():
                hint = "both sides need certificates of one authority, the service's for the name in its address"
                raise PeerError(f"TLS failed: {details}", where=address, hint=hint) from None
            # A side that dislikes our certificate, or speaks TLS when we do not, closes without a word (TLS 1.3 lets
            # it). So does one that is just going down: hence five times.
            closed += "closed" in details.lower() or "reset" in details.lower()
            if closed == 5:
                hint = "does it expect TLS, and a certificate of another authority than ours?"
                raise PeerError(f"the connection is refused: {details}", where=address, hint=hint) from None
            if left <= 0:
                hint = "is the service running, and is its address right?"
                raise PeerError(f"nothing answers: {details}", where=address, hint=hint) from None
        time.sleep(0.05)


def call(channel: grpc.Channel, method: str, request: bytes, *, timeout: float) -> bytes:
    """One message each way; grpc.RpcError on failure, which `explain` puts in words."""
    answer: bytes = channel.unary_unary(_PREFIX + method)(request, timeout=timeout)
    return answer


def begin(channel: grpc.Channel, method: str, request: bytes, *, timeout: float) -> Any:
    """`call`, begun: a future of gRPC's, whose result() is the answer."""
    return channel.unary_unary(_PREFIX + method).future(request, timeout=timeout)


def stream(channel: grpc.Channel, method: str, request: bytes, *, timeout: float) -> Any:
    """One message there, a stream of messages back: iterate, then `trailing_metadata()`."""
    return channel.unary_stream(_PREFIX + method)(request, timeout=timeout)


def exchange(channel: grpc.Channel, method: str, requests: Iterator[bytes], *, timeout: float) -> Any:
    """A stream of messages each way: gRPC's own thread iterates `requests`; iterate the result as that of `stream`."""
    return channel.stream_stream(_PREFIX + method)(requests, timeout=timeout)


def explain(error: grpc.RpcError, where: str) -> PeerError:
    """A failed call in words: the service's own where it refused, otherwise what became of the connection."""
    code, details = error.code(), str(error.details())
    what, _, hint = details.partition("\nhint: ")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        what, hint = "no answer in time", "is it overloaded or stopped? A larger timeout may help"
    elif code == grpc.StatusCode.UNAVAILABLE:
        what, hint = f"the connection is lost: {details}", "did it end, or was it killed? Its own output may say why"
    elif code not in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INTERNAL):
        what = f"{code.name}: {details}"
    return PeerError(what, where=where, hint=hint)
