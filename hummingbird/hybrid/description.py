"""A net as its server describes it: a tag of its weights, 64 hexadecimal digits, and the plan as JSON.

Both sides bind their stores to the SHA-256 of this text: to the net, its windows and its weights. The tag is a hash
under a secret of the server, for whoever guesses weights could test the guess by a plain one.
"""

from __future__ import annotations

import hashlib

from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.hybrid import plan_json
from hummingbird.hybrid.plan import Model, Plan

_TAG = 64  # digits


def describe(model: Model, secret: bytes) -> bytes:
    """The description of a model by the server that has this secret."""
    state = hashlib.blake2b(key=secret, digest_size=_TAG // 2)
    for number, found in sorted(model.parameters.items()):
        state.update(number.to_bytes(8, "little") + _octets(found.weight) + _octets(found.bias))
    return state.hexdigest().encode() + plan_json.to_json(model.plan).encode()


def read(text: bytes) -> Plan:
    """The plan of a description; InputError for anything malformed."""
    if len(text) < _TAG or not set(text[:_TAG]) <= set(b"0123456789abcdef"):
        raise InputError("a description that is cut short", where="plan", hint="is it a server of two-party inference?")
    return plan_json.from_json(text[_TAG:])


def digest(text: bytes) -> str:
    """SHA-256 in hexadecimal digits, to which stores are bound."""
    return hashlib.sha256(text).hexdigest()


def _octets(x: Tensor) -> bytes:
    return x.contiguous().numpy().tobytes()
