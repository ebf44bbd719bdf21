"""Products of a party's polynomials with the other party's encrypted ones, exact modulo 2^k for k up to 64: BFV.

A ciphertext (c_0, c_1) of a polynomial x has the phase c_0 + c_1 s = Q x / 2^k + noise mod Q (Brakerski 2012; Fan and
Vercauteren, ePrint 2012/144). The other party multiplies it by its own polynomials w, adds up, and answers with the
values less masks r:

    sum of w (c_0, c_1)  +  u (b, a) + (e_0, e_1)  +  (-Q r / 2^k + flood, 0)

(b, a) is the public key, an encryption of 0, and u is ternary. So c_1 is a sample of ring learning with errors under u.
The owner of s learns x w - r in the coefficients that are sent, and the noise.

*Noise.* Factors have |w| <= 2^(v-1), with v = k for uniform masks, and a sum has T of their coefficients. An error is
at most 21, a rounded coefficient is within 1/2. Before the flood, a coefficient's noise is at most

    D = 21.5 T 2^(v-1) + 21 (2N + 1) + 1/2

*Privacy.* It depends on w, and the flood hides it, uniform in [-2^F, 2^F): the statistical distance of the flood from
the flood with noise d is at most d / 2^(F+1). Errors are drawn without knowing w, so a sum is almost never near D. It
has T terms w (e + r), where r is what rounding adds to a coefficient, and 2N + 1 terms of the encryption of 0: an error
times u or s. An error is the sum of 42 independent numbers +-1/2. What is encrypted is uniform mod 2^k, or 0, so r is
uniform among 2^k numbers in [-1/2, 1/2), of mean -2^-(k+1), or 0. By Hoeffding's inequality a sum is farther than t
from its mean with a probability of at most

    2 exp(-t^2 / 21.5 (T 4^(v-1) + 2N + 1))

For t^2 = 15 (43 + l) (T 4^(v-1) + 2N + 1), and fewer than 2^l values, the probability that any is so far is below
2^-41. Else the noise is at most d = t + T 2^(v-1) / 2^(k+1) + 1/2. `Encryption.of` takes the fewest primes for which
the sum of d / 2^(F+1) over all values of an answer is at most 2^-41, too: 2^-40 together. It refuses a product for
which the largest secure modulus is not enough.

*Correctness.* F = floor(log2 Q - k - 2), so that the flood is at most a quarter of Q / 2^k; or F is one less, if an
answer then has fewer primes. Primes are dropped; each step rounds both parts, which changes a coefficient by at most
(N + 1)/2. The result is exact while the noise stays below half of Q' / 2^k, where Q' has the primes that are kept:
always, for the bound is D.

N = 8192 and at most 8 primes of 26 bits, or N = 4096 and at most 4: both are secure for a ternary secret by both tables
of he/scheme/params.py, which a test compares. Secrets and public keys are fresh for each call of `PairMaterial`, or for
each request of private weights (owned.py); a seed stands for the uniform part of what is encrypted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird import kernels, prg
from hummingbird.cost import packed
from hummingbird.kernels.ciphertexts import (
    ETA,
    Ring,
    accumulate,
    add,
    encrypt_ntt,
    largest_primes,
    noise,
    pack,
    packed_bytes,
    phase,
    switch,
    ternary,
    uniform,
    unpack,
    wide,
)
from hummingbird.kernels.ciphertexts.ring import BITS
from hummingbird.mpc.pair.lockstep import Rounds

DEGREE, MOST_PRIMES = 8192, 8
PRIMES = largest_primes(DEGREE, MOST_PRIMES)
SECURE = {4096: largest_primes(4096, 4), DEGREE: PRIMES}  # by the degree, all primes that are secure together
MOST_DISTANCE = Fraction(1, 1 << 40)  # of what an answer shows of the other party's factors, for each request
MOST_TERMS = 4096  # polynomials in a sum, for which the kernel is exact
_ROUNDED = Fraction(1, 1 << 20)  # of a unit: more than what float64 adds as values are decoded


@dataclass(frozen=True)
class Encryption:
    """The parameters with which polynomials mod 2^bits are encrypted for one product.

    bits: of a value. primes: how many primes a new ciphertext has. kept: how many an answer has. flood: F, of the noise
    that hides factors, uniform in [-2^F, 2^F). factor: bits of a factor, a signed number. degree: N.
    """

    bits: int
    primes: int
    kept: int
    flood: int
    factor: int
    degree: int = DEGREE

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(bits: int, terms: int, values: int, factor: int = 0, degree: int = DEGREE) -> Encryption | None:
        """Return the parameters with the fewest primes that are exact and private; None if no secure ones are.

        terms: how many coefficients the factors of one sum have, over all its polynomials. values: how many values the
        answers send. factor: bits of a factor; 0: as many as of a value. degree: N.
        """
        factor = min(factor, bits) or bits
        likely = noise_likely(bits, terms, values, factor, degree)
        for primes in range(2, len(SECURE[degree]) + 1):
            most = (math.prod(SECURE[degree][:primes]) >> bits + 2).bit_length() - 1
            for kept, flood in ((kept, flood) for kept in range(1, primes) for flood in (most, most - 1)):
                if flood < 0 or values * likely / (2 << flood) > MOST_DISTANCE / 2:
                    continue
                found = Encryption(bits, primes, kept, flood, factor, degree)
                if found.noise_after(terms) < (Fraction(1, 2) - _ROUNDED) * found.unit:
                    return found
        return None

    @property
    def ring(self) -> Ring:
        """The ring of new ciphertexts."""
        return ring_of(self.primes, self.degree)

    @property
    def rest(self) -> Ring:
        """The ring of answers."""
        return ring_of(self.kept, self.degree)

    @property
    def unit(self) -> Fraction:
        """How much a value of 1 adds to the phase of an answer: Q' / 2^bits."""
        return Fraction(math.prod(self.rest.primes), 1 << self.bits)

    def noise_after(self, terms: int) -> Fraction:
        """Return a bound on the noise of an answer, with the flood and after primes were dropped."""
        found = noise_before(self.factor, terms, self.degree) + (1 << self.flood)
        for prime in reversed(self.ring.primes[self.kept :]):
            found = found / prime + Fraction(self.degree + 1, 2)
        return found

    def new_bytes(self, polynomials: int) -> int:
        """Return the size in bytes of a message with new ciphertexts. polynomials: their number."""
        return prg.SEED_BYTES + packed_bytes((polynomials, self.primes, self.degree))

    def answer_bytes(self, polynomials: int, values: int) -> int:
        """Return the bytes of a message with answers. polynomials: the number of ciphertexts. values: of results."""
        return packed_bytes((polynomials, self.kept, self.degree)) + packed(BITS * self.kept * values)


