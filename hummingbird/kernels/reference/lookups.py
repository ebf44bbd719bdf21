"""Lookups in plain torch: the trees' pseudo-random functions, distributed point functions, and selection of rows.

kernels/lookups.py has the construction.
"""

from __future__ import annotations

import mmap
import struct
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from hummingbird.errors import EnvironmentProblem, InputError
from hummingbird.kernels import lookups
from hummingbird.kernels.lookups import (
    AES,
    BLOCK,
    CHACHA12,
    HEAD,
    LEAF_BYTES,
    LEAF_ROWS,
    LEVEL,
    MAGIC,
    MOST_ROWS,
    NUMBER,
    PARTY,
    PRFS,
    PUBLIC,
    ROOT,
    VERSION,
    WIDTHS,
    RowStore,
    depth,
    fields,
    header,
    key_bytes,
    leaves_of,
)
from hummingbird.kernels.reference.streams import rounds
from hummingbird.kernels.registry import implements

# The two pseudo-random functions of the trees -------------------------------------------------------------------------
#
# H(j, s) is block j, 16 bytes, of a node's seed s (128 bits, the lowest one 0). Blocks 0 and 1 are the node's children,
# blocks 2 to 9 the 1024 bits of a leaf.
#
# AES: H(j, s) = AES-128_k(s ^ 2j) ^ s ^ 2j, Matyas-Meyer-Oseas, with a fresh public key k for each pair of keys, so
# that an attack on many pairs is no easier than on one (Guo, Katz, Wang, Weng and Yu, "Better concrete security for
# half-gates garbling (in the multi-instance setting)", CRYPTO 2020; Guo, Katz, Wang and Yu, S&P 2020). 2j does not
# change the lowest bit. CHACHA12: ChaCha with 12 rounds (Bernstein, "ChaCha, a variant of Salsa20", 2008) and the
# 128-bit key s; the nonce is 12 public bytes, fresh for each pair of keys. The first half of ChaCha's block 0 is the
# children, blocks 1 and 2 the leaf.

_CONSTANTS = struct.unpack("<4i", b"expand 16-byte k")


def children(prf: int, public: Tensor, seeds: Tensor) -> Tensor:
    """Compute the two children, 16 bytes each, of nodes of the keys' trees: uint8 (B, n, 32).

    prf: the number of the PRF in a key's header. public: for each key the public key with which it uses the PRF, uint8
    (B, 16). seeds: of n nodes for each key, uint8 (B, n, 16). The children are the blocks H(0) and H(1) of the PRF
    (module head), without corrections.
    """
    return _aes(public, seeds, 0, 2) if prf == AES else _chacha12(public, seeds, 0)[:, :, : 2 * BLOCK]


def leaf(prf: int, public: Tensor, seeds: Tensor) -> Tensor:
    """Compute the leaf below each of n nodes of the keys' trees: uint8 (B, n, 128), 1024 bits each.

    The leaves are the blocks H(2) .. H(9) of the PRF, without corrections. The arguments are those of `children`.
    """
    if prf == AES:
        return _aes(public, seeds, 2, 8)
    return torch.cat([_chacha12(public, seeds, counter) for counter in (1, 2)], dim=2)


def _aes(public: Tensor, seeds: Tensor, first: int, count: int) -> Tensor:
    x = seeds[:, :, None, :].repeat(1, 1, count, 1)
    x[..., 0] ^= torch.arange(first, first + count, dtype=torch.uint8) << 1
    y = torch.empty_like(x)
    for key, inputs, outputs in zip(public.numpy(), x.numpy(), y.numpy(), strict=True):
        encrypt = Cipher(algorithms.AES(key.tobytes()), modes.ECB()).encryptor()
        outputs.reshape(-1)[:] = torch.frombuffer(bytearray(encrypt.update(inputs.tobytes())), dtype=torch.uint8)
    return (x ^ y).flatten(2)


def _chacha12(public: Tensor, seeds: Tensor, counter: int) -> Tensor:
    key = _words(seeds).unbind(2)  # four words, int32 (B, n) each
    nonce = _words(public[:, :12])
    state = [torch.full_like(key[0], word) for word in _CONSTANTS] + [*key, *key]
    state += [torch.full_like(key[0], counter), *(word[:, None].expand_as(key[0]) for word in nonce.unbind(1))]
    return torch.stack(rounds(state, 12), dim=2).view(torch.uint8)


