"""Material whose fields follow from the carries of a sum of two numbers: lifts, truncations, selections, wraps.

Each party knows one of the numbers a and b of k bits. Their low k - 1 bits are added with carries (carry.py). With the
carry c into the top bits a' and b', u = a' ^ c^0 and v = b' ^ c^1 are drawn as random bits, and over the integers

    a' + b' + c = 2 c_k + t        t = u + v - 2 u v        c_k = a' c^0 + b' c^1 - c^0 c^1 + u v

So the products u v and c^0 c^1 as numbers mod 2^w, for two transfers and 2 w bits, give the carry out and the sum's top
bit as numbers; all else is local. A carry c_s within the sum is the choice of a transfer already, and takes a word to
become a number. Of the sum mod 2^64, with s bits cut off,

    floor((a + b mod 2^64) / 2^s) = floor(a / 2^s) + floor(b / 2^s) + c_s - 2^(64-s) c_64

and 2^(64-s) t less than that if the sum is read as a signed number. How often a + b overflows as signed numbers is
c_63 - c_64. Derived here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from hummingbird import kernels
from hummingbird.mpc.correlations.provider import Wraps
from hummingbird.mpc.pair import carry
from hummingbird.mpc.pair.carry import Carries, best_digit, digits, number
from hummingbird.mpc.pair.lockstep import Rounds, together
from hummingbird.mpc.pair.price import TURNED, PairPrice, own_words, words
from hummingbird.mpc.pair.recipe import PairRecipe, random_bit, random_bit_price
from hummingbird.mpc.pair.transfers import Rot, Side
from hummingbird.mpc.protocols.lift import Lifting
from hummingbird.mpc.protocols.truncation import Selection, Truncation

_Fields = dict[str, Tensor]
_WORD = 64


@dataclass
class TopBits:
    """A party's part of the top bit of a sum of two numbers of k bits; numbers are int64 (n,).

    own: its number. carry: its share of the carry c_k. top: of the sum's top bit. into: of the carry into it.
    All shares are mod 2^w.
    rot: the transfer of which both parties' own bits have the sum's top bit as their xor.
    """

    own: Tensor
    carry: Tensor
    top: Tensor
    into: Tensor
    rot: Rot


def top_bits(side: Side, low: Carries, width: int) -> Rounds[TopBits]:
    """Draw the numbers' top bits, above those of `low`; return shares mod 2^width of what follows from them."""
    into = low.carry
    assert into is not None
    turned, rot = (yield from side.rot().turned(into)), side.rot()
    c, u = kernels.from_bits(into, side.n), kernels.from_bits(rot.own, side.n)
    carries, product = yield from together(turned.words(width, c), rot.own_words(width))
    bit = u ^ c
    own = number(low.bits, side.n) + (bit << len(low.bits))
    return TopBits(own, bit * c - carries + product, u - 2 * product, c - 2 * carries, rot)


def top_price(width: int) -> PairPrice:
    """Return the price of `top_bits`: 2 transfers, 2 width bits, 2 rounds."""
    return TURNED + (words(width) | own_words(width))


def _lift(request: Lifting, side: Side, transfer_bits: float) -> Rounds[_Fields]:
    low = yield from carry.add(side, digits(best_digit(transfer_bits), request.k - 1))
    sum_ = yield from top_bits(side, low, request.ring - request.k)
    return {"mask": sum_.own, "carry": sum_.carry, "wrapped": sum_.carry + sum_.top}


def _lift_price(request: Lifting, transfer_bits: float) -> PairPrice:
    return carry.price(digits(best_digit(transfer_bits), request.k - 1)) + top_price(request.ring - request.k)


def _wraps(request: Wraps, side: Side, transfer_bits: float) -> Rounds[_Fields]:
    low = yield from carry.add(side, digits(best_digit(transfer_bits), _WORD - 1))
    sum_ = yield from top_bits(side, low, _WORD)
    return {"r": sum_.own, "wraps": sum_.into - sum_.carry}


def _quotient(side: Side, shift: int, transfer_bits: float) -> Rounds[tuple[Tensor, Tensor, Tensor]]:
    """Draw masks mod 2^64; return shares of three numbers for each mask.

    They are the mask, its quotient by 2^shift as an unsigned number, and its top bit, mod 2^shift.
    shift: 1 to 62.
    """
    low = yield from carry.add(side, digits(best_digit(transfer_bits), shift, _WORD - 1))
    turned, into = low.into[shift]
    bit = kernels.from_bits(into, side.n)
    sum_, product = yield from together(top_bits(side, low, shift), turned.words(_WORD - 1, bit))
    cut = sum_.own >> shift & (1 << (_WORD - shift)) - 1
    return sum_.own, cut + bit - 2 * product - (sum_.carry << (_WORD - shift)), sum_.top


def _quotient_price(shift: int, transfer_bits: float) -> PairPrice:
    return carry.price(digits(best_digit(transfer_bits), shift, _WORD - 1)) + (top_price(shift) | words(_WORD - 1))


def _truncate(request: Truncation, side: Side, transfer_bits: float) -> Rounds[_Fields]:
    shift = request.shift
    if not shift:
        mask = side.words()
        return {"mask": mask, "unsigned": mask, "signed": mask}
    mask, unsigned, top = yield from _quotient(side, shift, transfer_bits)
    return {"mask": mask, "unsigned": unsigned, "signed": unsigned - (top << (_WORD - shift))}


def _truncate_price(request: Truncation, transfer_bits: float) -> PairPrice:
    return _quotient_price(request.shift, transfer_bits) if request.shift else PairPrice()


def _select(request: Selection, side: Side, transfer_bits: float) -> Rounds[_Fields]:
    shift = request.shift
    if not shift:
        mask = side.words()
        chosen = yield from random_bit(side, _WORD, (_WORD, mask))
        return {"bit": chosen.bit, "mask": mask, "flag": chosen.flag, "flag_mask": chosen.products[0]}
    mask, unsigned, top = yield from _quotient(side, shift, transfer_bits)
    chosen = yield from random_bit(side, _WORD, (_WORD, unsigned), (shift, top))
    product, over = chosen.products
    return {
        "bit": chosen.bit,
        "mask": mask,
        "flag": chosen.flag,
        "unsigned": unsigned,
        "signed": unsigned - (top << (_WORD - shift)),
        "flag_unsigned": product,
        "flag_signed": product - (over << (_WORD - shift)),
    }


def _select_price(request: Selection, transfer_bits: float) -> PairPrice:
    if not request.shift:
        return random_bit_price(_WORD, _WORD)
    return _quotient_price(request.shift, transfer_bits) + random_bit_price(_WORD, _WORD, request.shift)


LIFT = PairRecipe(Lifting, lambda request: request.count, _lift_price, _lift)
TRUNCATE = PairRecipe(Truncation, lambda request: request.count, _truncate_price, _truncate)
SELECT = PairRecipe(Selection, lambda request: request.count, _select_price, _select)
WRAPS = PairRecipe(
    Wraps,
    lambda request: math.prod(request.shape),
    lambda request, transfer_bits: carry.price(digits(best_digit(transfer_bits), _WORD - 1)) + top_price(_WORD),
    _wraps,
)
