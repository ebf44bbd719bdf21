"""Tables by keyword as their owner has them: made, changed while they are served, and opened again.

A record's tag and position say where else its row may be (kernels/keywords.py), so a table needs no list of its
keywords. Whatever the servers have had since it was saved comes back from their journals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hummingbird.errors import AgreementError, InputError, NotFoundError
from hummingbird.kernels import keywords as kernel
from hummingbird.pir.integrity import Owner, rows_in_an_update
from hummingbird.pir.keywords import (
    LOAD,
    TAG_BYTES,
    WHERE,
    Keyword,
    encoded,
    joined,
    no_position,
    placed,
    room_for,
    seeds_to_try,
    segment_of,
    tag_words,
    tagged,
)
from hummingbird.pir.prepared import leaf_digests
from hummingbird.pir.table import DTYPES, Facts, Source, State, first_state
from hummingbird.pir.updating import Updater

_SEARCH = 1 << 16  # positions that are looked at to make room for a new keyword


def _twice(first: int, second: int) -> InputError:
    return InputError(f"keyword {first} stands again as number {second}", where=WHERE, hint="each keyword has one row")


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
        words = encoded(keywords, WHERE)
        if not isinstance(rows, Tensor) or rows.dim() != 2 or len(rows) != len(words):
            got = f"rows {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
            raise InputError(f"{got} for {len(words)} keywords", where=WHERE, hint="a tensor (keywords, dim)")
        if str(rows.dtype).removeprefix("torch.") not in DTYPES or rows.layout != torch.strided or rows.is_meta:
            what = f"rows of {rows.dtype}, {rows.layout}, on {rows.device}"
            raise InputError(what, where=WHERE, hint=f"a dense tensor that has data; types: {', '.join(DTYPES)}")
        segment = segment_of(room_for(len(words), room))
        for own in seeds_to_try(seed):
            digests = kernel.hash_keywords(*joined(words), own)
            tags, result = placed(digests, segment)
            if result >= 0:
                raise _twice(words.index(words[result]), result)
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
            raise InputError(what, where=WHERE, hint="the plain table that KeywordTable made and `save` wrote")
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
        ((first, tag),) = self._digests(encoded([keyword], WHERE))
        return _Changes(self.source, None).place_of(first, tag)[0] is not None

    def put(self, keywords: Keyword | Sequence[Keyword], rows: Tensor, servers: Updater | None = None) -> None:
        """Insert keywords with their rows, or replace the rows of keywords that are there.

        keywords: one, or n. rows: the row (dim,) of one, or (n, dim). servers: both servers, which get the changes
        first; if that fails, call `Updater.bring_up`, and this again. None: no server has the table yet. To make room,
        rows of other keywords may move to other positions. A keyword's change, with such moves, is in one update; many
        keywords take as few updates as possible.
        Raises InputError, before anything is sent, for rows that do not fit, for equal keywords, for more keywords than
        there is room for, or for one that finds no position, as can happen in a small full table; AgreementError for
        servers that have another table, or have had updates that their journal does not keep; and the errors of
        `Updater.update`.
        """
        words, records = self.checked(keywords, rows)
        state = self.catch_up(servers)
        changes = _Changes(self.source, servers)
        for (first, tag), record in zip(self._digests(words), records, strict=True):
            changes.put(first, tag, record, self.room)
        self._send(changes, servers, state)

    def checked(self, keywords: Keyword | Sequence[Keyword], rows: Tensor) -> tuple[list[bytes], np.ndarray]:
        """Return the arguments of `put` as bytes: n keywords, and their records, uint8 (n, row_bytes).

        Raises InputError for keywords and rows that do not fit the table, and for equal keywords.
        """
        single = isinstance(keywords, (str, bytes))
        words = encoded([keywords] if single else keywords, WHERE)  # type: ignore[list-item, arg-type]
        facts = self.source.facts
        dim = facts.dim - tag_words(DTYPES[facts.dtype])
        shape = (dim,) if single else (len(words), dim)
        if not isinstance(rows, Tensor) or rows.shape != shape or rows.dtype != DTYPES[facts.dtype]:
            got = f"{rows.dtype} {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
            what = f"a row of {got}" if single else f"rows of {got} for {len(words)} keywords"
            raise InputError(what, where=WHERE, hint=f"{facts.dtype} {shape}")
        last = {word: number for number, word in enumerate(words)}
        if len(last) != len(words):
            first = next(number for number, word in enumerate(words) if last[word] != number)
            raise _twice(first, last[words[first]])
        tags = torch.from_numpy(self._digests(words)[:, 1].view(np.int64))
        records = tagged(tags, rows.detach().cpu().view(len(words), dim)).contiguous().view(torch.uint8)
        return words, records.view(len(words), facts.row_bytes).numpy()

    def remove(self, keywords: Keyword | Sequence[Keyword], servers: Updater | None = None) -> None:
        """Remove keywords and their rows. servers, errors: as for `put`; InputError for a keyword that is not there."""
        single = isinstance(keywords, (str, bytes))
        words = encoded([keywords] if single else keywords, WHERE)  # type: ignore[list-item, arg-type]
        state = self.catch_up(servers)
        changes = _Changes(self.source, servers)
        for number, (first, tag) in enumerate(self._digests(words)):
            place, _ = changes.place_of(first, tag)
            if place is None:
                which = "this keyword" if single else f"keyword {number}"
                raise InputError(f"{which} is not in the table", where=WHERE)
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
            raise AgreementError("the servers have another table", where=WHERE, hint=hint)
        if zero != one:
            hint = "Updater.bring_up sends each the updates that it lacks"
            raise AgreementError("the two servers' tables differ", where=WHERE, hint=hint)
        version = self.source.version
        what = f"the servers' table has had {zero.version} updates, this one {version}"
        if zero.version < version:
            raise AgreementError(what, where=WHERE, hint="give them their journals again, or this table")
        if zero.version == version:
            self._check(servers, zero)
        for number in range(version, zero.version):
            try:
                before, after, indices, octets = servers.past(number)
            except NotFoundError as error:
                hint = "open the table that was saved after the last of them"
                raise AgreementError(f"{what}; {error.what}", where=WHERE, hint=hint) from None
            if number == version:
                self._check(servers, before)
            elif before.digest != self.source.history:
                raise AgreementError(f"{what}, in another order", where=WHERE, hint="ask again")
            self._make(dict(zip(indices.tolist(), octets.numpy(), strict=True)), after)
        if zero.version > version and self.source.history != zero.digest:
            raise AgreementError(f"{what}, with other contents", where=WHERE, hint="open the table that they serve")
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
            try:
                _, after, indices, octets = servers.past(state.version - 1)
            except NotFoundError as error:
                what = f"whether the servers' table is this one is not known: {error.what}"
                raise AgreementError(what, where=WHERE, hint="sign the table with KeywordTable.sign") from None
            if after == state and np.array_equal(source.records[indices.numpy()], octets.numpy()):
                return
        if source.local:
            hint = "it was changed without them: serve this table, signed by KeywordTable.sign if its rows are signed"
        raise AgreementError(what, where=WHERE, hint=hint)

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
            raise InputError(f"the table has room for {room} keywords, which are there", where=WHERE, hint=hint)
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
        raise InputError("there is no position for this keyword", where=WHERE, hint="make another table")


def _tags(records: np.ndarray) -> np.ndarray:
    """Return the tags of records, uint64 (n,); 0 where there is no keyword."""
    return np.ascontiguousarray(records[:, :TAG_BYTES]).view("<u8").reshape(-1)
