"""Material of divisions by a public number d that is no power of two: masks and their quotients, both rounded down.

Each party knows one of the numbers a and b of 64 bits, whose sum mod 2^64 is the mask. With w = [a + b >= 2^64], the
top bit s of the mask, 2^64 = Q d + rho, and R = a mod d + b mod d, the mask is a + b - w 2^64 as an unsigned number,
and 2^64 s less than that as a signed one. So for u = w, and for u = w + s,

    floor((a + b - u 2^64) / d) = floor(a / d) + floor(b / d) - u Q + g(u)      g(u) = floor((R - u rho) / d)

As 0 <= R <= 2 d - 2, g(u) = [R >= u rho - d] + [R >= u rho] + [R >= u rho + d] - 2: at most six comparisons of R with
public numbers for u = 0, 1, 2. With D_1 = g(1) - g(0) and D_2 = g(2) - g(1),

    g(w) = g(0) + w D_1          g(w + s) = g(w) + s (D_1 + w (D_2 - D_1))

Derived here. A norm divides once for each row, so that the price of a few hundred transfers matters little.
"""

from __future__ import annotations

from torch import Tensor

from hummingbird import kernels
from hummingbird.mpc.pair import carry
from hummingbird.mpc.pair.carry import best_digit, digits
from hummingbird.mpc.pair.lockstep import Rounds, together
from hummingbird.mpc.pair.price import TURNED, PairPrice, beside, words
from hummingbird.mpc.pair.recipe import PairRecipe, times_bit, times_bit_price
from hummingbird.mpc.pair.sums import top_bits, top_price
from hummingbird.mpc.pair.transfers import Side
from hummingbird.mpc.protocols.division import Division, quotients

_WORD = 64


def _bounds(divisor: int) -> list[list[int]]:
    """Return the numbers with which R is compared in g(0), g(1) and g(2)."""
    rest = (1 << _WORD) % divisor
    return [[u * rest + j * divisor for j in (-1, 0, 1)] for u in range(3)]


def _compared(divisor: int) -> list[int]:
    """Return the different numbers among `_bounds` for which [R >= number] is neither always 1 nor always 0."""
    return sorted({bound for bounds in _bounds(divisor) for bound in bounds if 0 < bound <= 2 * divisor - 2})


def _width(divisor: int) -> int:
    return (2 * divisor - 2).bit_length()


def _at_least(side: Side, rest: Tensor, bound: int, width: int, digit: int) -> Rounds[Tensor]:
    """Return a share mod 2^64 of [R >= bound], int64 (n,), for the sum R < 2^width of both parties' numbers `rest`."""
    # The sender's number is below 2^(width + 1). The sum of both is, too, so that either it or the carry out of the
    # lower bits has a bit at place `width`, never both.
    own = rest + (1 << width) - bound if side.sends else rest
    out = yield from carry.of_given(side, list(kernels.to_planes(own, 0, width)), digits(digit, width))
    out = out ^ kernels.to_planes(own, width, 1)[0]
    bit = kernels.from_bits(out, side.n)
    rot = yield from side.rot().turned(out)
    product = yield from rot.words(_WORD - 1, bit)
    return bit - 2 * product


def _at_least_price(width: int, digit: int) -> PairPrice:
    return carry.of_given_price(digits(digit, width)) + TURNED + words(_WORD - 1)


def _divide(request: Division, side: Side, transfer_bits: float) -> Rounds[dict[str, Tensor]]:
    divisor, digit, width = request.divisor, best_digit(transfer_bits), _width(request.divisor)
    low = yield from carry.add(side, digits(digit, _WORD - 1))
    sum_ = yield from top_bits(side, low, _WORD)
    own, _ = quotients(sum_.own, divisor)
    rest, compared = sum_.own - own * divisor, _compared(divisor)
    found = yield from together(*(_at_least(side, rest, bound, width, digit) for bound in compared))
    known = dict(zip(compared, found, strict=True))
    one = int(side.sends)  # shares of public numbers
    counts = [
        sum((known.get(bound, rest * 0 + one * (bound <= 0)) for bound in bounds), rest * 0 - 2 * one)
        for bounds in _bounds(divisor)
    ]
    whole = (1 << _WORD) // divisor - (1 << _WORD if divisor == 1 else 0)
    unsigned = own - sum_.carry * whole + counts[0]
    if not (1 << _WORD) % divisor:  # g is the same for all u
        return {"mask": sum_.own, "unsigned": unsigned, "signed": unsigned - sum_.top * whole}
    step, turn = counts[1] - counts[0], counts[2] - 2 * counts[1] + counts[0]
    wraps = kernels.to_planes(sum_.carry, 0, 1)[0]  # the lowest bits of additive shares are xor shares
    more, turn = yield from times_bit(side, wraps, (_WORD, step), (_WORD, turn))
    (also,) = yield from times_bit(side, sum_.rot.own, (_WORD, step + turn))
    unsigned = unsigned + more
    return {"mask": sum_.own, "unsigned": unsigned, "signed": unsigned - sum_.top * whole + also}


def _divide_price(request: Division, transfer_bits: float) -> PairPrice:
    digit, width = best_digit(transfer_bits), _width(request.divisor)
    total = carry.price(digits(digit, _WORD - 1)) + top_price(_WORD)
    total += beside(*(_at_least_price(width, digit) for _ in _compared(request.divisor)))
    if (1 << _WORD) % request.divisor:
        total += times_bit_price(_WORD, _WORD) + times_bit_price(_WORD)
    return total


DIVIDE = PairRecipe(Division, lambda request: request.count, _divide_price, _divide)
