"""The interface of a protocol that compares: masked.py and gmw.py have it, and nothing else knows which one runs.

Shares carry a number with them, known when the net is planned: how many of their low bits are valid. A protocol says
how many of these it reads, for which values it is right, what it costs, and what it decides (law.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from hummingbird import cost
from hummingbird.bits import BitWindow
from hummingbird.cost import Cost
from hummingbird.mpc.protocols.law import Law
from hummingbird.mpc.protocols.table_choice import LATENCY, TableChoice
from hummingbird.mpc.session.session import Session
from hummingbird.ring import SCALE, WEIGHT_SCALE

AT_ONCE = 1 << 23  # comparisons under way at a time, about 2 GiB; tables of 8 bits are then at a request's limit


@dataclass
class Comparison(ABC):
    """A window on shares; `valid`, `ring` and `whole` are set by the planner.

    valid: low bits of the input's shares that are right. ring: low bits of the result that later layers need. aim: what
    tables are chosen for. whole: whether the input's shares are right in all bits of the result, of a ReLU alone.
    """

    window: BitWindow
    valid: int = 64
    ring: int = 64
    aim: TableChoice = LATENCY
    whole: bool = False

    name: ClassVar[str]
    least_width: ClassVar[int]  # bits that a window keeps if it keeps any
    looks_up: ClassVar[bool] = False  # whether smooth functions are tables of polynomials, which its dealer makes
    # Whether every party may round its own share before the comparison: it is then right in fewer low bits.
    takes_rounded_shares: ClassVar[bool]
    gives_squares: ClassVar[bool] = False  # whether it has `squares`, without a product

    @property
    def drops(self) -> bool:
        """No bits: the layer is an identity."""
        return self.window.w == 0

    @property
    @abstractmethod
    def reads(self) -> int | None:
        """Integer bits, sign included, that are read of a value; None: all that it has (a window up to bit 64)."""

    @property
    def reach(self) -> int:
        """Results of `relu` are below 2^reach in magnitude, whatever is compared; 64: they are as large as that."""
        return 64

    @property
    def undecided(self) -> float:
        """Values from 0 to this may be taken for negative ones; 0 for exact comparisons."""
        return 2.0 ** (self.window.low - SCALE) if self.window.low else 0.0

    @property
    def weight_scale(self) -> int:
        """Bits of fraction that weights need if their results are compared: they are rounded by 2^-12 of what stays
        undecided, and by no less than the exact ones are.
        """
        return max(SCALE, min(WEIGHT_SCALE, SCALE + 12 - self.window.low))

    @abstractmethod
    def needs(self, scale: int) -> int:
        """Low bits of the input's shares that must be right, at this scale."""

    def may_be_whole(self, scale: int) -> bool:
        """Whether shares that are right in all bits of the result would cost less, and these can be."""
        return False

    @abstractmethod
    def range(self, scale: int) -> int:
        """The comparison is for values of magnitudes below 2^range, less 2^(m - 16) for each party but one."""

    @abstractmethod
    def check(self, scale: int) -> None:
        """ConfigError unless the window fits shares with this scale."""

    @abstractmethod
    def law(self, scale: int, parties: int) -> Law:
        """The plaintext rule of this comparison on shares of this scale."""

    @abstractmethod
    def variant(self, scale: int, parties: int) -> str:
        """How the sign is decided, for people."""

    @abstractmethod
    def _run(self, session: Session, share: Tensor, knots: Sequence[int], scale: int) -> tuple[Tensor, Tensor]:
        """`above` of a flat share, at most AT_ONCE comparisons."""

    @abstractmethod
    def _price(self, n: int, knots: int, scale: int, parties: int) -> Cost:
        """Cost of `_run` on n elements and so many knots."""

    def wider(self, window: BitWindow, valid: int, ring: int = 64) -> Comparison:
        """The same comparison on other bits of other shares, for the same aim."""
        return replace(self, window=window, valid=valid, ring=ring, whole=False)

    def relu(self, session: Session, share: Tensor, scale: int) -> tuple[Tensor, Tensor]:
        """Shares, scale 2^16, of relu(x) and of x itself, from shares of x at `scale` >= 16, any shape.

        Of a window with q both are multiples of 2^q in the ring. Cost: `cost`. Windows of no bits are not handled here:
        their layers are identities.
        """
        y, z = self.above(session, share, (0,), scale)
        return y[0], z

    def above(self, session: Session, share: Tensor, knots: Sequence[int], scale: int) -> tuple[Tensor, Tensor]:
        """Shares, scale 2^16, of relu(x - t) for every public knot t, (J, *shape), and of x - t_0.

        knots: J whole numbers of 2^-16, at least one. The comparisons are right where each of the x - t is in the
        window. Cost: `cost` of J knots; the rounds of one ReLU.
        """
        parts = share.reshape(-1).split(most_at_once(len(knots)))
        done = [self._run(session, part, knots, scale) for part in parts]
        y, z = (torch.cat(part, -1) if len(parts) > 1 else part[0] for part in zip(*done, strict=True))
        return y.view(len(knots), *share.shape), z.view(share.shape)

    def squares(
        self, session: Session, share: Tensor, knots: Sequence[int], scale: int, fraction: int
    ) -> tuple[Tensor, Tensor]:
        """Shares of y = relu(x - t) for every knot t, scale 2^fraction, and of y^2, 2^(2 fraction); (J, *shape) each.

        knots: J whole numbers of 2^-fraction, fraction <= 16. Otherwise as `above`. Cost: `cost_of_squares`.
        """
        raise NotImplementedError(f"{self.name} has no squares")

    def cost_of_squares(self, n: int, scale: int, parties: int, knots: int, fraction: int) -> Cost:
        """Price of `squares` on n elements and so many knots."""
        raise NotImplementedError(f"{self.name} has no squares")

    def cost(self, n: int, scale: int, parties: int, knots: int = 1) -> Cost:
        """Price of `above` on n elements and so many knots; of `relu` for one."""
        if self.drops:
            return cost.FREE
        most = most_at_once(knots)
        whole, rest = divmod(n, most)
        parts = self._price(most, knots, scale, parties) * whole
        return parts + self._price(rest, knots, scale, parties) if rest or not whole else parts


def most_at_once(knots: int) -> int:
    """Values that are compared with so many knots at a time."""
    return max(1, AT_ONCE // knots)
