"""Trees of 16 leaves, of which the receiver of a set-up knows all and the sender all but one.

A node, 16 bytes, has two children, both halves of BLAKE2b(node): child s of node p on level l is node p + s 2^l below
it, so that bit l of a leaf's number is the turn on level l (Goldreich, Goldwasser and Micali, 1986). The sender lacks
the leaf at delta_j. On each level it learns, by one base OT with the choice 1 - bit l of delta_j, the sum of the
children on the other side of its path, and so the one among them that it cannot compute.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from hummingbird import prg
from hummingbird.kernels.cot import SEED, TREES

LEVELS = 4


def grow(roots: Tensor) -> tuple[Tensor, Tensor]:
    """Grow trees from their roots, uint8 (32, 16): leaves uint8 (32, 16, 16), and for each level the sums of its left
    and of its right children, uint8 (32, 4, 2, 16).
    """
    nodes, sums = roots[:, None], []
    for _ in range(LEVELS):
        left, right = _children(nodes)
        sums.append(torch.stack([_sum(left), _sum(right)], 1))
        nodes = torch.cat([left, right], 1)
    return nodes, torch.stack(sums, 1)


def puncture(bits: Tensor, sums: Tensor) -> Tensor:
    """Find all leaves but those at delta_j, each at place x ^ delta_j; place 0 is zero: uint8 (32, 16, 16).

    bits: uint8 (32, 4), of delta_j. sums: uint8 (32, 4, 16), those on the side 1 - bit of each level. Nothing branches
    on a bit. Node x stands at place x ^ delta_j on every level: place 0 is the path, place 2^l what a level brings.
    """
    nodes = torch.zeros(TREES, 1, SEED, dtype=torch.uint8)
    for level in range(LEVELS):
        left, right = _children(nodes)
        turn = bits[:, level, None, None] > 0
        on, off = torch.where(turn, right, left), torch.where(turn, left, right)  # the path's side, the other
        on[:, 0], off[:, 0] = 0, 0  # their parent is the path's node, which is not known
        off[:, 0] = sums[:, level] ^ _sum(off)
        nodes = torch.cat([on, off], 1)
    return nodes


def _children(nodes: Tensor) -> tuple[Tensor, Tensor]:
    data = nodes.numpy().tobytes()
    seeds = [data[at : at + SEED] for at in range(0, len(data), SEED)]
    both = b"".join([prg.derive(seed, "children", size=2 * SEED) for seed in seeds])
    pairs = torch.frombuffer(bytearray(both), dtype=torch.uint8).view(*nodes.shape[:2], 2, SEED)
    return pairs[:, :, 0], pairs[:, :, 1]


def _sum(nodes: Tensor) -> Tensor:
    return reduce(torch.bitwise_xor, nodes.unbind(1))
