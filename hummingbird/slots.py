"""Single-use slots on the disk: the files that every store of them has, a header, a seed and a ledger.

A slot is the material of one run, and serves once, even after a crash. Two kinds of stores have slots: a party's store
from a dealer (mpc/dealer/folder.py), and a session's folder of the two-party protocol (hybrid/store.py). What a slot
holds, and in which files, is theirs.

`header.json` says what the slots are for. It is written last, so that a store without it is incomplete. A keyed digest
covers it. Its key is derived from the seed: whoever cannot read the seed cannot change the header unnoticed.

The ledger marks each slot as used, on the disk before the slot is handed out. It is a text file of one JSON object per
line, which is only appended to and flushed line by line. An unreadable line, cut off by a crash, may have been the mark
of a slot, and counts as one. If a full disk takes only a part of a line, the part is removed, and no slot is handed
out; if that fails too, this process writes no further lines, since the next line would be joined to the torn one, and
its mark lost. The file is locked while a process uses the store.

The ledger cannot detect a folder that is restored from a backup, or used as two copies at once: such a folder has
forgotten used slots. The parties take the highest of all their slots, so that all folders of a store would have to be
restored together.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Container
from pathlib import Path
from typing import Any, TypeVar

from hummingbird import disk, records
from hummingbird.disk import Appended
from hummingbird.errors import DealerError, DiskError, HummingbirdError, InputError
from hummingbird.prg import derive
from hummingbird.version import VERSION

HEADER, SEED = "header.json", "seed"
_DIGEST = 16  # bytes
_MOST_TEXT = 64 << 20  # bytes of a header
_H = TypeVar("_H")


def write_header(folder: Path, header: object, seed: bytes) -> None:
    """Write the header of a store to its file, completely or not at all.

    folder: the store. header: a record with the fields format, format_version and hummingbird_version. seed: the
    store's seed, from which the key of the header's digest is derived.
    """
    fields = records.plain(header)
    text = json.dumps({**fields, "digest": header_digest(fields, seed)}, indent=1)
    disk.save(folder / HEADER, [text.encode()], mode=disk.PRIVATE)


def header_digest(fields: dict[str, Any], seed: bytes) -> str:
    """Return a keyed digest, hexadecimal, by which changes of a store's header are noticed.

    fields: the header's. seed: the store's; the key follows from it.
    """
    data = json.dumps(fields, sort_keys=True).encode()
    return hashlib.blake2b(data, key=derive(seed, "store", "header"), digest_size=_DIGEST).hexdigest()


def read_header(
    folder: Path, kind: type[_H], seeds: Container[int], again: str, anew: str, error: type[HummingbirdError]
) -> tuple[_H, bytes]:
    """Read the header and the seed of a store; return both.

    folder: the store. kind: class of the header, a record. seeds: the lengths that a seed may have, in bytes. again,
    anew: hints for a damaged store, and for one of another format or release. error: the class of the error that is
    raised for them.
    """
    try:
        text, seed = (folder / HEADER).read_bytes(), (folder / SEED).read_bytes()
    except OSError as problem:
        raise _damaged_header(folder, f"{problem.strerror}", again, error) from None
    how: Any = {"name": "header", "where": str(folder / HEADER), "hint": again, "error": error}
    parsed = records.parse(text, most=_MOST_TEXT, **how)
    named = records.of(parsed, records.mapping(records.anything(), 64), **how)
    digest = str(named.pop("digest", ""))
    own: Any = kind
    expected, found = (own.format, own.format_version), (named.get("format"), named.get("format_version"))
    if found != expected:
        what = f"this is {str(found[0])[:40]!r}, format {str(found[1])[:40]}"
        what = f"{what}; this release reads {expected[0]!r}, format {expected[1]}"
        raise error(what, where=str(folder / HEADER), hint=anew)
    if (made := named.get("hummingbird_version")) != VERSION:
        what = f"this store was made by version {str(made)[:40]}, this is version {VERSION}"
        raise error(what, where=str(folder), hint=anew)  # another one may draw other randomness
    if len(seed) not in seeds or not hmac.compare_digest(
        digest.encode(errors="replace"), header_digest(named, seed).encode()
    ):
        raise _damaged_header(folder, "header and seed do not fit each other", again, error)
    return records.of(named, kind, **how), seed


def _damaged_header(folder: Path, what: str, again: str, error: type[HummingbirdError]) -> HummingbirdError:
    return error(f"the header is damaged: {what}", where=str(folder / HEADER), hint=again)


# The ledger -----------------------------------------------------------------------------------------------------------


def beginning(set_id: str) -> bytes:
    """Return the text, as bytes, of a new ledger in which no slot is used. set_id: the name of the set of slots."""
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
    """Return the number of the first slot that may be unused, after one more line of a ledger.

    slot: this number before the line. entry: the parsed line; {} for an unreadable line, which counts as if it marked
    slot `slot` as used.
    """
    used = entry.get("used")
    if type(used) is int and used >= 0:
        return max(slot, used + 1)
    bound = isinstance(entry.get("bound"), str) and isinstance(entry.get("digest"), str)
    return slot if bound else slot + 1


def looked_at(path: Path) -> int:
    """Return the number of the first slot that may be unused, according to a ledger.

    path: the ledger; another process may be writing it. Raises OSError if the file is gone.
    """
    slot = 0
    for line in _lines(path.read_bytes())[1:]:
        slot = _after(slot, _parse(line))
    return slot


class Ledger:
    """The file of a store that records which slots are used, opened and locked by this process.

    path: the file. set_id: the name of the set of slots, which were dealt together; the ledger must have it. error: the
    class of the errors that methods raise. `next` is the number of the first slot after all slots that are marked as
    used.
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
        """Mark a slot as used; the mark is on the disk when this returns.

        slot: its number. Raises `error` for a slot that may have been used before.
        """
        if slot < self._first or slot in self._marked:
            raise self._error(
                f"slot {slot} has been handed out already", where=str(self.path), hint="randomness is for single use"
            )
        self._append({"used": slot})
        self._marked.add(slot)
        self.next = max(self.next, slot + 1)

    def bind(self, name: str, digest: bytes) -> None:
        """Record, on the disk, that the store serves only one net, one owner or the like.

        name: what the store is bound to, such as "net", or "weights 0" for the first private weights of a net. digest:
        identifies it. Raises `error` if the store is bound to another digest under this name.
        """
        before, now = self._bound.get(name), digest.hex()
        if before is None:
            self._append({"bound": name, "digest": now})
            self._bound[name] = now
        elif before != now:
            kind, _, number = name.partition(" ")
            which = f" (weight {number}, counted from 0)" if number else ""
            other = f"other private weights{which}" if kind == "weights" else f"another {name}"
            raise self._error(
                f"the store was used with {other}",
                where=str(self.path),
                hint="its masks would reveal how the two differ: make another store",
            )

    def close(self) -> None:
        """Close this ledger's file, which releases the lock."""
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
