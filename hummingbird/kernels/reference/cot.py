"""Correlated oblivious transfers in plain torch: the definition (kernels/cot.py has the equations)."""

from __future__ import annotations

from functools import reduce

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from hummingbird.kernels import cot
from hummingbird.kernels.cot import BLOCK, LEAVES, TILE, TREES
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
    inputs, common = (keys if delta is None else keys ^ delta).contiguous(), _number(key)
    out = torch.empty_like(inputs)
    for at in range(0, len(keys), TILE):
        one = (common ^ ((first + at) // TILE << 8 | block)).to_bytes(16, "little")
        encryptor = Cipher(algorithms.AES(one), modes.ECB()).encryptor()
        hidden = bytearray(encryptor.update(inputs[at : at + TILE].numpy().tobytes()))
        out[at : at + TILE] = torch.frombuffer(hidden, dtype=torch.int64).view(-1, 2)
    return (out ^ inputs).T.contiguous()


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
