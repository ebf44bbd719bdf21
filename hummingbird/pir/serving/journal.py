"""The journal of a table's updates: on the disk before an update is acknowledged, replayed when the server starts.

    journal = header, rows *, states ?, update *

The header names the table by its facts and by the states of its parts as they are loaded. An update is the owner's
message, byte for byte; each names the state that it applies to, which fixes their order and shows a missing one. When
the file has grown, all but the last updates are merged: a new file holds the rows that they leave behind and the states
after them, and replaces the old file in one step (rename(2)). So the file holds each row at most once, and at most as
many bytes again in updates.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hummingbird import disk, records
from hummingbird.disk import Appended
from hummingbird.errors import AgreementError, DiskError, EnvironmentProblem, HummingbirdError, InputError
from hummingbird.pir.messages import unpack_update
from hummingbird.pir.table import Facts, State
from hummingbird.records import field
from hummingbird.rpc.admission import MAX_MESSAGE
from hummingbird.rpc.frame import pack_tensors, unpack_tensors

# A file of entries with digests: each entry is complete, or reported as damaged ---------------------------------------
#
#     file  = magic (8), entry *
#     entry = head: kind (1), zeros (7), body's length (8), body's digest (16), digest of these 32 bytes (16); body
#
# A crash while an entry is added leaves a part of it, or zeros in its place. Such a torn entry may be cut off, because
# nobody was told that it is there. Any other fault is damage: an InputError that names the byte.

MAGIC = b"HBPIRJ1\n"
MOST = MAX_MESSAGE + (2 << 20)  # bytes of a body: a message, or a piece of rows that exceeds its size by one message
_HEAD, _SUM = struct.Struct("<c7sQ16s"), 16
_HEAD_BYTES = _HEAD.size + _SUM
_STEP = 1 << 20  # bytes to read at a time


class JournalEntry(NamedTuple):
    """One entry of a journal.

    at: the position of its first byte in the file. kind: one byte. body: its contents.
    """

    at: int
    kind: bytes
    body: bytes

    @property
    def end(self) -> int:
        """Position of the first byte after this entry."""
        return self.at + _HEAD_BYTES + len(self.body)


class Entries:
    """A file of entries with digests, created if missing, which only this process has open; the journal is such a file.

    path: the file. first: the bytes of the first entry of a new file, from `packed`; a file whose creation a crash
    interrupted counts as new. Raises BlockingIOError if another process has the file open, OSError if it cannot be
    created or read, and InputError if it is not a journal.
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
        """Size of the file in bytes."""
        return self._file.size

    def all(self) -> Iterator[JournalEntry]:
        """Yield all complete entries in order; a torn entry at the end, which a crash has left, is ignored."""
        at = len(MAGIC)
        while at < self.size and not self._torn(at):
            entry = self.read(at)
            yield entry
            at = entry.end

    def read(self, at: int) -> JournalEntry:
        """Read the entry that begins at byte `at`. Raises InputError if it is damaged."""
        head = self._file.read(_HEAD_BYTES, at)
        kind, length, digest = self._parsed(at, head)
        body = self._file.read(length, at + _HEAD_BYTES)
        if len(body) != length or _digest(body) != digest:
            raise self.damaged(at, "the body of an entry")
        return JournalEntry(at, kind, body)

    def pieces(self, first: int, last: int) -> Iterator[bytes]:
        """Yield bytes first to last - 1 of the file, in pieces of 1 MiB."""
        for at in range(first, last, _STEP):
            yield self._file.read(min(_STEP, last - at), at)

    def append(self, kind: bytes, body: bytes) -> int:
        """Add an entry, and return the position of its first byte once the entry is on the disk.

        kind: one byte. body: the contents. Raises OSError if it cannot be written.
        """
        at = self.size
        self._file.append(packed(kind, body))
        return at

    def cut(self, size: int) -> None:
        """Truncate the file to its first `size` bytes. Raises OSError."""
        self._file.cut(size)

    def close(self) -> None:
        """Close the file, so that other processes can open it; may be called twice."""
        self._file.close()

    def damaged(self, at: int, what: str) -> InputError:
        """Return the InputError for a file that is damaged at byte `at`. what: a description of the damage."""
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
        """Parse the head of an entry; returns the kind of the entry, and the length in bytes and the digest of its
        body.

        at: the byte where the entry begins, for errors. head: the bytes of the head. Raises InputError if they are
        damaged.
        """
        if len(head) < _HEAD_BYTES or _digest(head[: _HEAD.size]) != head[_HEAD.size :]:
            raise self.damaged(at, "the head of an entry")
        kind, zeros, length, digest = _HEAD.unpack_from(head)
        if any(zeros) or length > MOST:
            raise self.damaged(at, "an entry of another release")
        return kind, length, digest


