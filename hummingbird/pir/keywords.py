"""Tables whose rows are looked up by a text or by bytes; the servers learn neither which, nor whether it is there.

A table has three segments of S positions. A public hash gives each keyword one position in every segment, and a tag of
8 bytes. The keyword's row is at one of its three positions, behind the tag; all other records are zeros. This is cuckoo
hashing with three choices, in which nearly all tables can be filled up to a load of 0.917 (Dietzfelbinger et al., ICALP
2010); `LOAD` is 0.88.

A lookup sends one key to every segment, so a server reads each record once. The client compares the tags of the three
records with its own. A keyword that is not in the table is found by mistake with a probability of 3 x 2^-64.

What a client learns beyond its row: the three records, which may hold the rows of other keywords, and their tags. The
servers know the hash, so they can find out whether a keyword of their own choice is in the table.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hummingbird.errors import AgreementError, InputError
from hummingbird.pir.client import Client
from hummingbird.pir.table import DTYPES, SEGMENTS, Facts, Source
from hummingbird.pir.table_server import TableServer
from hummingbird.pir.updating import Updater
from hummingbird.prg import SEED_BYTES, Stream, derive, new_seed

LOAD = 0.88  # largest share of positions that hold a row
TAG_BYTES = 8
MOST_BYTES = 1 << 16  # of a keyword
_ROUNDS = 10_000  # in which all rows have found their positions, or another seed is tried
_SEEDS = 20
_SEARCH = 1 << 16  # positions that are looked at to make room for a new keyword
_WHERE = "pir.KeywordTable"

Keyword = str | bytes


def _encoded(keywords: Iterable[Keyword], where: str) -> list[bytes]:
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


def _hashed(words: Sequence[bytes], seed: bytes, positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Hash keywords; return their positions in each segment, int64 (n, 3), and their tags, uint64 (n,), never 0.

    seed: public, of the table. positions: in a segment.
    """
    digests = b"".join(hashlib.blake2b(word, key=seed, digest_size=32).digest() for word in words)
    numbers = np.frombuffer(digests, "<u8").reshape(-1, SEGMENTS + 1)
    places = (numbers[:, :SEGMENTS] % np.uint64(positions)).astype(np.int64)
    return places, np.maximum(numbers[:, SEGMENTS], np.uint64(1))


def _placed(choices: np.ndarray, positions: int, seed: bytes) -> np.ndarray | None:
    """Give every keyword one of its positions, so that no two have the same; None if some found none.

    choices: int64 (n, 3), numbers of positions. positions: how many there are. seed: 16 bytes, of random turns. Returns
    int64 (positions,): the number of the keyword at each position, -1 for none.
    """
    held, waiting = np.full(positions, -1), np.arange(len(choices))
    turn, random = np.zeros(len(choices), np.int64), Stream(derive(seed, "turns"))
    for _ in range(_ROUNDS):
        if not len(waiting):
            return held
        wanted = choices[waiting, turn[waiting]]
        before = np.unique(held[wanted])
        held[wanted] = waiting  # of several that want a position, the last one gets it
        lost = waiting[held[wanted] != waiting]
        waiting = np.concatenate([lost, before[before >= 0]])
        turn[waiting] = (turn[waiting] + 1 + (random.words(len(waiting)).numpy() & 1)) % SEGMENTS  # one of the others
    return None


