"""The base of a private net's layers: modules on CrypTen tensors that know their scales, their range and their price.

Values at rest have scale 2^16. A linear layer adds the bits of fraction of its weights and leaves them: the next
comparison cuts them off in the opening it makes anyway. `input_limit` is the highest scale a layer accepts; where it is
exceeded the planner inserts a rescaling (mpc/plan/rounding_plan.py, which also sees to it that every value has room).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hummingbird import cost
from hummingbird.cost import Cost
from hummingbird.mpc.protocols.comparison import Comparison
from hummingbird.mpc.protocols.lift import lift, lift_price
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE, WEIGHT_SCALE

MAX_SCALE = 48  # |x| < 2^62 in the ring then means |x| < 2^14: enough for values that are known to be small
FLOOR = 20  # every value of a net may reach 2^20, unless it is known to stay below less
MARGIN = 2  # bits above the range: a sign, and one because openings read |x| < 2^62 (select) or 2^(low-2) (Lift)
EXCESS = 2.0**-4  # what comparisons leave undecided may take a value beyond its bound by this part of it
FINER = 12  # bits of fraction beside 16 that a net's result keeps if it is known to be small: FLOOR less its bound


def room(bound: int) -> int:
    """Bits of fraction for constants, where the other factor has scale 2^16 and the result stays below 2^bound."""
    return 64 - SCALE - MARGIN - max(0, min(FLOOR, bound))


def held(bound: int) -> int:
    """Integer bits that a value up to 2^bound takes, sign and MARGIN included.

    A value that is known to be small may meet its bound, as a clamp's does, and pass it by what is rounded, or by
    EXCESS where comparisons leave it undecided; products of such values, by more: a bit for that. Others stay below.
    """
    return bound + MARGIN + (bound < FLOOR)


class Spec(NamedTuple):
    """Shape and scale of a private value, known before anything runs."""

    shape: tuple[int, ...]
    scale: int

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()


class Given(NamedTuple):
    """The planner's knowledge of an input: its bits of fraction, how many low bits of its shares are right, how many of
    the lowest are zero in every share, and log2 of how large it can be.
    """

    scale: int
    valid: int
    grain: int
    bound: int


class Layer(nn.Module):
    """Base of the private layers. `forward` takes and gives CrypTen tensors."""

    comparison: Comparison | None = None  # of the layers that have a window
    whole_ring = False  # whether it opens what it has compared, so that its comparisons must lift to 64 bits
    whole_input = False  # whether all 64 bits of its inputs' shares must be right
    input_limit = SCALE
    adds_up = False  # whether it can lift sums of its inputs, which are fewer, so that its inputs need no lift
    lifts_sums = False  # set by the planner: whether it does
    read = 64  # set by the planner: how many low bits of the result's shares count; those above may be anything
    scales: tuple[int, ...] = ()  # set by the planner: those of its inputs
    given: tuple[Given, ...] = ()  # set by the planner: its inputs, as they come, before it asks for anything below
    range = FLOOR  # set by the planner: the layer is right for values below 2^range, of its result or, with a window,
    # of what it compares

    def out_scale(self, scales: Sequence[int]) -> int:
        """Scale of the result, bits of fraction, from the inputs' scales."""
        return SCALE

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        """How many low bits of the result's shares are right, from those of the inputs."""
        return min(valid, default=64)

    def needs(self, scales: Sequence[int], later: int) -> int:
        """How many low bits of the inputs' shares count, if `later` ones of the result's do."""
        return later

    def lifts(self, given: Given) -> bool:
        """Whether it lifts such an input itself, in the opening that it makes anyway."""
        return False

    def needs_of_each(self, scales: Sequence[int], later: int) -> list[int]:
        """`needs` of every input, of layers whose inputs differ in that."""
        return [self.needs(scales, later)] * len(scales)

    def grain(self) -> int:
        """How many of the lowest bits of the result are zero in every party's share."""
        return 0

    def bound(self, bounds: Sequence[int]) -> int:
        """log2 of how large the result can be, if the inputs stay below 2^bounds.

        What is rounded does not count, nor an excess of up to EXCESS: `held` has room for that.
        """
        return max(bounds, default=FLOOR)

    def reads(self, later: int | None) -> int | None:
        """Integer bits, sign included, that are read of the inputs, if `later` are of the result; None: all that a
        value of the inputs' bound has.
        """
        return later

    def weight_scale(self, later: int) -> int:
        """Bits of fraction of weights whose results are the inputs, if `later` were enough for weights whose results
        are this result.
        """
        return WEIGHT_SCALE

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        """Rounds and bits of one call."""
        return cost.FREE

    def constants(self) -> tuple[int, ...]:
        """Public numbers beside the net's own that the layer computes with: parties must have the same."""
        return ()

    def label(self) -> str:
        """The layer's facts in its printed form."""
        return ""

    def variant(self, scale: int, parties: int) -> str:
        """How it decides by its window, for people."""
        return self.comparison.variant(scale, parties) if self.comparison is not None else ""

    @property
    def comparisons(self) -> list[Comparison]:
        """Every comparison that it makes, or makes others of."""
        return [self.comparison] if self.comparison is not None else []

    def extra_repr(self) -> str:
        what = "compares" if self.comparison is not None else "gives"
        return ", ".join(part for part in (self.label(), f"{what} |v| < 2^{self.range}") if part)

    def breadth(self, inputs: Sequence[Spec]) -> int:
        """How many values the layer works on side by side: what its memory grows with."""
        return max((spec.numel for spec in inputs), default=0)

    def share_weights(self, session: Session) -> None:
        """Turn one party's weights into shares; every party calls this once, in the same order. Nothing is sent."""


