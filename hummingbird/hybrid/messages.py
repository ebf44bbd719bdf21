"""The messages between the two sides (links: link.py); methods of the model's side as a service:

    Public(opening)   -> the plan, JSON without weights
    Session(stream)   opening; set-up of OTs, both ways; DONE
    Offline(stream)   opening with the first slot that the data's side may still use, public key; for every slot its
                      number, Enc(r) of all layers, replies, an OT message from the evaluator, tables from the garbler,
                      DONE; then END in the place of a number
    Online(stream)    opening with the slot's number, X - r; for every layer of gates a message each way; the logits
    Keys(request)     a proxy's user with encrypted images: plan, the proxy's public key, a switching key -> their name
    Input(request)    a proxy's user: plan, ticket, X - r or encrypted X -> the model's share of the logits

An opening is JSON: format, release, digest of the plan, session. All else are bytes whose number follows from the plan,
so that nothing is believed. Integers mod 2^k travel as `kernels.pack_words` of k bits.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from hummingbird.errors import AgreementError, InputError
from hummingbird.kernels.shares import pack_words, unpack_words
from hummingbird.kernels.shares.packing import bytes_of
from hummingbird.prg import SEED_BYTES
from hummingbird.version import VERSION

FORMAT = 1
DONE = b"+"
NUMBER_BYTES = 8
END = bytes([255]) * NUMBER_BYTES  # in the place of a slot's number
SESSION_BYTES = TICKET_BYTES = 16
DIGEST_BYTES = 32
SLOT_HEAD = TICKET_BYTES + SEED_BYTES  # bytes before the share of the logits that a proxy's user is given
MOST_OPENING = 4096  # bytes
_HINT = "the bytes were damaged, or come from another program or release"


def opening(plan: str = "", **fields: Any) -> bytes:
    """The first message of a call. plan: its digest, empty before it is known."""
    return json.dumps({"format": FORMAT, "release": VERSION, "plan": plan, **fields}).encode()


def read_opening(data: bytes, plan: str, us: str, them: str) -> dict[str, Any]:
    """The fields of an opening; AgreementError, naming both sides, for another format, release or plan.

    plan: the digest that must be the other side's too; empty: any. us, them: the sides, as errors name them.
    InputError for anything malformed.
    """
    try:
        fields: Any = json.loads(data) if len(data) <= MOST_OPENING else None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise malformed("an opening that is no JSON object")
    theirs, release = fields.get("format"), str(fields.get("release"))[:32]
    if (theirs, release) != (FORMAT, VERSION):
        what = f"{them} is release {release}, format {str(theirs)[:32]}; {us} is release {VERSION}, format {FORMAT}"
        raise AgreementError(what, where="hybrid", hint="install the same release on both sides")
    if plan:
        check_plan(str(fields.get("plan")), plan, us, them)
    return fields


def check_plan(theirs: str, ours: str, us: str, them: str) -> None:
    """AgreementError where the two sides have plans of other digests."""
    if theirs != ours:
        what = f"{them} works by plan {theirs[:12]}, {us} by plan {ours[:12]}: another net, windows or weights"
        raise AgreementError(what, where="hybrid", hint="prepare again in another folder: a new session begins")


def text_of(fields: dict[str, Any], name: str, size: int) -> str:
    """A field of `size` bytes in hexadecimal digits; InputError for anything else."""
    text = fields.get(name)
    if not isinstance(text, str) or len(text) != 2 * size or not set(text) <= set("0123456789abcdef"):
        raise malformed(f"no {name}")
    return text


def number_of(fields: dict[str, Any], name: str) -> int:
    """A field that is a whole number from 0 to 2^63 - 1; InputError for anything else."""
    number = fields.get(name)
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise malformed(f"no {name}")
    return number


def words_bytes(count: int, ring: int) -> int:
    """Size in bytes of so many integers mod 2^ring."""
    return bytes_of(count * ring)


def pack(x: Tensor, ring: int) -> Tensor:
    """Integers mod 2^ring, int64 of any shape, to bytes uint8 (size,)."""
    return pack_words(x.reshape(-1), ring)


def unpack(data: Tensor, shape: tuple[int, ...], ring: int) -> Tensor:
    """The integers of `pack`, int64 (1, *shape)."""
    count = torch.Size(shape).numel()
    return unpack_words(data, count, ring).view(1, *shape)


def tensor_of(data: bytes) -> Tensor:
    """Bytes as a tensor, uint8 (size,)."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def octets(labels: Tensor) -> Tensor:
    """Labels int64 (..., 2) as bytes, uint8 (16 n,)."""
    return labels.contiguous().view(-1).view(torch.uint8)


def labels_of(data: Tensor) -> Tensor:
    """Labels int64 (n, 2) of bytes uint8 (16 n,)."""
    return data.view(torch.int64).view(-1, 2)


def malformed(what: str) -> InputError:
    """Bytes that no side of this format sends."""
    return InputError(f"malformed message: {what}", where="hybrid", hint=_HINT)
