"""ChaCha20's block function in plain torch; kernels/chacha20.py describes it."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from hummingbird.kernels import chacha20 as declared
from hummingbird.kernels.registry import implements

CONSTANTS = struct.unpack("<4i", b"expand 32-byte k")
# Quarter rounds on the columns, then on the diagonals, of the 4 x 4 state.
QUARTERS = (
    *((i, i + 4, i + 8, i + 12) for i in range(4)),
    *((i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)),
)


@implements(declared.chacha20, "reference")
def chacha20(key: Tensor, first: int, blocks: int) -> Tensor:
    """See `chacha20.chacha20`; int32 additions wrap."""
    counter = torch.arange(first, first + blocks, device=key.device).to(torch.int32)  # keeps the low 32 bits
    constants = [torch.full_like(counter, word) for word in CONSTANTS]
    start = [*constants, *key[:, None].expand(-1, blocks), counter, *[torch.zeros_like(counter)] * 3]
    return torch.stack(rounds(start, 20), dim=1).view(torch.uint8).view(-1)


def rounds(start: list[Tensor], count: int) -> list[Tensor]:
    """The block function: `count` rounds, an even number, of the state `start`, and the state added to the result.

    start: the 16 words of many states, int32 of one shape. Twenty rounds are ChaCha20, twelve ChaCha12.
    """
    x = list(start)

    def turn(into: int, add: int, mix: int, amount: int) -> None:
        x[into] = x[into] + x[add]
        word = x[mix] ^ x[into]
        x[mix] = (word << amount) | ((word >> (32 - amount)) & ((1 << amount) - 1))

    for _ in range(count // 2):
        for a, b, c, d in QUARTERS:
            turn(a, b, d, 16)
            turn(c, d, b, 12)
            turn(a, b, d, 8)
            turn(c, d, b, 7)
    return [end + begin for end, begin in zip(x, start, strict=True)]
