"""A kept store: the folder of sets of slots that come and go, on one host, and the keeper that deals the sets.

    DIR/kept.json                  what all sets are dealt for, one line; locked by the keeper while it runs
        set-000007/party-RANK/...  a store of a few slots (folder.py), with seeds of its own, for all parties and lanes
        dealing/                   an unfinished set, which only the keeper reads and writes

A finished set appears all at once, when its folder is renamed. Each lane of each party holds the lock of its own part
of a set, and erases the part as soon as no slot of it is left. So a missing part is used up, and no process waits for
the lock of another.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from hummingbird import disk, records
from hummingbird.disk import Appended
from hummingbird.errors import DealerError, InputError
from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.dealer.deal import deal, size_of
from hummingbird.mpc.dealer.folder import (
    CHECKSUMS,
    CORRECTIONS,
    DEALER,
    FACTS,
    FORMAT_VERSION,
    HEADER,
    LEDGER,
    PAIR,
    SEED,
    kinds_of,
    lane_folder,
)
from hummingbird.prg import CIPHERS
from hummingbird.records import field
from hummingbird.slots import looked_at
from hummingbird.version import VERSION

FORMAT = "hummingbird kept store"
DESCRIPTION, DEALING = "kept.json", "dealing"
_SET = "set-"


@dataclass(frozen=True)
class Kept:
    """Description that all sets of a kept store have in common; the file kept.json holds it.

    A kept store is a folder to which `deal --keep` adds sets; each set holds material for a few slices.

    id: 16 random bytes, hexadecimal; in an object store, where several dealers may write it, a digest of the rest.
    facts: what the net must be like, a text for each name (`store.material_facts`).
    shape: of a slice's input.
    slots: for how many slices each set has material, for each lane.
    requests: digest of a slot's requests.
    cipher: the cipher that expands the seeds, one of `prg.CIPHERS`.
    maker: `folder.DEALER`, or `folder.PAIR` if two parties make the sets: then each lane of each party has a kept store
        of its own (mpc/pair/keeping.py).
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
    maker: str = field(records.one_of((DEALER, PAIR)), default=DEALER)
    format: str = records.constant(FORMAT)
    format_version: int = records.constant(FORMAT_VERSION)
    hummingbird_version: str = records.constant(VERSION)

    def part(self, root: Path, number: int, rank: int, lane: int) -> Path:
        """Return the folder of what one lane of party `rank` has of set `number` of the kept store at `root`."""
        folder = set_folder(root, number)
        return folder if self.maker == PAIR else lane_folder(folder, rank, lane)

    def line(self) -> bytes:
        """Return the description as the one line of text, with its line break, that the file kept.json contains."""
        return records.write(self).encode() + b"\n"

    @classmethod
    def read(cls, text: bytes, where: Path | str) -> Kept:
        """Read the description of a kept store from the bytes of its file. where: the file's path, for the error.

        Raises DealerError if the description is damaged, or of another release.
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
    """Return whether `path` is the folder of a kept store, which `deal --keep` fills."""
    return (path / DESCRIPTION).is_file()


def set_folder(root: Path, number: int) -> Path:
    """Return the path of the folder of set `number` of the kept store at `root`; numbers begin at 1."""
    return root / f"{_SET}{number:06d}"


def numbers(root: Path) -> list[int]:
    """Return the numbers of the sets that have a folder in the kept store at `root`, ascending.

    The parties use the sets in this order.
    """
    names = [entry.name.removeprefix(_SET) for entry in os.scandir(root) if entry.name.startswith(_SET)]
    return sorted(int(name) for name in names if name.isdecimal())


def is_there(part: Path) -> bool:
    """Return whether one lane of a party still has its material of a set. part: its folder (`Kept.part`)."""
    return (part / HEADER).is_file()


def erase(folder: Path) -> None:
    """Erase one set's material for one lane of one party: overwrite its seed, then delete all files.

    folder: the folder of the set for this party and lane. The header is deleted first, so that no process takes a
        folder without its seed for a usable one. May be called again after a crash.
    Raises DealerError if the disk refuses.
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


# The keeper -----------------------------------------------------------------------------------------------------------
#
# It deals another set whenever fewer than K slots are unused.
#
# It reads the parties' ledgers without a lock, and never writes a file that they write. So its count of unused slots
# may include a slot that a party is just marking, but never a slot that was not dealt. It deals a set in a folder of
# its own, flushes all files and names to the disk, and renames the folder. A keeper that is killed leaves a folder that
# the next keeper deletes, and never half a set.

LOOK, _IDLE = 0.02, 20  # pause between counts: at least so many seconds, and so many times the duration of a count
SPARE = 64 << 20  # bytes of the disk left to the parties: without room for a mark in a ledger they hand out nothing
_FULL = (errno.ENOSPC, errno.EDQUOT)


