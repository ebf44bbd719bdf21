"""Prepared files of tables larger than the free memory, made from files that are read a piece at a time.

A table by number is read once. A table by keyword is read in two ways: the keywords once, all of whose hashes are in
memory, 24 bytes for each, beside 9 bytes for each that there is room for; then the rows, once for every part of the
table, which is filled in memory and written. So no part of the file is written twice, and a crash leaves none.
"""

from __future__ import annotations

import codecs
import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hummingbird.errors import InputError, needs
from hummingbird.kernels import keywords as kernel
from hummingbird.kernels.lookups import LEAF_ROWS, Table, sliced_bytes
from hummingbird.pir.keywords import (
    MOST_BYTES,
    joined,
    no_position,
    placed,
    room_for,
    seeds_to_try,
    segment_of,
    tag_words,
    tagged,
)
from hummingbird.pir.table import DTYPES, Facts, Source, save_tables

_PART = 2 << 30  # bytes of a part of the table that is filled in memory
_BATCH, _BATCH_BYTES = 1 << 17, 64 << 20  # rows that are read at a time, and about their bytes at most
_WHERE = "pir.build"
Progress = Callable[[int], object]


class RowSource(Protocol):
    """Interface of the source of a table's rows, and of their keywords if it has any; each can be read repeatedly.

    count: number of rows. dim, dtype: of a row; torch's name, such as "float32".
    """

    count: int
    dim: int
    dtype: str

    def rows(self) -> Iterator[Tensor]:
        """Yield all rows in order, in pieces (n, dim)."""

    def keywords(self) -> Iterator[tuple[Tensor, Tensor]] | None:
        """Yield the keywords in the same order, in pieces as `kernels.keywords.hash_keywords` takes them.

        None: the rows have none, and are looked up by number.
        """


