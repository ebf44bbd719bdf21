"""Updates of a table while it is served: the owner's only, in order, in all tables made of it at once, durable.

An update is checked, written to the journal, and only then made in memory, between two passes over the table; so a
lookup sees all of it or nothing. Whoever sends an update again is told that it is made, and nothing happens.

It can be offered first: checked, and held in memory until a few bytes say that it is to be made. So both servers of a
table have it before either makes it, and are of two states for the time of one short message.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from torch import Tensor
from tqdm import tqdm

from hummingbird.errors import AgreementError, HummingbirdError, InputError, PeerError
from hummingbird.pir import integrity
from hummingbird.pir.messages import unpack_update
from hummingbird.pir.serving.journal import Journal
from hummingbird.pir.table import Facts, State

_BAR = "{desc}: {percentage:3.0f} % |{bar}| {elapsed}<{remaining}"
_log = logging.getLogger(__name__)


class Served(Protocol):
    """A table that is served, and can be changed; a `server.Server`."""

    lock: threading.Lock

    @property
    def state(self) -> State:
        """The state that it answers from."""

    def write(self, indices: Tensor, records: Tensor) -> None:
        """Replace records, while `lock` is held."""

    def advance(self, state: State) -> None:
        """Answer from this state from now on, while `lock` is held."""

    def fail(self) -> None:
        """Refuse every query from now on: the table is changed in part."""


Spread = Callable[[Tensor, Tensor], Sequence[tuple[Tensor, Tensor]]]


class Updates:
    """The updates of a table, of which `tables` are made; facts: its own.

    owner: public key of who may update, None for nobody. spread: what to write into each of the tables for rows of the
    whole one, by default the same. An update is for the state of the last of the tables. InputError for what is no key.
    """

    def __init__(
        self,
        facts: Facts,
        tables: Sequence[Served],
        owner: bytes | None,
        spread: Spread = lambda indices, records: [(indices, records)],
    ) -> None:
        self._facts, self._tables, self._spread = facts, tables, spread
        self._owner = None if owner is None else integrity.public_key(owner, "pir.Server(owner)")
        self._turn = threading.Lock()  # of whoever changes what follows
        self._failed = False
        self._offered: tuple[bytes, bytes, Tensor, Tensor] | None = None  # digest, message, rows: for the state now
        self._made: list[bytes] = []  # digests of the last updates, in order
        self._before = [table.state for table in tables]  # them
        self._journal: Journal | None = None
        self._merging: threading.Thread | None = None

    @property
    def state(self) -> State:
        """The state that the next update is for."""
        return self._tables[-1].state

    @property
    def journal_bytes(self) -> int:
        """Size of the journal, 0 without one."""
        with self._turn:
            return 0 if self._journal is None else self._journal.size

    def recover(self, path: Path) -> None:
        """Make the updates in a journal again, and keep it from now on; the errors of `Journal`, and InputError for an
        update that does not fit.
        """
        self._journal = journal = Journal(path, self._facts, self._before)
        try:
            self._replay(journal)
        except BaseException:
            journal.close()
            raise

    def make(self, message: bytes) -> None:
        """Make an owner's signed update, unless it is made already.

        Raises InputError for what the owner has not signed, AgreementError for another state, EnvironmentProblem where
        the journal cannot be written, and leaves everything as it is; PeerError after an update that was made in part.
        """
        with self._fitting(message) as fitting:
            if fitting is not None:
                self._make(*fitting)

    def offer(self, message: bytes) -> None:
        """Hold an owner's signed update, in place of the one that was offered before, until `switch` names it.

        Raises as `make`, which it leaves little to fail at. What is made already is not held.
        """
        with self._fitting(message) as fitting:
            if fitting is not None:
                self._offered = fitting

    def switch(self, digest: bytes) -> bool:
        """Make the update that was offered, by its SHA-256; False where it is not held, and was not made.

        Raises EnvironmentProblem and PeerError as `make`.
        """
        with self._turn:
            self._check()
            if self._offered is not None and self._offered[0] == digest:
                self._make(*self._offered)
            return digest in self._made

    @contextmanager
    def _fitting(self, message: bytes) -> Iterator[tuple[bytes, bytes, Tensor, Tensor] | None]:
        """The turn, with an update that is the owner's and for the state now; None for one that is made."""
        if self._owner is None:
            raise InputError("this server takes no updates", hint="start it with the owner's public key (--owner)")
        parts = unpack_update(message, self._facts)
        integrity.check_update(self._owner, self._facts, parts)
        state, indices, records, _ = parts
        digest = hashlib.sha256(message).digest()
        with self._turn:
            self._check()
            if self._is_made(state, digest):
                yield None
                return
            if state != self.state:
                other = "" if state.version != self.state.version else ", of another table"
                what = f"the update is for version {state.version}{other}, the table is at {self.state.version}"
                raise AgreementError(what, hint="send updates in order, from the first that is missing")
            yield digest, message, indices, records

    def _make(self, digest: bytes, message: bytes, indices: Tensor, records: Tensor) -> None:
        """Make an update that fits, in this thread's turn."""
        if self._journal is not None:
            self._journal.append(message)
        self._offered = None  # it was for the state before
        self._made.append(digest)
        self._write(indices, records, self._after([table.state for table in self._tables], [digest]))
        self._merge()
        _log.info("version %d: %d rows updated", self.state.version, len(indices))

    def past(self, version: int) -> bytes:
        """The signed update of this version to the next; InputError where it is not kept."""
        with self._turn:
            self._check()
            first = self.state.version - len(self._made)
            if self._journal is None:
                raise InputError("this server keeps no journal of updates", hint="start it with --owner")
            if not first <= version < self.state.version:
                hint = "give the server that is behind a copy of this one's journal, while both are stopped"
                what = f"updates are kept from version {first} to {self.state.version}"
                raise InputError(f"{what}, not that of version {version}", hint=hint)
            return self._journal.update(version - first)

    def close(self) -> None:
        """Let go of the journal; may be called twice."""
        if self._merging is not None:
            self._merging.join()
        if self._journal is not None:
            self._journal.close()

    def _check(self) -> None:
        if self._failed:  # the journal is ahead of the tables
            raise PeerError("an update was made in part", hint="start this server again")

    def _is_made(self, state: State, digest: bytes) -> bool:
        back = self.state.version - state.version
        return 0 < back <= len(self._made) and self._made[-back] == digest

    def _after(self, states: Sequence[State], digests: Sequence[bytes]) -> list[State]:
        for digest in digests:
            states = [state.after(digest) for state in states]
        return list(states)

    def _write(self, indices: Tensor, records: Tensor, states: Sequence[State]) -> None:
        """Write rows in all tables; if that fails midway, none of them answers any more."""
        with ExitStack() as held:
            for table in self._tables:
                held.enter_context(table.lock)
            try:
                for table, part in zip(self._tables, self._spread(indices, records), strict=True):
                    if len(part[0]):
                        table.write(*part)
            except BaseException:
                self._failed = True
                for table in self._tables:
                    table.fail()
                raise
            for table, state in zip(self._tables, states, strict=True):
                table.advance(state)

    # The journal ------------------------------------------------------------------------------------------------------

    def _replay(self, journal: Journal) -> None:
        with tqdm(total=journal.size, desc="updates", delay=2, leave=False, disable=None, bar_format=_BAR) as bar:
            for found in journal.replay():
                if isinstance(found, bytes):
                    self._again(journal, found)
                    bar.update(len(found))
                elif isinstance(found, list):
                    self._skip(journal, found)
                else:
                    self._write(*found, [table.state for table in self._tables])
                    bar.update(found[1].nbytes)

    def _again(self, journal: Journal, message: bytes) -> None:
        """Make an update of the journal, which was checked before it was written there."""
        try:
            state, indices, records, _ = unpack_update(message, self._facts)
        except HummingbirdError as error:
            raise journal.damaged(error.what) from None
        if state != self.state:
            raise journal.damaged(f"an update for version {state.version}, the table is at {self.state.version}")
        self._made.append(hashlib.sha256(message).digest())
        self._write(indices, records, self._after([table.state for table in self._tables], self._made[-1:]))

    def _skip(self, journal: Journal, states: list[State]) -> None:
        if len(states) != len(self._tables):
            raise InputError("the journal's states are not those of these tables", where=str(journal.path))
        self._before = states
        for table, state in zip(self._tables, states, strict=True):
            table.advance(state)

    def _merge(self) -> None:
        """Merge the first updates in the journal if it has grown, beside everything else."""
        busy = self._merging is not None and self._merging.is_alive()
        if self._journal is not None and not busy and (count := self._journal.to_merge()):
            self._merging = threading.Thread(target=self._merged, args=(self._journal, count), name="pir-journal")
            self._merging.start()

    def _merged(self, journal: Journal, count: int) -> None:
        try:
            states = self._after(self._before, self._made[:count])
            rows = journal.merge(count, states)
            with self._turn:
                journal.adopt(count, rows)
                self._before, self._made = states, self._made[count:]
        except OSError as error:
            journal.give_up(error.strerror or str(error))
        except HummingbirdError as error:  # damaged since it was written
            journal.give_up(error.what)
