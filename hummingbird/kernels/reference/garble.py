"""Garbled circuits in plain torch, tile after tile; kernels/garble.py has the equations and the format."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from hummingbird.cost import LABEL_BYTES, TILE
from hummingbird.kernels import garble as kernels
from hummingbird.kernels.garble import ROWS, Circuit, tiles
from hummingbird.kernels.reference.shares import low_bits, pack_words, unpack_words
from hummingbird.kernels.registry import implements


def sigma(x: Tensor) -> Tensor:
    """Compute sigma(x), a permutation of blocks that the hash needs: the halves (l|r) become (l ^ r|l).

    x: int64 (..., 2), the low word r first. The result has the same form.
    """
    return torch.stack([x[..., 1], x[..., 0] ^ x[..., 1]], dim=-1)


class Hash:
    """The hash H of one tile of garbled circuits, as a callable object: (number of the hash, labels) -> blocks.

    key: 16 public bytes. tile: the tile's number. Labels and blocks are int64 (..., 2) of one shape.
    """

    def __init__(self, key: bytes, tile: int) -> None:
        self._key, self._tile = int.from_bytes(key, "little"), tile

    def __call__(self, number: int, x: Tensor) -> Tensor:
        y = sigma(x).contiguous()
        key = (self._key ^ (self._tile << 8 | number)).to_bytes(16, "little")
        encrypted = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(y.numpy().tobytes())
        return torch.frombuffer(bytearray(encrypted), dtype=torch.int64).view_as(y) ^ y


def colour(x: Tensor) -> Tensor:
    """Return the colour of labels, their lowest bit: int64 (..., 2) to (..., 1)."""
    return x[..., :1] & 1


def _weights(circuit: Circuit) -> list[int]:
    """List, for each bit x_i of the sum of both shares, the number that it adds to the result if it is 1.

    It is 2^i; for "lift" the last bit, which is the sign, adds a negative number. For "relu" the sign adds nothing, and
    is left out of the list.
    """
    if circuit.kind == "relu":
        return [1 << i for i in range(circuit.width - 1)]
    return [*(1 << i for i in range(circuit.width - 1)), -1 << (circuit.width - 1)]


def _garble(
    circuit: Circuit, hash_of: Hash, delta: Tensor, labels: Tensor, own: Tensor, first: Tensor | None
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Garble one tile of m instances of a circuit: returns the gates' blocks, the rows' words, and the results'
    offsets.

    Rows convert labels of bits to numbers (kernels/garble.py). hash_of: the tile's hash. delta: the XOR of a wire's two
    labels. labels, own: int64 (m, w, 2), the labels of 0 of the evaluator's bits, and of the garbler's. first: bit 0 of
    the garbler's shares, int64 (m, 1); None for the garbler "model", which does not know it. The offsets are int64
    (m,).
    """
    blocks, wires, carry = [], [], torch.zeros_like(labels[:, 0])
    for i in range(circuit.width):
        a, b = labels[:, i] ^ carry, own[:, i] ^ carry
        wires.append(a ^ own[:, i])
        if i == circuit.width - 1:
            break
        bit = first if i == 0 else None  # known to the garbler
        hashed = hash_of(2 * i, a)
        t = hashed ^ hash_of(2 * i, a ^ delta) ^ (colour(b) if bit is None else bit) * delta
        blocks.append(t)
        carry = carry ^ hashed ^ colour(a) * t
        if bit is None:
            hashed = hash_of(2 * i + 1, b)
            u = hashed ^ hash_of(2 * i + 1, b ^ delta) ^ a
            blocks.append(u)
            carry = carry ^ hashed ^ colour(b) * (u ^ a)
    return blocks, *_rows(circuit, hash_of, delta, wires)


