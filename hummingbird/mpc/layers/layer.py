"""The base of a private net's layers: modules on shares that know their scales, their range and their price.

A layer is called with the session and `Shared` values (mpc/session/sharing.py) and returns such. Values at rest have 16
bits of fraction. A linear layer adds the bits of fraction of its weights and leaves them there: the next comparison
cuts them off in the opening that it makes anyway. Where a layer cannot take the scale of an input, the planner puts a
rescaling before it (mpc/plan/rounding_plan.py); the planner also makes sure that every value has room in the ring.

A layer declares what the table lists. The low `valid` bits of a value's shares are right, and the lowest `grain` bits
of them are zero. "Forward" follows from the inputs, "backward" from what later layers read, "fixed" from neither.

    name           unit                          direction   set by
    input_limit    bits of fraction of an input  fixed       layer
    whole_input    flag                          fixed       layer
    whole_ring     flag                          fixed       layer
    adds_up        flag                          fixed       layer
    comparison     protocol and window           fixed       builder, from `bits`
    given          scale, valid, grain, bound    forward     planner, before rescalings
    scales         bits of fraction              forward     planner, after rescalings
    lifts          flag for each input           forward     layer, from `given`
    out_scale      bits of fraction              forward     layer
    valid          low bits of shares            forward     layer
    grain          low bits of shares            forward     layer, from `given`
    bound          log2 of the largest value     forward     layer
    range          log2 of the largest value     forward     planner
    lifts_sums     flag                          forward     planner, where `adds_up`
    needs          low bits of an input's share  backward    layer
    needs_of_each  the same for each input       backward    layer, where inputs differ
    reads          integer bits with the sign    backward    layer
    weight_scale   bits of fraction of weights   backward    layer
    read           low bits of shares            backward    planner
    cost           rounds and bits of a party    for shapes  layer
    breadth        values side by side           for shapes  layer
    constants      integers                      fixed       layer
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
    """Base of the private layers. `forward` takes the session and the values of the inputs, as `Shared`."""

    # The layer sets these.
    input_limit = SCALE  # the highest scale that it accepts
    whole_input = False  # whether all 64 bits of its inputs' shares must be right
    whole_ring = False  # whether it opens what it has compared, so that its comparisons must lift to 64 bits
    adds_up = False  # whether it can lift sums of its inputs in place of the inputs, which are more
    comparison: Comparison | None = None  # None for a layer without a window

    # The planner sets these.
    given: tuple[Given, ...] = ()  # its inputs as they come, before any rescaling that it asks for
    scales: tuple[int, ...] = ()  # the scales of its inputs when it runs
    lifts_sums = False  # whether it lifts sums
    read = 64  # how many low bits of the result's shares later layers read; the bits above may be anything
    range = FLOOR  # it is right for values below 2^range: values of its result, or with a window those that it compares

    def out_scale(self, scales: Sequence[int]) -> int:
        """Bits of fraction of the result, from the inputs' scales."""
        return SCALE

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        """How many low bits of the result's shares are right, if `valid` bits of the inputs' shares are."""
        return min(valid, default=64)

    def needs(self, scales: Sequence[int], later: int) -> int:
        """How many low bits of the inputs' shares must be right, if `later` bits of the result's shares are read."""
        return later

    def lifts(self, given: Given) -> bool:
        """Whether it lifts this input itself, in the opening that it makes anyway."""
        return False

    def needs_of_each(self, scales: Sequence[int], later: int) -> list[int]:
        """`needs` of each input, for layers whose inputs differ in it."""
        return [self.needs(scales, later)] * len(scales)

    def grain(self) -> int:
        """How many of the lowest bits of the result are zero in every party's share."""
        return 0

    def bound(self, bounds: Sequence[int]) -> int:
        """log2 of how large the result can be, if the inputs stay below 2^bounds.

        Rounding does not count, nor an excess of up to EXCESS: `held` has room for both.
        """
        return max(bounds, default=FLOOR)

    def reads(self, later: int | None) -> int | None:
        """How many integer bits (with sign) this layer needs of its inputs when `later` bits of its result are needed.

        None: all that a value within the inputs' bound has.
        """
        return later

    def weight_scale(self, later: int) -> int:
        """How many bits of fraction the weights of the layers before this one need, if weights of the layers behind it
        would need `later`.
        """
        return WEIGHT_SCALE

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        """Rounds and bits of one call."""
        return cost.FREE

    def constants(self) -> tuple[int, ...]:
        """Public integers beside the net's own that the layer computes with: parties must have the same."""
        return ()

    def label(self) -> str:
        """The layer's parameters, for its printed form."""
        return ""

    def variant(self, scale: int, parties: int) -> str:
        """How its comparison works with this window, in words for people."""
        return self.comparison.variant(scale, parties) if self.comparison is not None else ""

    @property
    def comparisons(self) -> list[Comparison]:
        """Every comparison that it makes, or derives others from."""
        return [self.comparison] if self.comparison is not None else []

    def extra_repr(self) -> str:
        what = "compares" if self.comparison is not None else "gives"
        return ", ".join(part for part in (self.label(), f"{what} |v| < 2^{self.range}") if part)

    def breadth(self, inputs: Sequence[Spec]) -> int:
        """How many values the layer works on side by side: its memory grows with this number."""
        return max((spec.numel for spec in inputs), default=0)

    def share_weights(self, session: Session) -> None:
        """Turn one party's weights into shares; every party calls this once, in the same order. Nothing is sent."""


class LocalRescale(Layer):
    """x at scale 2^target. Every party rounds its own share: nothing is sent, and the value moves by N/2 units at most.

    The result has as many valid bits less as are cut. Its readers know: "masked" takes the bits that are left and lifts
    them (protocols/comparison.py).
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
    """x, at any scale, at scale 2^target and right in the whole ring. It is for |x| < 2^(low - 2) in the ring.

    low: how many low bits of the input's shares are read.
    One round, in which a party sends `low` bits for each value, less the bits of fraction that are cut and the low bits
    that are zero in every share.
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
        """How many of the lowest bits are zero in every share, beside the bits that are cut."""
        return max(0, self.given[0].grain - (scale - self.target)) if self.given else 0

    def _sizes(self, scale: int) -> tuple[int, int, int]:
        """How many bits of fraction are not opened, how many bits are opened, and how many bits of the lifted number
        are read.
        """
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
