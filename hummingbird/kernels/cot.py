"""Oblivious transfers, extended from 32 trees of 16 leaves: both sides' local work, labels of bits, and pads.

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

A random transfer gives the sender two pads that have no relation, and the receiver the one that it chooses. Pads are
hashes of keys. With a public key S, fresh for each delta, transfer i and block b of its pads have

    H(x) = AES-128_{S ^ j}(x) ^ x        j = 256 floor(i / 16) + b        x = Q_i or Q_i ^ delta, and the receiver's T_i

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
    block: number of the block, 0 to 255. delta: XORed to each key before; None: nothing is.
    Returns int64 (2, n): the low words of all pads, then the high words. InputError for anything else. Constant time in
    keys and delta.

        pads(keys, key, 0, 0, delta)[:, 5] is the second pad of transfer 5
    """
    where = "kernels.cot.pads"
    n = len(keys) if isinstance(keys, Tensor) and keys.dim() else 0
    check_tensor(f"{where}(keys)", keys, torch.int64, keys, 2, n)
    for name, words in (("key", key), ("delta", keys.new_zeros(2) if delta is None else delta)):
        check_tensor(f"{where}({name})", words, torch.int64, keys, 2)
    check_range(f"{where}(first)", first, 0, BLOCK * MOST_BLOCKS - n)
    check_range(f"{where}(block)", block, 0, 255)
    if first % TILE:
        raise InputError(f"number {first} is no multiple of {TILE}", where=f"{where}(first)")
    return best(pads, keys, key)(keys.contiguous(), key, first, block, delta)


def _check(where: str, leaves: Tensor, block: int, blocks: int) -> None:
    kind = isinstance(leaves, Tensor) and (leaves.dtype, tuple(leaves.shape), leaves.device.type)
    if kind != (torch.uint8, (TREES, LEAVES, SEED), "cpu"):
        raise InputError(f"expected uint8 {(TREES, LEAVES, SEED)} on the CPU, got {kind}", where=f"{where}(leaves)")
    check_range(f"{where}(block)", block, 0, MOST_BLOCKS)
    check_range(f"{where}(blocks)", blocks, 0, MOST_BLOCKS - block)
