"""Secret-key CKKS in residues: a key, the randomness of a slice of ciphertexts, encryption and decryption.

With the secret s, a ciphertext of the polynomial m is (m + e - a s, a) for a uniform a and a small e, and its phase
c_0 + c_1 s is m + e (Cheon, Kim, Kim and Song, "Homomorphic encryption for arithmetic of approximate numbers", 2017, in
the residue form of Cheon et al. 2018). a comes from a seed, which is sent in its place. s is ternary, e centred
binomial; see kernels/ciphertexts/sampling.py. A product of ciphertexts has more components, and the phase
sum_i c_i s^i: the owner of s needs no relinearisation.

The same a for two messages would give away their difference, so a seed is never an argument: `Coins` draws it from the
operating system and is spent by the encryption that uses it.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from hummingbird import prg
from hummingbird.errors import InputError
from hummingbird.he.scheme.params import Parameters
from hummingbird.kernels.ciphertexts import ETA, Ring, compose, encrypt, encrypt_ntt, noise, phase, ternary, uniform

NOISE = ETA  # |e| is at most this
VARIANCE = ETA / 2  # of a coefficient of e
SECRET = 2 / 3  # variance of a coefficient of s


class Coins:
    """The randomness of `count` encryptions on a device: fresh from the operating system, to be spent once.

    It does not depend on the messages, so it can be drawn before they are there.
    """

    def __init__(self, ring: Ring, count: int, device: torch.device | str = "cpu") -> None:
        self.ring, self.count = ring, count
        self._seed = prg.new_seed()
        self._a = expand(ring, self._seed, count, device)
        self._noise = noise(prg.fresh(device), count, ring.degree)
        self._spent = False

    def spend(self) -> tuple[bytes, Tensor, Tensor]:
        """Seed, a: int32 (count, L, N) transformed, e: int32 (count, N). InputError the second time."""
        if self._spent:
            hint = "draw new Coins: two messages under one mask give away their difference"
            raise InputError("this randomness has been used", where="Coins", hint=hint)
        seed, a, e = self._seed, self._a, self._noise
        self._spent = True
        del self._seed, self._a, self._noise
        return seed, a, e

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise TypeError("Coins are single-use and cannot be copied")

    __copy__ = __reduce__ = lambda self, *_: self.__deepcopy__(None)


class SecretKey:
    """A secret, ternary, drawn here; it never leaves the object. One key serves any number of ciphertexts.

    device: where it is, and where messages, coins and ciphertexts must be.

    key = SecretKey(choose(2048, 2))
    seed, body = key.encrypt(message, Coins(key.ring, 3), "mixed")
    key.decrypt(torch.stack([body, expand(key.ring, seed, 3)], 1), "mixed")  # message + e
    """

    def __init__(self, parameters: Parameters, device: torch.device | str = "cpu") -> None:
        self.parameters, self.ring = parameters, parameters.ring
        secret = ternary(prg.fresh(device), parameters.degree)
        self._secret = self.ring.ntt(secret.expand(len(parameters.primes), -1).contiguous())

    def encrypt(self, message: Tensor, coins: Coins, form: str) -> tuple[bytes, Tensor]:
        """Seed of a, and c_0: int32 (n, L, N), coefficients for form "mixed" and transformed for "ntt".

        message: int32 (n, N), |m| < 2^30 - 21. InputError for coins of another number or ring, or that are spent.
        """
        if coins.count != message.shape[0] or coins.ring != self.ring:
            what = f"coins for {coins.count} ciphertexts, {message.shape[0]} messages"
            raise InputError(what, where="SecretKey.encrypt", hint="draw Coins(key.ring, len(message))")
        seed, a, e = coins.spend()
        return seed, (encrypt if form == "mixed" else encrypt_ntt)(self.ring, message, e, a, self._secret)

    def decrypt(self, c: Tensor, form: str) -> Tensor:
        """The phase, whole numbers in float64 (n, N): c is int32 (n, size, primes, N), modulo the first primes, as
        many as it has.
        """
        ring = self.ring.take(c.shape[-2])
        return compose(ring, phase(ring, c, self._secret[: c.shape[-2]].contiguous(), form))

    def __repr__(self) -> str:
        return f"SecretKey(degree={self.parameters.degree}, primes={len(self.parameters.primes)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SecretKey is not serialized")


def expand(ring: Ring, seed: bytes, count: int, device: torch.device | str = "cpu") -> Tensor:
    """a of `count` ciphertexts: int32 (count, L, N), transformed; the same on every device."""
    return uniform(ring, prg.Stream(seed, device), count)
