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
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hummingbird.errors import AgreementError, EnvironmentProblem, InputError, NotFoundError
from hummingbird.kernels import keywords as kernel
from hummingbird.kernels.keywords import SEGMENTS
from hummingbird.pir.client import Client
from hummingbird.pir.integrity import Owner, rows_in_an_update
from hummingbird.pir.prepared import leaf_digests
from hummingbird.pir.table import DTYPES, Facts, Source, State, first_state
from hummingbird.pir.table_server import TableServer
from hummingbird.pir.updating import Updater
from hummingbird.prg import SEED_BYTES, new_seed

LOAD = 0.88  # largest share of positions that hold a row
TAG_BYTES = 8
MOST_BYTES = 1 << 16  # of a keyword
_SEEDS = 20
_SEARCH = 1 << 16  # positions that are looked at to make room for a new keyword
_WHERE = "pir.KeywordTable"

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
    """Return the number of positions in a segment of a table that has room for so many keywords."""
    return math.ceil(room / (SEGMENTS * LOAD))


def placed(digests: Tensor, segment: int) -> tuple[Tensor, int]:
    """Give every keyword a position: the tags of all records, int64 (3 S,), and the result of `place_keywords`.

    Raises EnvironmentProblem if memory is short.
    """
    try:
        tags = torch.zeros(SEGMENTS * segment, dtype=torch.int64)
    except RuntimeError:  # torch's error for memory
        what = f"no memory for a table of {SEGMENTS * segment:,} positions"
        raise EnvironmentProblem(what, where=_WHERE, hint="less room") from None
    return tags, kernel.place_keywords(digests, segment, tags)


def seeds_to_try(seed: bytes | None) -> list[bytes]:
    """Return the seeds with which a table is tried: the one given, or random ones. Raises InputError for a bad one."""
    if seed is not None and (not isinstance(seed, bytes) or len(seed) != SEED_BYTES):
        raise InputError("a seed of another size", where=_WHERE, hint=f"{SEED_BYTES} bytes, or leave it out")
    return [new_seed() for _ in range(_SEEDS)] if seed is None else [seed]


def room_for(count: int, room: int | None) -> int:
    """Return the number of keywords for which a table is made: `room`, or how many there are. Raises InputError."""
    room = max(1, count) if room is None else room
    if type(room) is not int or room < max(1, count):
        what = f"room for {room!r} of {count} keywords"
        raise InputError(what, where=_WHERE, hint="a whole number, at least 1, and as many as there are keywords")
    return room


def tag_words(dtype: torch.dtype) -> int:
    """Return how many values of a type a tag takes."""
    return TAG_BYTES // dtype.itemsize


def no_position() -> InputError:
    """Return the error for a table whose keywords found no positions with any of the seeds."""
    return InputError("some keywords found no position", where=_WHERE, hint="take another seed, or more room")