def _rows(circuit: Circuit, hash_of: Hash, delta: Tensor, wires: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Compute the words of the rows, which convert labels of bits to numbers, and the results' offsets
    (kernels/garble.py).

    hash_of: the tile's hash. delta: the XOR of a wire's two labels. wires: for each bit x_i of the sum of both shares
    its labels of 0, int64 (m, 2). Returns a list of words, int64 (m,) each, and the offsets, int64 (m,).
    """
    words, offset, positive = [], torch.zeros(len(wires[0]), dtype=torch.int64), wires[-1] ^ delta
    for i, weight in enumerate(_weights(circuit)):
        rows = []
        for v, u in [(0, 0), (0, 1), (1, 0), (1, 1)] if circuit.kind == "relu" else [(0, 0), (0, 1)]:
            x, b = u ^ colour(wires[i]), v ^ colour(positive)  # the bits whose labels have these colours
            value, block = weight * x, wires[i] ^ x * delta
            if circuit.kind == "relu":
                value, block = value * b, block ^ sigma(positive ^ b * delta)
            rows.append((value - hash_of(ROWS + i, block)[:, :1])[:, 0])
        words += [row - rows[0] for row in rows[1:]]
        offset -= rows[0]
    return words, offset & low_bits(circuit.ring)


def _evaluate(
    circuit: Circuit, hash_of: Hash, labels: Tensor, own: Tensor, blocks: Iterator[Tensor], words: Tensor
) -> Tensor:
    """Evaluate one tile of m instances of a circuit, and return the results: int64 (m,).

    hash_of: the tile's hash. labels, own: int64 (m, w, 2), a label of each bit of the evaluator's and the garbler's
    share. blocks: the gates' blocks, int64 (m, 2) each. words: the rows' words, int64 (circuit.words, m).
    """
    carry, wires = torch.zeros_like(labels[:, 0]), []
    for i in range(circuit.width):
        a, b = labels[:, i] ^ carry, own[:, i] ^ carry
        wires.append(a ^ own[:, i])
        if i == circuit.width - 1:
            break
        carry = carry ^ hash_of(2 * i, a) ^ colour(a) * next(blocks)
        if circuit.garbler == "model" or i > 0:
            carry = carry ^ hash_of(2 * i + 1, b) ^ colour(b) * (next(blocks) ^ a)
    total, positive = torch.zeros(len(labels), dtype=torch.int64), wires[-1]
    per_wire = 3 if circuit.kind == "relu" else 1
    for i in range(len(_weights(circuit))):
        place, pad_of = colour(wires[i]), wires[i]
        if circuit.kind == "relu":
            place, pad_of = place + 2 * colour(positive), pad_of ^ sigma(positive)
        rows = torch.cat([torch.zeros_like(words[:1]), words[per_wire * i : per_wire * (i + 1)]])
        total += rows.gather(0, place.view(1, -1)).view(-1) + hash_of(ROWS + i, pad_of)[:, 0]
    if circuit.garbler == "data":
        total += words[-1]
    return total & low_bits(circuit.ring)


def _spans(n: int) -> list[slice]:
    """List, for each tile of n instances, the range of its instances, as a Python slice."""
    return [slice(TILE * i, min(TILE * (i + 1), n)) for i in range(tiles(n))]


def _joined(circuit: Circuit, blocks: list[Tensor], words: list[Tensor]) -> Tensor:
    octets = torch.cat(blocks).contiguous().view(torch.uint8).view(-1)
    return torch.cat([octets, pack_words(torch.cat(words), circuit.ring)])


def _cut(circuit: Circuit, m: int, tables: Tensor) -> tuple[Iterator[Tensor], Tensor]:
    """Split the garbled tables of one tile into the gates' blocks and the words of the rows.

    Rows convert labels of bits to numbers (kernels/garble.py). m: number of instances in the tile. Returns an iterator
    over the blocks, int64 (m, 2) each, and the words, int64 (circuit.words, m).
    """
    size = LABEL_BYTES * circuit.blocks * m
    blocks = tables[:size].clone().view(torch.int64).view(circuit.blocks, m, 2)
    words = unpack_words(tables[size:], circuit.words * m, circuit.ring).view(circuit.words, m)
    return iter(blocks), words


@implements(kernels.garble, "reference")
def garble(
    circuit: Circuit, key: bytes, tile: int, delta: Tensor, labels: Tensor, shares: Tensor, masks: Tensor
) -> Tensor:
    """Implement `kernels.garble.garble` in plain torch: garble circuits on the side of the data."""
    own = (shares[:, None] >> torch.arange(circuit.width) & 1)[:, :, None] * delta
    tables = [torch.empty(0, dtype=torch.uint8)]
    for number, span in enumerate(_spans(len(labels)), tile):
        known = shares[span, None] & 1
        blocks, words, offset = _garble(circuit, Hash(key, number), delta, labels[span], own[span], known)
        tables.append(_joined(circuit, blocks, [*words, -masks[span] - offset]))
    return torch.cat(tables)


@implements(kernels.garble_model, "reference")
def garble_model(
    circuit: Circuit, key: bytes, tile: int, delta: Tensor, labels: Tensor, own: Tensor
) -> tuple[Tensor, Tensor]:
    """Implement `kernels.garble.garble_model` in plain torch: garble circuits on the side of the model."""
    tables, offsets = [torch.empty(0, dtype=torch.uint8)], [torch.empty(0, dtype=torch.int64)]
    for number, span in enumerate(_spans(len(labels)), tile):
        blocks, words, offset = _garble(circuit, Hash(key, number), delta, labels[span], own[span], None)
        tables.append(_joined(circuit, blocks, words))
        offsets.append(offset)
    return torch.cat(tables), torch.cat(offsets)


@implements(kernels.evaluate, "reference")
def evaluate(circuit: Circuit, key: bytes, tile: int, labels: Tensor, tables: Tensor) -> Tensor:
    """Implement `kernels.garble.evaluate` in plain torch: evaluate circuits that the data's side garbled."""
    return evaluate_model(circuit, key, tile, labels, torch.zeros_like(labels), tables)


@implements(kernels.evaluate_model, "reference")
def evaluate_model(circuit: Circuit, key: bytes, tile: int, labels: Tensor, own: Tensor, tables: Tensor) -> Tensor:
    """Implement `kernels.garble.evaluate_model` in plain torch: evaluate circuits that the model's side garbled."""
    results, start = [torch.empty(0, dtype=torch.int64)], 0
    for number, span in enumerate(_spans(len(labels)), tile):
        m = len(labels[span])
        blocks, words = _cut(circuit, m, tables[start : start + circuit.table_bytes(m)])
        results.append(_evaluate(circuit, Hash(key, number), labels[span], own[span], blocks, words))
        start += circuit.table_bytes(m)
    return torch.cat(results)
