"""The bytes that client and server of encrypted inference exchange: the slices of a turn, as a stream or as one text.

    slice up = seed (16 bytes), residues of component 0         slice down = residues of all components

Residues have 26 bits each, as `kernels.ciphertexts.pack` lays them out. The order and lengths of slices follow from
`Public`, so neither side needs to believe the other.

Over a connection (gRPC: rpc/service.py) there are two methods:

    Public(opening)  -> the public part of the plan, JSON without weights
    Turn(stream)     -> stream

The client's stream is an opening, then the slices of the turn. The server's stream is its slices, and empty messages as
heartbeats. An opening is JSON: format, release, digest of the client's `Public`, turn. A slice is cut into messages of
`rpc.CHUNK` bytes. A server keeps nothing between turns: a turn is one call, which nobody else can join, and which
ends with its client.

Without a connection, a request is a head and the slices up of one turn, and an answer a head and its slices down. A
head is JSON, filled with spaces to `HEAD_BYTES` bytes: kind, format, release, digest of the client's `Public`, batch,
turn and digest of the slices, which finds damage, not an attacker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from hummingbird import records
from hummingbird.errors import AgreementError, InputError
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.rounds import MOST_STEPS, Download, Return, Upload
from hummingbird.kernels.ciphertexts import pack, unpack
from hummingbird.prg import SEED_BYTES
from hummingbird.records import field
from hummingbird.rpc import CHUNK
from hummingbird.version import VERSION

REQUEST, ANSWER = "he-request", "he-answer"
FORMAT = 2  # version of the messages, and of the expansion of seeds
HEAD_BYTES = 256  # of a request or an answer
BATCH_BYTES = 16  # of the random number that names a batch
_BODY_BYTES = 16  # of the digest of a message's slices
_MOST_HEAD = 8 << 20  # bytes: a server's file has the description of the net in it
_HINT = "the bytes were damaged, or come from another program or release"
_R = TypeVar("_R")


@dataclass(frozen=True, kw_only=True)
class TurnOpening:
    """The first message of a client's call: it names the format, the net and the turn.

    digest: the digest of the net's description that the client has; empty before it has one.
    """

    format: int = records.constant(FORMAT)
    release: str = records.constant(VERSION)
    digest: str = field(records.text(64), default="")
    turn: int = field(records.whole(0, MOST_STEPS), default=0)


@dataclass(frozen=True, kw_only=True)
class MessageHead:
    """The first `HEAD_BYTES` bytes of a request or an answer.

    kind: `REQUEST` or `ANSWER`. net: the digest of the net's description. batch: a random number that the client has
    drawn for the batch, in hexadecimal digits. turn: its number. body: the digest of the slices, from `pack`.
    """

    kind: str = field(records.one_of((REQUEST, ANSWER)))
    format: int = records.constant(FORMAT)
    release: str = records.constant(VERSION)
    net: str = field(records.digits(32))
    batch: str = field(records.digits(BATCH_BYTES))
    turn: int = field(records.whole(0, MOST_STEPS))
    body: str = field(records.digits(_BODY_BYTES), default="0" * 2 * _BODY_BYTES)

    def pack(self, slices: Iterable[bytes]) -> bytes:
        """Return a request or an answer: this head, with the digest of the slices, and the slices."""
        body = list(slices)
        head = replace(self, body=_seal(*body))
        return b"".join([records.write(head).encode().ljust(HEAD_BYTES), *body])


def _seal(*pieces: bytes | memoryview) -> str:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()[: 2 * _BODY_BYTES]


def checked_head(text: str | bytes, kind: str, head: type[_R], where: str) -> _R:
    """Read the JSON head of a message or a file; return the record.

    kind: the kind that is expected. head: the record's class, with fields `kind`, `format` and `release`. where: the
    message or the file, for errors. Raises AgreementError, naming both sides, for another kind, format or release;
    InputError if malformed.
    """
    how: Any = {"name": "head", "where": where, "hint": _HINT}
    fields = records.of(records.parse(text, most=_MOST_HEAD, **how), records.mapping(records.anything(), 16), **how)
    if (found := fields.get("kind")) != kind:
        what = f"this is {str(found)[:32]!r}, and {kind!r} is needed"
        raise AgreementError(what, where=where, hint="were two files taken for each other?")
    theirs, release = fields.get("format"), fields.get("release")
    if (theirs, release) != (FORMAT, VERSION):
        what = f"made by release {str(release)[:32]} in format {str(theirs)[:32]}, this is {VERSION} with {FORMAT}"
        raise AgreementError(what, where=where, hint="install the same release on both sides")
    return records.of(fields, head, **how)


def read_head(data: bytes, kind: str, public: Public, net: str, length: int | None = None) -> MessageHead:
    """Check the head, the length and the digest of a request or an answer; return the head.

    data: all bytes of the message; or its first `HEAD_BYTES`, with its length: then no digest is compared. kind:
    `REQUEST` or `ANSWER`. public: the net's description for clients. net: the digest of this description.
    Raises AgreementError for another kind, format, release or net; InputError for another length or digest, and
    malformed bytes.
    """
    where = kind.removeprefix("he-")
    if not isinstance(data, (bytes, bytearray)):
        raise InputError(f"expected bytes, got {type(data).__name__}", where=where, hint="read the file: read_bytes()")
    head = checked_head(bytes(data[:HEAD_BYTES]), kind, MessageHead, where)
    if head.net != net:
        what = f"made for the net with digest {head.net[:16]}, this is the net {net[:16]}"
        raise AgreementError(what, where=where, hint="client.json and the server's file come from one conversion")
    if head.turn >= len(public.turns):
        raise malformed(f"turn {head.turn} of {len(public.turns)}", where)
    size = HEAD_BYTES + public.turn_bytes(public.turns[head.turn])[kind == ANSWER]
    if (found := len(data) if length is None else length) != size:
        what = f"{found} bytes, and turn {head.turn} has {size}"
        raise InputError(what, where=where, hint="was it copied completely?")
    if length is None and (seal := _seal(memoryview(data)[HEAD_BYTES:])) != head.body:
        what = f"the bytes after the head have the digest {seal[:16]}, the head says {head.body[:16]}"
        raise InputError(what, where=where, hint="it was damaged on the way: copy it again")
    return head


def uploads(public: Public, turn: int, request: bytes, device: torch.device | str = "cpu") -> Iterator[Upload]:
    """Yield the slices in a client's request, as `Upload` objects with tensors on `device`.

    public: the net's description for clients. turn: the number of the turn. request: the bytes, whose head and length
    `read_head` has checked. Raises InputError for a residue that is not below its prime.
    """
    at = HEAD_BYTES
    for first, stop in public.turns[turn].up():
        size = SEED_BYTES + public.up_bytes(stop - first)
        yield read_upload(public, turn, first, stop, iter([request[at : at + size]]).__next__, device)
        at += size


def downloads(public: Public, turn: int, answer: bytes, device: torch.device | str = "cpu") -> Iterator[Download]:
    """Yield the slices in a server's answer, as `Download` objects with tensors on `device`.

    public: the net's description for clients. turn: the number of the turn. answer: the bytes, whose head and length
    `read_head` has checked. Raises InputError for a residue that is not below its prime.
    """
    at = HEAD_BYTES
    for first, stop, back in public.turns[turn].down():
        size = public.down_bytes(back, stop - first)
        yield read_download(public, turn, first, stop, back, iter([answer[at : at + size]]).__next__, device)
        at += size


def opening(digest: str = "", turn: int = 0) -> bytes:
    """Return a `TurnOpening` as JSON, in bytes. digest: of the net's description, "" if not known. turn: its number."""
    return records.write(TurnOpening(digest=digest, turn=turn)).encode()


