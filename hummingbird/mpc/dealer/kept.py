"""The folder of a kept store: sets of slots that come and go, on one host.

    DIR/kept.json                  what all sets are dealt for, one line; locked by the keeper (keeper.py) while it runs
        set-000007/party-RANK/...  a store of a few slots (folder.py), with seeds of its own, for all parties and lanes
        dealing/                   an unfinished set, which only the keeper reads and writes

A finished set appears all at once, when its folder is renamed. Each lane of each party holds the lock of its own part
of a set, and erases the part as soon as no slot of it is left. So a missing part is used up, and no process waits for
the lock of another.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hummingbird import disk, records
from hummingbird.errors import DealerError
from hummingbird.mpc.dealer.folder import (
    CHECKSUMS,
    CORRECTIONS,
    FACTS,
    FORMAT_VERSION,
    HEADER,
    LEDGER,
    SEED,
    lane_folder,
)
from hummingbird.prg import CIPHERS
from hummingbird.records import field
from hummingbird.version import VERSION

FORMAT = "hummingbird kept store"
DESCRIPTION, DEALING = "kept.json", "dealing"
_SET = "set-"


@dataclass(frozen=True)
class Kept:
    """Description that all sets of a kept store have in common.

    A kept store is a folder to which `deal --keep` adds sets of material.
    id: 16 random bytes, hexadecimal.
    facts: what the net must be like (`store.material_facts`).
    shape: of a slice's input.
    slots: how many slots each set has for each lane.
    requests: digest of a slice's requests.
    cipher: the cipher that expands the seeds, one of `prg.CIPHERS`.
    format_version: number of the file format of the sets.
    """

    id: str = field(records.digits(16))
    facts: dict[str, str] = field(FACTS)
    shape: tuple[int, ...] = field(records.many(records.whole(1), 64, 1))
    slots: int = field(records.whole(1))
    parties: int = field(records.whole(1))
    lanes: int = field(records.whole(1))
    requests: str = field(records.text(256))
    cipher: str = field(records.one_of([*CIPHERS]))
    format: str = records.constant(FORMAT)
    format_version: int = records.constant(FORMAT_VERSION)
    hummingbird_version: str = records.constant(VERSION)

    def line(self) -> bytes:
        """The description as the one line of text that `kept.json` contains."""
        return records.write(self).encode() + b"\n"

    @classmethod
    def read(cls, text: bytes, where: Path) -> Kept:
        """Read the description from a file's text. Raises DealerError if it is damaged, or of another release.

        where: the file, for the error.
        """
        hint = "delete this folder, and keep another one"
        how: Any = {"name": "description of a kept store", "where": str(where), "hint": hint, "error": DealerError}
        fields = records.of(records.parse(text, **how), records.mapping(records.anything(), 64), **how)
        version, sets = fields.get("hummingbird_version"), fields.get("format_version")
        if version != VERSION:
            what = f"kept by version {str(version)[:40]}, this is version {VERSION}"
            raise DealerError(what, where=str(where), hint="start a new folder with this release")
        if sets != FORMAT_VERSION:
            what = f"kept in sets of format {str(sets or 'before 4')[:40]}, this release reads {FORMAT_VERSION}"
            raise DealerError(what, where=str(where), hint="start a new folder with this release")
        return records.of(fields, cls, **how)


def is_kept(path: Path) -> bool:
    """Whether this is the folder of a kept store."""
    return (path / DESCRIPTION).is_file()


def set_folder(root: Path, number: int) -> Path:
    """The folder of a set; numbers begin at 1."""
    return root / f"{_SET}{number:06d}"


def numbers(root: Path) -> list[int]:
    """Numbers of the sets whose folders exist, in the order of their use."""
    names = [entry.name.removeprefix(_SET) for entry in os.scandir(root) if entry.name.startswith(_SET)]
    return sorted(int(name) for name in names if name.isdecimal())


def is_there(root: Path, number: int, rank: int, lane: int) -> bool:
    """Whether a lane's part of a set exists and has not been erased."""
    return (lane_folder(set_folder(root, number), rank, lane) / HEADER).is_file()


def erase(folder: Path) -> None:
    """Erase a lane's part of a set: overwrite its seed, then delete all files. May be called again after a crash.

    The header goes first, so that no process takes a part without its seed for a usable one. Raises DealerError if the
    disk refuses.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            disk.remove(folder / HEADER)
            disk.overwrite(folder / SEED)
        for name in (SEED, CORRECTIONS, CHECKSUMS, LEDGER, f"{HEADER}.new"):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        hint = "is the disk writable?"
        raise DealerError(f"a used set cannot be erased: {error.strerror}", where=str(folder), hint=hint) from None
    with contextlib.suppress(OSError):  # not empty: other lanes or parties still use the set
        for each in (folder, folder.parent, folder.parent.parent):
            each.rmdir()