def noise_before(factor: int, terms: int, degree: int = DEGREE) -> Fraction:
    """Return a bound on a coefficient's noise before the flood (D above).

    terms: how many coefficients of at most 2^(factor-1) in absolute value the factors of one sum have. degree: N.
    """
    return Fraction((2 * ETA + 1) * terms << factor - 1, 2) + ETA * (2 * degree + 1) + Fraction(1, 2)


def noise_likely(bits: int, terms: int, values: int, factor: int, degree: int = DEGREE) -> Fraction:
    """Return a bound on the noise before the flood (d above) that all values meet, but for a probability of 2^-41.

    bits: of a value. values: how many there are. terms, factor, degree: as for `noise_before`.
    """
    squares = (terms << 2 * factor - 2) + 2 * degree + 1
    far = math.isqrt(15 * (43 + values.bit_length()) * squares) + 1
    return min(noise_before(factor, terms, degree), far + Fraction(terms << factor - 1, 2 << bits) + Fraction(1, 2))


def ring_of(primes: int, degree: int = DEGREE) -> Ring:
    """Return the ring of the first `primes` primes."""
    return Ring.of(degree, SECURE[degree][:primes])


# Keys -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class PairKeys:
    """A party's secret, and the public key of the other party, modulo as many primes as any product of a call takes.

    secret: int32 (primes, N). public: int32 (2, primes, N). Both are transformed (NTT).
    """

    secret: Tensor
    public: Tensor

    @staticmethod
    def exchanged(primes: int) -> Rounds[PairKeys | None]:
        """Draw a secret, and exchange public keys: `key_bytes` each way, 1 round. Nothing and None for no primes."""
        if not primes:
            return None
        ring = ring_of(primes)
        secret = new_secret(ring)
        zero = torch.zeros(1, primes, DEGREE, dtype=torch.int32)
        (theirs,) = yield [_encrypted(ring, zero, secret)], [key_bytes(primes)]
        return PairKeys(secret, _opened(ring, theirs, 1)[0])


def new_secret(ring: Ring) -> Tensor:
    """Draw a secret, int32 (primes, N), transformed (NTT)."""
    drawn = ternary(prg.fresh(), ring.degree)
    return ring.ntt(drawn.expand(len(ring.primes), -1).contiguous())


