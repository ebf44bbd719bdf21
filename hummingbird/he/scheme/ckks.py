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
        """Return the randomness of all encryptions, once: the seed, and the tensors a and e.

        a: the polynomials that follow from the seed, uniform, int32 (count, primes, N), transformed (NTT).
        e: the small errors, int32 (count, N). Raises InputError the second time.
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
        """Encrypt n messages; return the seed of all components 1, and the components 0, int32 (n, primes, N).

        A ciphertext is a pair of polynomials, components 0 and 1; component 1 follows from the seed (`expand`).
        message: int32 (n, N), |m| < 2^30 - 21. coins: randomness for n ciphertexts of this key's ring.
        form: "ntt" to get components 0 transformed (NTT), "mixed" to get coefficients.
        Raises InputError for other coins, and for spent ones.
        """
        if coins.count != message.shape[0] or coins.ring != self.ring:
            what = f"coins for {coins.count} ciphertexts, {message.shape[0]} messages"
            raise InputError(what, where="SecretKey.encrypt", hint="draw Coins(key.ring, len(message))")
        seed, a, e = coins.spend()
        return seed, (encrypt if form == "mixed" else encrypt_ntt)(self.ring, message, e, a, self._secret)

    def decrypt(self, c: Tensor, form: str) -> Tensor:
        """Decrypt n ciphertexts; return their messages, with the errors of encryption: integers in float64 (n, N).

        c: int32 (n, components, primes, N), residues modulo the first primes of the key's modulus.
        form: "mixed" if component 0 is given as coefficients and the others are transformed (NTT), "ntt" if all are
        transformed.
        """
        ring = self.ring.take(c.shape[-2])
        return compose(ring, phase(ring, c, self._secret[: c.shape[-2]].contiguous(), form))

    def __repr__(self) -> str:
        return f"SecretKey(degree={self.parameters.degree}, primes={len(self.parameters.primes)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SecretKey is not serialized: Client.save writes its seed")


def expand(ring: Ring, seed: bytes, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Return component 1 of `count` ciphertexts, which follows from a seed: int32 (count, primes, N), uniform.

    A ciphertext (c_0, c_1) of the polynomial m under the secret s has a random c_1 and c_0 = m + e - c_1 s, with a
    small error e.
    So a seed is sent in place of c_1. The result is transformed (NTT), and the same on every device.
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
    """Return the standard deviation of the error that encryption adds to a value, in units of 1 / (the input scale).

    packing: how values are encoded in polynomials: "coefficients", "complex" or "real". degree: number of coefficients
    of a polynomial.
    """
    # Real slots make m_k = -m_{N-k}: roundings come in pairs, and all of their energy is in the real parts.
    return math.sqrt(VARIANCE + ROUNDING * (1 + (packing == "real"))) * spread(packing, degree)


def switch_error(packing: str, degree: int, size: int) -> float:
    """Return the standard deviation of the error that dividing a ciphertext by a prime adds to a value.

    The result counts in integers of the divided ciphertext.
    packing: how values are encoded in polynomials: "coefficients", "complex" or "real". degree: number of coefficients
    of a polynomial. size: components of the ciphertext.
    """
    energy = sum(math.factorial(i) * (SECRET * degree) ** i for i in range(size))
    return math.sqrt(ROUNDING * energy) * spread(packing, degree)
