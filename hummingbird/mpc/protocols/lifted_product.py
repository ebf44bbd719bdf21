"""Products of values that are known to be small, in one round, without a lift of either value first.

A lift (lift.py) opens e = z + 2^(k-2) + lambda mod 2^k. With e' = e - 2^(k-2) and the top bit t of lambda, over the
integers

    z = e' - A,        A = lambda if e has its top bit, else lambda - 2^k t

So z is opened behind a mask A of two forms, and e tells which form applies. With v = d' - B, opened the same way in K
bits behind mu,

    z v = (e' - A) d' - e' B + A B

All but A B is local, and A B is dealt in all forms. z v is right mod 2^R, where R is the number of bits that are read
of it, although only k and K bits were opened. For k = R, z may be any number: all forms of its mask are equal mod 2^R.
For k = K = R this is Beaver's product (beaver.py).

*The dealt shares*, with s the top bit of mu, mod 2^R:

    (lambda - 2^k t) (mu - 2^K s) = lambda mu - 2^k t mu - 2^K lambda s + 2^(k+K) t s

The factor of 2^k, 2^K or 2^(k+K) is dealt mod 2^(R-k), 2^(R-K) or 2^(R-k-K), and not at all if no bit remains: for
k = R nothing is lifted.

*Cut.* z v / 2^f is right mod 2^R if z v is right mod 2^(R + f), which may be more than a word. Let f <= k and f <= K,
and A = a - 2^k c, B = b - 2^K c', where a and b are the summands of lambda and mu in a party's low k and K bits. Every
share is

    [e' - a] d' - e' b  +  2^k c d' + 2^K e' c' + A B        [e']: at party 0 alone

Of these terms only (e' - a) d' - e' b, of k + K + 2 bits, and lambda mu in A B are not multiples of 2^f. Each party
rounds the former, the dealer rounds the latter, and c, c' and the products with top bits are dealt in f more bits. The
error of z v / 2^f is at most (N + 1)/2 units. So no message is needed to cut off the fraction that a product gains.

To detect a wrap by top bits is from Escudero et al. 2020, section 5; the merger of lift, product and cut is derived
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird import cost, kernels
from hummingbird.cost import Cost, packed
from hummingbird.kernels.shares.packing import Words, plain
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.request import Request, made, number, shape
from hummingbird.mpc.protocols.interfaces import Operation
from hummingbird.mpc.session.session import Session


@dataclass(frozen=True, kw_only=True)
class LiftedShares:
    """A party's shares for products of values and factors that are opened behind masks.

    A value's mask is called lambda and has k bits; a factor's mask is called mu and has K bits. t and s are the top
    bits of lambda and mu. A mask is the sum of one summand for each party, mod 2^k or 2^K.
    mask, factor: this party's summands of lambda and mu, in the low k and K bits.
    Each other field is a share of the number that is named here:
    carry: (sum of all summands of lambda - lambda) / 2^k.
    wrapped: `carry` plus t.
    factor_carry, factor_wrapped: the same numbers for mu, K and s.
    product, top, factor_top, tops: lambda mu, t mu, lambda s, t s.
    Fields with a default are None if no bit of them is needed. For a matrix product, the last three are words of all
    terms of its sums, (n,), in any of the forms in which kernels take words.
    """

    mask: Tensor
    factor: Tensor
    product: Tensor
    carry: Tensor | None = None
    wrapped: Tensor | None = None
    factor_carry: Tensor | None = None
    factor_wrapped: Tensor | None = None
    top: Words | None = None
    factor_top: Words | None = None
    tops: Words | None = None


LARGEST_CUT = 40  # bits


def check_widths(value: int, factor: int, product: int, cut: int) -> None:
    """Raise ValueError unless a product of two opened numbers, less its lowest `cut` bits, can be found mod 2^product.

    value, factor: in how many bits the two numbers are opened.
    """
    whole = product + cut
    narrow = cut > min(value, factor) or whole - min(value, factor) > 64 or value + factor > 61
    if max(value, factor) > whole or (cut and narrow):
        raise ValueError(f"{product} bits of {value} and {factor}, less {cut}")


@dataclass(frozen=True)
class LiftedProduct(Request[LiftedShares]):
    """Request for the masks and their products by which two private tensors are multiplied in one round.

    The masks are uniform: mod 2^value of shape size0 for the first tensor, mod 2^factor of shape size1 for the second.
    Also dealt: their products mod 2^product, without the lowest `cut` bits, in torch's broadcast shape.
    """

    kind = "lifted_product"
    size0: tuple[int, ...] = shape()
    size1: tuple[int, ...] = shape()
    value: int = number(least=2, most=64)
    factor: int = number(least=2, most=64)
    product: int = number(least=2, most=64)
    cut: int = number(most=LARGEST_CUT, default=0)

    def check(self) -> None:
        check_widths(self.value, self.factor, self.product, self.cut)

    @cached_property
    def free(self) -> Fields:
        return masks(self.size0, self.size1, self.value, self.factor)

    @cached_property
    def derived(self) -> Fields:
        return dealt_fields(self.size0, self.size1, self.value, self.factor, self.product + self.cut, 0, self.cut)

    def derive(self, mask: list[Tensor], factor: list[Tensor]) -> dict[str, Tensor]:
        return dealt_products(read(mask, self.value), read(factor, self.factor), self.derived, self.cut)

    def shares(self, **tensors: Tensor) -> LiftedShares:
        return LiftedShares(**tensors)


def masks(size0: Sequence[int], size1: Sequence[int], k: int, factor: int) -> Fields:
    """Return the fields "mask" and "factor", for masks of values, k bits each, and of factors, `factor` bits each.

    size0, size1: shapes of the values and of the factors.
    """
    return {
        "mask": Field("ring", tuple(size0), width=k, apart=True),
        "factor": Field("ring", tuple(size1), width=factor, apart=True),
    }


def dealt_fields(
    size0: Sequence[int], size1: Sequence[int], k: int, factor: int, bits: int, whole: int, cut: int
) -> Fields:
    """Return the fields, by name, that a dealer derives from masks for products mod 2^bits; see `LiftedShares`.

    size0, size1: shapes of the values and of the factors, which are broadcast.
    k, factor: bits of the masks of values and of factors.
    whole: how many low bits of the masks of values are needed, if more than `bits`; else 0.
    cut: how many low bits of the products are not needed.
    """
    left, right, out = tuple(size0), tuple(size1), tuple(torch.broadcast_shapes(size0, size1))
    fields = {
        **dict.fromkeys(("carry", "wrapped"), (left, max(bits, whole) - k)),
        **dict.fromkeys(("factor_carry", "factor_wrapped"), (right, bits - factor)),
        "product": (out, bits - cut),
        "top": (out, bits - k),
        "factor_top": (out, bits - factor),
        "tops": (out, bits - k - factor),
    }
    return {name: Field("ring", size, width=width) for name, (size, width) in fields.items() if width > 0}


@dataclass(frozen=True)
class MaskValues:
    """Masks of k bits as the dealer knows them, made from the parties' summands.

    value: the masks, each the sum of its summands mod 2^k.
    carry: each sum less its mask, divided by 2^k, mod 2^(64 - k).
    top: the top bit of each mask.
    """

    value: Tensor
    carry: Tensor
    top: Tensor


def read(summands: list[Tensor], k: int) -> MaskValues:
    """Compute masks as the dealer does: each is the sum mod 2^k of the low k bits of the parties' summands.

    summands: a tensor of each party.
    Returns the masks with their carries and top bits.
    """
    low = (1 << k) - 1 if k < 64 else -1
    total = sum((summand.long() & low for summand in summands[1:]), summands[0].long() & low)
    # The sum is mod 2^64, so its carry is right mod 2^(64 - k); for k = 64 the carry is not used.
    return MaskValues(total & low, total >> min(k, 63), (total >> (k - 1)) & 1)


def dealt_products(a: MaskValues, b: MaskValues, fields: Fields, cut: int) -> dict[str, Tensor]:
    """Compute, as the dealer does, the values of the fields that `dealt_fields` has named; return them by name.

    a, b: the masks of values and of factors.
    fields: those that are wanted.
    cut: how many low bits of the products of masks are cut off.
    """
    values = {
        "carry": lambda: a.carry,
        "wrapped": lambda: a.carry + a.top,
        "factor_carry": lambda: b.carry,
        "factor_wrapped": lambda: b.carry + b.top,
        "product": lambda: (a.value * b.value + (1 << cut >> 1)) >> cut,
        "top": lambda: a.top * b.value,
        "factor_top": lambda: a.value * b.top,
        "tops": lambda: a.top * b.top,
    }
    return {name: value() for name, value in values.items() if name in fields}


class Operand(NamedTuple):
    """An operand of a product, and how it is opened: every party cuts its own share, and a mask hides the rest.

    share: this party's share of x, int64 of any shape, right mod 2^(k + shift).
    shift: how many bits of fraction are cut off x. The opened number stands for x / 2^shift.
    k: in how many bits it is opened; the mask has as many.
    """

    share: Tensor
    shift: int
    k: int


class Opening(NamedTuple):
    """A value opened behind a mask of k bits. All parties know this record.

    word: the opened number. The value is this number less the mask, which is read as an unsigned or a signed number.
    wraps: 1 if the mask is to be read as a signed number of k bits, 0 if as an unsigned one.
    """

    word: Tensor
    wraps: Tensor


class Mask(NamedTuple):
    """A party's share of the mask that is subtracted from an opened value: low - 2^k carry.

    low: this party's summand of the mask, in the low k bits.
    carry: its share of how often 2^k is subtracted from the sum of all summands; None if only k bits are needed.
    k: bits of the mask.
    """

    low: Tensor
    carry: Tensor | None
    k: int

    @property
    def share(self) -> Tensor:
        """This party's share of the mask as one number, low - 2^k carry.

        It is right in k bits more than `carry` has, or in k bits without `carry`.
        """
        return self.low if self.carry is None else self.low - (self.carry << self.k)


def product(session: Session, x: Operand, y: Operand, bits: int, cut: int = 0) -> Tensor:
    """Compute a share of z v / 2^cut mod 2^bits for small private values z and v, in one round.

    x, y: the operands, and how they are opened. x is opened in x.k bits, as z = x / 2^shift. With N parties, each of
        which rounds its own share, z is right within N/2 units, and exactly if the shares are multiples of 2^shift. |z|
        < 2^(x.k - 2) is required, unless x.k is bits + cut. y is opened as v in the same way.
    bits, cut: the result has torch's broadcast shape. It is exact for cut = 0, else within (N + 1)/2 units. The bits
        above `bits` are arbitrary.
    Cost: `price`.
    """
    request = made(LiftedProduct, tuple(x.share.shape), tuple(y.share.shape), x.k, y.k, bits, cut)
    shares = session.correlation(request)
    left, right = opened(session, (x, shares.mask), (y, shares.factor))
    mask = remaining(shares.mask, shares.carry, shares.wrapped, left.wraps, x.k)
    return multiplied(shares, left, mask, right, y.k, session.rank == 0, cut)


def opened(session: Session, *pairs: tuple[Operand, Tensor]) -> list[Opening]:
    """Open operands behind masks, all in one round, and return an `Opening` for each.

    pairs: an operand, and this party's summand of its mask.
    """
    mine = [masked(session, operand, mask) for operand, mask in pairs]
    frames = zip(mine, *session.channel.exchange(*mine).values(), strict=True)
    return [seen(parts, operand) for parts, (operand, _) in zip(frames, pairs, strict=True)]


def masked(session: Session, operand: Operand, mask: Tensor) -> Tensor:
    """Return this party's message of an opening: its share of the operand plus its summand of the mask, in packed bits.

    mask: the summand.
    """
    share, shift, k = operand
    flat = share.reshape(-1)
    # Mod 2^64: if k + shift > 64, only 64 - shift bits are right, and a summand that is lost here stands above them.
    half = ((1 << (k - 2 + shift)) + 2**63) % 2**64 - 2**63
    moved = flat + half if session.rank == 0 else flat
    return kernels.mask_words(moved, mask.reshape(-1), shift, k)


def seen(parts: Sequence[Tensor], operand: Operand) -> Opening:
    """Compute what all parties see of an operand once its messages are there: its `Opening`.

    parts: the message of each party, from `masked`.
    """
    share, _, k = operand
    words = kernels.open_words(list(parts), share.numel(), k).view(share.shape)
    return Opening(words - (1 << (k - 2)), 1 - ((words >> (k - 1)) & 1))


def remaining(summand: Tensor, carry: Tensor | None, wrapped: Tensor | None, wraps: Tensor, k: int) -> Mask:
    """Return this party's share of the mask that is to be subtracted from an opened value.

    summand: this party's summand of the mask, whose low k bits count.
    carry, wrapped: its shares of how often 2^k is subtracted from the sum of all summands, if the mask is read as an
        unsigned number or as a signed one; None if only k bits are needed.
    wraps: 1 where `wrapped` applies, 0 where `carry` does (`Opening.wraps`).
    """
    low = summand.long() & ((1 << k) - 1 if k < 64 else -1)
    if carry is None or wrapped is None:
        return Mask(low, None, k)
    return Mask(low, carry.where(wraps == 0, wrapped).long(), k)


def multiplied(
    shares: LiftedShares, left: Opening, mask: Mask, right: Opening, factor: int, first: bool, cut: int = 0
) -> Tensor:
    """Compute this party's share of z v / 2^cut, where z and v have been opened behind masks; return it.

    shares: this party's shares that were dealt for the product.
    left, right: the openings of z and of v.
    mask: this party's share of the mask of z.
    factor: how many bits v was opened in.
    first: whether this is party 0.
    """
    k, e, d = mask.k, left.word, right.word
    its = remaining(shares.factor, shares.factor_carry, shares.factor_wrapped, right.wraps, factor)
    fine = (e - mask.low if first else -mask.low) * d - e * its.low  # below 2^(k + K + 2), or right mod 2^64
    out = ((fine + (1 << cut >> 1)) >> cut) + shares.product.long()
    if mask.carry is not None:
        out = out + ((mask.carry * d) << (k - cut))
    if its.carry is not None:
        out = out + ((its.carry * e) << (factor - cut))
    if shares.top is not None:
        out = out - ((plain(shares.top).long() * left.wraps) << (k - cut))
    if shares.factor_top is not None:
        out = out - ((plain(shares.factor_top).long() * right.wraps) << (factor - cut))
    if shares.tops is not None:
        out = out + ((plain(shares.tops).long() * (left.wraps * right.wraps)) << (k + factor - cut))
    return out


def price(left: int, right: int, out: int, value: int, factor: int, bits: int, parties: int, cut: int = 0) -> Cost:
    """Return the price of `product`: 1 round.

    left, right, out: numbers of values, factors and results.
    value, factor: bits in which values and factors are opened.
    bits, cut: the results are mod 2^bits, without their lowest `cut` bits.
    """
    masks = 2 * packed(left * (bits + cut - value))
    offline = masks + dealt_bytes(right, out, value, factor, bits + cut, cut)
    return cost.opening(parties, packed(left * value) + packed(right * factor), 8 * offline)


def dealt_bytes(right: int, out: int, value: int, factor: int, bits: int, cut: int) -> int:
    """Return how many bytes are dealt for the masks of factors, and for the products of masks.

    right, out: how many factors and products there are.
    value, factor: bits of the masks of values and of factors.
    bits, cut: the products are needed mod 2^bits, without their lowest `cut` bits.
    """
    of_products = [bits - cut, bits - value, bits - factor, max(0, bits - value - factor)]
    return 2 * packed(right * (bits - factor)) + sum(packed(out * width) for width in of_products)


@dataclass(frozen=True)
class LiftedTimes(Operation):
    """Operation that gives x y, element by element with broadcasting, for private values that are known to be small.

    shift: how many bits of fraction are cut off x before.
    value, factor: bits in which x and y are opened, two more than their magnitudes have.
    bits: how many low bits of the result's shares later layers read.
    cut: bits of fraction that are cut off the result.
    """

    shift: int
    value: int
    factor: int
    bits: int
    cut: int = 0

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    def run(self, session: Session, x: Tensor, y: Tensor) -> Tensor:
        return product(session, Operand(x, self.shift, self.value), Operand(y, 0, self.factor), self.bits, self.cut)

    def price(self, parties: int, x: Tensor, y: Tensor) -> Cost:
        n = (x * y).numel()
        return price(x.numel(), y.numel(), n, self.value, self.factor, self.bits, parties, self.cut)
