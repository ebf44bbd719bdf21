"""The ledger of a store: it marks each slot as used, on the disk before the slot is handed out, so that no slot is used
twice after a crash.

The ledger is a text file of one JSON object per line, which is only appended to and flushed line by line. An unreadable
line, cut off by a crash, may have been the mark of a slot, and counts as one. If a full disk takes only a part of a
line, the part is removed, and no slot is handed out; if that fails too, this process writes no further lines, since the
next line would be joined to the torn one, and its mark lost. The file is locked while a process uses the store.

The ledger cannot detect a folder that is restored from a backup, or used as two copies at once: such a folder has
forgotten used slots. The parties take the highest of all their slots, so that all folders of a store would have to be
restored together.
"""

from __future__ import annotations

import json
from pathlib import Path

from hummingbird import records
from hummingbird.disk import Appended
from hummingbird.errors import DealerError, DiskError, HummingbirdError, InputError


def beginning(set_id: str) -> bytes:
    """Return the content of the ledger of the set of slots `set_id`, with no slot used."""
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
    """Return the number of the first slot that may be unused after a line of a ledger.

    slot: the same number before that line. entry: the line, parsed.
    """
    used = entry.get("used")
    if type(used) is int and used >= 0:
        return max(slot, used + 1)
    bound = isinstance(entry.get("bound"), str) and isinstance(entry.get("digest"), str)
    return slot if bound else slot + 1


def looked_at(path: Path) -> int:
    """Read a ledger that another process may be writing; return the number of the first slot that may be unused.

    Raises OSError if the file is gone.
    """
    slot = 0
    for line in _lines(path.read_bytes())[1:]:
        slot = _after(slot, _parse(line))
    return slot


class Ledger:
    """A ledger that this process has locked: it marks slots of a store as used.

    path: its file. set_id: the name of the set of slots, which were dealt together. next: the number of the first slot
    after all marked ones. error: the class of the errors that methods raise.
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
                hint="every slot is for single use: wait until that process ends, or make a second store",
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
        """Mark a slot as used, on the disk when this returns.

        Raises `error` for a slot that may have been used before.
        """
        if slot < self._first or slot in self._marked:
            raise self._error(
                f"slot {slot} has been handed out already", where=str(self.path), hint="randomness is for single use"
            )
        self._append({"used": slot})
        self._marked.add(slot)
        self.next = max(self.next, slot + 1)

    def bind(self, name: str, digest: bytes) -> None:
        """Record, on the disk, that the store serves only the thing of this name that has this digest.

        name: of the thing, such as a net or an owner of weights. Raises `error` if the store is bound to another digest
        under this name.
        """
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
        """Close the file, which releases the lock."""
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
            self._append(None)  # ends a line that a crash has cut off
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
            hint="without it the used slots are unknown: make a new store",
        )
