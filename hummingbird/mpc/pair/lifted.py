"""Material of products and squares of values that are lifted as they are opened (mpc/protocols/lifted_product.py).

Masks lambda of k bits and mu of K bits are sums of a number of each party, less 2^k or 2^K times their carry, with top
bits t and s in xor shares (sums.py). mu is that of the smaller operand, which may be broadcast. Mod 2^P, with
mu = a + b - 2^K c,

    lambda mu = lambda a + lambda b - 2^K c lambda

The bits of b are choices of main transfers, those of a of transfers in the other direction, and both parties send their
shares of lambda. An xor-shared bit times a shared number takes a transfer in each direction, whose choices are the
bit's shares; both parties send a word. So follow c lambda, s lambda, t mu, t s, and for a mask that is squared
t (2^(k-1) - lambda); its square is that of masks.py.

Choices that are not random take a bit each: all bits of a, and those of b that are digits of one bit.

*Cut.* Of lambda mu + 2^(f-1), below 2^62, the parties have shares x^0 and x^1 mod 2^P, or mod 2^64 for P > 64. With f
bits cut off it is

    floor(x^0 / 2^f) + floor(x^1 / 2^f) + (carry of the low f bits) - 2^(64-f) (wrap of the sum)

The carry is that of given numbers (carry.py). Up to P = 64 the wrap vanishes mod 2^(P-f). Otherwise it is 1 if x^0 or
x^1 has its top bit: both parts of a sum that is not wrapped are below 2^62, as it is, and of one that is wrapped a part
is 2^63 or more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.mpc.pair import carry, masks
from hummingbird.mpc.pair.carry import best_digit, digits
from hummingbird.mpc.pair.lockstep import Rounds, finished, together
from hummingbird.mpc.pair.masks import MaskShape
from hummingbird.mpc.pair.price import BACK, ROT, TURNED, TURNED_BACK, PairPrice, beside, returned, words
from hummingbird.mpc.pair.products import Broadcast, crossed, numbers_of
from hummingbird.mpc.pair.recipe import PairRecipe
from hummingbird.mpc.pair.sums import top_bits, top_price
from hummingbird.mpc.pair.transfers import Rot, Side
from hummingbird.mpc.protocols.lifted_product import LiftedProduct
from hummingbird.mpc.protocols.rows import LiftedRows, LiftedSquares

_Fields = dict[str, Tensor]
_WORD = 64


@dataclass
class LiftedMasks:
    """A party's part of masks of k bits; what has a default is None if the masks have as many bits as their shares.

    share: its additive share mod 2^ring, int64 (n,); the low k bits are its summand.
    rots: by the place of a bit of a digit of several, the main transfer whose choice is the receiver's bit.
    carry: its additive share of the carry of the summands, mod 2^(ring - k).
    number: its additive share of the top bit, mod 2^(ring - k).
    top: the main transfer of which both parties' own bits have the top bit as their xor.
    square: its additive share of the mask's square, if that was wanted.
    """

    share: Tensor
    rots: dict[int, Rot]
    carry: Tensor | None = None
    number: Tensor | None = None
    top: Rot | None = None
    square: Tensor | None = None

    def fields(self, prefix: str, mask: str) -> _Fields:
        """Return the fields of these masks: the mask, and its carry without and with the top bit if it is lifted."""
        out = {mask: self.share}
        if self.carry is not None and self.number is not None:
            out[f"{prefix}carry"], out[f"{prefix}wrapped"] = self.carry, self.carry + self.number
        return out


def lifted_masks(side: Side, k: int, ring: int, digit: int) -> Rounds[LiftedMasks]:
    """Draw masks of k bits; return a party's part of them, with shares mod 2^ring."""
    if k == ring:
        return LiftedMasks(side.words(), {})
    low = yield from carry.add(side, digits(digit, k - 1))
    found = yield from top_bits(side, low, ring - k)
    return LiftedMasks(found.own - (found.carry << k), low.rots, found.carry, found.top, found.rot)


def lifted_masks_price(k: int, ring: int, digit: int) -> PairPrice:
    return carry.price(digits(digit, k - 1)) + top_price(ring - k) if k < ring else PairPrice()


def _squares(side: Side, k: int, ring: int, digit: int, bits: int) -> Rounds[LiftedMasks]:
    """Draw masks as `lifted_masks` does, with their squares mod 2^bits; k < ring."""
    top = side.rot()
    drawn = yield from masks.squared(side, MaskShape(k, k - 1, ring, k, digit), (), bits, [top])
    bit = kernels.from_bits(top.own, side.n)
    product = yield from top.words(ring - k, bit)
    return LiftedMasks(drawn.share, {}, drawn.carry, bit - 2 * product, top, drawn.square)


