"""How a layer compares: the protocol and its window, and how much of the ring is right before and needed after.

    gmw      reads the whole ring, and cuts the surplus fraction off in an opening of 64 bits (mpc/select.py)
    masked   cuts it off every share alone, and reads k bits of what is left (mpc/masked.py)

Cutting f bits off each share is right up to a rounding and to multiples of 2^(64 - f), which vanish mod 2^k as long as
k <= 64 - f. So shares carry a number with them, known when the net is planned: how many of their low bits are valid.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hummingbird import cost
from hummingbird.bits import BitWindow
from hummingbird.cost import Cost
from hummingbird.errors import ConfigError
from hummingbird.mpc import gmw, masked
from hummingbird.mpc import session as sessions
from hummingbird.ring import SCALE

PROTOCOLS = ("masked", "gmw")
AT_ONCE = 1 << 23  # comparisons under way at a time, about 2 GiB; tables of 8 bits are then at a request's limit


@dataclass
class Comparison:
    """What a comparing layer is given; `valid` and `ring` are set by the planner.

    valid: low bits of the input's shares that are right. ring: low bits of the result that later layers need.
    """

    protocol: str
    window: BitWindow
    valid: int = 64
    ring: int = 64

    @property
    def drops(self) -> bool:
        """No bits: the layer is an identity."""
        return self.window.w == 0

    def k(self, scale: int) -> int:
        """Bits that "masked" opens: the window's, cut off at those that are valid."""
        return min(self.window.k, self.valid - (scale - SCALE))

    @property
    def reads(self) -> int | None:
        """Integer bits, sign included, that are read of a value; None: all that it has (a window up to bit 64)."""
        if self.window.k == 64:
            return None
        # gmw opens |x| < 2^62 as well, so that a window up to bit k reads a sign and one bit more.
        return self.window.k - SCALE + (self.protocol == "gmw")

    def needs(self, scale: int) -> int:
        """Low bits of the input's shares that must be right."""
        if self.protocol == "gmw":
            return 64
        return min(self.valid, self.k(scale) + scale - SCALE)

    def range(self, scale: int) -> int:
        """The comparison is for values of magnitudes below 2^range, less 2^(m - 16) for each party but one."""
        k = self.k(scale) if self.protocol == "masked" else min(self.window.k, 64 - (scale - SCALE) - 1)
        return k - SCALE - 1

    def check(self, scale: int) -> None:
        """ConfigError unless the window fits shares with this scale."""
        extra, window = scale - SCALE, self.window
        if self.drops:
            return
        if self.protocol == "gmw" and window.m + extra > 63:
            hint = f"the shares carry {extra} more bits of fraction here: choose a lower m"
            raise ConfigError(f"window {window} begins above the 64-bit ring", hint=hint)
        if self.protocol == "masked" and self.k(scale) - window.m < 2:
            hint = "choose k - m >= 2, BitWindow(0, 0) for an identity, or protocol='gmw'"
            what = f"window {window} leaves fewer than two of the {self.valid - extra} bits that are right here"
            raise ConfigError(what, hint=hint)

    def relu(self, share: Tensor, scale: int) -> tuple[Tensor, Tensor]:
        """Shares, scale 2^16, of relu(x) and of x itself, from shares of x at `scale` >= 16, any shape.

        Cost: `cost`. Windows of no bits are not handled here: their layers are identities.
        """
        parts = [self._relu(part, scale) for part in share.reshape(-1).split(AT_ONCE)]
        y, z = (torch.cat(part) if len(parts) > 1 else part[0] for part in zip(*parts, strict=True))
        return y.view(share.shape), z.view(share.shape)

    def _relu(self, flat: Tensor, scale: int) -> tuple[Tensor, Tensor]:
        session, shift = sessions.current(), scale - SCALE
        if self.protocol == "gmw":
            return gmw.relu(session, flat, self.window, shift)
        return masked.relu(session, flat, shift, self.k(scale), self.window.m, self._ring(scale))

    def _ring(self, scale: int) -> int:
        return max(self.ring, self.k(scale))

    def cost(self, n: int, scale: int, parties: int) -> Cost:
        """Price of `relu` on n elements."""
        if self.drops:
            return cost.FREE
        whole, rest = divmod(n, AT_ONCE)
        parts = self._cost(AT_ONCE, scale, parties) * whole
        return parts + self._cost(rest, scale, parties) if rest or not whole else parts

    def _cost(self, n: int, scale: int, parties: int) -> Cost:
        if self.protocol == "gmw":
            return cost.relu(n, gmw.cut(self.window, scale - SCALE)[1], scale - SCALE, parties)
        return cost.masked_relu(n, self.k(scale), self.window.m, self._ring(scale), parties)

    def variant(self, scale: int) -> str:
        """How the sign is decided, for people: the tables that `cost.tables` has chosen."""
        if self.drops:
            return "dropped"
        if self.protocol == "gmw":
            return "carry tree"
        w = self.k(scale) - self.window.m
        return f"table {w}" if cost.tables(w) == 1 else f"tree of {cost.tables(w)}"