def read_opening(data: bytes, turns: int) -> tuple[str, int]:
    """Read the first message of a client's call; return the digest of the net's description that it has, and the turn.

    The digest is "" if the client has no description yet. turns: number of turns that the net has.
    Raises AgreementError, naming both sides, for another format; InputError if malformed.
    """
    how: Any = {"name": "message", "where": "he", "hint": _HINT}
    fields = records.of(records.parse(data, **how), records.mapping(records.anything(), 16), **how)
    theirs, release = fields.get("format"), str(fields.get("release"))[:32]
    if theirs != FORMAT:
        what = f"the client ({release}) speaks format {str(theirs)[:32]}, the server ({VERSION}) format {FORMAT}"
        raise AgreementError(what, where="he", hint="install the same release on both sides")
    found = records.of({**fields, "release": VERSION}, TurnOpening, **how)
    if found.turn >= turns:
        raise malformed(f"turn {found.turn} of {turns}")
    return found.digest, found.turn


def digest(public: bytes) -> str:
    """Return the SHA-256 of a net's description for clients, in hexadecimal digits.

    public: the description's bytes, as the server sent or wrote them.
    """
    return hashlib.sha256(public).hexdigest()


def cut(data: Tensor, head: bytes = b"") -> Iterator[bytes]:
    """Divide the bytes of a slice into messages of at most `CHUNK` bytes, and yield these.

    data: the slice, uint8 (n,). head: bytes that come before it in the first message.
    """
    view = data.cpu().numpy().data
    start = min(len(view), CHUNK - len(head))
    yield head + view[:start]
    for at in range(start, len(view), CHUNK):
        yield bytes(view[at : at + CHUNK])


