"""Detect and name a lying server: the table's owner signs rows and updates, servers sign answers.

A record is row | version | signature, where the owner signs table id, type, version, row number and row with Ed25519
(RFC 8032). If a server changes its answer, the client's decoded record is not a valid record of the wanted row, and the
client raises IntegrityError. An unkeyed hash would not suffice, because servers know the rows and could hash another
one.

The record does not show which server lied: y_0 ^ y_1 is wrong if either half is. But each half is a function of one key
and the table, so the owner, who has the table, can evaluate one key and compare (`audit`). One key alone reveals
nothing about the row: give the owner one server's statement, never both. If that server's answer is right, the other
one lied. If servers sign their answers (`identities`), nobody can be framed.

Limits: an updated row has two valid records. A server that guesses the row of a query can return the older record; the
client notices only a wrong guess. A client whose failures are visible also tells such a server whether its guess was
right (selective failure). So sign again the rows that must be fresh, and do not repeat failed lookups.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from torch import Tensor

from hummingbird.errors import InputError, PeerError
from hummingbird.pir.messages import pack_update
from hummingbird.pir.table import PROOF_BYTES, Facts, Source, State
from hummingbird.prg import new_seed
from hummingbird.rpc.admission import MAX_MESSAGE

KEY_BYTES = 32
_ROW, _UPDATE, _ANSWER = (f"hummingbird pir {name} 1".encode().ljust(32) for name in ("row", "update", "answer"))


@dataclass(frozen=True)
class Statement:
    """One server's statement for `audit`: the query that it received, which holds keys for this server only, and its
    answer.

    party: the server's party, 0 or 1. A single statement reveals nothing about the rows that were looked up.
    """

    party: int
    query: bytes
    answer: bytes
    signed: bool  # by the server


class IntegrityError(PeerError):
    """Error for a server that lied: a record is not signed by the owner, or an answer is not signed by its server.

    statements: one of each server, for `audit`; empty if a server's signature is missing or wrong. Give only one of
    them to the table's owner: both together reveal the rows that were looked up.

    >>> owner = pir.Owner()
    >>> servers = pir.local_servers(owner.sign(pir.Source.of(table)))
    >>> forged = torch.zeros(1000, servers[1].facts.record_bytes, dtype=torch.uint8)
    >>> servers[1].write(torch.arange(1000), forged)  # server 1 lies
    >>> pir.Client(servers, owner=owner.public).rows(torch.tensor([7]))
    Traceback (most recent call last):
        ...
    hummingbird.pir.integrity.IntegrityError: ... lied: rows are not the owner's (at pir.Client)
    hint: give one server's statement, never both, to the table's owner, who names the liar: pir.audit
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", statements: Sequence[Statement] = ()) -> None:
        self.statements = tuple(statements)
        super().__init__(what, where=where, hint=hint)


