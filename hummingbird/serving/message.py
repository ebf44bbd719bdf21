"""Requests and answers as bytes, and the shares in them.

The messages are:

    request = header (64 bytes), then a seed (16 bytes) for parties 0 .. N-2, for party N-1 packed words; then keys
    header  = "hs", version, kind, digest of the description, id, claim, deadline (ms since 1970), images (4 bytes)
    answer  = header (8 bytes: "hs", version, 0, images), then packed words

A client splits x into uniform shares mod 2^V, where V is the number of low bits that the net reads of its input. The
shares of parties 0 .. N-2 are the first words of AES-128-CTR under fresh seeds, and party N-1 gets x minus their sum.
Where rows are looked up, each of two parties gets its own keys, and the weights in x are multiplied by the keys' signs.
Numbers are little-endian. Every length follows from the description; a message of another length is refused.

In a service that generates text, a request is one step of a conversation, its images are the step's words, and its id
says which step it is:

    id      = conversation (12 random bytes), step (2 bytes), attempt (2 bytes)

The first step reads the prompt's words, each later one a single word; step `END` has no words, and ends the
conversation. A client makes another attempt, with fresh shares, only at a step that the parties have not run.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hummingbird.cost import ANSWER_HEADER_BYTES, REQUEST_HEADER_BYTES, packed
from hummingbird.errors import InputError, UnavailableError
from hummingbird.kernels import open_words, pack_words, unpack_words
from hummingbird.kernels.lookups import check
from hummingbird.pir import dpf
from hummingbird.prg import SEED_BYTES, Stream, new_seed
from hummingbird.serving.description import DIGEST_BYTES, ServiceDescription

ID_BYTES = 16
MAX_BYTES = 32 << 20  # of a request's message, and of an answer's
MOST_SECONDS = 600.0  # from now to a request's deadline
_MAGIC, _VERSION = b"hs", 1
_SEED, _WORDS = 0, 1
_REQUEST = struct.Struct("<2sBB16s16s16sqI")
_ANSWER = struct.Struct("<2sBBI")
_DIGEST = slice(4, 4 + DIGEST_BYTES)  # of a request
assert (_REQUEST.size, _ANSWER.size) == (REQUEST_HEADER_BYTES, ANSWER_HEADER_BYTES)
_STEP = struct.Struct("<12sHH")
END, ATTEMPTS = (1 << 16) - 1, 1 << 16  # the step that ends a conversation; how many attempts a step may have
TALK_BYTES = 12  # of a conversation's name in its requests' ids
_EPOCH = time.time() - time.monotonic()
_HINT = "the request comes from another program or release"


def clock() -> float:
    """Return the time in seconds since 1970, by which requests' deadlines are compared.

    It is a monotonic clock: setting the host's clock moves no deadline.
    """
    return _EPOCH + time.monotonic()


def step_id(talk: bytes, step: int, attempt: int = 0) -> bytes:
    """Return the id of a request that is an attempt at a step of a conversation. talk: the conversation's name."""
    return _STEP.pack(talk, step, attempt)


def step_of(id: bytes) -> tuple[bytes, int]:
    """Return the name of the conversation that a request is of, and the number of its step. id: of the request."""
    talk, step, _ = _STEP.unpack(id)
    return talk, step


