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
    fields: Sequence[Sequence[Drawn]], n: int, k: int, m: int, ring: int, sizes: Sequence[int], whole: bool
) -> list[Tensor]:
    """See `dealing.deal_masks`."""
    mask, *bits = ([plain(share) for share in shares] for shares in fields[:3])
    choice, wrap = (reduce(torch.bitwise_xor, shares) for shares in bits)
    values, out = dealing.mask_values(mask, choice, wrap, n, k, m, sizes, whole), []
    widths = dealing.widths(k, ring, whole)
    for value, shares, width in zip(values, fields[3:], widths, strict=False):
        out.append(packing.pack_words(reduce(torch.sub, [plain(share) for share in shares], value), width))
    for table, shares in zip(values[len(widths) :], fields[3 + len(widths) :], strict=True):
        out.append(reduce(torch.bitwise_xor, [plain(share) for share in shares], table))
    return out
