"""The files of a store: `deal` writes them for a party, and `StoreDealer` reads them.

    DIR/party-RANK/lane-LANE/  mode 0700
      header.json            what the material is for, and the lists of requests; written last
      seed                   16 or 32 bytes, mode 0600: this party's seed, which expands to all of its free fields
      ledger                 which slots are used (hummingbird/slots.py)
      corrections            for the setup, then for every step of every slot: the corrections that go to this party,
                             in the form of a message, each tensor on a multiple of 8 bytes
      checksums              16 bytes for every 8 MiB of a region

Format 7. If two parties made the material (the header's `maker`), neither party's fields follow from a seed: then
`corrections` has this party's shares of all fields of every request, free ones too, each in the form of a message
(`Field.layout`), hidden by AES-128-CTR. The seed is 16 bytes that this party drew: from it follow a key for each chunk
of the file, and those of the checksums. So a file says nothing once its seed is erased, whoever made the material.

Lanes have nothing in common: the folders of one lane, at all parties, are a set with seeds and slots of its own.

A slot is the material of a slice, which is one step, or that of a conversation, step after step. A region (the setup,
a step of a slot) begins on a multiple of 64 KiB, so that it can be mapped into memory on every platform, and is checked
and read by itself. Sizes and offsets follow from the requests. The rotation of receivers (correlations/request.py)
starts again with party 0 in every region, so that steps with equal requests have the same layout. The numbers of the
turns go on: setup, slot 0, slot 1, ...

Checksums of chunks are tags of AES-128-GCM; each tag has its own key, derived from the seed and used for this one
message. The header's checksum is keyed BLAKE2b and covers the others. They detect damage, files of another store, and
changes by an attacker who can write the files but not read the seed. Whoever can read the seed needs no forgery: the
seed opens this party's shares.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import mmap
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM
from torch import Tensor

from hummingbird import records, slots
from hummingbird.errors import DealerError
from hummingbird.mpc.correlations.field import Fields
from hummingbird.mpc.correlations.request import ReceiverRotation, ReceiverTurn, Request
from hummingbird.mpc.protocols.registry import STORED_KINDS, from_json
from hummingbird.prg import CIPHERS, derive
from hummingbird.records import field
from hummingbird.slots import HEADER, SEED
from hummingbird.version import VERSION

FORMAT, FORMAT_VERSION = "hummingbird store", 7
DEALER, PAIR = "dealer", "pair"  # who made the material: a third party, or the two parties
CHUNK = 8 << 20  # bytes under one checksum
LEDGER, CORRECTIONS, CHECKSUMS = "ledger", "corrections", "checksums"
_DIGEST = 16
_MOST_TEXT = 64 << 20  # bytes
_ALIGN = 1 << 16  # a multiple of every platform's allocation granularity
_PIECE = 1 << 20  # bytes read at a time into one buffer: new memory costs more time than the reading
_AGAIN = "copy the folder again, or deal a new store"
_ANEW = "deal a new store with this release, the same at all parties"
_DEAL = "python -m hummingbird deal --help"

Place = tuple[int, torch.dtype, tuple[int, ...]]  # a tensor's offset in its region, type and shape


FACTS = records.mapping(records.text(_MOST_TEXT), 64)
_MOST_STEPS = 1 << 16
_REQUESTS = records.many(
    records.through(records.anything(), lambda item: from_json(item, STORED_KINDS), lambda request: request.to_json()),
    1 << 20,
)


@dataclass(frozen=True)
class Header:
    """The first record of a store's folder for one party and lane: what the material in it is for.

    set_id: a random name, which the folders of this lane have in common at all parties.
    facts: what the net must be like, a text for each name (`store.material_facts`).
    shape: of a slice's input, or of a conversation's.
    slots: for how many slices or conversations there is material.
    setup: the requests that a run makes once.
    kinds, order: the steps of a slot: the requests of each kind of step, and the kind of each step.
    seconds: how long the dealer worked on this lane.
    checksums: digest of the file of checksums.
    maker: DEALER, or PAIR if two parties made the material.
    """

    set_id: str = field(records.text(64))
    rank: int = field(records.whole())
    parties: int = field(records.whole())
    lane: int = field(records.whole())
    lanes: int = field(records.whole())
    facts: dict[str, str] = field(FACTS)
    shape: tuple[int, ...] = field(records.many(records.whole(), 64, 1))
    slots: int = field(records.whole())
    setup: tuple[Request[Any], ...] = field(_REQUESTS)
    kinds: tuple[tuple[Request[Any], ...], ...] = field(records.many(_REQUESTS, _MOST_STEPS))
    order: tuple[int, ...] = field(records.many(records.whole(0, _MOST_STEPS - 1), _MOST_STEPS, 1))
    seconds: float = field(records.real())
    checksums: str = field(records.text(256))
    maker: str = field(records.one_of((DEALER, PAIR)))
    format: str = records.constant(FORMAT)
    format_version: int = records.constant(FORMAT_VERSION)
    hummingbird_version: str = records.constant(VERSION)

    def __post_init__(self) -> None:
        if max(self.order) >= len(self.kinds):
            raise DealerError(f"malformed header: a step of kind {max(self.order)}, of {len(self.kinds)}", hint=_AGAIN)

    @property
    def regions(self) -> range:
        """The numbers of all regions, in the order of the file: the setup, then every step of every slot."""
        return range(1 + self.slots * len(self.order))

    def region(self, slot: int, step: int) -> int:
        """Return the number of the region of a step of a slot."""
        return 1 + slot * len(self.order) + step

    def requests(self, region: int) -> tuple[Request[Any], ...]:
        """Return the requests of a region, in order. region: 0 for the setup, else from `region`."""
        return self.kinds[self.order[(region - 1) % len(self.order)]] if region else self.setup

    def turns(self, region: int) -> list[ReceiverTurn]:
        """Return the receiver turn of each request of a region.

        A turn says which party receives the request's correction, and how many corrections that party received before.
        If two parties made the material, this party receives all fields of every request.
        The number of a slot's conversation is the slot's, from 1 on.
        """
        earlier = self.turns_before(region)
        slot = (region - 1) // len(self.order) + 1 if region else 0
        turns = self._layouts[self.order[(region - 1) % len(self.order)] if region else -1].turns
        return [ReceiverTurn(rank, earlier[rank] + number, slot) for rank, number, _ in turns]

    def turns_before(self, region: int) -> list[int]:
        """Return how many corrections each party receives in all regions before this one, by rank."""
        if not region:
            return [0] * self.parties
        slot, step = divmod(region - 1, len(self.order))
        setup, steps = self._layouts[-1].counts, self._counts
        return [setup[rank] + slot * steps[-1][rank] + steps[step][rank] for rank in range(self.parties)]

    @cached_property
    def _layouts(self) -> list[_Layout]:
        own = self.rank if self.whole else None
        return [_Layout.of(requests, self.parties, own) for requests in (*self.kinds, self.setup)]

    @cached_property
    def _counts(self) -> list[list[int]]:
        """How many corrections each party receives in a slot before each step, and in the whole slot."""
        counts = ([self._layouts[kind].counts[rank] for kind in self.order] for rank in range(self.parties))
        return [list(each) for each in zip(*(accumulate(mine, initial=0) for mine in counts), strict=True)]

    @property
    def whole(self) -> bool:
        """Whether the party's file has its shares of all fields, since none of them follows from a seed."""
        return self.maker == PAIR

    @cached_property
    def places(self) -> list[tuple[list[list[Place]], int]]:
        """The layout of this party's part of each kind of step, and last that of the setup (`places`)."""
        return [
            places(
                [asked for asked, turn in zip(kind, layout.turns, strict=True) if turn.receiver == self.rank],
                self.whole,
            )
            for kind, layout in zip((*self.kinds, self.setup), self._layouts, strict=True)
        ]

    def places_of(self, region: int) -> tuple[list[list[Place]], int]:
        """Return the layout of this party's part of a region (`places`)."""
        return self.places[self.order[(region - 1) % len(self.order)] if region else -1]

    @property
    def seconds_per_slot(self) -> float:
        """How long the dealer worked on each slot of this lane, in seconds."""
        return self.seconds / self.slots


