"""Masked openings: a party's local work between the messages of a ReLU or a truncation, and the dealer's part of
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels import streams
from hummingbird.kernels.checks import check_range, check_tensor
from hummingbird.kernels.registry import best
from hummingbird.kernels.shares.packing import Words, anchor, bytes_of, check_words, from_bits, plain
from hummingbird.kernels.streams import Drawn

# A party's part -------------------------------------------------------------------------------------------------------
#
# `select` ends a ReLU, `rescale` a truncation. All parties have opened e = x + offset + mask and c = b xor r, with b
# the wanted bit and r a shared random bit. As long as x + offset < 2^63, the sum wraps past 2^64 if and only if the
# mask's top bit is set and e's is not. So the dealer, which knows the mask, deals one share for each top bit of e,
# `high` and `low`. With E = (e >> shift) - (offset >> shift), public, and A, RA the shares chosen by that bit (of the
# shifted mask a, and of r a):
#
#     z = [first] E - A        rz = E R - RA        y = c z + (1 - 2c) rz = (z - rz if c else rz)
#
# with R the share of r (`bit`), and [first] 1 for the one party that adds public constants, else 0.
#
# The other operations belong to the masked comparison (protocols/masked.py has its equations): `mask_words` and
# `open_words` open the window, the dealer deals a `step_table`, `lookup` reads it, and `lift` ends the ReLU;
# `compare_opened` is all work between the two messages if one table is enough. Operands that a GPU draws or unpacks
# itself are `Words`.
#
# Source: public openings of masked wires with dealt corrections, E. Boyle, N. Gilboa, Y. Ishai, "Secure Computation
# with Preprocessing via Function Secret Sharing", TCC 2019; the equations above are derived here, not taken from a
# paper.


def _size(x: Tensor) -> int:
    return x.numel() if isinstance(x, Tensor) else 0


def rescale(opened: Tensor, mask_high: Tensor, mask_low: Tensor, shift: int, first: bool, offset: int) -> Tensor:
    """Compute this party's share of a value shifted right by `shift` bits, from the opened sum of the value and a mask.

    opened: int64 (n,), public, value + offset + mask. offset: a public number, 0 <= offset < 2^63. mask_high, mask_low:
    int64 (n,), this party's shares of the shifted mask; the first is used for words of `opened` whose top bit is set,
    the second for all others. 0 <= shift <= 62. first: True at exactly one party. Returns int64 (n,).
    """
    function, n = "kernels.rescale", _size(opened)
    for name, tensor in (("opened", opened), ("mask_high", mask_high), ("mask_low", mask_low)):
        check_tensor(f"{function}({name})", tensor, torch.int64, opened, n)
    check_range(f"{function}(shift)", shift, 0, 62)
    check_range(f"{function}(offset)", offset, 0, 2**63 - 1)
    return best(rescale, opened, mask_high, mask_low)(opened, mask_high, mask_low, shift, first, offset)


def select(
    opened: Tensor,
    choice: Tensor,
    bit: Tensor,
    mask_high: Tensor,
    mask_low: Tensor,
    bit_high: Tensor,
    bit_low: Tensor,
    shift: int,
    first: bool,
    offset: int,
) -> tuple[Tensor, Tensor]:
    """Compute this party's shares of a ReLU's results: of z, a value shifted right, and of y = b z, with a bit b.

    opened, mask_high, mask_low, shift, first, offset: as for `rescale`, whose result is the share of z. choice: uint8
    (ceil(n/8),), public, packed c = b xor r, with r a random bit that no party knows. bit: int64 (n,), this party's
    share of r. bit_high, bit_low: int64 (n,), its shares of r times the shifted mask; the first is used for words of
    `opened` whose top bit is set, the second for all others. Returns (y, z): int64 (n,) each.
    """
    function, n = "kernels.select", _size(opened)
    words = {"opened": opened, "bit": bit, "mask_high": mask_high, "mask_low": mask_low}
    for name, tensor in (words | {"bit_high": bit_high, "bit_low": bit_low}).items():
        check_tensor(f"{function}({name})", tensor, torch.int64, opened, n)
    check_tensor(f"{function}(choice)", choice, torch.uint8, opened, bytes_of(n))
    check_range(f"{function}(shift)", shift, 0, 62)
    check_range(f"{function}(offset)", offset, 0, 2**63 - 1)
    tensors = (opened, choice, bit, mask_high, mask_low, bit_high, bit_low)
    return best(select, *tensors)(*tensors, shift, first, offset)


def mask_words(share: Tensor, mask: Words, shift: int, width: int) -> Tensor:
    """Make the message by which a party opens a share under a mask: round(share / 2^shift) + mask mod 2^width, packed.

    share: int64 (n,). mask: int64 (n,), or int32 (n,) for a width of at most 32. 0 <= shift <= 62. Returns uint8
    (ceil(n width / 8),).
    """
    function = "kernels.mask_words"
    check_tensor(f"{function}(share)", share, torch.int64, share)
    check_words(f"{function}(mask)", mask, share, share.numel())
    check_range(f"{function}(shift)", shift, 0, 62)
    check_range(f"{function}(width)", width, 0, 32 if mask.dtype == torch.int32 else 64)
    return best(mask_words, share, anchor(mask))(share, mask, shift, width)


def open_words(frames: list[Tensor], n: int, width: int) -> Tensor:
    """Open words: sum the messages of all parties, mod 2^width, to n unsigned numbers, int64 (n,).

    frames: the messages, each of n packed words, uint8 (ceil(n width / 8),).
    """
    check_range("kernels.open_words(width)", width, 0, 64)
    check_range("kernels.open_words(n)", n, 0, 2**56)
    if not frames:
        raise InputError("no frame to open", where="kernels.open_words(frames)", hint="give every party's, the own too")
    for frame in frames:
        check_tensor("kernels.open_words(frames)", frame, torch.uint8, frames[0], bytes_of(n * width))
    return best(open_words, *frames)(frames, n, width)


def step_table(x: Tensor, bits: int) -> Tensor:
    """Compute a step table for each element of x: entry v of the table of x_i is 1 if x_i mod 2^bits <= v, else 0.

    x: int64 (n,). 1 <= bits <= 8. Returns uint8 (ceil(n 2^bits / 8),): the tables, 2^bits bits each, one after the
    other.

        step_table(torch.tensor([1, 3]), 2).tolist() == [0b1000_1110]
    """
    check_tensor("kernels.step_table(x)", x, torch.int64, x)
    check_range("kernels.step_table(bits)", bits, 1, 8)
    return best(step_table, x)(x, bits)


def lookup(opened: Tensor, table: Tensor, low: int, bits: int, rows: tuple[int, ...] = (0, 1)) -> Tensor:
    """Compare numbers L, given as step tables or as XOR shares of step tables, with some bits v of opened words.

    opened: int64 (n,), public; v is the number in bits low .. low + bits - 1. 1 <= bits <= 8, low + bits <= 64. table:
    the result of `step_table` for the numbers L, or an XOR share of it, uint8 (ceil(n 2^bits / 8),). rows: which
    results to
    return, ascending: 0 is [L < v], 1 is [L <= v], and 2 and 3 are the same for v with its top bit flipped. Returns
        bits, or XOR shares of them: uint8 (len(rows), ceil(n/8)), packed.
    """
    function = "kernels.lookup"
    check_tensor(f"{function}(opened)", opened, torch.int64, opened)
    check_range(f"{function}(bits)", bits, 1, 8)
    check_range(f"{function}(low)", low, 0, 64 - bits)
    check_tensor(f"{function}(table)", table, torch.uint8, opened, bytes_of(opened.numel() << bits))
    if not rows or list(rows) != [row for row in range(4) if row in rows]:
        hint = "name at least one of the rows 0 to 3, in ascending order"
        raise InputError(f"no choice of rows: {rows}", where=f"{function}(rows)", hint=hint)
    return best(lookup, opened, table)(opened, table, low, bits, rows)


def compare_opened(
    frames: list[Tensor],
    table: Words,
    choice_bits: Words,
    wrap_bits: Words,
    n: int,
    k: int,
    m: int,
    first: bool,
) -> tuple[Tensor, Tensor]:
    """Open masked values, and compute this party's shares of the bit b of each: whether the value x is positive.

    x + lambda mod 2^k is opened, with the mask lambda, the sum of all parties' masks. For |x| < 2^(k-1) - 2^m, b is
    exact where |x| >= 2^m, 0 or 1 where 0 <= x < 2^m, and 0 where x is negative. It is found by comparing the opened
    value with lambda >> m, by a step table. The equations are in mpc/protocols/masked.py.
    frames: all parties' messages of packed words, uint8 (ceil(n k / 8),) each. table: this party's XOR share of the
    step tables of lambda >> m, uint8 (ceil(n 2^(k - m) / 8),). choice_bits, wrap_bits: its XOR shares of two random
    bits r_b and r_s, uint8 (ceil(n/8),). n: how many values. k: bits of a word, at most 64; 1 <= k - m <= 8. first:
    True at exactly one party. Returns the opened values, as `open_words`, and this party's XOR shares, uint8 (2,
    ceil(n/8)), packed, of c_b = b xor r_b and of c_s = s xor r_s, with the bit s by which `lift` finds out whether x +
    lambda wraps.
    """
    function = "kernels.compare_opened"
    check_range(f"{function}(k)", k, 1, 64)
    check_range(f"{function}(m)", m, max(0, k - 8), k - 1)
    check_range(f"{function}(n)", n, 0, 2**56)
    if not frames:
        raise InputError("no frame to open", where=f"{function}(frames)", hint="give every party's, the own too")
    for frame in frames:
        check_tensor(f"{function}(frames)", frame, torch.uint8, frames[0], bytes_of(n * k))
    check_words(f"{function}(table)", table, frames[0], bytes_of(n << (k - m)), octets=True)
    for name, bits in (("choice_bits", choice_bits), ("wrap_bits", wrap_bits)):
        check_words(f"{function}({name})", bits, frames[0], bytes_of(n), octets=True)
    run = best(compare_opened, *frames, anchor(table), anchor(choice_bits), anchor(wrap_bits))
    return run(frames, table, choice_bits, wrap_bits, n, k, m, first)


def lift(
    opened: Tensor,
    choice: Tensor,
    mask: Words,
    carry: Words | None,
    bit: Words,
    wrap: Words,
    product: Words,
    k: int,
    first: bool,
) -> tuple[Tensor, Tensor]:
    """Compute this party's shares, mod 2^64, of z and of b z. z mod 2^k has been opened under a mask, and b is a bit.

    b is the result of a comparison. opened: int64 (n,), public, z + lambda mod 2^k, unsigned; lambda is the sum of all
    parties' masks. choice: uint8 (2, ceil(n/8)), public, packed: c_b = b xor r_b, and c_s = s xor r_s, with random bits
    r_b and r_s, and s the bit by which the wrap of z + lambda is undone; `compare_opened` returns shares of both. mask:
    (n,), this party's mask; only the low k bits are used. carry, bit, wrap, product: (n,), this party's shares of the
    carry in the sum of the masks, of r_b, of r_s, and of r_b lambda. All are int64 or int32; with int32 the low 32 bits
    of the results are right, with an int32 carry or wrap the low 32 + k bits. 1 <= k <= 64, with an int32 mask k <= 32.
    first: True at exactly one party. Returns (y, z): int64 (n,) each, y = b z. If `carry` is None, `mask` is this
    party's share of z itself, int64, and is returned as z. Then, for z outside of [-2^(k-1), 2^(k-1)), y is b z' + c_b
    (z - z'), where z' is the number in this range that equals z mod 2^k. mpc/protocols/masked.py has the equations.
    """
    function, n = "kernels.lift", _size(opened)
    check_tensor(f"{function}(opened)", opened, torch.int64, opened, n)
    words = {"mask": mask, "carry": carry, "bit": bit, "wrap": wrap, "product": product}
    given = {name: operand for name, operand in words.items() if operand is not None}
    for name, operand in given.items():
        check_words(f"{function}({name})", operand, opened, n)
    if carry is None and not (isinstance(mask, Tensor) and mask.dtype == torch.int64):
        hint = "without a carry it is this party's share of z: ring elements, torch.int64"
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise InputError(f"expected a tensor of torch.int64, got {got}", where=f"{function}(mask)", hint=hint)
    check_tensor(f"{function}(choice)", choice, torch.uint8, opened, bytes_of(n), rows=2)
    check_range(f"{function}(k)", k, 1, 32 if mask.dtype == torch.int32 else 64)
    run = best(lift, opened, choice, *map(anchor, given.values()))
    return run(opened, choice, mask, carry, bit, wrap, product, k, first)


# The dealer's part: values that follow from the masks, and one party's corrections for them ---------------------------
#
# lambda is the sum mod 2^k of the parties' masks, r_b and r_s are the XOR of their bits. From them follow the carry
# (sum - lambda) / 2^k; r_b, r_s and r_b lambda as numbers; and the step tables of lambda's upper bits, which
# protocols/masked.py uses. The carry is not needed if the parties' shares of the compared values are "whole": right in
# all bits that are read later. A correction is a value less all shares of it but the receiver's, in the form of the
# message: numbers mod 2^width, packed.


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
    """Compute the values that a dealer derives from the parties' masks: the carry, r_b, r_s, r_b lambda, and step
    tables.

    mask: the parties' masks, (n,) each, of which only the low k bits are used. lambda is their sum mod 2^k, the carry
    is (sum - lambda) / 2^k; of the carry the low 64 - k bits are right, and with `whole` it is left out. choice, wrap:
    the random bits r_b and r_s, packed, uint8 (ceil(n/8),), or J rows of them, for results (J, n). sizes: for each
    table its number of bits c of lambda; the first table has bits m to m + c - 1, and the next follows. Returns a list:
    the numbers are int64 (n,), a table is uint8 (ceil(n 2^c / 8),).
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
    """List the bits of each number that the dealer deals for an element of a masked opening.

    The numbers are the carry in the sum of the parties' masks (unless `whole`), r_b, r_s and r_b lambda, with the mask
    lambda and two random bits. k: bits of lambda. ring: bits of results.
    """
    return [*([] if whole else [ring - k]), ring, ring - k, ring]


def _numbers(bits: Tensor, n: int) -> Tensor:
    """Unpack packed bits to the numbers 0 and 1: uint8 (..., ceil(n/8)) to int64 (..., n)."""
    rows = [from_bits(row, n) for row in bits.reshape(math.prod(bits.shape[:-1]), bits.shape[-1])]
    return torch.stack(rows).view(*bits.shape[:-1], n)


def deal_masks(
    fields: Sequence[Sequence[Drawn]], n: int, k: int, m: int, ring: int, sizes: Sequence[int], whole: bool = False
) -> list[Tensor]:
    """Compute the corrections that the dealer sends to the receiver for n masked openings: a list of packed uint8
    tensors.

    They are in the order of the values of `mask_values`. fields: three lists with the shares of all parties, the
    receiver's first: of lambda (the sum of the parties' masks), and of the random bits r_b and r_s; then for each value
    of `mask_values` a list with the shares of all parties but the receiver. Each party draws its shares from one key
    stream, at the same blocks as the others. k: bits of lambda. ring: bits of results; 1 <= k <= ring <= 64. m: the
    lowest bit of lambda in a table, 0 <= m. sizes: the number of bits of lambda in each table, 1 to 8; m + sum(sizes)
    <= k. whole: deal no carry; for values whose shares are right in all bits that are read later.
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
