"""The parties' channel: packed tensors over one TCP connection per direction and pair, every frame checked, every
wait bounded.

A frame is a 20-byte header (magic, version, kind, sequence number, a checksum of "layer | dtypes | shapes", length)
and the payload, the tensors' bytes one after the other. A header that is not the expected one is an error that names
both sides, at once; an `ABORT` frame carries the reason why a party stopped.

Why not torch.distributed's point-to-point calls: Gloo terminates the whole process when a peer's message is longer
than the buffer, cannot say why a peer left, has no TLS in PyPI's builds, and its all_reduce of a small tensor takes
1.5 ms on loopback where two sockets need 0.05. A connection per direction lets one thread send while another
receives, also under TLS, whose objects are not safe to share.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import struct
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from hummingbird.cost import HEADER_BYTES
from hummingbird.errors import AgreementError, HummingbirdError, PeerError
from hummingbird.wire import meter

_HEADER = struct.Struct("!2sBBIIQ")  # magic, version, kind, sequence, checksum, length
assert _HEADER.size == HEADER_BYTES
_MAGIC, _VERSION = b"hb", 1
_DATA, _TEXT, _ABORT = 0, 1, 2
_INLINE = (
    32 << 10
)  # below every kernel's default socket buffer, so that a send cannot block on a peer that sends as well
_MAX_TEXT = 1 << 20
_GRACE = 2.0  # seconds granted to a peer to say why it stopped


def describe(tensors: Sequence[Tensor]) -> str:
    """Types and shapes, as both sides of a frame must have them."""
    return ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors)


class Channel:
    """Rank `rank` of `parties`; `outgoing[i]` and `incoming[i]` are connected sockets to and from party i.

    Every method raises PeerError when a party is gone or silent for `timeout` seconds, and AgreementError when it
    sends something else.
    """

    def __init__(
        self,
        rank: int,
        parties: int,
        outgoing: dict[int, socket.socket],
        incoming: dict[int, socket.socket],
        timeout: float,
    ) -> None:
        self.rank, self.parties, self.timeout = rank, parties, timeout
        self._outgoing, self._incoming = outgoing, incoming
        self._sent = dict.fromkeys(outgoing, 0)
        self._received = dict.fromkeys(incoming, 0)
        self._pool = ThreadPoolExecutor(max_workers=max(1, parties - 1), thread_name_prefix="hummingbird-send")
        self.closed = False
        for connection in (*outgoing.values(), *incoming.values()):
            connection.settimeout(timeout)

    @property
    def others(self) -> list[int]:
        """The ranks of the other parties."""
        return [rank for rank in range(self.parties) if rank != self.rank]

    # One round: everybody to everybody -------------------------------------------------------------------------------

    def exchange(self, *tensors: Tensor) -> dict[int, list[Tensor]]:
        """Send `tensors` to every other party, return theirs by rank: 1 round, (N-1) frames sent.

        Types and shapes are the same at all parties. int64 tensors come before uint8 ones (alignment).
        """
        if self.parties == 1:
            return {}
        sending = [self._send(peer, tensors) for peer in self.others]
        received = {peer: self.receive(peer, tensors) for peer in self.others}
        self._finish(sending)
        meter.count(rounds=1)
        return received

    def exchange_text(self, text: str) -> dict[int, str]:
        """Send a text of at most 1 MiB to every other party, return theirs by rank."""
        data = text.encode()
        sending = [self._submit(peer, _TEXT, 0, [memoryview(data)]) for peer in self.others]
        received = {}
        for peer in self.others:
            kind, _, length = self._header(peer)
            if kind != _TEXT or length > _MAX_TEXT:
                raise self._mismatch(peer, length, "a text")
            received[peer] = self._read(peer, length).numpy().tobytes().decode(errors="replace")
        self._finish(sending)
        meter.count(rounds=1)
        return received

    # Point to point ---------------------------------------------------------------------------------------------------

    def send(self, peer: int, *tensors: Tensor) -> None:
        """Send tensors to one party, and return when they are handed to the network."""
        self._finish([self._send(peer, tensors)])

    def receive(self, peer: int, like: Sequence[Tensor]) -> list[Tensor]:
        """Receive tensors of the types and shapes of `like` from one party."""
        sizes = [t.numel() * t.element_size() for t in like]
        checksum = self._checksum(like)
        kind, theirs, length = self._header(peer)
        if kind != _DATA or theirs != checksum or length != sum(sizes):
            raise self._mismatch(peer, length, describe(like))
        payload = self._read(peer, length)
        out, start = [], 0
        for tensor, size in zip(like, sizes, strict=True):
            piece = payload[start : start + size]
            out.append(piece.view(tensor.dtype).view(tensor.shape).to(tensor.device))
            start += size
        return out

    def count_round(self) -> None:
        """Mark a round made of `send` and `receive` calls."""
        if self.parties > 1:
            meter.count(rounds=1)

    # Ending -----------------------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Tell every party why this one stops, and close. Safe to call twice, never raises."""
        if self.closed:
            return
        data = reason.encode()[:_MAX_TEXT]
        for peer, connection in self._outgoing.items():
            try:
                connection.settimeout(_GRACE)
                connection.sendall(_HEADER.pack(_MAGIC, _VERSION, _ABORT, self._sent[peer], 0, len(data)) + data)
            except OSError:
                pass  # that party is gone already, or has stopped reading
        self.close()

    def close(self) -> None:
        """Close all connections; parties that still wait for this one get a PeerError."""
        if self.closed:
            return
        self.closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for connection in (*self._outgoing.values(), *self._incoming.values()):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # not connected any more
            connection.close()

    # Frames -----------------------------------------------------------------------------------------------------------

    def _checksum(self, tensors: Sequence[Tensor]) -> int:
        return zlib.crc32(f"{meter.current_layer()}|{describe(tensors)}".encode())

    def _send(self, peer: int, tensors: Sequence[Tensor]) -> Future[None] | None:
        parts = [t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data for t in tensors]
        return self._submit(peer, _DATA, self._checksum(tensors), parts)

    def _submit(self, peer: int, kind: int, checksum: int, parts: list[memoryview]) -> Future[None] | None:
        if self.closed:
            raise PeerError("the session has ended", where=f"party {self.rank}", hint="call hummingbird.init() again")
        length = sum(len(part) for part in parts)
        header = _HEADER.pack(_MAGIC, _VERSION, kind, self._sent[peer] & 0xFFFFFFFF, checksum, length)
        self._sent[peer] += 1
        meter.count(bits=8 * (len(header) + length))
        if length <= _INLINE:
            self._write(peer, [memoryview(header + b"".join(parts))])
            return None
        return self._pool.submit(self._write, peer, [memoryview(header), *parts])

    def _write(self, peer: int, parts: list[memoryview]) -> None:
        try:
            for part in parts:
                self._outgoing[peer].sendall(part)
        except OSError as error:
            raise self._lost(peer, error) from None

    def _finish(self, sending: Sequence[Future[None] | None]) -> None:
        started = time.perf_counter()
        for future in sending:
            if future is not None:
                future.result()
        meter.count(waited=time.perf_counter() - started)

    def _read(self, peer: int, length: int) -> Tensor:
        started = time.perf_counter()
        buffer = torch.empty(length, dtype=torch.uint8)
        view, done = buffer.numpy().data, 0
        try:
            while done < length:
                count = self._incoming[peer].recv_into(view[done:])
                if not count:
                    raise ConnectionResetError
                done += count
        except OSError as error:
            raise self._lost(peer, error) from None
        meter.count(waited=time.perf_counter() - started)
        return buffer

    def _header(self, peer: int) -> tuple[int, int, int]:
        """Kind, checksum and length of the next frame; raises PeerError for an ABORT frame."""
        magic, version, kind, sequence, checksum, length = _HEADER.unpack(
            self._read(peer, HEADER_BYTES).numpy().tobytes()
        )
        if magic != _MAGIC or version != _VERSION:
            raise AgreementError(
                f"party {peer} speaks wire version {version if magic == _MAGIC else magic!r}, "
                f"party {self.rank} speaks {_VERSION}",
                hint="install the same release everywhere",
            )
        if kind == _ABORT:
            reason = self._read(peer, min(length, _MAX_TEXT)).numpy().tobytes().decode(errors="replace")
            raise PeerError(f"party {peer} stopped: {reason}", where=f"party {self.rank}")
        expected = self._received[peer] & 0xFFFFFFFF
        self._received[peer] += 1
        if sequence != expected:
            raise AgreementError(f"party {peer} sent frame {sequence}, party {self.rank} expected frame {expected}")
        return kind, checksum, length

    def _mismatch(self, peer: int, length: int, expected: str) -> HummingbirdError:
        """The error for a frame of another kind, layer or shape; tells the peer, and asks it what it was doing."""
        mine = f"expects {expected} at layer {meter.current_layer() or '(none)'!r}"
        theirs = f"sent {length} bytes of something else"
        try:
            header = _HEADER.pack(_MAGIC, _VERSION, _ABORT, 0, 0, len(mine.encode())) + mine.encode()
            self._outgoing[peer].sendall(header)
            self._incoming[peer].settimeout(_GRACE)
            left = length
            while left:  # pass over the payload: the next frame says what the peer was doing
                left -= len(self._incoming[peer].recv(min(left, 1 << 20))) or left
            self._header(peer)
        except PeerError as error:
            theirs = error.what.removeprefix(f"party {peer} stopped: ") if "stopped" in error.what else theirs
        except (OSError, HummingbirdError):
            pass  # the peer cannot answer: what is known already must do
        return AgreementError(
            f"the parties are at different places: party {self.rank} {mine}; party {peer} {theirs}",
            hint="all parties must run the same program with the same net, bits and batch size",
        )

    def _lost(self, peer: int, error: OSError) -> PeerError:
        where = f"party {self.rank}, layer {meter.current_layer()}" if meter.current_layer() else f"party {self.rank}"
        if isinstance(error, TimeoutError):
            return PeerError(
                f"party {peer} sent or took nothing for {self.timeout:g} s",
                where=where,
                hint="is it still running, and reachable? hummingbird.init(timeout=...) takes more seconds",
            )
        reason = self._last_words(peer)
        return PeerError(reason or f"party {peer} closed the connection: it ended or was killed", where=where)

    def _last_words(self, peer: int) -> str:
        """The reason in an ABORT frame that a failed send has left unread, if any."""
        connection = self._incoming[peer]
        try:
            connection.settimeout(_GRACE)
            data = connection.recv(1 << 16)
            if len(data) >= HEADER_BYTES and data[:2] == _MAGIC and data[3] == _ABORT:
                return f"party {peer} stopped: {data[HEADER_BYTES:].decode(errors='replace')}"
        except (OSError, ValueError):
            pass  # nothing more to learn
        return ""