def key_bytes(primes: int) -> int:
    """Return the size in bytes of a public key. primes: the number of its primes; without any, the size is 0."""
    return prg.SEED_BYTES + packed_bytes((1, primes, DEGREE)) if primes else 0


def _encrypted(ring: Ring, message: Tensor, secret: Tensor) -> Tensor:
    """Return the message that holds new ciphertexts: the seed of their uniform parts, and all c_0 = message + e - a s.

    message: coefficients, int32 (n, primes, N), centred.
    """
    seed = prg.new_seed()
    a = uniform(ring, prg.Stream(seed, "cpu"), len(message))
    nothing = torch.zeros(len(message), ring.degree, dtype=torch.int32)
    body = encrypt_ntt(ring, nothing, noise(prg.fresh(), len(message), ring.degree), a, secret)
    body = add(ring, body, ring.ntt(message.contiguous()))
    return torch.cat([torch.frombuffer(bytearray(seed), dtype=torch.uint8), pack(ring, body)])


def _opened(ring: Ring, message: Tensor, count: int) -> Tensor:
    """Return the ciphertexts of a message from `_encrypted`, int32 (count, 2, primes, N), transformed (NTT)."""
    seed = message[: prg.SEED_BYTES].numpy().tobytes()
    body = unpack(ring, message[prg.SEED_BYTES :].contiguous(), (count, len(ring.primes), ring.degree))
    return torch.stack([body, uniform(ring, prg.Stream(seed, "cpu"), count)], 1)


# Encryption, answers, decryption --------------------------------------------------------------------------------------


def encrypt(secret: Tensor, how: Encryption, polys: Tensor) -> Tensor:
    """Encrypt polynomials mod 2^bits; return the message, uint8 (`how.new_bytes`,).

    secret: this party's, int32 (primes or more, N). polys: int64 (n, N), of which the low bits count.
    """
    return _encrypted(how.ring, _scaled(how.ring, polys, how.bits), secret[: how.primes].contiguous())


def received(how: Encryption, message: Tensor, polynomials: int) -> Tensor:
    """Return the ciphertexts of the other party's message, int32 (polynomials, 2, primes, N)."""
    return _opened(how.ring, message, polynomials)


def factors(how: Encryption, polys: Tensor) -> Tensor:
    """Transform a party's own polynomials for `summed`: int64 (n, N), of the low bits, to int32 (n, primes, N).

    Coefficients at the end may be missing: they are 0.
    """
    centred = polys << 64 - how.bits >> 64 - how.bits
    residues = torch.stack([_centred(torch.remainder(centred, q), q) for q in how.ring.primes], 1)
    return how.ring.ntt(F.pad(residues.int(), (0, how.degree - polys.shape[1])))


def summed(how: Encryption, left: Tensor, right: Tensor) -> Tensor:
    """Return the sum of products of n ciphertexts with n own polynomials, int32 (1, 2, primes, N).

    left: int32 (n, 2, primes, N). right: from `factors`. n <= 4,096.
    """
    pairs = torch.stack([torch.arange(len(left)), torch.zeros(len(left), dtype=torch.int64)], 1)
    return accumulate(how.ring, right, left, pairs, 1)


