"""What a client does to polynomials: encrypt, take the phase (decrypt), put residues together, pack them.

With an integer message m, a small error e, a uniform polynomial a and the secret s, a ciphertext is (c_0, c_1) with
c_1 = a and c_0 = m + e - a s, and its phase c_0 + c_1 s = m + e; a product of ciphertexts has more parts, and the phase
sum_i c_i s^i. Form "mixed" keeps c_0 as coefficients and c_1 as values of the transform, where a is drawn at once: both
ways cost one inverse transform per prime. Form "ntt" keeps all parts as values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.cpu import library
from hummingbird.kernels.ntt import BITS, Ring, native_table
from hummingbird.kernels.workspace import pieces

FORMS = ("mixed", "ntt")


def _check_plain(ring: Ring, x: Tensor, where: str, n: int) -> None:
    if not isinstance(x, Tensor) or x.dtype != torch.int32 or x.shape != (n, ring.degree):
        got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        what = f"expected torch.int32 {(n, ring.degree)}, got {got}"
        raise InputError(what, where=where, hint="one polynomial of N integers for each of a")


def _check_encrypt(ring: Ring, message: Tensor, noise: Tensor, a: Tensor, secret: Tensor, where: str) -> None:
    ring.check(a, f"{where}(a)", 3)
    ring.check(secret, f"{where}(secret)", 2)
    _check_plain(ring, message, f"{where}(message)", a.shape[0])
    _check_plain(ring, noise, f"{where}(noise)", a.shape[0])
    for name, tensor in (("message", message), ("noise", noise), ("secret", secret)):
        if tensor.device != a.device:
            what = f"expected device {a.device}, got {tensor.device}"
            raise InputError(what, where=f"{where}({name})", hint="move all arguments to one device")


def encrypt(ring: Ring, message: Tensor, noise: Tensor, a: Tensor, secret: Tensor) -> Tensor:
    """c_0 = m + e - a s as coefficients, of form "mixed": int32 (n, L, N).

    message, noise: int32 (n, N), |m + e| < 2^30. a: int32 (n, L, N), secret: int32 (L, N), both transformed. An `a` is
    for one ciphertext only. InputError for other types, shapes or devices.
    """
    return _encrypt(ring, message, noise, a, secret, "mixed", "kernels.encrypt")


def encrypt_ntt(ring: Ring, message: Tensor, noise: Tensor, a: Tensor, secret: Tensor) -> Tensor:
    """c_0 = m + e - a s as values, of form "ntt"; arguments and result as for `encrypt`."""
    return _encrypt(ring, message, noise, a, secret, "ntt", "kernels.encrypt_ntt")


def _encrypt(ring: Ring, message: Tensor, noise: Tensor, a: Tensor, secret: Tensor, form: str, where: str) -> Tensor:
    _check_encrypt(ring, message, noise, a, secret, where)
    inputs = [t.contiguous() for t in (message, noise, a, secret)]
    if not library.usable(*inputs):
        return (reference_encrypt if form == "mixed" else reference_encrypt_ntt)(ring, *inputs)
    out, table = torch.empty_like(inputs[2]), native_table(ring)
    shape, settings = a.shape[1:], (a.shape[0], form == "ntt", torch.get_num_threads(), out.data_ptr())
    library.handle().hb_encrypt(table.data_ptr(), *shape, *[t.data_ptr() for t in inputs], *settings)
    return out


def reference_encrypt(ring: Ring, message: Tensor, noise: Tensor, a: Tensor, secret: Tensor) -> Tensor:
    """`encrypt` in plain torch."""
    out, s = torch.empty_like(a), secret.double()
    for piece, space in pieces(ring.degree, a.shape[0], a.device):
        plain = space.keep(message[piece] + noise[piece])
        for i, q in enumerate(ring.primes):
            product = space.load(a[piece, i]).mul_(s[i, :, None])  # below 2^50
            masked = space.transform(space.reduce(product, q), q, True)
            space.store(space.reduce(torch.sub(plain, masked, out=masked), q), out[piece, i])
    return out


def reference_encrypt_ntt(ring: Ring, message: Tensor, noise: Tensor, a: Tensor, secret: Tensor) -> Tensor:
    """`encrypt_ntt` in plain torch."""
    out, s = torch.empty_like(a), secret.double()
    for piece, space in pieces(ring.degree, a.shape[0], a.device):
        plain = space.keep(message[piece] + noise[piece])
        for i, q in enumerate(ring.primes):
            values = space.transform(space.reduce(plain, q), q, False)
            values.addcmul_(space.beside(values, a[piece, i]), s[i, :, None], value=-1)  # below 2^51
            space.store(space.reduce(values, q), out[piece, i])
    return out


def phase(ring: Ring, c: Tensor, secret: Tensor, form: str) -> Tensor:
    """The message with its error, as coefficients: int32 (n, L, N).

    c: int32 (n, parts, L, N), of form "mixed" (two parts) or "ntt". secret: int32 (L, N), transformed. InputError for
    another form, type, shape or device.
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
    if not library.usable(c, secret):
        return reference_phase(ring, c, secret, form)
    out, table = torch.empty(c.shape[0], *c.shape[2:], dtype=torch.int32), native_table(ring)
    inputs, settings = (c.data_ptr(), c.shape[1], secret.data_ptr()), (c.shape[0], form == "ntt")
    shape = (table.data_ptr(), len(ring.primes), ring.degree)
    library.handle().hb_phase(*shape, *inputs, *settings, torch.get_num_threads(), out.data_ptr())
    return out


