"""The secret: encryption and decryption.

With the ternary secret s, a fresh ciphertext of x is (round(Q x / 2^k) + e - a s, a), for a uniform a from a seed and a
centred binomial e (kernels/ciphertexts/sampling.py). A public key is a fresh ciphertext of 0.

The same a for two messages would give away their difference. So no seed is an argument: each encryption draws its own
from the operating system.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from hummingbird import prg
from hummingbird.he.bfv.messages import Fresh, PublicKey, Reply
from hummingbird.he.bfv.scheme import DEGREE, REST, RING, check_bits, check_polynomials, decode
from hummingbird.he.bfv.switching import SwitchingKey
from hummingbird.he.scheme.ckks import expand
from hummingbird.kernels.ciphertexts import accumulate, add, compose, encode, noise, phase, ternary


class Secret:
    """A ternary secret; it never leaves the object. One serves any number of ciphertexts.

    secret = Secret.new()
    reply = evaluate(secret.public(), products(secret.encrypt(r, 20).parts(), weights, pairs, 3), masks, 20, used)
    secret.decrypt(reply, 20)  # int64 (3, N), w r - masks mod 2^20 where `used` says so, and 0 elsewhere
    """

    def __init__(self, values: Tensor) -> None:
        self._values = values  # int32 (4, N), transformed

    @classmethod
    def new(cls) -> Secret:
        """Draw a secret."""
        drawn = ternary(prg.fresh(), DEGREE)
        return cls(RING.ntt(drawn.expand(len(RING.primes), -1)))

    def public(self) -> PublicKey:
        """Make a public key, a new one at each call."""
        return PublicKey(self.encrypt(torch.zeros(1, DEGREE, dtype=torch.int64), 1))

    def encrypt(self, polys: Tensor, k: int) -> Fresh:
        """Encrypt polynomials mod 2^k: int64 (n, N), of which the low k bits count, to n ciphertexts.

        All randomness is drawn here. InputError for another type or shape, or for k outside 1 .. 32.
        """
        where = "he.bfv.Secret.encrypt"
        check_bits(k, f"{where}(k)")
        check_polynomials(polys, f"{where}(polys)")
        seed = prg.new_seed()
        plain = RING.ntt(encode(RING, polys, k, noise(prg.fresh(), *polys.shape)))
        masks = self._times(expand(RING, seed, len(polys)))
        return Fresh(seed, add(RING, plain, masks, -1))

    def _times(self, a: Tensor) -> Tensor:
        """a s of each a: int32 (n, 4, N), transformed."""
        pairs = torch.stack([torch.zeros(len(a), dtype=torch.int64), torch.arange(len(a))], 1)
        return accumulate(RING, a, self._values[None, None], pairs, len(a))[:, 0]

    def decrypt(self, reply: Reply, k: int) -> Tensor:
        """Decrypt a reply: int64 (n, N), 0 .. 2^k - 1 in the coefficients that were sent, 0 in all others.

        InputError for k outside 1 .. 32. A reply of another k gives other values.
        """
        check_bits(k, "he.bfv.Secret.decrypt(k)")
        parts = reply.parts()
        parts[:, 1] = REST.ntt(parts[:, 1])
        x = compose(REST, phase(REST, parts, self._values[: len(REST.primes)], "mixed"))
        out = torch.zeros(x.numel(), dtype=torch.int64)
        out[reply.places] = decode(x.flatten()[reply.places], k)
        return out.view(x.shape)

    def switching_key(self, public: PublicKey) -> SwitchingKey:
        """Make the key that leads ciphertexts of this secret to that of a public key; for the server alone."""
        return SwitchingKey.of(self._values, public)

    def __repr__(self) -> str:
        return f"Secret(degree={DEGREE})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not serialized")