def packed(kind: bytes, body: bytes) -> bytes:
    """Pack an entry of a journal's file: its head, and its body. kind: one byte. body: at most `MOST` bytes."""
    assert len(body) <= MOST
    head = _HEAD.pack(kind, bytes(7), len(body), _digest(body))
    return head + _digest(head) + body


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_SUM, person=b"hummingbird.jrnl").digest()


# The journal of a table -----------------------------------------------------------------------------------------------

GROWN = 64 << 20  # bytes of a journal from which updates are merged
KEPT = 8 << 20  # bytes of the last updates, which are not merged: for a server that is behind
_HEADER, _ROWS, _STATES, _UPDATE = b"H", b"R", b"S", b"U"
_PIECE = 1 << 20  # approximate bytes of merged rows in an entry
_log = logging.getLogger(__name__)


_STATE = records.through(
    records.row(records.whole(), records.hexadecimal(16)),
    lambda pair: State(*pair),
    lambda state: (state.version, state.digest),
)
_STATES_KIND = records.many(_STATE, 1 << 16)


@dataclass(frozen=True)
class Header:
    """The first entry of a journal: the table's facts, and the states that the served tables had when they
    were loaded.
    """

    facts: Facts = field(records.record(Facts))
    states: tuple[State, ...] = field(_STATES_KIND)