class ParquetRows:
    """The rows in a Parquet file, as pyarrow reads it.

    path: of the file. column: name of the rows' column, whose values are lists of numbers of one length, or bytes of
    one length (uint8). keywords: name of the keywords' column, of strings or bytes; None: there are none. Raises
    InputError for a file that cannot be read, other columns, and null values; EnvironmentProblem without pyarrow.

    >>> import pyarrow, pyarrow.parquet
    >>> pyarrow.parquet.write_table(pyarrow.table({"word": ["red", "green"], "vector": [[1.0], [2.0]]}), "t.parquet")
    >>> rows = pir.ParquetRows("t.parquet", "vector", keywords="word")
    >>> rows.count, rows.dim, rows.dtype
    (2, 1, 'float64')
    """

    def __init__(self, path: str | os.PathLike[str], column: str, keywords: str | None = None) -> None:
        with needs("parquet", "a Parquet file"):
            import pyarrow
            from pyarrow import parquet
        self._arrow, self._path, self._column, self._keywords = pyarrow, Path(path), column, keywords
        with self._reading():
            self._file = parquet.ParquetFile(self._path)
        schema, self.count = self._file.schema_arrow, self._file.metadata.num_rows
        for name in (column, *([] if keywords is None else [keywords])):
            if (times := schema.names.count(name)) != 1:
                hint = f"it has: {', '.join(schema.names)[:300]}"
                raise InputError(f"{times or 'no'} columns {name!r} in the file", where=str(path), hint=hint)
        types = pyarrow.types
        if keywords is not None:
            kind = schema.field(keywords).type
            strings = types.is_string, types.is_large_string, types.is_binary, types.is_large_binary
            if not any(is_kind(kind) for is_kind in strings):
                hint = "strings or bytes: cast other types first"
                raise InputError(f"keywords of type {kind}", where=f"{path}, column {keywords}", hint=hint)
        kind = schema.field(column).type
        names = {"double": "float64", "float": "float32", "halffloat": "float16"}
        if types.is_fixed_size_binary(kind):
            self.dim, self.dtype = kind.byte_width, "uint8"
            return
        lists = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
        self.dtype = names.get(str(kind.value_type), str(kind.value_type)) if lists else ""
        if self.dtype not in DTYPES:
            hint = f"lists of one length, of: {', '.join(DTYPES)}; or bytes of a fixed length"
            raise InputError(f"rows of type {kind}", where=f"{path}, column {column}", hint=hint)
        self.dim = kind.list_size if types.is_fixed_size_list(kind) else 0  # 0: as the first row has
        self.dim = self.dim or next((rows.shape[1] for rows in self.rows()), 1)

    def _reading(self) -> Any:
        return _reading(self._path, self._arrow.ArrowException)

    def _batches(self, column: str) -> Iterator[tuple[int, Any]]:
        """Yield pieces of a column, as pyarrow's arrays, with the number of the first row of each."""
        size = _batch((self.dim or 1024) * 8) if column == self._column else _BATCH
        start = 0
        for batch in self._groups(column, size):
            values = batch.column(0)
            if values.null_count:
                row = start + int(np.argmin(np.asarray(values.is_valid())))
                raise InputError(f"row {row} is null", where=f"{self._path}, column {column}")
            yield start, values
            start += len(values)

    def _groups(self, column: str, size: int) -> Iterator[Any]:
        """Yield pieces of a column; a reader for each row group, as one for all keeps what it has read."""
        for group in range(self._file.metadata.num_row_groups):
            found = self._file.iter_batches(size, row_groups=[group], columns=[column])
            while True:
                with self._reading():
                    batch = next(found, None)
                if batch is None:
                    break
                yield batch

    def rows(self) -> Iterator[Tensor]:
        where, arrow = f"{self._path}, column {self._column}", self._arrow
        dim = self.dim
        for start, values in self._batches(self._column):
            if arrow.types.is_fixed_size_binary(values.type):
                octets = np.frombuffer(values.buffers()[1], np.uint8, len(values) * dim, values.offset * dim)
                yield torch.from_numpy(octets.copy()).view(len(values), dim)
                continue
            flat = values.flatten()
            if flat.null_count:
                raise InputError(f"a number is null in rows {start} to {start + len(values) - 1}", where=where)
            lengths = np.full(len(values), dim)
            if not arrow.types.is_fixed_size_list(values.type):
                lengths = np.diff(np.asarray(values.offsets))
            dim = dim or int(lengths[0])
            if (lengths != dim).any():
                row = int((lengths != dim).argmax())
                raise InputError(f"row {start + row} has {lengths[row]} numbers, others {dim}", where=where)
            yield torch.from_numpy(np.array(flat)).view(len(values), dim)

    def keywords(self) -> Iterator[tuple[Tensor, Tensor]] | None:
        return None if self._keywords is None else self._words(self._keywords)

    def _words(self, column: str) -> Iterator[tuple[Tensor, Tensor]]:
        for start, values in self._batches(column):
            large = self._arrow.types.is_large_string(values.type) or self._arrow.types.is_large_binary(values.type)
            _, ends, data = values.buffers()
            dtype = np.int64 if large else np.int32
            offsets = np.frombuffer(ends, dtype, len(values) + 1, values.offset * dtype().itemsize).astype(np.int64)
            octets = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
            _check_lengths(offsets, start, f"{self._path}, column {column}")
            first = int(offsets[0])
            yield (
                torch.from_numpy(octets[first : max(first + 1, int(offsets[-1]))].copy()),
                torch.from_numpy(offsets - first),
            )


