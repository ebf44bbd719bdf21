"""Connecting the parties, or one lane of each: one TCP connection per ordered pair, made by its
sender, which proves that it is a party.

The proof is a keyed hash of the rank under the run's token, so that neither a port scanner nor a process of another run
can take a party's place or keep it waiting. With TLS the certificate must be for the name `party-RANK` as well.
"""

from __future__ import annotations

import hashlib
import selectors
import socket
import ssl
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from hummingbird.errors import PeerError
from hummingbird.wire.channel import Channel, named

_HELLO = 5.0  # seconds for a new connection to prove that it is a party's, handshake included
_LOOK = 0.05  # seconds between two looks at whether a party that has still to connect is there
_PROOF_BYTES = 20


def listen(host: str) -> socket.socket:
    """A listening socket on a free port of `host`."""
    server = socket.create_server((host, 0), backlog=64)
    return server


def _left(deadline: float) -> float:
    """Seconds until a deadline; TimeoutError when it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("it took too long")
    return left


def _secret(token: bytes, rank: int) -> bytes:
    return hashlib.blake2b(rank.to_bytes(4, "little"), key=token, digest_size=16).digest() + rank.to_bytes(4, "little")


def connect(
    rank: int,
    addresses: Sequence[tuple[str, int]],
    server: socket.socket,
    token: bytes,
    timeout: float,
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    lane: int | None = None,
) -> Channel:
    """Connect all parties to each other: every ordered pair has a connection, made by its sender.

    rank: of the party. addresses: (host, port) by party. token: 16 bytes known to the parties of this run only; a
    connection must prove it.
    tls: contexts for the connecting and the accepting side; then party i's certificate must be for the name `party-i`.
    lane: which one of the parties' lanes meets here, where they have several; for errors.
    """
    parties = len(addresses)
    deadline = time.monotonic() + timeout
    outgoing: dict[int, socket.socket] = {}
    incoming: dict[int, socket.socket] = {}
    if tls:
        # A ticket would wait unread at the sender of a one-way connection, and turn its end into a reset, which may
        # overtake the last frame.
        tls[1].num_tickets = 0
    try:
        with ThreadPoolExecutor(max_workers=1) as pool:
            accepting = pool.submit(
                _accept, server, incoming, parties, rank, token, deadline, timeout, tls[1] if tls else None, lane
            )
            try:
                for peer in range(parties):
                    if peer != rank:
                        outgoing[peer] = _reach(
                            rank, peer, addresses[peer], token, deadline, tls[0] if tls else None, lane
                        )
                _stay(accepting, outgoing, named(rank, lane), lane)
            except BaseException:
                _wake(server)
                raise
            accepting.result()
    except BaseException:
        for connection in (*outgoing.values(), *incoming.values()):
            connection.close()
        raise
    finally:
        server.close()
    return Channel(rank, parties, outgoing, incoming, timeout, lane)


def _stay(accepting: Future[None], outgoing: dict[int, socket.socket], mine: str, lane: int | None) -> None:
    """Return when all others have connected, or failed to. PeerError as soon as one of them has closed what it was
    reached by: it has failed, or was killed, and would otherwise be waited for until the deadline.
    """
    with selectors.DefaultSelector() as selector:
        for peer, connection in outgoing.items():
            selector.register(connection, selectors.EVENT_READ, peer)  # nothing is ever sent this way but its end
        while not wait([accepting], _LOOK).done:
            for key, _ in selector.select(0):
                if not accepting.done():
                    what = f"{named(key.data, lane)} closed the connection while the parties met"
                    raise PeerError(what, where=mine, hint="it ended, or refuses this party: its own output says why")


def _wake(server: socket.socket) -> None:
    """End a wait for connections in another thread."""
    try:
        server.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # where a listening socket cannot be shut down, the wait ends with its deadline


def _reach(
    rank: int,
    peer: int,
    address: tuple[str, int],
    token: bytes,
    deadline: float,
    context: ssl.SSLContext | None,
    lane: int | None,
) -> socket.socket:
    """A connection to party `peer` that has said who we are."""
    connection: socket.socket | None = None
    try:
        connection = socket.create_connection(address, timeout=_left(deadline))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context:
            connection.settimeout(_left(deadline))  # for the whole handshake
            connection = context.wrap_socket(connection, server_hostname=f"party-{peer}")
        connection.settimeout(_left(deadline))
        connection.sendall(_secret(token, rank))
    except OSError as error:
        if connection is not None:
            connection.close()
        raise PeerError(
            f"cannot connect to {named(peer, lane)} at {address[0]}:{address[1]}: {error}",
            where=named(rank, lane),
            hint="did it end, or is there a firewall between the hosts?",
        ) from None
    return connection


def _accept(
    server: socket.socket,
    incoming: dict[int, socket.socket],
    parties: int,
    rank: int,
    token: bytes,
    deadline: float,
    timeout: float,
    context: ssl.SSLContext | None,
    lane: int | None,
) -> None:
    """Fill `incoming`, by rank, with the connections of all other parties."""
    proofs = {_secret(token, peer): peer for peer in range(parties) if peer != rank}
    refused = ""
    while len(incoming) < parties - 1:
        try:
            server.settimeout(_left(deadline))
            connection, caller = server.accept()
        except OSError:
            missing = sorted(set(proofs.values()) - set(incoming))
            raise PeerError(
                f"parties {missing} did not connect within {timeout:g} s",
                where=named(rank, lane),
                hint=refused or "did they end, or is there a firewall between the hosts?",
            ) from None
        try:
            peer = _prove(connection, proofs, min(deadline, time.monotonic() + _HELLO), context)
        except OSError as error:  # whoever it was has left, says nothing, or fails the handshake: wait for the parties
            peer, refused = None, f"the last connection refused was one from {caller[0]}: {error}"
        if peer is None or peer[0] in incoming:
            connection.close()
        else:
            incoming[peer[0]] = peer[1]


def _prove(
    connection: socket.socket, proofs: dict[bytes, int], deadline: float, context: ssl.SSLContext | None
) -> tuple[int, socket.socket] | None:
    """Which party has connected, and the socket to read from it; None for anybody else, OSError after the deadline."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context:
        connection.settimeout(_left(deadline))  # for the whole handshake
        connection = context.wrap_socket(connection, server_side=True)
    proof = b""
    while len(proof) < _PROOF_BYTES:
        connection.settimeout(_left(deadline))  # a byte now and then does not buy more time
        piece = connection.recv(_PROOF_BYTES - len(proof))
        if not piece:
            break
        proof += piece
    peer = proofs.get(proof)
    if peer is None or (context and _common_name(connection) != f"party-{peer}"):
        return None
    return peer, connection


def _common_name(connection: socket.socket) -> str:
    assert isinstance(connection, ssl.SSLSocket)
    subject: Any = (connection.getpeercert() or {}).get("subject", ())
    return next((str(value) for entry in subject for key, value in entry if key == "commonName"), "")
