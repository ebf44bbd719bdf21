"""Correlated oblivious transfers in plain torch: the definition (kernels/cot.py has the equations)."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from hummingbird.kernels import cot
from hummingbird.kernels.cot import BLOCK, FIELD, LEAVES, READS, TILE, TREES, depth_of
from hummingbird.kernels.registry import implements
from hummingbird.kernels.shares.packing import from_bits


@implements(cot.receive, "reference")
def receive(leaves: Tensor, block: int, blocks: int) -> tuple[Tensor, Tensor]:
    """Implement `kernels.cot.receive` in plain torch: compute the receiver's part of oblivious transfers."""
    streams = _streams(leaves, block, blocks)
    return _sum([streams[:, x] for x in range(LEAVES)]), _rows(_columns(streams))


@implements(cot.send, "reference")
def send(leaves: Tensor, delta: Tensor, block: int, corrections: Tensor) -> Tensor:
    """Implement `kernels.cot.send` in plain torch: compute the sender's keys of oblivious transfers."""
    columns = _columns(_streams(leaves, block, corrections.shape[1] // 16))
    bits = (delta[:, None] >> torch.arange(64) & 1).to(torch.uint8).view(TREES, 4, 1)
    return _rows(columns ^ (corrections[:, None] & -bits))


@implements(cot.choose, "reference")
def choose(labels: Tensor, bits: Tensor, delta: Tensor) -> Tensor:
    """Implement `kernels.cot.choose` in plain torch: choose the labels that stand for bits."""
    return labels ^ (-from_bits(bits, len(labels))[:, None] & delta)


@implements(cot.pads, "reference")
def pads(keys: Tensor, key: Tensor, first: int, block: int, delta: Tensor | None = None) -> Tensor:
    """Implement `kernels.cot.pads` with an AES of OpenSSL: compute one block of the pads of random transfers."""
    if delta is not None:
        return torch.cat([pads(each, key, first, block) for each in (keys, keys ^ delta)])
    inputs, common = keys.contiguous(), _number(key)
    out = torch.empty_like(inputs)
    for at in range(0, len(keys), TILE):
        one = (common ^ ((first + at) // TILE << 20 | block)).to_bytes(16, "little")
        encryptor = Cipher(algorithms.AES(one), modes.ECB()).encryptor()
        hidden = bytearray(encryptor.update(inputs[at : at + TILE].numpy().tobytes()))
        out[at : at + TILE] = torch.frombuffer(hidden, dtype=torch.int64).view(-1, 2)
    return (out ^ inputs).T.contiguous()


@implements(cot.tree_sums, "reference")
def tree_sums(roots: Tensor, delta: Tensor, keys: Tensor, first: int, depth: int) -> Tensor:
    """Implement `kernels.cot.tree_sums` with an AES of OpenSSL: compute the sums of the levels of a sender's trees."""
    sums = [_grown(root, delta, _hash(keys[0], first + tree), depth)[1] for tree, root in enumerate(roots)]
    return torch.stack([torch.stack(each) for each in sums])


@implements(cot.send_silent, "reference")
def send_silent(
    roots: Tensor, delta: Tensor, table: Tensor, keys: Tensor, first: int, output: int, out: Tensor
) -> None:
    """Implement `kernels.cot.send_silent` with an AES of OpenSSL: compute a sender's keys from its trees."""
    depth = depth_of(roots, out)
    for tree, (root, leaves) in enumerate(zip(roots, out.view(len(roots), -1, 2), strict=True)):
        leaves.copy_(_grown(root, delta, _hash(keys[0], first + tree), depth)[0] & _CLEARED)
    encode(table, keys[1], output, out)


@implements(cot.receive_silent, "reference")
def receive_silent(
    paths: Tensor, others: Tensor, table: Tensor, keys: Tensor, first: int, output: int, out: Tensor
) -> None:
    """Implement `kernels.cot.receive_silent` with an AES of OpenSSL: compute a receiver's keys from its trees."""
    for tree, (path, leaves) in enumerate(zip(paths.tolist(), out.view(len(paths), -1, 2), strict=True)):
        hashed, nodes = _hash(keys[0], first + tree), torch.zeros(1, 2, dtype=torch.int64)
        for level, other in enumerate(others[tree]):  # the node on the path is unknown, and stays 0
            on, side = path & (1 << level) - 1, 1 - (path >> level & 1)
            left = hashed(nodes)
            nodes = torch.cat([left, left ^ nodes])
            nodes[[on, on + (1 << level)]] = 0
            nodes[on + (side << level)] = other ^ _xor(nodes.view(2, -1, 2)[side])
        nodes &= _CLEARED
        nodes[path] = _xor(nodes) | ~_CLEARED
        leaves.copy_(nodes)
    encode(table, keys[1], output, out)


def encode(table: Tensor, key: Tensor, output: int, out: Tensor) -> None:
    """Add the sum of ten blocks of the table to each output. output: the number of the first output."""
    counters = torch.stack([2 * output + torch.arange(2 * len(out)), torch.zeros(2 * len(out), dtype=torch.int64)], 1)
    words = _aes(_number(key), counters).view(-1, 4) ^ counters.view(-1, 4)
    for j in range(READS):
        out ^= table[words[:, j // 3] >> FIELD * (j % 3) & len(table) - 1]


_CLEARED = torch.tensor([-2, -1])  # all bits but the lowest


def _grown(root: Tensor, delta: Tensor, hashed: Callable[[Tensor], Tensor], depth: int) -> tuple[Tensor, list[Tensor]]:
    """Grow a sender's tree; return its leaves, int64 (2^depth, 2), and for each level the sum of its left nodes."""
    nodes, sums = torch.stack([root, root ^ delta]), [root]
    for _ in range(depth - 1):
        left = hashed(nodes)
        sums.append(_xor(left))
        nodes = torch.cat([left, left ^ nodes])
    return nodes, sums


def _hash(key: Tensor, number: int) -> Callable[[Tensor], Tensor]:
    """Return the hash of the tree with this number, of nodes, int64 (n, 2)."""

    def hashed(nodes: Tensor) -> Tensor:
        turned = torch.stack([nodes[:, 1], nodes[:, 0] ^ nodes[:, 1]], 1)
        return _aes(_number(key) ^ number, turned) ^ turned

    return hashed


def _aes(key: int, blocks: Tensor) -> Tensor:
    """Encrypt blocks, int64 (n, 2), by AES-128."""
    encryptor = Cipher(algorithms.AES(key.to_bytes(16, "little")), modes.ECB()).encryptor()
    hidden = bytearray(encryptor.update(blocks.contiguous().numpy().tobytes()))
    return torch.frombuffer(hidden, dtype=torch.int64).view(-1, 2)


def _xor(blocks: Tensor) -> Tensor:
    """Return the xor of blocks, int64 (n, 2)."""
    return torch.from_numpy(np.bitwise_xor.reduce(blocks.numpy(), 0))


def _number(key: Tensor) -> int:
    return int.from_bytes(key.numpy().tobytes(), "little")


def _streams(leaves: Tensor, block: int, blocks: int) -> Tensor:
    """Compute a part of the AES key stream of every leaf, `blocks` blocks from number `block` on: uint8 (32, 16, 16
    blocks).

    leaves: the keys, uint8 (32, 16, 16): trees, leaves, bytes.
    """
    counters = torch.stack([torch.arange(block, block + blocks), torch.zeros(blocks, dtype=torch.int64)], 1)
    data, out = counters.numpy().tobytes(), torch.empty((TREES * LEAVES, 16 * blocks), dtype=torch.uint8)
    for key, stream in zip(leaves.reshape(-1, 16).numpy(), out.numpy(), strict=True):
        stream.data[:] = Cipher(algorithms.AES(key.tobytes()), modes.ECB()).encryptor().update(data)
    return out.view(TREES, LEAVES, -1)


def _columns(streams: Tensor) -> Tensor:
    """Compute, for each bit b of a leaf's number, the XOR of the key streams of all leaves in whose number bit b is 1.

    streams: from `_streams`. Returns uint8 (32, 4, 16 blocks): trees, bits b, bytes of a stream.
    """
    return torch.stack([_sum([streams[:, x] for x in range(LEAVES) if x >> b & 1]) for b in range(4)], 1)


def _sum(parts: list[Tensor]) -> Tensor:
    return reduce(torch.bitwise_xor, parts)


def _rows(columns: Tensor) -> Tensor:
    """Transpose a matrix of bits: row i of the result has bit i of every column; int64 (128 blocks, 2).

    columns: uint8 (32, 4, 16 blocks), 128 columns of packed bits.
    """
    places = torch.arange(8, dtype=torch.uint8)
    bits = (columns.reshape(BLOCK, -1, 1) >> places & 1).view(BLOCK, -1)  # by column, then by transfer
    return (bits.T.reshape(-1, 16, 8) << places).sum(2, dtype=torch.uint8).view(torch.int64)
