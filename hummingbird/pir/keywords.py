"""Tables whose rows are looked up by a text or by bytes; the servers learn neither which, nor whether it is there.

A table has three segments of S positions. A public hash gives each keyword one position in every segment, and a tag of
8 bytes (kernels/keywords.py). The keyword's row is at one of its three positions, behind the tag; all other records are
zeros. This is cuckoo hashing with three choices, in which nearly all tables can be filled up to a load of 0.917
(Dietzfelbinger et al., ICALP 2010); `LOAD` is 0.88.

A lookup sends one key to every segment, so a server reads each record once. The client compares the tags of the three
records with its own. A keyword that is not in the table is found by mistake with a probability of 3 x 2^-64.

What a client learns beyond its row: the three records, which may hold the rows of other keywords, and their tags. The
servers know the hash, so they can find out whether a keyword of their own choice is in the table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hummingbird.errors import AgreementError, EnvironmentProblem, InputError
from hummingbird.kernels import keywords as kernel
from hummingbird.kernels.keywords import SEGMENTS
from hummingbird.pir.client import Client
from hummingbird.pir.table import DTYPES
from hummingbird.pir.table_server import TableServer
from hummingbird.prg import SEED_BYTES, new_seed

LOAD = 0.88  # largest share of positions that hold a row
TAG_BYTES = 8
MOST_BYTES = 1 << 16  # of a keyword
_SEEDS = 20
WHERE = "pir.KeywordTable"

Keyword = str | bytes


def encoded(keywords: Iterable[Keyword], where: str) -> list[bytes]:
    """Return keywords as bytes, texts in UTF-8. Raises InputError for another type, and for too many bytes."""
    words = []
    for number, keyword in enumerate(keywords):
        if not isinstance(keyword, (str, bytes)):
            what = f"keyword {number} is {type(keyword).__name__}"
            raise InputError(what, where=where, hint="a keyword is a str or bytes")
        try:
            word = keyword.encode() if isinstance(keyword, str) else keyword
        except UnicodeEncodeError:
            raise InputError(f"keyword {number} is no Unicode text", where=where, hint="give its bytes") from None
        if len(word) > MOST_BYTES:
            what = f"keyword {number} has {len(word)} bytes"
            raise InputError(what, where=where, hint=f"{MOST_BYTES} at most: look a hash of it up")
        words.append(word)
    return words


def joined(words: Sequence[bytes]) -> tuple[Tensor, Tensor]:
    """Return keywords as the kernels take them: their bytes, uint8, and where each begins and ends, int64 (n + 1,)."""
    ends = torch.tensor([*itertools.accumulate(map(len, words), initial=0)])
    return torch.frombuffer(bytearray(b"".join(words) or b"\0"), dtype=torch.uint8), ends


def segment_of(room: int) -> int:
    """Return the number of positions in a segment of a table. room: the number of keywords that the table can hold."""
    return math.ceil(room / (SEGMENTS * LOAD))


def placed(digests: Tensor, segment: int) -> tuple[Tensor, int]:
    """Give every keyword a position: the tags of all records, int64 (3 S,), and the result of `place_keywords`.

    Raises EnvironmentProblem if memory is short.
    """
    try:
        tags = torch.zeros(SEGMENTS * segment, dtype=torch.int64)
    except RuntimeError:  # torch's error for memory
        what = f"no memory for a table of {SEGMENTS * segment:,} positions"
        raise EnvironmentProblem(what, where=WHERE, hint="less room") from None
    return tags, kernel.place_keywords(digests, segment, tags)


def seeds_to_try(seed: bytes | None) -> list[bytes]:
    """Return the seeds with which a table is tried: the one given, or random ones. Raises InputError for a bad one."""
    if seed is not None and (not isinstance(seed, bytes) or len(seed) != SEED_BYTES):
        raise InputError("a seed of another size", where=WHERE, hint=f"{SEED_BYTES} bytes, or leave it out")
    return [new_seed() for _ in range(_SEEDS)] if seed is None else [seed]


def room_for(count: int, room: int | None) -> int:
    """Return the number of keywords for which a table is made: `room`, or how many there are. Raises InputError."""
    room = max(1, count) if room is None else room
    if type(room) is not int or room < max(1, count):
        what = f"room for {room!r} of {count} keywords"
        raise InputError(what, where=WHERE, hint="a whole number, at least 1, and as many as there are keywords")
    return room


def tag_words(dtype: torch.dtype) -> int:
    """Return how many values of a type a tag takes."""
    return TAG_BYTES // dtype.itemsize


def no_position() -> InputError:
    """Return the error for a table whose keywords found no positions with any of the seeds."""
    return InputError("some keywords found no position", where=WHERE, hint="take another seed, or more room")


def tagged(tags: Tensor, rows: Tensor) -> Tensor:
    """Put tags, int64 (n,), before rows, (n, dim), as values of the rows' type; their bytes are what counts."""
    octets = tags.clone(memory_format=torch.contiguous_format).view(torch.uint8).view(-1, TAG_BYTES)
    return torch.cat([octets.view(rows.dtype), rows], 1)


