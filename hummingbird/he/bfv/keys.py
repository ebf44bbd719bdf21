"""Keys: the secret, encryption and decryption; and switching keys, which lead from one secret to another.

With the ternary secret s, a fresh ciphertext of x is (round(Q x / 2^k) + e - a s, a), for a uniform a from a seed and a
centred binomial e (kernels/ciphertexts/polynomials.py). A public key is a fresh ciphertext of 0.

Two messages under the same a would reveal their difference. So no function takes a seed: each encryption draws its own
from the operating system.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from hummingbird import prg
from hummingbird.cost import bfv_switching_key
from hummingbird.errors import InputError
from hummingbird.he.bfv.messages import Fresh, PublicKey, Reply, as_tensor, check_length
from hummingbird.he.bfv.scheme import DEGREE, REST, RING, check_bits, check_polynomials, decode, encrypted_zeros
from hummingbird.he.scheme.ckks import expand
from hummingbird.kernels.ciphertexts import accumulate, add, compose, encode, noise, pack, phase, ternary, unpack

# Key switching: the server turns Enc_user(x) into Enc_other(x) without learning x -------------------------------------
#
# With c_1 = sum_j [c_1]_{q_j} g_j, where g_j is 1 mod q_j and 0 modulo the other primes, and with each residue split
# into two centred digits of 13 bits,
#
#     c_0 + c_1 s = c_0 + sum_{j,h} d_{j,h} 2^(13h) g_j s,    |d| <= 2^12.
#
# So c_0 plus the sum of d_{j,h} times an encryption of 2^(13h) g_j s under the other's public key is a ciphertext of
# the same phase under the other's secret (Brakerski and Vaikuntanathan 2011; residues as digits: Bajard, Eynard, Hasan
# and Zucca 2016). Its noise is a sum of 8 N products of a digit and an error, of deviation 2^26.6 (noise.py). The user
# makes the 8 encryptions from its secret and the other's public key, and sends them to the server only: whoever holds
# the other's secret could decrypt them to the user's secret.

_DIGIT = 13  # bits
_PRIMES = len(RING.primes)
_KEYS = 2 * _PRIMES


@dataclass(frozen=True)
class SwitchingKey:
    """A key with which a server turns ciphertexts under a user's secret s into ciphertexts under another secret.

    parts: 8 ciphertexts under the other secret, int32 (8, 2, 4, N): two polynomials each, modulo four primes,
    transformed (NTT).
    Ciphertext 2j encrypts s g_j, and ciphertext 2j + 1 encrypts 2^13 s g_j, for the four primes j = 0 .. 3.
    g_j is the number that is 1 modulo prime j and 0 modulo the other primes. The formula stands in bfv/keys.py.
    """

    parts: Tensor

    @staticmethod
    def of(secret: Tensor, public: PublicKey) -> SwitchingKey:
        """Make the key with which a server switches ciphertexts from one secret to another; `Secret.switching_key`
        calls this.

        secret: the secret that encrypted the ciphertexts, int32 (4, N): modulo four primes, transformed (NTT).
        public: the public key of the secret to which ciphertexts are switched.
        """
        parts = encrypted_zeros(public.parts, _KEYS)
        for number in range(_KEYS):
            prime, half = divmod(number, 2)
            message = torch.zeros_like(secret)
            message[prime] = secret[prime]
            parts[number, 0] = add(RING, parts[number, 0], message, 1 << _DIGIT * half)
        return SwitchingKey(parts)

    def to_bytes(self) -> bytes:
        """Return the key as 851,968 bytes, which `from_bytes` reads."""
        return pack(RING, self.parts).numpy().tobytes()

    @staticmethod
    def from_bytes(data: bytes) -> SwitchingKey:
        """Return the key that `to_bytes` has written to `data`.

        Raises InputError for another length, or for a value that is not below its prime.
        """
        check_length(data, bfv_switching_key(), "he.bfv.SwitchingKey.from_bytes(data)")
        return SwitchingKey(unpack(RING, as_tensor(data, 0), (_KEYS, 2, _PRIMES, DEGREE)))


def switch_key(key: SwitchingKey, x: Tensor) -> Tensor:
    """Switch n ciphertexts to another secret, and return them: from then on, that other secret decrypts them.

    x: the ciphertexts, int32 (n, 2, 4, N), from `Fresh.parts`. The result has this shape and form too.
    Give the result to `evaluate`, together with the public key from which the switching key was made.
    Raises InputError for another type or shape.
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