def collect(receive: Callable[[], bytes], size: int) -> Tensor:
    """Collect a slice from the messages that carry it, and return its bytes as a tensor, uint8 (size,).

    receive: a function without arguments that returns the next message. size: bytes of the slice.
    Raises InputError if the messages hold more bytes, or one is empty.
    """
    buffer = torch.empty(size, dtype=torch.uint8)
    view, at = buffer.numpy().data, 0
    while at < size:
        message = receive()
        if not 0 < len(message) <= size - at:
            raise malformed(f"{len(message)} bytes, but {size - at} bytes of the slice are missing")
        view[at : at + len(message)] = message
        at += len(message)
    return buffer


def pack_upload(public: Public, sent: Upload) -> Iterator[bytes]:
    """Yield the messages that carry a slice of ciphertexts from the client to the server.

    public: the net's description. sent: the slice.
    """
    return cut(pack(public.parameters.ring, sent.body), sent.seed)


def read_upload(
    public: Public,
    turn: int,
    first: int,
    stop: int,
    receive: Callable[[], bytes],
    device: torch.device | str = "cpu",
) -> Upload:
    """Read one slice of the client's ciphertexts from its messages; return it as an `Upload` with its tensor on
    `device`.

    turn: the turn's number.
    first, stop: the slice has the turn's ciphertexts first .. stop - 1, in the order in which the client sends them.
    receive: a function without arguments that returns the next message.
    Raises InputError for a wrong length, and for a residue that is not below its prime.
    """
    primes, degree = len(public.parameters.primes), public.parameters.degree
    data = collect(receive, SEED_BYTES + public.up_bytes(stop - first))
    body = unpack(public.parameters.ring, data[SEED_BYTES:].to(device), (stop - first, primes, degree))
    return Upload(turn, first, data[:SEED_BYTES].numpy().tobytes(), body)


def pack_download(public: Public, back: Download) -> Iterator[bytes]:
    """Yield the messages that carry a slice of the server's answer to the client.

    public: the net's description. back: the slice.
    """
    return cut(pack(public.parameters.ring.take(back.body.shape[2]), back.body))


def read_download(
    public: Public,
    turn: int,
    first: int,
    stop: int,
    back: Return,
    receive: Callable[[], bytes],
    device: torch.device | str = "cpu",
) -> Download:
    """Read one slice of the server's answer from its messages; return it as a `Download` with its tensor on `device`.

    turn: the turn's number.
    first, stop: the slice has the answer's ciphertexts first .. stop - 1, counted from the turn's beginning.
    back: the returned value that the slice is part of.
    receive: a function without arguments that returns the next message.
    Raises InputError for a wrong length, and for a residue that is not below its prime.
    """
    data = collect(receive, public.down_bytes(back, stop - first)).to(device)
    shape = (stop - first, back.size, back.primes, public.parameters.degree)
    return Download(turn, first, unpack(public.parameters.ring.take(back.primes), data, shape))


def malformed(what: str, where: str = "he") -> InputError:
    """Make the error for a message that no side sends in this format. what: the fault, in words. where: the message."""
    return InputError(f"malformed message: {what}", where=where, hint=_HINT)