def _squares_price(k: int, ring: int, digit: int, bits: int) -> PairPrice:
    return masks.squared_price(MaskShape(k, k - 1, ring, k, digit), (), bits) + words(ring - k)


def _cut(side: Side, share: Tensor, bits: int, product: int, digit: int) -> Rounds[Tensor]:
    """Cut the lowest `bits` bits off shared numbers below 2^61, rounded; return shares mod 2^product, int64 (n,).

    share: this party's share mod 2^(bits + product), or mod 2^64 if that is less.
    Cost: `_cut_price`.
    """
    whole = min(_WORD, bits + product)
    own = share + (1 << bits >> 1) if side.rank == 0 else share
    own = own & (1 << whole) - 1 if whole < _WORD else own
    beyond, top = bits + product - whole, kernels.to_planes(own, _WORD - 1, 1)[0]
    into = yield from carry.of_given(side, list(kernels.to_planes(own, 0, bits)), digits(digit, bits))
    turned = yield from together(*(side.rot().turned(bit) for bit in ((into, top) if beyond else (into,))))
    low, high = kernels.from_bits(into, side.n), kernels.from_bits(top, side.n)
    found = yield from together(
        turned[0].words(product - 1, low), *(turned[1].words(beyond, high) for _ in range(1) if beyond)
    )
    out = (own >> bits & (1 << _WORD - bits) - 1) + low - 2 * found[0]
    return out - (high - found[1] << _WORD - bits) if beyond else out


def _cut_price(bits: int, product: int, digit: int) -> PairPrice:
    beyond = max(0, bits + product - _WORD)
    turned = beside(*[TURNED] * (2 if beyond else 1))
    return carry.of_given_price(digits(digit, bits)) + turned + words(product - 1, beyond)


def bit_times(rot: Rot, back: Rot, own: Tensor, numbers: Sequence[tuple[int, Tensor]]) -> Rounds[list[Tensor]]:
    """Return shares of an xor-shared bit times shared numbers mod 2^w, int64 (rows, n) for each. 1 round.

    rot, back: a main transfer and one of the other direction whose choices are the receivers' shares of the bit.
    own: this party's share, packed (n/8,). numbers: for each its width w and this party's share, int64 (rows, n).
    Cost: w bits in both directions for each row.
    """
    bit = kernels.from_bits(own, rot.n)
    signed = [(width, row - 2 * bit * row) for width, number in numbers for row in number]
    found = yield from together(*(each.words(width, row) for each in (rot, back) for width, row in signed))
    out, at = [], 0
    for _, number in numbers:
        mine = slice(at, at + len(number))
        theirs = slice(len(signed) + at, len(signed) + at + len(number))
        out.append(bit * number + torch.stack(found[mine]) + torch.stack(found[theirs]))
        at += len(number)
    return out


@dataclass(frozen=True)
class _Shape:
    """A product of a larger operand with a smaller one: `times` elements of the larger one share one of the smaller.

    k, factor: bits of their masks. ring: of shares of the larger one's. product: of products before `cut` bits are cut
    off. squares: of the larger one's squares; 0 if they are not wanted. digit: bits of a digit.
    """

    times: int
    k: int
    factor: int
    ring: int
    product: int
    cut: int
    squares: int
    digit: int

    @property
    def word(self) -> int:
        """The bits of the product's shares."""
        return min(_WORD, self.product)

    @property
    def lifts(self) -> bool:
        """Whether the smaller operand has fewer bits than the product."""
        return self.factor < self.product

    @property
    def wide(self) -> list[int]:
        """The widths of what the larger operand's top bit is multiplied by: mu, s, 2^(k-1) - lambda."""
        if self.k == self.ring:
            return []
        squared = self.squares - self.k - 1 if self.squares else 0
        return [max(0, self.product - self.k), max(0, self.product - self.k - self.factor), squared]


@dataclass
class _Choices:
    """Transfers whose choices are bits of the smaller operand's masks.

    main, back: of each bit of the summands, those of the main direction with the receiver's and those of the other one.
    shared: for the carry c and the top bit s, a transfer of each direction whose choices are the receivers' xor shares,
    and this party's share; none if the masks are not lifted.
    """

    main: list[Rot]
    back: list[Rot]
    shared: list[tuple[Rot, Rot, Tensor]]