class Journal:
    """A file with all updates of a table, created if missing; only one process can have it open.

    A server writes an update to it before it acknowledges the update, and applies all of them again when it starts.
    path: the file. facts: of the table. states: of the tables that are served (the table itself, or those of a plan),
    as they were loaded from files. Raises InputError for a file that is not a journal, EnvironmentProblem if the file
    cannot be created, or another process has it. Damage, and the journal of another table, show in `replay`.
    """

    def __init__(self, path: Path, facts: Facts, states: Sequence[State]) -> None:
        self.path, self._facts, self._grown = path, facts, GROWN
        self._draft = path.with_name(f"{path.name}.new")
        self._rows: list[int] = []  # first bytes of the entries of merged rows
        self._updates: list[int] = []  # first bytes of the updates' entries
        self._unnamed = False  # whether a rename may not be on the disk yet
        self._header = records.write(Header(facts, tuple(states))).encode()
        try:
            self._entries = Entries(path, packed(_HEADER, self._header))
            self._draft.unlink(missing_ok=True)  # of a merge that did not finish
        except BlockingIOError:
            hint = "each server has a journal of its own: is this one running already?"
            raise EnvironmentProblem("another process has the journal", where=str(path), hint=hint) from None
        except OSError as error:
            hint = "it needs a folder that can be written: --journal FILE"
            raise EnvironmentProblem(f"cannot open the journal: {error.strerror}", where=str(path), hint=hint) from None

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self._entries.size

    @property
    def count(self) -> int:
        """Number of updates in the file that are not merged into rows; these are the newest updates."""
        return len(self._updates)

    def replay(self) -> Iterator[tuple[Tensor, Tensor] | list[State] | bytes]:
        """Yield the file's contents, in order; to be called once. There are three kinds of items:

        pairs (indices, records): rows that merged updates have changed. They come first, if updates were merged.
        one list: the states of the served tables after these updates; it follows the pairs.
        bytes: each later update, as the owner sent it.
        An incomplete entry that a crash has left at the end is cut off. Raises InputError for a damaged file, and
        AgreementError for another table's journal.
        """
        entries, end, merged = self._entries.all(), len(MAGIC), False
        for entry in entries:
            if end == len(MAGIC):
                self._check_header(entry)
            elif entry.kind == _ROWS and not merged and not self._updates:
                self._rows.append(entry.at)
                yield self._merged(entry)
            elif entry.kind == _STATES and not merged and self._rows:
                merged = True
                yield self._states(entry)
            elif entry.kind == _UPDATE and merged == bool(self._rows):
                self._updates.append(entry.at)
                yield entry.body
            else:
                raise self._entries.damaged(entry.at, "an unexpected entry")
            end = entry.end
        torn = b"".join(self._entries.pieces(end, min(end + 1, self.size)))
        if end == len(MAGIC) or merged != bool(self._rows) or torn not in (b"", b"\0", _UPDATE):
            raise self._entries.damaged(end, "it is cut off")
        if torn:
            _log.warning("journal %s: an update that was never acknowledged is cut off", self.path)
            self._entries.cut(end)

    def append(self, update: bytes) -> None:
        """Add an update that the owner has signed; when this returns, the update is on the disk.

        Raises DiskError if it cannot be written.
        """
        try:
            self._name()
            self._updates.append(self._entries.append(_UPDATE, update))
        except OSError as error:
            hint = "the table is unchanged: free disk space at that server, and send the update again"
            what = f"the update cannot be written to the journal: {error.strerror}"
            raise DiskError(what, where=str(self.path), hint=hint) from None

    def update(self, number: int) -> bytes:
        """Return update `number` as the owner sent it, counted from 0 among the updates that are not
        merged into rows.
        """
        return self._entries.read(self._updates[number]).body

    def changes(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all changes of the table, in order: numbers of rows, int64 (n,), and records, uint8 (n, record_bytes).

        No update may be added to the journal meanwhile. Raises InputError for damage since the file was written.
        """
        for at in [*self._rows, *self._updates]:
            yield self._changed(self._entries.read(at))

    def damaged(self, what: str) -> InputError:
        """Return the InputError for a damaged update, the last one that `replay` has yielded. what: a description of
        the damage.
        """
        return self._entries.damaged(self._updates[-1], what)

    def close(self) -> None:
        """Close the file, so that other processes can open it; may be called twice."""
        self._entries.close()

    # Merging ----------------------------------------------------------------------------------------------------------

    def to_merge(self) -> int:
        """Return how many of the oldest updates should be merged into rows now, to make the file smaller; 0 while it is
        small.
        """
        size = self.size
        return sum(at < size - KEPT for at in self._updates) if size >= self._grown else 0

    def merge(self, count: int, states: Sequence[State]) -> list[int]:
        """Write a second file, in which the rows that the first `count` updates have changed stand in place of these
        updates.

        Each row is there once, as it is after the last of them. count: number of the oldest updates to merge.
        states: of the served tables after these updates.
        Further updates may be added to the journal during this call. Returns the positions of the entries of rows in
        the second file, for `adopt`. Raises OSError.
        """
        at, rows = len(MAGIC) + len(packed(_HEADER, self._header)), list[int]()
        with open(self._draft, "wb") as file:
            file.writelines([MAGIC, packed(_HEADER, self._header)])
            for body in self._last_rows([*self._rows, *self._updates[:count]]):
                rows.append(at)
                at += file.write(packed(_ROWS, body))
            file.write(packed(_STATES, json.dumps(_STATES_KIND.plain(states)).encode()))
            disk.flush(file)
        return rows

    def adopt(self, count: int, rows: list[int]) -> None:
        """Replace the journal's file by the file that `merge` has written, after adding the updates that this file
        lacks.

        No update may be added to the journal during this call.
        count: the `count` that `merge` was called with; later updates are the ones to add. rows: the result of `merge`.
        Raises OSError.
        """
        size, rest = self.size, self._updates[count:]
        first, start = rest[0] if rest else size, self._draft.stat().st_size
        disk.append(self._draft, self._entries.pieces(first, size))
        new = Entries(self._draft, packed(_HEADER, self._header))
        try:
            disk.rename(self._draft, self.path)
        except OSError:
            new.close()
            raise
        self._entries.close()
        new.path, self._entries, self._rows, self._unnamed = self.path, new, rows, True
        self._updates = [at - first + start for at in rest]
        self._grown = max(GROWN, 2 * self.size)

    def give_up(self, what: str) -> None:
        """Note that a merge failed, and log the reason `what`; the file stays as it is.

        The next merge is tried when the file has doubled in size.
        """
        _log.warning("the journal %s cannot be merged: %s", self.path, what)
        self._grown = 2 * self.size
        with contextlib.suppress(OSError):
            self._draft.unlink(missing_ok=True)

    def _name(self) -> None:
        """Make sure that the disk knows the new file by the journal's name, after a merge has replaced the file.

        It is called before an update is added. Otherwise a crash could bring back the old file, without this update.
        """
        if self._unnamed:
            disk.sync(self.path.parent)
            self._unnamed = False

    def _last_rows(self, entries: Sequence[int]) -> Iterator[bytes]:
        """Yield the last contents of all rows that some entries of the journal change.

        Each item is bytes: the body of a new entry, with the numbers and records of many rows.
        entries: positions in the file of entries, in order; each has an update, or rows that were merged before. If
        several of them change a row, only its last contents are yielded.
        """
        seen, held, size = np.zeros(self._facts.rows, np.bool_), list[tuple[Tensor, Tensor]](), 0
        for at in reversed(entries):
            indices, records = self._changed(self._entries.read(at))
            new = torch.from_numpy(~seen[indices.numpy()])
            seen[indices.numpy()] = True
            held.append((indices[new], records[new]))
            size += held[-1][0].nbytes + held[-1][1].nbytes
            if size >= _PIECE:
                yield _joined(held)
                held, size = [], 0
        if size:
            yield _joined(held)

    # Reading ----------------------------------------------------------------------------------------------------------

    def _changed(self, entry: JournalEntry) -> tuple[Tensor, Tensor]:
        if entry.kind == _ROWS:
            return self._merged(entry)
        _, indices, records, _ = unpack_update(entry.body, self._facts)
        return indices, records

    def _check_header(self, entry: JournalEntry) -> None:
        if entry.kind != _HEADER:
            raise self._entries.damaged(entry.at, "an unexpected entry")
        if entry.body != self._header:
            hint = "serve the table and the plan that it was made with, or move it away to begin anew"
            what = f"the journal is of another table: {_told(entry.body)}; this one is {_told(self._header)}"
            raise AgreementError(what, where=str(self.path), hint=hint)

    def _states(self, entry: JournalEntry) -> list[State]:
        try:
            return [*records.read(entry.body, _STATES_KIND, name="states", most=MOST)]
        except InputError:
            raise self._entries.damaged(entry.at, "states that cannot be read") from None

    def _merged(self, entry: JournalEntry) -> tuple[Tensor, Tensor]:
        try:
            indices, records = unpack_tensors(entry.body, max_bytes=MOST, max_tensors=2)
        except (HummingbirdError, ValueError):
            raise self._entries.damaged(entry.at, "merged rows that cannot be read") from None
        good = indices.dtype == torch.int64 and indices.dim() == 1 and indices.numel() and records.dtype == torch.uint8
        if not good or records.shape != (len(indices), self._facts.record_bytes):
            raise self._entries.damaged(entry.at, "merged rows of another shape")
        if not 0 <= int(indices.min()) <= int(indices.max()) < self._facts.rows:
            raise self._entries.damaged(entry.at, "merged rows that are not in the table")
        return indices, records


def _told(header: bytes) -> str:
    """Describe the table and the states in a journal's header, as a text for an error. header: the body of the first
    entry.
    """
    try:
        found = records.read(header, Header, name="header", most=MOST)
        states = ", ".join(f"version {state.version} {state.digest.hex()[:8]}" for state in found.states)
        return f"{found.facts.text()}, {states}"
    except InputError:
        return "unknown"


def _joined(parts: Sequence[tuple[Tensor, Tensor]]) -> bytes:
    return pack_tensors([torch.cat([indices for indices, _ in parts]), torch.cat([records for _, records in parts])])
