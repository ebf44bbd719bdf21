"""The protocols that decide signs, and the kinds of correlated randomness, by name.

Users write the name of a protocol: `convert_model(net, protocol="masked")`. The name of a kind is in the requests that
another process sends to a dealer, or that a file has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from hummingbird.errors import ConfigError, DealerError
from hummingbird.mpc.correlations import provider
from hummingbird.mpc.correlations.request import REGISTERED, Request
from hummingbird.mpc.protocols import (
    beaver,
    boolean,
    cached_rows,
    division,
    gmw,
    lift,
    lifted_matmul,
    lifted_product,
    lines,
    masked,
    owned,
    poly,
    rows,
    thresholds,
    truncation,
    weight_mask,
)
from hummingbird.mpc.protocols.gmw import Gmw
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.protocols.masked import Masked

PROTOCOLS: dict[str, type[Comparison]] = {"masked": Masked, "gmw": Gmw}

# Another process can request the kinds that these modules define, and no others.
MODULES = (
    *(beaver, boolean, cached_rows, division, gmw, lift, lifted_matmul, lifted_product, lines, masked),
    *(poly, rows, thresholds, truncation, weight_mask, provider),
)
_NAMES = {module.__name__ for module in MODULES}
KINDS = {kind: found for kind, found in REGISTERED.items() if found.__module__ in _NAMES}
# A store may also have what follows from a party's weights: two parties make it, and no dealer.
STORED_KINDS: dict[str, type[Request[Any]]] = {**KINDS, owned.OwnedProduct.kind: owned.OwnedProduct}


def named(protocol: str) -> type[Comparison]:
    """Return the class of the comparison that a protocol uses. protocol: "masked" or "gmw"; ConfigError for others."""
    if protocol not in PROTOCOLS:
        raise ConfigError(f"unknown protocol {protocol!r}", where="protocol", hint=f"one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[protocol]


def from_json(item: object, kinds: Mapping[str, type[Request[Any]]] = KINDS) -> Request[Any]:
    """Make the request that a dict of JSON values describes, as `Request.to_json` has written it; return it.

    kinds: those that it may have, `KINDS` or `STORED_KINDS`.
    Raises DealerError for an unknown kind, and for parameters that are missing or out of bounds.
    """
    kind, params = (item.get("kind"), item.get("params")) if isinstance(item, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(params, dict):
        raise DealerError("malformed request: a request has a kind and parameters")
    if kind not in kinds:
        raise DealerError(f"unknown kind of correlated randomness {kind[:64]!r}", hint=f"known: {', '.join(kinds)}")
    names = [field.name for field in dataclasses.fields(kinds[kind])]
    if sorted(params) != sorted(names):
        raise DealerError(f"malformed request for {kind!r}: its parameters are {', '.join(names)}")
    return kinds[kind](**{name: tuple(value) if isinstance(value, list) else value for name, value in params.items()})