class LocalRescale(Layer):
    """x to scale 2^target by rounding every share on its own: free, within N/2 units, and with that many valid bits
    less.

    The readers know: "masked" takes what is left of the ring and lifts it (protocols/comparison.py).
    """

    input_limit = 62

    def __init__(self, target: int = SCALE) -> None:
        super().__init__()
        self.target = target

    def out_scale(self, scales: Sequence[int]) -> int:
        return self.target

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        return valid[0] - (scales[0] - self.target)

    def needs(self, scales: Sequence[int], later: int) -> int:
        return min(64, later + scales[0] - self.target)

    def grain(self) -> int:
        return max(0, self.given[0].grain - (self.given[0].scale - self.target))

    def forward(self, session: Session, x: Shared) -> Shared:
        shift = x.scale - self.target
        return Shared((x.share + (1 << shift >> 1)) >> shift, self.target)


class Lift(Layer):
    """x at any scale, of whose shares the `low` lowest bits are looked at, to scale 2^target and the whole ring, for
    |x| < 2^(low - 2) in the ring: low bits less those of fraction that are cut, or are zero in every share, and one
    round.
    """

    input_limit = 62

    def __init__(self, low: int, target: int = SCALE) -> None:
        super().__init__()
        self.low, self.target = low, target

    def out_scale(self, scales: Sequence[int]) -> int:
        return self.target

    def reads(self, later: int | None) -> int | None:
        return None

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        return 64

    def needs(self, scales: Sequence[int], later: int) -> int:
        return self.low

    def grain(self) -> int:
        return self._up(self.given[0].scale)

    def constants(self) -> tuple[int, ...]:
        return self.low, self.grain()

    def _up(self, scale: int) -> int:
        """Lowest bits that are zero in every share, beside those that are cut."""
        return max(0, self.given[0].grain - (scale - self.target)) if self.given else 0

    def _sizes(self, scale: int) -> tuple[int, int, int]:
        """Bits of fraction that are not opened, bits to open, and bits of what was opened that are read."""
        up = self._up(scale)
        shift = scale - self.target + up
        k = self.low - shift
        return shift, k, max(k, self.read - up)

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        _, k, ring = self._sizes(inputs[0].scale)
        return lift_price(inputs[0].numel, k, ring, parties)

    def forward(self, session: Session, x: Shared) -> Shared:
        share, scale = x.share, x.scale
        lifted = lift(session, share.reshape(-1), *self._sizes(scale)) << self._up(scale)
        return Shared(lifted.view(share.shape), self.target)


class Local(Layer):
    """A function that acts on each share alone and keeps the scale: reshaping, slicing, padding, sums."""

    input_limit = MAX_SCALE

    def __init__(self, function: Callable[..., Any], name: str, growth: int = 0) -> None:
        super().__init__()
        self.function, self.name, self.growth = function, name, growth

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0] + self.growth

    def weight_scale(self, later: int) -> int:
        return later

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0]

    def grain(self) -> int:
        return self.given[0].grain

    def forward(self, session: Session, x: Shared, *args: Any) -> Any:
        out = self.function(x.share, *args)
        if isinstance(out, (tuple, list)):
            return tuple(Shared(part, x.scale) for part in out)
        return Shared(out, x.scale)

    def label(self) -> str:
        return self.name


def aligned(xs: Sequence[Shared]) -> tuple[list[Tensor], int]:
    """Shares brought to the highest of their scales: a shift to the left is exact and local."""
    scales = [x.scale for x in xs]
    return [x.share << (max(scales) - scale) for x, scale in zip(xs, scales, strict=True)], max(scales)


class Combine(Layer):
    """A local function of several private tensors at their highest scale: add, sub, cat, stack."""

    input_limit = MAX_SCALE

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        # A share that moves to the left takes its valid bits along.
        return min(64, *(low + max(scales) - scale for low, scale in zip(valid, scales, strict=True)))

    def __init__(self, function: Callable[[list[Tensor]], Tensor], name: str, growth: int = 0) -> None:
        super().__init__()
        self.function, self.name, self.growth = function, name, growth

    def bound(self, bounds: Sequence[int]) -> int:
        return max(bounds) + self.growth

    def weight_scale(self, later: int) -> int:
        return later

    def out_scale(self, scales: Sequence[int]) -> int:
        return max(scales)

    def grain(self) -> int:
        highest = max(given.scale for given in self.given)
        return min(given.grain + highest - given.scale for given in self.given)

    def forward(self, session: Session, *xs: Any) -> Shared:
        shares, scale = aligned(xs[0] if len(xs) == 1 else xs)
        return Shared(self.function(shares), scale)

    def label(self) -> str:
        return self.name
