"""All kinds of correlated randomness by name, and requests from what another process has sent."""

from __future__ import annotations

import dataclasses
from typing import Any

from hummingbird.errors import DealerError
from hummingbird.mpc.correlations.bits import And, AndPair, PrivateAnd
from hummingbird.mpc.correlations.lift import Lifting
from hummingbird.mpc.correlations.lifted_matmul import LiftedMatMul
from hummingbird.mpc.correlations.lifted_product import LiftedProduct
from hummingbird.mpc.correlations.masked import MaskedOpening
from hummingbird.mpc.correlations.poly import Polynomial
from hummingbird.mpc.correlations.products import FixedMask, FixedTriple, RowProducts, SquarePair, Triple
from hummingbird.mpc.correlations.provider import SharedBit, WordTriple, Wraps
from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.correlations.rows import LiftedRows
from hummingbird.mpc.correlations.thresholds import MaskedThresholds
from hummingbird.mpc.correlations.truncation import Division, Selection, Truncation

_ALL: tuple[type[Request[Any]], ...] = (
    *(MaskedOpening, MaskedThresholds, Polynomial, And, PrivateAnd, AndPair, Selection, Truncation, Division, Lifting),
    *(Triple, FixedMask, FixedTriple, SquarePair, RowProducts, LiftedProduct, LiftedMatMul, LiftedRows),
    *(WordTriple, SharedBit, Wraps),
)
KINDS = {found.kind: found for found in _ALL}


def from_json(item: object) -> Request[Any]:
    """The request that `Request.to_json` has told of; DealerError unless it is of `KINDS`, and within the limits."""
    kind, params = (item.get("kind"), item.get("params")) if isinstance(item, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(params, dict):
        raise DealerError("malformed request: a request has a kind and parameters")
    if kind not in KINDS:
        raise DealerError(f"unknown kind of correlated randomness {kind[:64]!r}", hint=f"known: {', '.join(KINDS)}")
    names = [field.name for field in dataclasses.fields(KINDS[kind])]
    if sorted(params) != sorted(names):
        raise DealerError(f"malformed request for {kind!r}: its parameters are {', '.join(names)}")
    return KINDS[kind](**{name: tuple(value) if isinstance(value, list) else value for name, value in params.items()})
