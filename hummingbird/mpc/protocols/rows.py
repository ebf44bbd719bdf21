"""Rows of private values that are lifted, squared and multiplied: one message for each value, one for each row.

A value z is opened as e', and what is left to subtract is a mask A of two forms, of which e' tells which
(lifted_product.py). So of

    z^2 = e'^2 - 2 e' A + A^2

all but A^2, summed over a row, is local; that is dealt, in both forms (correlations/rows.py). The same opening serves
the product with the factor of a row, which is opened when it is known. An element is opened once, in the k bits that it
may have, and neither it nor the factor takes a message to be lifted before.
"""

from __future__ import annotations

from torch import Tensor

from hummingbird.mpc.correlations.rows import LiftedRows, RowWidths
from hummingbird.mpc.protocols.lifted_product import Operand, multiplied, opened, remaining
from hummingbird.mpc.session.session import Session


class RowOpening:
    """Rows z = x / 2^shift, rounded by every party on its own, within N/2 units: opened at once, one round.

    x: int64 (..., length), right mod 2^(widths.value + shift). |z| < 2^(widths.value - 2). Cost: `cost.lifted_rows`,
    with the product.
    """

    def __init__(self, session: Session, x: Tensor, shift: int, widths: RowWidths) -> None:
        self._session, self._widths = session, widths
        self._shares = shares = session.correlation(LiftedRows(tuple(x.shape), *widths))
        (self._opened,) = opened(session, (Operand(x, shift, widths.value), shares.mask))
        self._mask = remaining(shares.mask, shares.carry, shares.wrapped, self._opened.wraps, widths.value)

    def squares(self) -> Tensor:
        """A share of the sum of each row's squares mod 2^sums, with anything above, (..., 1)."""
        e, wraps = self._opened
        mask = self._mask.share
        factor = e - 2 * mask if self._session.rank == 0 else -2 * mask
        turned = (self._shares.turned.long() * wraps).sum(-1, keepdim=True)
        return (e * factor).sum(-1, keepdim=True) + self._shares.squares + (turned << (self._widths.value + 1))

    def times(self, v: Tensor) -> Tensor:
        """A share of z v / 2^cut mod 2^product, with anything above, from one of v mod 2^factor, (..., 1): one round.

        |v| < 2^(factor - 2). The result is exact for cut = 0, else within (N + 1)/2 units.
        """
        first, widths = self._session.rank == 0, self._widths
        (factor,) = opened(self._session, (Operand(v, 0, widths.factor), self._shares.factor))
        return multiplied(self._shares, self._opened, self._mask, factor, widths.factor, first, widths.cut)