@dataclass(frozen=True, repr=False)
class Request:
    """A client's request, as one party gets it in a message.

    id: 16 random bytes, equal at all parties. claim: 16 random bytes of the client, by which a party distinguishes
    clients without certificates or tokens. deadline: milliseconds since 1970 on the receiving party's clock. images:
    how many there are. body: this party's share of the inputs, as a seed or as packed words, and then keys of lookups.
    digest: of the description that a message names; empty at the client, which names one in `to_bytes`.
    """

    id: bytes
    claim: bytes
    deadline: int
    images: int
    body: bytes
    digest: bytes = field(default=b"", compare=False)

    def to_bytes(self, service: ServiceDescription, rank: int) -> bytes:
        """Return the message by which a client sends this request to party `rank`.

        service: the parties' description of what they serve.
        """
        kind = _kind(service, rank)
        fields = (service.digest, self.id, self.claim, self.deadline, self.images)
        return _REQUEST.pack(_MAGIC, _VERSION, kind, *fields) + self.body

    @classmethod
    def read(cls, data: bytes, service: ServiceDescription, rank: int) -> Request:
        """Read a request from `data`, the message that party `rank` has received from a client.

        service: the description of what the party serves. Raises InputError unless the message has this version and its
        exact length, UnavailableError if it is for another service.
        """
        if len(data) < _REQUEST.size:
            raise InputError(f"{len(data)} bytes are shorter than a header", where="request", hint=_HINT)
        magic, version, kind, digest, id, claim, deadline, images = _REQUEST.unpack_from(data)
        if magic != _MAGIC or version != _VERSION:
            raise InputError("this is no request of this version", where="request", hint=_HINT)
        if digest != service.digest:
            what = "the request is for another net, shape, range or scale, or for an earlier run of these parties"
            raise UnavailableError(what, where="request", hint="ask for the description again, then with fresh shares")
        if kind != _kind(service, rank):
            what = (
                f"party {rank} takes {'words' if _kind(service, rank) else 'a seed'}, the request holds the other kind"
            )
            raise InputError(
                what, where="request", hint="list the parties' addresses as they are: ranks tell them apart"
            )
        if service.places:
            _check_step(service, step_of(id)[1], images)
        elif not 1 <= images <= service.most:
            raise InputError(f"{images} images", where="request", hint=f"1 to {service.most} in a request")
        body = data[_REQUEST.size :]
        expected = body_bytes(service, rank, images)
        if len(body) != expected:
            what = f"the share of {images} images has {len(body)} bytes, expected {expected}"
            raise InputError(what, where="request", hint=f"{service.bits} bits for each of {service.values} values")
        request = cls(id, claim, deadline, images, body, digest)
        if service.lookups:
            request._check_keys(service, rank)
        return request

    def words(self, service: ServiceDescription, rank: int) -> Tensor:
        """Return party `rank`'s share of this request's inputs, int64 (images, ...).

        Only the lowest `service.bits` bits of a share count; higher bits are arbitrary. service: the description by
        which the request was made.
        """
        count = self.images * service.values
        if _kind(service, rank) == _SEED:
            share = Stream(self.body[:SEED_BYTES]).words(count)
        else:
            share = unpack_words(_octets(self.body[: packed(count * service.bits)]), count, service.bits)
        return share.view(self.images, *service.shape)

    def keys(self, service: ServiceDescription) -> Tensor:
        """Return this request's keys for rows of the table, uint8 (images * lookups, bytes of a key)."""
        size = self.images * service.key_bytes
        return _octets(self.body[len(self.body) - size :]).view(self.images * service.lookups, -1)

    def _check_keys(self, service: ServiceDescription, rank: int) -> None:
        rows = service.inputs[0].rows
        try:
            check(self.keys(service), "request", rows, rank)
        except InputError:  # its text would reveal more than needed
            what = f"a key is not for party {rank} and {rows:,} rows, or damaged"
            raise InputError(what, where="request", hint=_HINT) from None


def digest_of(data: bytes) -> bytes:
    """Return the digest of the description that a request's message names; any bytes if it is no request."""
    return data[_DIGEST]


def _check_step(service: ServiceDescription, step: int, words: int) -> None:
    """Raise InputError unless a step of a conversation exists, and has as many words as it reads."""
    if step != END and step > service.places - service.most:
        what = f"all {service.places} places of this conversation are used"
        raise InputError(what, where="conversation", hint="begin another one, or serve a net for more places")
    most = service.most if step == 0 else int(step != END)
    if not min(1, most) <= words <= most:
        what = f"{words} words in step {step} of a conversation"
        hint = f"1 to {service.most} words in the prompt, and single words after it"
        raise InputError(what, where="conversation", hint=hint)