def _choices(side: Side, shape: _Shape, masks_: LiftedMasks) -> Rounds[_Choices]:
    """Return transfers with the bits of the smaller operand's masks as choices: 1 round, or none without a lift.

    masks_: the masks. If they are not lifted, they are drawn here, as random choices.
    """
    if masks_.carry is None or masks_.top is None:
        main, back = [side.rot() for _ in range(shape.factor)], [side.back() for _ in range(shape.factor)]
        masks_.share = numbers_of(back if side.sends else main, shape.factor)
        return _Choices(main, back, [])
    bits, over = kernels.to_planes(masks_.share, 0, shape.factor), kernels.to_planes(masks_.carry, 0, 1)[0]
    later, top = [j for j in range(shape.factor) if j not in masks_.rots], masks_.top
    turned, back, *shared = yield from together(
        together(*(side.rot().turned(bits[j]) for j in later)),
        together(*(side.back().turned(bit) for bit in bits)),
        *(side.rot().turned(over), side.back().turned(over), side.back().turned(top.own)),
    )
    rots = {**masks_.rots, **dict(zip(later, turned, strict=True))}
    both = [(shared[0], shared[1], over), (top, shared[2], top.own)]
    return _Choices([rots[j] for j in range(shape.factor)], back, both)


def _multiplied(side: Side, shape: _Shape) -> Rounds[tuple[LiftedMasks, LiftedMasks, _Fields]]:
    """Draw both operands' masks; return a party's part of them, and its shares of their products.

    The products are, by name, lambda mu ("product"), t mu ("top"), lambda s ("other"), t s ("tops") and, for squares,
    t (2^(k-1) - lambda) ("turned"); int64 (times, n) each.
    """
    wide, mask = side.wide(shape.times), (shape.k, shape.ring, shape.digit)
    left, right = yield from together(
        _squares(wide, *mask, shape.squares) if shape.squares else lifted_masks(wide, *mask),
        lifted_masks(side, shape.factor, shape.product, shape.digit),
    )
    chosen, back = yield from together(
        _choices(side, shape, right), finished(None) if left.top is None else wide.back().turned(left.top.own)
    )
    value = left.share.view(shape.times, side.n)
    widths = shape.word - shape.factor, shape.product - shape.factor
    shared = [
        bit_times(one, other, own, [(width, value)])
        for (one, other, own), width in zip(chosen.shared, widths, strict=False)
    ]
    first, second, (over, other), tops = yield from together(
        crossed(chosen.main, shape.word, value),
        crossed(chosen.back, shape.word, value),
        together(*shared) if shared else finished(([value], [value])),
        finished([]) if left.top is None else _top_times(side, shape, left.top, back, left, right),
    )
    summand = right.share & (1 << shape.factor) - 1 if shape.factor < _WORD else right.share
    made = {"product": summand * value + first + second}
    if shared:
        made["product"], made["other"] = made["product"] - (over[0] << shape.factor), other[0]
    if shape.cut:
        cut = yield from _cut(wide, made["product"].view(-1), shape.cut, shape.product - shape.cut, shape.digit)
        made["product"] = cut.view(shape.times, side.n)
    shaped = (found.view(shape.times, side.n) for found in tops)
    return left, right, {**made, **dict(zip(("top", "tops", "turned"), shaped, strict=False))}


def _top_times(
    side: Side, shape: _Shape, rot: Rot, back: Rot, left: LiftedMasks, right: LiftedMasks
) -> Rounds[list[Tensor]]:
    """Return shares of the larger operand's top bit times mu, s and 2^(k-1) - lambda, as `_Shape.wide` has them.

    rot, back: transfers of both directions whose choices are the receivers' shares of the bit. left, right: the larger
    and the smaller operand's masks.
    """
    half = (1 << shape.k - 1) if side.rank == 0 else 0
    top = torch.zeros_like(right.share) if right.number is None else right.number
    numbers = right.share.repeat(shape.times), top.repeat(shape.times), half - left.share
    return bit_times(
        rot, back, rot.own, [(width, number[None]) for width, number in zip(shape.wide, numbers, strict=True)]
    )


def _multiplied_price(shape: _Shape) -> PairPrice:
    """Return the price of `_multiplied` for an element of the smaller operand."""
    mask = shape.k, shape.ring, shape.digit
    drawn = _squares_price(*mask, shape.squares) if shape.squares else lifted_masks_price(*mask)
    drawn = drawn.times(shape.times) | lifted_masks_price(shape.factor, shape.product, shape.digit)
    lifted = shape.k < shape.ring
    turned = TURNED_BACK.times(shape.times) if lifted else PairPrice()
    sent = words(*(width for width in shape.wide for _ in range(shape.times)))
    sent |= words(*(shape.word - j for j in range(shape.factor) for _ in range(shape.times)))
    if shape.lifts:
        later = 1 + sum(size == 1 for size in digits(shape.digit, shape.factor - 1))
        turned = beside(turned, *[TURNED] * (later + 1), *[TURNED_BACK] * (shape.factor + 2))
        sent |= words(*[shape.word - shape.factor, shape.product - shape.factor] * shape.times)
    else:
        turned = beside(turned, *[ROT | BACK] * shape.factor)
    cut = _cut_price(shape.cut, shape.product - shape.cut, shape.digit).times(shape.times)
    return drawn + turned + (sent | returned(sent.sent)) + (cut if shape.cut else PairPrice())


