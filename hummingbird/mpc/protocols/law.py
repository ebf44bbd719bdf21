"""The plaintext rule of a comparison: how its protocol decides, on integers and on real tensors, without shares.

A value v is the ring element r = round(2^16 v), ties to even as in `ring.encode`. With u independent of r the protocols
compute (docs/protocol.md)

    masked   d = r + u        u uniform in [0, 2^m): the low bits of the mask
             bit = [S(d) >= 2^m],     z = r + S(d) - d
    gmw      d = r - u        u = sum of N - 1 uniform numbers in [0, 2^m): the low bits of all shares but one
             bit = [S(d) >= 0],       z = r

where S reduces mod 2^k into [-2^(k-1), 2^(k-1)), y = bit z is the ReLU, and a leaky ReLU adds a multiple of z. The rule
is exact. In gmw the cut shares add up to floor((r - u) / 2^m) mod 2^w, since the low bits of the last share are those
of r - u. In the masked opening X - L is floor((r + u) / 2^m) mod 2^w, and the lifted value x^ - lambda + 2^k (...) is
S(d) - u for every r, also outside the window (by the four cases of X >= h and L <= X).

If the window has a q, z is a multiple of 2^q: each party cuts q more bits off its share (masked), or an opening cuts
them (gmw),

    masked   z = floor(r + u mod 2^q) + S(d) - d, and m >= q         gmw   z = floor(r + e), e uniform in [0, 2^q)

where floor rounds down to a multiple of 2^q. One of two shares is uniform, so its rounding error is uniform in +-1/2
unit, and the other share is rounded to match: z is a multiple of 2^q next to r, and right on average (up to half of the
shares' last bit, since halves round up). Each of the other N - 2 shares first adds a uniform number in +-2^(q-1) to r.
The mask's low m bits are 2^q times a number below 2^(m-q); with a uniform number below 2^q added, they are u.

If the shares are `whole` (masked.py), the reduction changes only y. With a fair coin c, which is opened with the bit,

    z' = floor(r + u mod 2^q)          y = bit z + c (z' - z)

and a leaky ReLU adds a multiple of z'. Inside the window z' = z.

Comparisons of r - t for several public t have one u: masked opens r once, and in gmw the shares of r - t differ from
those of r at party 0 only, whose low bits are not among the N - 1. For a window with q, masked rounds each of several t
to a multiple of 2^q.

The form in one round (lines.py) has the law of masked with shares that are not whole.

`decide` is the law on integers. `cut` is the same law for `kernels.twin_relu`, on real numbers in one pass: bit = 1 if
and only if (d - 2^m) mod 2^k is below 2^(k-1) - 2^m (masked), or d mod 2^k is below 2^(k-1) (gmw). That pass is exact
for every v below 2^46, whatever k and m are (kernels/simulation.py), but for the low m - 32 bits of uniform numbers
wider than 32.

Squares (`Comparison.squares`) follow the same rule, on values rounded to their fraction. That rounding is not modelled.

Two effects are not modelled, since they are below the resolution 2^-16 of r: for q = 0, the rounding of N shares in a
masked truncation, and the 0 or 1 that gmw's truncation adds. Both are at most max(1, N / 2) units of z. On shares with
more than 16 bits of fraction gmw cuts between the integers: r is then round(2^16 v) - 1, right on average.

Random numbers come from a 64-bit key that need not be secret, since a simulation hides nothing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from hummingbird.kernels import Cut
from hummingbird.ring import SCALE

UNIT = 2.0**-SCALE


@dataclass(frozen=True)
class Law(ABC):
    """The plaintext rule by which a comparison with the window [k:m) decides whether a real value v is positive.

    v stands in the ring as r = round(2^16 v). A protocol sets d = r + u or d = r - u, where u is random, the sum of
    `draws` uniform numbers in [0, 2^m). It decides by S(d), which is d reduced mod 2^k into [-2^(k-1), 2^(k-1)). The
    decided bit multiplies a number z. If d is inside the window, z is r, rounded to a multiple of 2^q; q <= m.
    parties: how many parties hold shares.
    q: of the window: how many low bits are rounded away.
    whole: whether the parties' shares are right in all bits of the result.
    """

    k: int
    m: int
    parties: int
    q: int = field(default=0, kw_only=True)

    whole: bool = field(default=False, kw_only=True)  # whether the shares are `whole` (masked.py)
    rounds_apart: ClassVar[bool]  # whether the random numbers that round z are not those that decide

    @property
    @abstractmethod
    def disturbances(self) -> int:
        """How many shares, beyond the first two, each add a rounding error of their own to a compared value.

        Each error is random, uniform in +-2^(q-1) ring units.
        """

    @property
    @abstractmethod
    def draws(self) -> int:
        """How many uniform numbers in [0, 2^m) add up to the random number u of a comparison."""

    @property
    @abstractmethod
    def cut(self) -> Cut:
        """This law's numbers in the form in which a kernel takes them that simulates comparisons of real values.

        The kernel adds a random number to r, the ring element. The law of "gmw" subtracts a random u, so its kernel
        adds the largest u less u.
        """

    @property
    @abstractmethod
    def range(self) -> tuple[float, float]:
        """The least and the largest real value whose comparison stays in the window, whatever random number it has."""

    @abstractmethod
    def decide(self, r: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Decide for each ring element r whether it counts as not negative, as the protocol does.

        Returns this bit, bool, and the int64 number z for which bit * z is the ReLU of r.
        r: int64.
        u: int64, random numbers, each the sum of `draws` uniform ones in [0, 2^m).
        """

    @property
    def slack(self) -> int:
        """The largest random number u that a comparison can draw."""
        return self.draws * ((1 << self.m) - 1)

    @property
    def lower(self) -> int:
        """By how much the ring element r by which a comparison decides is below round(2^16 v), for a real value v.

        It is 1 for "gmw" on shares with more than 16 bits of fraction, if m > 0; else it is 0.
        """
        return 0

    def holds(self, least: float, most: float) -> bool:
        """Return whether comparisons of all real values from `least` to `most` stay inside the window.

        Only then does no value wrap, whatever random number a comparison draws.
        """
        low, high = self.range
        return low <= least and most <= high

    def ring(self, v: Tensor) -> Tensor:
        """Turn finite real values v into the ring elements r that stand for them, int64: round(2^16 v) less `lower`.

        Magnitudes are clamped to 2^62.
        """
        r = torch.round(v.double() * 2.0**SCALE) - self.lower
        return r.clamp(-(2.0**62), 2.0**62).long()

    def near(self, knot: float) -> float:
        """Return the number that the protocol uses in place of a knot, if it compares each value with several knots.

        knot: a real number. A protocol that rounds values to multiples of 2^q before it opens them rounds the knots as
            well; others keep the knot.
        """
        if self.rounds_apart or not self.q:
            return knot
        return math.floor(round(knot / UNIT) / 2**self.q + 0.5) * UNIT * 2**self.q

    def rounded(self, z: Tensor, e: Tensor) -> Tensor:
        """Round z + e down to a multiple of 2^q, int64, and return it.

        z: int64, values in the ring.
        e: int64, random; if it is uniform in [0, 2^q), the result is z on average.
        """
        return z + e >> self.q << self.q

    def turns(self, d: Tensor) -> Tensor:
        """Return the multiples of 2^k by which d exceeds its residue in [-2^(k-1), 2^(k-1)); int64. d: int64."""
        return torch.zeros_like(d) if self.k == 64 else (d + (1 << (self.k - 1))) >> self.k << self.k