def _kind(service: ServiceDescription, rank: int) -> int:
    return _WORDS if rank == service.parties - 1 else _SEED


def body_bytes(service: ServiceDescription, rank: int, images: int) -> int:
    """Return the size in bytes of `Request.body` in a request to party `rank`.

    service: the description of what is served. images: how many images the request has.
    """
    share = SEED_BYTES if _kind(service, rank) == _SEED else packed(images * service.values * service.bits)
    return share + images * service.key_bytes


@dataclass(frozen=True, repr=False)
class Question:
    """The inputs for the images of one request as the client has them, before it splits them into shares.

    units: ring elements to share, int64 (images, ...). places: row numbers to look up, int64 (images, lookups), or None
    for a net without lookups.
    """

    units: Tensor
    places: Tensor | None = None

    def __len__(self) -> int:
        return len(self.units)

    def split(self, most: int) -> list[Question]:
        """Divide these images into a list of questions of at most `most` images each."""
        units = self.units.split(most)
        places = [None] * len(units) if self.places is None else self.places.split(most)
        return [Question(*pair) for pair in zip(units, places, strict=True)]

    def bodies(self, service: ServiceDescription) -> list[bytes]:
        """Split these inputs into shares; return a list of the bytes for each party, by rank.

        service: the parties' description. The bytes are the body of the party's `Request`: its share, and then its keys
        of lookups. Shares and keys are fresh in every call.
        """
        if self.places is None:
            return split(self.units, service.bits, service.parties)
        first, second, signs = dpf.generate(self.places.reshape(-1), service.inputs[0].rows)
        units = self.units.reshape(len(self), -1).clone()
        units[:, : service.lookups] *= signs.view(len(self), -1)
        keys = (first, second)
        bodies = split(units, service.bits, service.parties)
        return [body + own.numpy().tobytes() for body, own in zip(bodies, keys, strict=True)]


def split(x: Tensor, bits: int, parties: int) -> list[bytes]:
    """Split ring elements into fresh shares mod 2^bits; return a list with one share for each party, as bytes.

    x: int64. All shares but the last are seeds, from which the party expands its share; the last has packed words.
    """
    flat = x.reshape(-1)
    seeds = [new_seed() for _ in range(parties - 1)]
    for seed in seeds:
        flat = flat - Stream(seed).words(len(flat))
    return [*seeds, pack_words(flat, bits).numpy().tobytes()]


def pack_answer(share: Tensor, bits: int) -> bytes:
    """Return the message by which a party answers a request.

    share: this party's share of the results, int64 (images, ...). bits: how many of its lowest bits are sent.
    """
    words = pack_words(share.reshape(-1).contiguous(), bits)
    return _ANSWER.pack(_MAGIC, _VERSION, 0, len(share)) + words.numpy().tobytes()


def joined(answers: list[bytes], images: int, service: ServiceDescription) -> Tensor:
    """Return the results in the parties' answers to a request, int64 (images, ...): the sums of their shares.

    answers: one from each party. images: how many the request has. service: the parties' description. Negative sums are
    sign-extended. Raises InputError for malformed answers.
    """
    head, count = _ANSWER.pack(_MAGIC, _VERSION, 0, images), images * service.results
    for answer in answers:
        if not answer.startswith(head) or len(answer) != len(head) + packed(count * service.result_bits):
            raise InputError(f"a malformed answer of {len(answer)} bytes", where="answer", hint=_HINT)
    total = open_words([_octets(answer, len(head)) for answer in answers], count, service.result_bits)
    unused = 64 - service.result_bits
    return total.bitwise_left_shift_(unused).bitwise_right_shift_(unused).view(images, *service.result)


def _octets(data: bytes, first: int = 0) -> Tensor:
    if len(data) == first:  # the answer to the end of a conversation
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=first)
