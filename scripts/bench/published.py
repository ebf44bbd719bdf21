"""HummingBird as published (Maeng and Suh, 2023): CrypTen's ReLU with its adder on bits m to k - 1 of each share.

The two parties hold their own w = k - m bits as sharings by XOR, add them by a tree of ANDs, turn the sign bit into an
arithmetic sharing and multiply by it, all by CrypTen's protocols, provider and communicator. As in the paper only w
bits of a word are sent, packed. For n ReLUs a party sends

    2 n w              to open both factors of the first AND
    4 n w              at each of ceil(log2 w) levels of the tree, two ANDs
    n                  for the sign bit
    2 * 64 n           for the product

bits, each message rounded up to words of 64 bits, in ceil(log2 w) + 3 rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from hummingbird.bits import BitWindow
from hummingbird.cost import Cost
from hummingbird.crypten.adapter import MPCTensor, crypten, from_share, share_of
from hummingbird.kernels.shares.packing import pack_words, unpack_words

_WORD = 64


def _levels(width: int) -> int:
    return (width - 1).bit_length()


def _words(bits: int) -> int:
    return -(-bits // _WORD) * _WORD


def price(count: int, window: BitWindow) -> Cost:
    """Return the price of `count` ReLUs, for one party."""
    width = window.k - window.m
    levels = _levels(width)
    bits = _words(2 * count * width) + levels * _words(4 * count * width) + _words(count) + 2 * _WORD * count
    dealt = count * ((1 + 2 * levels) * width + 2 * _WORD)  # what a dealer would send for the triples
    return Cost(levels + 3, bits, dealt)


def relu(x: MPCTensor, window: BitWindow) -> MPCTensor:
    """Compute the ReLU of a tensor of CrypTen by the bits of a window."""
    width, party = window.k - window.m, crypten.communicator.get().get_rank()
    own = (share_of(x).flatten() >> window.m) & (2**width - 1)
    nothing = torch.zeros_like(own)
    (carry,) = _ands([(own, nothing) if party == 0 else (nothing, own)], width)  # x AND y, of the parties' x and y
    sign = ((own ^ _tree(carry, own, width) << 1) >> (width - 1)) & 1
    negative = _arithmetic(sign, party)
    return x * from_share((int(party == 0) - negative).view(x.size()), 0)


def _tree(carry: Tensor, through: Tensor, width: int) -> Tensor:
    """Compute the carry out of every bit of a sum by a tree of ANDs.

    carry: x AND y, of the two addends. through: x XOR y, the bits that pass a carry on.
    """
    for level in range(_levels(width)):
        shifted = [(part << (1 << level)) & (2**width - 1) for part in (carry, through)]
        more, through = _ands([(through, part) for part in shifted], width)
        carry = carry ^ more
    return carry


def _ands(pairs: Sequence[tuple[Tensor, Tensor]], width: int) -> list[Tensor]:
    """Compute the AND of each pair of XOR sharings, in one round: Beaver's triples, with `width` bits opened each."""
    x, y = (torch.stack(side) for side in zip(*pairs, strict=True))
    a, b, c = (part.share & (2**width - 1) for part in _provider().generate_binary_triple(x.size(), y.size()))
    e, d = _opened(torch.stack([x ^ a, y ^ b]), width)
    both = e & d if crypten.communicator.get().get_rank() == 0 else 0
    return list(c ^ (e & b) ^ (a & d) ^ both)


def _arithmetic(bit: Tensor, party: int) -> Tensor:
    """Turn a sharing of bits by XOR into an additive one."""
    added, xored = _provider().B2A_rng(bit.size())
    opened = _opened(bit ^ (xored.share & 1), 1)
    return added.share * (1 - 2 * opened) + int(party == 0) * opened


def _opened(x: Tensor, width: int) -> Tensor:
    """Open a sharing by XOR: `width` bits of each number are sent, packed into words."""
    packed = pack_words(x.flatten(), width)
    words = torch.zeros(_words(8 * len(packed)) // _WORD, dtype=torch.int64)
    words.view(torch.uint8)[: len(packed)] = packed
    both = crypten.communicator.get().all_reduce(words, op=ReduceOp.BXOR)
    return unpack_words(both.view(torch.uint8)[: len(packed)], x.numel(), width).view(x.shape)


def _provider() -> Any:
    return crypten.mpc.get_default_provider()
