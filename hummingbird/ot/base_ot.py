"""Base oblivious transfers from X25519: 128 random transfers in two messages; semi-honest.

The chooser has a bit b_i for each transfer and sends two public keys, pk_0 and pk_1. It knows the secret key of pk_b,
and makes the other one as

    pk_(1-b) = X25519(a scalar that it forgets, H)      H: a point on the curve, hashed from a public text

The sender answers with one public key A = X25519(a, 9), and both know

    key_i,s = BLAKE2b(X25519(a, pk_s), transcript, i, s)

the sender for both s, the chooser for s = b_i only: for the other s it would have to solve Diffie-Hellman on a multiple
of H, whose logarithm nobody knows (Bellare and Micali, "Non-interactive oblivious transfer and applications", CRYPTO
1989).

The sender must not be able to distinguish the two keys. A random number is the u-coordinate of a point of the curve
with probability 1/2, otherwise of its twist. A point of the curve is in the subgroup of prime order, as every public
key is, with probability 1/8. So H is on the curve, and X25519 scalars (RFC 7748), which are multiples of 8, map it to
the subgroup. There are 2^251 scalars, and 2^251 different u in the subgroup: pk_0 and pk_1 are both uniform up to about
2^-126.
"""

from __future__ import annotations

import hashlib
from functools import cache

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from torch import Tensor

from hummingbird import prg
from hummingbird.cost import BASE_OT_ANSWER, BASE_OT_CHOICE
from hummingbird.errors import InputError

COUNT = 128
KEY = 16  # bytes of a transfer's key
_POINT = 32  # bytes of a public key
_PRIME = 2**255 - 19
_HINT = "both sides need the same release"


class Chooser:
    """The side that chooses, in 128 base oblivious transfers: of two keys for each transfer it learns one. Used once.

    choices: uint8 (128,), zeros and ones. `message` has 8,192 bytes for the sender; the method `keys` takes the
    sender's reply.
    """

    def __init__(self, choices: Tensor) -> None:
        if choices.dtype != torch.uint8 or choices.shape != (COUNT,) or (choices > 1).any():
            raise InputError("expected 128 choices, uint8, 0 or 1", where="ot.base_ot.Chooser(choices)")
        self._choices = choices
        self._secrets = [X25519PrivateKey.generate() for _ in range(COUNT)]
        known = [secret.public_key().public_bytes_raw() for secret in self._secrets]
        unknown = [X25519PrivateKey.generate().exchange(hashed_point()) for _ in range(COUNT)]
        pair = torch.stack([_octets(b"".join(points)).view(COUNT, _POINT) for points in (known, unknown)], 1)
        self.message: bytes = torch.where(choices[:, None, None] > 0, pair.flip(1), pair).numpy().tobytes()

    def keys(self, reply: bytes) -> Tensor:
        """Compute the chosen key of each transfer, uint8 (128, 16), from the sender's reply of 32 bytes.

        Raises InputError for anything else.
        """
        where = "base OT, the sender's key"
        if len(reply) != BASE_OT_ANSWER:
            raise InputError(f"expected {BASE_OT_ANSWER} bytes, got {len(reply)}", where=where, hint=_HINT)
        shared = [_exchange(secret, public_key(reply, where), where) for secret in self._secrets]
        both = _hash(shared, self.message + reply, (0, 1))
        return torch.where(self._choices[:, None] > 0, both[:, 1], both[:, 0])


def answer(message: bytes) -> tuple[bytes, Tensor]:
    """Answer a chooser's message, as the sender: returns 32 bytes for the chooser, and both keys of all transfers.

    The keys are uint8 (128, 2, 16). Raises InputError unless the message is 256 public keys: for another size, a number
    of 2^255 - 19 or more, and a point of low order, whose multiples anybody knows.
    """
    where = "base OT, the chooser's keys"
    if len(message) != BASE_OT_CHOICE:
        raise InputError(f"expected {BASE_OT_CHOICE} bytes, got {len(message)}", where=where, hint=_HINT)
    points = [public_key(message[at : at + _POINT], where) for at in range(0, BASE_OT_CHOICE, _POINT)]
    secret = X25519PrivateKey.generate()
    own = secret.public_key().public_bytes_raw()
    shared = [_exchange(secret, point, where) for point in points]
    keys = [_hash(shared[which::2], message + own, (which,)) for which in range(2)]
    return own, torch.cat(keys, 1)


def public_key(data: bytes, where: str) -> X25519PublicKey:
    """Read a public key from 32 bytes, a number below 2^255 - 19. Raises InputError for anything else."""
    if len(data) != _POINT or int.from_bytes(data, "little") >= _PRIME:
        raise InputError("this is no public key of X25519", where=where, hint=_HINT)
    return X25519PublicKey.from_public_bytes(data)


@cache
def hashed_point() -> X25519PublicKey:
    """Find the point H of curve X25519 whose discrete logarithm nobody knows, by hashing.

    H is the first hash that is the u of a point on y^2 = u^3 + 486662 u^2 + u.
    """
    for attempt in range(256):
        digest = hashlib.blake2b(bytes([attempt]), digest_size=64, person=b"hummingbird H").digest()
        u = int.from_bytes(digest, "little") % _PRIME
        if pow(u * (u * u + 486662 * u + 1), (_PRIME - 1) // 2, _PRIME) == 1:
            return X25519PublicKey.from_public_bytes(u.to_bytes(_POINT, "little"))
    raise AssertionError("half of all numbers are on the curve")


def _exchange(secret: X25519PrivateKey, point: X25519PublicKey, where: str) -> bytes:
    try:
        return secret.exchange(point)
    except ValueError:  # the result is 0
        raise InputError("a public key is a point of low order", where=where, hint=_HINT) from None


def _hash(shared: list[bytes], transcript: bytes, which: tuple[int, ...]) -> Tensor:
    """Derive the keys of all 128 transfers from Diffie-Hellman secrets: uint8 (128, len(which), 16).

    shared: the secrets, one for each transfer. transcript: all messages of the two sides.
    which: the choices for which keys are derived, 0, 1 or both.
    """
    name = hashlib.blake2b(transcript, digest_size=32).hexdigest()
    keys = [prg.derive(x, "base OT", name, i, s, size=KEY) for i, x in enumerate(shared) for s in which]
    return _octets(b"".join(keys)).view(COUNT, len(which), KEY)


def _octets(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
