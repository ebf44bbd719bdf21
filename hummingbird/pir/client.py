"""The client: makes a key pair for every lookup, asks both servers at the same time, and puts the rows together.

    xor:  row = y_0 ^ y_1        sum:  row = s * (y_0 - y_1) mod 2^width, s = +1 or -1, which the client knows

The number and the sizes of its messages follow from the number of lookups and the table's facts. Equal indices, padding
and dummies are lookups like all others; an index outside of the table is refused before anything is sent. Both answers
must be of one state: after an update that has reached one server only, the client asks again, with new keys.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird import ring
from hummingbird.errors import AgreementError, ConfigError, InputError, PeerError
from hummingbird.kernels.lookups.dpf import PRFS
from hummingbird.pir import dpf, integrity
from hummingbird.pir.integrity import IntegrityError, Statement
from hummingbird.pir.link import Link, ask
from hummingbird.pir.messages import (
    TICKET_BYTES,
    keys_in_a_query,
    pack_deposit,
    pack_query,
    unpack_result,
)
from hummingbird.pir.pair import Pair, malformed
from hummingbird.pir.table import DTYPES, Facts, State
from hummingbird.prg import Stream, derive, new_seed
from hummingbird.wire.service import Tls

_ASK_AGAIN = 0.25
_TRIES = 5
_WORDS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


class Client:
    """Private lookups in a table that two servers hold.

    servers: parties 0 and 1, addresses (HOST:PORT, unix:PATH) or servers in this process. TRUST: the two must not
    collude: together their operators can read every index. Each alone, and a listener, learns how many lookups are made
    and when, nothing else.
    tls: mutual TLS, needed for other hosts. tokens: instead of a certificate, one of each server's operator; TLS then
    takes its authority alone, `Tls(ca=...)`. decoder: `xor` or `sum`, the same rows. prf: `aes` or `chacha12`, what the
    servers expand keys with. timeout: seconds for each message. owner: the table owner's public key; rows must carry
    its signatures. identities: both servers' public keys, in their order; answers must carry their signatures.
    Raises PeerError for a server that is down or late, AgreementError for servers that differ, TrustError for the same
    server twice; all name the server. InputError for keys that are none, or not two.

        client = Client(("pir0.example:7000", "pir1.example:7000"), tls=Tls("me.crt", "me.key", "ca.pem"))
        rows = client.rows(torch.tensor([3, 14, 15]))
    """

    def __init__(
        self,
        servers: Sequence[str | Link],
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
        self._secret = new_seed(TICKET_BYTES)
        checks = {"identified": identities is not None, "owned": owner is not None}
        self._pair = Pair(servers, tls, timeout, tokens=tokens, **checks)

    @property
    def links(self) -> list[Link]:
        """The two servers, in order."""
        return self._pair.links

    @property
    def facts(self) -> Facts:
        """The facts of the table."""
        return self._pair.facts

    @property
    def state(self) -> State:
        """The state of the table as both servers named it last."""
        return self._pair.state

    @property
    def owned(self) -> bool:
        """Whether rows must carry their owner's signatures."""
        return self._owner is not None

    def rows(self, indices: Tensor) -> Tensor:
        """Rows of the table: (n, dim) of the table's type, for indices int32 or int64 (n,), on their device.

        One round trip for every few thousand indices; about 370 bytes for each index to each server, and a record back.
        Raises InputError for an index outside of the table, before anything is sent, PeerError, AgreementError, and
        IntegrityError if a server lied.
        """
        return self.read(indices)[1]

    def read(self, indices: Tensor, numbers: Tensor | None = None, together: int = 1) -> tuple[State, Tensor]:
        """The state of the table, and its rows in that state, as `rows`; all of one state, however many messages.

        For a plan's tables: numbers, int64 (n, parts), are those of the rows in each record by which their owner signed
        them, -1 for none; by default the indices. together: keys that go into one message. Raises as `rows`, and
        AgreementError where the table is updated all the time.
        """
        self._check_plain()
        places = self._checked(indices)
        numbers = places[:, None] if numbers is None else numbers
        size = max(1, self._in_a_query() // together) * together
        if not len(places):
            return self.state, torch.empty(0, self.facts.dim, dtype=DTYPES[self.facts.dtype], device=indices.device)
        for _ in range(_TRIES):
            parts = [self._lookup(*part) for part in zip(places.split(size), numbers.split(size), strict=True)]
            if len({state for state, _ in parts}) == 1:
                return parts[0][0], self._numbers([records for _, records in parts]).to(indices.device)
        hint = f"ask for fewer at a time: {size} go into one message"
        raise AgreementError(f"the table was updated during each of {_TRIES} lookups", where="pir.Client", hint=hint)

    def _numbers(self, records: list[Tensor]) -> Tensor:
        """Rows (n, dim) of the table's type, from records without their proofs."""
        facts, whole = self.facts, torch.cat(records)
        rows = whole.view(len(whole), facts.parts, -1)[:, :, : facts.row_bytes // facts.parts]
        return rows.contiguous().view(DTYPES[facts.dtype]).view(len(whole), facts.dim)

    def deposit(self, indices: Tensor, weights: Tensor | None = None) -> bytes:
        """Leave additive shares of rows at the two servers; returns the ticket to take them with (`Server.take`).

        The table is a `Source.for_shares`. indices: (n,), at most what goes into one message. weights: (n,), real
        numbers that the rows are to be multiplied by, hidden like the indices, but not that there are any; they cost
        8 bytes each. Neither server, nor the client, gets the rows. Raises as `rows`, and InputError for weights that
        `ring.encode` refuses.
        """
        if not self.facts.shares:
            hint = "serve Source.for_shares(), or ask for rows"
            raise InputError("this table is not made for shares", where="pir.Client.deposit", hint=hint)
        places, ticket = self._checked(indices), new_seed(TICKET_BYTES)
        if not 0 < len(places) <= self._in_a_query():
            raise InputError(f"1 to {self._in_a_query()} indices go into one deposit", where="pir.Client.deposit")
        *keys, signs = dpf.generate(places, self.facts.rows, self._prf)
        factors: Sequence[Tensor | None] = (None, None)
        if weights is not None:
            if not isinstance(weights, Tensor) or weights.shape != places.shape:
                raise InputError("one weight is needed for each index", where="pir.Client.deposit(weights)")
            code = signs * ring.encode(weights.cpu(), where="pir.Client.deposit(weights)")
            mask = Stream(new_seed()).words(len(places))
            factors = mask, code - mask
        messages = [
            pack_deposit(ticket, self._receipt(ticket, party), keys[party], factors[party]) for party in range(2)
        ]
        (zero, _, _), (one, _, _) = self._pair.unpacked(self._pair.ask(messages, "Deposit"), len(places))
        self._pair.check_states(zero, one)
        return ticket

    def collect(self, ticket: bytes) -> Tensor:
        """The servers' result of a deposit of this client's, float32: the sum of their shares.

        Once, and within the client's `timeout`, or twice that where many wait. Raises PeerError, which says what became
        of it.
        """
        deadline = time.monotonic() + self._timeout
        messages = [ticket + self._receipt(ticket, party) for party in range(2)]
        parts = ask(self.links, messages, "Collect", "pir.Client", busy=b"")
        for party, link in enumerate(self.links):
            while not parts[party]:  # too many others wait there
                if time.monotonic() > deadline:
                    hint = "the deposit stays for some minutes: collect again"
                    raise PeerError("the server has no room for one more who waits", where=link.name, hint=hint)
                time.sleep(_ASK_AGAIN)
                (parts[party],) = ask([link], messages[party : party + 1], "Collect", "pir.Client", busy=b"")
        shares = []
        for link, part in zip(self.links, parts, strict=True):
            try:
                shares.append(unpack_result(part))
            except InputError as error:
                raise malformed(link, error) from None
        if shares[0].shape != shares[1].shape:
            what = f"the servers' results have shapes {tuple(shares[0].shape)} and {tuple(shares[1].shape)}"
            raise PeerError(what, where="pir.Client", hint="do both run the same net?")
        return ring.decode(shares[0] + shares[1])

    def _receipt(self, ticket: bytes, party: int) -> bytes:
        """The secret by which one server alone knows the client of a ticket."""
        return derive(self._secret, ticket.hex(), party)

    def update(self, message: bytes) -> State:
        """Hand an owner's signed update (`Owner.update`) to both servers; returns the new state.

        Raises PeerError and AgreementError if a server refuses it or does not answer: send it again, which a server
        that has it already accepts.
        """
        self._pair.update(message)
        return self.state

    def close(self) -> None:
        """Disconnect; may be called twice. Servers in this process stay as they are."""
        self._pair.close()

    # Lookups ----------------------------------------------------------------------------------------------------------

    def _check_plain(self) -> None:
        if self.facts.shares:
            hint = "use Client.deposit, or serve the plain table"
            raise InputError("this table is made for shares", where="pir.Client.rows", hint=hint)

    def _checked(self, indices: Tensor) -> Tensor:
        """int64 (n,) on the CPU. The error names no index: its text may end up in a log."""
        where = "pir.Client(indices)"
        if not isinstance(indices, Tensor) or indices.dtype not in (torch.int32, torch.int64) or indices.dim() != 1:
            raise InputError("indices are int32 or int64 of one dimension", where=where)
        places = indices.detach().cpu().to(torch.int64)
        if len(places) and not (int(places.min()) >= 0 and int(places.max()) < self.facts.rows):
            hint = f"this table's rows are 0 to {self.facts.rows - 1}"
            raise InputError("an index is outside of the table", where=where, hint=hint)
        return places

    def _in_a_query(self) -> int:
        return keys_in_a_query(self.facts)

    def _lookup(self, places: Tensor, numbers: Tensor) -> tuple[State, Tensor]:
        """State and records uint8 (n, record_bytes), checked, from one message each way."""
        deadline = self._pair.deadline()
        while True:
            keys0, keys1, signs = dpf.generate(places, self.facts.rows, self._prf)
            queries = [pack_query(self._decoder, keys) for keys in (keys0, keys1)]
            answers = self._pair.ask(queries)
            parts = self._pair.unpacked(answers, len(places))
            statements = [
                Statement(party, query, answer, signed)
                for party, (query, answer, signed) in enumerate(zip(queries, answers, self._pair.signs, strict=True))
            ]
            self._check_signatures(statements, parts)
            (state, zero, _), (other, one, _) = parts
            if state == other:
                break
            self._pair.wait(deadline, state, other)
        if state != self.state:  # updated, or started again, perhaps with another table
            self._pair.renew()
        records = self._decoded(zero, one, signs)
        self._check_rows(state, numbers, records, statements)
        return state, records

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