class KeywordClient:
    """A client that looks rows up by keyword at the two servers of a `KeywordTable`, which must not collude.

    servers, options: as for `Client`. A keyword takes 3 keys at each server, and 3 records come back from each, whether
    the keyword is there or not. Raises InputError for servers whose rows are looked up by number, and the errors of
    `Client`.

    >>> names = pir.KeywordTable(["alice", "bob"], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> client = pir.KeywordClient(pir.local_servers(names.source))
    >>> rows, found = client.rows(["bob", "carol"])
    >>> rows, found
    (tensor([[3., 4.],
            [0., 0.]]), tensor([ True, False]))
    """

    def __init__(self, servers: Sequence[str | TableServer], **options: Any) -> None:
        self.client = Client(servers, **options)
        if not self.client.facts.keywords:
            self.client.close()
            hint = "pir.Client looks rows up by number"
            raise InputError("these servers have a table without keywords", where="pir.KeywordClient", hint=hint)

    def __getitem__(self, keyword: Keyword) -> Tensor | None:
        """Return the row of a keyword, (dim,), or None if it is not in the table. Errors: as for `rows`."""
        rows, found = self.rows([keyword])
        return rows[0] if bool(found[0]) else None

    def rows(self, keywords: Sequence[Keyword]) -> tuple[Tensor, Tensor]:
        """Look up n keywords; return their rows, (n, dim), and whether each is in the table, bool (n,).

        The row of a keyword that is not there is zeros. All rows are of one version of the table. One round trip for
        every thousand keywords or so. Raises the errors of `Client.rows`, and InputError for a keyword that is neither
        str nor bytes, or too long.
        """
        words, facts = encoded(keywords, "pir.KeywordClient"), self.client.facts
        words_of_tag = tag_words(DTYPES[facts.dtype])
        if not words:
            return torch.empty(0, facts.dim - words_of_tag, dtype=DTYPES[facts.dtype]), torch.empty(0, dtype=torch.bool)
        digests = kernel.hash_keywords(*joined(words), bytes.fromhex(facts.keywords)).numpy().view(np.uint64)
        numbers = kernel.positions(digests[:, 0], digests[:, 1], facts.domain)
        flat = torch.from_numpy(numbers % facts.domain).flatten()
        _, records = self.client.read(flat, torch.from_numpy(numbers).view(-1, 1), together=SEGMENTS)
        if self.client.facts != facts:
            what, hint = "the servers have another table since this client began", "make another client"
            raise AgreementError(what, where="pir.KeywordClient", hint=hint)
        read = records[:, :words_of_tag].contiguous().view(torch.uint8).numpy().view("<u8").reshape(-1, SEGMENTS)
        same = torch.from_numpy(read == digests[:, 1:])
        rows = records[:, words_of_tag:].view(len(words), SEGMENTS, -1)
        found, first = same.any(1), same.to(torch.uint8).argmax(1)
        out = rows[torch.arange(len(words)), first].clone()
        out[~found] = 0
        return out, found

    def close(self) -> None:
        """Disconnect; may be called twice."""
        self.client.close()
