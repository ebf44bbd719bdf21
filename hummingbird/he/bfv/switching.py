"""Switch ciphertexts from a user's secret to that of another: the server turns Enc_user(x) into Enc_other(x), unread.

With c_1 = sum_j [c_1]_{q_j} g_j for g_j = 1 mod q_j and 0 modulo the other primes, and each residue in two digits of 13
bits, centred,

    c_0 + c_1 s = c_0 + sum_{j,h} d_{j,h} 2^(13h) g_j s,    |d| <= 2^12,

so c_0 and the sum of d_{j,h} times an encryption of 2^(13h) g_j s under the other's public key are a ciphertext of the
same phase under the other's secret (Brakerski and Vaikuntanathan 2011; residues as digits: Bajard, Eynard, Hasan and
Zucca 2016). The noise is sum d e over 8 N terms: deviation 2^26.6, noise.py. The user makes the 8 encryptions from its
secret and the public key, and sends them to the server alone: the other could decrypt them, and has the secret then.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hummingbird.cost import bfv_switching_key
from hummingbird.errors import InputError
from hummingbird.he.bfv.messages import PublicKey, as_tensor, check_length
from hummingbird.he.bfv.scheme import DEGREE, RING, encrypted_zeros
from hummingbird.kernels.ciphertexts import accumulate, add, pack, unpack

_DIGIT = 13  # bits
_PRIMES = len(RING.primes)
_KEYS = 2 * _PRIMES


@dataclass(frozen=True)
class SwitchingKey:
    """Encryptions of 2^(13h) g_j s, for each prime j the two h: int32 (8, 2, 4, N), transformed."""

    parts: Tensor

    @staticmethod
    def of(secret: Tensor, public: PublicKey) -> SwitchingKey:
        """Encrypt a secret, int32 (4, N), transformed; `Secret.switching_key` is what users call."""
        parts = encrypted_zeros(public.parts, _KEYS)
        for number in range(_KEYS):
            prime, half = divmod(number, 2)
            message = torch.zeros_like(secret)
            message[prime] = secret[prime]
            parts[number, 0] = add(RING, parts[number, 0], message, 1 << _DIGIT * half)
        return SwitchingKey(parts)

    def to_bytes(self) -> bytes:
        """851,968 bytes."""
        return pack(RING, self.parts).numpy().tobytes()

    @staticmethod
    def from_bytes(data: bytes) -> SwitchingKey:
        """Read a key; InputError for another length, or for a value that is no residue."""
        check_length(data, bfv_switching_key(), "he.bfv.SwitchingKey.from_bytes(data)")
        return SwitchingKey(unpack(RING, as_tensor(data, 0), (_KEYS, 2, _PRIMES, DEGREE)))


def switch_key(key: SwitchingKey, x: Tensor) -> Tensor:
    """Switch ciphertexts to the secret that a key leads to: int32 (n, 2, 4, N), `Fresh.parts`, to the same shape.

    The result is for `evaluate`, with the public key that the switching key was made with. InputError for another type
    or shape.
    """
    RING.check(x, "he.bfv.switch_key(x)", 4)
    if x.shape[1] != 2:
        raise InputError(f"{x.shape[1]} parts", where="he.bfv.switch_key(x)", hint="ciphertexts have two parts")
    out = torch.empty_like(x)
    pairs = torch.stack([torch.arange(_KEYS), torch.zeros(_KEYS, dtype=torch.int64)], 1)
    for number, (first, second) in enumerate(x):  # one by one: its digits are 512 KiB
        residues = RING.intt(second)
        high = residues + (1 << _DIGIT - 1) >> _DIGIT
        digits = torch.stack([residues - (high << _DIGIT), high], 1).view(_KEYS, 1, DEGREE)
        values = RING.ntt(digits.expand(-1, _PRIMES, -1))
        out[number] = accumulate(RING, values, key.parts, pairs, 1)[0]
        out[number, 0] = add(RING, out[number, 0], first)
    return out
