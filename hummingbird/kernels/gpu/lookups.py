"""A table on a GPU, in Triton: sums of the rows that ChaCha12 keys select.

For one piece of the table at a time, the GPU expands the selection bits and multiplies them with the rows; the pieces'
sums add up mod 2^width. There is no GPU kernel for XOR, nor for AES keys. kernels/lookups.py has the construction
of keys and trees, kernels/lookups.py the definition of answers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hummingbird.errors import EnvironmentProblem, InputError
from hummingbird.kernels import lookups
from hummingbird.kernels.devices import put
from hummingbird.kernels.gpu.sizes import sizes
from hummingbird.kernels.gpu.streams import double_round
from hummingbird.kernels.lookups import CHACHA12, LEAF_BYTES, LEAF_ROWS, NUMBER, WIDTHS, RowStore, leaves_of
from hummingbird.kernels.registry import implements

# Selection bits ------------------------------------------------------------------------------------------------------
#
# ChaCha12 trees, level by level; each thread computes the children of one node, or half of a leaf.


@triton.jit
def _word(at, inside):
    return tl.load(at, mask=inside, other=0).to(tl.uint32, bitcast=True)


@triton.jit
def _chacha12(k0, k1, k2, k3, counter, public, inside):
    zero = k0 ^ k0
    c = zero + counter.to(tl.uint32)
    n0, n1, n2 = _word(public + 0, inside), _word(public + 1, inside), _word(public + 2, inside)
    x0, x1, x2, x3 = zero + 0x61707865, zero + 0x3120646E, zero + 0x79622D36, zero + 0x6B206574
    x4, x5, x6, x7, x8, x9, x10, x11 = k0, k1, k2, k3, k0, k1, k2, k3
    x12, x13, x14, x15 = c, n0, n1, n2
    for _ in range(6):
        x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = double_round(
            x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15
        )
    x0, x1, x2, x3 = x0 + 0x61707865, x1 + 0x3120646E, x2 + 0x79622D36, x3 + 0x6B206574
    x4, x5, x6, x7, x8, x9, x10, x11 = x4 + k0, x5 + k1, x6 + k2, x7 + k3, x8 + k0, x9 + k1, x10 + k2, x11 + k3
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12 + c, x13 + n0, x14 + n1, x15 + n2


@triton.jit
def _node(at, inside):
    """Load nodes of a key's tree: returns the four words of the seed, and a word whose bits all equal the node's
    control bit.

    at: the nodes' addresses. inside: whether each node exists; for others zeros are loaded.
    """
    k0, k1 = _word(at + 0, inside), _word(at + 1, inside)
    k2, k3 = _word(at + 2, inside), _word(at + 3, inside)
    return k0 & 0xFFFFFFFE, k1, k2, k3, (k0 ^ k0) - (k0 & 1)


@triton.jit
def _put(at, correction, word: tl.constexpr, x, control, inside):
    x = x ^ (control & _word(correction + word, inside))
    tl.store(at + word, x.to(tl.int32, bitcast=True), mask=inside)


# Words are read one by one, so kernels specialized for addresses that are multiples of 16 bytes would not be faster.
@triton.jit(do_not_specialize=["nodes", "stride", "n", "total", "public", "corrections", "correction_stride"])
def _children(nodes, stride, n, total, public, corrections, correction_stride, out, size: tl.constexpr):
    """Compute and store the two children of each of `total` nodes of the trees of look-up keys (kernels/lookups.py).

    Every key has its own tree, with n nodes at this level. nodes: the nodes' memory, with `stride` words for each key.
    public: the public key with which each look-up key uses the PRF. corrections: the corrections of this level,
    with `correction_stride` words for each key. out: memory for the children. size: nodes of one program.
    """
    index = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside, key = index < total, index // n
    k0, k1, k2, k3, control = _node(nodes + key * stride + index % n * 4, inside)
    x0, x1, x2, x3, x4, x5, x6, x7, _, _, _, _, _, _, _, _ = _chacha12(
        k0, k1, k2, k3, tl.program_id(1), public + key * 4, inside
    )
    at, correction = out + index * 8, corrections + key * correction_stride
    _put(at, correction, 0, x0, control, inside)
    _put(at, correction, 1, x1, control, inside)
    _put(at, correction, 2, x2, control, inside)
    _put(at, correction, 3, x3, control, inside)
    _put(at, correction, 4, x4, control, inside)
    _put(at, correction, 5, x5, control, inside)
    _put(at, correction, 6, x6, control, inside)
    _put(at, correction, 7, x7, control, inside)


@triton.jit(do_not_specialize=["nodes", "stride", "n", "total", "public", "finals"])
def _leaves(nodes, stride, n, total, public, finals, out, size: tl.constexpr):
    """Compute and store the leaf below each of `total` nodes of the trees of look-up keys (kernels/lookups.py).

    Every key has its own tree, with n nodes at the last level. nodes: the nodes' memory, with `stride` words for each
    key.
    public: the public key with which each look-up key uses the PRF. finals: each key's correction of leaves. out:
    memory for the leaves. size: nodes of one program. The grid of programs has a second dimension of size 2: each
    program computes one half of its leaves.
    """
    index, half = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size), tl.program_id(1)
    inside, key = index < total, index // n
    k0, k1, k2, k3, control = _node(nodes + key * stride + index % n * 4, inside)
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = _chacha12(
        k0, k1, k2, k3, half + 1, public + key * 4, inside
    )
    at, final = out + index * 32 + half * 16, finals + key * 32 + half * 16
    _put(at, final, 0, x0, control, inside)
    _put(at, final, 1, x1, control, inside)
    _put(at, final, 2, x2, control, inside)
    _put(at, final, 3, x3, control, inside)
    _put(at, final, 4, x4, control, inside)
    _put(at, final, 5, x5, control, inside)
    _put(at, final, 6, x6, control, inside)
    _put(at, final, 7, x7, control, inside)
    _put(at, final, 8, x8, control, inside)
    _put(at, final, 9, x9, control, inside)
    _put(at, final, 10, x10, control, inside)
    _put(at, final, 11, x11, control, inside)
    _put(at, final, 12, x12, control, inside)
    _put(at, final, 13, x13, control, inside)
    _put(at, final, 14, x14, control, inside)
    _put(at, final, 15, x15, control, inside)


def expand(keys: Tensor, first: int, leaves: int, device: torch.device) -> Tensor:
    """Compute the selection bits of leaves first .. first + leaves - 1 from keys: uint8 (B, 128 * leaves), packed, on a
    GPU.

    keys: uint8 (B, key_bytes), on the CPU; InputError for keys of another PRF than chacha12. The trees' nodes take
    about a quarter of the result's memory in addition. See `kernels.lookups.expand`.
    """
    rows = lookups.check(keys, "kernels.gpu.expand(keys)")
    if not (keys[:, lookups.NUMBER] == CHACHA12).all():
        hint = 'make them with generate(..., prf="chacha12")'
        raise InputError("a GPU takes ChaCha12 keys only", where="kernels.gpu.expand(keys)", hint=hint)
    if not 0 <= first <= first + leaves <= lookups.leaves_of(rows):
        message = f"expected leaves from 0 to {lookups.leaves_of(rows)}, got {first} to {first + leaves}"
        raise InputError(message, where="kernels.gpu.expand(first, leaves)", hint="a leaf is 1024 rows")
    batch, levels = len(keys), lookups.depth(rows)
    out = torch.empty((batch, leaves * LEAF_BYTES // 4), dtype=torch.int32, device=device)
    if not leaves:
        return out.view(torch.uint8)
    root, public, corrections, finals = (put(_words(part), device) for part in lookups.fields(keys))
    size = sizes("dpf", device)
    nodes, low = root.view(batch, 1, 4), 0  # of this level, from number `low` on
    for level in range(levels):
        below, n = levels - level - 1, nodes.shape[1]
        both = torch.empty((batch, 2 * n, 4), dtype=torch.int32, device=device)
        level_corrections = corrections[:, level]
        _children[(triton.cdiv(batch * n, size["size"]),)](
            nodes, nodes.stride(0), n, batch * n, public, level_corrections, corrections.stride(0), both, **size
        )
        start, end = first >> below, ((first + leaves - 1) >> below) + 1
        nodes, low = both[:, start - 2 * low : end - 2 * low], start
    _leaves[(triton.cdiv(batch * leaves, size["size"]), 2)](
        nodes, nodes.stride(0), leaves, batch * leaves, public, finals, out, **size
    )
    return out.view(torch.uint8)


def _words(octets: Tensor) -> Tensor:
    return octets.clone(memory_format=torch.contiguous_format).view(torch.int32)


# Products of selection bits and bytes on int8 units ------------------------------------------------------------------
#
# The product of selection bits (0 and 1) and the table's bytes x, kept as signed bytes x - 128, is exact in 32 bits:
#
#     sum_i t_i x_i = sum_i t_i (x_i - 128) + 128 sum_i t_i  <=  255 * 2^23 < 2^31    for pieces of up to 2^23 rows,
#
# and the words' sums are those of their bytes, shifted into place, mod 2^width.

_PIECE, _PIECES = 1 << 23, 32  # rows of one sum at most; sums side by side, to fill the GPU


def prepare(data: Tensor) -> Tensor:
    """Convert a table's rows to the form that `select_sum` reads: uint8 (rows, row_bytes) to int8, each byte less 128.

    The result is on the device of the rows.
    """
    return (data ^ 0x80).view(torch.int8)


@triton.jit(do_not_specialize=["bits", "bits_stride", "rows", "queries", "piece"])
def _sums(
    bits, bits_stride, table, rows, queries, columns, piece, out, Q: tl.constexpr, C: tl.constexpr, R: tl.constexpr
):
    q = tl.program_id(0).to(tl.int64) * Q + tl.arange(0, Q)
    c = tl.program_id(1).to(tl.int64) * C + tl.arange(0, C)
    start = tl.program_id(2).to(tl.int64) * piece
    total, count = tl.zeros((Q, C), dtype=tl.int32), tl.zeros((Q,), dtype=tl.int32)
    for step in range(0, piece, R):
        r = start + step + tl.arange(0, R)
        wanted = (q < queries)[:, None] & (r < rows)[None, :]
        packed = tl.load(bits + q[:, None] * bits_stride + (r >> 3)[None, :], mask=wanted, other=0)
        chosen = ((packed.to(tl.int32) >> (r & 7).to(tl.int32)[None, :]) & 1).to(tl.int8)
        x = tl.load(table + r[:, None] * columns + c[None, :], mask=(r < rows)[:, None] & (c < columns), other=0)
        total += tl.dot(chosen, x, out_dtype=tl.int32)
        count += tl.sum(chosen.to(tl.int32), axis=1)
    at = out + (tl.program_id(2).to(tl.int64) * queries + q[:, None]) * columns + c[None, :]
    tl.store(at, total + 128 * count[:, None], mask=(q < queries)[:, None] & (c < columns)[None, :])


def select_sum(bits: Tensor, table: Tensor, width: int) -> Tensor:
    """Sum, for each query, the rows that its bits select, as words of `width` bits mod 2^width; returns uint8 (B,
    row_bytes).

    bits: uint8 (B, ceil(rows / 8) or more), packed; spare bits are ignored. table: the result of `prepare`, on the same
    device as the bits. width: 8, 16, 32 or 64; a row must be an integer number of words. InputError for anything else.
    """
    where = "kernels.gpu.select_sum"
    if bits.dtype != torch.uint8 or bits.dim() != 2 or table.dtype != torch.int8 or table.dim() != 2:
        got = f"{bits.dtype} {tuple(bits.shape)} and {table.dtype} {tuple(table.shape)}"
        raise InputError(f"expected bits uint8 (B, n) and a table int8 (rows, row_bytes), got {got}", where=where)
    (queries, size), (rows, columns) = bits.shape, table.shape
    if 8 * size < rows or bits.device != table.device:
        raise InputError(f"{8 * size} bits on {bits.device} for {rows} rows on {table.device}", where=where)
    if width not in WIDTHS or 8 * columns % width:
        raise InputError(f"no words of {width} bits in rows of {columns} bytes", where=f"{where}(width)")
    size_of = sizes("rows", bits.device)  # of a product's tile
    pieces = max(triton.cdiv(rows, _PIECE), min(_PIECES, triton.cdiv(rows, size_of["R"])))
    piece = triton.cdiv(triton.cdiv(rows, pieces), size_of["R"]) * size_of["R"]  # at most 2^23, a multiple of a tile
    out = torch.empty((pieces, queries, columns), dtype=torch.int32, device=bits.device)
    grid = (triton.cdiv(queries, size_of["Q"]), triton.cdiv(columns, size_of["C"]), pieces)
    bits, table = bits.contiguous(), table.contiguous()
    _sums[grid](bits, size, table, rows, queries, columns, piece, out, **size_of)
    octets = out.sum(0, dtype=torch.int64).view(queries, -1, width // 8)
    words = (octets << 8 * torch.arange(width // 8, device=bits.device)).sum(2)  # wraps mod 2^64
    return words.to(WIDTHS[width]).view(torch.uint8)


# The table -----------------------------------------------------------------------------------------------------------

_MOST_BITS = 1 << 28  # bytes of selection bits at a time; the trees' nodes take a quarter of that in addition
_ROOM = 3 * _MOST_BITS  # bytes of GPU memory for answering, besides the table


@implements(RowStore, "gpu")
class SignedRows(RowStore):
    """The rows of a lookup table on a GPU, stored as signed bytes.

    Keys, rows to write and answers are on the CPU.
    """

    def __init__(self, rows: int, row_bytes: int, device: torch.device, sliced: Tensor | None = None) -> None:
        assert sliced is None, "the layout of CPUs"
        _check_room(rows * row_bytes + _ROOM, device)
        # `prepare` of zeros.
        self._data = torch.full((rows, row_bytes), -128, dtype=torch.int8, device=device)
        self.nbytes = self._data.numel()

    def write(self, start: int, data: Tensor) -> None:
        self._data[start : start + len(data)] = prepare(data.to(self._data.device))

    def replace(self, index: Tensor, rows: Tensor) -> None:
        last = {row: place for place, row in enumerate(index.tolist())}  # a GPU would write equal indices in any order
        where, places = torch.tensor([*last]), torch.tensor([*last.values()])
        self._data[where.to(self._data.device)] = prepare(rows[places].to(self._data.device))

    def accept(self, keys: Tensor, width: int) -> None:
        if not width or not (keys[:, NUMBER] == CHACHA12).all():
            hint = 'ask with decoder="sum" and prf="chacha12"'
            raise InputError("a table on a GPU answers sums to ChaCha12 keys only", hint=hint)

    def answer(self, keys: Tensor, width: int, leaf: int) -> Tensor:
        with torch.cuda.device_of(self._data):  # Triton starts kernels on the thread's device
            return self._answer(keys, width, leaf)

    def _answer(self, keys: Tensor, width: int, leaf: int) -> Tensor:
        (rows, row_bytes), device = self._data.shape, self._data.device
        leaves, step = leaves_of(rows), max(1, _MOST_BITS // (len(keys) * LEAF_BYTES))
        total = torch.zeros((len(keys), 8 * row_bytes // width), dtype=WIDTHS[width], device=device)
        for first in range(0, leaves, step):
            bits = expand(keys, leaf + first, min(step, leaves - first), device)
            part = self._data[first * LEAF_ROWS : (first + step) * LEAF_ROWS]
            total += select_sum(bits, part, width).view(WIDTHS[width])  # wraps mod 2^width
        return total.view(torch.uint8).cpu()

    def select(self, bits: Tensor, width: int) -> Tensor:
        with torch.cuda.device_of(self._data):
            return select_sum(bits.to(self._data.device), self._data, width).cpu()


def _check_room(needed: int, device: torch.device) -> None:
    """Raise EnvironmentProblem if a GPU has less than `needed` bytes of free memory."""
    if device.type != "cuda":
        return  # the CPU, with Triton's interpreter
    left = torch.cuda.mem_get_info(device)[0]
    if needed > left:
        what = f"rows on {device} take {needed / 1e9:.2f} GB with room to answer, {left / 1e9:.2f} are left there"
        hint = "split the table over several GPUs (device cuda:0,cuda:1), or serve it from the CPU"
        raise EnvironmentProblem(what, where="kernels.rows.Table", hint=hint)