def _words(octets: Tensor) -> Tensor:
    """Copy bytes, uint8 (..., n), to contiguous memory, and return the copy as int32 words (..., n / 4).

    A view would not do: a batch of one may have strides that are no multiple of a word.
    """
    return octets.clone(memory_format=torch.contiguous_format).view(torch.int32)


# Distributed point functions, level by level --------------------------------------------------------------------------


@implements(lookups.check, "reference")
def check(keys: Tensor, where: str, rows: int | None, party: int | None) -> int:
    """Implement `kernels.lookups.check` in plain torch; the error says what is wrong with which key."""
    size, data = keys.shape[1], keys.numpy()

    def refuse(wrong: Any, what: str, hint: str = "") -> None:
        if wrong.any():
            raise InputError(f"key {int(wrong.argmax())} of the batch {what}", where=where, hint=hint)

    words = data[:, :PUBLIC].view("<u8")
    head, counts, number, role = words[:, 0], words[:, 1], data[:, NUMBER], data[:, PARTY]
    refuse(
        head & 0xFFFFFF != int.from_bytes(MAGIC, "little"),
        "does not begin as a key does",
        "was it made by pir.dpf.generate?",
    )
    refuse(data[:, 3] != VERSION, f"is not of version {VERSION}", "use one version at the client and at the servers")
    refuse((number == 0) | (number > len(PRFS)), f"names an unknown PRF, not one of {', '.join(PRFS)}")
    refuse(head >> 41 != 0, "names a party that is neither 0 nor 1")
    if party is not None:
        refuse(role != party, f"is not for party {party}", "the first keys go to party 0, the second to party 1")
    refuse(counts - 1 >= MOST_ROWS, f"is for a table of no or more than {MOST_ROWS} rows")  # 0 - 1 wraps
    count = int(counts[0])
    refuse(counts != count, f"is for a table of another size than key 0, which has {count} rows", "use two batches")
    if rows is not None and count != rows:
        hint = "ask the server for its table's shape before making keys"
        raise InputError(f"the keys are for a table of {count} rows, this one has {rows}", where=where, hint=hint)
    if size != key_bytes(count):
        hint = f"a key for {count} rows has {key_bytes(count)} bytes"
        raise InputError(f"the keys are cut short or too long: {size} bytes", where=where, hint=hint)
    # A key has one encoding only; its random parts cannot be checked.
    damaged = "is damaged or was not made by pir.dpf.generate"
    refuse(data[:, ROOT] & 1 != role, f"{damaged}: its root does not fit its party")
    spare = (data[:, HEAD:-LEAF_BYTES:LEVEL] & 1) | (data[:, HEAD + BLOCK : -LEAF_BYTES : LEVEL] & 0xFC)
    refuse(spare.any(1), f"{damaged}: spare bits are set")
    refuse((number == CHACHA12) & (data[:, ROOT - 4 : ROOT].any(1)), f"{damaged}: its nonce is too long")
    return count


@implements(lookups.expand, "reference")
def expand(keys: Tensor, first: int, leaves: int) -> Tensor:
    """Implement `kernels.lookups.expand` in plain torch, one level of the trees after the other."""
    out = torch.empty((len(keys), leaves * LEAF_BYTES), dtype=torch.uint8)
    for prf in PRFS.values() if leaves else ():
        chosen = keys[:, NUMBER] == prf
        if chosen.any():
            out[chosen] = _expand(prf, keys[chosen], first, leaves)
    return out


def _expand(prf: int, keys: Tensor, first: int, leaves: int) -> Tensor:
    batch, (root, public, corrections, final) = len(keys), fields(keys)
    nodes, low = root[:, None], 0  # the nodes of a level from number `low` on: uint8 (B, n, 16)
    for level in range(corrections.shape[1]):
        below = corrections.shape[1] - level - 1
        both = children(prf, public, _seeds(nodes)) ^ (_masks(nodes) & corrections[:, level : level + 1])
        start, end = first >> below, ((first + leaves - 1) >> below) + 1
        nodes, low = both.view(batch, -1, BLOCK)[:, start - 2 * low : end - 2 * low], start
    bits = leaf(prf, public, _seeds(nodes)) ^ (_masks(nodes) & final[:, None])
    return bits.view(batch, -1)