class FileRows:
    """The rows of a .npy or .safetensors file, and their keywords, which are the lines of a text file in UTF-8.

    path, tensor: as for `Source.open`. keywords: the text file; None: there are none. Raises InputError for a file that
    cannot be read, for a signed table, and for another number of lines than rows.

    >>> import numpy as np
    >>> np.save("vectors.npy", np.eye(3, dtype=np.float32))
    >>> rows = pir.FileRows("vectors.npy")
    >>> rows.count, rows.keywords()
    (3, None)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        tensor: str | None = None,
        keywords: str | os.PathLike[str] | None = None,
    ) -> None:
        self._source, self._lines = Source.open(path, tensor), None if keywords is None else Path(keywords)
        facts = self._source.facts
        if facts.table_id or facts.keywords:
            raise InputError(f"{facts.text()}", where=str(path), hint="plain rows, without signatures and keywords")
        self.count, self.dim, self.dtype = facts.rows, facts.dim, facts.dtype
        lines = self.count if self._lines is None else sum(len(ends) - 1 for _, ends in self._words(self._lines))
        if lines != self.count:
            raise InputError(f"{lines} keywords for {self.count} rows", where=str(keywords), hint="one on each line")

    def rows(self) -> Iterator[Tensor]:
        for _, records in self._source.parts(0, self.count, _BATCH_BYTES):
            octets = torch.from_numpy(np.ascontiguousarray(records))
            yield octets.view(DTYPES[self.dtype]).view(len(records), self.dim)

    def keywords(self) -> Iterator[tuple[Tensor, Tensor]] | None:
        return None if self._lines is None else self._words(self._lines)

    def _words(self, path: Path) -> Iterator[tuple[Tensor, Tensor]]:
        start, found = 0, keyword_lines(path)
        while words := list(itertools.islice(found, _BATCH)):
            data, ends = joined(words)
            _check_lengths(ends.numpy(), start, str(path))
            yield data, ends
            start += len(words)


def keyword_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a text file, each a keyword in UTF-8; a mark of the byte order at its start is left out.

    Raises InputError for a file that cannot be read, and for an empty line.
    """
    with _reading(path), open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            word = line.rstrip(b"\r\n")
            word = word.removeprefix(codecs.BOM_UTF8) if number == 1 else word
            try:
                word.decode()
            except UnicodeDecodeError:
                raise InputError(f"line {number} is no UTF-8", where=str(path)) from None
            if not word:
                raise InputError(f"line {number} is empty", where=str(path), hint="one keyword on each line")
            yield word


