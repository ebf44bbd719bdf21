"""The client: makes a key pair for every lookup, asks both servers at the same time, and combines their answers.

    xor:  row = y_0 ^ y_1        sum:  row = s * (y_0 - y_1) mod 2^width, s = +1 or -1, which the client knows

The number and sizes of messages follow from the number of lookups and the table's facts. Equal indices, padding and
dummies are lookups like all others; an index outside of the table is refused before anything is sent. Both answers must
have the same state: if an update has reached only one server, the client asks again, with new keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird.errors import AgreementError, ConfigError, InputError, OverloadError, UnavailableError
from hummingbird.kernels.lookups import PRFS
from hummingbird.pir import dpf, integrity
from hummingbird.pir.integrity import IntegrityError, Statement
from hummingbird.pir.messages import keys_in_a_query, pack_query
from hummingbird.pir.pair import Pair
from hummingbird.pir.table import DTYPES, Facts, State
from hummingbird.pir.table_server import TableServer
from hummingbird.rpc.client import Retry
from hummingbird.rpc.service import Tls

_TRIES = 5
PAUSE = 0.2  # seconds before an unavailable server is asked again
_WORDS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


class Asked(NamedTuple):
    """A query to both servers. signs: for each key the difference of the parties' bits. queries: packed, one each."""

    signs: Tensor
    queries: list[bytes]


