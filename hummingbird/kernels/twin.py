"""One comparison of the plaintext twin, on real numbers, in one pass over memory.

For r = round(2^16 v), ties to even, and u the sum of `draws` uniform numbers in [0, 2^m),

    bit = [(r + u - minus) mod 2^k < below]        y = bit z        z = v - 2^(k-16) j

with j = 0, or, where the protocol `wraps`, the integer that puts r + u - 2^k j into [-2^(k-1), 2^(k-1)).
protocols/law.py has both protocols. Nothing is rounded but r: for T = round(v / 2^(k-16)), near = v - 2^(k-16) T is a
number of v's own type (a multiple of v's last place, and no larger than v unless T = 0) with |near| <= 2^(k-17), and
mod 2^k r is round(2^16 near). Where a protocol that wraps has bit = 1, j = T. So 32-bit floats and integers do for
k <= 31, and for all k where |v| < 2^13; the rest takes 64 bits. A v beyond the range of its type, or NaN, gives no
finite y.

Random numbers are SplitMix64's (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014):
a function of the key and a number's place, so that any piece, order, thread or device draws the same. A 64-bit word
holds four numbers, of its 16-bit parts' upper m bits, or two, of 32-bit parts (zeros below them if m > 32).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels import native

_SCALE = 16  # ring.SCALE; hummingbird.ring imports the kernels
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1
MOST_DRAWS = 4095


class Cut(NamedTuple):
    """The constants of a comparison. 1 <= k <= 64, 0 <= m <= 63, draws <= 4095, minus <= max(1, draws) 2^m,
    below <= 2^(k-1), nothing negative; draws <= 1 where it wraps.
    """

    k: int
    m: int
    draws: int
    minus: int
    below: int
    wraps: bool


def twin_relu(v: Tensor, key: int, cut: Cut, both: bool = False) -> tuple[Tensor, Tensor | None]:
    """y and, where `both`, z (else None), of v's type; see the equations above.

    v: floating point (n,). key: 0 <= key < 2^64, of the random numbers. InputError for anything else.
    One pass over memory, on one thread, for contiguous float32 and bfloat16 on the CPU; several passes elsewhere.

        twin_relu(torch.tensor([-1.0, 2.0]), 0, Cut(20, 0, 0, 1, 2**19 - 1, True))[0].tolist() == [0.0, 2.0]
    """
    if not isinstance(v, Tensor) or not v.is_floating_point() or v.dim() != 1:
        got = f"{v.dtype} {tuple(v.shape)}" if isinstance(v, Tensor) else type(v).__name__
        raise InputError(f"expected real numbers (n,), got {got}", where="kernels.twin_relu(v)", hint="x.view(-1)")
    if not 0 <= key <= _WORD:
        raise InputError(f"expected 64 bits, got {key}", where="kernels.twin_relu(key)", hint="0 <= key < 2^64")
    k, m, draws, minus, below, wraps = cut
    if not (
        1 <= k <= 64
        and 0 <= m <= 63
        and 0 <= draws <= (1 if wraps else MOST_DRAWS)
        and 0 <= minus <= max(1, draws) << m
        and 0 <= below <= 1 << k - 1
    ):
        raise InputError(f"no comparison: {cut}", where="kernels.twin_relu(cut)", hint="see kernels.Cut for the bounds")
    fast = native.usable(v) and v.dtype in (torch.float32, torch.bfloat16)
    return (native.twin_relu if fast else reference_twin_relu)(v, key, cut, both)


def reference_twin_relu(v: Tensor, key: int, cut: Cut, both: bool) -> tuple[Tensor, Tensor | None]:
    """`twin_relu` in plain torch."""
    real = v if v.dtype == torch.float64 else v.float()
    turns, size = torch.round(real * 2.0 ** (_SCALE - cut.k)), 2.0 ** (cut.k - _SCALE)
    near = real - turns * size
    finite = near.isfinite()
    scaled = torch.where(finite, near, 0.0).double() * 2.0**_SCALE
    r = scaled.round().clamp(max=2.0**63 - 1024).long()  # the largest double below 2^63, for k = 64
    u = drawn(v.numel(), key, cut.m, cut.draws, v.device)
    place = (r + u - _signed(cut.minus)) & _signed(_WORD >> 64 - cut.k)
    bit = (place >= 0) & (place <= cut.below - 1)  # negative for k = 64 only: unsigned, it is above 2^63
    y = torch.where(bit | ~finite, real - turns * (size if cut.wraps else 0.0), 0.0).to(v.dtype)
    if not both or not cut.wraps:
        return y, v if both else None
    return y, (near - size * (r > (1 << cut.k - 1) - 1 - u)).to(v.dtype)


def drawn(count: int, key: int, m: int, draws: int, device: torch.device) -> Tensor:
    """u of places 0 .. count - 1: int64 (count,), mod 2^64."""
    bits = 16 if m <= 16 else 32
    u = torch.zeros(count, dtype=torch.int64, device=device)
    groups = torch.arange(-(-count * bits // 64), device=device)
    for number in range(draws):
        words = _mixed(groups * _signed(draws * _STEP) + _signed(key + (number + 1) * _STEP))
        part = words.view(torch.int16 if bits == 16 else torch.int32)[:count].long() & (1 << bits) - 1
        u += part >> bits - m if m <= bits else part << m - bits
    return u


def word(key: int, index: int) -> int:
    """Output number `index`, from 0, of SplitMix64 with this state, as an integer."""
    x = (key + (index + 1) * _STEP) & _WORD
    x = (x ^ x >> 30) * _FIRST & _WORD
    x = (x ^ x >> 27) * _SECOND & _WORD
    return x ^ x >> 31


def _mixed(x: Tensor) -> Tensor:
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        x = (x ^ _right(x, shift)) * _signed(factor)
    return x ^ _right(x, 31)


def _right(x: Tensor, shift: int) -> Tensor:
    """A logical shift."""
    return x >> shift & (1 << 64 - shift) - 1


def _signed(x: int) -> int:
    """The int64 that is x mod 2^64."""
    return (x + (1 << 63) & _WORD) - (1 << 63)
