"""Claims sets of slots in an object store and reads them ahead of their use, in a thread; imports no torch.

Party 0 chooses the sets. It takes them at random from the first thousand, so that several groups of parties seldom try
for the same one. The other parties claim and read the sets that party 0 names.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from hummingbird.mpc.dealer.bucket import Bucket, unpack
from hummingbird.mpc.dealer.sealing import KeyPair, unseal

READY, LOST, READING = 1, 2, 3  # states of a set; READING and more: how many bytes are read
LOOK = 1.0  # seconds between two looks for new sets while none is known
_REFRESH = 30.0  # and while some are, which other groups may have taken since
_LEAVE = 5.0  # seconds for the thread to end


class SetReader:
    """A thread that claims sets, reads them, and writes the files of each into a folder of its own.

    bucket: where the sets are. key: the party's keys. rank, lane: of the party's lane; rank 0 chooses the sets.
    root: a folder of this process.
    The methods raise the error that ended the thread.
    """

    def __init__(self, bucket: Bucket, key: KeyPair, rank: int, lane: int, root: Path) -> None:
        self._bucket, self._key, self._rank, self._lane, self._root = bucket, key, rank, lane, root
        self._changed = threading.Condition()
        self._states: dict[str, int] = {}  # of this process's sets, until they are taken
        self._folders: dict[str, Path] = {}
        self._chosen: deque[str] = deque()  # sets that are claimed, and not yet returned by `chosen`
        self._queue: deque[tuple[str, bool]] = deque()  # sets to read, and whether they are claimed
        self._wanted = 0  # how many sets are still to be chosen and claimed
        self._free: list[str] = []  # ids of sets that nobody had claimed, as far as this process knows
        self._taken: set[str] = set()  # ids of sets that somebody has claimed
        self._failed: BaseException | None = None
        self._over = False
        self.set_bytes = 0  # of the last set that was read
        self._look()
        self._thread = threading.Thread(target=self._run, name="hummingbird-sets", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many unclaimed sets are there, as of the last look; 1,000 if there are more."""
        with self._changed:
            return len(self._free)

    def want(self, count: int) -> None:
        """Let party 0's thread claim further sets, so that `count` of them are being read, or read and not taken."""
        with self._changed:
            self._raise()
            self._wanted = max(0, count - len(self._states))
            self._changed.notify_all()

    def chosen(self) -> str | None:
        """Return the id of the next set that this thread has chosen and claimed, each once; None if there is none."""
        with self._changed:
            self._raise()
            return self._chosen.popleft() if self._chosen else None

    def begin(self, name: str) -> None:
        """Begin to claim and read the set `name`, which party 0 has chosen."""
        with self._changed:
            self._raise()
            self._add(name, claimed=False)

    def state(self, name: str) -> int:
        """Return the state of a set: READY, LOST if it is gone or another process's, or READING + bytes read."""
        with self._changed:
            self._raise()
            return self._states[name]

    def take(self, name: str) -> Path:
        """Return the folder of a set that is read or lost; this thread forgets the set."""
        with self._changed:
            del self._states[name]
            self._changed.notify_all()
            return self._folders.pop(name)

    def close(self) -> None:
        """End the thread, waiting 5 s at most. Never raises; may be called twice."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_LEAVE)

    def _raise(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _add(self, name: str, *, claimed: bool) -> None:
        self._taken.add(name)
        self._free = [other for other in self._free if other != name]
        self._states[name], self._folders[name] = (
            READING,
            self._root / name / f"party-{self._rank}" / f"lane-{self._lane}",
        )
        self._queue.append((name, claimed))
        self._changed.notify_all()

    # The thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._over:
                if time.monotonic() > self._looked + (_REFRESH if self._free else LOOK):
                    self._look()
                if not (self._choose() or self._read_next()):
                    with self._changed:
                        if not self._over and not self._queue and not self._choosing:
                            self._changed.wait(LOOK)
        except BaseException as problem:  # noqa: BLE001 - the next call of a method raises it
            with self._changed:
                if not self._over:
                    self._failed = problem
                self._changed.notify_all()

    def _look(self) -> None:
        """List sets until a page of them has one that nobody has claimed, as far as this process knows."""
        seen: set[str] = set()
        free: list[str] = []
        last = ""
        for page in self._bucket.names():
            seen.update(page)
            last = max([last, *page])
            with self._changed:
                free = [name for name in page if name not in self._taken]
            if free:
                break
        else:
            last = "~"  # after all ids
        with self._changed:
            self._free = [name for name in free if name not in self._taken]
            self._taken = {name for name in self._taken if name in seen or name > last or name in self._states}
        self._looked = time.monotonic()

    @property
    def _choosing(self) -> bool:
        return self._wanted > 0 and bool(self._free)

    def _choose(self) -> bool:
        """Claim a further set if one is wanted; return whether one was tried."""
        with self._changed:
            if not self._choosing:
                return False
            name = self._free.pop(secrets.randbelow(len(self._free)))
        mine = self._bucket.claim(name)
        with self._changed:
            self._taken.add(name)
            if mine:
                self._wanted -= 1
                self._chosen.append(name)
                self._add(name, claimed=True)
        return True

    def _read_next(self) -> bool:
        """Claim and read the next set in the queue; return whether there was one."""
        with self._changed:
            if not self._queue:
                return False
            name, claimed = self._queue.popleft()
        there = (claimed or self._bucket.claim(name)) and self._read(name)
        with self._changed:
            self._states[name] = READY if there else LOST
            self._changed.notify_all()
        return True

    def _read(self, name: str) -> bool:
        """Read a set that this process has claimed, and delete it; return whether it was there."""
        pieces = self._counted(name)
        if not (first := next(pieces, b"")):
            return False

        def whole() -> Iterator[bytes]:
            yield first
            yield from pieces

        where = f"{self._bucket.where}, set {name}"
        owner = {"name": name, "party": self._rank, "lane": self._lane}
        unpack(unseal(whole(), self._key, **owner, where=where), self._folders[name], where)  # type: ignore[arg-type]
        self._bucket.delete(name)
        return True

    def _counted(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a set, and keep count of them; end early when this thread is to end."""
        size = 0
        for piece in self._bucket.read(name):
            size += len(piece)
            with self._changed:
                self._states[name], self.set_bytes = READING + size, size
            yield piece
            if self._over:
                return