def locked(root: Path) -> Appended:
    """Make the folder of a kept store if there is none, and lock it for this process; return its file kept.json.

    Raises InputError for a folder with other files, and DealerError if another keeper is at work.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (root / DESCRIPTION).exists() and any(root.iterdir()):
        raise InputError("the folder is not empty", where=str(root), hint="each store gets a folder of its own")
    try:
        return Appended(root / DESCRIPTION, create=True)
    except BlockingIOError:
        hint = "one keeper for a folder: wait for its end, or name another folder"
        raise DealerError("another keeper is at work here", where=str(root), hint=hint) from None


class Keeper:
    """Object that deals sets of material into one folder, the kept store; each set has some slots for each lane.

    It makes the folder if there is none, and locks it for this process.
    root: the folder.
    what: the arguments steps, shape, slots, parties, facts, lanes and cipher of `deal`, for every set.
    Raises InputError if the folder is kept for other arguments, or holds other files; DealerError if another keeper is
    at work, or if the file kept.json is damaged.
    """

    def __init__(self, root: Path, **what: Any) -> None:
        self.root, self._what = root, what
        self._last = 0  # number of the last set dealt
        self.sets, self.seconds = 0, 0.0  # sets dealt since the start, and seconds of work on the last one
        self._file = locked(root)
        try:
            self.kept = self._described()
            shutil.rmtree(root / DEALING, ignore_errors=True)
        except BaseException:
            self.close()
            raise

    def _described(self) -> Kept:
        what = {name: self._what[name] for name in ("facts", "shape", "slots", "parties", "lanes", "cipher")}
        wanted = Kept(secrets.token_hex(16), requests=requests_digest(self._what["steps"]), **what)
        text = self._file.read(self._file.size, 0)
        if not text.endswith(b"\n") and not numbers(self.root):  # new, or its keeper was killed before the first set
            self._file.cut(0)
            self._file.append(wanted.line())
            disk.sync(self.root)
            return wanted
        found = Kept.read(text, self.root / DESCRIPTION)
        for name in ("shape", "slots", "parties", "lanes", "cipher", "facts", "requests"):
            mine, theirs = (str(getattr(kept, name)) for kept in (wanted, found))
            if mine != theirs:
                what_ = f"this store is kept for other {name}: {theirs[:80]}, and not {mine[:80]}"
                hint = "keep another folder, or give the options with which this one was begun"
                raise InputError(what_, where=str(self.root), hint=hint)
        return found

    @property
    def set_bytes(self) -> int:
        """Size in bytes of the corrections in one set of the kept store, for all parties and lanes."""
        return size_of([], self._what["steps"], self.kept.slots, self.kept.parties, self.kept.lanes)

    def unused(self) -> int:
        """Return how many slots of the folder no party has used, in the lane that has the fewest such slots."""
        left = [0] * self.kept.lanes
        for number in numbers(self.root):
            for lane in range(self.kept.lanes):
                left[lane] += self._unused_in(number, lane)
        return min(left)

    def _unused_in(self, number: int, lane: int) -> int:
        used = 0
        for rank in range(self.kept.parties):
            part = self.kept.part(self.root, number, rank, lane)
            if not is_there(part):
                return 0
            try:
                used = max(used, looked_at(part / LEDGER))
            except FileNotFoundError:  # the lane has just erased it
                return 0
        return max(0, self.kept.slots - used)

    def add(self, progress: Callable[[int], object] = lambda images: None) -> tuple[int, float]:
        """Deal one more set of material into the folder; return the set's number, and the seconds of work.

        progress: called with a slice's number of images after each slice.
        Raises OSError with ENOSPC if the disk has no room.
        """
        if shutil.disk_usage(self.root).free < self.set_bytes + SPARE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.root))
        dealing = self.root / DEALING
        try:
            seconds = deal(dealing, setup=[], progress=progress, **self._what)
            for folder, _, _ in os.walk(dealing, topdown=False):
                disk.sync(Path(folder))
        except BaseException:
            shutil.rmtree(dealing, ignore_errors=True)
            raise
        self._last = max([self._last, *numbers(self.root)]) + 1
        disk.publish(dealing, set_folder(self.root, self._last))
        self.sets, self.seconds = self.sets + 1, seconds
        return self._last, seconds

    def close(self) -> None:
        """Release the folder to another keeper."""
        self._file.close()


def keep(
    keeper: Keeper,
    slots: int,
    progress: Callable[[int], object],
    say: Callable[[str], object],
    full: float = 5.0,
    ready: Callable[[bool], object] = lambda yes: None,
) -> None:
    """Deal sets of material without end, whenever fewer than `slots` slots of the keeper's folder are unused.

    progress: called with a slice's number of images after each slice, and with 0 before each count of unused slots. An
        exception from it ends the loop.
    say: called with a message for each set, and with one when the loop begins to wait because the disk is full.
    full: seconds between attempts while the disk is full.
    ready: called with True when the keeper can deal, and with False while the disk is full.
    """
    waits = False
    ready(True)
    while True:
        progress(0)
        began = time.monotonic()
        if keeper.unused() >= slots:
            time.sleep(max(LOOK, _IDLE * (time.monotonic() - began)))
            continue
        try:
            number, seconds = keeper.add(progress)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            if not waits:
                say(f"the disk is full: a set takes {keeper.set_bytes / 1e6:,.1f} MB; waiting for room")
            waits = True
            ready(False)
            time.sleep(full)
            continue
        waits = False
        ready(True)
        size = f"{keeper.set_bytes / 1e6:,.1f} MB"
        say(f"set {number}: {size}, {seconds:.1f} s; {keeper.unused()} slots unused")


def requests_digest(steps: Sequence[Sequence[Request[Any]]]) -> str:
    """Return a digest, 32 hexadecimal digits, of the requests of a slot's steps."""
    kinds, order = kinds_of(steps)
    texts = [*map(str, chain(*kinds)), str([len(kind) for kind in kinds]), str(order)]
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()
