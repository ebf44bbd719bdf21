"""The journal of a table's updates: on the disk before an update is acknowledged, read again when the server starts.

    entries (entries.py) = header, rows *, states ?, update *

The header names the table by its facts and the states in which it is loaded. An update is the owner's message, word for
word; each names the state that it applies to, so that they stand in order and none is missing. When the file has grown,
all but the last updates are merged into the rows that they leave behind, and the states after them: into a new file,
which takes the old one's place in one step (rename(2)). So it holds each row once at most, and as much again.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hummingbird import disk, records
from hummingbird.errors import AgreementError, DiskError, EnvironmentProblem, HummingbirdError, InputError
from hummingbird.pir.messages import unpack_update
from hummingbird.pir.serving.entries import MAGIC, MOST, Entries, JournalEntry, packed
from hummingbird.pir.table import Facts, State
from hummingbird.records import field
from hummingbird.rpc.frame import pack_tensors, unpack_tensors

GROWN = 64 << 20  # bytes from which updates are merged
KEPT = 8 << 20  # bytes of the last updates, which stay as they are: for a server that is behind
_HEADER, _ROWS, _STATES, _UPDATE = b"H", b"R", b"S", b"U"
_PIECE = 1 << 20  # bytes of merged rows in an entry, about
_log = logging.getLogger(__name__)


_STATE = records.through(
    records.row(records.whole(), records.hexadecimal(16)),
    lambda pair: State(*pair),
    lambda state: (state.version, state.digest),
)
_STATES_KIND = records.many(_STATE, 1 << 16)


@dataclass(frozen=True)
class Header:
    """The table and its states as they are loaded: the first entry of a journal."""

    facts: Facts = field(records.record(Facts))
    states: tuple[State, ...] = field(_STATES_KIND)


class Journal:
    """The journal in a file, made where there is none; one process has it at a time.

    facts: of the whole table. states: of the tables that are made of it (itself, or a plan's), as they are loaded.
    InputError for a file that is damaged or no journal, AgreementError for another table's, EnvironmentProblem where
    the file cannot be made, or another process has it.
    """

    def __init__(self, path: Path, facts: Facts, states: Sequence[State]) -> None:
        self.path, self._facts, self._grown = path, facts, GROWN
        self._draft = path.with_name(f"{path.name}.new")
        self._rows: list[int] = []  # where the entries of merged rows begin
        self._updates: list[int] = []  # and those of updates
        self._unnamed = False  # a rename may not be on the disk
        self._header = records.write(Header(facts, tuple(states))).encode()
        try:
            self._entries = Entries(path, packed(_HEADER, self._header))
            self._draft.unlink(missing_ok=True)  # of a merging that has not come to its end
        except BlockingIOError:
            hint = "each server has a journal of its own: is this one running already?"
            raise EnvironmentProblem("another process has the journal", where=str(path), hint=hint) from None
        except OSError as error:
            hint = "it needs a folder that can be written: --journal FILE"
            raise EnvironmentProblem(f"cannot open the journal: {error.strerror}", where=str(path), hint=hint) from None

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._entries.size

    @property
    def count(self) -> int:
        """How many updates it holds as the owner sent them: the last ones."""
        return len(self._updates)

    def replay(self) -> Iterator[tuple[Tensor, Tensor] | list[State] | bytes]:
        """Everything in the file, once, in order: merged rows (indices, records), the states after them, updates.

        Cuts off what a crash has left behind the last one.
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
                raise self._entries.damaged(entry.at, "an entry that does not belong there")
            end = entry.end
        torn = b"".join(self._entries.pieces(end, min(end + 1, self.size)))
        if end == len(MAGIC) or merged != bool(self._rows) or torn not in (b"", b"\0", _UPDATE):
            raise self._entries.damaged(end, "it is cut off")
        if torn:
            _log.warning("journal %s: an update that was never acknowledged is cut off", self.path)
            self._entries.cut(end)

    def append(self, update: bytes) -> None:
        """Add an update, on the disk when this returns. DiskError where the disk does not take it."""
        try:
            self._name()
            self._updates.append(self._entries.append(_UPDATE, update))
        except OSError as error:
            hint = "the table is as it was: make room at that server, and send the update again"
            what = f"the update cannot be written to the journal: {error.strerror}"
            raise DiskError(what, where=str(self.path), hint=hint) from None

    def update(self, number: int) -> bytes:
        """Update `number` of those that `count` counts, as the owner sent it."""
        return self._entries.read(self._updates[number]).body

    def damaged(self, what: str) -> InputError:
        """The error for the update that `replay` has just given."""
        return self._entries.damaged(self._updates[-1], what)

    def close(self) -> None:
        """Let other processes have the file; may be called twice."""
        self._entries.close()

    # Merging ----------------------------------------------------------------------------------------------------------

    def to_merge(self) -> int:
        """How many of the first updates to merge now: 0 while the file is small."""
        size = self.size
        return sum(at < size - KEPT for at in self._updates) if size >= self._grown else 0

    def merge(self, count: int, states: Sequence[State]) -> list[int]:
        """Write a file in which the first `count` updates are merged, while more may be added to this one. OSError.

        states: after those updates. Returns where its rows' entries begin, for `adopt`.
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
        """Let the merged file, with the other updates behind, take the place of this one. OSError; nothing may be added
        meanwhile.
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
        """Go on with the file as it is; merging is tried again when it has doubled."""
        _log.warning("the journal %s cannot be merged: %s", self.path, what)
        self._grown = 2 * self.size
        with contextlib.suppress(OSError):
            self._draft.unlink(missing_ok=True)

    def _name(self) -> None:
        """Put a rename on the disk: until then a crash may bring the old file back, so that nothing may be added."""
        if self._unnamed:
            disk.sync(self.path.parent)
            self._unnamed = False

    def _last_rows(self, entries: Sequence[int]) -> Iterator[bytes]:
        """The rows that these entries leave behind, each once: bodies of entries of merged rows."""
        seen, held, size = np.zeros(self._facts.rows, np.bool_), list[tuple[Tensor, Tensor]](), 0
        for at in reversed(entries):
            entry = self._entries.read(at)
            if entry.kind == _ROWS:
                indices, records = self._merged(entry)
            else:
                _, indices, records, _ = unpack_update(entry.body, self._facts)
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

    def _check_header(self, entry: JournalEntry) -> None:
        if entry.kind != _HEADER:
            raise self._entries.damaged(entry.at, "an entry that does not belong there")
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
            raise self._entries.damaged(entry.at, "merged rows that the table has not")
        return indices, records


def _told(header: bytes) -> str:
    """A header's table and states in words."""
    try:
        found = records.read(header, Header, name="header", most=MOST)
        states = ", ".join(f"version {state.version} {state.digest.hex()[:8]}" for state in found.states)
        return f"{found.facts.text()}, {states}"
    except InputError:
        return "unknown"


def _joined(parts: Sequence[tuple[Tensor, Tensor]]) -> bytes:
    return pack_tensors([torch.cat([indices for indices, _ in parts]), torch.cat([records for _, records in parts])])
