"""A connection between two lanes of one party: messages over a Unix socket in a folder of this user alone.

A message is a kind, some fields and some bodies, which are bytes. On the wire: the length of a head, the head as JSON,
with the bodies' sizes, and the bodies one after the other. The last message of a lane that fails has the reason.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from hummingbird import records
from hummingbird.errors import AgreementError, HummingbirdError, InputError, PeerError
from hummingbird.mpc.session.launch import reason_of
from hummingbird.rpc.trust import check_own_folder

_LENGTH = struct.Struct("!I")
_MOST = 1 << 30  # bytes of a head, and of a body
_FIELDS = records.mapping(records.anything(), 16)
_SIZES = records.many(records.whole(0, _MOST), 1 << 24)
_LAST = 2.0  # seconds for the other side to take the reason of a failure
_FAILED = "failed"
_ASK = "its own output says why"


class Message(NamedTuple):
    """A question or an answer, from one side to the other."""

    kind: str
    fields: dict[str, Any]
    bodies: list[bytes]


class LaneLink:
    """One side of a connection, for one thread at a time. mine, other: names of both sides, in errors.

    timeout: the longest silence of the other side, seconds; None: it may be silent as long as it lives.
    """

    def __init__(self, connection: socket.socket, mine: str, other: str, timeout: float | None) -> None:
        self._connection, self._mine, self.other = connection, mine, other
        self._timeout = timeout
        connection.settimeout(timeout)

    def send(self, kind: str, bodies: Iterable[bytes] = (), **fields: Any) -> None:
        """Send a message; PeerError if the other side has gone."""
        bodies = list(bodies)
        head = json.dumps({"kind": kind, "sizes": [len(body) for body in bodies], **fields}).encode()
        try:
            self._connection.sendall(b"".join([_LENGTH.pack(len(head)), head, *bodies]))
        except OSError as error:
            raise self._lost(error) from None

    def receive(self) -> Message:
        """The next message. PeerError if the other side has gone, is silent, or has said why it fails; AgreementError
        for what is no message.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        try:
            fields = records.read(self._read(length), _FIELDS, name="message", most=_MOST)
            kind = records.of(fields.pop("kind", None), records.text(64), name="message")
            sizes = records.of(fields.pop("sizes", None), _SIZES, name="message")
        except InputError:
            what = f"{self.other} sent something else than a message"
            raise AgreementError(what, where=self._mine, hint="install the same release everywhere") from None
        if kind == _FAILED:
            what, _, hint = str(fields.get("reason")).partition("\nhint: ")
            raise PeerError(f"{self.other} stopped: {what}", where=self._mine, hint=hint or _ASK)
        return Message(kind, fields, [self._read(size) for size in sizes])

    def field(self, message: Message, name: str, kind: records.Kind) -> Any:
        """A field of a message of the other side; AgreementError for one that is missing, or of another kind."""
        hint = "install the same release everywhere"
        value = message.fields.get(name)
        return records.of(
            value, kind, name=f"{name} of {self.other}", where=self._mine, hint=hint, error=AgreementError
        )

    def ask(self, kind: str, bodies: Iterable[bytes] = (), **fields: Any) -> Message:
        """Send a message, and receive the answer."""
        self.send(kind, bodies, **fields)
        return self.receive()

    def fail(self, error: BaseException) -> None:
        """Tell the other side why this one stops, and close; never raises."""
        with contextlib.suppress(HummingbirdError, OSError):
            self._connection.settimeout(_LAST)
            self.send(_FAILED, reason=reason_of(error))
        self.close()

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self._connection.close()

    def _read(self, size: int) -> bytes:
        if not 0 <= size <= _MOST:
            raise AgreementError(f"{self.other} sent a message of {size} bytes", where=self._mine)
        data = bytearray(size)
        view, done = memoryview(data), 0
        try:
            while done < size:
                count = self._connection.recv_into(view[done:])
                if not count:
                    raise ConnectionResetError
                done += count
        except OSError as error:
            raise self._lost(error) from None
        return bytes(data)

    def _lost(self, error: OSError) -> PeerError:
        if isinstance(error, TimeoutError):
            what = f"{self.other} sent or took nothing for {self._timeout:g} s"
            return PeerError(what, where=self._mine, hint="is it still running? --timeout takes more seconds")
        what = f"{self.other} closed the connection: it ended or was killed"
        return PeerError(what, where=self._mine, hint=_ASK)


def reach(path: str, mine: str, other: str, timeout: float) -> LaneLink:
    """Connect to a socket of `mpc.corridor.listen`, made by this user. PeerError, and TrustError for a folder of
    somebody else.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        check_own_folder(path, mine)
        connection.settimeout(timeout)
        connection.connect(path)
    except OSError as error:
        connection.close()
        what = f"cannot connect to {other}: {error.strerror or error}"
        raise PeerError(what, where=mine, hint="did it end?") from None
    except HummingbirdError:
        connection.close()
        raise
    return LaneLink(connection, mine, other, timeout)