# Connecting
# -------------------------------------------------------------------------------------------------------------


def listen(host: str) -> socket.socket:
    """A listening socket on a free port of `host`."""
    server = socket.create_server((host, 0), backlog=64)
    return server


def _secret(token: bytes, rank: int) -> bytes:
    return hashlib.blake2b(rank.to_bytes(4, "little"), key=token, digest_size=16).digest() + rank.to_bytes(4, "little")


def connect(
    rank: int,
    addresses: Sequence[tuple[str, int]],
    server: socket.socket,
    token: bytes,
    timeout: float,
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
) -> Channel:
    """Connect all parties to each other: every ordered pair has a connection, made by its sender.

    addresses: (host, port) by rank. token: 16 bytes known to the parties of this run only; a connection must prove it.
    tls: contexts for the connecting and the accepting side; then party i's certificate must be for the name `party-i`.
    """
    parties = len(addresses)
    deadline = time.monotonic() + timeout
    outgoing: dict[int, socket.socket] = {}
    incoming: dict[int, socket.socket] = {}
    with ThreadPoolExecutor(max_workers=1) as pool:
        accepting = pool.submit(_accept, server, parties, rank, token, deadline, tls[1] if tls else None)
        for peer in range(parties):
            if peer == rank:
                continue
            try:
                connection = socket.create_connection(addresses[peer], timeout=max(0.1, deadline - time.monotonic()))
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if tls:
                    connection = tls[0].wrap_socket(connection, server_hostname=f"party-{peer}")
                connection.sendall(_secret(token, rank))
            except OSError as error:
                raise PeerError(
                    f"cannot connect to party {peer} at {addresses[peer][0]}:{addresses[peer][1]}: {error}",
                    where=f"party {rank}",
                ) from None
            outgoing[peer] = connection
        incoming = accepting.result()
    server.close()
    return Channel(rank, parties, outgoing, incoming, timeout)