# The secret -----------------------------------------------------------------------------------------------------------


class Secret:
    """A client's secret key, a polynomial of coefficients -1, 0 and 1: it encrypts and decrypts, and never leaves the
    object.

    One secret serves any number of ciphertexts. A server multiplies what the client has encrypted by weights w, and
    subtracts masks:

        secret = Secret.new()
        reply = evaluate(secret.public(), products(secret.encrypt(r, 20).parts(), weights, pairs, 3), masks, 20, used)
        secret.decrypt(reply, 20)  # int64 (3, N), w r - masks mod 2^20 where `used` says so, and 0 elsewhere
    """

    def __init__(self, values: Tensor) -> None:
        self._values = values  # int32 (4, N), transformed

    @classmethod
    def new(cls) -> Secret:
        """Draw a new secret from the operating system's randomness."""
        drawn = ternary(prg.fresh(), DEGREE)
        return cls(RING.ntt(drawn.expand(len(RING.primes), -1)))

    def public(self) -> PublicKey:
        """Make a public key; each call makes a new one."""
        return PublicKey(self.encrypt(torch.zeros(1, DEGREE, dtype=torch.int64), 1))

    def encrypt(self, polys: Tensor, k: int) -> Fresh:
        """Encrypt n polynomials with coefficients mod 2^k; return a `Fresh`, which holds the n ciphertexts.

        polys: int64 (n, N); only the coefficients' remainders mod 2^k matter.
        The randomness is drawn here. Raises InputError for another type or shape, or for k outside 1 .. 32.
        """
        where = "he.bfv.Secret.encrypt"
        check_bits(k, f"{where}(k)")
        check_polynomials(polys, f"{where}(polys)")
        seed = prg.new_seed()
        plain = RING.ntt(encode(RING, polys, k, noise(prg.fresh(), *polys.shape)))
        masks = self._times(expand(RING, seed, len(polys)))
        return Fresh(seed, add(RING, plain, masks, -1))

    def _times(self, a: Tensor) -> Tensor:
        """Return the product of each of n polynomials with the secret.

        a: the polynomials, int32 (n, 4, N): N values modulo each of four primes, transformed (NTT). The result has this
        form too.
        """
        pairs = torch.stack([torch.zeros(len(a), dtype=torch.int64), torch.arange(len(a))], 1)
        return accumulate(RING, a, self._values[None, None], pairs, len(a))[:, 0]

    def decrypt(self, reply: Reply, k: int) -> Tensor:
        """Decrypt a server's reply, which consists of n ciphertexts; return n polynomials, int64 (n, N).

        A coefficient that the server sent is a value in 0 .. 2^k - 1. All other coefficients are 0.
        k: the bits of a value for which the reply was made; for another k the values are wrong.
        Raises InputError for k outside 1 .. 32.
        """
        check_bits(k, "he.bfv.Secret.decrypt(k)")
        parts = reply.parts()
        parts[:, 1] = REST.ntt(parts[:, 1])
        x = compose(REST, phase(REST, parts, self._values[: len(REST.primes)], "mixed"))
        out = torch.zeros(x.numel(), dtype=torch.int64)
        out[reply.places] = decode(x.flatten()[reply.places], k)
        return out.view(x.shape)

    def switching_key(self, public: PublicKey) -> SwitchingKey:
        """Make the key with which a server turns ciphertexts under this secret into ciphertexts under another secret.

        public: the public key of the other secret. Send the switching key to the server only: the owner of the other
        secret could compute this secret from it.
        """
        return SwitchingKey.of(self._values, public)

    def __repr__(self) -> str:
        return f"Secret(degree={DEGREE})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not serialized")