class Owner:
    """The table's owner, who signs rows and updates. key: the owner's secret key, 32 bytes; default: a new key.

    >>> owner = pir.Owner()
    >>> signed = owner.sign(pir.Source.of(table))  # for both servers
    >>> servers = pir.local_servers(signed, owner=owner.public)
    >>> client = pir.Client(servers, owner=owner.public)  # checks the signature of every row
    >>> client.update(owner.update(client.facts, client.state, torch.tensor([7]), torch.zeros(1, 16))).version
    1
    >>> client.rows(torch.tensor([7])).any()
    tensor(False)
    """

    def __init__(self, key: bytes | None = None) -> None:
        self.key = new_seed(KEY_BYTES) if key is None else key
        self._private = _private(self.key, "pir.Owner(key)")
        self.public = self._private.public_key().public_bytes_raw()

    def sign(
        self, source: Source, table_id: bytes | None = None, progress: Callable[[int], object] = lambda rows: None
    ) -> Source:
        """Sign all rows of a plain table; return the signed table, a `Source` in memory.

        source: the plain table. Each row then has 72 bytes more, and takes about 0.1 ms.
        table_id: 16 bytes, random by default; must differ between the tables of one owner.
        progress: a function that is called with the number of newly signed rows.
        """
        if source.facts.table_id:
            raise InputError("only a plain table's rows are signed", where="pir.Owner.sign")
        facts = replace(source.facts, table_id=(new_seed() if table_id is None else table_id).hex())
        records = np.empty((facts.rows, facts.record_bytes), np.uint8)
        for first, part in source.parts(0, facts.rows, 1 << 20):
            places = range(first, first + len(part))
            records[first : first + len(part)] = self._records(facts, source.version, places, part)
            progress(len(part))
        return Source(facts, source.version, records)

    def update(self, facts: Facts, state: State, indices: Tensor, rows: Tensor) -> bytes:
        """Make a signed update of some rows; returns it as the message to send to both servers.

        facts, state: of the servers' table; the update applies only while the table has this state, so it cannot be
        replayed. indices: the numbers of the rows, int64 (n,), distinct. rows: their new values, (n, dim) of the
        table's type. Raises InputError for more rows than fit into one message of 4 MiB.
        """
        if rows.shape != (len(indices), facts.dim) or str(rows.dtype) != f"torch.{facts.dtype}":
            hint = "rows as in the table"
            raise InputError(f"no rows of {facts.text()}", where="pir.Owner.update(rows)", hint=hint)
        data = rows.detach().cpu().contiguous().view(torch.uint8).reshape(len(rows), facts.row_bytes).numpy()
        indices = indices.detach().cpu().to(torch.int64)
        if facts.table_id:
            data = self._records(facts, state.version + 1, indices.tolist(), data)
        records = torch.from_numpy(np.ascontiguousarray(data))
        if len(indices) > rows_in_an_update(facts):
            hint = "make several, one after the other"
            raise InputError(f"{len(indices)} rows are too many for one update", where="pir.Owner.update", hint=hint)
        signature = self._private.sign(_UPDATE + pack_update(state, indices, records))
        return pack_update(state, indices, records, signature)

    def _records(self, facts: Facts, version: int, places: Sequence[int], rows: np.ndarray) -> np.ndarray:
        proofs = [
            version.to_bytes(8, "little") + self._private.sign(_row_text(facts, version, place, row.tobytes()))
            for place, row in zip(places, rows, strict=True)
        ]
        return np.hstack([rows, np.frombuffer(b"".join(proofs), np.uint8).reshape(len(rows), PROOF_BYTES)])


def read_key(path: Path) -> bytes:
    """Read a secret or public key from a file of 64 hexadecimal digits. Raises InputError for other contents."""
    try:
        key = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        hint = "python -m hummingbird pir-owner keygen makes keys"
        raise InputError(f"not a key of {2 * KEY_BYTES} hexadecimal digits", where=str(path), hint=hint)
    return key


def rows_in_an_update(facts: Facts) -> int:
    """Return how many rows fit into one update of a table; an update is one message of at most 4 MiB.

    facts: of the table. 1 KiB of the message is left free for its headers and its signature.
    """
    return (MAX_MESSAGE - 1024) // (facts.record_bytes + 8)


def _private(key: bytes, where: str) -> Ed25519PrivateKey:
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise InputError(f"a secret key has {KEY_BYTES} bytes", where=where, hint="make one with pir.Owner()")
    return Ed25519PrivateKey.from_private_bytes(key)


def public_key(data: bytes, where: str) -> Ed25519PublicKey:
    """Make a key object of the 32 bytes of a public key. Raises InputError, naming `where`, for anything else."""
    try:
        return Ed25519PublicKey.from_public_bytes(data)
    except (ValueError, TypeError):
        raise InputError(f"a public key has {KEY_BYTES} bytes", where=where, hint="Owner.public gives it") from None


