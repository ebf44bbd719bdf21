"""Activations: ReLU, and formulas that are built from ReLUs.

    leaky(x) = s x + (1 - s) relu(x)
    hardtanh(x) = lo + relu(x - lo) - relu(x - hi)

Any other function is a spline, linear (splines.py) or quadratic (smooth.py): a sum of multiples of relu(x - t_j), whose
comparisons run in parallel, in the rounds of one ReLU. All comparisons use the layer's window. A layer's price follows
from its formula (comparing.py), and its simulation runs the same formula (simulation/layers.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hummingbird import ring
from hummingbird.mpc.functions import smooth, splines
from hummingbird.mpc.functions.smooth import Curve
from hummingbird.mpc.functions.splines import Fit
from hummingbird.mpc.layers.arithmetic import Arithmetic
from hummingbird.mpc.layers.comparing import Comparing
from hummingbird.mpc.layers.constants import fits
from hummingbird.mpc.layers.layer import EXCESS, FLOOR, room
from hummingbird.mpc.layers.linear import PrivateWeight, PublicWeight, WeightOwner, private_fraction, weight_of
from hummingbird.mpc.protocols.beaver import ShiftedSquare
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.ring import SCALE, WEIGHT_SCALE


class ReLU(Comparing):
    """Layer for max(x, 0).

    Cost for a window [k:m) of w bits: with "masked" and one table k + 2 bits in 2 rounds, or with lines k bits in 1
    round; with "gmw" and two parties 4w + 58 - L bits in 2 + L rounds, where L = ceil(log2(w - 1)).
    """

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        return n.relu(x)

    def grain(self) -> int:
        return self.comparison.window.q if self.comparison.takes_rounded_shares and not self.comparison.drops else 0


class LeakyReLU(Comparing):
    """Layer for the leaky ReLU, x for x >= 0 and slope * x below, at the price of a ReLU."""

    def __init__(self, slope: float, comparison: Comparison) -> None:
        super().__init__(comparison)
        number = torch.tensor([slope], dtype=torch.float64)
        self.growth = max(0, ring.exponent_of(slope))
        self.fraction = ring.fraction(number, room(FLOOR), where="slope")
        self.slope = int(ring.encode(number, self.fraction, where="slope"))

    def bound(self, bounds: Sequence[int]) -> int:
        return self.within(bounds[0]) + self.growth

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        y, z = n.compare(x)
        rest = (1 << self.fraction) - self.slope
        return n.times(z, self.slope, self.fraction) + n.times(y, rest, self.fraction)


class PReLU(Comparing):
    """Layer for x where x >= 0, else x times the slope of its channel (dimension 1).

    weight: real slopes, (channels,) or (1,).
    owner: the party with private slopes; None for public ones. Private slopes add 64 bits for each element, and a
        round.
    """

    weight: PublicWeight | PrivateWeight

    def __init__(self, weight: Tensor, comparison: Comparison, owner: WeightOwner | None) -> None:
        super().__init__(comparison)
        if owner is None:
            self.fraction = max(WEIGHT_SCALE, ring.fraction(weight, room(FLOOR), where="weight"))
            self.growth = max(0, ring.exponent_of(float(weight.abs().max()))) if weight.numel() else 0
        else:
            self.fraction, self.growth = private_fraction(weight, owner), FLOOR
        self.weight = weight_of(ring.encode(weight, self.fraction, where="weight"), owner, self.fraction)

    def bound(self, bounds: Sequence[int]) -> int:
        return self.within(bounds[0]) + self.growth

    def formula(self, n: Arithmetic, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """Compute the layer's function of x with the operations of `n`, and return the result.

        n: the kind of numbers: real numbers, shares or prices.
        weight: the slopes as real numbers, if x is real; None: the layer's own, for shares.
        """
        y, z = n.compare(x)
        moved = n.per_channel(z - y, self.weight if weight is None else weight)
        return n.times(y, 1 << self.fraction, self.fraction) + moved


class Hardtanh(Comparing):
    """Layer for min(max(x, low), high). It takes two comparisons for each element, in the rounds of one."""

    def __init__(self, low: float, high: float, comparison: Comparison) -> None:
        super().__init__(comparison)
        self.low, self.high = low, high

    def out_scale(self, scales: Sequence[int]) -> int:
        fits(torch.tensor([self.low, self.high], dtype=torch.float64), scales[0])
        return super().out_scale(scales)

    def bound(self, bounds: Sequence[int]) -> int:
        if self.comparison.drops:
            return bounds[0]
        most = max(abs(self.low), abs(self.high)) + self.comparison.undecided
        return ring.exponent_of(most / (1 + EXCESS))

    def farthest(self, scale: int) -> float:
        return max(abs(self.low), abs(self.high))

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        y = n.relus(x, (self.low, self.high))
        return n.constant(self.low) + y[0] - y[1]


class Hardswish(Comparing):
    """Layer for x * min(max(x + 3, 0), 6) / 6: two comparisons from one opening, in the rounds of a ReLU.

    Let y = relu(x + 3) and z = relu(x - 3). If the comparison also gives squares (`Comparison.gives_squares`), the
    layer computes (y^2 - 3 y - z^2 - 9 z) / 6 + z from one opening. The opened values have 12 bits of fraction, so that
    a square, a sixth and a layer of weights fit the ring. The dividend lies in [0, 18], and the factor 1/6 errs by
    2^-17: results err by 2^-13 from this factor, and by the rounding of values.

    Otherwise the layer computes c (c + 3) / 6 + z with c = min(max(x, -3), 3). c (c + 3) lies in [0, 18] for every x,
    so the product at scale 2^56 stays below 2^58, and is cut to 2^16 at once. The square and its truncation cost 64
    bits and a round each.
    """

    whole_ring = True

    def __init__(self, comparison: Comparison) -> None:
        super().__init__(comparison)
        if comparison.gives_squares:
            self.fraction = 2 * _COARSE + _COARSE_SIXTH_BITS - SCALE

    def farthest(self, scale: int) -> float:
        return 3.0

    def bound(self, bounds: Sequence[int]) -> int:
        far = min(bounds[0], max(2, self.within(bounds[0])) + 1)  # x + 3 and x - 3 are compared
        # Where z is taken for 0, up to x = 3 + d with d = `undecided`, the result reaches 3 + 3 d / 2 + d^2 / 6.
        return max(far, 2 * ring.exponent_of(self.comparison.undecided))

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        if self.comparison.gives_squares:
            (y, z), (y_squared, z_squared) = n.squares(n.precise(x, self.fraction), (-3.0, 3.0), _COARSE)
            six = y_squared - z_squared - n.times(y + 3 * z, 3 << _COARSE, _COARSE)
            right = n.times(z, 1 << _COARSE + _COARSE_SIXTH_BITS, _COARSE + _COARSE_SIXTH_BITS)
            return (n.times(six, _COARSE_SIXTH, _COARSE_SIXTH_BITS) + right).to(x.dtype)
        above = n.relus(x, (-3.0, 3.0))
        product = n.apply(ShiftedSquare(3.0), above[0] - above[1] - n.constant(3.0))
        (inside,) = n.cut(SCALE + _SIXTH_BITS, n.times(product, _SIXTH, _SIXTH_BITS))  # below 18 * 2^32 * 2^24 / 6
        return inside + above[1]


_SIXTH_BITS = 24
_SIXTH = round(2**_SIXTH_BITS / 6)
# Results have 40 bits of fraction. Behind a layer with 20-bit weights 4 integer bits are left: a window up to bit 20.
_COARSE, _COARSE_SIXTH_BITS = 12, 16
_COARSE_SIXTH = round(2**_COARSE_SIXTH_BITS / 6)


class _Fitted(Comparing):
    """Base of layers that approximate a function by a spline, with one comparison for each knot.

    name: the function's, for the layer's printed form.
    curve: the spline; `curve.error` is its largest error between its knots.
    comparison: compares values with knots.
    """

    curve: Fit | Curve

    def __init__(self, name: str, curve: Fit | Curve, comparison: Comparison) -> None:
        super().__init__(comparison)
        self.name, self.curve, self.fraction = name, curve, curve.fraction

    def farthest(self, scale: int) -> float:
        return float(self.curve.knots.abs().max())

    def constants(self) -> tuple[int, ...]:
        """Return the integers of the spline: its coefficients, and its knots in units of 2^-16.

        All parties must have equal ones; another machine's floating-point unit may find others.
        """
        return *self.curve.numbers, *(round(knot * 2**SCALE) for knot in self.curve.knots.tolist())

    def label(self) -> str:
        return f"{self.name}, {len(self.curve.knots)} knots, error {self.curve.error:.1e}, {super().label()}"


class Spline(_Fitted):
    """Layer for a function as a linear spline, continued by straight lines outside of its knots.

    It takes one comparison for each knot, in the rounds of one ReLU.
    """

    curve: Fit

    def bound(self, bounds: Sequence[int]) -> int:
        if self.comparison.drops or self.curve.slopes[-1] or self.curve.slopes[0]:
            return bounds[0]
        return max(1, ring.exponent_of(self.comparison.undecided))

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        return splines.evaluate(self.curve, x, n)


class Smooth(_Fitted):
    """Layer for a smooth function as a quadratic spline that is constant outside of its knots: sigmoid and tanh.

    It takes one comparison for each knot, in the rounds of one ReLU. A product of two values (128 bits) and a
    truncation (64 bits) follow in two more rounds.
    """

    curve: Curve
    whole_ring = True  # results of comparisons are multiplied

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0] if self.comparison.drops else 1

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        return smooth.evaluate(self.curve, x, n)


class TailedSmooth(Smooth):
    """Layer for a function that is constant far to the left, and a line far to the right: a multiple of a spline."""

    def __init__(self, name: str, tailed: smooth.Tailed, comparison: Comparison) -> None:
        super().__init__(name, tailed.curve, comparison)
        self.gain = tailed.gain

    def bound(self, bounds: Sequence[int]) -> int:
        if self.comparison.drops:
            return bounds[0]
        return 1 + max(_MOST_INSIDE, self.within(bounds[0]) if self.curve.rises else 0)

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        return n.times(smooth.evaluate(self.curve, x, n), self.gain, 0)


_MOST_INSIDE = 4  # log2 of a bound of a tailed function between its knots: twice 8


class EvenSmooth(Smooth):
    """Layer for SiLU or GELU: it computes x / 2 plus a spline of |x|. Results have scale 2^17, which holds x / 2.

    First x is compared with 0, which gives |x| = 2 relu(x) - x. Then |x| is compared with each knot of the spline,
    whose last slope is 1/2. This takes the rounds of one ReLU more than a spline of x itself.
    """

    def bound(self, bounds: Sequence[int]) -> int:
        return self.within(bounds[0])

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        y, z = n.compare(n.precise(x, smooth.LINE))
        curved = smooth.evaluate(self.curve, 2 * y - z, n.with_comparison(self.again(n.scale)))
        return (curved + n.times(z, 1, 1)).to(x.dtype)

    def again(self, scale: int) -> Comparison:
        """Make and return the layer's second comparison, that of |x| with the spline's knots.

        scale: bits of fraction of x in the first comparison. The new window holds every |x| for which the first
            comparison is right. |x| has scale 2^16, and shares that are right in all 64 bits.
        """
        known = self.comparison
        return known.wider(replace(known.window, k=known.range(scale) + SCALE + 1), 64, known.ring)