def _accept(
    server: socket.socket, parties: int, rank: int, token: bytes, deadline: float, context: ssl.SSLContext | None
) -> dict[int, socket.socket]:
    incoming: dict[int, socket.socket] = {}
    proofs = {_secret(token, peer): peer for peer in range(parties) if peer != rank}
    while len(incoming) < parties - 1:
        try:
            server.settimeout(max(0.1, deadline - time.monotonic()))
            connection, _ = server.accept()
            connection.settimeout(max(0.1, deadline - time.monotonic()))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context:
                connection = context.wrap_socket(connection, server_side=True)
            proof = b""
            while len(proof) < 20 and (piece := connection.recv(20 - len(proof))):
                proof += piece
        except ssl.SSLError:
            continue  # a stranger: whoever it was cannot prove membership
        except OSError:
            missing = sorted(set(proofs.values()) - set(incoming))
            raise PeerError(f"parties {missing} did not connect in time", where=f"party {rank}") from None
        peer = proofs.get(proof)
        if peer is None or peer in incoming or (context and _common_name(connection) != f"party-{peer}"):
            connection.close()
            continue
        incoming[peer] = connection
    return incoming


def _common_name(connection: socket.socket) -> str:
    assert isinstance(connection, ssl.SSLSocket)
    subject: Any = (connection.getpeercert() or {}).get("subject", ())
    return next((str(value) for entry in subject for key, value in entry if key == "commonName"), "")