def _seeds(nodes: Tensor) -> Tensor:
    seeds = nodes.clone()
    seeds[..., 0] &= 0xFE
    return seeds


def _masks(nodes: Tensor) -> Tensor:
    """Return for each node of a tree 255 if its control bit is set, else 0: uint8 (..., 1).

    nodes: uint8 (..., 16).
    """
    return (nodes[..., :1] & 1) * 255


@implements(lookups.generate, "reference")
def generate(alphas: Tensor, rows: int, prf: int, random: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Implement `kernels.lookups.generate` in plain torch: generate pairs of look-up keys.

    prf: the number of the PRF in a key's header. random: random bytes, uint8 (B, 48).
    """
    batch, levels = len(alphas), depth(rows)
    public = random[:, 2 * BLOCK :].clone()
    if prf == CHACHA12:
        public[:, 12:] = 0
    nodes = random[:, : 2 * BLOCK].reshape(batch, 2, BLOCK).clone()  # the parties' nodes on the path
    nodes[:, :, 0] = (nodes[:, :, 0] & 0xFE) | torch.arange(2, dtype=torch.uint8)
    roots, corrections = nodes.clone(), []
    for level in range(levels):
        bit = (alphas >> (levels - level - 1) + 10 & 1).to(torch.uint8)
        right = (bit * 255)[:, None]
        both = children(prf, public, _seeds(nodes)).view(batch, 2, 2, BLOCK)  # party, child
        total = both[:, 0] ^ both[:, 1]
        correction = _pick(right, total[:, 0], total[:, 1])  # of the children off the path
        correction[:, 0] &= 0xFE
        left_bit, right_bit = total[:, 0, 0] & 1 ^ bit ^ 1, total[:, 1, 0] & 1 ^ bit
        corrections.append(torch.cat([correction, (left_bit | right_bit << 1)[:, None]], dim=1))
        kept = _pick(right[:, None], both[:, :, 1], both[:, :, 0])
        correction[:, 0] |= _pick(right[:, 0], right_bit, left_bit)
        nodes = kept ^ (_masks(nodes) & correction[:, None])
    leaves = leaf(prf, public, _seeds(nodes))
    place = (alphas & LEAF_ROWS - 1)[:, None]
    unit = (torch.arange(LEAF_BYTES) == place >> 3).to(torch.uint8) << (place & 7).to(torch.uint8)
    final = leaves[:, 0] ^ leaves[:, 1] ^ unit
    at_alpha = ((leaves[:, 0] ^ (_masks(nodes[:, 0]) & final)) & unit).amax(1) > 0
    head = torch.frombuffer(bytearray(header(rows, prf)), dtype=torch.uint8)
    first, second = (
        torch.cat([head.expand(batch, -1), public, roots[:, party], *corrections, final], dim=1) for party in range(2)
    )
    second[:, PARTY] = 1
    return first, second, 2 * at_alpha.long() - 1


def _pick(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return no ^ ((no ^ yes) & mask)


# Rows and their selection ---------------------------------------------------------------------------------------------

_HUGE = 4 << 20  # bytes from which on a table uses large pages
_PIECE = 4096  # rows at a time: sums of 4096 < 2^24 bits are exact in float32


@implements(RowStore, "reference")
class PlainRows(RowStore):
    """The rows of a lookup table as plain bytes, one row after the other."""

    def __init__(self, rows: int, row_bytes: int, device: torch.device, sliced: Tensor | None = None) -> None:
        self._data = (
            zeros(rows * row_bytes).view(rows, row_bytes) if sliced is None else joined(sliced, rows, row_bytes)
        )
        self.nbytes = self._data.numel()

    def write(self, start: int, data: Tensor) -> None:
        self._data[start : start + len(data)] = data

    def replace(self, index: Tensor, rows: Tensor) -> None:
        for at, row in zip(index.tolist(), rows, strict=True):
            self._data[at] = row

    def read(self, index: Tensor) -> Tensor:
        return self._data[index]

    def read_range(self, start: int, count: int) -> Tensor:
        return self._data[start : start + count]

    def sliced(self) -> Tensor:
        return sliced(self._data)

    def answer(self, keys: Tensor, width: int, leaf: int) -> Tensor:
        return self.select(expand(keys, leaf, leaves_of(len(self._data))), width)

    def select(self, bits: Tensor, width: int) -> Tensor:
        return select(bits, self._data, width)


_GROUPS, _TILE = LEAF_BYTES, 4  # most groups of a block, most vectors of a tile


def _blocks(rows: int) -> list[tuple[int, int]]:
    """Return the first group of each block of a sliced table, and the number of its groups."""
    groups = -(-rows // 16) * 2
    return [(first, min(_GROUPS, groups - first)) for first in range(0, groups, _GROUPS)]


def sliced(data: Tensor) -> Tensor:
    """Put rows, uint8 (rows, row_bytes), into the bit-sliced layout (kernels/lookups.py): uint8 (sliced_bytes,)."""
    rows, row_bytes = data.shape
    padded = torch.zeros((-(-rows // 16) * 16, -(-row_bytes // 8) * 8), dtype=torch.uint8)
    padded[:rows, :row_bytes] = data
    out = []
    for first, groups in _blocks(rows):
        bits = _unpack(padded[8 * first : 8 * (first + groups)]).view(groups, 8, -1, 64)
        vectors = (bits << torch.arange(8, dtype=torch.uint8)[:, None, None]).sum(1, dtype=torch.uint8)
        out += [tile.flatten() for tile in vectors.split(_TILE, 1)]
    return torch.cat(out)


def joined(sliced: Tensor, rows: int, row_bytes: int) -> Tensor:
    """Return the rows, uint8 (rows, row_bytes), of a table in the bit-sliced layout."""
    out, width, at = [], -(-row_bytes // 8), 0
    for _, groups in _blocks(rows):
        sizes = [64 * groups * min(_TILE, width - tile) for tile in range(0, width, _TILE)]
        tiles = [part.view(groups, -1, 64) for part in sliced[at : at + sum(sizes)].split(sizes)]
        bits = (torch.cat(tiles, 1)[:, None] >> torch.arange(8, dtype=torch.uint8)[:, None, None]) & 1
        octets = (bits.view(8 * groups, 8 * width, 8) << torch.arange(8, dtype=torch.uint8)).sum(2, dtype=torch.uint8)
        out.append(octets)
        at += sum(sizes)
    return torch.cat(out)[:rows, :row_bytes].contiguous()


def select(bits: Tensor, data: Tensor, width: int) -> Tensor:
    """Combine, for each query, the rows that its bits select: by XOR if `width` is 0, else by sums of words of `width`
    bits.

    bits: uint8 (B, n), packed, n >= ceil(rows / 8). data: the rows, uint8 (rows, row_bytes). Returns uint8 (B,
    row_bytes).
    """
    total = torch.zeros((len(bits), data.shape[1] * 8 // (width or 1)), dtype=torch.int64)
    for start in range(0, len(data), _PIECE):
        part = data[start : start + _PIECE]
        chosen = _unpack(bits[:, start // 8 : (start + len(part) + 7) // 8])[:, : len(part)]
        if width:
            total += chosen.long() @ part.contiguous().view(WIDTHS[width]).long()  # wraps mod 2^64
        else:
            total ^= (chosen.float() @ _unpack(part).float()).long()  # only the lowest bit is used
    if width:
        return total.to(WIDTHS[width]).view(torch.uint8)
    return ((total & 1).view(len(bits), -1, 8) << torch.arange(8)).sum(2).to(torch.uint8)


def _unpack(data: Tensor) -> Tensor:
    return ((data[:, :, None] >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(1)


def zeros(size: int) -> Tensor:
    """Allocate `size` bytes of zeros, uint8 (size,), at an address that is a multiple of 64.

    From 4 MiB on they are on large pages if the system has any, which halves the number of cache misses. Raises
    EnvironmentProblem if memory is short.
    """
    try:
        if size < _HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.zeros(size, dtype=torch.uint8)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except (OSError, ValueError, RuntimeError, OverflowError) as error:
        message = f"no memory for a table of {size} bytes: {error}"
        raise EnvironmentProblem(message, where="kernels.rows.Table", hint="share it among more servers") from None
    return torch.from_numpy(np.frombuffer(memory, dtype=np.uint8))