def reference_phase(ring: Ring, c: Tensor, secret: Tensor, form: str) -> Tensor:
    """`phase` in plain torch."""
    out, s = torch.empty(c.shape[0], *c.shape[2:], dtype=torch.int32, device=c.device), secret.double()
    for piece, space in pieces(ring.degree, c.shape[0], c.device):
        for i, q in enumerate(ring.primes):
            *earlier, last = c[piece, :, i].unbind(1)
            total = space.load(last)
            if form == "mixed":
                space.reduce(total.mul_(s[i, :, None]), q)  # below 2^50
                total = space.transform(total, q, True).add_(space.keep(earlier[0]))
            else:
                for part in reversed(earlier):  # Horner: below 2^50 + 2^25
                    space.reduce(total.mul_(s[i, :, None]).add_(space.keep(part)), q)
                total = space.transform(total, q, True)
            space.store(space.reduce(total, q), out[piece, i])
    return out


def compose(ring: Ring, x: Tensor) -> Tensor:
    """The integers X of these residues: int32 (n, L, N), centred, to float64 (n, N), |X| < Q/2, Q the primes' product.

    By centred mixed-radix digits, X = d_0 + q_0 (d_1 + q_1 (d_2 + ...)) (Garner 1959). Exact where |X| < 2^53, so for
    all X of two primes; otherwise within 2^-52 L |X|, a rounding for each product and each sum.
    """
    ring.check(x, "kernels.compose(x)", 3)
    x = x.contiguous()
    if not library.usable(x):
        return reference_compose(ring, x)
    out = torch.empty(x.shape[0], ring.degree, dtype=torch.float64)
    table = torch.tensor([*ring.primes, *itertools.chain(*_inverses(ring.primes))], dtype=torch.float64)
    library.handle().hb_compose(x.data_ptr(), *x.shape, table.data_ptr(), out.data_ptr())
    return out


