"""bit * (x >> f) in one round: one opening converts the bit, multiplies, and truncates exactly.

The dealer shares a mask a (uniform in Z_2^64), a bit r, and products. The parties open

    e = x + 2^62 + a  mod 2^64      c = b xor r

With |x| < 2^62 the top bit of x + 2^62 is 0. So x + 2^62 + a overflowed if and only if the top bit of a is 1 and that
of e is 0. Hence

    (e >> f) - A = ((x + 2^62) >> f) + {0, 1},    A = a >> f, filled with zeros if e's top bit is 1, else with a's sign

(filling with the sign subtracts 2^(64-f), the wrap). The dealer shares both versions of A, and e is public, so every
party picks one. The truncation is exact to one unit for any N, while cutting each share by itself is wrong by 2^(64-f)
once in 2^62/|x|. And b * z = c z + (1 - 2c) r z needs only [r] and [r A]. This takes 65 bits and 1 round; B2A and a
Beaver product take 129 bits and 2 rounds, and a truncation among three parties takes one more (wrap from the top bits:
Escudero et al. 2020, section 5; merged with the product here).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from hummingbird import cost, kernels
from hummingbird.cost import Cost, packed
from hummingbird.mpc.correlations.field import Field, Fields, planes
from hummingbird.mpc.correlations.request import Request, number
from hummingbird.mpc.session.session import Session

OFFSET = 1 << 62  # makes every value within +-2^62 non-negative


class SelectionShares(NamedTuple):
    """A party's shares by which private values are shifted, and each is multiplied by a private bit.

    bit: xor shares of random bits r, packed uint8 (1, ceil(count/8)). All other fields are additive, int64 (count,).
    mask: of uniform masks.
    flag: of r as a number.
    unsigned, signed: of the mask's quotients, for the mask read as an unsigned and as a signed number.
    flag_unsigned, flag_signed: of r times these quotients.
    """

    bit: Tensor
    mask: Tensor
    flag: Tensor
    unsigned: Tensor
    signed: Tensor
    flag_unsigned: Tensor
    flag_signed: Tensor


@dataclass(frozen=True)
class Selection(Request[SelectionShares]):
    """Request for uniform masks a and uniform bits r, for the quotients a >> shift, and for products of r with these.

    r is shared by xor, and as a number. There are two quotients, as `shifted` returns them. For shift 0 there is no
    quotient but a itself, and r a is dealt once.
    """

    kind = "select"
    count: int = number()
    shift: int = number(most=62)

    @cached_property
    def free(self) -> Fields:
        return {"bit": planes(1, self.count), "mask": Field("ring", (self.count,))}

    @cached_property
    def derived(self) -> Fields:
        names = ("flag", "unsigned", "signed", "flag_unsigned", "flag_signed") if self.shift else ("flag", "flag_mask")
        return dict.fromkeys(names, Field("ring", (self.count,)))

    def derive(self, bit: Tensor, mask: Tensor) -> dict[str, Tensor]:
        flag = kernels.from_bits(bit.view(-1), self.count)
        if not self.shift:
            return {"flag": flag, "flag_mask": flag * mask}
        unsigned, signed = shifted(mask, self.shift)
        quotients = {"unsigned": unsigned, "signed": signed}
        return {"flag": flag, **quotients, "flag_unsigned": flag * unsigned, "flag_signed": flag * signed}

    def shares(self, **tensors: Tensor) -> SelectionShares:
        if not self.shift:
            mask, product = tensors["mask"], tensors.pop("flag_mask")
            return SelectionShares(**tensors, unsigned=mask, signed=mask, flag_unsigned=product, flag_signed=product)
        return SelectionShares(**tensors)


def select(session: Session, x: Tensor, bit: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """Compute this party's shares of bit * z and of z, both int64 (n,), for z = x >> shift.

    If shift > 0, z is right or one unit too large.
    x: its additive share, int64 (n,); |x| < 2^62.
    bit: its xor shares, packed uint8 (ceil(n/8),).
    Cost: `select_price`: 65 n bits, 1 round.
    """
    material = session.correlation(Selection(x.numel(), shift))
    opened, choice = x + material.mask, bit ^ material.bit.view(-1)
    _open(session, opened, choice)
    return kernels.select(
        opened,
        choice,
        material.flag,
        material.unsigned,
        material.signed,
        material.flag_unsigned,
        material.flag_signed,
        shift,
        session.rank == 0,
        OFFSET,
    )


def select_price(n: int, shift: int, parties: int) -> Cost:
    """Price of `select` on n values: 65 bits each and one round, truncation included."""
    return cost.opening(parties, 8 * n + packed(n), 64 * n * (5 if shift else 2))


class QuotientShares(NamedTuple):
    """A party's additive shares of random masks and of two quotients of each mask, rounded down; int64 (count,) each.

    unsigned, signed: the quotient of the mask read as an unsigned and as a signed 64-bit number.
    """

    mask: Tensor
    unsigned: Tensor
    signed: Tensor


@dataclass(frozen=True)
class Quotients(Request[QuotientShares]):
    """Base of requests for random masks and two quotients of each: of the mask as an unsigned and as a signed number.

    The masks are uniform 64-bit numbers, `count` of them. The sum of value and mask, which the parties open, tells
    which of the two quotients a party uses.
    """

    count: int = number()

    @cached_property
    def free(self) -> Fields:
        return {"mask": Field("ring", (self.count,))}

    @cached_property
    def derived(self) -> Fields:
        return dict.fromkeys(("unsigned", "signed"), Field("ring", (self.count,)))

    def shares(self, **tensors: Tensor) -> QuotientShares:
        return QuotientShares(**tensors)


@dataclass(frozen=True)
class Truncation(Quotients):
    """Request for uniform masks a, and two quotients a >> shift: filled with zeros, and with copies of the top bit."""

    kind = "truncate"
    shift: int = number(most=62)

    def derive(self, mask: Tensor) -> dict[str, Tensor]:
        unsigned, signed = shifted(mask, self.shift)
        return {"unsigned": unsigned, "signed": signed}


def truncate(session: Session, x: Tensor, shift: int) -> Tensor:
    """Compute this party's share of x >> shift, int64 (n,). The shifted value is right, or one unit too large.

    x: its share, int64 (n,); |x| < 2^62.
    Cost: `truncate_price`: 64 n bits, 1 round.
    """
    material = session.correlation(Truncation(x.numel(), shift))
    opened = x + material.mask
    _open(session, opened)
    return kernels.rescale(opened, material.unsigned, material.signed, shift, session.rank == 0, OFFSET)


def truncate_price(n: int, parties: int) -> Cost:
    """Price of `truncate` on n values: 64 bits each and one round."""
    return cost.opening(parties, 8 * n, 64 * n * 2)


def shifted(mask: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """Return two quotients mask >> shift: one filled with zeros from above, one with copies of the mask's top bit."""
    signed = mask >> shift
    return (signed & ((1 << (64 - shift)) - 1) if shift else signed), signed


def _open(session: Session, masked: Tensor, *bits: Tensor) -> None:
    """Open masked values and masked bits in one round. The opened numbers replace the arguments' contents.

    masked: this party's share of the values plus their masks, int64; party 0 adds `OFFSET` here, so that no value is
        negative.
    bits: this party's xor shares of masked bits, packed.
    """
    if session.rank == 0:
        masked += OFFSET
    for theirs in session.channel.exchange(masked, *bits).values():
        masked += theirs[0]
        for mine, other in zip(bits, theirs[1:], strict=True):
            mine ^= other
