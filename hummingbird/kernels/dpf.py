"""Distributed point functions: keys for two servers, and the selection bits that each server makes of its key.

A pair of keys hides an index alpha below `rows`. Party b turns its key into bits t_b[i], one for each row, with
t_0 ^ t_1 = 1 at alpha and 0 elsewhere (Boyle, Gilboa and Ishai, "Function secret sharing: improvements and
extensions", CCS 2016, with early termination: a leaf of the tree is 1024 rows). A node of the tree is 16 bytes: its
lowest bit is the control bit t, the rest, with that bit 0, the seed s. For the H of prf.py and the level's correction
c (16 bytes, lowest bit 0) and two bits c_L, c_R,

    left child = H(0, s) ^ t (c | c_L)      right child = H(1, s) ^ t (c | c_R)      leaf = H(2..9, s) ^ t c_final.

Off the path to alpha the parties' nodes are equal, on it they are independent with different control bits: c is the sum
of the parties' children off the path, c_L and c_R make the control bits so, c_final is leaf_0 ^ leaf_1 ^ 2^(alpha mod
1024). The path is read from the leaf number alpha >> 10, highest bit first, so that rows next to each other lie in one
subtree. Bit i mod 1024 of leaf i >> 10 is row i's; bits are packed lowest first.

A key: "DPF", version 1, PRF, party, 2 zeros, rows (8 bytes, little-endian), the PRF's public key (16), the root (16),
for each level c and a byte c_L + 2 c_R, and c_final (128 bytes). Its size depends on the rows alone (`key_bytes`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.cpu import library
from hummingbird.kernels.prf import BLOCK, CHACHA12, LEAF_BYTES, PRFS, children, leaf

MAGIC, VERSION = b"DPF", 1
_MAGIC = int.from_bytes(MAGIC, "little")
LEAF_ROWS = 8 * LEAF_BYTES
MOST_ROWS = 1 << 40
_LEVEL = BLOCK + 1
NUMBER = 4  # where the PRF's number is
_PARTY, _ROWS, _PUBLIC, _ROOT, _HEAD = 5, 8, 16, 32, 48  # where the other fields begin
_RANDOM = 3 * BLOCK  # random bytes for a pair: two roots, the public key


def key_bytes(rows: int) -> int:
    """The size of a key for a table of so many rows: 346 bytes for 2^20."""
    return _HEAD + depth(rows) * _LEVEL + LEAF_BYTES


def leaves_of(rows: int) -> int:
    """The number of leaves, of 1024 rows each."""
    return -(-rows // LEAF_ROWS)


def depth(rows: int) -> int:
    """Levels of the tree above the leaves."""
    return (leaves_of(rows) - 1).bit_length()


def check(keys: Tensor, where: str, rows: int | None = None, party: int | None = None) -> int:
    """The number of rows that a batch of keys is for; InputError for anything that is not one whole, valid batch.

    keys: uint8 (B, key_bytes), B >= 1, on the CPU, all for one table. rows, party: what they must be for, where given.
    A key that passes is safe to expand; whoever made it can still make it select rows at will.
    """
    if not isinstance(keys, Tensor) or keys.dtype != torch.uint8 or keys.dim() != 2 or keys.device.type != "cpu":
        got = f"{keys.dtype} {tuple(keys.shape)} on {keys.device}" if isinstance(keys, Tensor) else type(keys).__name__
        raise InputError(f"expected keys uint8 (B, key_bytes) on the CPU, got {got}", where=where)
    batch, size = keys.shape
    if not batch or size < key_bytes(1):
        message = f"expected at least one key of {key_bytes(1)} bytes or more, got {batch} of {size}"
        raise InputError(message, where=where)
    keys = keys.contiguous()
    data = keys.numpy()
    named = int.from_bytes(data[0, _ROWS : _ROWS + 8].tobytes(), "little") if rows is None else rows
    if library.available() and 1 <= named <= MOST_ROWS:
        whose = -1 if party is None else party
        if library.handle().hb_dpf_check(keys.data_ptr(), batch, size, named, whose):
            return named

    def refuse(wrong: Any, what: str, hint: str = "") -> None:
        if wrong.any():
            raise InputError(f"key {int(wrong.argmax())} of the batch {what}", where=where, hint=hint)

    words = data[:, :_PUBLIC].view("<u8")
    head, counts, number, role = words[:, 0], words[:, 1], data[:, NUMBER], data[:, _PARTY]
    refuse(head & 0xFFFFFF != _MAGIC, "does not begin as a key does", "was it made by pir.dpf.generate?")
    refuse(data[:, 3] != VERSION, f"is not of version {VERSION}", "use one version at the client and at the servers")
    refuse((number == 0) | (number > len(PRFS)), f"names an unknown PRF, not one of {', '.join(PRFS)}")
    refuse(head >> 41 != 0, "names a party that is neither 0 nor 1")
    if party is not None:
        refuse(role != party, f"is not for party {party}", "the first keys go to party 0, the second to party 1")
    refuse(counts - 1 >= MOST_ROWS, f"is for a table of no or more than {MOST_ROWS} rows")  # 0 - 1 wraps
    count = int(counts[0])
    refuse(counts != count, f"is for a table of another size than key 0, which has {count} rows", "batch them apart")
    if rows is not None and count != rows:
        hint = "ask the server for its table's shape before making keys"
        raise InputError(f"the keys are for a table of {count} rows, this one has {rows}", where=where, hint=hint)
    if size != key_bytes(count):
        hint = f"a key for {count} rows has {key_bytes(count)} bytes"
        raise InputError(f"the keys are cut short or too long: {size} bytes", where=where, hint=hint)
    # So that a key has one encoding only; what is random in it cannot be checked.
    damaged = "is damaged or was not made by pir.dpf.generate"
    refuse(data[:, _ROOT] & 1 != role, f"{damaged}: its root does not fit its party")
    spare = (data[:, _HEAD:-LEAF_BYTES:_LEVEL] & 1) | (data[:, _HEAD + BLOCK : -LEAF_BYTES : _LEVEL] & 0xFC)
    refuse(spare.any(1), f"{damaged}: spare bits are set")
    refuse((number == CHACHA12) & (data[:, _ROOT - 4 : _ROOT].any(1)), f"{damaged}: its nonce is too long")
    return count


def expand(keys: Tensor, first: int, leaves: int) -> Tensor:
    """The selection bits of leaves first .. first + leaves - 1: uint8 (B, 128 * leaves), packed.

    keys: uint8 (B, key_bytes), see `check`; PRFs and parties may be mixed. The bits at and above `rows` are random and
    the same at both parties. InputError for bad keys and for leaves outside the table, of which there are ceil(rows /
    1024). One thread.

        expand(keys, 0, leaves_of(rows))
    """
    rows = check(keys, "kernels.dpf.expand(keys)")
    if not (0 <= first <= first + leaves <= leaves_of(rows)):
        message = f"expected leaves from 0 to {leaves_of(rows)}, got {first} to {first + leaves}"
        raise InputError(message, where="kernels.dpf.expand(first, leaves)", hint="a leaf is 1024 rows")
    if not library.available():
        return reference_expand(keys, first, leaves)
    keys = keys.contiguous()
    out = torch.empty((len(keys), leaves * LEAF_BYTES), dtype=torch.uint8)
    library.handle().hb_dpf_expand(keys.data_ptr(), *keys.shape, first, leaves, out.data_ptr())
    return out


def reference_expand(keys: Tensor, first: int, leaves: int) -> Tensor:
    """`expand` in plain torch, level by level; arguments are not checked here."""
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


def fields(keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The parts of checked keys that an expansion needs: the roots, uint8 (B, 16), the PRFs' public keys (B, 16), what
    each level adds to both children, (B, depth, 32), and what a leaf gets, (B, 128).
    """
    levels = keys[:, _HEAD:-LEAF_BYTES].reshape(len(keys), -1, _LEVEL)
    both = levels[..., :BLOCK].repeat(1, 1, 2)
    both[..., 0] |= levels[..., BLOCK] & 1
    both[..., BLOCK] |= levels[..., BLOCK] >> 1
    return keys[:, _ROOT:_HEAD], keys[:, _PUBLIC:_ROOT], both, keys[:, -LEAF_BYTES:]