@lru_cache(maxsize=64)
def _inverses(primes: tuple[int, ...]) -> tuple[tuple[float, ...], ...]:
    """Of every prime, its inverses modulo each of those after it, centred."""
    rows = []
    for k, earlier in enumerate(primes):
        inverses = [(pow(earlier, -1, q), q) for q in primes[k + 1 :]]
        rows.append(tuple(float(f - q if f > q // 2 else f) for f, q in inverses))
    return tuple(rows)


def reference_compose(ring: Ring, x: Tensor) -> Tensor:
    """`compose` in plain torch."""
    digits = list(x.double().unbind(1))
    for k, inverses in enumerate(_inverses(ring.primes)):
        later = zip(digits[k + 1 :], inverses, ring.primes[k + 1 :], strict=True)
        for digit, factor, q in later:
            # |digit - digits[k]| <= 2^26 - 2047 times an inverse of at most q/2: below 2^51, so it is centred again.
            digit.sub_(digits[k]).mul_(factor)
            digit.sub_(torch.mul(digit, 1.0 / q).round_(), alpha=q)
    total = digits[-1]
    for q, digit in zip(reversed(ring.primes[:-1]), reversed(digits[:-1]), strict=True):
        total = total.mul(q).add_(digit)
    return total


def packed_bytes(shape: Sequence[int]) -> int:
    """The bytes of `pack` for residues of this shape."""
    return torch.Size(shape).numel() * BITS // 8


def pack(ring: Ring, x: Tensor) -> Tensor:
    """Residues, without sign, in 26 bits each: int32 (..., L, N) -> uint8 (13/4 of their number,).

    Of each polynomial modulo one prime: bits 0..15 of all N residues, two bytes each, low byte first; bits 16..23, a
    byte each; bits 24 and 25, byte i holding those of residues i, i + N/4, i + N/2, i + 3N/4, lowest first.
    """
    ring.check(x, "kernels.pack(x)")
    x = x.contiguous()
    if not library.usable(x):
        return reference_pack(ring, x)
    out = torch.empty(packed_bytes(x.shape), dtype=torch.uint8)
    moduli, (primes, degree) = _moduli(ring), x.shape[-2:]
    sizes = (x.numel() // (primes * degree), primes, degree)
    library.handle().hb_pack(x.data_ptr(), *sizes, moduli.data_ptr(), out.data_ptr())
    return out


@lru_cache(maxsize=64)
def _moduli(ring: Ring, device: str = "cpu") -> Tensor:
    return torch.tensor(ring.primes, dtype=torch.int32, device=device).view(-1, 1)


def _planes(ring: Ring, data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three parts of each packed polynomial: int16 (rows, N), uint8 (rows, N), uint8 (rows, N/4)."""
    low, middle, top = data.view(-1, 13 * ring.degree // 4).tensor_split((2 * ring.degree, 3 * ring.degree), 1)
    return low.view(torch.int16), middle, top


def reference_pack(ring: Ring, x: Tensor) -> Tensor:
    """`pack` in plain torch."""
    out = torch.empty(packed_bytes(x.shape), dtype=torch.uint8, device=x.device)
    low, middle, top = _planes(ring, out)
    v = (x + (x >> 31 & _moduli(ring, str(x.device)))).view(-1, ring.degree)
    low.copy_(v)
    middle.copy_(v >> 16)
    bits = (v >> 24).view(-1, 4, ring.degree // 4)
    top.copy_(bits[:, 0] | bits[:, 1] << 2 | bits[:, 2] << 4 | bits[:, 3] << 6)
    return out


def unpack(ring: Ring, data: Tensor, shape: Sequence[int]) -> Tensor:
    """The residues of `pack`: uint8 (bytes,) to int32 of this shape, (..., L, N), centred.

    InputError for another number of bytes, and for a value that is no residue: data may come from anybody.
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
    out, right = (_native_unpack if library.usable(data) else reference_unpack)(ring, data, shape)
    if not right:
        hint = "the data is damaged, or of other parameters"
        raise InputError("a value is not below its prime", where=f"{where}(data)", hint=hint)
    return out


def _native_unpack(ring: Ring, data: Tensor, shape: Sequence[int]) -> tuple[Tensor, bool]:
    out, moduli = torch.empty(tuple(shape), dtype=torch.int32), _moduli(ring)
    sizes = (out.numel() // (len(ring.primes) * ring.degree), len(ring.primes), ring.degree)
    right = library.handle().hb_unpack(data.data_ptr(), *sizes, moduli.data_ptr(), out.data_ptr())
    return out, bool(right)


def reference_unpack(ring: Ring, data: Tensor, shape: Sequence[int]) -> tuple[Tensor, bool]:
    """`unpack` in plain torch, and whether all values are residues."""
    low, middle, top = _planes(ring, data.clone() if data.storage_offset() % 2 else data)
    x = low.int().bitwise_and_(0xFFFF).add_(middle, alpha=1 << 16)
    for j, quarter in enumerate(x.chunk(4, 1)):
        quarter.add_(top >> 2 * j & 3, alpha=1 << 24)
    x = x.view(tuple(shape))
    moduli = _moduli(ring, str(x.device))
    right = not bool((x >= moduli).any())
    return x.sub_((x > moduli // 2) * moduli), right
