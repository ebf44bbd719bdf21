"""All sessions of a server: a folder for each below its store, known from the start, bounded by name, age and disk.

Sessions that nobody has used for some days are removed, slots and all. What a name may have is apart from what others
have: so many sessions, and of the disk as much as is still free. Callers without a name are one caller here.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hummingbird.errors import ConfigError, StoreError
from hummingbird.hybrid.messages import SESSION_BYTES
from hummingbird.hybrid.session import check_bound, check_owner
from hummingbird.hybrid.store import Store, owner_of, slots_of

SESSIONS = 64  # of one name
DAYS = 90.0  # that a session may stand unused
_OPEN = 128  # stores that are open at a time, each with two files
_DIGITS = set("0123456789abcdef")
WHERE = "the server's store"


@dataclass
class _Session:
    """owner: empty for none. slots, size: slots that are ready and their bytes, of a store that is not open. calls: at
    work with it.
    """

    folder: Path
    owner: str
    slots: int = 0
    size: int = 0
    calls: int = 0
    store: Store | None = None

    @property
    def ready(self) -> tuple[int, int]:
        """Slots that are ready, and their bytes."""
        return (self.slots, self.size) if self.store is None else (len(self.store.ready), self.store.bytes)

    def close(self) -> None:
        """Close the store, if it is open."""
        if self.store is not None:
            self.slots, self.size = self.ready
            self.store.close()
            self.store = None


class Sessions:
    """The sessions below `folder`, which is this process's alone. digest: of the plan to which they are bound.

    disk: bytes that slots may take together; no limit if not given. days: that a session may stand unused. ConfigError
    for a limit that is not above 0.
    """

    def __init__(self, folder: Path, digest: str, *, disk: int | None = None, days: float = DAYS) -> None:
        for name, value in (("disk", disk), ("days", days)):
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}", where="gc-server", hint="more than 0")
        self._folder, self._digest, self._disk, self._days = folder, digest, disk, days
        self._lock = threading.Lock()
        self._beginning: Counter[str] = Counter()  # owners of sessions that are being set up
        self._dealing: list[tuple[str, int]] = []  # owners of slots that are being dealt, and their bytes
        names = (path.name for path in folder.iterdir() if len(path.name) == 2 * SESSION_BYTES and path.is_dir())
        self._sessions = {name: self._found(folder / name) for name in names if set(name) <= _DIGITS}
        with self._lock:
            self._remove_old()

    @staticmethod
    def _found(folder: Path) -> _Session:
        sizes = slots_of(folder)
        return _Session(folder, owner_of(folder), len(sizes), sum(sizes))

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def ready(self) -> tuple[int, int]:
        """Slots that are ready, and their bytes, of all sessions."""
        with self._lock:
            found = [session.ready for session in self._sessions.values()]
        return sum(slots for slots, _ in found), sum(size for _, size in found)

    def begin(self, owner: str, make: Callable[[], Store]) -> None:
        """Have a new session made where its owner may have another; StoreError otherwise, and errors of `make`."""
        with self._lock:
            self._remove_old()
            count = self._beginning[owner] + sum(session.owner == owner for session in self._sessions.values())
            if count >= SESSIONS:
                hint = f"go on with one of them; those that nobody uses for {self._days:g} days are removed"
                raise StoreError(f"you have {count} sessions here, the most", where=WHERE, hint=hint)
            self._beginning[owner] += 1
        made: Store | None = None
        try:
            made = make()
        finally:
            with self._lock:
                self._beginning -= Counter((owner,))  # names that are gone take no memory
                if made is not None:
                    self._sessions[made.header.session] = _Session(made.folder, owner, store=made)
                    self._close_some()

    @contextmanager
    def use(self, name: str, owner: str) -> Iterator[Store]:
        """The store of a session, for a call of its owner's. StoreError where there is none, errors of `check_bound`
        and `check_owner`.
        """
        with self._lock:
            session = self._sessions.get(name)
            if session is None:
                hint = "is it the right server? Otherwise prepare again in another folder: a new session begins"
                raise StoreError(f"the server has no session {name[:8]}...", where=WHERE, hint=hint)
            store = session.store
            if store is None:
                store = Store(session.folder)
            try:
                check_bound(store, "model", self._digest)
                check_owner(store, owner)
            except BaseException:
                if session.store is None:
                    store.close()
                raise
            session.store, session.calls = store, session.calls + 1
            self._sessions[name] = self._sessions.pop(name)  # the one that was used last is the last
            self._close_some()
        try:
            yield store
        finally:
            with self._lock:
                session.calls -= 1

    @contextmanager
    def room(self, owner: str, size: int) -> Iterator[None]:
        """Room on the disk for a slot of so many bytes, which is dealt within. StoreError where there is none."""
        with self._lock:
            self._check_room(owner, size)
            self._dealing.append((owner, size))
        try:
            yield
        finally:
            with self._lock:
                self._dealing.remove((owner, size))

    def close(self) -> None:
        """Give the locks back; may be called twice."""
        with self._lock:
            for session in self._sessions.values():
                session.close()

    def _check_room(self, owner: str, size: int) -> None:
        if self._disk is None:
            return
        self._remove_old()
        all_of = [*self._dealing, *((session.owner, session.ready[1]) for session in self._sessions.values())]
        taken = sum(each for _, each in all_of)
        own = sum(each for whose, each in all_of if whose == owner)
        hint = "use slots that are ready, or have its operator allow more"
        if taken + size > self._disk:
            what = f"slots take {taken / 1e6:.1f} MB, another {size / 1e6:.1f} is above the limit"
            raise StoreError(what, where=WHERE, hint=hint)
        if owner and own + size > self._disk - taken - size:
            what = f"your slots take {own / 1e6:.1f} MB, another {size / 1e6:.1f} is more than is left for others"
            raise StoreError(what, where=WHERE, hint=hint)

    def _remove_old(self) -> None:
        """Remove sessions in which nothing was dealt or used for too long."""
        oldest = time.time() - self._days * 86400
        for name, session in list(self._sessions.items()):
            if session.calls == 0 and _last_use(session.folder) < oldest:
                session.close()
                shutil.rmtree(session.folder, ignore_errors=True)
                del self._sessions[name]

    def _close_some(self) -> None:
        """Close the stores that were used longest ago, but for those at work."""
        opened = [session for session in self._sessions.values() if session.store is not None]
        for session in opened[: max(0, len(opened) - _OPEN)]:
            if session.calls == 0:
                session.close()


def _last_use(folder: Path) -> float:
    """When a slot was last dealt or used there, which changes the folder; long ago for one that is gone."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0