class _Layout(NamedTuple):
    """The receiver turns of the requests of one kind of step, and how many corrections each party receives, by rank."""

    turns: list[ReceiverTurn]
    counts: list[int]

    @classmethod
    def of(cls, requests: Sequence[Request[Any]], parties: int, own: int | None) -> _Layout:
        """Return the layout of a step with these requests, among `parties` parties.

        own: the party that receives something for every request; None: the rotation says who receives.
        """
        turns = ReceiverRotation(parties).take(requests)
        if own is not None:
            turns = [ReceiverTurn(own, number) for number in range(len(requests))]
        counts = Counter(turn.receiver for turn in turns)
        return cls(turns, [counts[rank] for rank in range(parties)])


def kinds_of(steps: Sequence[Sequence[Request[Any]]]) -> tuple[tuple[tuple[Request[Any], ...], ...], tuple[int, ...]]:
    """Return the different kinds of steps among `steps`, and the kind of each step, as `Header.kinds` and `order`.

    steps: the requests of each step. Steps with equal requests are of one kind.
    """
    numbers: dict[str, int] = {}
    kinds: list[tuple[Request[Any], ...]] = []
    seen: dict[int, int] = {}  # by identity: a conversation has many steps with the same list
    order = []
    for requests in steps:
        if id(requests) not in seen:
            text = "\n".join(map(str, requests))
            if text not in numbers:
                numbers[text] = len(kinds)
                kinds.append(tuple(requests))
            seen[id(requests)] = numbers[text]
        order.append(seen[id(requests)])
    return tuple(kinds), tuple(order)