def public_keys(keys: Sequence[bytes], where: str) -> list[Ed25519PublicKey]:
    """Read the public keys of party 0's and party 1's server, 32 bytes each.

    Raises InputError, naming `where`, unless there are two keys: with only one, the other server's answers would be
    unchecked.
    """
    if isinstance(keys, bytes) or len(keys) != 2:
        hint = "give party 0's and party 1's, in this order"
        raise InputError("the public keys of both servers are needed", where=where, hint=hint)
    return [public_key(key, where) for key in keys]


def _row_text(facts: Facts, version: int, place: int, row: bytes) -> bytes:
    kind = f"{facts.dtype} {facts.dim}".encode().ljust(32)
    return b"".join(
        [_ROW, bytes.fromhex(facts.table_id), kind, *(n.to_bytes(8, "little") for n in (version, place)), row]
    )


def _verified(key: Ed25519PublicKey, signature: bytes, text: bytes) -> bool:
    try:
        key.verify(signature, text)
    except InvalidSignature:
        return False
    return True


def bad_records(key: Ed25519PublicKey, facts: Facts, newest: int, numbers: Tensor, records: Tensor) -> int:
    """Count the rows in `records` that the owner has not signed, or has signed for a version above `newest`.

    key: the owner's public key. facts: of the table. numbers: the numbers of the rows that each record holds, int64 (n,
    parts). records: uint8 (n, record_bytes). -1 stands for zeros in place of a row; anything else in this place counts
    too.
    It takes 0.1 ms for each row. All rows are checked, and only the count is returned, because the positions would
    reveal which rows are wrong.
    """
    one = replace(facts, dim=facts.dim // facts.parts, parts=1)
    bad, at = 0, one.row_bytes
    parts = records.reshape(-1, one.record_bytes)
    for number, part in zip(numbers.flatten().tolist(), parts, strict=True):
        data = part.numpy().tobytes()
        version = int.from_bytes(data[at : at + 8], "little")
        if number < 0:
            bad += any(data)
        else:
            good = _verified(key, data[at + 8 :], _row_text(one, version, number, data[:at]))
            bad += not good or version > newest
    return bad


def check_update(key: Ed25519PublicKey, facts: Facts, update: tuple[State, Tensor, Tensor, bytes]) -> None:
    """Raise InputError unless the owner signed an update and, if the table's records are signed, each new record in it.

    key: the owner's public key. facts: of the table. update: a tuple of four, from `unpack_update`: the state to which
    it applies, the numbers of the rows, their new records, and the signature of the update.
    """
    state, indices, records, signature = update
    good = _verified(key, signature, _UPDATE + pack_update(state, indices, records))
    if good and facts.table_id:
        good = not bad_records(key, facts, state.version + 1, indices[:, None], records)
    if not good:
        raise InputError("the update is not signed by this table's owner", hint="is --owner that owner's public key?")


class Identity:
    """A server's secret key, which signs the server's answers. key: 32 secret bytes."""

    def __init__(self, key: bytes) -> None:
        self._private = _private(key, "pir.Identity(key)")
        self.public = self._private.public_key().public_bytes_raw()

    def sign(self, party: int, query: bytes, state: State, records: Tensor) -> bytes:
        """Return a server's signature of one answer.

        party: the server's party, 0 or 1. query: the client's message. state: of the table at this time. records: the
        answer.
        """
        return self._private.sign(_answer_text(party, query, state, records))


def _answer_text(party: int, query: bytes, state: State, records: Tensor) -> bytes:
    content = hashlib.sha256(query).digest() + hashlib.sha256(records.contiguous().numpy().data).digest()
    return _ANSWER + bytes([party]) + state.version.to_bytes(8, "little") + state.digest + content


def answer_signed(
    key: Ed25519PublicKey, party: int, query: bytes, state: State, records: Tensor, signature: bytes | None
) -> bool:
    """Return whether an answer is signed by the server with the public key `key`.

    party: the server's party. query: the client's message. state: of the table when it answered. records: the answer.
    signature: the answer's signature; a missing one is not valid.
    """
    return signature is not None and _verified(key, signature, _answer_text(party, query, state, records))
