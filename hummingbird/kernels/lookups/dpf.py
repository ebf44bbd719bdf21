"""Distributed point functions: keys for two servers, and the selection bits that each server computes from its key.

A pair of keys hides an index alpha below `rows`. Party b expands its key to bits t_b[i], one for each row, with
t_0 ^ t_1 = 1 at alpha and 0 elsewhere (Boyle, Gilboa and Ishai, "Function secret sharing: improvements and extensions",
CCS 2016, with early termination: a leaf of the tree is 1024 rows). A node of the tree is 16 bytes: its lowest bit is
the control bit t, the rest, with that bit 0, is the seed s. With H of reference/lookups/prf.py, and the level's
correction c (16 bytes, lowest bit 0) and two bits c_L, c_R,

    left child = H(0, s) ^ t (c | c_L)      right child = H(1, s) ^ t (c | c_R)      leaf = H(2..9, s) ^ t c_final.

Off the path to alpha the parties' nodes are equal; on it they are independent, with different control bits. To that
end c is the XOR of the parties' children off the path, c_L and c_R set the control bits, and c_final is
leaf_0 ^ leaf_1 ^ 2^(alpha mod 1024). The path is the leaf number alpha >> 10, highest bit first, so that neighbouring
rows lie in one subtree. Bit i mod 1024 of leaf i >> 10 belongs to row i; bits are packed lowest first.

Format of a key: "DPF", version 1, PRF, party, 2 zeros, rows (8 bytes, little-endian), the PRF's public key (16), the
root (16), for each level c and a byte c_L + 2 c_R, and c_final (128 bytes). Its size depends on `rows` only
(`key_bytes`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.registry import best

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
    """Return the number of levels of a key's tree above the leaves, for a table of this many rows."""
    return (leaves_of(rows) - 1).bit_length()


def check(keys: Tensor, where: str, rows: int | None = None, party: int | None = None) -> int:
    """Check a batch of keys, and return the number of rows of their table; InputError for an invalid batch.

    keys: uint8 (B, key_bytes), B >= 1, on the CPU, all for one table. rows, party: the expected ones; None: any. A key
    that passes is safe to expand; whoever made it can still have it select any rows.
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

    keys: uint8 (B, key_bytes), as `check` accepts them; PRFs and parties may be mixed. Bits beyond the table's last row
        are random and the same at both parties. InputError for bad keys and for leaves outside the table, which has
        ceil(rows / 1024). One thread.

        expand(keys, 0, leaves_of(rows))
    """
    rows = check(keys, "kernels.dpf.expand(keys)")
    if not (0 <= first <= first + leaves <= leaves_of(rows)):
        message = f"expected leaves from 0 to {leaves_of(rows)}, got {first} to {first + leaves}"
        raise InputError(message, where="kernels.dpf.expand(first, leaves)", hint="a leaf is 1024 rows")
    keys = keys.contiguous()
    return best(expand, keys)(keys, first, leaves)


def fields(keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Split checked keys into the parts that an expansion reads, all uint8.

    Returns the roots (B, 16), the public keys of the PRF (B, 16), the corrections of both children at each level (B,
    depth, 32), and the corrections of leaves (B, 128).
    """
    levels = keys[:, HEAD:-LEAF_BYTES].reshape(len(keys), -1, LEVEL)
    both = levels[..., :BLOCK].repeat(1, 1, 2)
    both[..., 0] |= levels[..., BLOCK] & 1
    both[..., BLOCK] |= levels[..., BLOCK] >> 1
    return keys[:, ROOT:HEAD], keys[:, PUBLIC:ROOT], both, keys[:, -LEAF_BYTES:]


def generate(alphas: Tensor, rows: int, prf: str, draw: Callable[[int], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Generate a pair of keys, for parties 0 and 1, that hides each index alpha: uint8 (B, key_bytes) each.

    The third result is t_0[alpha] - t_1[alpha], the difference of the parties' bits there: int64 (B,), 1 or -1.
    alphas: int64 (B,) on the CPU, 0 <= alpha < rows. prf: "aes" or "chacha12". draw: n -> n uniform, secret bytes,
    uint8 (n,); it is called once, after all checks. No branch and no memory address depends on an alpha. InputError for
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
    """Return the first 16 bytes of party 0's key, as the format has them (module head).

    prf: the number of the PRF in `PRFS`.
    """
    return MAGIC + bytes([VERSION, prf, 0, 0, 0]) + rows.to_bytes(8, "little")