class KeywordTable:
    """A table by keyword, as its owner has it: makes the `Source` for the servers, and changes it while they serve it.

    keywords: n of them, all different, str or bytes; a str is the same keyword as its bytes in UTF-8. rows: a tensor
    (n, dim) of a type that `Source` takes. room: how many keywords the table can hold at least; default: n. seed: of
    the public hash, 16 bytes; default: a random one. `building.build` makes tables that do not fit into memory.
    Save `source`, and `open` it to go on later: changes since then come back from the servers' journals. Several
    programs of the owner may change the servers' table: whoever comes second is refused, and tries again. An object is
    for one thread at a time.
    Memory: 1.14 times `room` records of the row's bytes and 8 more. Raises InputError for keywords that are equal, too
    long or of another type, and for rows that do not fit them.

    >>> names = pir.KeywordTable(["alice", "bob"], torch.tensor([[1.0, 2.0], [3.0, 4.0]]), room=100)
    >>> client = pir.KeywordClient(pir.local_servers(names.source))
    >>> client["bob"], client["carol"]
    (tensor([3., 4.]), None)
    """

    def __init__(
        self, keywords: Sequence[Keyword], rows: Tensor, *, room: int | None = None, seed: bytes | None = None
    ) -> None:
        words = encoded(keywords, _WHERE)
        if not isinstance(rows, Tensor) or rows.dim() != 2 or len(rows) != len(words):
            got = f"rows {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
            raise InputError(f"{got} for {len(words)} keywords", where=_WHERE, hint="a tensor (keywords, dim)")
        if str(rows.dtype).removeprefix("torch.") not in DTYPES or rows.layout != torch.strided or rows.is_meta:
            what = f"rows of {rows.dtype}, {rows.layout}, on {rows.device}"
            raise InputError(what, where=_WHERE, hint=f"a dense tensor that has data; types: {', '.join(DTYPES)}")
        segment = segment_of(room_for(len(words), room))
        for own in seeds_to_try(seed):
            digests = kernel.hash_keywords(*joined(words), own)
            tags, result = placed(digests, segment)
            if result >= 0:
                first = words.index(words[result])
                what = f"keyword {first} stands again as number {result}"
                raise InputError(what, where=_WHERE, hint="each keyword has one row")
            if result == -1:
                break
        else:
            raise no_position()
        rows = rows.detach().cpu().contiguous()
        records = torch.zeros(len(tags), tag_words(rows.dtype) + rows.shape[1], dtype=rows.dtype)
        records[kernel.find_keywords(digests, segment, tags)] = tagged(digests[:, 1], rows)
        plain = Source.of(records)
        facts = Facts(plain.facts.rows, plain.facts.dim, plain.facts.dtype, keywords=own.hex())
        self.source = Source(facts, 0, plain.records, used=len(words))

    @classmethod
    def open(cls, source: Source) -> KeywordTable:
        """Return the table of a Source that was made by a KeywordTable or by `building.build`, such as one that was
        saved.

        A mapped file of any size is opened at once. Raises InputError for another kind of table.
        """
        if not source.facts.keywords or source.facts.table_id:
            what = "a signed table" if source.facts.table_id else "a table whose rows are looked up by number"
            raise InputError(what, where=_WHERE, hint="the plain table that KeywordTable made and `save` wrote")
        self = cls.__new__(cls)
        self.source = source
        return self

    @property
    def room(self) -> int:
        """How many keywords the table can hold."""
        return int(LOAD * self.source.facts.rows)

    def __len__(self) -> int:
        return self.source.used

    def __contains__(self, keyword: Keyword) -> bool:
        ((first, tag),) = self._digests(encoded([keyword], _WHERE))
        return _Changes(self.source, None).place_of(first, tag)[0] is not None

    def put(self, keywords: Keyword | Sequence[Keyword], rows: Tensor, servers: Updater | None = None) -> None:
        """Insert keywords with their rows, or replace the rows of keywords that are there.

        keywords: one, or n. rows: the row (dim,) of one, or (n, dim). servers: both servers, which get the changes
        first; if that fails, call `Updater.bring_up`, and this again. None: no server has the table yet. To make room,
        rows of other keywords may move to other positions. A keyword's change, with such moves, is in one update; many
        keywords take as few updates as possible.
        Raises InputError, before anything is sent, for rows that do not fit, for more keywords than there is room for,
        or for one that finds no position, as can happen in a small full table; AgreementError for servers that have
        another table, or have had updates that their journal does not keep; and the errors of `Updater.update`.
        """
        words, records = self.checked(keywords, rows)
        state = self.catch_up(servers)
        changes = _Changes(self.source, servers)
        for (first, tag), record in zip(self._digests(words), records, strict=True):
            changes.put(first, tag, record, self.room)
        self._send(changes, servers, state)

    def checked(self, keywords: Keyword | Sequence[Keyword], rows: Tensor) -> tuple[list[bytes], np.ndarray]:
        """Return the arguments of `put` as bytes: n keywords, and their records, uint8 (n, row_bytes).

        Raises InputError for keywords and rows that do not fit the table.
        """
        single = isinstance(keywords, (str, bytes))
        words = encoded([keywords] if single else keywords, _WHERE)  # type: ignore[list-item, arg-type]
        facts = self.source.facts
        dim = facts.dim - tag_words(DTYPES[facts.dtype])
        shape = (dim,) if single else (len(words), dim)
        if not isinstance(rows, Tensor) or rows.shape != shape or rows.dtype != DTYPES[facts.dtype]:
            got = f"{rows.dtype} {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
            what = f"a row of {got}" if single else f"rows of {got} for {len(words)} keywords"
            raise InputError(what, where=_WHERE, hint=f"{facts.dtype} {shape}")
        tags = torch.from_numpy(self._digests(words)[:, 1].view(np.int64))
        records = tagged(tags, rows.detach().cpu().view(len(words), dim)).contiguous().view(torch.uint8)
        return words, records.view(len(words), facts.row_bytes).numpy()

    def remove(self, keywords: Keyword | Sequence[Keyword], servers: Updater | None = None) -> None:
        """Remove keywords and their rows. servers, errors: as for `put`; InputError for a keyword that is not there."""
        single = isinstance(keywords, (str, bytes))
        words = encoded([keywords] if single else keywords, _WHERE)  # type: ignore[list-item, arg-type]
        state = self.catch_up(servers)
        changes = _Changes(self.source, servers)
        for number, (first, tag) in enumerate(self._digests(words)):
            place, _ = changes.place_of(first, tag)
            if place is None:
                which = "this keyword" if single else f"keyword {number}"
                raise InputError(f"{which} is not in the table", where=_WHERE)
            changes.clear(place)
        self._send(changes, servers, state)

    def sign(self, owner: Owner) -> Source:
        """Sign all records, for both servers; return the signed table, in memory. This table notes their first state.

        owner: has the key. Raises the errors of `Owner.sign`.
        """
        signed = owner.sign(self.source)
        digests = [digest for _, rows in signed.parts(0, signed.facts.rows) for digest in leaf_digests(rows)]
        state = first_state(signed.facts, signed.version, digests)
        self.source = replace(self.source, history=state.digest, local=False)
        return signed

    def _digests(self, words: list[bytes]) -> np.ndarray:
        """Hash keywords: uint64 (n, 2)."""
        return kernel.hash_keywords(*joined(words), bytes.fromhex(self.source.facts.keywords)).numpy().view(np.uint64)

    def catch_up(self, servers: Updater | None) -> State | None:
        """Make the changes here that the servers have had since this table was saved; return their state.

        None: no servers. Raises AgreementError unless the servers have this table, with all of its updates, and their
        journals keep the others.
        """
        if servers is None:
            return None
        facts, (zero, one) = servers.facts, (description.state for description in servers.describe())
        if (facts.keywords, facts.rows) != (self.source.facts.keywords, self.source.facts.rows):
            hint = "KeywordTable.open takes the table that they serve"
            raise AgreementError("the servers have another table", where=_WHERE, hint=hint)
        if zero != one:
            hint = "Updater.bring_up sends each the updates that it lacks"
            raise AgreementError("the two servers' tables differ", where=_WHERE, hint=hint)
        version = self.source.version
        what = f"the servers' table has had {zero.version} updates, this one {version}"
        if zero.version < version:
            raise AgreementError(what, where=_WHERE, hint="give them their journals again, or this table")
        if zero.version == version:
            self._check(servers, zero)
        for number in range(version, zero.version):
            try:
                before, after, indices, octets = servers.past(number)
            except NotFoundError as error:
                hint = "open the table that was saved after the last of them"
                raise AgreementError(f"{what}; {error.what}", where=_WHERE, hint=hint) from None
            if number == version:
                self._check(servers, before)
            elif before.digest != self.source.history:
                raise AgreementError(f"{what}, in another order", where=_WHERE, hint="ask again")
            self._make(dict(zip(indices.tolist(), octets.numpy(), strict=True)), after)
        if zero.version > version and self.source.history != zero.digest:
            raise AgreementError(f"{what}, with other contents", where=_WHERE, hint="open the table that they serve")
        self.source = replace(self.source, history=zero.digest, local=False)
        return zero

    def _check(self, servers: Updater, state: State) -> None:
        """Raise AgreementError unless the servers' table was this one when it had this state.

        Its digest is that of the history of this table, or of its records. For signed rows the latter is not known:
        then the records that the last update changed must be the same.
        """
        source = self.source
        if source.history == state.digest:
            return
        what, hint = "the servers' table has other contents than this one", "open the table that they serve"
        if not servers.facts.table_id:
            digests = source.digests
            if digests is None:
                digests = tuple(d for _, rows in source.parts(0, source.facts.rows) for d in leaf_digests(rows))
            if first_state(source.facts, source.version, list(digests)) == state:
                return
        elif not source.history and not source.local:
            if not state.version:
                return
            _, after, indices, octets = servers.past(state.version - 1)
            if after == state and np.array_equal(source.records[indices.numpy()], octets.numpy()):
                return
        if source.local:
            hint = "it was changed without them: serve this table, signed by KeywordTable.sign if its rows are signed"
        raise AgreementError(what, where=_WHERE, hint=hint)

    def _send(self, changes: _Changes, servers: Updater | None, state: State | None) -> None:
        """Make changes at the servers, and here; the changes of one keyword are never in two updates.

        state: of the servers' table, which must not change meanwhile.
        """
        groups = [group for group in changes.groups if group]
        if servers is None:
            for group in groups:
                self._make(group, None)
            return
        facts = self.source.facts
        while groups:
            together = groups.pop(0)
            while groups and len(together | groups[0]) <= changes.most:
                together = together | groups.pop(0)
            octets = torch.from_numpy(np.stack([*together.values()]))
            values = octets.view(DTYPES[facts.dtype]).view(len(together), facts.dim)
            state = servers.update(torch.tensor([*together]), values, state=state)
            self._make(together, state)

    def _make(self, group: dict[int, np.ndarray], state: State | None) -> None:
        """Change records here. group: the new records by their numbers. state: of the servers afterwards, if any."""
        source, places = self.source, [*group]
        octets = np.stack([*group.values()])
        before, after = _tags(source.records[places]), _tags(octets)
        source.records[places] = octets
        used = source.used + int((after != 0).sum()) - int((before != 0).sum())
        new = replace(source, digests=None, used=used)
        if state is None:
            self.source = replace(new, history=b"", local=True)
        else:
            self.source = replace(new, version=state.version, history=state.digest)