def answers(
    public: Tensor, how: Encryption, sums: Tensor, masks: Tensor, used: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Hide sums behind masks and flood, and drop primes; return both parts of an answer, from `joined` to be sent.

    public: the key of the party that gets the answer, int32 (2, primes or more, N), transformed (NTT).
    sums: int32 (n, 2, primes, N). used: for each sum the places of the coefficients that are sent, int64 (values,).
    masks: of all these, int64 (all values,), uniform and for this answer only. Returns c_0 at these places, int64
    (kept, all values), and c_1, int32 (n, kept, N).
    """
    ring, count, degree = how.ring, len(sums), how.degree
    u = ring.ntt(ternary(prg.fresh(), count * degree).view(count, 1, degree).expand(-1, how.primes, -1).contiguous())
    nothing = torch.zeros(count, degree, dtype=torch.int32)
    zeros = [
        encrypt_ntt(ring, nothing, noise(prg.fresh(), count, degree), u, -part[: how.primes].contiguous())
        for part in public
    ]  # the kernel computes m + e - a s; here a is u and s is minus the key
    parts = ring.intt(add(ring, sums, torch.stack(zeros, 1)))
    hiding = torch.zeros_like(parts[:, 0])
    rows_used = _places(used)
    hiding[rows_used[0], :, rows_used[1]] = _scaled(ring, -masks[None], how.bits)[0].t()
    hiding = add(ring, hiding, wide(ring, prg.fresh(), count, how.flood + 1))
    parts[:, 0] = add(ring, parts[:, 0].contiguous(), hiding)
    rows = parts.view(-1, 1, how.primes, degree)
    for primes in range(how.primes, how.kept, -1):
        rows = switch(ring.take(primes), rows, "mixed")
    first, second = rows.view(count, 2, how.kept, degree).unbind(1)
    return first[rows_used[0], :, rows_used[1]].t().long(), second.contiguous()


def _places(used: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the numbers of polynomials and of their coefficients, int64 each. used: places for each polynomial."""
    counts = torch.tensor([len(places) for places in used])
    return torch.repeat_interleave(torch.arange(len(used)), counts), torch.cat(list(used))


def joined(how: Encryption, parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Join answers to one message, uint8 (`how.answer_bytes`,)."""
    moduli = torch.tensor(how.rest.primes)[:, None]
    first = torch.cat([torch.remainder(part, moduli) for part, _ in parts], 1)
    seconds = [pack(how.rest, second) for _, second in parts]
    return torch.cat([*seconds, kernels.pack_words(first.flatten(), BITS)])


def decrypt(secret: Tensor, how: Encryption, message: Tensor, used: Sequence[Tensor]) -> Tensor:
    """Decrypt the other party's answers; return the coefficients at the places `used`, int64 (all values,).

    secret: as for `encrypt`. used: as for `answers`, for each polynomial. The bits above `how.bits` are arbitrary.
    """
    ring, polynomials, values = how.rest, len(used), sum(map(len, used))
    cut = packed_bytes((polynomials, how.kept, how.degree))
    words = kernels.unpack_words(message[cut:].contiguous(), how.kept * values, BITS)
    first = _centred(words.view(how.kept, values), torch.tensor(ring.primes)[:, None]).int()
    second, out, start = unpack(ring, message[:cut].contiguous(), (polynomials, how.kept, how.degree)), [], 0
    for at in range(0, polynomials, 64):
        rows, places = _places(used[at : at + 64])
        parts = torch.zeros(len(used[at : at + 64]), 2, how.kept, how.degree, dtype=torch.int32)
        parts[rows, 0, :, places] = first[:, start : start + len(rows)].t()
        parts[:, 1] = ring.ntt(second[at : at + 64].contiguous())
        phases = phase(ring, parts, secret[: how.kept].contiguous(), "mixed")
        out.append(_decoded(phases[rows, :, places].t()[None].contiguous(), ring.primes, how.bits)[0])
        start += len(rows)
    return torch.cat(out)


def _scaled(ring: Ring, x: Tensor, bits: int) -> Tensor:
    """Return round(Q x / 2^bits) modulo each prime, int32 (n, primes, values), centred.

    With v = [Q x] mod 2^bits, centred, it is (Q x - v) / 2^bits, and Q is 0 modulo each of its primes.
    x: int64 (n, values).
    """
    factor = (math.prod(ring.primes) + (1 << 63)) % (1 << 64) - (1 << 63)
    v, out = x * factor << 64 - bits >> 64 - bits, []
    for q in ring.primes:
        inverse = pow(1 << bits, -1, q)
        out.append(_centred(torch.remainder(torch.remainder(v, q) * -inverse, q), q))  # below 2^52
    return torch.stack(out, 1).int()


def _centred(x: Tensor, q: Tensor | int) -> Tensor:
    """Return residues from 0 to q - 1 as residues between -q/2 and q/2."""
    return x - (x > q // 2) * q


def _decoded(x: Tensor, primes: tuple[int, ...], bits: int) -> Tensor:
    """Return round(2^bits X / Q) of numbers X modulo all primes, int64; the bits above `bits` are arbitrary.

    X / Q is the sum of y / q over the primes, modulo 1, with y = X / (Q/q) mod q. So whole parts and remainders of
    2^bits y / q are exact, and float64 adds the fractions with an error below 2^-48.
    x: int32 (n, primes, values).
    """
    whole, fraction = torch.zeros_like(x[:, 0]).long(), torch.zeros_like(x[:, 0]).double()
    for q, row in zip(primes, x.long().unbind(1), strict=True):
        rest, quotient = torch.remainder(row * pow(math.prod(primes) // q, -1, q), q), torch.zeros_like(row)
        for step in (bits // 2, bits - bits // 2):
            rest = rest << step  # below 2^58
            quotient = (quotient << step) + torch.div(rest, q, rounding_mode="floor")
            rest = torch.remainder(rest, q)
        whole, fraction = whole + quotient, fraction + rest.double() / q
    return whole + fraction.round().long()
