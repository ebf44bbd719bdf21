"""Tables of polynomials behind masks: a party's look-up of opened values, and the dealer's part of it.

A value x of k bits is opened as x + lambda mod 2^k. The upper w bits of the opened value select a row of polynomial
coefficients, and the lower m = k - w bits are the polynomial's argument. protocols/poly.py has the equations. A party
reads one of the 2^w rows of each value, so the kernels draw or unpack no other row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.checks import check_range, check_tensor
from hummingbird.kernels.devices import put
from hummingbird.kernels.registry import best
from hummingbird.kernels.shares.packing import Words, anchor, check_words
from hummingbird.kernels.streams import Drawn

WIDEST, DEGREE = 12, 3  # bits that select a row, and the degree: at most
_LARGEST = 2.0**50  # of a moved coefficient: float64 computes it, and rounds it to an integer, with 2 bits to spare
_AT_ONCE = 1 << 16  # coefficients of one power that `move_polynomials` computes at a time: they fit a core's cache


def evaluate_opened(opened: Tensor, coefficients: Sequence[Words], m: int, w: int, shift: int) -> Tensor:
    """Compute this party's shares of polynomials' values at opened arguments: each value selects its polynomial.

    opened: int64 (n,), public, of which m + w bits are read: bits m to m + w - 1 are the number X of a row, the lower
    ones the argument v. coefficients: for each power j, lowest first, this party's shares T_j of the coefficients of
    all rows of all values, (n 2^w,), the rows of a value one after the other. 1 <= w <= 12, 1 <= degree <= 3, 0 <= m,
    degree m <= 62. shift: 0 to 63. Returns int64 (n,): the sum over j of T_j[X] v^j 2^((degree - j) m), mod 2^64,
    rounded and shifted right by `shift` bits.

        rows = [torch.tensor([0, 0, 5, 0]), torch.tensor([0, 0, 3, 0])]
        evaluate_opened(torch.tensor([0b10_1]), rows, 1, 2, 0).tolist() == [5 * 2 + 3]
    """
    function, n = "kernels.evaluate_opened", opened.numel() if isinstance(opened, Tensor) else 0
    check_tensor(f"{function}(opened)", opened, torch.int64, opened)
    check_range(f"{function}(w)", w, 1, WIDEST)
    check_range(f"{function}(degree)", len(coefficients) - 1, 1, DEGREE)
    check_range(f"{function}(m)", m, 0, 62 // (len(coefficients) - 1))
    check_range(f"{function}(shift)", shift, 0, 63)
    for words in coefficients:
        check_words(f"{function}(coefficients)", words, opened, n << w)
    return best(evaluate_opened, opened, *map(anchor, coefficients))(opened, coefficients, m, w, shift)


def move_polynomials(pieces: Tensor, mask: Tensor, m: int) -> list[Tensor]:
    """Compute the coefficients that a dealer deals: those of a table's pieces, moved by the masks.

    Row X of a value is the polynomial of piece X - L mod 2^w, rewritten as a polynomial in v, with X and v of
    `evaluate_opened`, and L and l the same bits of the mask: c(t) becomes c(v' - l') for v' = v / 2^m, l' = l / 2^m.
    pieces: int64 (2^w, degree + 1), the coefficients c, lowest power first. mask: int64 (n,), of which m + w bits are
    read. Returns a list: int64 (n 2^w,) for each power, lowest first. InputError if moved coefficients could exceed
    2^50.

    Repeated Horner steps in float64 compute the binomial sums; a product and a sum are rounded separately, so that
    every processor computes the same. A coefficient is rounded to an integer only once, at the end.
    """
    w = _check_table("kernels.move_polynomials", pieces, mask, m)
    given, number = put(pieces, mask.device).double(), torch.arange(len(pieces), device=mask.device)
    parts = [_moved(given, number, some, m) for some in mask.split(max(1, _AT_ONCE >> w))]
    return [torch.cat(columns) for columns in zip(*parts, strict=True)]


def _moved(pieces: Tensor, number: Tensor, mask: Tensor, m: int) -> list[Tensor]:
    """Compute `move_polynomials` for a few masks. pieces: float64. number: of each row, 0 to 2^w - 1."""
    piece = (number - (mask >> m)[:, None]) & (len(pieces) - 1)
    low = (mask & ((1 << m) - 1)).double()[:, None] * -(2.0**-m)
    degree = pieces.shape[1] - 1
    found = [pieces[:, power][piece] for power in range(degree + 1)]
    for done in range(degree):
        for power in reversed(range(done, degree)):
            found[power] += found[power + 1] * low
    return [column.round_().long().view(-1) for column in found]


def deal_polynomials(
    pieces: Tensor, mask: Tensor, shares: Sequence[Sequence[Drawn]], m: int, widths: Sequence[int]
) -> list[Tensor]:
    """Compute the corrections that the dealer sends to the receiver for tables of polynomials: packed uint8 tensors.

    They are `move_polynomials` less the other parties' shares, for each power, lowest first: n 2^w words mod 2^width.
    pieces, mask, m: as there. shares: for each power a list with the shares of all parties but the receiver, (n 2^w,),
    drawn in whole words: int32 for a width of at most 32, else int64. Each party draws its shares from one key stream,
    at the same blocks as the others. widths: by power, 1 to 64.
    """
    function = "kernels.deal_polynomials"
    w = _check_table(function, pieces, mask, m)
    if not len(shares) == len(widths) == pieces.shape[1]:
        what = f"got {len(shares)} lists of shares and {len(widths)} widths for {pieces.shape[1]} powers"
        raise InputError(what, where=f"{function}(shares)", hint="give a list and a width for each power")
    keys = [share.key for share in shares[0]]
    for width, of in zip(widths, shares, strict=True):
        check_range(f"{function}(widths)", width, 1, 64)
        first = of[0].first if of else 0
        expected = (mask.numel() << w,), torch.int32 if width <= 32 else torch.int64, None, first
        found = [(share.shape, share.dtype, share.width, share.first) for share in of]
        if found != [expected] * len(keys) or any(share.key is not key for share, key in zip(of, keys, strict=True)):
            hint = "parties draw the same fields in the same order"
            raise InputError(f"expected {expected} of {len(keys)} streams, got {found}", where=function, hint=hint)
    return best(deal_polynomials, mask, *keys)(pieces, mask, shares, m, widths)


def _check_table(function: str, pieces: Tensor, mask: Tensor, m: int) -> int:
    """Check a table's pieces and masks, and return w, for a table of 2^w pieces. function: the name in errors."""
    check_tensor(f"{function}(mask)", mask, torch.int64, mask)
    check_range(f"{function}(m)", m, 0, 62)
    if pieces.dtype != torch.int64 or not pieces.is_cpu:
        hint = "pass the table's coefficients as integers"
        raise InputError(f"expected int64 on the CPU, got {pieces.dtype}", where=f"{function}(pieces)", hint=hint)
    w = len(pieces).bit_length() - 1
    if pieces.dim() != 2 or not 2 <= pieces.shape[1] <= DEGREE + 1 or len(pieces) != 1 << w or not 1 <= w <= WIDEST:
        hint = f"2^w rows, w from 1 to {WIDEST}, of 2 to {DEGREE + 1} coefficients"
        raise InputError(f"got a shape {tuple(pieces.shape)}", where=f"{function}(pieces)", hint=hint)
    # T_j = sum over i >= j of binomial(i, j) (-l')^(i - j) c_i, with |l'| < 1 and binomial(i, j) <= 2^i.
    powers = 2.0 ** torch.arange(pieces.shape[1], dtype=torch.float64)
    largest = float((pieces.double().abs() @ powers).max())
    if not largest <= _LARGEST:
        hint = "fewer bits of fraction, or a smaller gain"
        raise InputError(f"coefficients of up to {largest:.3g}", where=f"{function}(pieces)", hint=hint)
    return w
