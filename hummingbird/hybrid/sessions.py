"""All sessions of a server: one folder each in its store; limited in number for each name, in age, and in disk space.

Sessions that were not used for some days are removed with their slots. Each name has its own limits: a number of
sessions, and disk space up to the space still free for others. All callers without a name count as one.
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

SESSIONS = 64  # sessions of one name, at most
DAYS = 90.0  # for which a session may be unused
_OPEN = 128  # open stores at a time, each with two files
_DIGITS = set("0123456789abcdef")
WHERE = "the server's store"


@dataclass
class _Session:
    """One session of a server: its folder, and its store while that is open.

    owner: name of the client whose session it is, or empty. slots, size: number of ready slots and their bytes, if the
    store is closed. calls: number of calls in progress.
    """

    folder: Path
    owner: str
    slots: int = 0
    size: int = 0
    calls: int = 0
    store: Store | None = None

    @property
    def ready(self) -> tuple[int, int]:
        """Two numbers: how many slots of this session are ready, and their size in bytes."""
        return (self.slots, self.size) if self.store is None else (len(self.store.ready), self.store.bytes)

    def close(self) -> None:
        """Close the store, if it is open."""
        if self.store is not None:
            self.slots, self.size = self.ready
            self.store.close()
            self.store = None


class Sessions:
    """All sessions of a server, in `folder`, which only this process uses; limits their number, age and disk space.

    digest: the digest of the plan to which all sessions are bound. disk: bytes that all slots may take; None for no
    limit. days: after how many days without use a session is removed. Raises ConfigError for a limit that is not above
    0.
    """

    def __init__(self, folder: Path, digest: str, *, disk: int | None = None, days: float = DAYS) -> None:
        for name, value in (("disk", disk), ("days", days)):
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}", where="gc-server", hint="more than 0")
        self._folder, self._digest, self._disk, self._days = folder, digest, disk, days
        self._lock = threading.Lock()
        self._beginning: Counter[str] = Counter()  # owners of sessions that are being set up
        self._dealing: list[tuple[str, int]] = []  # (owner, bytes) of slots that are being dealt
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
        """Two numbers: how many slots of all sessions are ready, and their size in bytes."""
        with self._lock:
            found = [session.ready for session in self._sessions.values()]
        return sum(slots for slots, _ in found), sum(size for _, size in found)

    def begin(self, owner: str, make: Callable[[], Store]) -> None:
        """Make a new session for a client with the name `owner`, and keep it.

        make: a function that sets the session up and returns its store. Raises StoreError if the owner has too many
        sessions, and the errors of `make`.
        """
        with self._lock:
            self._remove_old()
            count = self._beginning[owner] + sum(session.owner == owner for session in self._sessions.values())
            if count >= SESSIONS:
                hint = f"go on with one of them; those that nobody uses for {self._days:g} days are removed"
                raise StoreError(f"you have {count} sessions here, which is the limit", where=WHERE, hint=hint)
            self._beginning[owner] += 1
        made: Store | None = None
        try:
            made = make()
        finally:
            with self._lock:
                self._beginning -= Counter((owner,))  # removes names with a count of 0
                if made is not None:
                    self._sessions[made.header.session] = _Session(made.folder, owner, store=made)
                    self._close_some()

    @contextmanager
    def use(self, name: str, owner: str) -> Iterator[Store]:
        """Open the store of the session `name` for its owner's call; the `with` block gets the store.

        Raises StoreError if there is no such session, and the errors of `check_bound` and `check_owner`.
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
            self._sessions[name] = self._sessions.pop(name)  # the dictionary is ordered by last use
            self._close_some()
        try:
            yield store
        finally:
            with self._lock:
                session.calls -= 1

    @contextmanager
    def room(self, owner: str, size: int) -> Iterator[None]:
        """Reserve `size` bytes of disk space for the time of the `with` block, in which slots of this size are dealt.

        owner: the owner of the slots' session. Raises StoreError if there is no space.
        """
        with self._lock:
            self._check_room(owner, size)
            self._dealing.append((owner, size))
        try:
            yield
        finally:
            with self._lock:
                self._dealing.remove((owner, size))

    def close(self) -> None:
        """Release the locks on all stores; may be called twice."""
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
        hint = "use ready slots, or ask the server's operator for more space"
        if taken + size > self._disk:
            what = f"slots take {taken / 1e6:.1f} MB, another {size / 1e6:.1f} is above the limit"
            raise StoreError(what, where=WHERE, hint=hint)
        if owner and own + size > self._disk - taken - size:
            what = f"your slots take {own / 1e6:.1f} MB, another {size / 1e6:.1f} is more than is left for others"
            raise StoreError(what, where=WHERE, hint=hint)

    def _remove_old(self) -> None:
        """Remove sessions in which no slot was dealt or used for `days` days."""
        oldest = time.time() - self._days * 86400
        for name, session in list(self._sessions.items()):
            if session.calls == 0 and _last_use(session.folder) < oldest:
                session.close()
                shutil.rmtree(session.folder, ignore_errors=True)
                del self._sessions[name]

    def _close_some(self) -> None:
        """Close the stores of the sessions that have been unused for longest, until only a few stores are open.

        Sessions with calls in progress stay open.
        """
        opened = [session for session in self._sessions.values() if session.store is not None]
        for session in opened[: max(0, len(opened) - _OPEN)]:
            if session.calls == 0:
                session.close()


def _last_use(folder: Path) -> float:
    """Return the time when a slot of the session in this folder was last dealt or used, in seconds since 1970.

    It is the time when the folder last changed; 0 if the folder is gone.
    """
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0
