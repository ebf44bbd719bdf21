"""Replies: a server's sums of products, which reveal to the client their masked values and nothing else.

The client knows s and what it sent. From a plain sum of products it could compute the weights, because c_1 is w a and
it knows a. So the server adds to each sum

    u pk + (e_1, e_2)         an encryption of 0: u ternary, e_i binomial. c_1 + u a + e_2 looks uniform, for u a + e_2
                              is a sample of ring learning with errors, of degree N and modulus Q, under the secret u
    round(Q (-mask) / 2^k)    in ALL coefficients: the values, w r - mask mod 2^k, are uniform
    flood                     uniform in [-2^F, 2^F): it hides the noise of the phase, which depends on w; noise.py

c_0 follows from the phase and c_1. Then two primes are dropped: the result is a function of the parts, so it reveals no
more than they do. A mask serves one reply: two replies with one mask would reveal w (r - r').
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird import prg
from hummingbird.errors import InputError
from hummingbird.he.bfv.messages import PublicKey, Reply
from hummingbird.he.bfv.noise import flood_bits
from hummingbird.he.bfv.scheme import DEGREE, REST, RING, check_bits, check_polynomials, encrypted_zeros
from hummingbird.kernels.ciphertexts import add, encode, switch, wide


def draw_masks(stream: prg.Stream, count: int, k: int) -> Tensor:
    """Draw the masks that hide the values of `count` replies: int64 (count, N), uniform in 0 .. 2^k - 1.

    stream: the random stream to draw from. k: bits of a plaintext value.
    """
    check_bits(k, "he.bfv.draw_masks(k)")
    return stream.words(count, DEGREE, dtype=torch.int32).long() & ((1 << k) - 1)


def evaluate(public: PublicKey, sums: Tensor, masks: Tensor, k: int, used: Sequence[Tensor]) -> Reply:
    """Make a reply of sums of products, from which the client decrypts values - masks mod 2^k and nothing else.

    public: the client's key.
    sums: n ciphertexts, int32 (n, 2, 4, N), from `products`. The bounds of bfv/noise.py must hold for their noise.
    masks: int64 (n, N), from `draw_masks`, for this reply only. k: bits of a plaintext value.
    used: for each ciphertext the positions of the coefficients to send, int64 (values,).
    The randomness is drawn here. Raises InputError for other types, shapes, k, or positions.
    """
    where = "he.bfv.evaluate"
    check_bits(k, f"{where}(k)")
    RING.check(sums, f"{where}(sums)", 4)
    if sums.shape[1] != 2:
        raise InputError(f"{sums.shape[1]} parts", where=f"{where}(sums)", hint="sums of products have two parts")
    count = len(sums)
    check_polynomials(masks, f"{where}(masks)", count)
    parts = RING.intt(add(RING, sums, encrypted_zeros(public.parts, count)))
    mask = encode(RING, -masks, k, torch.zeros(count, DEGREE, dtype=torch.int32))
    flood = wide(RING, prg.fresh(), count, flood_bits(k) + 1)
    parts[:, 0] = add(RING, parts[:, 0], add(RING, mask, flood))
    return Reply.of(dropped(parts), used)


def dropped(parts: Tensor) -> Tensor:
    """Return ciphertexts divided by two of their four primes and rounded: int32 (n, 2, 4, N) to int32 (n, 2, 2, N).

    parts: the ciphertexts, as coefficients and not transformed; so is the result.
    """
    rows = parts.view(-1, 1, *parts.shape[2:])
    for primes in range(len(RING.primes), len(REST.primes), -1):
        rows = switch(RING.take(primes), rows, "mixed")
    return rows.view(*parts.shape[:2], *rows.shape[2:])