def chunk_checksum(seed: bytes, number: int, pieces: Iterable[Any]) -> bytes:
    """Compute the checksum, 16 bytes, of chunk `number` of a store's corrections. pieces: buffers with its bytes.

    It is the tag of AES-GCM, under a key that follows from the party's seed and the number. AES-GCM and not Poly1305:
    the library lets other threads run while it computes the first, but not the second.
    """
    state = Cipher(AES(derive(seed, "store", "chunk", number)[:16]), GCM(bytes(12))).encryptor()  # each key once
    for piece in pieces:
        state.authenticate_additional_data(piece)
    state.finalize()
    return state.tag


def hidden(seed: bytes, number: int, data: bytes | memoryview) -> bytes:
    """Return chunk `number` of a file of shares encrypted, or decrypted. seed: the party's, of this set.

    It is AES-128-CTR under a key that follows from the seed and the number, and that hides this one chunk.
    """
    return Cipher(AES(derive(seed, "store", "hidden", number)[:16]), CTR(bytes(16))).encryptor().update(data)


def checksums_digest(checksums: bytes) -> str:
    """Return the digest that a header holds of the file of checksums, as hexadecimal text.

    checksums: the file's bytes.
    """
    return hashlib.blake2b(checksums, digest_size=_DIGEST).hexdigest()


def lane_folder(root: Path, rank: int, lane: int) -> Path:
    """Return the path of the folder for one lane of a party. root: the store's folder."""
    return root / f"party-{rank}" / f"lane-{lane}"


def find(path: str | os.PathLike[str], rank: int, lane: int) -> Path:
    """Find the folder with the material of one lane of a party, from the path that a user names.

    path: the party's folder, or the folder that holds party-RANK, or the lane's own folder; {rank} in it stands for the
        rank.
    If only the folder of lane 0 exists, it is returned: its header tells how many lanes there are.
    """
    folder = Path(str(path).replace("{rank}", str(rank)))
    if (folder / HEADER).is_file():
        return folder
    inner = lane_folder(folder, rank, lane).parent
    party = inner if inner.is_dir() else folder
    mine, first = (party / f"lane-{number}" for number in (lane, 0))
    return mine if mine.is_dir() or not first.is_dir() else first


def read_header(folder: Path) -> tuple[Header, bytes]:
    """Read and return a party's header and its seed from the folder of one lane.

    Raises DealerError unless the folder is a complete, undamaged store of this release.
    """
    if not (folder / HEADER).is_file():
        begun = folder.is_dir() and any((folder / name).exists() for name in (SEED, f"{HEADER}.new"))
        what = "this store was not dealt to its end" if begun else "there is no store here"
        hint = f"name a party's folder, or the one that holds party-RANK, or use {{rank}}; to deal one: {_DEAL}"
        raise DealerError(what, where=str(folder), hint=hint)
    return slots.read_header(folder, Header, CIPHERS.values(), _AGAIN, _ANEW, DealerError)


def stored_fields(request: Request[Any], whole: bool) -> Fields:
    """Return the fields of a request that a party's file has: the derived ones, or with `whole` all, by name."""
    return request.parts if whole else request.derived


