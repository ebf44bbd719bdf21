"""Tables of rows, and the rows that many queries select at once: what a server does with the keys of `dpf`.

For selection bits t[q, i] and rows x[i], as bytes or as little-endian words of `width` bits,

    answer[q] = XOR of x[i] where t[q, i] = 1        answer_sum[q] = sum over i of t[q, i] x[i]  mod 2^width.

Bits are packed least significant first: row i is bit i % 8 of byte i // 8. `reference_select` is the definition. With
the library (csrc/rows.cpp) a table is kept bit-sliced, for every eight rows a byte of each bit column; XOR is then a
product of bit matrices over GF(2), by `gf2p8affineqb` (GFNI) or `pshufb` on x86; sums, and XOR elsewhere, choose among
the 16 sums of every four rows (V. Arlazarov et al., On economical construction of the transitive closure of a directed
graph, 1970). Keys are expanded a few leaves at a time, while bits and rows stay in the cache.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hummingbird.errors import EnvironmentProblem, InputError
from hummingbird.kernels import dpf
from hummingbird.kernels.cpu import library

WIDTHS = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
_HUGE = 4 << 20  # bytes from which on a table asks for large pages
_PIECE = 4096  # rows at a time in the reference: sums of so many bits are exact in float32, 4096 < 2^24


def active() -> str:
    """What an XOR runs on here: "avx512+gfni", "avx2+gfni", "avx2", "portable" (the library), or "torch"."""
    if not library.available():
        return "torch"
    isa, gfni = library.isa(), bool(library.handle().hb_gfni())
    return isa if isa == "portable" else f"{isa}+gfni" if gfni else "avx2"


def set_gfni(on: bool) -> bool:
    """Use GFNI from now on, or not, in the whole process; False, and no change, where the processor lacks it.

    The instruction set besides is `native.set_isa`'s.
    """
    return bool(library.handle().hb_set_gfni(on) == 0)


class Table:
    """Rows in the layout that the kernels read; made of zeros, then filled.

    rows, row_bytes: at least 1; 2^40 rows at most. Takes ceil(row_bytes / 8) * 8 bytes a row, for rows rounded up to
    16. Any instruction set reads the same layout. Threads may ask at the same time, while none writes.
    InputError for wrong shapes, types and ranges in all methods; EnvironmentProblem where the memory is not there.

        table = Table.prepare(torch.arange(8, dtype=torch.uint8).view(4, 2))
        select_xor(torch.tensor([[0b0110]], dtype=torch.uint8), table).tolist() == [[2 ^ 4, 3 ^ 5]]
    """

    def __init__(self, rows: int, row_bytes: int) -> None:
        where = "kernels.rows.Table"
        if not isinstance(rows, int) or not 1 <= rows <= dpf.MOST_ROWS:
            raise InputError(f"expected 1 to 2^40 rows, got {rows}", where=f"{where}(rows)")
        if not isinstance(row_bytes, int) or row_bytes < 1:
            raise InputError(f"expected rows of at least one byte, got {row_bytes}", where=f"{where}(row_bytes)")
        self.rows, self.row_bytes, self._sliced = rows, row_bytes, library.available()
        self._store = self._room()

    @classmethod
    def prepare(cls, data: Tensor) -> Table:
        """A table of these rows, uint8 (rows, row_bytes)."""
        if not isinstance(data, Tensor) or data.dim() != 2:
            raise InputError("expected rows uint8 (rows, row_bytes)", where="kernels.rows.Table.prepare(data)")
        table = cls(*data.shape)
        table.fill(0, data)
        return table

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the table takes."""
        return self._store.numel()

    def fill(self, start: int, data: Tensor) -> None:
        """Write the rows from `start` on: uint8 (n, row_bytes). Pieces that begin at a multiple of 8 go fastest."""
        where = "kernels.rows.Table.fill"
        self._check_rows(data, f"{where}(data)")
        if not isinstance(start, int) or not 0 <= start <= self.rows - len(data):
            message = f"rows {start} to {start + len(data)} of a table of {self.rows}"
            raise InputError(message, where=f"{where}(start)")
        self._write(start, data.contiguous())

    def update(self, index: Tensor, rows: Tensor) -> None:
        """Replace single rows in place: index int64 (n,), rows uint8 (n, row_bytes); of two for one index the last.

        Touches one bit in each of 8 row_bytes bytes for a row.
        """
        where = "kernels.rows.Table.update"
        self._check_rows(rows, f"{where}(rows)")
        if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.shape != (len(rows),) or index.is_cuda:
            raise InputError(f"expected indices int64 ({len(rows)},) on the CPU", where=f"{where}(index)")
        if len(rows) and not 0 <= int(index.min()) <= int(index.max()) < self.rows:
            hint = f"they go from 0 to {self.rows - 1}"
            raise InputError("an index is outside the table", where=f"{where}(index)", hint=hint)
        self._replace(index.contiguous(), rows.contiguous())

    def accept(self, keys: Tensor, width: int) -> None:
        """InputError for checked keys, or sums (width 0: XOR), that `answer` cannot do where this table is."""

    def answer(self, keys: Tensor, first_leaf: int | None = None) -> Tensor:
        """The XOR of the rows that each key selects: keys uint8 (B, key_bytes) of `dpf` -> uint8 (B, row_bytes).

        first_leaf: None for a table that the keys are for as a whole; else the rows from leaf `first_leaf` on, 1024
        rows each, of a larger one. Any batch; the table is read once, on torch.get_num_threads() threads.
        """
        return self._answer(keys, 0, first_leaf, "kernels.rows.Table.answer")

    def answer_sum(self, keys: Tensor, width: int, first_leaf: int | None = None) -> Tensor:
        """As `answer`, the sum of the rows as words of `width` bits, 8, 16, 32 or 64, mod 2^width; as bytes again."""
        self._check_width(width, "kernels.rows.Table.answer_sum(width)")
        return self._answer(keys, width, first_leaf, "kernels.rows.Table.answer_sum")

    def _answer(self, keys: Tensor, width: int, first_leaf: int | None, where: str) -> Tensor:
        leaves = dpf.leaves_of(self.rows)
        total = dpf.check(keys, f"{where}(keys)", self.rows if first_leaf is None else None)
        leaf = first_leaf or 0
        # A part that does not end with the table has whole leaves.
        end = leaf * dpf.LEAF_ROWS + self.rows
        if leaf < 0 or end > total or (end < total and self.rows % dpf.LEAF_ROWS):
            message = f"{self.rows} rows from leaf {leaf} on are no part of a table of {total}, which the keys are for"
            raise InputError(message, where=f"{where}(first_leaf)", hint="a leaf is 1024 rows")
        self.accept(keys, width)
        return self._selected(keys, width, leaf, leaves)

    # What depends on where the rows are; arguments are checked.

    def _room(self) -> Tensor:
        # Sliced: 64 bytes for 8 rows of 8 bytes, groups of rows even in number (struct Shape of csrc/slices.h).
        wide = -(-self.rows // 16) * 16 * -(-self.row_bytes // 8) * 8
        return _zeros(wide if self._sliced else self.rows * self.row_bytes)

    def _write(self, start: int, data: Tensor) -> None:
        if not self._sliced:
            self._store.view(self.rows, self.row_bytes)[start : start + len(data)] = data
            return
        library.handle().hb_rows_write(
            self._store.data_ptr(), self.rows, self.row_bytes, start, len(data), data.data_ptr()
        )

    def _replace(self, index: Tensor, rows: Tensor) -> None:
        if not self._sliced:
            table = self._store.view(self.rows, self.row_bytes)
            for at, row in zip(index.tolist(), rows, strict=True):
                table[at] = row
            return
        library.handle().hb_rows_update(
            self._store.data_ptr(), self.rows, self.row_bytes, index.data_ptr(), len(rows), rows.data_ptr()
        )

    def _selected(self, keys: Tensor, width: int, leaf: int, leaves: int) -> Tensor:
        if not self._sliced:
            return self._select(dpf.expand(keys, leaf, leaves), width, -1)
        return self._select(keys, width, leaf)

    def _select(self, data: Tensor, width: int, leaf: int) -> Tensor:
        """Keys that begin at `leaf`, or, for -1, selection bits."""
        if not self._sliced:
            return reference_select(data, self._store.view(self.rows, self.row_bytes), width)
        return _select_each([self], data[None], width, leaf)[0]

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


def answer_each(tables: Sequence[Table], keys: Tensor, width: int) -> Tensor:
    """What keys of its own select from each of some tables of one shape, on the CPU, in one call for small tables.

    keys: uint8 (T, B, key_bytes), B for each of the T tables; width: of `answer_sum`, 0 for an XOR. Gives uint8
    (T, B, row_bytes). InputError as `answer` and `answer_sum`, and for tables of several shapes.
    """
    where, first = "kernels.rows.answer_each", tables[0]
    if any((table.rows, table.row_bytes) != (first.rows, first.row_bytes) for table in tables):
        raise InputError("tables of several shapes", where=f"{where}(tables)", hint="ask them one by one")
    if not isinstance(keys, Tensor) or keys.dim() != 3 or len(keys) != len(tables):
        got = tuple(keys.shape) if isinstance(keys, Tensor) else type(keys).__name__
        raise InputError(f"expected keys ({len(tables)}, B, key_bytes), got {got}", where=f"{where}(keys)")
    if width:
        first._check_width(width, f"{where}(width)")
    dpf.check(keys.flatten(0, 1), f"{where}(keys)", first.rows)
    if not library.available():
        leaves = dpf.leaves_of(first.rows)
        parts = zip(tables, keys, strict=True)
        return torch.stack([table._selected(part, width, 0, leaves) for table, part in parts])
    return _select_each(tables, keys, width, 0)


def _select_each(tables: Sequence[Table], data: Tensor, width: int, leaf: int) -> Tensor:
    """By the library, from sliced tables of one shape: data (T, B, size) as `Table._select` takes them."""
    first, data = tables[0], data.contiguous()
    out = torch.empty((*data.shape[:2], first.row_bytes), dtype=torch.uint8)
    stores = (ctypes.c_void_p * len(tables))(*(table._store.data_ptr() for table in tables))
    shape = (stores, len(tables), first.rows, first.row_bytes)
    queries = (data.data_ptr(), *data.shape[1:], leaf)
    library.handle().hb_rows_answer(*shape, width, *queries, torch.get_num_threads(), out.data_ptr())
    return out


def table_on(device: str, rows: int, row_bytes: int) -> Table:
    """A table of zeros on "cpu", or on "cuda", for sums by ChaCha12 keys (`gpu_rows`); InputError if there is none."""
    if device == "cpu":
        return Table(rows, row_bytes)
    where, hint = "kernels.rows.table_on(device)", "cpu serves every decoder and PRF"
    if device != "cuda":
        raise InputError(f"no tables on {device!r}", where=where, hint='"cpu" or "cuda"')
    if not torch.cuda.is_available():
        raise InputError("there is no GPU that PyTorch can use", where=where, hint=hint)
    try:
        from hummingbird.kernels.gpu_rows import GpuTable  # elsewhere Triton may be missing
    except ImportError as error:
        raise InputError(f"Triton cannot be imported: {error}", where=where, hint=hint) from None
    return GpuTable(rows, row_bytes, torch.device(device))


def select_xor(bits: Tensor, table: Table) -> Tensor:
    """`Table.answer` for given selection bits: uint8 (B, ceil(rows / 8)), packed; spare bits are ignored."""
    _check_bits(bits, table, "kernels.rows.select_xor(bits)")
    return table._select(bits, 0, -1)


def select_sum(bits: Tensor, table: Table, width: int) -> Tensor:
    """`Table.answer_sum` for given selection bits."""
    _check_bits(bits, table, "kernels.rows.select_sum(bits)")
    table._check_width(width, "kernels.rows.select_sum(width)")
    return table._select(bits, width, -1)


def reference_select(bits: Tensor, data: Tensor, width: int) -> Tensor:
    """The rows of `data`, uint8 (rows, row_bytes), that packed bits, uint8 (B, n >= ceil(rows / 8)), select, in plain
    torch: their XOR for width 0, else the sum of words of `width` bits.
    """
    total = torch.zeros((len(bits), data.shape[1] * 8 // (width or 1)), dtype=torch.int64)
    for start in range(0, len(data), _PIECE):
        part = data[start : start + _PIECE]
        chosen = _unpack(bits[:, start // 8 : (start + len(part) + 7) // 8])[:, : len(part)]
        if width:
            total += chosen.long() @ part.contiguous().view(WIDTHS[width]).long()  # wraps mod 2^64
        else:
            total ^= (chosen.float() @ _unpack(part).float()).long()  # the lowest bit counts
    if width:
        return total.to(WIDTHS[width]).view(torch.uint8)
    return ((total & 1).view(len(bits), -1, 8) << torch.arange(8)).sum(2).to(torch.uint8)


def _unpack(data: Tensor) -> Tensor:
    return ((data[:, :, None] >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(1)


def _check_bits(bits: Tensor, table: Table, where: str) -> None:
    size = (table.rows + 7) // 8
    ok = isinstance(bits, Tensor) and bits.dtype == torch.uint8 and bits.device.type == "cpu"
    if not ok or bits.dim() != 2 or not len(bits) or bits.shape[1] != size:
        got = f"{bits.dtype} {tuple(bits.shape)}" if isinstance(bits, Tensor) else type(bits).__name__
        raise InputError(f"expected selection bits uint8 (B, {size}) on the CPU, got {got}", where=where)


def _zeros(size: int) -> Tensor:
    """Bytes of 0, uint8 (size,), aligned to 64; on large pages where there are such, which halve the misses."""
    try:
        if size < _HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.zeros(size, dtype=torch.uint8)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except (OSError, ValueError, RuntimeError, OverflowError) as error:
        message = f"no memory for a table of {size} bytes: {error}"
        raise EnvironmentProblem(message, where="kernels.rows.Table", hint="share it among more servers") from None
    return torch.from_numpy(np.frombuffer(memory, dtype=np.uint8))
