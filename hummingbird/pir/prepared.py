"""Prepared files of tables: their records in the layout that the kernels read, written once and mapped.

A prepared file is a .safetensors file with two tensors: `sliced`, the records in the bit-sliced layout
(kernels/lookups.py), segment after segment of a table by keyword; and `digests`, of every leaf, which is 1024 records.
The table's facts are in the metadata, as JSON.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hummingbird import disk
from hummingbird.errors import InputError
from hummingbird.kernels import lookups as kernel
from hummingbird.kernels.lookups import LEAF_ROWS, leaves_of, sliced_bytes

OWN = "hummingbird.pir"  # in the file's metadata: facts, version and keywords of the table
DIGEST = 16
PIECE = 64 << 20  # bytes of rows at a time, about
ALIGNED = 64  # bytes, of the records in the file: a line of a processor's cache


def digest_of(*parts: bytes) -> bytes:
    """Compute the digest of pieces of bytes, 16 bytes."""
    state = hashlib.blake2b(digest_size=DIGEST, person=b"hummingbird.pir")
    for part in parts:
        state.update(len(part).to_bytes(8, "little") + part)
    return state.digest()


def leaf_digests(records: np.ndarray) -> list[bytes]:
    """Compute a digest of each leaf of a table; a leaf is the records of a block of 1024 rows.

    records: uint8 (n, record_bytes), from the beginning of a leaf on.
    """
    return [digest_of(records[at : at + LEAF_ROWS].tobytes()) for at in range(0, len(records), LEAF_ROWS)]


class SlicedRecords:
    """The records of a prepared file, in the bit-sliced layout: rows are read and written like those of an array.

    path, offset: the file, and where the records begin in it. shape: number of records, and bytes of each. domain:
    records of a segment of a table by keyword; of another table, all. digests: of its leaves. A leaf is compared with
    its digest when it is first read or written, which raises InputError if the file is damaged.
    The file is mapped into memory, and never changed: changed pages are copied. Another program must not write to it
    meanwhile; if it cuts the file off, the system ends this process.
    """

    def __init__(
        self, path: Path, offset: int, shape: tuple[int, int], domain: int, digests: tuple[bytes, ...]
    ) -> None:
        self.path, self.shape, self.size = path, shape, shape[0] * shape[1]
        self._offset, self._domain, self._digests = offset, domain, digests
        self._file = open(path, "rb")  # noqa: SIM115 - another file may take its name while this one is in use
        self._seen = self._stamp()
        self._right: set[int] = set()  # leaves that have been compared
        self._pieces = [self.table(first, first + domain) for first in self._starts()]

    def again(self) -> SlicedRecords:
        """Return the records as they are in the file, without changes, and not compared yet."""
        other = copy.copy(self)
        other._right, other._pieces = set(), [self.table(first, first + self._domain) for first in self._starts()]
        return other

    def unchanged(self) -> bool:
        """Return whether nobody has written to the file since it was opened, which would change mapped records."""
        return self._stamp() == self._seen

    def _stamp(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns

    def _starts(self) -> range:
        return range(0, self.shape[0], self._domain)

    def table(self, first: int, last: int) -> kernel.Table:
        """Map records `first` to `last` - 1 anew, as they are in the file; return them as the kernels use them.

        They lie in one segment of a table by keyword; `first` is a multiple of 1024 from the segment's start on. They
        are not compared with the digests.
        """
        size, width, domain = last - first, self.shape[1], self._domain
        at = first // domain * sliced_bytes(domain, width) + sliced_bytes(first % domain, width)
        shape = (sliced_bytes(size, width),)
        mapped = np.memmap(self._file, np.uint8, "c", offset=self._offset + at, shape=shape)
        return kernel.Table(size, width, sliced=torch.from_numpy(mapped))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray | list[int]) -> np.ndarray:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(self.shape[0])
            if step == 1:
                first = start // LEAF_ROWS * LEAF_ROWS
                whole = self._range(first, min(self.shape[0], -(-max(stop, start) // LEAF_ROWS) * LEAF_ROWS))
                self._compare(first // LEAF_ROWS, whole)
                return whole[start - first : max(stop, start) - first]
            rows = np.arange(start, stop, step)
        index = self._index(rows)
        out = np.empty((len(index), self.shape[1]), np.uint8)
        for own, piece, within in self._each(index):
            out[own] = piece.read(within).numpy()
        return out

    def __setitem__(self, rows: np.ndarray | list[int], records: np.ndarray) -> None:
        for own, piece, within in self._each(self._index(rows)):
            piece.update(within, torch.from_numpy(np.ascontiguousarray(records[own])))

    def _index(self, rows: np.ndarray | list[int]) -> np.ndarray:
        """Check numbers of rows, and compare their leaves; return them as int64 (n,)."""
        index = np.asarray(rows)
        whole = index.ndim == 1 and (not len(index) or index.dtype.kind in "iu")
        if not whole or (len(index) and not 0 <= index.min() <= index.max() < self.shape[0]):
            raise IndexError(f"expected numbers of rows from 0 to {self.shape[0] - 1}, (n,)")
        for leaf in np.unique(index // LEAF_ROWS).tolist():
            if leaf not in self._right:
                first = int(leaf) * LEAF_ROWS
                self._compare(int(leaf), self._range(first, min(self.shape[0], first + LEAF_ROWS)))
        return index.astype(np.int64)

    def _compare(self, first: int, rows: np.ndarray) -> None:
        """Compare leaves with their digests, unless that was done. first: the first leaf's number. rows: of all."""
        for leaf in range(first, first + leaves_of(len(rows))):
            if leaf in self._right:
                continue
            at = (leaf - first) * LEAF_ROWS
            if leaf_digests(rows[at : at + LEAF_ROWS]) != [self._digests[leaf]]:
                what = f"rows {leaf * LEAF_ROWS} to {(leaf + 1) * LEAF_ROWS - 1} differ from their digest"
                raise InputError(what, where=str(self.path), hint="the file is damaged: copy it again")
            self._right.add(leaf)

    def _range(self, start: int, stop: int) -> np.ndarray:
        """Read consecutive rows of one segment or of several, uint8 (stop - start, record_bytes)."""
        domain = self._domain
        parts = [
            piece.read_range(low - number * domain, min(stop, (number + 1) * domain) - low).numpy()
            for number, piece in enumerate(self._pieces)
            if (low := max(start, number * domain)) < min(stop, (number + 1) * domain)
        ]
        none = np.empty((0, self.shape[1]), np.uint8)
        return np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else none

    def _each(self, index: np.ndarray) -> Iterator[tuple[np.ndarray, kernel.Table, Tensor]]:
        for number, piece in enumerate(self._pieces):
            own = index // self._domain == number
            if own.any():
                yield own, piece, torch.from_numpy(index[own] - number * self._domain)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or np.uint8, copy=False)