class Client:
    """A client for private lookups in a table that two servers hold.

    TRUST: the two servers must not collude: together their operators can read every index. Each server alone, and an
    eavesdropper, learns only how many lookups are made and when.

    servers: party 0 and party 1, each as an address (HOST:PORT, unix:PATH) or as a server in this process. tls: mutual
    TLS, needed for other hosts.
    tokens: one from each server's operator, in place of a client certificate; then `Tls(ca=...)` is enough. decoder:
    how servers combine the selected rows, `xor` or `sum`; the client gets the same rows either way. prf: the
    pseudo-random function by which servers expand keys, `aes` or `chacha12`.
    timeout: seconds for each message; a lookup is also repeated, with new keys, for this time while a server is away or
    full.
    owner: the table owner's public key; then every row must carry the owner's signature.
    identities: the public keys of party 0 and party 1; then every answer must carry its server's signature. Raises
    PeerError for a server that is down or late, AgreementError if the servers differ, and TrustError if both are the
    same server; all name the server. Raises InputError for invalid keys.

    >>> client = pir.Client(pir.local_servers(table))  # or the addresses of two servers
    >>> rows = client.rows(torch.tensor([3, 14, 15]))
    >>> torch.equal(rows, table.weight[[3, 14, 15]])
    True
    >>> client.close()
    """

    def __init__(
        self,
        servers: Sequence[str | TableServer],
        *,
        tls: Tls | None = None,
        tokens: Sequence[str] | None = None,
        decoder: str = "xor",
        prf: str = "aes",
        timeout: float = 10.0,
        owner: bytes | None = None,
        identities: Sequence[bytes] | None = None,
    ) -> None:
        if decoder not in ("xor", "sum") or prf not in PRFS:
            hint = f"decoders: xor, sum; PRFs: {', '.join(PRFS)}"
            raise ConfigError(f"no such choice: decoder {decoder!r}, PRF {prf!r}", where="pir.Client", hint=hint)
        self._decoder, self._prf, self._timeout = decoder, prf, timeout
        self._owner = None if owner is None else integrity.public_key(owner, "pir.Client(owner)")
        self._identities = None if identities is None else integrity.public_keys(identities, "pir.Client(identities)")
        checks = {"identified": identities is not None, "owned": owner is not None}
        self._pair = Pair(servers, tls, timeout, tokens=tokens, **checks)

    @property
    def links(self) -> list[TableServer]:
        """The connections to the two servers: party 0's, then party 1's."""
        return self._pair.links

    @property
    def facts(self) -> Facts:
        """The facts of the table: its size and type (`table.Facts`)."""
        return self._pair.facts

    @property
    def state(self) -> State:
        """The state of the table (version and digest) that both servers last reported."""
        return self._pair.state

    @property
    def signs(self) -> tuple[bool, bool]:
        """Whether the server of party 0, and that of party 1, signs its answers."""
        return self._pair.signs

    @property
    def owned(self) -> bool:
        """Whether the client demands that rows carry their owner's signatures."""
        return self._owner is not None

    def rows(self, indices: Tensor) -> Tensor:
        """Look up the rows with these indices, int32 or int64 (n,).

        Returns (n, dim) of the table's type, on the device of the indices. This takes one round trip for every few
        thousand indices; for each index about 370 bytes go to each server, and a record comes back. Raises InputError
        for an index outside of the table, and for a table by keyword, before anything is sent; PeerError if a server
        fails, AgreementError if the servers differ, and IntegrityError if a server lied.
        """
        if self.facts.keywords:
            hint = "pir.KeywordClient looks them up"
            raise InputError("this table's rows have keywords, and no numbers", where="pir.Client", hint=hint)
        return self.read(indices)[1]

    def read(self, indices: Tensor, numbers: Tensor | None = None, together: int = 1) -> tuple[State, Tensor]:
        """Look up rows, and return the state of the table, which is the same for all rows, and the rows, (n, dim).

        indices: int32 or int64 (n,). numbers: the numbers under which the owner signed the rows in each record, int64
        (n, rows in a record), -1 where a record has zeros in place of a row; default: `indices`. Only the tables of a
        plan (`pir.batching`) have several rows in a record.
        together: how many consecutive indices must be in one message: those of one inference.
        Raises the errors of `rows`, and AgreementError if the table is updated during every attempt.
        """
        places = self._checked(indices)
        numbers = places[:, None] if numbers is None else numbers
        size = max(1, self._in_a_query() // together) * together
        if not len(places):
            return self.state, torch.empty(0, self.facts.dim, dtype=DTYPES[self.facts.dtype], device=indices.device)
        for _ in range(_TRIES):
            parts = [self._lookup(*part) for part in zip(places.split(size), numbers.split(size), strict=True)]
            if len({state for state, _ in parts}) == 1:
                return parts[0][0], self.numbers([records for _, records in parts]).to(indices.device)
        hint = f"ask for fewer at a time: {size} go into one message"
        raise AgreementError(f"the table was updated during each of {_TRIES} lookups", where="pir.Client", hint=hint)

    def numbers(self, records: list[Tensor]) -> Tensor:
        """Convert records (bytes) to rows: (n, dim) of the table's type, without the owner's signatures.

        records: tensors uint8 (*, record_bytes), n records in all.
        """
        facts, whole = self.facts, torch.cat(records)
        rows = whole.view(len(whole), facts.parts, -1)[:, :, : facts.row_bytes // facts.parts]
        return rows.contiguous().view(DTYPES[facts.dtype]).view(len(whole), facts.dim)

    def update(self, message: bytes) -> State:
        """Send an update that the owner has signed (`Owner.update`) to both servers; returns the new state of the
        table.

        Raises PeerError or AgreementError if a server refuses the update or does not answer. Then send the update
        again; a server that has applied it already accepts it.
        """
        self._pair.update(message)
        return self.state

    def close(self) -> None:
        """Disconnect; may be called twice. Servers in this process stay as they are."""
        self._pair.close()

    # Lookups ----------------------------------------------------------------------------------------------------------

    def _checked(self, indices: Tensor) -> Tensor:
        """Check indices, and return them as int64 (n,) on the CPU.

        Raises InputError unless they are int32 or int64 (n,), and numbers of rows of the table. The error names no
        index, because its text may appear in a log.
        """
        where = "pir.Client(indices)"
        if not isinstance(indices, Tensor) or indices.dtype not in (torch.int32, torch.int64) or indices.dim() != 1:
            raise InputError("indices are int32 or int64 of one dimension", where=where)
        places = indices.detach().cpu().to(torch.int64)
        if len(places) and not (int(places.min()) >= 0 and int(places.max()) < self.facts.domain):
            hint = f"this table's rows are 0 to {self.facts.domain - 1}"
            raise InputError("an index is outside of the table", where=where, hint=hint)
        return places

    def _in_a_query(self) -> int:
        return keys_in_a_query(self.facts)

    def begin(self, places: Tensor) -> Asked:
        """Make new keys for records, and return the two queries to send. places: numbers of records, int64 (n,)."""
        keys0, keys1, signs = dpf.generate(places, self.facts.domain, self._prf)
        return Asked(signs, [pack_query(self._decoder, keys) for keys in (keys0, keys1)])

    def finish(
        self, asked: Asked, answers: Sequence[bytes], numbers: Tensor
    ) -> tuple[tuple[State, State], Tensor | None]:
        """Check and combine the two answers to a query.

        numbers: the numbers under which the owner signed the rows in each record, int64 (n, rows in a record), -1 for
        zeros. Returns the states of the table at both servers, and the records, uint8 (n, record_bytes); None if the
        states differ, because an update has reached one server only.
        """
        parts = self._pair.unpacked(answers, len(asked.signs))
        statements = [
            Statement(party, query, answer, signed)
            for party, (query, answer, signed) in enumerate(zip(asked.queries, answers, self._pair.signs, strict=True))
        ]
        self._check_signatures(statements, parts)
        (state, zero, _), (other, one, _) = parts
        if state != other:
            return (state, other), None
        if state != self.state:  # updated, or started again, perhaps with another table
            self._pair.renew()
        records = self._decoded(zero, one, asked.signs)
        self._check_rows(state, numbers, records, statements)
        return (state, other), records

    def settle(self) -> Callable[[tuple[State, State]], None]:
        """Return a function that waits after the two servers' states differed, and raises AgreementError in the end."""
        settling = self._pair.settling()
        return lambda states: self._pair.wait(settling, *states)

    def _lookup(self, places: Tensor, numbers: Tensor) -> tuple[State, Tensor]:
        """Look up records by one query to each server, and check all signatures.

        The query is repeated, with new keys, if a server is busy or the servers' states differ because of an update.
        places: numbers of rows in the servers' table, int64 (n,). numbers: as for `finish`. Returns the state of the
        table, and the records, uint8 (n, record_bytes).
        """
        settle, retry = self.settle(), Retry(self._timeout, (PAUSE, PAUSE))
        while True:
            asked = self.begin(places)
            try:
                answers = self._pair.ask(asked.queries)
            except (OverloadError, UnavailableError) as error:
                time.sleep(retry.failed(error))
                continue
            states, records = self.finish(asked, answers, numbers)
            if records is not None:
                return states[0], records
            settle(states)

    def _decoded(self, zero: Tensor, one: Tensor, signs: Tensor) -> Tensor:
        if self._decoder == "xor":
            return zero ^ one
        words = _WORDS[self.facts.word_bits]
        difference = zero.view(words) - one.view(words)
        return (difference * signs.to(words)[:, None]).view(torch.uint8)

    # Integrity --------------------------------------------------------------------------------------------------------

    def _check_signatures(
        self, statements: Sequence[Statement], parts: Sequence[tuple[State, Tensor, bytes | None]]
    ) -> None:
        if self._identities is None:
            return
        for key, link, statement, part in zip(self._identities, self.links, statements, parts, strict=True):
            if not integrity.answer_signed(key, statement.party, statement.query, *part):
                hint = "is somebody else answering in its place?"
                raise IntegrityError("the answer is not signed by this server", where=link.name, hint=hint)

    def _check_rows(self, state: State, numbers: Tensor, records: Tensor, statements: Sequence[Statement]) -> None:
        if self._owner is None:
            return
        if integrity.bad_records(self._owner, self.facts, state.version, numbers, records):
            raise IntegrityError(
                f"{self.links[0].name} or {self.links[1].name} lied: rows are not the owner's",
                where="pir.Client",
                hint="give one server's statement, never both, to the table's owner, who names the liar: pir.audit",
                statements=statements,
            )
