"""Everything that compares: ReLU and what is built from it.

    leaky(x) = s x + (1 - s) relu(x)
    hardtanh(x) = lo + relu(x - lo) - relu(x - hi)

and any function as a spline, linear (splines.py) or quadratic (smooth.py): sums of multiples of relu(x - t_j), their
comparisons in parallel, in the rounds of one ReLU. All comparisons use the layer's window.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird import cost, ring
from hummingbird.bits import BitWindow
from hummingbird.cost import Cost
from hummingbird.mpc import session as sessions
from hummingbird.mpc._crypten import MPCTensor, from_share, scale_of, share_of
from hummingbird.mpc.constants import fits
from hummingbird.mpc.layer import FLOOR, MAX_SCALE, Layer, Spec, room
from hummingbird.mpc.protocols import beaver
from hummingbird.mpc.protocols.comparison import Comparison
from hummingbird.mpc.protocols.truncation import truncate
from hummingbird.mpc.protocols.weight_mask import FixedWeight
from hummingbird.mpc.smooth import FRACTION, Curve
from hummingbird.mpc.splines import Fit
from hummingbird.mpc.weights import private_fraction, set_weight, times
from hummingbird.ring import SCALE, WEIGHT_SCALE


def _constant(session: sessions.Session, value: float | Tensor, scale: int) -> Tensor:
    """A public real as party 0's summand, other parties' zero."""
    encoded = ring.encode(torch.as_tensor(value, dtype=torch.float64), scale, where="constant")
    encoded = encoded.to(session.device)
    return encoded if session.rank == 0 else torch.zeros_like(encoded)


class Comparing(Layer):
    """Base of the layers with a window; w = 0 makes them identities."""

    comparison: Comparison
    input_limit = MAX_SCALE
    comparisons = 1  # ReLUs per element

    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self.comparison = comparison

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] if self.comparison.drops else SCALE + self.fraction

    @property
    def fraction(self) -> int:
        """Bits of fraction that the result has beside 16."""
        return 0

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        return valid[0] if self.comparison.drops else 64

    def reads(self, later: int | None) -> int | None:
        return later if self.comparison.drops else self.comparison.reads

    def needs(self, scales: Sequence[int], later: int) -> int:
        return later if self.comparison.drops else self.comparison.needs(scales[0])

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        return self.comparison.cost(inputs[0].numel * self.comparisons, inputs[0].scale, parties)

    def breadth(self, inputs: Sequence[Spec]) -> int:
        return inputs[0].numel * (1 if self.comparison.drops else self.comparisons)

    def forward(self, x: MPCTensor) -> MPCTensor:
        if self.comparison.drops:
            return x
        out, scale = self.compute(share_of(x), scale_of(x))
        return from_share(out, scale)

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        """Share and scale of the result."""
        raise NotImplementedError

    def label(self) -> str:
        window = self.comparison.window
        return "no bits: identity" if self.comparison.drops else f"window {window}, {window.w} bits"


class ReLU(Comparing):
    """max(x, 0): k + 2 bits in 2 rounds for "masked" with one table, and 4w + 58 - L bits in 2 + L rounds,
    L = ceil(log2(w - 1)), for "gmw" and N = 2.
    """

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        return self.comparison.relu(self.session(), share, scale)[0], SCALE


class LeakyReLU(Comparing):
    """x for x >= 0, slope * x below; the price of a ReLU."""

    def __init__(self, slope: float, comparison: Comparison) -> None:
        super().__init__(comparison)
        number = torch.tensor([slope], dtype=torch.float64)
        self.growth = max(0, ring.exponent_of(slope))
        self.slope_fraction = ring.fraction(number, room(FLOOR), where="slope")
        self.slope = int(ring.encode(number, self.slope_fraction, where="slope"))

    @property
    def fraction(self) -> int:
        return self.slope_fraction

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0] + self.growth

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        y, z = self.comparison.relu(self.session(), share, scale)
        return z * self.slope + y * ((1 << self.fraction) - self.slope), SCALE + self.fraction


class PReLU(Comparing):
    """A slope per channel (dimension 1), public or private to `owner` (then 64 bits and one round more)."""

    weight: Tensor | FixedWeight

    def __init__(self, weight: Tensor, comparison: Comparison, owner: int | None) -> None:
        super().__init__(comparison)
        self.owner = owner
        if owner is None:
            self.slope_fraction = max(WEIGHT_SCALE, ring.fraction(weight, room(FLOOR), where="weight"))
            self.growth = max(0, ring.exponent_of(float(weight.abs().max()))) if weight.numel() else 0
        else:
            self.slope_fraction, self.growth = private_fraction(weight, owner), FLOOR
        set_weight(self, ring.encode(weight, self.fraction, where="weight"), owner)

    @property
    def fraction(self) -> int:
        return self.slope_fraction

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0] + self.growth

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        n = inputs[0].numel
        extra = cost.FREE if self.owner is None or self.comparison.drops else cost.fixed_product(n, n, parties)
        return super().cost(inputs, parties) + extra

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        y, z = self.comparison.relu(self.session(), share, scale)
        # torch: one slope for values without channels
        view = (-1, *[1] * (share.dim() - 2)) if share.dim() > 1 else (1,) * share.dim()
        product = times(self.session(), "mul", z - y, self.weight, {}, view)
        return (y << self.fraction) + product, SCALE + self.fraction


class Hardtanh(Comparing):
    """min(max(x, low), high): two comparisons per element, in the rounds of one."""

    comparisons = 2

    def __init__(self, low: float, high: float, comparison: Comparison) -> None:
        super().__init__(comparison)
        self.low, self.high = low, high

    def out_scale(self, scales: Sequence[int]) -> int:
        fits(torch.tensor([self.low, self.high], dtype=torch.float64), scales[0])
        return super().out_scale(scales)

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0] if self.comparison.drops else max(ring.exponent_of(self.low), ring.exponent_of(self.high))

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        session = self.session()
        bounds = (_constant(session, bound, scale) for bound in (self.low, self.high))
        y, _ = self.comparison.relu(session, torch.stack([share - bound for bound in bounds]), scale)
        return y[0] - y[1] + _constant(session, self.low, SCALE), SCALE


class Hardswish(Comparing):
    """x * min(max(x + 3, 0), 6) / 6: two comparisons, a square and a truncation, 64 bits and one round each.

    With c = min(max(x, -3), 3) it is c (c + 3) / 6 + max(x - 3, 0): what is multiplied lies in [0, 18] whatever x is,
    so the product at 2^56 stays below 2^58, is cut to 2^16 at once, and the result has the range of its input.
    """

    comparisons = 2
    whole_ring = True

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        n = inputs[0].numel
        after = cost.square(n, parties) + cost.truncate(n, parties)
        return super().cost(inputs, parties) + (cost.FREE if self.comparison.drops else after)

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        session = self.session()
        three = _constant(session, 3.0, scale)
        y, _ = self.comparison.relu(session, torch.stack([share + three, share - three]), scale)
        clamped = y[0] - y[1] - _constant(session, 3.0, SCALE)
        product = (beaver.square(session, clamped) + clamped * (3 << SCALE)) * _SIXTH  # below 18 * 2^32 * 2^24 / 6
        return truncate(session, product.reshape(-1), SCALE + _SIXTH_BITS).view(share.shape) + y[1], SCALE


_SIXTH_BITS = 24
_SIXTH = round(2**_SIXTH_BITS / 6)
SIXTH = _SIXTH * 2.0**-_SIXTH_BITS


class Spline(Comparing):
    """A function by a continuous piecewise linear one, straight lines of given slopes outside its knots.

    One comparison per knot, in the rounds of one ReLU; `error` is the largest difference to the function inside the
    knots. curve: knots, slopes and values in whole units of the fixed point (`fit`).
    """

    def __init__(self, name: str, curve: Fit, comparison: Comparison) -> None:
        super().__init__(comparison)
        self.name, self.curve = name, curve
        self.comparisons = len(curve.knots)

    @property
    def fraction(self) -> int:
        return self.curve.fraction

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0] if self.comparison.drops or self.curve.slopes[-1] or self.curve.slopes[0] else 1

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        session, curve = self.session(), self.curve
        shifted = torch.stack([share - _constant(session, float(t), scale) for t in curve.knots])
        y, z = self.comparison.relu(session, shifted, scale)
        bends = torch.tensor(curve.bends, device=share.device).view(-1, *[1] * share.dim())
        out = (y * bends).sum(0) + z[0] * curve.slopes[0]
        start = curve.value if session.rank == 0 else 0
        return out + start, SCALE + curve.fraction

    def constants(self) -> tuple[int, ...]:
        """All that parties with other floating-point units might fit differently."""
        return self.curve.value, *self.curve.slopes, *(round(knot * 2**SCALE) for knot in self.curve.knots.tolist())

    def label(self) -> str:
        return f"{self.name}, {len(self.curve.knots)} knots, error {self.curve.error:.1e}, {super().label()}"


class Smooth(Comparing):
    """A smooth function by a quadratic spline (smooth.py), flat outside its knots: sigmoid and tanh.

    One comparison per knot, in the rounds of one ReLU, then a product of two values (128 bits) and a truncation (64
    bits): two rounds more.
    """

    whole_ring = True  # what was compared is multiplied

    def __init__(self, name: str, curve: Curve, comparison: Comparison) -> None:
        super().__init__(comparison)
        self.name, self.curve = name, curve
        self.comparisons = len(curve.knots)

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0] if self.comparison.drops else 1

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        n = inputs[0].numel
        after = cost.product(n, n, n, parties) + cost.truncate(n, parties)
        return cost.FREE if self.comparison.drops else super().cost(inputs, parties) + after

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        return self.curved(share, scale, self.comparison)[0], SCALE

    def curved(self, share: Tensor, scale: int, comparison: Comparison) -> tuple[Tensor, Tensor]:
        """Shares of the curve at min(x, t_n), at scale 2^(16 + `self.fraction`), and of relu(x - t_n), at rest."""
        session, curve = self.session(), self.curve
        shifted = torch.stack([share - _constant(session, float(t), scale) for t in curve.knots])
        y, _ = comparison.relu(session, shifted, scale)
        line, factor = (
            (y * torch.tensor(multiples, device=share.device).view(-1, *[1] * share.dim())).sum(0)
            for multiples in (curve.line, curve.factor)
        )
        moved = y[0] - y[-1]
        if session.rank == 0:
            moved, line = moved - curve.center, line + curve.value
        whole = line + beaver.product(session, "mul", moved, factor, {})  # below 8 * 2^(32 + 16)
        surplus = SCALE + FRACTION - self.fraction
        return truncate(session, whole.reshape(-1), surplus).view(share.shape), y[-1]

    def constants(self) -> tuple[int, ...]:
        """All that parties with other floating-point units might fit differently."""
        curve = self.curve
        return curve.value, curve.slope, *curve.bends, *(round(knot * 2**SCALE) for knot in curve.knots.tolist())

    def label(self) -> str:
        return f"{self.name}, {len(self.curve.knots)} knots, error {self.curve.error:.1e}, {super().label()}"


class EvenSmooth(Smooth):
    """x / 2 and a curve of |x| = 2 relu(x) - x that ends with slope 1/2: SiLU and GELU.

    A comparison, then one for each knot: the rounds of a ReLU more. The result has scale 2^17: halves are whole.
    """

    fraction = 1

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        if self.comparison.drops:
            return cost.FREE
        n, scale = inputs[0].numel, inputs[0].scale
        curve = Smooth(self.name, self.curve, self.again(scale))
        return self.comparison.cost(n, scale, parties) + curve.cost([Spec((n,), SCALE)], parties)

    def again(self, scale: int) -> Comparison:
        """The comparison of |x|, at rest and right in the whole ring, on as many bits as that of x at this scale."""
        known = self.comparison
        return type(known)(BitWindow(known.range(scale) + SCALE + 1, known.window.m), 64, known.ring)

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0]

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        y, x = self.comparison.relu(self.session(), share, scale)
        curved, beyond = self.curved(2 * y - x, SCALE, self.again(scale))
        return curved + beyond + x, SCALE + self.fraction
