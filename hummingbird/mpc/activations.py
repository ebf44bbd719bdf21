"""Everything that compares: ReLU and what is built from it.

    leaky(x) = s x + (1 - s) relu(x)
    hardtanh(x) = lo + relu(x - lo) - relu(x - hi)

and any smooth function as a sum of ReLUs, f(x) = f(t_0) + s (x - t_0) + sum_j c_j relu(x - t_j): a linear spline, all
its comparisons in parallel, in the rounds of one ReLU. All comparisons use the layer's window.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird import cost, ring
from hummingbird.cost import Cost
from hummingbird.mpc import session as sessions
from hummingbird.mpc._crypten import MPCTensor, from_share, scale_of, share_of
from hummingbird.mpc.compare import Comparison
from hummingbird.mpc.fixed import FixedWeight
from hummingbird.mpc.layer import MAX_SCALE, Layer, Spec
from hummingbird.mpc.linear import beaver, set_weight, times
from hummingbird.ring import SCALE


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
        return scales[0] if self.comparison.drops else SCALE

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        return valid[0] if self.comparison.drops else 64

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

    def extra_repr(self) -> str:
        window = self.comparison.window
        return "no bits: identity" if self.comparison.drops else f"window {window}, {window.w} bits"


class ReLU(Comparing):
    """max(x, 0): k + 2 bits in 2 rounds for "masked" with one table, and 4w + 58 - L bits in 2 + L rounds,
    L = ceil(log2(w - 1)), for "gmw" and N = 2.
    """

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        return self.comparison.relu(share, scale)[0], SCALE


class LeakyReLU(Comparing):
    """x for x >= 0, slope * x below; the price of a ReLU."""

    def __init__(self, slope: float, comparison: Comparison) -> None:
        super().__init__(comparison)
        self.slope = round(slope * 2**SCALE)

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] if self.comparison.drops else 2 * SCALE

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        y, z = self.comparison.relu(share, scale)
        return z * self.slope + y * ((1 << SCALE) - self.slope), 2 * SCALE


class PReLU(LeakyReLU):
    """A slope per channel (dimension 1), public or private to `owner` (then 64 bits and one round more)."""

    weight: Tensor | FixedWeight

    def __init__(self, weight: Tensor, comparison: Comparison, owner: int | None) -> None:
        super().__init__(0.0, comparison)
        self.owner = owner
        set_weight(self, ring.encode(weight, where="weight"), owner)

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        n = inputs[0].numel
        extra = cost.FREE if self.owner is None or self.comparison.drops else cost.fixed_product(n, n, parties)
        return super().cost(inputs, parties) + extra

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        y, z = self.comparison.relu(share, scale)
        product = times("mul", z - y, self.weight, {}, (-1, *[1] * (share.dim() - 2)))
        return (y << SCALE) + product, 2 * SCALE


class Hardtanh(Comparing):
    """min(max(x, low), high): two comparisons per element, in the rounds of one."""

    comparisons = 2

    def __init__(self, low: float, high: float, comparison: Comparison) -> None:
        super().__init__(comparison)
        self.low, self.high = low, high

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        session = self.session()
        bounds = (_constant(session, bound, scale) for bound in (self.low, self.high))
        y, _ = self.comparison.relu(torch.stack([share - bound for bound in bounds]), scale)
        return y[0] - y[1] + _constant(session, self.low, SCALE), SCALE


class Hardswish(Comparing):
    """x * min(max(x + 3, 0), 6) / 6: two comparisons and a Beaver product; the comparisons truncate x on the way."""

    comparisons = 2

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] if self.comparison.drops else 3 * SCALE

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        n = inputs[0].numel
        return super().cost(inputs, parties) + (cost.FREE if self.comparison.drops else cost.product(n, n, n, parties))

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        three = _constant(self.session(), 3.0, scale)
        y, z = self.comparison.relu(torch.stack([share + three, share - three]), scale)
        product = beaver("mul", z[0] - _constant(self.session(), 3.0, SCALE), y[0] - y[1], {})
        return product * round(2**SCALE / 6), 3 * SCALE


class Spline(Comparing):
    """A smooth function by a continuous piecewise linear one, exact asymptotes outside [knots[0], knots[-1]].

    One comparison per knot, in the rounds of one ReLU; `error` is the largest difference to the function inside the
    knots.
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        name: str,
        span: tuple[float, float],
        comparison: Comparison,
        knots: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__(comparison)
        self.name = name
        self.knots, self.value, self.slope, self.bends, self.error = fit(function, span, knots)
        self.comparisons = len(self.knots)

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] if self.comparison.drops else 2 * SCALE

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        session = self.session()
        shifted = torch.stack([share - _constant(session, float(t), scale) for t in self.knots])
        y, z = self.comparison.relu(shifted, scale)
        bends = ring.encode(self.bends).to(share.device).view(-1, *[1] * share.dim())
        out = (y * bends).sum(0) + z[0] * int(ring.encode(self.slope))
        return out + _constant(session, self.value, 2 * SCALE), 2 * SCALE

    def extra_repr(self) -> str:
        return f"{self.name}, {len(self.knots)} knots, error {self.error:.1e}, {super().extra_repr()}"


TOLERANCE = 2.0**-10  # of a spline: 1e-3, well above the 2^-16 of the fixed point, well below what changes a prediction


class Fit(NamedTuple):
    """value + slope (x - knots[0]) + sum bends[j] relu(x - knots[j]), float64, and its largest error on the span."""

    knots: Tensor
    value: Tensor
    slope: Tensor
    bends: Tensor
    error: float


@functools.lru_cache(maxsize=64)
def fit(function: Callable[[Tensor], Tensor], span: tuple[float, float], knots: tuple[float, ...] | None = None) -> Fit:
    """The spline through `function` at `knots`, or at as few knots as keep it within TOLERANCE on `span`.

    Left of the first and right of the last knot the function continues with its slope at the ends of the span.
    """
    x = torch.linspace(*span, 4001, dtype=torch.float64)
    y, step = function(x), (span[1] - span[0]) / 4000
    at = torch.tensor(knots, dtype=torch.float64) if knots is not None else x[_longest_chords(x, y)]
    values = function(at)
    inner = (values[1:] - values[:-1]) / (at[1:] - at[:-1])
    slopes = torch.cat([(y[1:2] - y[:1]) / step, inner, (y[-1:] - y[-2:-1]) / step])
    bends = slopes[1:] - slopes[:-1]
    spline = values[0] + slopes[0] * (x - at[0]) + (bends[:, None] * (x - at[:, None]).clamp(min=0)).sum(0)
    return Fit(at, values[0], slopes[0], bends, float((spline - y).abs().max()))


def _longest_chords(x: Tensor, y: Tensor) -> list[int]:
    """Indices of knots, greedily: every chord reaches as far as its distance to the function stays within TOLERANCE."""
    index = [0]
    while index[-1] < len(x) - 1:
        start, reach, too_far = index[-1], index[-1] + 1, len(x)
        while too_far - reach > 1:
            end = (reach + too_far) // 2
            chord = torch.lerp(y[start], y[end], (x[start : end + 1] - x[start]) / (x[end] - x[start]))
            inside = float((chord - y[start : end + 1]).abs().max()) <= TOLERANCE
            reach, too_far = (end, too_far) if inside else (reach, end)
        index.append(reach)
    return index
