"""bit * (x >> f) in one round: conversion of the bit, multiplication and exact truncation in a single opening.

The dealer shares a mask a (uniform in Z_2^64), a bit r, and products. The parties open

    e = x + 2^62 + a  mod 2^64      c = b xor r

With |x| < 2^62 the sum x + 2^62 has its top bit clear, so it overflowed if and only if a's top bit is set and e's is
not. Hence

    (e >> f) - A = ((x + 2^62) >> f) + {0, 1},    A = a >> f, zeros drawn in if e's top bit is set, else a's sign

(drawing in the sign subtracts 2^(64-f), the wrap). Both versions of A come shared, e is public, so every party picks
one: the truncation is exact to one unit for any N, where cutting each share on its own is wrong by 2^(64-f) once in
2^62/|x|. And b * z = c z + (1 - 2c) r z needs only [r], [r A]. 65 bits and 1 round, where B2A and a Beaver product
take 129 bits and 2 rounds, and a truncation among three parties one more (wrap from the top bits: Escudero et al.
2020, section 5; merged with the product here).
"""

from __future__ import annotations

from torch import Tensor

from hummingbird import kernels
from hummingbird.mpc.correlations.truncation import Selection, Truncation
from hummingbird.mpc.session.session import Session

OFFSET = 1 << 62  # makes every value within +-2^62 non-negative


def select(session: Session, x: Tensor, bit: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """Shares of bit * z and of z, z = x >> shift (shift > 0: plus 0 or 1 unit), both int64 (n,).

    x: additive shares int64 (n,), |x| < 2^62; bit: xor shares, packed uint8 (ceil(n/8),). Cost: `cost.select`: 65 n
        bits, 1 round.
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


def truncate(session: Session, x: Tensor, shift: int) -> Tensor:
    """Shares of x >> shift (plus 0 or 1 unit), int64 (n,), from shares of |x| < 2^62. Cost: `cost.truncate`: 64 n
    bits, 1 round.
    """
    material = session.correlation(Truncation(x.numel(), shift))
    opened = x + material.mask
    _open(session, opened)
    return kernels.rescale(opened, material.unsigned, material.signed, shift, session.rank == 0, OFFSET)


def _open(session: Session, masked: Tensor, *bits: Tensor) -> None:
    """Turn the party's summands into e and its xor shares into c, in place: one round."""
    if session.rank == 0:
        masked += OFFSET
    for theirs in session.channel.exchange(masked, *bits).values():
        masked += theirs[0]
        for mine, other in zip(bits, theirs[1:], strict=True):
            mine ^= other
