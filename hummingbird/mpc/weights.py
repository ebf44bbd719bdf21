"""A layer's weight, public or of one party: its bits of fraction, where it is kept, and products with it.

Weights have 20 bits of fraction, and public ones more where they are small; private ones have no number of their own,
for it would tell how small they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hummingbird import ring
from hummingbird.mpc import session as sessions
from hummingbird.mpc.layer import Layer
from hummingbird.mpc.protocols.weight_mask import FixedWeight
from hummingbird.mpc.session import Session
from hummingbird.ring import WEIGHT_SCALE


def private_fraction(weight: Tensor, owner: int) -> int:
    """Bits of fraction of a weight of party `owner`: 20. InputError, at its owner, if they are too few."""
    if not sessions.is_initialized() or sessions.current().rank == owner:
        ring.fraction(weight, WEIGHT_SCALE, where="weight")
    return WEIGHT_SCALE


def set_weight(layer: Layer, code: Tensor, owner: int | None) -> None:
    """`layer.weight`, from its int64 code: a buffer if it is public, else its owner's."""
    if owner is None:
        layer.register_buffer("weight", code)
    else:
        layer.weight = FixedWeight(code, owner)


def times(
    session: Session, op: str, x: Tensor, weight: Tensor | FixedWeight, options: dict[str, Any], view: Sequence[int]
) -> Tensor:
    """Share of op(x, weight) mod 2^64, int64, with the weight in the shape `view`.

    A public weight costs nothing, a private one `cost.fixed_product`.
    """
    if isinstance(weight, FixedWeight):
        return weight.product(session, op, x, options, view)
    return ring.bilinear(op, x, weight.view(tuple(view)), **options)