def places(requests: Sequence[Request[Any]], whole: bool = False) -> tuple[list[list[Place]], int]:
    """Lay out the tensors of one region of a party's file: the setup's, or those of one step of a slot.

    requests: the region's requests whose corrections go to the party, or with `whole` all of the region's requests.
    whole: whether the file has all fields (`Header.whole`).

    Returns a list for each request, and the region's size in bytes. A request's list has an entry (offset in bytes,
    dtype, shape) for each of its tensors in the file.
    """
    found, at = [], 0
    for request in requests:
        mine = []
        for dtype, shape in (item.layout for item in stored_fields(request, whole).values()):
            mine.append((at, dtype, tuple(shape)))
            at += -(-dtype.itemsize * math.prod(shape) // 8) * 8
        found.append(mine)
    return found, -(-at // _ALIGN) * _ALIGN


class Corrections:
    """The file of the corrections that go to one party, open for reading; `read(region)` returns those of one region.

    Region 0 is for the setup, region s + 1 for slot s. If two parties made the material, the file has all fields.
    folder: of the party's lane.
    header: the party's, for this lane.
    seed: the party's, from which the keys of the checksums follow.
    Raises DealerError if the file is missing, or if its size or its checksums are wrong.
    """

    def __init__(self, folder: Path, header: Header, seed: bytes) -> None:
        self.path, self._seed, self._header = folder / CORRECTIONS, seed, header
        self._places = header.places
        sizes = [self._places[kind][1] for kind in header.order]
        self._starts = list(accumulate(sizes, initial=0))  # of each step in its slot, in bytes
        self._chunks = list(accumulate((-(-size // CHUNK) for size in sizes), initial=0))
        setup, slot = self._places[-1][1], self._starts[-1]
        chunks = -(-setup // CHUNK) + header.slots * self._chunks[-1]
        try:
            self._checksums = (folder / CHECKSUMS).read_bytes()
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DealerError(f"{error.strerror}", where=str(error.filename), hint="copy the folder again") from None
        try:
            found, expected = os.fstat(self._file).st_size, setup + header.slots * slot
            if found != expected:
                what = f"{found:,} bytes instead of {expected:,}: cut off, or not this store's"
                raise DealerError(what, where=str(self.path), hint="copy the folder again, or deal a new store")
            if len(self._checksums) != chunks * _DIGEST or checksums_digest(self._checksums) != header.checksums:
                where = str(folder / CHECKSUMS)
                raise DealerError("the checksums are damaged", where=where, hint="copy the folder again")
        except BaseException:
            self.close()
            raise
        self._scratch = bytearray(_PIECE)

    def read(self, region: int) -> list[list[Tensor]]:
        """Return the corrections of one region: a list of tensors for each request whose receiver is this party.

        A list has one tensor for each of the request's `stored_fields`. Writing into the tensors does not change the
        file.
        region: its number (`Header.region`), 0 for the setup.
        Raises DealerError for a wrong checksum.
        """
        setup, start, chunk, kind = self._places[-1][1], 0, 0, -1
        if region:
            slot, step = divmod(region - 1, len(self._header.order))
            start = setup + slot * self._starts[-1] + self._starts[step]
            chunk = -(-setup // CHUNK) + slot * self._chunks[-1] + self._chunks[step]
            kind = self._header.order[step]
        found, size = self._places[kind]
        if not size:
            return [[torch.empty(shape, dtype=dtype) for _, dtype, shape in mine] for mine in found]
        self._check(start, size, chunk)
        mapped = mmap.mmap(self._file, size, access=mmap.ACCESS_COPY, offset=start)
        if self._header.whole:
            for number, begin in enumerate(range(0, size, CHUNK), chunk):
                part = slice(begin, min(begin + CHUNK, size))
                mapped[part] = hidden(self._seed, number, mapped[part])
        return [[_view(mapped, *place) for place in mine] for mine in found]

    def _check(self, start: int, size: int, chunk: int) -> None:
        """Read a region of the file; raise DealerError if a checksum is wrong. There is one for each chunk of 8 MiB.

        start, size: the region's first byte, and its number of bytes. chunk: the number of its first chunk in the file.
        """
        view = memoryview(self._scratch)

        def pieces(begin: int, end: int) -> Iterator[memoryview]:
            for at in range(begin, end, _PIECE):
                piece = view[: min(_PIECE, end - at)]
                try:
                    count = os.preadv(self._file, [piece], start + at)
                except OSError as error:
                    raise DealerError(f"cannot be read: {error.strerror}", where=str(self.path), hint=_OTHER) from None
                yield piece[:count]

        for number, begin in enumerate(range(0, size, CHUNK), chunk):
            end = min(begin + CHUNK, size)
            found = chunk_checksum(self._seed, number, pieces(begin, end))
            if not hmac.compare_digest(found, self._checksums[number * _DIGEST : (number + 1) * _DIGEST]):
                what = f"bytes {start + begin:,} to {start + end:,} are damaged (wrong checksum)"
                raise DealerError(what, where=str(self.path), hint=_OTHER)

    def close(self) -> None:
        """Close the file. Tensors that `read` returned stay valid."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


_OTHER = "run again to go on with the next slot, or copy the folder again"


def _view(mapped: mmap.mmap, at: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=at).view(shape)
