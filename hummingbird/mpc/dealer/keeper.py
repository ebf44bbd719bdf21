"""The keeper of a kept store: it deals another set whenever fewer than K slots are unused.

It reads the parties' ledgers without a lock, and never writes a file that they write. So its count of unused slots may
include a slot that a party is just marking, but never a slot that was not dealt. It deals a set in a folder of its own,
flushes all files and names to the disk, and renames the folder. A keeper that is killed leaves a folder that the next
keeper deletes, and never half a set.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hummingbird import disk
from hummingbird.disk import Appended
from hummingbird.errors import DealerError, InputError
from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.dealer.deal import deal, size_of
from hummingbird.mpc.dealer.folder import LEDGER, lane_folder
from hummingbird.mpc.dealer.kept import DEALING, DESCRIPTION, Kept, is_there, numbers, set_folder
from hummingbird.slots import looked_at

LOOK, _IDLE = 0.02, 20  # pause between counts: at least so many seconds, and so many times the duration of a count
_SPARE = 64 << 20  # bytes of the disk left to the parties: without room for a mark in a ledger they hand out nothing
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Keeper:
    """Object that deals sets of material into one folder. It makes the folder if there is none, and locks it.

    root: the folder.
    what: what each set is dealt for: the arguments batch, shape, slots, parties, facts, lanes and cipher of `deal`.
    Raises InputError if the folder is kept for other arguments, or holds other files; DealerError if another keeper is
    at work, or if the description is damaged.
    """

    def __init__(self, root: Path, **what: Any) -> None:
        self.root, self._what = root, what
        self._last = 0  # number of the last set dealt
        self.sets, self.seconds = 0, 0.0  # sets dealt since the start, and seconds of work on the last one
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (root / DESCRIPTION).exists() and any(root.iterdir()):
            raise InputError("the folder is not empty", where=str(root), hint="each store gets a folder of its own")
        try:
            self._file = Appended(root / DESCRIPTION, create=True)
        except BlockingIOError:
            hint = "one keeper for a folder: wait for its end, or name another folder"
            raise DealerError("another keeper is at work here", where=str(root), hint=hint) from None
        try:
            self.kept = self._described()
            shutil.rmtree(root / DEALING, ignore_errors=True)
        except BaseException:
            self.close()
            raise

    def _described(self) -> Kept:
        what = {name: self._what[name] for name in ("facts", "shape", "slots", "parties", "lanes", "cipher")}
        wanted = Kept(secrets.token_hex(16), requests=_digest(self._what["batch"]), **what)
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
        """Bytes of a set's corrections, for all parties and lanes."""
        return size_of([], self._what["batch"], self.kept.slots, self.kept.parties, self.kept.lanes)

    def unused(self) -> int:
        """How many slots of the folder no party has used, in the lane in which they are fewest."""
        left = [0] * self.kept.lanes
        for number in numbers(self.root):
            for lane in range(self.kept.lanes):
                left[lane] += self._unused_in(number, lane)
        return min(left)

    def _unused_in(self, number: int, lane: int) -> int:
        used = 0
        for rank in range(self.kept.parties):
            if not is_there(self.root, number, rank, lane):
                return 0
            try:
                used = max(used, looked_at(lane_folder(set_folder(self.root, number), rank, lane) / LEDGER))
            except FileNotFoundError:  # the lane has just erased it
                return 0
        return max(0, self.kept.slots - used)

    def add(self, progress: Callable[[int], object] = lambda images: None) -> tuple[int, float]:
        """Deal another set of material into the folder; return the set's number, and the seconds of work.

        Raises OSError with ENOSPC if the disk has no room.
        """
        if shutil.disk_usage(self.root).free < self.set_bytes + _SPARE:
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
    """Deal sets without end, whenever fewer than `slots` slots are unused.

    progress: called with the number of images dealt, and with 0 before each count of unused slots; an exception from it
        ends the loop.
    say: called with a message for each set, and when the loop waits because the disk is full.
    full: seconds between attempts while the disk is full.
    ready: called with whether the keeper can deal.
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


def _digest(batch: Sequence[Request[Any]]) -> str:
    return hashlib.blake2b("\n".join(map(str, batch)).encode(), digest_size=16).hexdigest()
