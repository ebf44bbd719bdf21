"""What one comparison decides, without shares: the law of its protocol, on integers and on real tensors.

A value v is the ring element r = round(2^16 v). With u independent of r the protocols compute (docs/protocol.md)

    masked   d = r + u        u uniform in [0, 2^m): the low bits of the mask
             bit = [S(d) >= 2^m],     z = r + S(d) - d
    gmw      d = r - u        u = sum of N - 1 uniform numbers in [0, 2^m): the low bits of all shares but one
             bit = [S(d) >= 0],       z = r

where S reduces mod 2^k into [-2^(k-1), 2^(k-1)), y = bit z is the ReLU, and z what a leaky ReLU adds to it. This is no
approximation: the cut shares of gmw add up to floor((r - u) / 2^m) mod 2^w, as the last share's low bits are those of
r - u; and X - L of the masked opening is floor((r + u) / 2^m) mod 2^w, where the lifted value x^ - lambda + 2^k (...)
is S(d) - u for every r, also outside the window. (Go through X >= h or not, and L <= X or not.)

As long as d stays inside the window S is nothing, and bit = [r >= t] with t = 2^m - u or t = u: one random integer,
one shift, one comparison for each value. `decide` is the law on integers; `inside` and `anywhere` are the same in
float32, whose 24 bits hold d exactly for |v| < 2^6 and k <= 22, and as exactly as they hold v otherwise.

Not modelled, being below the resolution 2^-16 of r: the rounding of N shares in a masked truncation and the 0 or 1 of
gmw's, both at most max(1, N / 2) units of z. gmw on shares with more fraction than 16 bits cuts between the integers:
r is then floor(2^16 v - 1/2), right on average.

Randomness here is torch's, which is no secret's: nothing is hidden by a simulation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hummingbird.mpc.compare import Comparison
from hummingbird.ring import SCALE

UNIT = 2.0**-SCALE
_WIDEST = 61  # windows beyond it hold every value that a 64-bit ring and its protocols do


@dataclass(frozen=True)
class Law:
    """The comparison of a window [k:m) among `parties`; between: whether the shares carry more than 16 bits of
    fraction and gmw cuts them.
    """

    protocol: str
    k: int
    m: int
    parties: int
    between: bool = False

    @classmethod
    def of(cls, comparison: Comparison, scale: int, parties: int) -> Law:
        """The law of a layer's comparison on shares of this scale."""
        extra, m = scale - SCALE, comparison.window.m
        if comparison.protocol == "masked":
            return cls("masked", comparison.k(scale), m, parties)
        return cls("gmw", min(comparison.window.k, 64 - extra), m, parties, bool(extra))

    @property
    def draws(self) -> int:
        """Uniform numbers in u."""
        return 0 if not self.m else 1 if self.protocol == "masked" else self.parties - 1

    @property
    def _offset(self) -> float:
        """r = floor(2^16 v + offset)."""
        return -0.5 if self.between and self.m else 0.5

    @property
    def range(self) -> tuple[float, float]:
        """Least v for which d is inside the window whatever u is, and the first v above it for which it may not be."""
        if self.k > _WIDEST:
            return -float("inf"), float("inf")
        half, slack = 1 << (self.k - 1), self.draws * ((1 << self.m) - 1)
        low, high = (-half, half - slack) if self.protocol == "masked" else (-half + slack, half)
        return (low - self._offset) * UNIT, (high - self._offset) * UNIT

    def ring(self, v: Tensor) -> Tensor:
        """r, int64, of finite real values (beyond 2^62: 2^62)."""
        r = torch.floor(v.double() * 2.0**SCALE + self._offset)
        return r.clamp(-(2.0**62), 2.0**62).long()

    def decide(self, r: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """bit, bool, and z, int64, for int64 r and u."""
        d = r + u if self.protocol == "masked" else r - u
        turns = torch.zeros_like(r) if self.k > _WIDEST else (d + (1 << (self.k - 1))) >> self.k << self.k
        least = 1 << self.m if self.protocol == "masked" else 0
        return d - turns >= least, r - turns if self.protocol == "masked" else r

    def words(self, count: int) -> int:
        """64-bit words that `draw` takes for `count` values."""
        return -(-count * (16 if self.m <= 16 else 32) // 64)

    def draw(self, u: Tensor, words: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Fill float32 (n,) with independent u (31 bits of each uniform number, for m > 31); words: int64 scratch."""
        word, bits = (torch.int16, 16) if self.m <= 16 else (torch.int32, 32)
        used = min(self.m, bits - (self.m > 16))
        if not self.draws:
            return u.zero_()
        for number in range(self.draws):
            words.random_(-(2**63), None, generator=generator)
            drawn = words.view(word)[: u.numel()]
            drawn.bitwise_right_shift_(bits - used)  # signed: uniform in +-2^(used-1)
            if number:
                u.add_(drawn)
            else:
                u.copy_(drawn)
        return u.mul_(2.0 ** (self.m - used)).add_(self.draws * 2.0 ** (self.m - 1))

    def inside(self, v: Tensor, u: Tensor) -> Tensor:
        """bit as 0. and 1. in float32, of v in `range`; u is used up."""
        if self.protocol == "masked":
            u.mul_(-UNIT).add_(((1 << self.m) - self._offset) * UNIT)
        else:
            u.mul_(UNIT).add_(-self._offset * UNIT)
        return torch.ge(v, u, out=u)

    def anywhere(self, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor | None]:
        """bit as 0. and 1., and z - v as reals (None: nothing), of any float32 v; u is used up."""
        d = (v * 2.0**SCALE).add_(self._offset).floor_()
        d = d.add_(u) if self.protocol == "masked" else d.sub_(u)
        turns = torch.add(d, 2.0 ** (self.k - 1), out=u).mul_(2.0**-self.k).floor_()
        d.sub_(turns, alpha=2.0**self.k)
        bit = torch.ge(d, 2.0**self.m if self.protocol == "masked" else 0.0, out=d)
        return bit, turns.mul_(-(2.0**self.k) * UNIT) if self.protocol == "masked" else None
