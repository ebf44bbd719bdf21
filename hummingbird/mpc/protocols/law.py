"""The plaintext rule of a comparison: how its protocol decides, on integers and on real tensors, without shares.

A value v is the ring element r = round(2^16 v), ties to even as `ring.encode` has it. With u independent of r the
protocols compute (docs/protocol.md)

    masked   d = r + u        u uniform in [0, 2^m): the low bits of the mask
             bit = [S(d) >= 2^m],     z = r + S(d) - d
    gmw      d = r - u        u = sum of N - 1 uniform numbers in [0, 2^m): the low bits of all shares but one
             bit = [S(d) >= 0],       z = r

where S reduces mod 2^k into [-2^(k-1), 2^(k-1)), y = bit z is the ReLU, and z what a leaky ReLU adds to it. This is no
approximation: the cut shares of gmw add up to floor((r - u) / 2^m) mod 2^w, as the last share's low bits are those of
r - u; and X - L of the masked opening is floor((r + u) / 2^m) mod 2^w, where the lifted value x^ - lambda + 2^k (...)
is S(d) - u for every r, also outside the window. (Go through X >= h or not, and L <= X or not.)

With a window's q, z is a multiple of 2^q: each party cuts q bits more off its share (masked), or an opening does (gmw),

    masked   z = floor(r + u mod 2^q) + S(d) - d, and m >= q         gmw   z = floor(r + e), e uniform in [0, 2^q)

floor to a multiple of 2^q. Of two shares, one is uniform: what it loses is uniform in +-1/2 unit, and the other one is
rounded to what is left, so that z is a neighbour of r and right on average (but for a half of the shares' last bit, as
halves go up); N - 2 shares more disturb r before, by as many uniform numbers in +-2^(q-1). The
mask's low m bits are 2^q times a number below 2^(m-q): with e below, they are u.

Of shares that are `whole` (masked.py) the reduction touches only what passes: with c a fair coin, opened with the bit,

    z' = floor(r + u mod 2^q)          y = bit z + c (z' - z)

and z' is what a leaky ReLU adds. Inside the window z' = z.

Comparisons of r - t for several public t have one u: masked opens r once, and in gmw the shares of r - t are those of r
but for party 0's, whose low bits are not among the N - 1.
With a q, masked takes the multiples of 2^q next to several t.

`decide` is the law on integers. `cut` is the same for `kernels.twin_relu`, on real numbers in one pass: mod 2^k,
bit = 1 says of d - 2^m, or of d, that it is below 2^(k-1) - 2^m, or 2^(k-1). That pass is exact for every v below 2^46,
whatever k and m are (kernels/simulation.py), but for the low m - 32 bits of uniform numbers wider than 32.

Squares (`Comparison.squares`) follow the same rule, on values rounded to their fraction. That rounding is not modelled.

Not modelled, being below the resolution 2^-16 of r: for q = 0, the rounding of N shares in a masked truncation and the
0 or 1 of gmw's, both at most max(1, N / 2) units of z. gmw on shares with more fraction than 16 bits cuts between the
integers: r is then round(2^16 v) - 1, right on average.

Random numbers come from a 64-bit key, which is no secret's: nothing is hidden by a simulation.
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
    """The rule of a window among `parties`: bits m..k-1 decide, and z is a multiple of 2^q, q <= m."""

    k: int
    m: int
    parties: int
    q: int = field(default=0, kw_only=True)

    whole: bool = field(default=False, kw_only=True)  # whether y and z are those of whole shares
    rounds_apart: ClassVar[bool]  # whether z is rounded by numbers of its own, and not by those that decide

    @property
    @abstractmethod
    def disturbances(self) -> int:
        """Roundings of shares beyond two, each uniform in +-2^(q-1), that are added to v before all else."""

    @property
    @abstractmethod
    def draws(self) -> int:
        """Uniform numbers in u."""

    @property
    @abstractmethod
    def cut(self) -> Cut:
        """The same law for a kernel that adds u: in gmw, what is lacking from the largest u."""

    @property
    @abstractmethod
    def range(self) -> tuple[float, float]:
        """The least and the largest v for which d is inside the window whatever u is."""

    @abstractmethod
    def decide(self, r: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """bit, bool, and z, int64, for int64 r and u."""

    @property
    def slack(self) -> int:
        """The largest u."""
        return self.draws * ((1 << self.m) - 1)

    @property
    def lower(self) -> int:
        """r = round(2^16 v) - this."""
        return 0

    def holds(self, least: float, most: float) -> bool:
        """Whether values from `least` to `most` surely stay inside the window."""
        low, high = self.range
        return low <= least and most <= high

    def ring(self, v: Tensor) -> Tensor:
        """r, int64, of finite real values (beyond 2^62: 2^62)."""
        r = torch.round(v.double() * 2.0**SCALE) - self.lower
        return r.clamp(-(2.0**62), 2.0**62).long()

    def near(self, knot: float) -> float:
        """The knot that is taken for this one among several."""
        if self.rounds_apart or not self.q:
            return knot
        return math.floor(round(knot / UNIT) / 2**self.q + 0.5) * UNIT * 2**self.q

    def rounded(self, z: Tensor, e: Tensor) -> Tensor:
        """The multiple of 2^q below z + e, int64: right on average for e uniform in [0, 2^q)."""
        return z + e >> self.q << self.q

    def turns(self, d: Tensor) -> Tensor:
        """d - S(d), int64."""
        return torch.zeros_like(d) if self.k == 64 else (d + (1 << (self.k - 1))) >> self.k << self.k
