"""Secret-key CKKS in residues: a key, the randomness of a slice of ciphertexts, encryption and decryption.

With the secret s, a ciphertext of the polynomial m is (m + e - a s, a) for a uniform a and a small e, and its phase c_0
+ c_1 s is m + e (Cheon, Kim, Kim and Song, "Homomorphic encryption for arithmetic of approximate numbers", 2017, in the
residue form of Cheon et al. 2018). a is expanded from a seed, which is sent in its place. s is ternary, e centred
binomial (kernels/ciphertexts/polynomials.py). A product of ciphertexts has more components, and the phase sum_i c_i
s^i: the owner of s needs no relinearisation.

Two messages under the same a would reveal their difference, so no function takes a seed: `Coins` draws it from the
operating system, and one encryption consumes it.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch
from torch import Tensor

from hummingbird import prg
from hummingbird.errors import InputError
from hummingbird.he.scheme.packing import spread
from hummingbird.he.scheme.params import Parameters
from hummingbird.kernels.ciphertexts import ETA, Ring, compose, encrypt, encrypt_ntt, noise, phase, ternary, uniform

NOISE = ETA  # bound on |e|
VARIANCE = ETA / 2  # of a coefficient of e
SECRET = 2 / 3  # variance of a coefficient of s
ROUNDING = 1 / 12  # variance of a rounding error, uniform in +-1/2
PRECISION = 12  # bits: a plan keeps each kind of error below 2^-PRECISION of a value's root mean square
KEY_BYTES = prg.CIPHERS["chacha20"]  # of the seed of a key, which every device expands to the same key
FLOAT32 = 2.0**-25  # relative rounding error of a value that the client keeps in float32


class Coins:
    """Single-use randomness for `count` encryptions on a device, drawn from the operating system.

    It does not depend on the messages, so it can be drawn before they are known.
    """

    def __init__(self, ring: Ring, count: int, device: torch.device | str = "cpu") -> None:
        self.ring, self.count = ring, count
        self._seed = prg.new_seed()
        self._a = expand(ring, self._seed, count, device)
        self._noise = noise(prg.fresh(device), count, ring.degree)
        self._spent = False

    def spend(self) -> tuple[bytes, Tensor, Tensor]:
        """Return the randomness of all encryptions: a seed, the uniform component a that it determines, and errors e.

        a: int32 (count, L, N) for L primes, transformed (NTT). e: int32 (count, N). Raises InputError the second time.
        """
        if self._spent:
            hint = "draw new Coins: two messages under one mask reveal their difference"
            raise InputError("this randomness has been used", where="Coins", hint=hint)
        seed, a, e = self._seed, self._a, self._noise
        self._spent = True
        del self._seed, self._a, self._noise
        return seed, a, e

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise TypeError("Coins are single-use and cannot be copied")

    __copy__ = __reduce__ = lambda self, *_: self.__deepcopy__(None)


class SecretKey:
    """A client's secret key: it encrypts and decrypts, and only its seed leaves the object, for the client's own file.

    It is a polynomial of coefficients -1, 0 and 1, and serves any number of ciphertexts. device: of the key; messages,
    coins and ciphertexts must be on the same device. seed: 32 bytes, from which the key follows on every device; new
    ones from the operating system unless a saved key is loaded.

        key = SecretKey(choose(2048, 2))
        seed, body = key.encrypt(message, Coins(key.ring, 3), "mixed")
        key.decrypt(torch.stack([body, expand(key.ring, seed, 3)], 1), "mixed")  # message plus a small error
    """

    def __init__(self, parameters: Parameters, device: torch.device | str = "cpu", seed: bytes | None = None) -> None:
        self.parameters, self.ring = parameters, parameters.ring
        self.seed = prg.new_seed(KEY_BYTES) if seed is None else seed
        secret = ternary(prg.Stream(self.seed, device), parameters.degree)
        self._secret = self.ring.ntt(secret.expand(len(parameters.primes), -1).contiguous())

    def encrypt(self, message: Tensor, coins: Coins, form: str) -> tuple[bytes, Tensor]:
        """Encrypt n messages; returns the seed of component 1, and component 0, int32 (n, L, N) for L primes.

        message: int32 (n, N), |m| < 2^30 - 21. coins: for n ciphertexts of this ring. form: "ntt" for a transformed
        component 0, "mixed" for coefficients. Raises InputError for other coins, and for spent ones.
        """
        if coins.count != message.shape[0] or coins.ring != self.ring:
            what = f"coins for {coins.count} ciphertexts, {message.shape[0]} messages"
            raise InputError(what, where="SecretKey.encrypt", hint="draw Coins(key.ring, len(message))")
        seed, a, e = coins.spend()
        return seed, (encrypt if form == "mixed" else encrypt_ntt)(self.ring, message, e, a, self._secret)

    def decrypt(self, c: Tensor, form: str) -> Tensor:
        """Decrypt n ciphertexts to their messages, with the errors: integers in float64 (n, N).

        c: int32 (n, size, primes, N), residues modulo the first `primes` primes. form: "mixed", with component 0 as
        coefficients, or "ntt", all transformed.
        """
        ring = self.ring.take(c.shape[-2])
        return compose(ring, phase(ring, c, self._secret[: c.shape[-2]].contiguous(), form))

    def __repr__(self) -> str:
        return f"SecretKey(degree={self.parameters.degree}, primes={len(self.parameters.primes)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SecretKey is not serialized: Client.save writes its seed")


def expand(ring: Ring, seed: bytes, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the uniform component 1 of `count` ciphertexts, expanded from a seed: int32 (count, L, N), transformed.

    L is the number of primes. The result is the same on every device.
    """
    return uniform(ring, prg.Stream(seed, device), count)


# Predicted errors, as standard deviations -----------------------------------------------------------------------------
#
# Decoding multiplies the deviation of independent errors in the coefficients by `packing.spread`. A fresh coefficient
# has the errors e and of rounding the message. A modulus switch rounds every component to a multiple of the dropped
# primes, which adds sum_i r_i s^i to the phase with r_i uniform in [-1/2, 1/2]. For a ternary s, s^i has an energy of
# about i! (2N/3)^i: s at a root of unity is a sum of N terms, so its moments are those of a complex Gaussian. That is a
# deviation of 11 for two components at N = 2048, and of 2^10.6 for three at N = 8192, which is why ciphertexts of three
# components need a scale of about 2^44 after a switch.


def fresh_error(packing: str, degree: int) -> float:
    """Return the predicted standard deviation of a value's error in a new ciphertext, in units of the input scale.

    packing: how values are encoded in polynomials. degree: of the polynomials.
    """
    # Real slots make m_k = -m_{N-k}: roundings come in pairs, and all of their energy is in the real parts.
    return math.sqrt(VARIANCE + ROUNDING * (1 + (packing == "real"))) * spread(packing, degree)


def switch_error(packing: str, degree: int, size: int) -> float:
    """Return the predicted standard deviation of the error that dividing a ciphertext by a prime adds to a value.

    The result is in units of the divided ciphertext's integers. packing: how values are encoded in polynomials. degree:
    of the polynomials. size: components of the ciphertext.
    """
    energy = sum(math.factorial(i) * (SECRET * degree) ** i for i in range(size))
    return math.sqrt(ROUNDING * energy) * spread(packing, degree)
