"""A client's work on polynomials: random ones, encryption, the phase (decryption), composition of residues, packing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.ciphertexts.ring import BITS, Ring
from hummingbird.kernels.registry import best

# Random polynomials: uniform residues, ternary secrets, small errors, wide integers for flooding ----------------------
#
# All bits come from a `prg.Stream`. Uniform residues and ternary coefficients are exact, by rejection: values out of
# range are drawn again, in order, after all others. The error is centred binomial, the number of ones among 42 bits
# less 21: variance 10.5, as in Microsoft SEAL, in place of a rounded Gaussian of deviation 3.2 (Alkim et al., ePrint
# 2015/1092). No branch depends on the values that are kept of a secret or an error.

if TYPE_CHECKING:
    from hummingbird.prg import Stream

WORD = (1 << BITS) - 1  # the bits of a drawn word that are used
ETA = 21  # |error| <= ETA, and its variance is ETA / 2


def _check_count(n: int, where: str) -> None:
    if not isinstance(n, int) or n < 0:
        raise InputError(f"{n!r} is no number of polynomials", where=where, hint="a whole number, 0 or more")


def uniform(ring: Ring, stream: Stream, n: int) -> Tensor:
    """Draw n random polynomials: uniform centred residues modulo each of the ring's L primes q, int32 (n, L, N).

    stream: gives the random words. First each residue takes the low 26 bits of a 32-bit word, a number r. If r >= q, it
        is drawn again; if r > q/2, it stands for r - q. Residues to draw again take words in the order of their
        indices, until none is left. Not for secrets: the time depends on how many were drawn again, and which.
    """
    _check_count(n, "kernels.uniform(n)")
    shape = (n, len(ring.primes), ring.degree)
    x = stream.bytes(4 * torch.Size(shape).numel()).view(torch.int32).view(shape)
    moduli = torch.tensor(ring.primes, dtype=torch.int32).to(x.device)
    places = best(uniform, x)(x, moduli)
    which = moduli[places // ring.degree % len(ring.primes)]
    while places.numel():
        drawn = stream.bytes(4 * places.numel()).view(torch.int32) & WORD
        again = drawn >= which
        x.view(-1)[places] = drawn - (drawn > which // 2) * which
        places, which = places[again], which[again]
    return x


def ternary(stream: Stream, degree: int) -> Tensor:
    """Draw uniform numbers from -1, 0 and 1, for one polynomial of `degree` coefficients: int32 (degree,).

    stream: gives the random bytes. A number is b mod 3 - 1 for a byte b from 0 to 254. All bytes 255 are drawn again,
        in the order of their indices, until none is left.
    """
    _check_count(degree, "kernels.ternary(degree)")
    x = stream.bytes(degree)
    places = (x == 255).nonzero().view(-1)  # independent of the bytes that are kept
    while places.numel():
        x[places] = drawn = stream.bytes(places.numel())
        places = places[drawn == 255]
    return (x % 3).int() - 1


def noise(stream: Stream, n: int, degree: int) -> Tensor:
    """Draw random errors from a centred binomial distribution, for n polynomials of `degree` coefficients.

    stream: gives the random words. An error is the number of ones among the low 42 bits of a word, less 21. Returns
        int32 (n, degree).
    """
    _check_count(n, "kernels.noise(n)")
    _check_count(degree, "kernels.noise(degree)")
    words = stream.words(n, degree)
    return best(noise, words)(words)


def wide(ring: Ring, stream: Stream, n: int, bits: int) -> Tensor:
    """Draw integers of `bits` bits with sign, uniform from -2^(bits-1) to 2^(bits-1) - 1; return their centred
    residues.

    n: number of polynomials of N integers. The result is int32 (n, L, N), for L primes. bits: 1 or more. Each integer
    takes ceil(bits / 32) words of 32 bits from the stream. The stream has the highest words of all integers first;
    these hold the sign. Constant time.
    """
    where = "kernels.wide"
    _check_count(n, f"{where}(n)")
    if not isinstance(bits, int) or bits < 1:
        raise InputError(f"{bits!r} bits", where=f"{where}(bits)", hint="a whole number, 1 or more")
    words = stream.words(-(-bits // 32), n, ring.degree, dtype=torch.int32)
    return best(wide, words)(ring, words, -bits % 32)


# Encryption, decryption and packing -----------------------------------------------------------------------------------
#
# With an integer message m, a small error e, a uniform polynomial a and the secret s, a ciphertext is (c_0, c_1) with
# c_1 = a and c_0 = m + e - a s, and its phase is c_0 + c_1 s = m + e; a product of ciphertexts has more parts, and the
# phase sum_i c_i s^i. In the form "mixed" c_0 is coefficients, and c_1 is values of the transform, as which a is drawn
# directly: encryption and decryption then cost one inverse transform per prime. In the form "ntt" all parts are values.

FORMS = ("mixed", "ntt")


def encrypt(ring: Ring, message: Tensor, noise: Tensor, a: Tensor, secret: Tensor) -> Tensor:
    """Encrypt a message m with an error e under the secret s: c_0 = m + e - a s modulo each prime, as coefficients.

    message, noise: m and e, int32 (n, N), |m + e| < 2^30. a: random polynomials, int32 (n, L, N), of which none may be
    used twice; secret: s, int32 (L, N); both are NTT values. Returns c_0, int32 (n, L, N). The ciphertext is (c_0, a),
    of the form "mixed": c_0 is coefficients, a is NTT values. InputError for other types, shapes or devices.
    """
    inputs = _checked(ring, message, noise, a, secret, "kernels.encrypt")
    return best(encrypt, *inputs)(ring, *inputs)


def encrypt_ntt(ring: Ring, message: Tensor, noise: Tensor, a: Tensor, secret: Tensor) -> Tensor:
    """Encrypt a message m with an error e under the secret s: c_0 = m + e - a s modulo each prime, as NTT values.

    Returns c_0. The ciphertext is (c_0, a), of the form "ntt": both are NTT values. The arguments are those of
    `encrypt`, which returns c_0 as coefficients.
    """
    inputs = _checked(ring, message, noise, a, secret, "kernels.encrypt_ntt")
    return best(encrypt_ntt, *inputs)(ring, *inputs)


def _check_plain(ring: Ring, x: Tensor, where: str, n: int) -> None:
    if not isinstance(x, Tensor) or x.dtype != torch.int32 or x.shape != (n, ring.degree):
        got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        what = f"expected torch.int32 {(n, ring.degree)}, got {got}"
        raise InputError(what, where=where, hint="one polynomial of N integers for each of a")


def _checked(ring: Ring, message: Tensor, noise: Tensor, a: Tensor, secret: Tensor, where: str) -> list[Tensor]:
    """Raise InputError unless the tensors are as `encrypt` documents them; returns message, noise, a and secret,
    contiguous.

    where: the name of the function that was called, for the error.
    """
    ring.check(a, f"{where}(a)", 3)
    ring.check(secret, f"{where}(secret)", 2)
    _check_plain(ring, message, f"{where}(message)", a.shape[0])
    _check_plain(ring, noise, f"{where}(noise)", a.shape[0])
    for name, tensor in (("message", message), ("noise", noise), ("secret", secret)):
        if tensor.device != a.device:
            what = f"expected device {a.device}, got {tensor.device}"
            raise InputError(what, where=f"{where}({name})", hint="move all arguments to one device")
    return [x.contiguous() for x in (message, noise, a, secret)]


def phase(ring: Ring, c: Tensor, secret: Tensor, form: str) -> Tensor:
    """Decrypt ciphertexts: returns c_0 + c_1 s + c_2 s^2 + ..., which is the message plus its error, as coefficients.

    c: n ciphertexts of `size` ring elements, int32 (n, size, L, N). form: "mixed": two elements, c_0 is coefficients
    and c_1 is NTT values; or "ntt": all elements are NTT values. secret: s, int32 (L, N), NTT values. Returns int32 (n,
    L, N). InputError for another form, type, shape or device.
    """
    where = "kernels.phase"
    ring.check(c, f"{where}(c)", 4)
    ring.check(secret, f"{where}(secret)", 2)
    if form not in FORMS:
        raise InputError(f"form {form!r}", where=f"{where}(form)", hint=f"one of {', '.join(FORMS)}")
    if c.shape[1] < 2 or (form == "mixed" and c.shape[1] > 2):
        hint = 'two or more, and of form "mixed" exactly two'
        raise InputError(f"{c.shape[1]} parts, form {form}", where=f"{where}(c)", hint=hint)
    if secret.device != c.device:
        what = f"expected device {c.device}, got {secret.device}"
        raise InputError(what, where=f"{where}(secret)", hint="move all arguments to one device")
    c, secret = c.contiguous(), secret.contiguous()
    return best(phase, c, secret)(ring, c, secret, form)


def compose(ring: Ring, x: Tensor) -> Tensor:
    """Combine the residues of each integer X modulo all primes to X itself, as float64.

    x: int32 (n, L, N), centred residues modulo L primes. Returns float64 (n, N), |X| < Q/2, Q the product of the
        primes.

    Computed by centred mixed-radix digits, X = d_0 + q_0 (d_1 + q_1 (d_2 + ...)) (Garner 1959). Exact for |X| < 2^53,
    so for two primes always; else with an error of at most 2^-52 L |X|, one rounding for each product and each sum.
    """
    ring.check(x, "kernels.compose(x)", 3)
    x = x.contiguous()
    return best(compose, x)(ring, x)


def packed_bytes(shape: Sequence[int]) -> int:
    """Return the size in bytes of packed residues of this shape, (..., L, N)."""
    return torch.Size(shape).numel() * BITS // 8


def pack(ring: Ring, x: Tensor) -> Tensor:
    """Pack residues from 0 to q - 1 in 26 bits each: int32 (..., L, N) to uint8, 13 bytes for every 4 residues.

    The format, for each polynomial modulo one prime: bits 0..15 of all N residues, two bytes each, low byte first; bits
    16..23, one byte each; bits 24 and 25, where byte i holds those of residues i, i + N/4, i + N/2, i + 3N/4, lowest
    first.
    """
    ring.check(x, "kernels.pack(x)")
    x = x.contiguous()
    return best(pack, x)(ring, x)


def unpack(ring: Ring, data: Tensor, shape: Sequence[int]) -> Tensor:
    """Unpack residues that `pack` has packed: returns centred residues, int32 of the shape `shape`, (..., L, N).

    data: uint8 (bytes,); it may come from anybody. InputError for a number of bytes that does not fit the shape, and
    for a residue that is not below its prime.
    """
    where = "kernels.unpack"
    ends = tuple(shape[-2:]) == (len(ring.primes), ring.degree)
    if not ends or min(shape) < 0 or math.prod(max(size, 1) for size in shape) > 1 << 48:
        hint = f"a shape ends in {(len(ring.primes), ring.degree)}, and no tensor has more than 2^48 elements"
        raise InputError(f"shape {tuple(shape)}", where=f"{where}(shape)", hint=hint)
    wanted = packed_bytes(shape)
    if not isinstance(data, Tensor) or data.dtype != torch.uint8 or data.shape != (wanted,):
        got = f"{data.dtype} {tuple(data.shape)}" if isinstance(data, Tensor) else type(data).__name__
        hint = "13 bytes for every four residues: the data is cut short, or of other parameters"
        raise InputError(f"expected {wanted} bytes, got {got}", where=f"{where}(data)", hint=hint)
    data = data.contiguous()
    out, right = best(unpack, data)(ring, data, shape)
    if not right:
        hint = "the data is damaged, or of other parameters"
        raise InputError("a value is not below its prime", where=f"{where}(data)", hint=hint)
    return out