class _Changes:
    """Changes of a table that are not made yet. groups: for each keyword, the new records by their numbers.

    servers: for which they are, if any. most: records in one update.
    """

    def __init__(self, source: Source, servers: Updater | None) -> None:
        self._source, self._used = source, source.used
        self.most = _SEARCH if servers is None else rows_in_an_update(servers.facts)
        self._segment = source.facts.domain
        self._new: dict[int, np.ndarray] = {}
        self.groups: list[dict[int, np.ndarray]] = []

    def write(self, group: dict[int, np.ndarray]) -> None:
        """Add one keyword's new records, uint8 (row_bytes,) each, by their numbers."""
        self._new |= group
        self.groups.append(group)

    def place_of(self, first: np.uint64, tag: np.uint64) -> tuple[int | None, np.ndarray]:
        """Return the number of the record that has a keyword, or None; and its three positions, int64 (3,)."""
        places = kernel.positions(np.array([first]), np.array([tag]), self._segment)[0]
        there = _tags(self._records(places)) == tag
        return (int(places[there.argmax()]) if there.any() else None), places

    def clear(self, place: int) -> None:
        """Remove the keyword at a record."""
        self.write({place: np.zeros(self._source.facts.row_bytes, np.uint8)})
        self._used -= 1

    def put(self, first: np.uint64, tag: np.uint64, record: np.ndarray, room: int) -> None:
        """Insert a keyword, or replace its record; nothing if it is there already. Raises the errors of `put`."""
        place, places = self.place_of(first, tag)
        if place is not None:
            same = np.array_equal(self._records(np.array([place]))[0], record)
            self.write({} if same else {place: record.copy()})
            return
        if self._used >= room:
            hint = f"make another with room={2 * room}"
            raise InputError(f"the table has room for {room} keywords, which are there", where=_WHERE, hint=hint)
        path = self._path(places)
        moved = self._records(np.array(path[:-1], np.int64))
        self.write(dict(zip(path, [record.copy(), *moved], strict=True)))
        self._used += 1

    def _records(self, places: np.ndarray) -> np.ndarray:
        """Return records as they will be, uint8 (n, row_bytes)."""
        octets = self._source.records[places]
        for at, place in enumerate(places.tolist()):
            if place in self._new:
                octets[at] = self._new[place]
        return octets

    def _path(self, places: np.ndarray) -> list[int]:
        """Find the shortest way to make room at one of some positions: each position's row moves to the next one.

        The last position of the path is free. Raises InputError if there is no such path that fits into one update.
        """
        came: dict[int, int | None] = dict.fromkeys(places.tolist())
        for _ in range(self.most):
            if not len(places) or len(came) >= _SEARCH:
                break
            tags = _tags(self._records(places))
            if not tags.all():
                path = [int(places[tags.argmin()])]
                while (before := came[path[-1]]) is not None:
                    path.append(before)
                return path[::-1]
            first = kernel.first_position(places, tags, self._segment)
            others = kernel.positions(first, tags, self._segment)
            new = {
                other: place
                for place, row in zip(places.tolist(), others.tolist(), strict=True)
                for other in row
                if other not in came
            }
            came |= new
            places = np.array([*new], np.int64)
        raise InputError("there is no position for this keyword", where=_WHERE, hint="make another table")


def _tags(records: np.ndarray) -> np.ndarray:
    """Return the tags of records, uint64 (n,); 0 where there is no keyword."""
    return np.ascontiguousarray(records[:, :TAG_BYTES]).view("<u8").reshape(-1)


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