def _shape_of(request: LiftedProduct, digit: int) -> _Shape:
    how, sizes = Broadcast(request.size0, request.size1), (request.value, request.factor)
    small, product = sizes[how.smaller], request.product + request.cut
    return _Shape(how.times, sizes[1 - how.smaller], small, product, product, request.cut, 0, digit)


def _product(request: LiftedProduct, side: Side, transfer_bits: float) -> Rounds[_Fields]:
    shape = _shape_of(request, best_digit(transfer_bits))
    left, right, made = yield from _multiplied(side, shape)
    names = ("", "mask"), ("factor_", "factor")
    if not Broadcast(request.size0, request.size1).smaller:  # the first operand is the smaller one
        names = names[1], names[0]
        made["top"], made["other"] = made.get("other", left.share), made.get("top", left.share)
    wide = left.fields(*names[0])
    wide = {name: found.view(shape.times, side.n) for name, found in wide.items()}
    made["factor_top"] = made.pop("other", left.share).view(shape.times, side.n)
    return {**wide, **right.fields(*names[1]), **made}


def _arranged(request: LiftedProduct, fields: _Fields) -> _Fields:
    how = Broadcast(request.size0, request.size1)
    return {name: how.arranged(found).flatten() if found.dim() > 1 else found for name, found in fields.items()}


def _product_refused(request: LiftedProduct) -> str:
    return "" if Broadcast(request.size0, request.size1).fits else "both of its operands are broadcast"


def _rows_shape(request: LiftedRows, digit: int) -> _Shape:
    product = request.product + request.cut
    sizes = request.shape[-1], request.value, request.factor, max(request.sums, product), product
    return _Shape(*sizes, request.cut, request.sums, digit)


def _rows(request: LiftedRows, side: Side, transfer_bits: float) -> Rounds[_Fields]:
    shape = _rows_shape(request, best_digit(transfer_bits))
    left, right, made = yield from _multiplied(side, shape)
    assert left.square is not None
    wide = {name: found.view(shape.times, side.n) for name, found in left.fields("", "mask").items()}
    made["factor_top"] = made.pop("other")
    squares = left.square.view(shape.times, side.n).sum(0)
    return {**wide, **right.fields("factor_", "factor"), **made, "squares": squares}


def _by_row(request: LiftedRows, fields: _Fields) -> _Fields:
    how = Broadcast(request.shape, (*request.shape[:-1], 1))
    return {name: how.arranged(found).flatten() if found.dim() > 1 else found for name, found in fields.items()}


def _squares_alone(request: LiftedSquares, side: Side, transfer_bits: float) -> Rounds[_Fields]:
    k, wide = request.value, request.sums - request.value - 1
    made = yield from _squares(side, k, request.sums, best_digit(transfer_bits), request.sums)
    assert made.top is not None and made.square is not None
    back = yield from side.back().turned(made.top.own)
    half = (1 << k - 1) if side.rank == 0 else 0
    (turned,) = yield from bit_times(made.top, back, made.top.own, [(wide, (half - made.share)[None])])
    return {**made.fields("", "mask"), "squares": made.square, "turned": turned[0]}


def _squares_alone_price(request: LiftedSquares, transfer_bits: float) -> PairPrice:
    word = words(request.sums - request.value - 1)
    drawn = _squares_price(request.value, request.sums, best_digit(transfer_bits), request.sums)
    return drawn + TURNED_BACK + (word | returned(word.sent))


def _summed(request: LiftedSquares, fields: _Fields) -> _Fields:
    count = math.prod(request.shape)
    return {**fields, "squares": fields["squares"][:count].view(request.shape).sum(-1).flatten()}


LIFTED_PRODUCT = PairRecipe(
    LiftedProduct,
    lambda request: Broadcast(request.size0, request.size1).elements,
    lambda request, transfer_bits: _multiplied_price(_shape_of(request, best_digit(transfer_bits))),
    _product,
    _arranged,
    _product_refused,
    "give one operand the shape of the result",
)
LIFTED_ROWS = PairRecipe(
    LiftedRows,
    lambda request: math.prod(request.shape[:-1]),
    lambda request, transfer_bits: _multiplied_price(_rows_shape(request, best_digit(transfer_bits))),
    _rows,
    _by_row,
)
LIFTED_SQUARES = PairRecipe(
    LiftedSquares, lambda request: math.prod(request.shape), _squares_alone_price, _squares_alone, _summed
)
