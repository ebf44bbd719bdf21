"""Base class of private layers: modules on shares that know their scales, their range and their price.

A layer takes the session and `Shared` values (mpc/session/sharing.py), and returns `Shared` values. These have
16 bits of fraction, but the result of a linear layer has the weights' bits of fraction in addition; the next comparison
cuts them off in its opening, at no extra cost. Where a layer cannot take the scale of an input, the planner inserts a
rescaling (mpc/plan/rounding_plan.py). The planner also ensures that every value fits the ring.

The table lists a layer's attributes. The low `valid` bits of a value's shares are right, and the lowest `grain` of
these bits are zero. A "forward" attribute follows from the inputs, a "backward" one from what later layers read, and a
"fixed" one from neither.

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
    breadth        values at once                for shapes  layer
    constants      integers                      fixed       layer
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hummingbird import cost
from hummingbird.cost import Cost
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.protocols.lift import lift, lift_price
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE, WEIGHT_SCALE, exponent_of

MAX_SCALE = 48  # |x| < 2^62 in the ring then means |x| < 2^14: for values with a known bound
FLOOR = 20  # every value of a net may reach 2^20, unless a smaller bound is known
MARGIN = 2  # bits above the range: a sign, and one because openings read |x| < 2^62 (select) or 2^(low-2) (Lift)
EXCESS = 2.0**-4  # undecided comparisons may let a value exceed its bound by this part of the bound
FINER = 12  # a net's result with a known bound keeps 16 + min(FINER, FLOOR - bound) bits of fraction


def room(bound: int) -> int:
    """Return the most bits of fraction that a constant may have so that a product with it fits the ring.

    The constant is multiplied by a value of scale 2^16.
    bound: log2 of the largest magnitude of the product, as a real number.
    """
    return 64 - SCALE - MARGIN - max(0, min(FLOOR, bound))


def held(bound: int) -> int:
    """Return how many integer bits hold a value below 2^bound: `bound`, and MARGIN (2) for the sign and for openings.

    Integer bits are those above the binary point. A value whose bound is below 2^FLOOR (2^20) takes one more bit, since
    it may reach or exceed the bound: a clamped value reaches it; rounding errors exceed it; comparisons that take a
    small positive value for a negative one exceed it by EXCESS of the bound; and a product of such values exceeds it by
    more. A value with bound 2^FLOOR stays below this bound.
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
    """An input of a layer, as the planner knows it before any run.

    scale: its bits of fraction.
    valid: how many low bits of its shares are right.
    grain: how many of its lowest bits are zero in every share.
    bound: log2 of the largest magnitude.
    """

    scale: int
    valid: int
    grain: int
    bound: int


class Layer(nn.Module):
    """Base of the private layers. `forward` takes the session and the values of the inputs, as `Shared`.

    >>> from hummingbird.mpc.layers.layer import Layer
    >>> from hummingbird.mpc.session.sharing import Shared
    >>> class Twice(torch.nn.Module):
    ...     def forward(self, x):
    ...         return 2 * x
    >>> class PrivateTwice(Layer):
    ...     def forward(self, session, x):
    ...         return Shared(2 * x.share, x.scale)
    >>> hummingbird.register_converter(Twice, lambda module: PrivateTwice())
    >>> session = hummingbird.init()
    >>> private = hummingbird.convert_model(torch.nn.Sequential(net, Twice()))
    >>> logits = private(hummingbird.cryptensor(images, src=0)).get_plain_text()
    >>> bool((logits - 2 * net(images)).abs().max() < 0.001)
    True
    >>> hummingbird.uninit()
    """

    # The layer sets these.
    input_limit = SCALE  # the highest scale of an input that it accepts, in bits of fraction
    whole_input = False  # whether all 64 bits of its inputs' shares must be right
    whole_ring = False  # whether it multiplies or truncates what it compared, which must then be right in 64 bits
    adds_up = False  # whether it can lift sums of its inputs, which are fewer than the inputs themselves
    comparison: Comparison | None = None  # None for a layer without a window

    # The planner sets these.
    given: tuple[Given, ...] = ()  # its inputs before it rounds or lifts them itself
    scales: tuple[int, ...] = ()  # the scales of its inputs when it runs
    lifts_sums = False  # whether it lifts sums
    read = 64  # how many low bits of the result's shares later layers read; the bits above may be anything
    range = FLOOR  # it is right if the values that it compares, or else its results, stay below 2^range

    def out_scale(self, scales: Sequence[int]) -> int:
        """Return how many bits of fraction the layer's result has. scales: those of each input."""
        return SCALE

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        """Return how many low bits of the result's shares are right.

        scales: bits of fraction of each input. valid: how many low bits of each input's shares are right.
        """
        return min(valid, default=64)

    def needs(self, scales: Sequence[int], later: int) -> int:
        """Return how many low bits of each input's shares must be right; the number is the same for all inputs.

        scales: bits of fraction of the inputs. later: how many low bits of the result's shares later layers read.
        """
        return later

    def lifts(self, given: Given) -> bool:
        """Return whether this layer opens the given input by itself, so that it needs no `Lift` before it."""
        return False

    def needs_of_each(self, scales: Sequence[int], later: int) -> list[int]:
        """Return for each input how many low bits of its shares must be right.

        A layer that needs more bits of one input than of another overrides this; otherwise `needs` has one number for
        all.
        scales: bits of fraction of the inputs.
        later: how many low bits of the result's shares later layers read.
        """
        return [self.needs(scales, later)] * len(scales)

    def grain(self) -> int:
        """Return how many of the lowest bits of the layer's result are zero in every party's share."""
        return 0

    def bound(self, bounds: Sequence[int]) -> int:
        """Compute log2 of the largest magnitude that the layer's result can have. bounds: log2 of that of each input.

        Two things are left out, for which `held` has room: rounding errors, and the errors of comparisons that take a
        small positive value for a negative one. The latter are at most EXCESS (2^-4) of the bound.
        """
        return max(bounds, default=FLOOR)

    def reads(self, later: int | None) -> int | None:
        """Return how many integer bits of its inputs this layer needs: bits above the binary point, with the sign.

        later: how many of them later layers need of this layer's result.
        None, as argument or result, stands for all integer bits of a value within its bound.
        """
        return later

    def weight_scale(self, later: int) -> int:
        """Return how many bits of fraction the weights of the layers before this one must have.

        later: how many bits of fraction of these weights the layers after this one ask for. A layer that only passes
            values on returns `later`; another layer asks for the number that its own precision takes.
        """
        return WEIGHT_SCALE

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        """Return the rounds and bits that the layer predicts for one call on inputs of these shapes and scales."""
        return cost.FREE

    def constants(self) -> tuple[int, ...]:
        """Return the public integers that the layer computes with, beside the net's weights.

        They must be equal at all parties.
        """
        return ()

    def label(self) -> str:
        """Return the layer's parameters as text, for its printed form."""
        return ""

    def variant(self, scale: int, parties: int, n: int) -> str:
        """Describe for the user how the layer's comparison decides signs; "" for a layer without a comparison.

        scale: bits of fraction of the input. n: how many values are compared.
        """
        return self.comparison.variant(scale, parties, n) if self.comparison is not None else ""

    @property
    def comparisons(self) -> list[Comparison]:
        """The comparisons of this layer that the plan knows.

        While the layer runs, it may derive further comparisons from these, for other windows.
        """
        return [self.comparison] if self.comparison is not None else []

    def extra_repr(self) -> str:
        what = "compares" if self.comparison is not None else "gives"
        return ", ".join(part for part in (self.label(), f"{what} |v| < 2^{self.range}") if part)

    def breadth(self, inputs: Sequence[Spec]) -> int:
        """Return how many values the layer works on at once; its memory grows with this number.

        inputs: shape and scale of each input.
        """
        return max((spec.numel for spec in inputs), default=0)

    def share_weights(self, session: Session) -> None:
        """Turn the layer's private weights into shares, if it has any. Nothing is sent.

        Every party calls this once for each layer, in the order of the plan.
        """


