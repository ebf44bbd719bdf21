"""Private lookups: distributed point functions, and the rows of a table that their bits select.

A client makes a pair of keys for an index. Each of two servers computes selection bits from its key, and combines the
rows that they select; together the two answers give the row at the index.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.devices import find_device
from hummingbird.kernels.registry import best, best_on

# Distributed point functions: keys for two servers, and the selection bits that a key stands for ----------------------
#
# A pair of keys hides an index alpha below `rows`. Party b expands its key to bits t_b[i], one for each row, with t_0 ^
# t_1 = 1 at alpha and 0 elsewhere (Boyle, Gilboa and Ishai, "Function secret sharing: improvements and extensions", CCS
# 2016, with early termination: a leaf of the tree is 1024 rows). A node of the tree is 16 bytes: its lowest bit is the
# control bit t, the rest, with that bit 0, is the seed s. With H of reference/lookups.py, and the level's
# correction c (16 bytes, lowest bit 0) and two bits c_L, c_R,
#
#     left child = H(0, s) ^ t (c | c_L)      right child = H(1, s) ^ t (c | c_R)      leaf = H(2..9, s) ^ t c_final.
#
# Off the path to alpha the parties' nodes are equal; on it they are independent, with different control bits. To that
# end c is the XOR of the parties' children off the path, c_L and c_R set the control bits, and c_final is
# leaf_0 ^ leaf_1 ^ 2^(alpha mod 1024). The path is the leaf number alpha >> 10, highest bit first, so that neighbouring
# rows lie in one subtree. Bit i mod 1024 of leaf i >> 10 belongs to row i; bits are packed lowest first.
#
# Format of a key: "DPF", version 1, PRF, party, 2 zeros, rows (8 bytes, little-endian), the PRF's public key (16), the
# root (16), for each level c and a byte c_L + 2 c_R, and c_final (128 bytes). Its size depends on `rows` only
# (`key_bytes`).

PRFS = {"aes": 1, "chacha12": 2}  # the PRF's number in a key's header
AES, CHACHA12 = PRFS.values()
BLOCK, LEAF_BYTES = 16, 128
MAGIC, VERSION = b"DPF", 1
LEAF_ROWS = 8 * LEAF_BYTES
MOST_ROWS = 1 << 40
LEVEL = BLOCK + 1  # bytes of a key for each level of the tree
NUMBER, PARTY, ROWS, PUBLIC, ROOT, HEAD = 4, 5, 8, 16, 32, 48  # offsets of a key's fields; NUMBER: of the PRF
_RANDOM = 3 * BLOCK  # random bytes for a pair of keys: two roots, the public key


def key_bytes(rows: int) -> int:
    """Return the size in bytes of a key for a table of this many rows: 346 for 2^20."""
    return HEAD + depth(rows) * LEVEL + LEAF_BYTES


def leaves_of(rows: int) -> int:
    """Return the number of leaves, of 1024 rows each, of a table of this many rows."""
    return -(-rows // LEAF_ROWS)


def depth(rows: int) -> int:
    """Return the number of levels above the leaves in the tree of a key for a table of `rows` rows."""
    return (leaves_of(rows) - 1).bit_length()


def check(keys: Tensor, where: str, rows: int | None = None, party: int | None = None) -> int:
    """Check a batch of keys, and return the number of rows of the table that they are for.

    keys: uint8 (B, key_bytes), B >= 1, on the CPU, all for one table. rows, party: the number of rows and the party
    that the keys must be for; None: any. where: the argument's name. A key that passes is safe to expand; whoever made
    it can still have it select any rows. InputError for an invalid batch.
    """
    if not isinstance(keys, Tensor) or keys.dtype != torch.uint8 or keys.dim() != 2 or keys.device.type != "cpu":
        got = f"{keys.dtype} {tuple(keys.shape)} on {keys.device}" if isinstance(keys, Tensor) else type(keys).__name__
        raise InputError(f"expected keys uint8 (B, key_bytes) on the CPU, got {got}", where=where)
    batch, size = keys.shape
    if not batch or size < key_bytes(1):
        message = f"expected at least one key of {key_bytes(1)} bytes or more, got {batch} of {size}"
        raise InputError(message, where=where)
    keys = keys.contiguous()
    return best(check, keys)(keys, where, rows, party)


def expand(keys: Tensor, first: int, leaves: int) -> Tensor:
    """Compute the selection bits of leaves first .. first + leaves - 1 from keys: uint8 (B, 128 * leaves), packed.

    A leaf has the bits of 1024 rows. keys: uint8 (B, key_bytes), as `check` accepts them; PRFs and parties may be
    mixed. Bits beyond the table's last row are random, and the same at both parties. Runs on one thread. InputError for
    bad keys, and for leaves outside of the table, which has ceil(rows / 1024).

        expand(keys, 0, leaves_of(rows))
    """
    rows = check(keys, "kernels.dpf.expand(keys)")
    if not (0 <= first <= first + leaves <= leaves_of(rows)):
        message = f"expected leaves from 0 to {leaves_of(rows)}, got {first} to {first + leaves}"
        raise InputError(message, where="kernels.dpf.expand(first, leaves)", hint="a leaf is 1024 rows")
    keys = keys.contiguous()
    return best(expand, keys)(keys, first, leaves)


def fields(keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Split look-up keys, checked before, into the four parts that their expansion reads; all are uint8.

    Returns the roots of the keys' trees (B, 16), the public key with which each look-up key uses the PRF (B, 16), the
    corrections of the two children of a node at each level (B, depth, 32), and the corrections of leaves (B, 128).
    """
    levels = keys[:, HEAD:-LEAF_BYTES].reshape(len(keys), -1, LEVEL)
    both = levels[..., :BLOCK].repeat(1, 1, 2)
    both[..., 0] |= levels[..., BLOCK] & 1
    both[..., BLOCK] |= levels[..., BLOCK] >> 1
    return keys[:, ROOT:HEAD], keys[:, PUBLIC:ROOT], both, keys[:, -LEAF_BYTES:]


