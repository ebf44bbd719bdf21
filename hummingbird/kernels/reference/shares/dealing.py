"""The dealer's corrections of masked openings in plain torch: kernels/shares/dealing.py has the equations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from hummingbird.kernels.drawn import Drawn
from hummingbird.kernels.registry import implements
from hummingbird.kernels.shares import dealing, packing
from hummingbird.kernels.shares.words import plain


@implements(dealing.deal_masks, "reference")
def deal_masks(
    fields: Sequence[Sequence[Drawn]], n: int, k: int, m: int, ring: int, sizes: Sequence[int]
) -> list[Tensor]:
    """See `dealing.deal_masks`."""
    mask, *bits = ([plain(share) for share in shares] for shares in fields[:3])
    choice, wrap = (reduce(torch.bitwise_xor, shares) for shares in bits)
    values, out = dealing.mask_values(mask, choice, wrap, n, k, m, sizes), []
    for value, shares, width in zip(values, fields[3:], (ring - k, ring, ring - k, ring), strict=False):
        out.append(packing.pack_words(reduce(torch.sub, [plain(share) for share in shares], value), width))
    for table, shares in zip(values[4:], fields[7:], strict=True):
        out.append(reduce(torch.bitwise_xor, [plain(share) for share in shares], table))
    return out