class LocalRescale(Layer):
    """Layer that brings x to scale 2^target: every party rounds its own share. Sends nothing.

    With N parties the value errs by N/2 units of 2^-target at most. For every bit of fraction cut, one bit fewer of the
    shares is right. Only "masked" uses it: it compares the remaining bits and lifts the result.
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
    """Layer that brings x, of any scale, to scale 2^target, with shares that are right in all 64 bits.

    low: how many low bits of the input's shares are read; |x| must be below 2^(low - 2) in the ring.
    Takes one round. A party sends `low` bits for each value, less the bits of fraction that are cut and the low bits
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
        """Return how many low bits of the cut value are zero in every party's share, and so need not be sent.

        scale: bits of fraction of the input.
        """
        return max(0, self.given[0].grain - (scale - self.target)) if self.given else 0

    def _sizes(self, scale: int) -> tuple[int, int, int]:
        """Return three numbers of bits: of fraction that are cut off, that are opened, and that later layers read.

        scale: bits of fraction of the input. The third number counts bits of the lifted number.
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
    """Layer that applies a function to each party's share alone, at an unchanged scale: reshaping, slicing, sums.

    function: takes the share and maybe public arguments; returns a tensor or a tuple of tensors.
    name: for the layer's printed form.
    growth: the result is below 2^growth times the input.
    """

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
    """Bring shares to the highest of their scales, by shifts to the left, which are exact.

    Returns the shifted shares, and the bits of fraction of this scale.
    """
    scales = [x.scale for x in xs]
    return [x.share << (max(scales) - scale) for x, scale in zip(xs, scales, strict=True)], max(scales)


class Combine(Layer):
    """Layer that applies a function to the shares of several private tensors, brought to their highest scale first.

    function: takes the list of shares, such as a sum or torch.cat.
    name: for the layer's printed form.
    growth: the result is below 2^growth times the largest input.
    most: a known bound of the result; None if there is none but by `growth`.
    """

    input_limit = MAX_SCALE

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        # A shift to the left adds as many valid bits.
        return min(64, *(low + max(scales) - scale for low, scale in zip(valid, scales, strict=True)))

    def __init__(
        self, function: Callable[[list[Tensor]], Tensor], name: str, growth: int = 0, most: float | None = None
    ) -> None:
        super().__init__()
        self.function, self.name, self.growth = function, name, growth
        self.most = FLOOR if most is None else exponent_of(most)

    def bound(self, bounds: Sequence[int]) -> int:
        return min(max(bounds) + self.growth, self.most)

    def weight_scale(self, later: int) -> int:
        return later

    def out_scale(self, scales: Sequence[int]) -> int:
        return max(scales)

    def needs_of_each(self, scales: Sequence[int], later: int) -> list[int]:
        # A shift to the left leaves as many bits fewer of a share in the result.
        return [max(1, later - (max(scales) - scale)) for scale in scales]

    def grain(self) -> int:
        highest = max(given.scale for given in self.given)
        return min(given.grain + highest - given.scale for given in self.given)

    def forward(self, session: Session, *xs: Any) -> Shared:
        shares, scale = aligned(xs[0] if len(xs) == 1 else xs)
        return Shared(self.function(shares), scale)

    def label(self) -> str:
        return self.name
