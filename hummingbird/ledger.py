"""Single use across crashes: which slots of a store were handed out, on disk before any of it is handed out.

A text file, one JSON object per line, only ever appended to, and synchronised to the disk line by line. A line that
cannot be read, because a crash has cut it off, may be the mark of a slot: it counts as one. A line of which the disk
takes a part only, because it is full, is taken back, and nothing is handed out; where that fails too, this process
writes no more: the next line would be joined to the torn one, and its mark be lost. The file is locked while a process
uses the store.

What this cannot see: a folder that is restored from a backup, or used as two copies at once, forgets what was used.
The parties take the highest of all their slots, so that all folders of a store would have to be set back together.
"""

from __future__ import annotations

import json
from pathlib import Path

from hummingbird import records
from hummingbird.disk import Appended
from hummingbird.errors import DealerError, DiskError, HummingbirdError, InputError


def beginning(set_id: str) -> bytes:
    """The content of a ledger in which nothing is used."""
    return _line({"store": set_id}) + b"\n"


def _line(entry: dict[str, object]) -> bytes:
    return json.dumps(entry).encode()


def _parse(line: bytes) -> dict[str, object]:
    try:
        entry: dict[str, object] = records.read(line, records.mapping(records.anything(), 8), name="line")
    except InputError:
        return {}
    return entry


def _lines(data: bytes) -> list[bytes]:
    return data.rstrip(b"\n").split(b"\n")


def _after(slot: int, entry: dict[str, object]) -> int:
    """The first slot that may be unused after this line, where it was `slot` before."""
    used = entry.get("used")
    if type(used) is int and used >= 0:
        return max(slot, used + 1)
    bound = isinstance(entry.get("bound"), str) and isinstance(entry.get("digest"), str)
    return slot if bound else slot + 1


def looked_at(path: Path) -> int:
    """The first slot that may be unused, of a ledger that another process may be writing. OSError if it is gone."""
    slot = 0
    for line in _lines(path.read_bytes())[1:]:
        slot = _after(slot, _parse(line))
    return slot


class Ledger:
    """The ledger `path` of this set; `next`: the first slot that was never marked, nor any after it.

    error: the class of what it raises.
    """

    def __init__(self, path: Path, set_id: str, error: type[HummingbirdError] = DealerError) -> None:
        self.path, self._error = path, error
        self.next = 0
        self._bound: dict[str, str] = {}
        try:
            self._file = Appended(self.path)
        except BlockingIOError:
            raise self._error(
                "another process is using this store",
                where=str(self.path.parent),
                hint="every slot is for one run of one process: wait for its end, or make a second store",
            ) from None
        except OSError as error:
            raise self._damaged(f"{error.strerror}") from None
        try:
            self._read(set_id)
            self._first, self._marked = self.next, set[int]()
        except BaseException:
            self.close()
            raise

    def use(self, slot: int) -> None:
        """Mark a slot as used; it is on the disk when this returns. an error for one that may have been used."""
        if slot < self._first or slot in self._marked:
            raise self._error(
                f"slot {slot} has been handed out already", where=str(self.path), hint="randomness is for single use"
            )
        self._append({"used": slot})
        self._marked.add(slot)
        self.next = max(self.next, slot + 1)

    def bind(self, name: str, digest: bytes) -> None:
        """Remember what the store is used with, on the disk when this returns; an error for something else."""
        before, now = self._bound.get(name), digest.hex()
        if before is None:
            self._append({"bound": name, "digest": now})
            self._bound[name] = now
        elif before != now:
            raise self._error(
                f"the store was used with another {name}",
                where=str(self.path),
                hint="its masks would reveal how the two differ: make another store",
            )

    def close(self) -> None:
        """Give the lock back."""
        self._file.close()

    def _append(self, entry: dict[str, object] | None) -> None:
        try:
            self._file.append((b"" if entry is None else _line(entry)) + b"\n")
        except OSError as error:
            raise self._unwritten(f"{error.strerror}") from None

    def _read(self, set_id: str) -> None:
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise self._damaged(f"{error.strerror}") from None
        first, *lines = _lines(data)
        if first != _line({"store": set_id}):
            raise self._damaged("its first line does not name this store")
        if not data.endswith(b"\n"):
            self._append(None)  # ends the line that a crash has cut off
        for line in lines:
            entry = _parse(line)
            name, digest = entry.get("bound"), entry.get("digest")
            if isinstance(name, str) and isinstance(digest, str):
                self._bound[name] = digest
            self.next = _after(self.next, entry)

    def _unwritten(self, what: str) -> HummingbirdError:
        hint = "nothing was handed out: make room, and run again"
        error = DiskError if issubclass(DiskError, self._error) else self._error
        return error(f"the ledger of used slots cannot be written: {what}", where=str(self.path), hint=hint)

    def _damaged(self, what: str) -> HummingbirdError:
        return self._error(
            f"the ledger of used slots is damaged: {what}",
            where=str(self.path),
            hint="without it nobody knows what was used: make a new store",
        )
