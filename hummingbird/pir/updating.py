"""The owner's client: sends new rows to both servers, and brings a server that missed updates up to date.

A server keeps the updates that the owner has signed, so the owner keeps none. Before it sends new rows, it fetches the
updates that reached only one server, checks them, and sends them to the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hummingbird.errors import (
    AgreementError,
    HummingbirdError,
    InputError,
    NotFoundError,
    OverloadError,
    PeerError,
    UnavailableError,
)
from hummingbird.pir.integrity import Owner, check_update, public_key, rows_in_an_update
from hummingbird.pir.messages import TableDescription, pack_version, unpack_update
from hummingbird.pir.pair import descriptions, disagreement, updated
from hummingbird.pir.table import Facts, State
from hummingbird.pir.table_server import TableServer, connected, disconnect
from hummingbird.rpc.service import Tls

_WHERE = "pir.Updater"
Progress = Callable[[int], object]


class NotOwned(PeerError):
    """Raised for a server that gives another update than the owner's as one that the owner has signed."""


class Updater:
    """The owner's connection to both servers of a table, through which the owner sends new rows.

    owner: has the key that signs updates. servers, tls, tokens, timeout: as in `Client`; for a plan, the servers of its
    full table. table: a function from the facts that a server reports to the facts of the owner's table, as
    `Plan.table`; default: the same facts. Raises the errors of `Client`.

    >>> owner = pir.Owner()
    >>> servers = pir.local_servers(owner.sign(pir.Source.of(table)), owner=owner.public)
    >>> with pir.Updater(owner, servers) as updater:
    ...     updater.update(torch.tensor([3, 14]), torch.zeros(2, 16)).version
    1
    """

    def __init__(
        self,
        owner: Owner,
        servers: Sequence[str | TableServer],
        *,
        tls: Tls | None = None,
        tokens: Sequence[str] | None = None,
        timeout: float = 60.0,
        table: Callable[[Facts], Facts] = lambda facts: facts,
    ) -> None:
        self._owner, self._key = owner, public_key(owner.public, _WHERE)
        self.links = connected(servers, tls, timeout, _WHERE, tokens)
        try:
            self.facts = table(self.describe()[0].facts)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Updater:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe(self) -> list[TableDescription]:
        """Ask both servers for their present descriptions (party, release, facts and state of the table), and return
        them.

        Raises PeerError for a server that does not answer, and AgreementError unless both are of this release and have
        tables with equal facts.
        """
        return descriptions(self.links, _WHERE)

    def bring_up(self, progress: Progress = lambda updates: None) -> int:
        """Find which server lacks updates that the other has applied, and send it these updates; returns their number.

        progress: called with 1 after each update. Raises AgreementError, naming both, if the servers hold different
        tables or applied different updates; PeerError if a server does not answer, or no longer keeps an update.
        """
        zero, one = (description.state for description in self.describe())
        if zero.version == one.version and zero != one:
            raise disagreement(self.links, "contents", zero, one)
        first, last = sorted((zero.version, one.version))
        ahead, behind = self.links if zero.version > one.version else self.links[::-1]
        for version in range(first, last):
            behind.begin(self._past(ahead, version)[0], "Update")()
            progress(1)
        zero, one = (description.state for description in self.describe())
        if zero != one:
            raise disagreement(self.links, "contents", zero, one)
        return last - first

    def past(self, version: int) -> tuple[State, State, Tensor, Tensor]:
        """Return an update that both servers have had, as one of them keeps it in its journal.

        version: of the table, before the update. Returns the table's states before and after it, the numbers of the
        rows that it changed, int64 (n,), and their bytes, uint8 (n, row_bytes), without signatures. Raises
        NotFoundError if neither server's journal has it, PeerError if it is not the owner's.
        """
        errors = []
        for link in self.links:
            try:
                message, (state, indices, records, _) = self._past(link, version)
            except NotOwned:
                raise
            except HummingbirdError as error:
                errors.append(error)
                continue
            digest = hashlib.sha256(message).digest()
            return state, state.after(digest), indices, records[:, : self.facts.row_bytes]
        for failed in errors:
            if isinstance(failed, (OverloadError, UnavailableError)):
                raise failed
        what = f"neither server keeps the update of version {version}: {errors[0].what}"
        raise NotFoundError(what, where=_WHERE, hint=errors[0].hint)

    def _past(self, link: TableServer, version: int) -> tuple[bytes, tuple[State, Tensor, Tensor, bytes]]:
        message = link.begin(pack_version(version), "PastUpdate")()
        try:
            update = unpack_update(message, self.facts)
            check_update(self._key, self.facts, update)
        except InputError as error:
            raise NotOwned(f"update {version} is not the owner's: {error.what}", where=link.name) from None
        if update[0].version != version:
            raise NotOwned(f"asked for update {version}, got update {update[0].version}", where=link.name)
        return message, update

    def check(self, indices: Tensor, rows: Tensor) -> None:
        """Raise InputError unless `rows` can replace the table's rows with the numbers `indices`.

        indices: must be int64 (n,), distinct, and in the table. rows: must be (n, dim) of the table's type.
        """
        where, facts = "pir.Updater(rows)", self.facts
        flat = indices.dtype == torch.int64 and indices.dim() == 1 and bool(indices.numel())
        if not flat or rows.shape != (len(indices), facts.dim):
            what = f"indices {indices.dtype} {tuple(indices.shape)}, rows {tuple(rows.shape)}"
            raise InputError(what, where=where, hint=f"int64 (n,), and (n, {facts.dim}) for {facts.text()}")
        if str(rows.dtype) != f"torch.{facts.dtype}":
            what = f"rows of {rows.dtype}, the table's are {facts.dtype}"
            raise InputError(what, where=where, hint="convert them to the table's type first")
        if not 0 <= int(indices.min()) <= int(indices.max()) < facts.rows or len(indices.unique()) != len(indices):
            hint = f"this table's rows are 0 to {facts.rows - 1}"
            raise InputError("an index is outside of the table, or a duplicate", where=where, hint=hint)

    def update(
        self,
        indices: Tensor,
        rows: Tensor,
        progress: Progress = lambda rows: None,
        *,
        state: State | None = None,
    ) -> State:
        """Send new rows to both servers, in as many updates as they need; returns the table's new state.

        indices: numbers of the rows, int64 (n,), distinct. rows: (n, dim) of the table's type. progress: called with
        the number of newly updated rows. state: that of the table before; None for any. Raises as `check`, and
        AgreementError for servers in another state, before anything is sent; and PeerError if an update fails, naming
        the version that both servers have: then call `bring_up`, and send all rows again.
        """
        self.check(indices, rows)
        zero, one = (description.state for description in self.describe())
        if zero != one:
            raise disagreement(self.links, "contents", zero, one)
        if state is not None and zero != state:
            what = f"the servers have had another update: expected version {state.version}, found {zero.version}"
            raise AgreementError(what, where=_WHERE, hint="another program of the owner is at work: run this one again")
        size, state = rows_in_an_update(self.facts), zero
        for some, new in zip(indices.split(size), rows.split(size), strict=True):
            message = self._owner.update(self.facts, state, some, new)
            try:
                both = updated(self.links, message, _WHERE)
            except HummingbirdError as error:
                hint = f"both are at version {state.version}, one may be ahead: run it again when both are back"
                raise PeerError(error.what, where=error.where, hint=f"{error.hint}; {hint}") from None
            zero, one = (description.state for description in both)
            if zero != one:
                raise disagreement(self.links, "contents", zero, one)
            state = zero
            progress(len(some))
        return state

    def close(self) -> None:
        """Disconnect from both servers; may be called twice."""
        disconnect(self.links)