@contextlib.contextmanager
def _reading(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Return a context in which a file is read; the errors of the system, and `others`, become InputError."""
    errors: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except errors as error:
        text = getattr(error, "strerror", None) or str(error).split("\n")[0]
        raise InputError(f"cannot read the file: {text}", where=str(path)) from None


def _check_lengths(offsets: np.ndarray, start: int, where: str) -> None:
    lengths = np.diff(offsets)
    if len(lengths) and lengths.max() > MOST_BYTES:
        what = f"the keyword of row {start + int(lengths.argmax())} has {lengths.max()} bytes"
        raise InputError(what, where=where, hint=f"{MOST_BYTES} at most: take a hash of it")


def build(
    path: str | os.PathLike[str],
    rows: RowSource,
    *,
    room: int | None = None,
    seed: bytes | None = None,
    progress: Progress = lambda rows: None,
) -> Facts:
    """Write the prepared file of a table, .safetensors, which `Source.open` maps at once; return the table's facts.

    rows: the rows, and their keywords, if there are any. room, seed: of a table by keyword, as for
    `KeywordTable`. progress: called with numbers of rows that were read; `reads` says how many there will be.
    Memory: some 2 GiB, and for a table by keyword 33 bytes a row in addition, more with room for more. Raises
    InputError for equal keywords, naming the rows, for a disk without room, and the errors of `rows`.

    >>> import numpy as np
    >>> np.save("vectors.npy", np.eye(3, dtype=np.float32))
    >>> _ = open("words.txt", "w").write("red\\ngreen\\nblue")
    >>> facts = pir.build("colours.safetensors", pir.FileRows("vectors.npy", keywords="words.txt"), room=100)
    >>> facts.text()
    '114 rows of 5 float32 by keyword'
    >>> "green" in pir.KeywordTable.open(pir.Source.open("colours.safetensors"))
    True
    """
    target = Path(path)
    if rows.count < 1:
        raise InputError("a table without rows", where=_WHERE)
    words = rows.keywords()
    if words is None:
        facts = Facts(rows.count, rows.dim, rows.dtype)
        save_tables(target, facts, _by_number(facts, rows, progress), _own(0))
        return facts
    segment = segment_of(room_for(rows.count, room))
    for own in seeds_to_try(seed):
        digests = _hashed(rows, own, progress)
        tags, result = placed(digests, segment)
        if result >= 0:
            same = int((digests == digests[result]).all(1).nonzero()[0])
            what = f"the keyword of row {same} stands again in row {result}"
            raise InputError(what, where=_WHERE, hint="each keyword has one row; rows are counted from 0")
        if result == -1:
            break
    else:
        raise no_position()
    places = kernel.find_keywords(digests, segment, tags)
    del digests
    dim = tag_words(DTYPES[rows.dtype]) + rows.dim
    facts = Facts(len(tags), dim, rows.dtype, keywords=own.hex())
    save_tables(target, facts, _by_keyword(facts, rows, places, tags, progress), _own(rows.count))
    return facts


def _own(used: int) -> dict[str, Any]:
    """Return the fields of a new table's file. used: number of its keywords."""
    return {"version": 0, "used": used, "history": "", "local": False}


def reads(rows: RowSource, room: int | None = None) -> int:
    """Return how many rows `build` reads in all, each time that it reads one, if the first seed is a good one."""
    if rows.keywords() is None:
        return rows.count
    segment = segment_of(room_for(rows.count, room))
    facts = Facts(kernel.SEGMENTS * segment, tag_words(DTYPES[rows.dtype]) + rows.dim, rows.dtype, keywords="0" * 32)
    return rows.count * (1 + len(_parts(facts)))


def _hashed(rows: RowSource, seed: bytes, progress: Progress) -> Tensor:
    digests, at = torch.empty((rows.count, 2), dtype=torch.int64), 0
    for data, offsets in rows.keywords() or ():
        some = kernel.hash_keywords(data, offsets, seed)
        _check_count(at + len(some), rows, more=True)
        digests[at : at + len(some)] = some
        at += len(some)
        progress(len(some))
    _check_count(at, rows)
    return digests


def _check_count(read: int, rows: RowSource, more: bool = False) -> None:
    """Raise InputError if the number of rows that were read is not that of the source.

    more: rows may follow; then only a larger number is an error.
    """
    if read > rows.count or (read < rows.count and not more):
        what = f"{read} rows or keywords were read, {rows.count} were announced"
        raise InputError(what, where=_WHERE, hint="does the source change?")


def _batch(row_bytes: int) -> int:
    """Return how many rows are read at a time."""
    return max(1, min(_BATCH, _BATCH_BYTES // max(1, row_bytes)))


def _parts(facts: Facts) -> list[tuple[int, int]]:
    """Divide a table's records into parts that are filled in memory, each in one segment: first and last + 1."""
    step = max(1, _PART // sliced_bytes(LEAF_ROWS, facts.record_bytes)) * LEAF_ROWS
    return [
        (first, min(first + step, start + facts.domain))
        for start in range(0, facts.rows, facts.domain)
        for first in range(start, start + facts.domain, step)
    ]


def _by_number(facts: Facts, rows: RowSource, progress: Progress) -> Iterator[Table]:
    found, rest = rows.rows(), torch.empty((0, facts.record_bytes), dtype=torch.uint8)
    for first, last in _parts(facts):
        table, at = Table(last - first, facts.record_bytes), 0
        while at < last - first:
            if not len(rest):
                some = next(found, torch.empty(0, rows.dim, dtype=DTYPES[rows.dtype])).contiguous()
                _check_count(first + at + len(some), rows, more=len(some) > 0)
                progress(len(some))
                rest = some.view(torch.uint8).view(len(some), facts.record_bytes)
            new, rest = rest[: last - first - at], rest[last - first - at :]
            table.fill(at, new)
            at += len(new)
        if last == facts.rows:
            _check_count(last + len(rest) + sum(len(some) for some in found), rows)
        yield table
        del table  # before the next one is made


def _by_keyword(facts: Facts, rows: RowSource, places: Tensor, tags: Tensor, progress: Progress) -> Iterator[Table]:
    """Yield the parts of a table, filled. places: the number of each row's record. tags: of all records."""
    for first, last in _parts(facts):
        table, at = Table(last - first, facts.record_bytes), 0
        for some in rows.rows():
            _check_count(at + len(some), rows, more=True)
            own = places[at : at + len(some)]
            chosen = ((own >= first) & (own < last)).nonzero().flatten()
            own = own[chosen]
            records = tagged(tags[own], some[chosen]).contiguous().view(torch.uint8)
            table.update(own - first, records.view(len(own), facts.record_bytes))
            at += len(some)
            progress(len(some))
        _check_count(at, rows)
        yield table
        del table