class KeywordTable:
    """A table by keyword, as its owner has it: makes the `Source` for the servers, and changes it while they serve it.

    keywords: n of them, all different, str or bytes; a str is the same keyword as its bytes in UTF-8. rows: a tensor
    (n, dim) of a type that `Source` takes. room: how many keywords the table can hold; default: n. seed: of the public
    hash, 16 bytes; default: a random one.
    Save `source` after changes, to go on later: the servers keep changes in their journals, and not in the file that
    they loaded. Memory: 1.14 times `room` records of the row's bytes and 8 more, and the keywords. Raises InputError
    for keywords that are equal, too long or of another type, and for rows that do not fit them.

    >>> names = pir.KeywordTable(["alice", "bob"], torch.tensor([[1.0, 2.0], [3.0, 4.0]]), room=100)
    >>> client = pir.KeywordClient(pir.local_servers(names.source))
    >>> client["bob"], client["carol"]
    (tensor([3., 4.]), None)
    """

    def __init__(
        self, keywords: Sequence[Keyword], rows: Tensor, *, room: int | None = None, seed: bytes | None = None
    ) -> None:
        words = _encoded(keywords, _WHERE)
        if not isinstance(rows, Tensor) or rows.dim() != 2 or len(rows) != len(words):
            got = f"rows {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
            raise InputError(f"{got} for {len(words)} keywords", where=_WHERE, hint="a tensor (keywords, dim)")
        if str(rows.dtype).removeprefix("torch.") not in DTYPES or rows.layout != torch.strided or rows.is_meta:
            what = f"rows of {rows.dtype}, {rows.layout}, on {rows.device}"
            raise InputError(what, where=_WHERE, hint=f"a dense tensor that has data; types: {', '.join(DTYPES)}")
        if seed is not None and (not isinstance(seed, bytes) or len(seed) != SEED_BYTES):
            raise InputError("a seed of another size", where=_WHERE, hint=f"{SEED_BYTES} bytes, or leave it out")
        room = self._begin(words, max(1, len(words)) if room is None else room)
        segment = math.ceil(room / (SEGMENTS * LOAD))
        for _ in range(_SEEDS if seed is None else 1):
            own = new_seed() if seed is None else seed
            places, tags = _hashed(words, own, segment)
            held = _placed(places + segment * np.arange(SEGMENTS), SEGMENTS * segment, own)
            if held is not None:
                break
        else:
            raise InputError("some keywords found no position", where=_WHERE, hint="take another seed, or more room")
        self._held, used = held, held >= 0
        rows = rows.detach().cpu().contiguous()
        records = torch.zeros(len(held), _tag_words(rows.dtype) + rows.shape[1], dtype=rows.dtype)
        records[torch.from_numpy(used)] = _tagged(tags[held[used]], rows[torch.from_numpy(held[used])])
        plain = Source.of(records)
        facts = Facts(plain.facts.rows, plain.facts.dim, plain.facts.dtype, keywords=own.hex())
        self.source = Source(facts, 0, plain.records)

    @classmethod
    def open(cls, source: Source, keywords: Sequence[Keyword], room: int | None = None) -> KeywordTable:
        """Return the table of a Source that was made by a KeywordTable, such as one that was saved and changed since.

        keywords: all that are in it, in any order. room: how many it can hold; default: what fits. Raises InputError
        for another kind of table, AgreementError if a keyword is not in it, or it has others.
        """
        if not source.facts.keywords or source.facts.table_id:
            what = "a signed table" if source.facts.table_id else "a table whose rows are looked up by number"
            raise InputError(what, where=_WHERE, hint="the plain table that KeywordTable made and `save` wrote")
        self = cls.__new__(cls)
        self.source = source
        self._begin(_encoded(keywords, _WHERE), int(LOAD * source.facts.rows) if room is None else room)
        self._held = np.full(source.facts.rows, -1)
        stored = source.records[:, :TAG_BYTES].copy().view("<u8").reshape(-1)
        for word, number in self._number.items():
            places, tag = self._places(word)
            at = [place for place in places if stored[place] == tag]
            if not at:
                what = f"keyword {number} is not in the table"
                raise AgreementError(what, where=_WHERE, hint="give the keywords that are in it now")
            self._held[at[0]] = number
        others = int((stored != 0).sum()) - len(self._number)
        if others:
            what = f"the table has {others} keywords that are not among these"
            raise AgreementError(what, where=_WHERE, hint="give the keywords that are in it now")
        return self

    def _begin(self, words: list[bytes], room: int) -> int:
        """Number the keywords of a new table; return its room. Raises InputError for equal ones, and little room."""
        self._number, self._words = {word: number for number, word in enumerate(words)}, dict(enumerate(words))
        self.room, self._next = room, len(words)
        if len(self._number) != len(words):
            first = next(number for number, word in enumerate(words) if self._number[word] != number)
            what = f"keyword {first} stands again as number {self._number[words[first]]}"
            raise InputError(what, where=_WHERE, hint="each keyword has one row")
        if type(room) is not int or room < max(1, len(words)):
            what = f"room for {room!r} of {len(words)} keywords"
            raise InputError(what, where=_WHERE, hint="a whole number, at least 1, and as many as there are keywords")
        return room

    def __len__(self) -> int:
        return len(self._number)

    def __contains__(self, keyword: Keyword) -> bool:
        return _encoded([keyword], _WHERE)[0] in self._number

    def put(self, keyword: Keyword, row: Tensor, servers: Updater | None = None) -> None:
        """Insert a keyword with its row, or replace the row of a keyword that is there.

        To make room, rows of other keywords may move to other positions, all in one update. servers: both servers,
        which get the update first; if that fails, call `Updater.bring_up`, and this again. None: no server has the
        table yet. Raises InputError for a row that does not fit, for more keywords than there is room for, or for one
        that finds no position, as can happen in a small full table; AgreementError for servers that have had other
        updates than this table; and the errors of `Updater.update`.
        """
        (word,), facts = _encoded([keyword], _WHERE), self.source.facts
        dim = facts.dim - _tag_words(DTYPES[facts.dtype])
        if not isinstance(row, Tensor) or row.shape != (dim,) or row.dtype != DTYPES[facts.dtype]:
            got = f"{row.dtype} {tuple(row.shape)}" if isinstance(row, Tensor) else type(row).__name__
            raise InputError(f"a row of {got}", where=_WHERE, hint=f"{facts.dtype} ({dim},)")
        number, (places, tag) = self._number.get(word), self._places(word)
        if number is None and len(self) >= self.room:
            hint = f"make another with room={2 * self.room}"
            raise InputError(f"the table has room for {self.room} keywords, which are there", where=_WHERE, hint=hint)
        path = self._path(places) if number is None else [self._place_of(number, places)]
        records = self._values(path[:-1])
        own = _tagged(np.array([tag], np.uint64), row.detach().cpu()[None])
        self._send(path, torch.cat([own, records]), servers)
        number = self._next if number is None else number
        self._next += number == self._next
        self._number[word], self._words[number] = number, word
        self._held[path] = [number, *self._held[path[:-1]]]

    def remove(self, keyword: Keyword, servers: Updater | None = None) -> None:
        """Remove a keyword and its row. servers: as for `put`. Raises InputError for one that is not there."""
        (word,) = _encoded([keyword], _WHERE)
        if word not in self._number:
            raise InputError("this keyword is not in the table", where=_WHERE)
        place = self._place_of(self._number[word], self._places(word)[0])
        self._send([place], torch.zeros_like(self._values([place])), servers)
        del self._words[self._number.pop(word)]
        self._held[place] = -1

    def _places(self, word: bytes) -> tuple[list[int], np.uint64]:
        """Return the numbers of a keyword's three positions, and its tag."""
        segment = self.source.facts.domain
        places, tags = _hashed([word], bytes.fromhex(self.source.facts.keywords), segment)
        return [int(place) + segment * part for part, place in enumerate(places[0])], tags[0]

    def _place_of(self, number: int, places: list[int]) -> int:
        return next(place for place in places if self._held[place] == number)

    def _path(self, places: list[int]) -> list[int]:
        """Find the shortest way to make room at one of some positions: each position's row moves to the next one.

        The last position of the path is free. Raises InputError if there is no such path.
        """
        came: dict[int, int | None] = dict.fromkeys(places)
        queue = deque(places)
        while queue and len(came) < _SEARCH:
            place = queue.popleft()
            if self._held[place] < 0:
                path = [place]
                while (before := came[path[-1]]) is not None:
                    path.append(before)
                return path[::-1]
            for other in self._places(self._words[int(self._held[place])])[0]:
                if other not in came:
                    came[other] = place
                    queue.append(other)
        raise InputError("there is no position for this keyword", where=_WHERE, hint="make another table")

    def _values(self, places: list[int]) -> Tensor:
        """Return records as values of the table's type, (n, dim)."""
        facts = self.source.facts
        octets = torch.from_numpy(self.source.records[places][:, : facts.row_bytes].copy()).flatten()
        return octets.view(DTYPES[facts.dtype]).view(len(places), facts.dim)

    def _send(self, places: list[int], values: Tensor, servers: Updater | None) -> None:
        """Change records at the servers, and then in this table, whose version becomes that of the servers.

        Raises AgreementError unless the servers have this table with the same updates; or with one more, this change,
        which reached them although `Updater.update` failed.
        """
        source, width = self.source, self.source.facts.row_bytes
        octets, indices = values.contiguous().view(torch.uint8).reshape(len(places), width), torch.tensor(places)
        if servers is not None:
            facts, (zero, one) = servers.facts, (description.state for description in servers.describe())
            if (facts.keywords, facts.rows) != (source.facts.keywords, source.facts.rows):
                hint = "KeywordTable.open takes the table that they serve"
                raise AgreementError("the servers have another table", where=_WHERE, hint=hint)
            if zero != one:
                hint = "Updater.bring_up sends each the updates that it lacks"
                raise AgreementError("the two servers' tables differ", where=_WHERE, hint=hint)
            if zero.version == source.version:
                zero = servers.update(indices, values)
            elif zero.version != source.version + 1 or not _was_made(servers, source.version, indices, octets):
                what = f"the servers' table has had {zero.version} updates, this one {source.version}"
                hint = "open the table that was saved after the last of them; its rows would come back otherwise"
                raise AgreementError(what, where=_WHERE, hint=hint)
            self.source = replace(source, version=zero.version)
        source.records[places, :width] = octets.numpy()


