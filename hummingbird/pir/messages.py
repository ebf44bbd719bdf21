"""The messages between client and servers, frames of tensors (`rpc.frame`): query, answer, update, description.

    query       = code of the decoder (1), keys (B, key_bytes)
    answer      = state (24), records (B, record_bytes) [, signature (64)]
    update      = state (24) it applies to, indices int64 (n,), records (n, record_bytes), the owner's signature (64)
    version     = 8 bytes and no frame; its answer is the update of this version to the next
    description = JSON: party, release, state, facts, whether answers are signed
    calls       = JSON: for each call the table's name and the method; then the calls' messages (n each)
    results     = the calls' answers (n each)

All tensors are uint8 unless stated otherwise. The sizes of a query and an answer follow from the number of keys and the
facts of the table. The text of a refusal depends on the table only, never on a key's contents.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hummingbird import records
from hummingbird.errors import InputError
from hummingbird.kernels import lookups
from hummingbird.pir.table import Facts, State
from hummingbird.records import field
from hummingbird.rpc.admission import MAX_MESSAGE
from hummingbird.rpc.frame import pack_tensors, unpack_tensors
from hummingbird.version import VERSION

DECODERS = ("xor", "sum")
MAX_KEYS = 4096  # in one query: bounds a server's memory for it
SIGNATURE_BYTES = 64
STATE_BYTES = 24
_STATE = struct.Struct("<Q16s")
_OVERHEAD = 1024  # bytes, an upper bound on the headers of a frame


@dataclass(frozen=True)
class TableDescription:
    """The description that a server gives of itself to clients.

    party: 0 or 1. facts, state: of its table. signs: whether the server signs its answers. release: of this package.
    """

    party: int = field(records.whole(0, 1))
    facts: Facts = field(records.record(Facts))
    state: State = field(records.record(State))
    signs: bool = field(records.flag())  # its answers
    release: str = field(records.text(256), default=VERSION)

    def pack(self) -> bytes:
        """Return the description as JSON."""
        fields = records.plain(self)
        return json.dumps({name: fields[name] for name in ("party", "release", "signs", "state", "facts")}).encode()

    @classmethod
    def unpack(cls, data: bytes) -> TableDescription:
        """Read a description from JSON. Raises InputError for anything else."""
        found = records.read(data, cls, name="description", hint="is this a pir-server?")
        return replace(found, release=found.release[:32])


def as_bytes(data: bytes) -> Tensor:
    """Copy bytes to a tensor uint8 (n,)."""
    out = torch.empty(len(data), dtype=torch.uint8)
    out.numpy().data[:] = data
    return out


def keys_in_a_query(facts: Facts) -> int:
    """Return the most keys that a query may have, so that the query and its answer each fit into one message.

    facts: of the table.
    """
    return min(MAX_KEYS, (MAX_MESSAGE - _OVERHEAD) // max(lookups.key_bytes(facts.domain), facts.record_bytes))


def pack_query(decoder: str, keys: Tensor) -> bytes:
    """Pack a query for one server. decoder: `xor` or `sum`. keys: uint8 (B, key_bytes), all for this server's party."""
    return pack_tensors([as_bytes(bytes([DECODERS.index(decoder)])), keys])


def unpack_query(data: bytes, facts: Facts, party: int) -> tuple[str, Tensor]:
    """Unpack a query; return the decoder, `xor` or `sum`, and the keys, uint8 (B, key_bytes).

    facts: of the table. party: the server's party. The keys must be made for this table and this party. Raises
    InputError for a malformed query; the error reveals nothing about the keys.
    """
    parts = unpack_tensors(data, max_bytes=MAX_MESSAGE, max_tensors=2)
    if [(part.dtype, part.dim()) for part in parts] != [(torch.uint8, 1), (torch.uint8, 2)]:
        raise InputError("malformed query", hint="a query is a decoder and keys")
    (code, keys) = parts
    if code.numel() != 1 or int(code) >= len(DECODERS):
        raise InputError("there is no such decoder", hint=f"there are {' and '.join(DECODERS)}")
    _check_keys(keys, facts, party)
    return DECODERS[int(code)], keys


def _check_keys(keys: Tensor, facts: Facts, party: int) -> None:
    most = keys_in_a_query(facts)
    if not 0 < len(keys) <= most:
        raise InputError(f"a query holds 1 to {most} keys")
    try:
        lookups.check(keys, "query", facts.domain, party)
    except InputError:  # its text reveals more than needed
        hint = "both sides need the same release, and the table must not have been replaced meanwhile"
        raise InputError(f"a key is not for party {party} and {facts.text()}, or damaged", hint=hint) from None


def pack_version(version: int) -> bytes:
    """Pack a version of a table, 0 or more, into 8 bytes."""
    return version.to_bytes(8, "little")


def unpack_version(data: bytes) -> int:
    """Read the version that `pack_version` packed. Raises InputError for anything else."""
    if len(data) != 8:
        raise InputError("malformed version", hint="both sides need the same release")
    return int.from_bytes(data, "little")


MAX_CALLS = 256  # tables in one request
_CALLS = records.many(records.row(records.text(256), records.text(64)), MAX_CALLS)


