"""The messages between client and server of encrypted inference (gRPC: rpc/service.py): two methods.

    Public(opening)  -> what a client must know of the net, JSON without weights
    Turn(stream)     -> stream

The client's stream is an opening, then the slices of the turn; the server's are its slices, and empty messages that
say it is at work. An opening is JSON: format, release, digest of the `Public` that the client works by, turn. Slices
come in the order of `Public`, which also gives their lengths, so that nothing is believed:

    slice up = seed (16 bytes), residues of component 0         slice down = residues of all components

Residues have 26 bits each, as `kernels.ciphertexts.pack` lays them out; a slice is cut into messages of `service.CHUNK`
bytes. A server keeps nothing between turns: a session is one call, in which nobody else can speak, and it ends with its
client.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hummingbird import records
from hummingbird.errors import AgreementError, InputError
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.rounds import MOST_STEPS, Download, Return, Upload
from hummingbird.kernels.ciphertexts import pack, unpack
from hummingbird.prg import SEED_BYTES
from hummingbird.records import field
from hummingbird.rpc.service import CHUNK
from hummingbird.version import VERSION

FORMAT = 2  # of the messages, and of what a seed expands to
_HINT = "the bytes were damaged, or come from another program or release"


@dataclass(frozen=True, kw_only=True)
class TurnOpening:
    """The first message of a client's call. digest: of the description that it works by, empty before it has one."""

    format: int = records.constant(FORMAT)
    release: str = records.constant(VERSION)
    digest: str = field(records.text(64), default="")
    turn: int = field(records.whole(0, MOST_STEPS), default=0)


def opening(digest: str = "", turn: int = 0) -> bytes:
    """A `TurnOpening` as JSON."""
    return records.write(TurnOpening(digest=digest, turn=turn)).encode()


def read_opening(data: bytes, turns: int) -> tuple[str, int]:
    """Digest and turn; AgreementError, naming both sides, for another format, InputError for anything malformed."""
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
    """SHA-256 of a `Public` as it was sent."""
    return hashlib.sha256(public).hexdigest()


def cut(data: Tensor, head: bytes = b"") -> Iterator[bytes]:
    """Messages that hold a slice's bytes, after `head`."""
    view = data.cpu().numpy().data
    start = min(len(view), CHUNK - len(head))
    yield head + view[:start]
    for at in range(start, len(view), CHUNK):
        yield bytes(view[at : at + CHUNK])


def collect(receive: Callable[[], bytes], size: int) -> Tensor:
    """The `size` bytes of a slice; InputError if its messages hold more, or one of them nothing."""
    buffer = torch.empty(size, dtype=torch.uint8)
    view, at = buffer.numpy().data, 0
    while at < size:
        message = receive()
        if not 0 < len(message) <= size - at:
            raise malformed(f"{len(message)} bytes, of a slice {size - at} are missing")
        view[at : at + len(message)] = message
        at += len(message)
    return buffer


def pack_upload(public: Public, sent: Upload) -> Iterator[bytes]:
    """The messages of a slice up."""
    return cut(pack(public.parameters.ring, sent.body), sent.seed)


def read_upload(
    public: Public,
    turn: int,
    first: int,
    stop: int,
    receive: Callable[[], bytes],
    device: torch.device | str = "cpu",
) -> Upload:
    """A slice up, on a device. InputError for a wrong length, and for a residue that is not below its prime."""
    primes, degree = len(public.parameters.primes), public.parameters.degree
    data = collect(receive, SEED_BYTES + public.up_bytes(stop - first))
    body = unpack(public.parameters.ring, data[SEED_BYTES:].to(device), (stop - first, primes, degree))
    return Upload(turn, first, data[:SEED_BYTES].numpy().tobytes(), body)


def pack_download(public: Public, back: Download) -> Iterator[bytes]:
    """The messages of a slice down."""
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
    """A slice down, on a device. InputError as `read_upload`."""
    data = collect(receive, public.down_bytes(back, stop - first)).to(device)
    shape = (stop - first, back.size, back.primes, public.parameters.degree)
    return Download(turn, first, unpack(public.parameters.ring.take(back.primes), data, shape))


def malformed(what: str) -> InputError:
    """Bytes that no side of this format sends."""
    return InputError(f"malformed message: {what}", where="he", hint=_HINT)
