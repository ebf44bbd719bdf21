"""Distributed point functions in plain torch, level by level; kernels/lookups/dpf.py has the construction."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.lookups import dpf
from hummingbird.kernels.lookups.dpf import (
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
    depth,
    fields,
    header,
    key_bytes,
)
from hummingbird.kernels.reference.lookups.prf import children, leaf
from hummingbird.kernels.registry import implements


@implements(dpf.check, "reference")
def check(keys: Tensor, where: str, rows: int | None, party: int | None) -> int:
    """Implement `kernels.lookups.dpf.check` in plain torch; the error says what is wrong with which key."""
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


@implements(dpf.expand, "reference")
def expand(keys: Tensor, first: int, leaves: int) -> Tensor:
    """Implement `kernels.lookups.dpf.expand` in plain torch, one level of the trees after the other."""
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
    """Return 255 where the control bit of a node is set, else 0: uint8 (..., 1)."""
    return (nodes[..., :1] & 1) * 255


@implements(dpf.generate, "reference")
def generate(alphas: Tensor, rows: int, prf: int, random: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Implement `kernels.lookups.dpf.generate` in plain torch.

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
