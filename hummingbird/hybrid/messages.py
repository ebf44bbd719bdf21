"""The messages between the two sides (transport: message_stream.py), and the methods of the model's side as a service:

    Public(opening)   -> the plan, JSON without weights
    Session(stream)   opening; set-up of OTs, both ways; DONE
    Offline(stream)   opening with the first slot that the data's side may still use, public key; for every slot its
                      number, Enc(r) of all layers, replies, an OT message from the evaluator, tables from the garbler,
                      DONE; for a set MANY and all numbers, Enc(r) and replies of all slots, then the rest for each
                      slot; END in the place of a number
    Online(stream)    opening with the slot's number, X - r; for every layer of gates a message each way; the logits
    Keys(request)     a proxy's user with encrypted images: plan, the proxy's public key, a switching key -> their name
    Input(request)    a proxy's user: plan, ticket, X - r or encrypted X -> the model's share of the logits

An opening is JSON: format, release, digest of the plan, session. The lengths of all other messages follow from the
plan, so neither side needs to trust the other's. Integers mod 2^k are sent as `kernels.pack_words` of k bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from hummingbird import records
from hummingbird.errors import AgreementError, InputError
from hummingbird.kernels.shares import pack_words, unpack_words
from hummingbird.kernels.shares.packing import bytes_of
from hummingbird.prg import SEED_BYTES
from hummingbird.records import field
from hummingbird.version import VERSION

FORMAT = 1
INPUTS = ("shares", "switched")  # of a proxy's user: X - r, or X encrypted
DONE = b"+"
NUMBER_BYTES = 8
END = bytes([255]) * NUMBER_BYTES  # in the place of a slot's number
MANY = bytes([254]) * NUMBER_BYTES  # there, too: the numbers of a set follow
SESSION_BYTES = TICKET_BYTES = 16
DIGEST_BYTES = 32
SLOT_HEAD = TICKET_BYTES + SEED_BYTES  # bytes before the share of the logits in a proxy's answer
MOST_OPENING = 4096  # bytes
_HINT = "the bytes were damaged, or come from another program or release"


@dataclass(frozen=True, kw_only=True)
class CallOpening:
    """The first message of a call: it names format, release and plan.

    plan: digest of the plan, empty before the caller knows it.
    """

    format: int = records.constant(FORMAT)
    release: str = records.constant(VERSION)
    plan: str = field(records.text(2 * DIGEST_BYTES), default="")

    def pack(self) -> bytes:
        """Return the opening as JSON, in bytes."""
        return records.write(self).encode()


@dataclass(frozen=True, kw_only=True)
class SessionOpening(CallOpening):
    """The model side's answer to the first message of a call that begins a session. session: the new session's name."""

    session: str = field(records.digits(SESSION_BYTES))


@dataclass(frozen=True, kw_only=True)
class OfflineOpening(SessionOpening):
    """The first message of a call that deals slots, in the session that it names.

    first: the first slot that the data's side may still use.
    """

    first: int = field(records.whole())


@dataclass(frozen=True, kw_only=True)
class OnlineOpening(SessionOpening):
    """The first message of a call for one image: it names the session and the slot to use.

    A proxy also names the ticket of its user, and how the user sends its image, "shares" or "switched"
    (`UserOpening`).
    """

    slot: int = field(records.whole())
    ticket: str | None = field(records.maybe(records.digits(TICKET_BYTES)), left_out=True, default=None)
    input: str | None = field(records.maybe(records.one_of(INPUTS)), left_out=True, default=None)

    def __post_init__(self) -> None:
        if (self.ticket is None) != (self.input is None):
            raise malformed("a ticket and its input belong together")


@dataclass(frozen=True, kw_only=True)
class UserOpening(CallOpening):
    """A user's request for a slot, which it sends to a proxy.

    input: how the user sends its image to the model's side: "shares", under a mask of the proxy, or "switched",
    encrypted.
    """

    input: str = field(records.one_of(INPUTS))


T = TypeVar("T", bound=CallOpening)


def read_opening(data: bytes, plan: str, us: str, them: str, kind: type[T]) -> T:
    """Read the first message of a call, and return it as an object of the class `kind`.

    plan: the digest of the plan that the other side must have; empty for any. us, them: names of the sides, for errors.
    Raises AgreementError, naming both sides, for another format, release or plan; InputError if malformed.
    """
    how: Any = {"name": "message", "where": "hybrid", "hint": _HINT}
    fields = records.parse(data, most=MOST_OPENING, **how)
    if not isinstance(fields, dict):
        raise malformed("an opening that is no JSON object")
    theirs, release = fields.get("format"), str(fields.get("release"))[:32]
    if (theirs, release) != (FORMAT, VERSION):
        what = f"{them} is release {release}, format {str(theirs)[:32]}; {us} is release {VERSION}, format {FORMAT}"
        raise AgreementError(what, where="hybrid", hint="install the same release on both sides")
    if plan:
        check_plan(str(fields.get("plan")), plan, us, them)
    return records.of(fields, kind, **how)


def check_plan(theirs: str, ours: str, us: str, them: str) -> None:
    """Raise AgreementError unless two sides have the same plan.

    theirs, ours: the digests of the plans. us, them: names of the sides, for the error.
    """
    if theirs != ours:
        what = f"{them} works by plan {theirs[:12]}, {us} by plan {ours[:12]}: another net, windows or weights"
        raise AgreementError(what, where="hybrid", hint="prepare again in another folder: a new session begins")


def words_bytes(count: int, ring: int) -> int:
    """Return the size in bytes of `count` packed integers mod 2^ring."""
    return bytes_of(count * ring)


def numbers(slots: Sequence[int]) -> bytes:
    """Return the numbers of slots as bytes, `NUMBER_BYTES` for each."""
    return b"".join(slot.to_bytes(NUMBER_BYTES, "little") for slot in slots)


def slots_of(data: bytes) -> list[int]:
    """Return the numbers of slots that `numbers` has written."""
    return [int.from_bytes(data[at : at + NUMBER_BYTES], "little") for at in range(0, len(data), NUMBER_BYTES)]


def pack(x: Tensor, ring: int) -> Tensor:
    """Return integers mod 2^ring, int64 of any shape, packed into bytes, uint8 (size,), with `ring` bits for each."""
    return pack_words(x.reshape(-1), ring)


def unpack(data: Tensor, shape: tuple[int, ...], ring: int) -> Tensor:
    """Return the integers mod 2^ring that `pack` has packed into `data`: int64 (1, *shape)."""
    count = torch.Size(shape).numel()
    return unpack_words(data, count, ring).view(1, *shape)


def tensor_of(data: bytes) -> Tensor:
    """Return a copy of bytes as a tensor, uint8 (size,)."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def octets(labels: Tensor) -> Tensor:
    """Return n labels of wires, int64 (..., 2), as bytes, uint8 (16 n,)."""
    return labels.contiguous().view(-1).view(torch.uint8)


def labels_of(data: Tensor) -> Tensor:
    """Read labels of wires, int64 (n, 2), from bytes, uint8 (16 n,)."""
    return data.view(torch.int64).view(-1, 2)


def malformed(what: str) -> InputError:
    """Make the error for a message that no side sends in this format. what: the fault, in words."""
    return InputError(f"malformed message: {what}", where="hybrid", hint=_HINT)
