"""Tables of rows, and selection of rows by many queries at once: a server's work with the keys of `dpf`.

For selection bits t[q, i] and rows x[i], as bytes or as little-endian words of `width` bits,

    answer[q] = XOR of x[i] where t[q, i] = 1        answer_sum[q] = sum over i of t[q, i] x[i]  mod 2^width.

Bits are packed least significant first: row i is bit i % 8 of byte i // 8. In C++ (csrc/rows.cpp) a table is stored
bit-sliced: for every eight rows, one byte of each bit column. XOR is then a product of bit matrices over GF(2), by
`gf2p8affineqb` (GFNI) or `pshufb` on x86; sums, and XOR on other processors, select among the 16 sums of every four
rows (V. Arlazarov et al., On economical construction of the transitive closure of a directed graph, 1970). Keys are
expanded a few leaves at a time, so that bits and rows stay in the cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.devices import find_device
from hummingbird.kernels.lookups import dpf
from hummingbird.kernels.registry import best_on

WIDTHS = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


class RowStore(ABC):
    """The rows of a lookup table in the layout of one backend's kernels; all rows are zeros at first.

    Only `Table` uses a store: the arguments of all methods here are already checked and contiguous.
    """

    nbytes: int

    @abstractmethod
    def __init__(self, rows: int, row_bytes: int, device: torch.device) -> None: ...

    @abstractmethod
    def write(self, start: int, data: Tensor) -> None:
        """Write n rows, uint8 (n, row_bytes), from row `start` on."""

    @abstractmethod
    def replace(self, index: Tensor, rows: Tensor) -> None:
        """Replace single rows: index int64 (n,), rows uint8 (n, row_bytes).

        If an index occurs several times, the last of its rows stays.
        """

    @abstractmethod
    def answer(self, keys: Tensor, width: int, leaf: int) -> Tensor:
        """Combine the rows that each key selects: keys uint8 (B, key_bytes) to answers uint8 (B, row_bytes).

        width: bits of the words that are summed; 0: XOR. leaf: the leaf of the keys' tree at which row 0 is.
        """

    @abstractmethod
    def select(self, bits: Tensor, width: int) -> Tensor:
        """Combine the rows that bits select: uint8 (B, ceil(rows / 8)) to answers uint8 (B, row_bytes).

        width: bits of the words that are summed; 0: XOR.
        """

    def accept(self, keys: Tensor, width: int) -> None:  # noqa: B027 - most take all
        """Raise InputError for keys, or a width, that this backend cannot answer.

        width: bits of the words that are summed; 0: XOR.
        """

    @classmethod
    def answer_each(cls, stores: Sequence[RowStore], keys: Tensor, width: int) -> Tensor:
        """Answer keys from several stores, B for each: uint8 (T, B, key_bytes) to (T, B, row_bytes).

        width: bits of the words that are summed; 0: XOR.
        """
        return torch.stack([store.answer(own, width, 0) for store, own in zip(stores, keys, strict=True)])


class Table:
    """A table of rows, from which queries are answered (module head); all rows are zeros at first.

    rows, row_bytes: at least 1; 2^40 rows at most. device: "cpu", where a row takes ceil(row_bytes / 8) * 8 bytes, and
    the memory is for a multiple of 16 rows; or "cuda", "cuda:1", where a row takes row_bytes bytes, for sums by
    ChaCha12 keys only. Keys, rows and answers are on the CPU. All instruction sets use the same layout. Several threads
    may read at the same time while none writes. All methods raise InputError for wrong shapes, types and ranges; the
    constructor also for a device that is not there, and EnvironmentProblem if memory is short.

        table = Table.prepare(torch.arange(8, dtype=torch.uint8).view(4, 2))
        select_xor(torch.tensor([[0b0110]], dtype=torch.uint8), table).tolist() == [[2 ^ 4, 3 ^ 5]]
    """

    def __init__(self, rows: int, row_bytes: int, device: str = "cpu") -> None:
        where = "kernels.rows.Table"
        if not isinstance(rows, int) or not 1 <= rows <= dpf.MOST_ROWS:
            raise InputError(f"expected 1 to 2^40 rows, got {rows}", where=f"{where}(rows)")
        if not isinstance(row_bytes, int) or row_bytes < 1:
            raise InputError(f"expected rows of at least one byte, got {row_bytes}", where=f"{where}(row_bytes)")
        self.rows, self.row_bytes = rows, row_bytes
        self._store = _store_on(device, rows, row_bytes)

    @classmethod
    def prepare(cls, data: Tensor) -> Table:
        """Make a table with these rows, uint8 (rows, row_bytes), on the CPU."""
        if not isinstance(data, Tensor) or data.dim() != 2:
            raise InputError("expected rows uint8 (rows, row_bytes)", where="kernels.rows.Table.prepare(data)")
        table = cls(*data.shape)
        table.fill(0, data)
        return table

    @property
    def nbytes(self) -> int:
        """Return the memory of the table in bytes."""
        return self._store.nbytes

    def fill(self, start: int, data: Tensor) -> None:
        """Write n rows, uint8 (n, row_bytes), from row `start` on; fastest if `start` is a multiple of 8."""
        where = "kernels.rows.Table.fill"
        self._check_rows(data, f"{where}(data)")
        if not isinstance(start, int) or not 0 <= start <= self.rows - len(data):
            message = f"rows {start} to {start + len(data)} of a table of {self.rows}"
            raise InputError(message, where=f"{where}(start)")
        self._store.write(start, data.contiguous())

    def update(self, index: Tensor, rows: Tensor) -> None:
        """Replace single rows: index int64 (n,), rows uint8 (n, row_bytes); InputError for anything else.

        If an index occurs several times, the last of its rows stays. On a CPU each row costs 8 row_bytes writes of one
        bit.
        """
        where = "kernels.rows.Table.update"
        self._check_rows(rows, f"{where}(rows)")
        if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.shape != (len(rows),) or index.is_cuda:
            raise InputError(f"expected indices int64 ({len(rows)},) on the CPU", where=f"{where}(index)")
        if len(rows) and not 0 <= int(index.min()) <= int(index.max()) < self.rows:
            hint = f"they go from 0 to {self.rows - 1}"
            raise InputError("an index is outside the table", where=f"{where}(index)", hint=hint)
        self._store.replace(index.contiguous(), rows.contiguous())

    def accept(self, keys: Tensor, width: int) -> None:
        """Raise InputError for checked keys, or a width, that this table's device cannot answer.

        width: bits of the words that are summed; 0: XOR.
        """
        self._store.accept(keys, width)

    def answer(self, keys: Tensor, first_leaf: int | None = None) -> Tensor:
        """XOR, for each key, the rows that it selects: uint8 (B, row_bytes).

        keys: uint8 (B, key_bytes), from `dpf.generate`. first_leaf: None if the keys are for this table; else this
        table is a part of the keys' table, from leaf `first_leaf` on, 1024 rows each. The table is read once for the
        batch, on torch.get_num_threads() threads.
        """
        return self._answer(keys, 0, first_leaf, "kernels.rows.Table.answer")

    def answer_sum(self, keys: Tensor, width: int, first_leaf: int | None = None) -> Tensor:
        """Sum the rows that each key selects, as words of `width` bits, mod 2^width; the rest as in `answer`.

        width: 8, 16, 32 or 64.
        """
        self._check_width(width, "kernels.rows.Table.answer_sum(width)")
        return self._answer(keys, width, first_leaf, "kernels.rows.Table.answer_sum")

    def _answer(self, keys: Tensor, width: int, first_leaf: int | None, where: str) -> Tensor:
        total = dpf.check(keys, f"{where}(keys)", self.rows if first_leaf is None else None)
        leaf = first_leaf or 0
        # A part that does not end with the table has whole leaves.
        end = leaf * dpf.LEAF_ROWS + self.rows
        if leaf < 0 or end > total or (end < total and self.rows % dpf.LEAF_ROWS):
            message = f"{self.rows} rows from leaf {leaf} on are no part of a table of {total}, which the keys are for"
            raise InputError(message, where=f"{where}(first_leaf)", hint="a leaf is 1024 rows")
        self.accept(keys, width)
        return self._store.answer(keys, width, leaf)

    def _check_rows(self, data: Tensor, where: str) -> None:
        ok = isinstance(data, Tensor) and data.dtype == torch.uint8 and data.device.type == "cpu"
        if not ok or data.dim() != 2 or data.shape[1] != self.row_bytes:
            got = f"{data.dtype} {tuple(data.shape)}" if isinstance(data, Tensor) else type(data).__name__
            hint = "rows of other types: x.view(torch.uint8)"
            raise InputError(f"expected uint8 (n, {self.row_bytes}) on the CPU, got {got}", where=where, hint=hint)

    def _check_width(self, width: int, where: str) -> None:
        if width not in WIDTHS or 8 * self.row_bytes % width:
            hint = "8, 16, 32 or 64, and rows of whole words"
            raise InputError(f"no words of {width} bits in rows of {self.row_bytes} bytes", where=where, hint=hint)


def _store_on(device: str, rows: int, row_bytes: int) -> RowStore:
    """Make the empty rows of a table on a device; InputError if the device is not there."""
    where = "kernels.rows.Table(device)"
    there = find_device(device, where)
    try:
        store = best_on(RowStore, there)
    except ImportError as error:
        what = f"Triton cannot be imported: {error}"
        raise InputError(what, where=where, hint="cpu serves every decoder and PRF") from None
    return store(rows, row_bytes, there)


def answer_each(tables: Sequence[Table], keys: Tensor, width: int) -> Tensor:
    """Answer keys from several small tables of one shape, in one call.

    keys: uint8 (T, B, key_bytes), B for each of the T tables. width: as for `answer_sum`; 0: XOR. Returns uint8
    (T, B, row_bytes). InputError as `answer` and `answer_sum`, and for tables of several shapes or devices.
    """
    where, first = "kernels.rows.answer_each", tables[0]
    kind = (first.rows, first.row_bytes, type(first._store))
    if any((table.rows, table.row_bytes, type(table._store)) != kind for table in tables):
        raise InputError("tables of several shapes or devices", where=f"{where}(tables)", hint="ask them one by one")
    if not isinstance(keys, Tensor) or keys.dim() != 3 or len(keys) != len(tables):
        got = tuple(keys.shape) if isinstance(keys, Tensor) else type(keys).__name__
        raise InputError(f"expected keys ({len(tables)}, B, key_bytes), got {got}", where=f"{where}(keys)")
    if width:
        first._check_width(width, f"{where}(width)")
    dpf.check(keys.flatten(0, 1), f"{where}(keys)", first.rows)
    first.accept(keys.flatten(0, 1), width)
    return first._store.answer_each([table._store for table in tables], keys, width)


def select_xor(bits: Tensor, table: Table) -> Tensor:
    """XOR, for each query, the rows that its bits select: uint8 (B, row_bytes).

    bits: uint8 (B, ceil(rows / 8)), packed; spare bits are ignored.
    """
    _check_bits(bits, table, "kernels.rows.select_xor(bits)")
    return table._store.select(bits, 0)


def select_sum(bits: Tensor, table: Table, width: int) -> Tensor:
    """Sum, for each query, the rows that its bits select, as words of `width` bits, mod 2^width: uint8 (B, row_bytes).

    bits: as for `select_xor`. width: as for `Table.answer_sum`.
    """
    _check_bits(bits, table, "kernels.rows.select_sum(bits)")
    table._check_width(width, "kernels.rows.select_sum(width)")
    return table._store.select(bits, width)


def _check_bits(bits: Tensor, table: Table, where: str) -> None:
    size = (table.rows + 7) // 8
    ok = isinstance(bits, Tensor) and bits.dtype == torch.uint8 and bits.device.type == "cpu"
    if not ok or bits.dim() != 2 or not len(bits) or bits.shape[1] != size:
        got = f"{bits.dtype} {tuple(bits.shape)}" if isinstance(bits, Tensor) else type(bits).__name__
        raise InputError(f"expected selection bits uint8 (B, {size}) on the CPU, got {got}", where=where)
