"""The handshake of two parties: both prove who they are, before the first byte of the protocol.

    the caller   16 bytes: a keyed hash, under the run's token, of caller, called, and which of the two will send
    TLS          if they have certificates, each for the name `party-RANK`; two lanes of a party have the same
    the called   16 bytes: the hash of its answer
    the sender   one byte, on the connection that it has chosen

Neither a port scanner nor a process of another run can compute the hashes. A party has one port for all others and for
all of its lanes: the caller's hash also says which connection this is, in clear, before TLS hides what follows.

Each function is a generator that yields a socket and the `selectors` event that it waits for, and returns its result;
closing the generator closes the connection. So one thread can make all connections at the same time.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import ssl
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from hummingbird.prg import derive

GO = b"!"
HELLO_BYTES = 16
_T = TypeVar("_T")
Steps = Generator[tuple[socket.socket, int], None, _T]


class Hello(NamedTuple):
    """A connection that two parties are to make, by their ranks.

    caller: the party that opens it. called: the party that accepts it. sends: True if the caller will send data on it,
    False if the called party will.
    """

    caller: int
    called: int
    sends: bool

    def hello(self, token: bytes) -> bytes:
        """Return the 16 bytes that the caller sends first: they name this connection, and prove who the caller is.

        token: the run's 16 secret bytes, which only its parties know.
        """
        return derive(token, "call", self.caller, self.called, int(self.sends), size=HELLO_BYTES)

    def answer(self, token: bytes) -> bytes:
        """Return the 16 bytes by which the called party proves that it knows `token`, the run's 16 secret bytes."""
        return derive(token, "answer", self.caller, self.called, int(self.sends), size=HELLO_BYTES)


class Taken(NamedTuple):
    """A connection that this party has accepted.

    hello: the first 16 bytes that the caller sent on it; they name one of the connections that are to be made. call:
    that one, as a `Hello`; None if it belongs to another lane, to which lane 0 then hands the connection.
    """

    connection: socket.socket
    hello: bytes
    call: Hello | None


def listen(host: str, port: int = 0) -> socket.socket:
    """Open a socket at an address of this host, at which other processes can connect; return the socket.

    port: 0 for a free one. Raises OSError if it cannot listen there.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, address = found[0]
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, backlog=128, dualstack_ipv6=both)


def reach(host: str, port: int, attempt: int) -> Steps[socket.socket]:
    """Open a TCP connection to a host name at `port`; a generator, whose result is the connected socket.

    attempt: number of the attempt, from 0; each attempt takes the next of the host's addresses. Yields a socket and the
    event for which the caller waits. Raises OSError on failure.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[attempt % len(found)]
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        code = connection.connect_ex(address)
        if code == errno.EINPROGRESS:
            yield connection, selectors.EVENT_WRITE
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        connection.close()
        raise
    return connection


def introduce(
    connection: socket.socket, call: Hello, token: bytes, context: ssl.SSLContext | None, name: str
) -> Steps[socket.socket]:
    """Do the caller's side of a handshake; a generator, whose result is the connection, with TLS if `context` is given.

    connection: connected to party `call.called`. call: says which connection this is to be. token: the run's 16 secret
    bytes. context: TLS of the connecting side, None for plain text. name: the one that the called party's certificate
    must have. Yields a socket and the event for which the caller waits. Raises OSError if another program answers.
    """
    try:
        connection.sendall(call.hello(token))  # a new connection has room for it
        if context:
            connection = yield from _secure(connection, context, server_hostname=name)
        if (yield from _read(connection, HELLO_BYTES)) != call.answer(token):
            raise OSError("another program answers")
    except BaseException:
        connection.close()
        raise
    return connection


def take(
    connection: socket.socket,
    hello: bytes,
    calls: Mapping[bytes, Hello],
    others: Mapping[bytes, object],
    token: bytes,
    context: ssl.SSLContext | None,
    names: Sequence[str],
) -> Steps[Taken]:
    """Do the accepting side of a handshake; a generator, whose result is the connection and which one it is (`Taken`).

    hello: the connection's first 16 bytes, if lane 0 has read them already; else empty. calls: the connections that
    this lane expects, by their first 16 bytes. others: the first 16 bytes of connections of other lanes; such a
    connection is returned at once, without a handshake. token: the run's 16 secret bytes. context: TLS of the accepting
    side, None for plain text. names: those that the certificates of the parties must have, by rank.
    Yields a socket and the event for which the caller waits. Raises OSError for a caller that is no party of this run.
    """
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = hello or (yield from _read(connection, HELLO_BYTES))
        if hello in others:
            return Taken(connection, hello, None)
        call = calls.get(hello)
        if call is None:
            raise OSError("it is no party of this run")
        if context:
            connection = yield from _secure(connection, context, server_side=True)
            name = _common_name(connection)
            if name != (wanted := names[call.caller]):
                raise OSError(f"{wanted.replace('-', ' ')} has a certificate for {name!r}")
        connection.sendall(call.answer(token))
    except BaseException:
        connection.close()
        raise
    return Taken(connection, hello, call)


def _read(connection: socket.socket, size: int) -> Steps[bytes]:
    data = b""
    while len(data) < size:
        try:
            piece = connection.recv(size - len(data))
        except (BlockingIOError, ssl.SSLWantReadError):
            yield connection, selectors.EVENT_READ
            continue
        if not piece:
            raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
        data += piece
    return data


def _secure(connection: socket.socket, context: ssl.SSLContext, **options: Any) -> Steps[ssl.SSLSocket]:
    secure = context.wrap_socket(connection, do_handshake_on_connect=False, **options)
    try:
        while True:
            try:
                secure.do_handshake()
                return secure
            except ssl.SSLWantReadError:
                yield secure, selectors.EVENT_READ
            except ssl.SSLWantWriteError:
                yield secure, selectors.EVENT_WRITE
    except BaseException:
        secure.close()
        raise


def _common_name(connection: socket.socket) -> str:
    assert isinstance(connection, ssl.SSLSocket)
    subject: Any = (connection.getpeercert() or {}).get("subject", ())
    return next((str(value) for entry in subject for key, value in entry if key == "commonName"), "")