def _was_made(servers: Updater, version: int, indices: Tensor, octets: Tensor) -> bool:
    """Return whether the servers' update of a version was this change; False if they keep no journal."""
    try:
        before, records = servers.past(version)
    except InputError:
        return False
    return torch.equal(before, indices) and torch.equal(records, octets)


def _tag_words(dtype: torch.dtype) -> int:
    """Return how many values of a type a tag takes."""
    return TAG_BYTES // dtype.itemsize


def _tagged(tags: np.ndarray, rows: Tensor) -> Tensor:
    """Put tags, uint64 (n,), before rows, (n, dim), as values of the rows' type; their bytes are what counts."""
    own = torch.from_numpy(tags.astype("<u8").view(np.uint8).reshape(-1, TAG_BYTES).copy())
    return torch.cat([own.view(rows.dtype), rows], 1)


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
        words, facts = _encoded(keywords, "pir.KeywordClient"), self.client.facts
        words_of_tag = _tag_words(DTYPES[facts.dtype])
        if not words:
            return torch.empty(0, facts.dim - words_of_tag, dtype=DTYPES[facts.dtype]), torch.empty(0, dtype=torch.bool)
        places, tags = _hashed(words, bytes.fromhex(facts.keywords), facts.domain)
        numbers = places + facts.domain * np.arange(SEGMENTS)
        flat = torch.from_numpy(places).flatten()
        _, records = self.client.read(flat, torch.from_numpy(numbers).view(-1, 1), together=SEGMENTS)
        if self.client.facts != facts:
            what, hint = "the servers have another table since this client began", "make another client"
            raise AgreementError(what, where="pir.KeywordClient", hint=hint)
        read = records[:, :words_of_tag].contiguous().view(torch.uint8).numpy().view("<u8").reshape(-1, SEGMENTS)
        same = torch.from_numpy(read == tags[:, None])
        rows = records[:, words_of_tag:].view(len(words), SEGMENTS, -1)
        found, first = same.any(1), same.to(torch.uint8).argmax(1)
        out = rows[torch.arange(len(words)), first].clone()
        out[~found] = 0
        return out, found

    def close(self) -> None:
        """Disconnect; may be called twice."""
        self.client.close()