def pack_calls(calls: Sequence[tuple[str, str, bytes]]) -> bytes:
    """Pack the calls of one request to a server of several tables: for each the table, the method and the message."""
    head = json.dumps([[table, method] for table, method, _ in calls]).encode()
    return pack_tensors([as_bytes(head), *(as_bytes(message) for *_, message in calls)])


def unpack_calls(data: bytes) -> list[tuple[str, str, bytes]]:
    """Read what `pack_calls` packed. Raises InputError for anything else."""
    head, *messages = _octets(data, "calls")
    names = records.read(head, _CALLS, name="calls", hint="client and servers need the same release")
    if len(names) != len(messages) or not messages:
        raise InputError("malformed calls", hint="client and servers need the same release")
    return [(table, method, message) for (table, method), message in zip(names, messages, strict=True)]


def pack_results(results: Sequence[bytes]) -> bytes:
    """Pack the answers to the calls of one request."""
    return pack_tensors([as_bytes(result) for result in results])


def unpack_results(data: bytes, count: int) -> list[bytes]:
    """Read the answers to `count` calls. Raises InputError for anything else."""
    results = _octets(data, "results")
    if len(results) != count:
        raise InputError(f"{len(results)} results of {count} calls", hint="client and servers need the same release")
    return results


def _octets(data: bytes, what: str) -> list[bytes]:
    parts = unpack_tensors(data, max_bytes=MAX_MESSAGE, max_tensors=MAX_CALLS + 1)
    if not parts or any(part.dtype != torch.uint8 or part.dim() != 1 for part in parts):
        raise InputError(f"malformed {what}", hint="client and servers need the same release")
    return [part.numpy().tobytes() for part in parts]


def _pack_state(state: State) -> Tensor:
    return as_bytes(_STATE.pack(state.version, state.digest))


def _unpack_state(part: Tensor) -> State:
    return State(*_STATE.unpack(part.numpy().tobytes()))


def pack_answer(state: State, records: Tensor, signature: bytes | None = None) -> bytes:
    """Pack a server's answer to a query. state: of the table. records: uint8 (B, record_bytes), one for each key.

    signature: of the answer, by the server; None for no signature.
    """
    tail = [] if signature is None else [as_bytes(signature)]
    return pack_tensors([_pack_state(state), records, *tail])


def unpack_answer(data: bytes, count: int, facts: Facts, signed: bool) -> tuple[State, Tensor, bytes | None]:
    """Unpack an answer to `count` keys; returns the state of the table, the records, and the signature or None.

    facts: of the table. signed: whether the answer must carry a signature. Raises InputError for a malformed answer.
    """
    parts = unpack_tensors(data, max_bytes=MAX_MESSAGE, max_tensors=3)
    shapes = [(STATE_BYTES,), (count, facts.record_bytes), *([(SIGNATURE_BYTES,)] if signed else [])]
    if [(part.dtype, tuple(part.shape)) for part in parts] != [(torch.uint8, shape) for shape in shapes]:
        raise InputError("malformed answer", hint="both sides need the same release; was the table replaced?")
    return _unpack_state(parts[0]), parts[1], parts[2].numpy().tobytes() if signed else None


def pack_update(state: State, indices: Tensor, records: Tensor, signature: bytes = b"") -> bytes:
    """Pack an update: new records for some rows. Without a signature, the result is the text that the owner signs.

    state: the state of the table to which the update applies. indices: numbers of the rows, int64 (n,). records: uint8
    (n, record_bytes). signature: of the update, by the owner.
    """
    tail = [as_bytes(signature)] if signature else []
    return pack_tensors([_pack_state(state), indices, records, *tail])


def unpack_update(data: bytes, facts: Facts) -> tuple[State, Tensor, Tensor, bytes]:
    """Unpack an update; return a tuple of four: the state to which it applies, the rows' numbers, their new records,
    and the signature.

    data: the message. facts: of the table. The numbers are int64 (n,), the records uint8 (n, record_bytes). The
    signature is not checked here. Raises InputError for a malformed update, and unless the numbers are distinct rows of
    the table.
    """
    parts = unpack_tensors(data, max_bytes=MAX_MESSAGE, max_tensors=4)
    kinds = [(part.dtype, part.dim()) for part in parts]
    if kinds != [(torch.uint8, 1), (torch.int64, 1), (torch.uint8, 2), (torch.uint8, 1)]:
        raise InputError("malformed update", hint="make it with pir.Owner.update")
    state, indices, records, signature = parts
    if len(state) != STATE_BYTES or len(signature) != SIGNATURE_BYTES or not len(indices):
        raise InputError("malformed update", hint="make it with pir.Owner.update")
    if records.shape != (len(indices), facts.record_bytes):
        raise InputError(f"the update's rows do not fit {facts.text()}")
    inside = 0 <= int(indices.min()) and int(indices.max()) < facts.rows
    if not inside or len(indices.unique()) != len(indices):
        raise InputError("an update must name distinct rows of the table")
    return _unpack_state(state), indices, records, signature.numpy().tobytes()
