"""Oblivious transfers, by SoftSpoken OT or silent: both sides' local work, labels of bits, and pads.

SoftSpoken OT: transfers extended from 32 trees of 16 leaves -----------------------------------------------------------

In transfer i the receiver gets a key T_i for its choice c_i, and the sender, which has delta, gets
Q_i = T_i ^ c_i delta: 128 bits each. SoftSpoken OT (Roy, CRYPTO 2022) for the field of 2^4, semi-honest: the receiver
has the leaves s_jx of tree j, x = 0 .. 15; the sender has all but the one at x = delta_j, the four bits 4 j .. 4 j + 3
of delta. Let r_jx be the bit for transfer i of the stream of s_jx: AES-CTR under that key, where block t, a
little-endian number, serves transfers 128 t to 128 t + 127. With the bit b of x in the sums,

    u_j = sum_x r_jx          bit 4 j + b of T = sum_x x_b r_jx                              the receiver
                              bit 4 j + b of Q = sum_x (x ^ delta_j)_b r_jx + delta_jb m_j   the sender, m_j = u_j ^ c

where the sender's first sum is bit 4 j + b of T, plus delta_jb u_j. So the sender keeps the streams at positions
y = x ^ delta_j: position 0, which it lacks, is then in none of its sums. The keys of a transfer depend on its number
only, not on how transfers are cut into calls.

Bits of delta and of keys are numbered from the lowest bit of the first word, as in labels of garbled circuits.

Silent transfers: trees whose leaves differ in one place, and a code ---------------------------------------------------

The lowest bit of delta is 1, that of Q is 0, and that of T is the choice. A tree has 2^d leaves (half-tree: Guo, Yang,
Wang, Zhang, Xie, Liu and Zhao, EUROCRYPT 2023). Its first two nodes are r and r ^ delta, for a random root r. Node j of
level l, l = 1 .. d - 1, has two children, which are nodes j and j + 2^l of the next level:

    left = H(x)    right = x ^ H(x)    H(x) = AES-128_{S ^ tree}(s(x)) ^ s(x)    s(low, high) = (high, low ^ high)

where `tree` is the tree's number. So the xor of all nodes of a level is delta. The receiver has a path a of d bits, and
for each level l, from 0 on, the sum (xor) of the nodes on the side 1 - bit l of a. From them follow all nodes but those
on its path. The leaves lose their lowest bits. The xor of all other leaves and of 1 is then the leaf at a, ^ delta: the
leaves are the keys of 2^d transfers whose choices are 1 at the place a and 0 elsewhere.

With a table of 2^k other transfers, output i of a code is the sum of leaf i and of ten blocks of the table (Ferret:
Yang, Weng, Lan, Zhang and Wang, CCS 2020). Blocks 2 i and 2 i + 1 of AES-128_S(c) ^ c, c = 0, 1, .., are four words.
Number j of an output is the lowest k bits of word floor(j / 3) >> 21 (j mod 3). The choices of the outputs look random
if learning parity with noise is hard (ot/silent.py).

Pads -------------------------------------------------------------------------------------------------------------------

A random transfer gives the sender two pads that have no relation, and the receiver the one that it chooses. Pads are
hashes of keys. With a public key S, fresh for each delta, transfer i and block b of its pads have

    H(x) = AES-128_{S ^ j}(x) ^ x        j = 2^20 floor(i / 16) + b       x = Q_i or Q_i ^ delta, and the receiver's T_i

T_i ^ delta, which the receiver lacks, hides the other pad: the hash is correlation robust if AES is an ideal cipher and
the T_i of one j are distinct, as random numbers are (Guo, Katz, Wang, Weng and Yu, CRYPTO 2020). One call of an
attacker hits one of the 16 unknown inputs under a key with probability 2^-124.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.checks import check_range, check_tensor
from hummingbird.kernels.registry import best
from hummingbird.kernels.shares.packing import bytes_of

DEEPEST = 13  # levels of a tree of silent transfers
PAD_BLOCKS = 1 << 20  # of the pads of a transfer
READS, FIELD = 10, 21  # of the code: blocks of the table for an output; bits of a word for each, at most 2^FIELD blocks
TILE = 16  # transfers whose pads have one key
TREES, LEAVES, SEED = 32, 16, 16  # SEED: bytes of a leaf
BLOCK = 128  # transfers for each block of a stream
MOST_BLOCKS = 1 << 40  # of a stream: AES is a permutation, which 512 such streams show with probability 2^-40


def receive(leaves: Tensor, block: int, blocks: int) -> tuple[Tensor, Tensor]:
    """Compute the receiver's part of oblivious transfers: its keys, and the sums u_j from which it makes its message.

    leaves: the 16 leaves of each of 32 trees of seeds, uint8 (32, 16, 16), on the CPU. A leaf is the AES key of a
        stream.
    block: number of the first block of 128 transfers. blocks: how many blocks. Returns the sums, uint8 (32, 16 blocks):
    u_j, packed bits, is the XOR of the streams of tree j. Also returns the keys, int64 (128 blocks, 2), one for each
    transfer. The message for choices c is u_j ^ c for each j (module head). InputError for anything else. Constant
    time.

        sums, keys = receive(leaves, 0, 1)
    """
    _check("kernels.cot.receive", leaves, block, blocks)
    return best(receive, leaves)(leaves, block, blocks)


def send(leaves: Tensor, delta: Tensor, block: int, corrections: Tensor) -> Tensor:
    """Compute the sender's keys of oblivious transfers from the receiver's message (module head).

    leaves: of 32 trees of seeds, uint8 (32, 16, 16), on the CPU; leaf x of tree j is at index x ^ delta_j, and index 0
    is not read, because the sender lacks that leaf.
    delta: the sender's secret of 128 bits, int64 (2,), of which delta_j are bits 4 j to 4 j + 3. block: number of the
    first block of 128 transfers.
    corrections: the message, with packed bits for each tree j, uint8 (32, 16 blocks).
    Returns the keys, int64 (128 blocks, 2): the receiver's key, XOR delta where its choice is 1. InputError for
    anything else. Constant time.
    """
    where = "kernels.cot.send"
    blocks = corrections.shape[-1] // SEED if isinstance(corrections, Tensor) and corrections.dim() else 0
    _check(where, leaves, block, blocks)
    check_tensor(f"{where}(delta)", delta, torch.int64, leaves, 2)
    check_tensor(f"{where}(corrections)", corrections, torch.uint8, leaves, SEED * blocks, TREES)
    return best(send, leaves, delta, corrections)(leaves, delta, block, corrections)


def choose(labels: Tensor, bits: Tensor, delta: Tensor) -> Tensor:
    """Choose for each wire the label that stands for its bit: label i is L_i if bit b_i is 0, and L_i ^ delta if it is
    1.

    labels: L, the labels of 0, int64 (n, 2). bits: b, uint8 (ceil(n/8),), packed; spare bits are not read. delta: the
    XOR of a wire's two labels, int64 (2,). Returns int64 (n, 2). InputError for anything else. Constant time.

        choose(torch.zeros(2, 2, dtype=torch.int64), torch.tensor([0b10], dtype=torch.uint8), delta)[1] is delta's value
    """
    where = "kernels.cot.choose"
    n = len(labels) if isinstance(labels, Tensor) and labels.dim() else 0
    check_tensor(f"{where}(labels)", labels, torch.int64, labels, 2, n)
    check_tensor(f"{where}(bits)", bits, torch.uint8, labels, bytes_of(n))
    check_tensor(f"{where}(delta)", delta, torch.int64, labels, 2)
    return best(choose, labels, bits, delta)(labels, bits, delta)


def pads(keys: Tensor, key: Tensor, first: int, block: int, delta: Tensor | None = None) -> Tensor:
    """Compute one block of the pads of random transfers, 128 bits each (module head).

    keys: the transfers' keys, int64 (n, 2). key: S, int64 (2,). first: number of the first transfer, a multiple of 16.
    block: number of the block, below 2^20. delta: the sender's, for both pads of each transfer; None: for those of the
    keys alone.
    Returns int64 (2, n): the low words of all pads, then the high words; with delta int64 (4, n), whose last two rows
    are the pads of keys ^ delta. InputError for anything else. Constant time in keys and delta.

        pads(keys, key, 0, 0, delta)[2:, 5] is the second pad of transfer 5
    """
    where = "kernels.cot.pads"
    n = len(keys) if isinstance(keys, Tensor) and keys.dim() else 0
    check_tensor(f"{where}(keys)", keys, torch.int64, keys, 2, n)
    for name, words in (("key", key), ("delta", keys.new_zeros(2) if delta is None else delta)):
        check_tensor(f"{where}({name})", words, torch.int64, keys, 2)
    check_range(f"{where}(first)", first, 0, BLOCK * MOST_BLOCKS - n)
    check_range(f"{where}(block)", block, 0, PAD_BLOCKS - 1)
    if first % TILE:
        raise InputError(f"number {first} is no multiple of {TILE}", where=f"{where}(first)")
    return best(pads, keys, key)(keys.contiguous(), key, first, block, delta)


def tree_sums(roots: Tensor, delta: Tensor, keys: Tensor, first: int, depth: int) -> Tensor:
    """Compute for each level of a sender's trees the sum (xor) of its left nodes (module head).

    roots: int64 (n, 2), n > 0; secret. delta: int64 (2,), with lowest bit 1. keys: S of the trees, S of the code, int64
    (2, 2). first: number of the first tree. depth: levels, at most 13. Returns int64 (n, depth, 2). InputError for
    anything else. Constant time in roots and delta.
    """
    where = "kernels.cot.tree_sums"
    _check_trees(where, "roots", roots, keys, first)
    check_tensor(f"{where}(delta)", delta, torch.int64, roots, 2)
    check_range(f"{where}(depth)", depth, 1, DEEPEST)
    return best(tree_sums, roots, delta, keys)(roots, delta, keys, first, depth)


def send_silent(
    roots: Tensor, delta: Tensor, table: Tensor, keys: Tensor, first: int, output: int, out: Tensor
) -> None:
    """Compute a sender's keys of silent transfers: the leaves of trees, and the code's sums (module head).

    roots, delta, keys, first: as for `tree_sums`. table: int64 (2^k, 2), at most 2^21 blocks. output: number of the
    first transfer. out: gets the keys, int64 (n 2^d, 2) for trees of d levels. InputError for anything else. Constant
    time in roots, delta and table.
    """
    where = "kernels.cot.send_silent"
    _check_trees(where, "roots", roots, keys, first)
    check_tensor(f"{where}(delta)", delta, torch.int64, roots, 2)
    _check_outputs(where, len(roots), table, output, out)
    best(send_silent, roots, delta, table, keys, out)(roots, delta, table, keys, first, output, out)


def receive_silent(
    paths: Tensor, others: Tensor, table: Tensor, keys: Tensor, first: int, output: int, out: Tensor
) -> None:
    """Compute a receiver's keys of silent transfers, with the choices in their lowest bits (module head).

    paths: of the trees, int64 (n,), at least 0 and below 2^d; secret. others: for each level l the sum of the nodes on
    the side 1 - bit l of the path, int64 (n, d, 2). Others: as for `send_silent`. InputError for other sizes. Constant
    time in paths, others and table.
    """
    where = "kernels.cot.receive_silent"
    if not isinstance(others, Tensor) or others.dim() != 3:
        raise InputError("expected a tensor (n, d, 2)", where=f"{where}(others)")
    _check_trees(where, "others", others.flatten(0, 1), keys, first)
    check_tensor(f"{where}(paths)", paths, torch.int64, others, len(others))
    depth = _check_outputs(where, len(others), table, output, out)
    if others.shape[1] != depth:
        raise InputError(f"sums of {others.shape[1]} levels for {depth}", where=f"{where}(others)")
    best(receive_silent, paths, others, table, keys, out)(paths, others, table, keys, first, output, out)


def depth_of(trees: Tensor, outputs: Tensor) -> int:
    """Return how many levels trees have. trees: an element for each tree. outputs: one for each leaf of all trees."""
    return (len(outputs) // len(trees)).bit_length() - 1


def _check_trees(where: str, name: str, blocks: Tensor, keys: Tensor, first: int) -> None:
    n = len(blocks) if isinstance(blocks, Tensor) and blocks.dim() else 0
    check_tensor(f"{where}({name})", blocks, torch.int64, blocks, 2, max(1, n))
    check_tensor(f"{where}(keys)", keys, torch.int64, blocks, 2, 2)
    check_range(f"{where}(first)", first, 0, BLOCK * MOST_BLOCKS - n)


def _check_outputs(where: str, trees: int, table: Tensor, output: int, out: Tensor) -> int:
    """Check the table and the outputs; return the number of levels of a tree. trees: the number of trees."""
    k, n = (len(x) if isinstance(x, Tensor) and x.dim() else 0 for x in (table, out))
    check_tensor(f"{where}(table)", table, torch.int64, table, 2, k)
    if k & k - 1 or not 0 < k <= 1 << FIELD:
        raise InputError(f"{k} blocks are no power of two up to 2^{FIELD}", where=f"{where}(table)")
    depth = (n // trees).bit_length() - 1
    check_range(f"{where}(out), depth", depth, 1, DEEPEST)
    check_tensor(f"{where}(out)", out, torch.int64, table, 2, trees << depth)
    check_range(f"{where}(output)", output, 0, BLOCK * MOST_BLOCKS - n)
    return depth


def _check(where: str, leaves: Tensor, block: int, blocks: int) -> None:
    kind = isinstance(leaves, Tensor) and (leaves.dtype, tuple(leaves.shape), leaves.device.type)
    if kind != (torch.uint8, (TREES, LEAVES, SEED), "cpu"):
        raise InputError(f"expected uint8 {(TREES, LEAVES, SEED)} on the CPU, got {kind}", where=f"{where}(leaves)")
    check_range(f"{where}(block)", block, 0, MOST_BLOCKS)
    check_range(f"{where}(blocks)", blocks, 0, MOST_BLOCKS - block)
