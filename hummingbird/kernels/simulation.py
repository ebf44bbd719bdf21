"""The comparison of a simulation, on real numbers, in one pass over memory.

For r = round(2^16 v), ties to even, and u the sum of `draws` uniform numbers in [0, 2^m),

    bit = [(r + u - minus) mod 2^k < below]        y = bit z        z = v' - 2^(k-16) j

with v' = v, or for q > 0 the multiple of 2^(q-16) below (r + u mod 2^q) 2^-16; and j = 0, or, if the protocol `wraps`,
the integer with r + u - 2^k j in [-2^(k-1), 2^(k-1)).
protocols/law.py has both protocols. Only r is rounded: for T = round(v / 2^(k-16)), near = v - 2^(k-16) T is a number
of v's own type (a multiple of v's last place, and no larger than v unless T = 0) with |near| <= 2^(k-17), and
r = round(2^16 near) mod 2^k. Where a protocol that wraps has bit = 1, j = T. So 32-bit floats and integers suffice for
k <= 31, and for all k if |v| < 2^13; other cases take 64 bits. For a v beyond the range of its type, or NaN, y is not
finite.

Random numbers are SplitMix64's (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014):
a function of the key and of an element's index, so that any piece, order, thread or device draws the same. A 64-bit
word holds four numbers, the upper m bits of its 16-bit parts, or two, of its 32-bit parts (with zeros below if m > 32;
then v' is rounded down).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.registry import best

STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # SplitMix64's constants
WORD = (1 << 64) - 1
MOST_DRAWS = 4095
_SCALE = 16  # ring.SCALE; hummingbird.ring imports the kernels


class Cut(NamedTuple):
    """The numbers that define a simulated comparison: its result is the bit [(r + u - minus) mod 2^k < below].

    r: the compared value times 2^16, rounded. u: the sum of `draws` uniform random numbers below 2^m. wraps: whether a
    value whose r + u is outside of [-2^(k-1), 2^(k-1)) is changed by 2^-16 times the multiple of 2^k that brings r + u
    inside. q: how many low bits of the value are cut, with u as the random rounding; 0: none. The module head has the
    equations.
    1 <= k <= 64, 0 <= m <= 63, 0 <= minus <= max(1, draws) 2^m, 0 <= below <= 2^(k-1). With wraps: draws <= 1 and q <=
    min(m, 16); without: draws <= 4095 and q = 0.
    """

    k: int
    m: int
    draws: int
    minus: int
    below: int
    wraps: bool
    q: int


def twin_relu(v: Tensor, key: int, cut: Cut, both: bool = False) -> tuple[Tensor, Tensor | None]:
    """Simulate a private ReLU of v: returns y = bit z and, with `both`, also z, else None (equations: module head).

    bit: the result of the comparison `cut` of v. z: v as the protocol would return it, with low bits cut, and wrapped.
    v: floating point (n,). key: seed of the random numbers, 0 <= key < 2^64. Both results have v's type and shape.
    InputError for anything else. Contiguous float32 and bfloat16 on the CPU take one pass over memory, on one thread;
    other tensors take several passes.

        twin_relu(torch.tensor([-1.0, 2.0]), 0, Cut(20, 0, 0, 1, 2**19 - 1, True, 0))[0].tolist() == [0.0, 2.0]
    """
    if not isinstance(v, Tensor) or not v.is_floating_point() or v.dim() != 1:
        got = f"{v.dtype} {tuple(v.shape)}" if isinstance(v, Tensor) else type(v).__name__
        raise InputError(f"expected real numbers (n,), got {got}", where="kernels.twin_relu(v)", hint="x.view(-1)")
    if not 0 <= key <= WORD:
        raise InputError(f"expected 64 bits, got {key}", where="kernels.twin_relu(key)", hint="0 <= key < 2^64")
    k, m, draws, minus, below, wraps, q = cut
    if not (
        1 <= k <= 64
        and 0 <= m <= 63
        and 0 <= draws <= (1 if wraps else MOST_DRAWS)
        and 0 <= minus <= max(1, draws) << m
        and 0 <= below <= 1 << k - 1
        and 0 <= q <= (min(m, _SCALE) if wraps else 0)
    ):
        raise InputError(f"no comparison: {cut}", where="kernels.twin_relu(cut)", hint="see kernels.Cut for the bounds")
    return best(twin_relu, v)(v, key, cut, both)


def word(key: int, index: int) -> int:
    """Return the 64-bit number with this index, from 0, in the sequence that SplitMix64 draws from the seed `key`."""
    x = (key + (index + 1) * STEP) & WORD
    x = (x ^ x >> 30) * FIRST & WORD
    x = (x ^ x >> 27) * SECOND & WORD
    return x ^ x >> 31
