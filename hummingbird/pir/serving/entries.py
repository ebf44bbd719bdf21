"""A file of entries with digests, to which whole entries are added: what is in it is whole, or named as damaged.

    file  = magic (8), entry *
    entry = head: kind (1), zeros (7), body's length (8), body's digest (16), digest of these 32 bytes (16); body

A crash while an entry is added leaves a part of it, or zeros in its place: that is torn, and may be cut off, for nobody
was told that it is there. Anything else that is wrong is damage, an InputError that names the byte.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hummingbird import disk
from hummingbird.disk import Appended
from hummingbird.errors import InputError
from hummingbird.rpc.admission import MAX_MESSAGE

MAGIC = b"HBPIRJ1\n"
MOST = MAX_MESSAGE + (2 << 20)  # bytes of a body: a message, or a piece of rows with one message too many
_HEAD, _SUM = struct.Struct("<c7sQ16s"), 16
_HEAD_BYTES = _HEAD.size + _SUM
_STEP = 1 << 20  # bytes that are looked at together


class JournalEntry(NamedTuple):
    """One entry: the byte where it begins, its kind, its body."""

    at: int
    kind: bytes
    body: bytes

    @property
    def end(self) -> int:
        """The byte behind it."""
        return self.at + _HEAD_BYTES + len(self.body)


class Entries:
    """The entries of a file, which this process alone has open; made where there is none.

    first: the first entry, packed, of a file that is made, or whose making a crash has cut off. The errors of
    `Appended`, OSError where the file cannot be made, and InputError for one that begins otherwise.
    """

    def __init__(self, path: Path, first: bytes) -> None:
        self.path, self._file, start = path, Appended(path, create=True), MAGIC + first
        try:
            found = self._file.read(len(start), 0)
            if len(found) < len(start) and start.startswith(found):
                self._file.cut(0)
                self._file.append(start)
                disk.sync(path.parent)
            elif not found.startswith(MAGIC):
                hint = "name another file with --journal"
                raise InputError("not a journal of updates", where=str(path), hint=hint)
        except BaseException:
            self._file.close()
            raise

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._file.size

    def all(self) -> Iterator[JournalEntry]:
        """The whole entries in order. What is torn behind the last one is left where it is."""
        at = len(MAGIC)
        while at < self.size and not self._torn(at):
            entry = self.read(at)
            yield entry
            at = entry.end

    def read(self, at: int) -> JournalEntry:
        """The entry that begins at byte `at`."""
        head = self._file.read(_HEAD_BYTES, at)
        kind, length, digest = self._parsed(at, head)
        body = self._file.read(length, at + _HEAD_BYTES)
        if len(body) != length or _digest(body) != digest:
            raise self.damaged(at, "the body of an entry")
        return JournalEntry(at, kind, body)

    def pieces(self, first: int, last: int) -> Iterator[bytes]:
        """Bytes first..last-1 as they are, in pieces."""
        for at in range(first, last, _STEP):
            yield self._file.read(min(_STEP, last - at), at)

    def append(self, kind: bytes, body: bytes) -> int:
        """Add an entry, on the disk when this returns; the byte where it begins. OSError as `Appended.append`."""
        at = self.size
        self._file.append(packed(kind, body))
        return at

    def cut(self, size: int) -> None:
        """Keep the first `size` bytes only. OSError."""
        self._file.cut(size)

    def close(self) -> None:
        """Let other processes have the file; may be called twice."""
        self._file.close()

    def damaged(self, at: int, what: str) -> InputError:
        """The error for what is wrong at byte `at`."""
        hint = "stop this server, and give it a copy of the other server's journal"
        return InputError(
            f"the journal is damaged at byte {at} of {self.size}: {what}", where=str(self.path), hint=hint
        )

    def _torn(self, at: int) -> bool:
        head = self._file.read(_HEAD_BYTES, at)
        if len(head) < _HEAD_BYTES:
            return True
        if not any(head):
            return not any(any(piece) for piece in self.pieces(at, self.size))
        return self._parsed(at, head)[1] > self.size - at - _HEAD_BYTES

    def _parsed(self, at: int, head: bytes) -> tuple[bytes, int, bytes]:
        """Kind, and the body's length and digest, from a head."""
        if len(head) < _HEAD_BYTES or _digest(head[: _HEAD.size]) != head[_HEAD.size :]:
            raise self.damaged(at, "the head of an entry")
        kind, zeros, length, digest = _HEAD.unpack_from(head)
        if any(zeros) or length > MOST:
            raise self.damaged(at, "an entry of another release")
        return kind, length, digest


def packed(kind: bytes, body: bytes) -> bytes:
    """One entry. kind: one byte; body: at most `MOST` bytes."""
    assert len(body) <= MOST
    head = _HEAD.pack(kind, bytes(7), len(body), _digest(body))
    return head + _digest(head) + body


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_SUM, person=b"hummingbird.jrnl").digest()
