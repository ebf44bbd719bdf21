"""The parties' channel: packed tensors over one TCP connection per direction and pair, with checked frames and bounded
waits.

A frame is a 20-byte header (magic, version, kind, sequence number, a checksum of "layer | dtypes | shapes", length)
and the payload, the tensors' bytes one after the other. An unexpected header is an error that names both sides, at
once. An `ABORT` frame carries the reason why a party stopped, a `PLACE` frame what a party expected instead.

One thread reads, and only that thread explains errors. One daemon thread per peer writes long messages: the interpreter
joins other threads at its end, so that a peer that reads nothing would keep a failed process alive.

Why not torch.distributed's point-to-point calls: Gloo terminates the whole process when a peer's message is longer
than the buffer, cannot say why a peer left, has no TLS in PyPI's builds, and its all_reduce of a small tensor takes
1.5 ms on loopback where two sockets need 0.05. A connection per direction lets one thread send while another
receives, also under TLS, whose objects are not safe to share.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from queue import SimpleQueue

import torch
from torch import Tensor

from hummingbird.channel import interleave, meter
from hummingbird.channel.staging import Staging, staging_of
from hummingbird.cost import HEADER_BYTES
from hummingbird.errors import AgreementError, HummingbirdError, PeerError

_HEADER = struct.Struct("!2sBBIIQ")  # magic, version, kind, sequence, checksum, length
assert _HEADER.size == HEADER_BYTES
_MAGIC, _VERSION = b"hb", 1
_DATA, _TEXT, _ABORT, _PLACE = 0, 1, 2, 3
_INLINE = 32 << 10  # below every kernel's socket buffer: two parties that send this much to each other cannot block
MAX_TEXT = 1 << 20
_GRACE = 2.0  # seconds granted to a peer to say why it stopped
_PIECE = 1 << 20  # bytes per call, so that the time limit ends waits for a silent peer, but not for a slow network
_ASK = "its own output says why"
_AGREE = "all parties must run the same program with the same net, bits and batch size"

_Job = tuple["Future[None]", list[memoryview], Callable[[], object]]


def describe(tensors: Sequence[Tensor]) -> str:
    """Return the types and shapes of tensors as text, such as "int64[2, 3]"; both sides of a message compare it."""
    return ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors)


def named(party: int, lane: int | None = None) -> str:
    """Return the name of a party's process for errors, such as "party 1" or "party 1, lane 0".

    party: its rank. lane: None if parties have one lane.
    """
    return f"party {party}" if lane is None else f"party {party}, lane {lane}"


class Channel:
    """All connections of one party to the other parties, over which protocols send and receive tensors.

    rank: this party's rank. parties: the number of parties. outgoing: for each other party's rank, the connected socket
    on which this party sends to it. incoming: likewise, the socket on which this party receives from it. timeout:
    longest silence of a party, in seconds. names: of all parties, in errors; None: those of parties with one lane.
    Every method raises PeerError when a party is gone or silent for `timeout` seconds, and AgreementError when a party
    sends something else than expected.
    """

    def __init__(
        self,
        rank: int,
        parties: int,
        outgoing: dict[int, socket.socket],
        incoming: dict[int, socket.socket],
        timeout: float,
        names: Sequence[str] | None = None,
    ) -> None:
        self.rank, self.parties, self.timeout = rank, parties, timeout
        self.names = [*names] if names else [named(party) for party in range(parties)]
        self._outgoing, self._incoming = outgoing, incoming
        self._sent = dict.fromkeys(outgoing, 0)
        self._received = dict.fromkeys(incoming, 0)
        self._writing = {peer: threading.Lock() for peer in outgoing}
        self._queues: dict[int, SimpleQueue[_Job | None]] = {}
        self._threads: list[threading.Thread] = []
        self._long: dict[int, Future[None]] = {}  # by peer: the last long message, perhaps not yet written
        # By peer: minus the size of the last frame, then the bytes sent by each call.
        self._frame: dict[int, list[int]] = {peer: [] for peer in outgoing}
        self._said: dict[int, str] = {}  # by peer: the text of its ABORT or PLACE frame
        self.closed = False
        for connection in (*outgoing.values(), *incoming.values()):
            connection.settimeout(timeout)

    @property
    def name(self) -> str:
        """The name of this party's process in errors, such as "party 1"."""
        return self.names[self.rank]

    @property
    def others(self) -> list[int]:
        """The ranks of the other parties."""
        return [rank for rank in range(self.parties) if rank != self.rank]

    # One round: everybody to everybody -------------------------------------------------------------------------------

    def exchange(self, *tensors: Tensor) -> dict[int, list[Tensor]]:
        """Send `tensors` to every other party; return a dict from each other party's rank to the list of its tensors.

        Takes 1 round and N - 1 frames. All parties must send tensors of the same types and shapes. Pass int64 tensors
        before uint8 ones, so that both are aligned in the frame.
        """
        if self.parties == 1:
            return {}
        sending = self._send(self.others, tensors)
        interleave.pass_on()
        received = {peer: self.receive(peer, tensors) for peer in self.others}
        self._finish(self.others, sending)
        meter.count(rounds=1)
        return received

    def swap(self, peer: int, tensors: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
        """Send tensors to party `peer` while it sends others to this one; return those, as `receive` does. 1 round.

        like: tensors with the types and shapes that the peer sends; the peer calls `swap` with both exchanged.
        """
        sending = self._send([peer], tensors)
        interleave.pass_on()
        received = self.receive(peer, like)
        self._finish([peer], sending)
        meter.count(rounds=1)
        return received

    def exchange_text(self, text: str) -> dict[int, str]:
        """Send a text of at most 1 MiB to every other party; return a dict from each other party's rank to its text.

        Takes 1 round.
        """
        data = text.encode()
        sending = [self._submit(peer, _TEXT, 0, [memoryview(data)]) for peer in self.others]
        received = {}
        for peer in self.others:
            kind, _, length = self._header(peer)
            if kind != _TEXT or length > MAX_TEXT:
                raise self._mismatch(peer, length, "a text")
            received[peer] = self._read_text(peer, length)
        self._finish(self.others, sending)
        meter.count(rounds=1)
        return received

    # Point to point ---------------------------------------------------------------------------------------------------

    def send(self, peer: int, *tensors: Tensor) -> None:
        """Send tensors to party `peer`; return once they are handed to the network.

        The peer must call `receive` with tensors of the same types and shapes.
        """
        self._finish([peer], self._send([peer], tensors))

    def receive(self, peer: int, like: Sequence[Tensor]) -> list[Tensor]:
        """Receive tensors from party `peer`; return them as a list, on the devices of the tensors in `like`.

        like: tensors with the types and shapes that the peer must send; their values do not count. Raises
        AgreementError if the peer sends other types or shapes.
        """
        sizes = [t.numel() * t.element_size() for t in like]
        checksum = self._checksum(like)
        kind, theirs, length = self._header(peer)
        if kind != _DATA or theirs != checksum or length != sum(sizes):
            raise self._mismatch(peer, length, describe(like))
        stage = staging_of(like)
        payload = self._read(peer, length, stage)
        if stage is not None:
            payload = stage.land(payload)
        out, start = [], 0
        for tensor, size in zip(like, sizes, strict=True):
            piece = payload[start : start + size]
            out.append(piece.view(tensor.dtype).view(tensor.shape).to(tensor.device))
            start += size
        return out

    def count_round(self) -> None:
        """Count one round in the meter, for a round that consists of `send` and `receive` calls."""
        if self.parties > 1:
            meter.count(rounds=1)

    def sockets(self, peer: int) -> tuple[socket.socket, socket.socket]:
        """Return the sockets on which this party sends to `peer` and receives from it, for messages of another kind."""
        return self._outgoing[peer], self._incoming[peer]

    def loss(self) -> str:
        """Return a sentence that names a party which has closed its connection; "" if none has.

        Reads no bytes from the connections, so messages that have arrived stay there.
        """
        if self.closed:
            return ""
        closing = getattr(select, "POLLRDHUP", 0) | select.POLLHUP  # POLLRDHUP, on Linux: even if bytes are unread
        poll, peers = select.poll(), {connection.fileno(): peer for peer, connection in self._incoming.items()}
        for number in peers:
            poll.register(number, closing)
        ended = [peers[number] for number, _ in poll.poll(0)]
        return f"{self._ended(min(ended))} (at {self.name})" if ended else ""

    def _ended(self, peer: int) -> str:
        return f"{self.names[peer]} closed the connection: it ended or was killed"

    # Ending -----------------------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Tell every party for what reason this party stops, and close all connections.

        May be called twice; never raises.
        """
        if self.closed:
            return
        for peer in self._outgoing:
            self._say(peer, _ABORT, reason)
        self.close()

    def close(self) -> None:
        """Close the connections to all other parties. A party that is receiving from this one gets a PeerError."""
        if self.closed:
            return
        self.closed = True
        for queue in self._queues.values():
            queue.put(None)
        for connection in (*self._outgoing.values(), *self._incoming.values()):
            try:
                connection.shutdown(socket.SHUT_RDWR)  # ends a write that waits in another thread
            except OSError:
                pass  # not connected any more
            connection.close()
        for thread in self._threads:
            # A thread that releases its last tensors while the interpreter shuts down would abort the process.
            thread.join(_GRACE)

    # Frames -----------------------------------------------------------------------------------------------------------

    def _checksum(self, tensors: Sequence[Tensor]) -> int:
        return zlib.crc32(f"{meter.current_layer()}|{describe(tensors)}".encode())

    def _send(self, peers: Sequence[int], tensors: Sequence[Tensor]) -> list[Future[None] | None]:
        """Begin to send the same tensors to each of the parties `peers`; do not wait for long messages.

        Returns a list with one entry for each party, in the order of `peers`: None if the message is written already;
        else a future, which is done once the message is written (`_submit`).
        """
        checksum, stage = self._checksum(tensors), staging_of(tensors)
        if stage is not None:
            octets, event = stage.fetch(tensors)
            parts = [part.numpy().data for part in octets]
            return [self._submit(peer, _DATA, checksum, parts, event.synchronize) for peer in peers]
        # as_strided: one element counts as contiguous whatever its stride is, and a view as bytes needs a stride of 1.
        parts = [
            t.detach().cpu().contiguous().as_strided((t.numel(),), (1,)).view(torch.uint8).numpy().data for t in tensors
        ]
        return [self._submit(peer, _DATA, checksum, parts) for peer in peers]

    def _submit(
        self, peer: int, kind: int, checksum: int, parts: list[memoryview], ready: Callable[[], object] | None = None
    ) -> Future[None] | None:
        """Send a frame to a peer: write a short one at once and return None, or queue it and return a future.

        A frame is queued if it is long, follows a frame that is still queued, or has a `ready`. The peer's thread
        writes queued frames; the future is done once its frame is written.
        kind: the frame's kind, such as `_DATA` or `_TEXT`. checksum: of the layer's name and of the tensors' types and
        shapes; the peer compares it with its own. parts: the buffers whose bytes, one after the other, are the payload.
        ready: a function that returns once the buffers may be read; None: they may be read now.
        """
        if self.closed:
            raise PeerError("the session has ended", where=self.name, hint="call hummingbird.init() again")
        length = sum(len(part) for part in parts)
        header = _HEADER.pack(_MAGIC, _VERSION, kind, self._sent[peer] & 0xFFFFFFFF, checksum, length)
        self._sent[peer] += 1
        meter.count(bits=8 * (len(header) + length))
        is_last = peer not in self._long or self._long[peer].done()  # a short frame never passes a long one
        if length <= _INLINE and is_last and ready is None:
            try:
                self._write(peer, [memoryview(header + b"".join(parts))])
            except OSError as error:
                raise self._unsent(peer, error) from None
            return None
        if peer not in self._queues:
            queue = self._queues[peer] = SimpleQueue()
            name = f"hummingbird-send-{peer}"
            thread = threading.Thread(target=self._serve, args=(peer, queue), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)  # only a started one: `close` joins it, also after a signal's exception
        future = self._long[peer] = Future()
        self._queues[peer].put((future, [memoryview(header), *parts], ready or (lambda: None)))
        return future

    def _serve(self, peer: int, queue: SimpleQueue[_Job | None]) -> None:
        """Write queued frames to `peer` until the queue holds None; this is the work of the peer's sending thread.

        A job in the queue is a future, the frame's buffers, and a function that returns once the buffers may be read.
        The future gets the error if writing fails.
        """
        while (job := queue.get()) is not None:
            future, parts, ready = job
            try:
                ready()
                self._write(peer, parts)
            except BaseException as error:  # noqa: BLE001 - _finish raises it in the waiting thread
                future.set_exception(error)
            else:
                future.set_result(None)

    def _write(self, peer: int, parts: Sequence[memoryview]) -> None:
        with self._writing[peer]:
            counts = self._frame[peer] = [-sum(map(len, parts))]
            for part in parts:
                while part:
                    # No bytecode between a call and its count, so that a signal's exception cannot lose the count.
                    counts.extend(map(self._outgoing[peer].send, [part[:_PIECE]]))
                    part = part[counts[-1] :]

    def _torn(self, peer: int) -> bool:
        """Return whether the last frame to `peer` was sent only in part, so that no other frame may follow.

        The peer would take the bytes of another frame for the rest of this one.
        """
        length, *sent = self._frame[peer] or [0]
        return bool(sent) and length + sum(sent) < 0

    def _say(self, peer: int, kind: int, text: str) -> None:
        """Send a text to party `peer` as a frame of kind ABORT or PLACE, if it still reads; never raises.

        An ABORT says why this party stops, a PLACE what this party expected to receive.
        """
        data = text.encode()[:MAX_TEXT]
        if peer in self._long:
            wait([self._long[peer]], _GRACE)  # a queued frame comes first, even if its thread has not begun
        if not self._writing[peer].acquire(timeout=_GRACE):
            return  # a long message is still on its way: that peer has stopped reading
        try:
            if not self._torn(peer):
                self._outgoing[peer].settimeout(_GRACE)
                self._outgoing[peer].sendall(_HEADER.pack(_MAGIC, _VERSION, kind, 0, 0, len(data)) + data)
        except OSError:
            pass  # that party is gone already, or has stopped reading
        finally:
            self._writing[peer].release()

    def _finish(self, peers: Sequence[int], sending: Sequence[Future[None] | None]) -> None:
        started = time.perf_counter()
        for peer, future in zip(peers, sending, strict=True):
            if future is not None:
                try:
                    future.result()  # bounded: every write has a time limit
                except OSError as error:
                    raise self._unsent(peer, error) from None
        meter.count(waited=time.perf_counter() - started)

    def _read(self, peer: int, length: int, stage: Staging | None = None) -> Tensor:
        buffer = torch.empty(length, dtype=torch.uint8) if stage is None else stage.buffer(length)
        self._fill(peer, buffer.numpy().data)
        return buffer

    def _fill(self, peer: int, view: memoryview) -> None:
        started = time.perf_counter()
        try:
            while view:
                count = self._incoming[peer].recv_into(view)
                if not count:
                    raise ConnectionResetError
                view = view[count:]
        except OSError as error:
            raise self._lost(peer, error) from None
        meter.count(waited=time.perf_counter() - started)

    def _read_text(self, peer: int, length: int) -> str:
        return self._read(peer, min(length, MAX_TEXT)).numpy().tobytes().decode(errors="replace")

    def _header(self, peer: int) -> tuple[int, int, int]:
        """Read the next frame's header from a party; return the frame's kind, checksum and payload length in bytes.

        Raises PeerError if it is an ABORT frame, whose text says why the peer stopped; AgreementError if it is a PLACE
        frame, whose text says what the peer expected, and for a frame of another version or out of order.
        """
        header = bytearray(HEADER_BYTES)
        self._fill(peer, memoryview(header))
        magic, version, kind, sequence, checksum, length = _HEADER.unpack(header)
        if magic != _MAGIC or version != _VERSION:
            raise AgreementError(
                f"{self.names[peer]} speaks wire version {version if magic == _MAGIC else magic!r}, "
                f"{self.name} speaks {_VERSION}",
                where=self.name,
                hint="install the same release everywhere",
            )
        if kind == _ABORT:
            self._said[peer] = self._read_text(peer, length)
            what, _, hint = self._said[peer].partition("\nhint: ")
            raise PeerError(f"{self.names[peer]} stopped: {what}", where=self.name, hint=hint or _ASK)
        if kind == _PLACE:
            self._said[peer] = self._read_text(peer, length)
            mine = f"{self.name} is at {_place()}"
            raise self._elsewhere(self._said[peer], mine)
        expected = self._received[peer] & 0xFFFFFFFF
        self._received[peer] += 1
        if sequence != expected:
            raise AgreementError(
                f"{self.names[peer]} sent frame {sequence}, {self.name} expected frame {expected}",
                where=self.name,
                hint="after an error, start again: uninit() and init() at all parties",
            )
        return kind, checksum, length

    def _skip(self, peer: int, length: int) -> None:
        """Read `length` bytes of a payload from party `peer`, and drop them."""
        while length:
            length -= len(self._read(peer, min(length, _PIECE)))

    def _mismatch(self, peer: int, length: int, expected: str) -> HummingbirdError:
        """Return the error for a frame from `peer` that is of another kind, layer or shape than this party expected.

        Before that, tells the peer in a PLACE frame what this party expected, and reads the peer's own PLACE frame.
        length: bytes of the wrong frame's payload, which is skipped. expected: what this party expected, as text.
        """
        mine = f"{self.name} expects {expected} at {_place()}"
        theirs = f"{self.names[peer]} sent {length} bytes of another message"
        self._incoming[peer].settimeout(min(_GRACE, self.timeout))
        try:
            # First read to the end of the payload: the peer may be able to send its own frame only after that.
            self._skip(peer, length)
            self._say(peer, _PLACE, mine)
            self._header(peer)
        except HummingbirdError as error:
            if peer in self._said and isinstance(error, PeerError):
                return error  # the peer has stopped already, and said why
            theirs = self._said.get(peer, theirs)  # the peer cannot answer
        return self._elsewhere(mine, theirs)

    def _elsewhere(self, one: str, other: str) -> AgreementError:
        return AgreementError(f"the parties are at different places: {one}; {other}", where=self.name, hint=_AGREE)

    def _lost(self, peer: int, error: OSError) -> PeerError:
        where = f"{self.name}, layer {meter.current_layer()}" if meter.current_layer() else self.name
        if isinstance(error, TimeoutError):
            return PeerError(
                f"{self.names[peer]} sent or took nothing for {self.timeout:g} s",
                where=where,
                hint="is it still running, and reachable? hummingbird.init(timeout=...) takes more seconds",
            )
        return PeerError(self._ended(peer), where=where, hint=_ASK)

    def _unsent(self, peer: int, error: OSError) -> HummingbirdError:
        """Return the error to raise at this party after sending to party `peer` has failed with `error`.

        If the peer has sent an ABORT frame, which is still unread, the error gives the reason in that frame; otherwise
        it says that the connection is lost. This reads the peer's connection, so only the thread that receives may call
        it.
        """
        if not isinstance(error, TimeoutError):
            try:
                self._incoming[peer].settimeout(min(_GRACE, self.timeout))
                while True:
                    self._skip(peer, self._header(peer)[2])
            except OSError:
                pass  # another thread has closed it meanwhile
            except HummingbirdError as reason:
                if peer in self._said:
                    return reason
        return self._lost(peer, error)


def _place() -> str:
    return f"layer {meter.current_layer()!r}" if meter.current_layer() else "no layer"