def save_prepared(path: Path, shape: tuple[int, int], domain: int, own: str, tables: Iterable[kernel.Table]) -> None:
    """Write a prepared file, completely or not at all, in the order of `tables`; an existing file is replaced.

    shape, domain: as in `SlicedRecords`. own: the metadata. tables: the records, segment after segment, each a part
    that begins at a multiple of 1024 records of its segment. Raises InputError if the file cannot be written, or the
    disk has too little room, before it begins.
    """
    (rows, width), leaves = shape, leaves_of(shape[0])
    size = rows // domain * sliced_bytes(domain, width)
    entries = {"sliced": (0, size, [size]), "digests": (size, size + DIGEST * leaves, [leaves, DIGEST])}
    header = json.dumps(
        {
            "__metadata__": {OWN: own},
            **{
                name: {"dtype": "U8", "shape": shape, "data_offsets": [begin, end]}
                for name, (begin, end, shape) in entries.items()
            },
        }
    ).encode()
    header += b" " * (-(8 + len(header)) % ALIGNED)
    try:
        free = shutil.disk_usage(path.parent).free
        if size + DIGEST * leaves > free:
            what = f"{(size + DIGEST * leaves) / 1e6:,.0f} MB for the table, {free / 1e6:,.0f} MB are free"
            raise InputError(what, where=str(path), hint="another disk, or fewer rows")
        disk.save(path, _pieces(header, tables))
    except OSError as error:
        raise InputError(f"cannot write the table: {error.strerror or error}", where=str(path)) from None


def _pieces(header: bytes, tables: Iterable[kernel.Table]) -> Iterator[bytes]:
    """Yield the bytes of a prepared file. header: JSON."""
    yield struct.pack("<Q", len(header)) + header
    digests, rest = list[bytes](), np.empty((0, 0), np.uint8)
    parts = iter(tables)
    while (table := next(parts, None)) is not None:
        sliced = table.sliced().numpy()
        for at in range(0, len(sliced), PIECE):
            yield sliced[at : at + PIECE].tobytes()  # a copy, as the reader may keep it while the next part is made
        step = max(1, PIECE // table.row_bytes // LEAF_ROWS) * LEAF_ROWS
        for start in range(0, table.rows, step):
            rows = table.read_range(start, min(step, table.rows - start)).numpy()
            rows = np.concatenate([rest, rows]) if len(rest) else rows
            whole = len(rows) // LEAF_ROWS * LEAF_ROWS
            digests += leaf_digests(rows[:whole])
            rest = rows[whole:].copy()
        del table, sliced  # before the next one is made
    yield b"".join(digests + leaf_digests(rest))
