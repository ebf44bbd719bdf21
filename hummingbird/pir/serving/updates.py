"""Updates of a table while it is served: only from the owner, in order, durable, and in all of a plan's tables at once.

An update is checked, written to the journal, and then made in memory, between two passes over the table. So a lookup
sees all of it or nothing. Sending an update again succeeds without effect.

An update can be offered first: the server checks it, and holds it in memory until a short message makes it. So both
servers of a table have it before either makes it, and their states differ only for the time of one short message.
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

from hummingbird.errors import AgreementError, HummingbirdError, InputError, PeerError
from hummingbird.pir import integrity
from hummingbird.pir.messages import unpack_update
from hummingbird.pir.serving.journal import Journal
from hummingbird.pir.table import Facts, State
from hummingbird.progress import progress_line

_BAR = "{desc}: {percentage:3.0f} % |{bar}| {elapsed}<{remaining}"
_log = logging.getLogger(__name__)


class Served(Protocol):
    """Interface of a served table whose rows can be changed, such as a `server.Server`. `Updates` changes it.

    The caller holds the table's `lock` during a change, so that no query is answered meanwhile.
    """

    lock: threading.Lock

    @property
    def state(self) -> State:
        """The state of the table now: its version, and a digest."""

    def write(self, indices: Tensor, records: Tensor) -> None:
        """Replace the records of some rows of this table. The caller holds the table's `lock`.

        indices: numbers of the rows, int64 (n,). records: uint8 (n, record_bytes).
        """

    def advance(self, state: State) -> None:
        """Set the state of this table to `state`, after an update. The caller holds the table's `lock`."""

    def fail(self) -> None:
        """Refuse all queries from now on, because an update has changed a part of the table only."""


Spread = Callable[[Tensor, Tensor], Sequence[tuple[Tensor, Tensor]]]


class Updates:
    """Applies the owner's updates of a table to all tables that are served from it: the table itself, or those of a
    plan.

    facts: of the table. tables: the served tables; the last is the full one, with all rows, whose state every update
    names. owner: public key of the owner, who may update; None for nobody.
    spread: a function of the numbers of the rows that an update changes and of their records. It returns for each
    served table a pair: the numbers of the rows that change there, and their records. Default: one pair, of the same
    rows.
    Raises InputError for an invalid key.
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
        self._turn = threading.Lock()  # protects the fields below
        self._failed = False
        self._offered: tuple[bytes, bytes, Tensor, Tensor] | None = None  # digest, message, rows: for the current state
        self._made: list[bytes] = []  # digests of the last updates, in order
        self._before = [table.state for table in tables]  # before the updates in `_made`
        self._journal: Journal | None = None
        self._merging: threading.Thread | None = None

    @property
    def state(self) -> State:
        """The state (version and digest) to which the next update applies."""
        return self._tables[-1].state

    @property
    def journal_bytes(self) -> int:
        """Size of the journal in bytes, 0 without a journal."""
        with self._turn:
            return 0 if self._journal is None else self._journal.size

    def recover(self, path: Path) -> None:
        """Open a journal, apply the updates in it again, and write new updates to it from now on.

        path: the journal's file, created if missing. Raises the errors of `Journal` and of `Journal.replay`, and
        InputError for an update in the file that does not fit the table.
        """
        self._journal = journal = Journal(path, self._facts, self._before)
        try:
            self._replay(journal)
        except BaseException:
            journal.close()
            raise

    def make(self, message: bytes) -> None:
        """Apply an update that the owner has signed, unless it is applied already.

        message: the update. Raises InputError if the owner has not signed it, AgreementError if it is for another
        state, DiskError if the journal cannot be written; then nothing is changed. Raises PeerError if an earlier
        update was applied to a part of the table only.
        """
        with self._fitting(message) as fitting:
            if fitting is not None:
                self._make(*fitting)

    def offer(self, message: bytes) -> None:
        """Check an update that the owner has signed, and hold it until `switch` applies it.

        message: the update; it replaces one that was offered before. Nothing is done if it is applied already. Raises
        InputError if the owner has not signed it, AgreementError if it is for another state, and PeerError if an
        earlier update was applied to a part of the table only.
        """
        with self._fitting(message) as fitting:
            if fitting is not None:
                self._offered = fitting

    def switch(self, digest: bytes) -> bool:
        """Apply the update that was offered, if its message has this SHA-256; return whether it is applied now or was
        before.

        False: the server does not hold it. Raises DiskError if the journal cannot be written, and PeerError if an
        earlier update was applied to a part of the table only.
        """
        with self._turn:
            self._check()
            if self._offered is not None and self._offered[0] == digest:
                self._make(*self._offered)
            return digest in self._made

    @contextmanager
    def _fitting(self, message: bytes) -> Iterator[tuple[bytes, bytes, Tensor, Tensor] | None]:
        """Check an update in a `with` block, during which no other update is applied.

        message: the update. The block gets a tuple of four: the message's SHA-256, the message, the numbers of the
        rows, and their records; or None if the update is applied already. Raises InputError for an update that the
        owner did not sign, AgreementError for one that is for another state.
        """
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
        """Apply an update that is for the present state: write it to the journal, and its rows to all served tables.

        The caller holds the lock. digest: SHA-256 of the message. indices, records: the rows in the message.
        """
        if self._journal is not None:
            self._journal.append(message)
        self._offered = None  # it was for the previous state
        self._made.append(digest)
        self._write(indices, records, self._after([table.state for table in self._tables], [digest]))
        self._merge()
        _log.info("version %d: %d rows updated", self.state.version, len(indices))

    def past(self, version: int) -> bytes:
        """Return an update that was applied earlier, as the owner signed it.

        version: the version of the table to which the update was applied. Raises InputError if the journal does not
        have it.
        """
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

    @contextmanager
    def unchanging(self) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
        """Return a context in which no update is applied. Its value iterates over all changes of the table since it was
        loaded, from the journal, in order: numbers of rows, int64 (n,), and their records, uint8 (n, record_bytes).

        Raises PeerError if updates were applied without a journal.
        """
        with self._turn:
            if self._journal is None and self._made:
                hint = "start this server again, with a journal"
                raise PeerError("updates were applied, and no journal has them", where="pir.Server", hint=hint)
            yield iter(()) if self._journal is None else self._journal.changes()

    def close(self) -> None:
        """Wait until a merge of the journal has ended, and close the journal; may be called twice."""
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
        """Write new rows to all served tables, and set their states; if writing fails, all tables refuse queries from
        then on.

        indices, records: numbers and contents of the rows. states: the new state of each table.
        """
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
        with progress_line(total=journal.size, desc="updates", delay=2, bar_format=_BAR) as bar:
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
        """Apply an update from the journal, when the server starts; its signature was checked before it was written
        there.

        message: the update. Raises InputError if it is damaged, or does not follow the update before it.
        """
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
            raise InputError("the journal's states do not fit these tables", where=str(journal.path))
        self._before = states
        for table, state in zip(self._tables, states, strict=True):
            table.advance(state)

    def _merge(self) -> None:
        """Start a thread that merges the oldest updates in the journal into rows, if the journal is large
        (`Journal.to_merge`).
        """
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