def generate(alphas: Tensor, rows: int, prf: str, draw: Callable[[int], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Generate a pair of keys for each index alpha: one key for party 0, one for party 1; neither reveals alpha.

    alphas: int64 (B,) on the CPU, 0 <= alpha < rows. rows: number of rows in the table. prf: "aes" or "chacha12". draw:
    a function n -> n uniform, secret bytes, uint8 (n,); it is called once, after all checks. Returns the keys of party
    0, those of party 1, uint8 (B, key_bytes) each, and for each pair the difference of the parties' bits for row alpha,
    t_0[alpha] - t_1[alpha]: int64 (B,), 1 or -1. No branch and no memory address depends on an alpha. InputError for
    anything else; its message contains no alpha.
    """
    where = "pir.dpf.generate"
    if type(rows) is not int or not 1 <= rows <= MOST_ROWS:
        raise InputError(f"expected 1 to {MOST_ROWS} rows, got {rows}", where=f"{where}(rows)")
    if not isinstance(prf, str) or prf not in PRFS:
        raise InputError(f"expected one of {', '.join(PRFS)}, got {prf!r}", where=f"{where}(prf)")
    if not isinstance(alphas, Tensor) or alphas.dtype != torch.int64 or alphas.dim() != 1 or alphas.is_cuda:
        got = f"{alphas.dtype} {tuple(alphas.shape)}" if isinstance(alphas, Tensor) else type(alphas).__name__
        raise InputError(f"expected indices int64 (B,) on the CPU, got {got}", where=f"{where}(alphas)")
    if ((alphas < 0) | (alphas >= rows)).any():
        hint = f"they go from 0 to {rows - 1}"
        raise InputError("an index is outside the table", where=f"{where}(alphas)", hint=hint)
    random = draw(len(alphas) * _RANDOM).view(-1, _RANDOM)
    alphas = alphas.contiguous()
    return best(generate, alphas)(alphas, rows, PRFS[prf], random)


def header(rows: int, prf: int) -> bytes:
    """Return the first 16 bytes of a key of party 0 for a table of `rows` rows (module head).

    prf: the PRF's number, a value of `PRFS`.
    """
    return MAGIC + bytes([VERSION, prf, 0, 0, 0]) + rows.to_bytes(8, "little")


# Tables of rows, and selection of rows by many queries at once: a server's work with the keys -------------------------
#
# For selection bits t[q, i] and rows x[i], as bytes or as little-endian words of `width` bits,
#
#     answer[q] = XOR of x[i] where t[q, i] = 1        answer_sum[q] = sum over i of t[q, i] x[i]  mod 2^width.
#
# Bits are packed least significant first: row i is bit i % 8 of byte i // 8. In C++ (csrc/rows.cpp) a table is stored
# bit-sliced: for every eight rows, one byte of each bit column. XOR is then a product of bit matrices over GF(2), by
# `gf2p8affineqb` (GFNI) or `pshufb` on x86; sums, and XOR on other processors, select among the 16 sums of every four
# rows (V. Arlazarov et al., On economical construction of the transitive closure of a directed graph, 1970). Keys are
# expanded a few leaves at a time, so that bits and rows stay in the cache.
#
# The bit-sliced layout, which files of tables have too: bit i of byte b of a group's vector v is bit b % 8 of byte
# 8 v + b // 8 of the group's row i. A group is eight rows, a vector 64 bytes; a tile is up to four vectors, side by
# side for each group; a block is the tiles of up to 128 groups, one after the other. The number of groups is even, and
# rows have a multiple of eight bytes: the rest is zeros.

WIDTHS = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


def sliced_bytes(rows: int, row_bytes: int) -> int:
    """Return the size in bytes of a table in the bit-sliced layout."""
    return -(-rows // 16) * 16 * -(-row_bytes // 8) * 8


class RowStore(ABC):
    """The rows of a lookup table, in the memory layout of one implementation's kernels; all rows are zeros at first.

    Only `Table` and the functions below it use a store; they check the arguments of all methods before.
    """

    nbytes: int

    @abstractmethod
    def __init__(self, rows: int, row_bytes: int, device: torch.device, sliced: Tensor | None = None) -> None: ...

    @abstractmethod
    def write(self, start: int, data: Tensor) -> None:
        """Write n consecutive rows, of which the first is row `start`. data: uint8 (n, row_bytes)."""

    @abstractmethod
    def replace(self, index: Tensor, rows: Tensor) -> None:
        """Replace single rows: row index[i] becomes rows[i].

        index: int64 (n,). rows: uint8 (n, row_bytes). If an index occurs several times, the last of its rows stays.
        """

    @abstractmethod
    def answer(self, keys: Tensor, width: int, leaf: int) -> Tensor:
        """Combine, for each key, the rows that it selects; returns uint8 (B, row_bytes).

        keys: uint8 (B, key_bytes). width: bits of the words that are summed; 0: XOR. leaf: number of the leaf of a
        key's tree whose bits select the rows from row 0 of this store on; a leaf has 1024 bits.
        """

    @abstractmethod
    def select(self, bits: Tensor, width: int) -> Tensor:
        """Combine, for each query, the rows that its bits select; returns uint8 (B, row_bytes).

        bits: uint8 (B, ceil(rows / 8)), packed. width: bits of the words that are summed; 0: XOR.
        """

    def read(self, index: Tensor) -> Tensor:
        """Return single rows by their numbers, int64 (n,): uint8 (n, row_bytes). Only a store on the CPU has this."""
        raise NotImplementedError

    def read_range(self, start: int, count: int) -> Tensor:
        """Return `count` consecutive rows from row `start` on: uint8 (count, row_bytes). Only on the CPU."""
        raise NotImplementedError

    def sliced(self) -> Tensor:
        """Return the rows in the bit-sliced layout, uint8 (sliced_bytes,). Only on the CPU."""
        raise NotImplementedError

    def accept(self, keys: Tensor, width: int) -> None:  # noqa: B027 - most take all
        """Raise InputError if this implementation cannot answer these keys, or not with this width.

        width: bits of the words that are summed; 0: the rows are combined by XOR.
        """

    @classmethod
    def answer_each(cls, stores: Sequence[RowStore], keys: Tensor, width: int) -> Tensor:
        """Answer B keys from each of T stores of one shape; returns uint8 (T, B, row_bytes).

        keys: uint8 (T, B, key_bytes). width: bits of the words that are summed; 0: XOR.
        """
        return torch.stack([store.answer(own, width, 0) for store, own in zip(stores, keys, strict=True)])


class Table:
    """A table of rows that answers keys and selection bits (module head); all rows are zeros at first.

    rows: how many, 1 to 2^40. row_bytes: bytes of a row, at least 1. device: "cpu", where a row takes ceil(row_bytes /
    8) * 8 bytes, and there is memory for a multiple of 16 rows; or "cuda", "cuda:1", where a row takes row_bytes bytes,
    and only sums by ChaCha12 keys are supported. Keys, rows and answers are on the CPU. All instruction sets use the
    same layout. sliced: the rows in this layout, uint8 (sliced_bytes,), for a table on the CPU: the C++ kernels use
    this memory itself, so it may be a mapped file. Several threads may read at the same time while none writes. All
    methods raise InputError for wrong shapes, types and ranges; the constructor also for a device that is not there,
    and EnvironmentProblem if memory is short.

        table = Table.prepare(torch.arange(8, dtype=torch.uint8).view(4, 2))
        select_xor(torch.tensor([[0b0110]], dtype=torch.uint8), table).tolist() == [[2 ^ 4, 3 ^ 5]]
    """

    def __init__(self, rows: int, row_bytes: int, device: str = "cpu", *, sliced: Tensor | None = None) -> None:
        where = "kernels.rows.Table"
        if not isinstance(rows, int) or not 1 <= rows <= MOST_ROWS:
            raise InputError(f"expected 1 to 2^40 rows, got {rows}", where=f"{where}(rows)")
        if not isinstance(row_bytes, int) or row_bytes < 1:
            raise InputError(f"expected rows of at least one byte, got {row_bytes}", where=f"{where}(row_bytes)")
        self.rows, self.row_bytes = rows, row_bytes
        if sliced is not None and (sliced.dtype != torch.uint8 or sliced.shape != (sliced_bytes(rows, row_bytes),)):
            message = f"expected uint8 ({sliced_bytes(rows, row_bytes)},), got {sliced.dtype} {tuple(sliced.shape)}"
            raise InputError(message, where=f"{where}(sliced)")
        self._store = _store_on(device, rows, row_bytes, sliced)

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
        """Write n consecutive rows, of which the first is row `start`; fastest if `start` is a multiple of 8.

        data: uint8 (n, row_bytes).
        """
        where = "kernels.rows.Table.fill"
        self._check_rows(data, f"{where}(data)")
        if not isinstance(start, int) or not 0 <= start <= self.rows - len(data):
            message = f"rows {start} to {start + len(data)} of a table of {self.rows}"
            raise InputError(message, where=f"{where}(start)")
        self._store.write(start, data.contiguous())

    def read(self, index: Tensor) -> Tensor:
        """Return single rows of a table on the CPU by their numbers, int64 (n,): uint8 (n, row_bytes)."""
        self._check_index(index, "kernels.rows.Table.read(index)")
        return self._store.read(index.contiguous())

    def read_range(self, start: int, count: int) -> Tensor:
        """Return consecutive rows of a table on the CPU, `start` to `start + count - 1`: uint8 (count, row_bytes)."""
        if not 0 <= start <= start + count <= self.rows:
            message = f"rows {start} to {start + count} of a table of {self.rows}"
            raise InputError(message, where="kernels.rows.Table.read_range")
        return self._store.read_range(start, count)

    def sliced(self) -> Tensor:
        """Return the rows of a table on the CPU in the bit-sliced layout, uint8 (sliced_bytes,), which may share its
        memory.
        """
        return self._store.sliced()

    def update(self, index: Tensor, rows: Tensor) -> None:
        """Replace single rows: row index[i] becomes rows[i].

        index: int64 (n,). rows: uint8 (n, row_bytes). If an index occurs several times, the last of its rows stays. On
        a CPU each row costs 8 row_bytes writes of one bit. InputError for anything else.
        """
        where = "kernels.rows.Table.update"
        self._check_rows(rows, f"{where}(rows)")
        self._check_index(index, f"{where}(index)", len(rows))
        self._store.replace(index.contiguous(), rows.contiguous())

    def accept(self, keys: Tensor, width: int) -> None:
        """Raise InputError if this table's device cannot answer these keys, or not with this width.

        keys: checked by `check` before. width: bits of the words that are summed; 0: the rows are combined by XOR.
        """
        self._store.accept(keys, width)

    def answer(self, keys: Tensor, first_leaf: int | None = None) -> Tensor:
        """XOR, for each key, the rows that it selects; returns uint8 (B, row_bytes).

        keys: uint8 (B, key_bytes), from `generate`. first_leaf: None if the keys were made for exactly this table. If
        this table is only a part of the table that they were made for, it is the number of the leaf with which the part
        begins; a leaf is 1024 rows. The table is read once for all keys, on torch.get_num_threads() threads.
        """
        return self._answer(keys, 0, first_leaf, "kernels.rows.Table.answer")

    def answer_sum(self, keys: Tensor, width: int, first_leaf: int | None = None) -> Tensor:
        """Sum, for each key, the rows that it selects, as words of `width` bits mod 2^width; returns uint8 (B,
        row_bytes).

        keys, first_leaf: as in `answer`. width: 8, 16, 32 or 64.
        """
        self._check_width(width, "kernels.rows.Table.answer_sum(width)")
        return self._answer(keys, width, first_leaf, "kernels.rows.Table.answer_sum")

    def _answer(self, keys: Tensor, width: int, first_leaf: int | None, where: str) -> Tensor:
        total = check(keys, f"{where}(keys)", self.rows if first_leaf is None else None)
        leaf = first_leaf or 0
        # A part that does not end with the table has whole leaves.
        end = leaf * LEAF_ROWS + self.rows
        if leaf < 0 or end > total or (end < total and self.rows % LEAF_ROWS):
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

    def _check_index(self, index: Tensor, where: str, count: int | None = None) -> None:
        flat = isinstance(index, Tensor) and index.dtype == torch.int64 and index.dim() == 1 and not index.is_cuda
        if not flat or (count is not None and len(index) != count):
            raise InputError(f"expected indices int64 ({'n' if count is None else count},) on the CPU", where=where)
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < self.rows:
            hint = f"they go from 0 to {self.rows - 1}"
            raise InputError("an index is outside the table", where=where, hint=hint)

    def _check_width(self, width: int, where: str) -> None:
        if width not in WIDTHS or 8 * self.row_bytes % width:
            hint = "8, 16, 32 or 64, and rows of whole words"
            raise InputError(f"no words of {width} bits in rows of {self.row_bytes} bytes", where=where, hint=hint)


def _store_on(device: str, rows: int, row_bytes: int, sliced: Tensor | None) -> RowStore:
    """Make the memory for a table on a device; InputError if the device is not there.

    rows: how many rows. row_bytes: bytes of a row. sliced: the rows in the bit-sliced layout; None: zeros.
    """
    where = "kernels.rows.Table(device)"
    there = find_device(device, where)
    try:
        store = best_on(RowStore, there)
    except ImportError as error:
        what = f"Triton cannot be imported: {error}"
        raise InputError(what, where=where, hint="cpu serves every decoder and PRF") from None
    return store(rows, row_bytes, there, sliced)


def answer_each(tables: Sequence[Table], keys: Tensor, width: int) -> Tensor:
    """Answer keys from several small tables of one shape in one call; returns uint8 (T, B, row_bytes).

    keys: uint8 (T, B, key_bytes), B for each of the T tables. width: bits of the words that are summed, 8, 16, 32 or
    64; 0: the rows are combined by XOR. InputError as `Table.answer` and `Table.answer_sum`, and for tables of several
    shapes or devices.
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
    check(keys.flatten(0, 1), f"{where}(keys)", first.rows)
    first.accept(keys.flatten(0, 1), width)
    return first._store.answer_each([table._store for table in tables], keys, width)


def select_xor(bits: Tensor, table: Table) -> Tensor:
    """XOR, for each query, the rows that its bits select; returns uint8 (B, row_bytes).

    bits: uint8 (B, ceil(rows / 8)), packed; spare bits are ignored.
    """
    _check_bits(bits, table, "kernels.rows.select_xor(bits)")
    return table._store.select(bits, 0)


def select_sum(bits: Tensor, table: Table, width: int) -> Tensor:
    """Sum, for each query, the rows that its bits select, as words of `width` bits mod 2^width; returns uint8 (B,
    row_bytes).

    bits: uint8 (B, ceil(rows / 8)), packed; spare bits are ignored. width: 8, 16, 32 or 64.
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