def _seeds(nodes: Tensor) -> Tensor:
    seeds = nodes.clone()
    seeds[..., 0] &= 0xFE
    return seeds


def _masks(nodes: Tensor) -> Tensor:
    """255 where the control bit is set, else 0: uint8 (..., 1)."""
    return (nodes[..., :1] & 1) * 255


def generate(alphas: Tensor, rows: int, prf: str, draw: Callable[[int], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Keys of party 0 and of party 1, uint8 (B, key_bytes) each, and s = t_0[alpha] - t_1[alpha], int64 (B,) of +-1.

    alphas: int64 (B,) on the CPU, 0 <= alpha < rows. prf: "aes" or "chacha12". draw: gives so many uniform, secret
    bytes, uint8 (n,); it is asked once, after all checks. Nothing branches on an alpha or looks memory up at one.
    InputError for anything else, with no alpha in its message.
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
    if not library.available():
        return reference_generate(alphas, rows, PRFS[prf], random)
    alphas = alphas.contiguous()
    keys = [torch.empty((len(alphas), key_bytes(rows)), dtype=torch.uint8) for _ in range(2)]
    signs, head = torch.empty_like(alphas), _head(rows, PRFS[prf])
    library.handle().hb_dpf_generate(
        alphas.data_ptr(), len(alphas), head, random.data_ptr(), *(t.data_ptr() for t in (*keys, signs))
    )
    return keys[0], keys[1], signs


def _head(rows: int, prf: int) -> bytes:
    """The first 16 bytes of party 0's key."""
    return MAGIC + bytes([VERSION, prf, 0, 0, 0]) + rows.to_bytes(8, "little")


def reference_generate(alphas: Tensor, rows: int, prf: int, random: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`generate` in plain torch, from these random bytes, uint8 (B, 48); other arguments are not checked here."""
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
    head = torch.frombuffer(bytearray(_head(rows, prf)), dtype=torch.uint8)
    first, second = (
        torch.cat([head.expand(batch, -1), public, roots[:, party], *corrections, final], dim=1) for party in range(2)
    )
    second[:, _PARTY] = 1
    return first, second, 2 * at_alpha.long() - 1


def _pick(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return no ^ ((no ^ yes) & mask)
