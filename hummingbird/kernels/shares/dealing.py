"""The dealer's part of masked openings: values that follow from the masks, and one party's corrections for them.

lambda is the sum mod 2^k of the parties' masks, r_b and r_s are the XOR of their bits. From them follow the carry
(sum - lambda) / 2^k; r_b, r_s and r_b lambda as numbers; and the step tables of lambda's upper bits, which
protocols/masked.py uses. The carry is not needed if the parties' shares of the compared values are "whole": right in
all bits that are read later. A correction is a value less all shares of it but the receiver's, in the form of the
message: numbers mod 2^width, packed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels import streams
from hummingbird.kernels.checks import check_range
from hummingbird.kernels.drawn import Drawn
from hummingbird.kernels.registry import best
from hummingbird.kernels.shares.opening import step_table
from hummingbird.kernels.shares.packing import bytes_of, from_bits
from hummingbird.kernels.shares.words import Words, plain


def mask_values(
    mask: Sequence[Words],
    choice: Tensor,
    wrap: Tensor,
    n: int,
    k: int,
    m: int,
    sizes: Sequence[int],
    whole: bool = False,
) -> list[Tensor]:
    """Compute the values that follow from masks: the carry (unless `whole`), r_b, r_s, r_b lambda, and step tables.

    lambda is the sum of the masks mod 2^k, the carry is (sum - lambda) / 2^k, r_b and r_s are random bits (module
    head). The first four values are int64 (n,); the low 64 - k bits of the carry are right. mask: the parties' masks,
    (n,); only the low k bits are used. choice, wrap: r_b and r_s, packed, uint8 (ceil(n/8),), or J rows of them, for
    results (J, n). sizes: the number of bits c of each table, from bit m of lambda on. A table is uint8 (ceil(n 2^c /
    8),).
    """
    low = (1 << k) - 1 if k < 64 else -1
    total = reduce(torch.add, [plain(summand).long() & low for summand in mask])
    lambda_ = total & low
    carry = [] if whole else [(total - lambda_) >> k if k < 64 else torch.zeros_like(lambda_)]
    r_b, r_s = _numbers(choice, n), _numbers(wrap, n)
    tables, at = [], m
    for size in sizes:
        tables.append(step_table(lambda_ >> at, size))
        at += size
    return [*carry, r_b, r_s, r_b * lambda_, *tables]


def widths(k: int, ring: int, whole: bool) -> list[int]:
    """Return how many bits each dealt number of an element has: the carry (unless `whole`), r_b, r_s, r_b lambda."""
    return [*([] if whole else [ring - k]), ring, ring - k, ring]


def _numbers(bits: Tensor, n: int) -> Tensor:
    """Unpack bits to numbers: uint8 (..., ceil(n/8)) -> int64 (..., n)."""
    rows = [from_bits(row, n) for row in bits.reshape(math.prod(bits.shape[:-1]), bits.shape[-1])]
    return torch.stack(rows).view(*bits.shape[:-1], n)


def deal_masks(
    fields: Sequence[Sequence[Drawn]], n: int, k: int, m: int, ring: int, sizes: Sequence[int], whole: bool = False
) -> list[Tensor]:
    """Compute the dealer's corrections for n masked openings, in the order of `mask_values`: packed uint8.

    fields: all parties' shares of lambda (the sum of their masks) and of the random bits r_b and r_s, the receiver's
    first; then, for each value of `mask_values`, the shares of all parties but the receiver. A party's shares are parts
    of one key stream, at the same blocks as the others'. k: bits of lambda. ring: bits of results; 1 <= k <= ring <=
    64. m: the lowest bit of lambda in a table, 0 <= m. sizes: bits of lambda that each table is for, 1 to 8; m +
    sum(sizes) <= k. whole: deal no carry; for values whose shares are right in all bits that are read later.
    """
    function = "kernels.deal_masks"
    check_range(f"{function}(n)", n, 0, 2**56)
    check_range(f"{function}(ring)", ring, 1, 64)
    check_range(f"{function}(k)", k, 1, ring)
    check_range(f"{function}(m)", m, 0, k - sum(sizes))
    for size in sizes:
        check_range(f"{function}(sizes)", size, 1, 8)
    keys, numbers = [share.key for share in fields[0]] if fields else [], widths(k, ring, whole)
    corrected = len(numbers) + len(sizes)
    if not keys or [len(shares) for shares in fields] != [len(keys)] * 3 + [len(keys) - 1] * corrected:
        what = f"got fields of {[len(shares) for shares in fields]} shares"
        raise InputError(what, where=f"{function}(fields)", hint="three of all parties, the rest of all but the first")
    words = {0: k, **dict(enumerate(numbers, 3))}  # bits that are used, by field
    packs = streams.is_aes128(keys[0])
    octets = [1, 1, *[0] * len(numbers), *[1 << size for size in sizes]]  # bits for each element, from field 1 on
    for place, shares in enumerate(fields):
        shape, dtype, width = (bytes_of(n * octets[place - 1]),), torch.uint8, None
        if place in words:
            shape, dtype = (n,), torch.int32 if words[place] <= 32 else torch.int64
            width = words[place] if packs else None
        of = keys if place < 3 else keys[1:]
        for share, key in zip(shares, of, strict=True):
            found = share.shape, share.dtype, share.width, share.first
            expected = shape, dtype, width, shares[0].first
            if share.key is not key or found != expected:
                hint = "parties draw the same fields in the same order"
                raise InputError(
                    f"expected {expected} of one stream, got {found}", where=f"{function}(fields)", hint=hint
                )
    return best(deal_masks, *keys)(fields, n, k, m, ring, sizes, whole)
