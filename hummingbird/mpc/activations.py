"""Everything that compares: ReLU and what is built from it.

    leaky(x) = s x + (1 - s) relu(x)
    hardtanh(x) = lo + relu(x - lo) - relu(x - hi)
    max(a, b) = b + relu(a - b)

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
from hummingbird.bits import BitWindow
from hummingbird.cost import Cost
from hummingbird.mpc import gmw
from hummingbird.mpc import session as sessions
from hummingbird.mpc._crypten import MPCTensor, from_share, scale_of, share_of
from hummingbird.mpc.layer import MAX_SCALE, Layer, Spec
from hummingbird.mpc.linear import beaver, equal_windows
from hummingbird.mpc.select import select, truncate
from hummingbird.ring import SCALE


def relu(share: Tensor, scale: int, window: BitWindow) -> tuple[Tensor, Tensor]:
    """Shares, scale 2^16, of relu(x) and of x itself, from shares of x at `scale` >= 16, any shape.

    Cost: `cost.relu(n, w, scale - 16, N)`. A window of w = 0 bits is not handled here: its layers are identities.
    """
    session = sessions.current()
    flat = share.reshape(-1)
    bit = gmw.drelu(session, flat, *gmw.cut(window, scale - SCALE))
    y, z = select(session, flat, bit, scale - SCALE)
    return y.view(share.shape), z.view(share.shape)


def relu_cost(n: int, scale: int, window: BitWindow, parties: int) -> Cost:
    """Cost of `relu` on n elements."""
    return cost.relu(n, gmw.cut(window, scale - SCALE)[1] if window.w else 0, scale - SCALE, parties)


def _constant(session: sessions.Session, value: float | Tensor, scale: int) -> Tensor:
    """A public real as party 0's summand, other parties' zero."""
    encoded = ring.encode(torch.as_tensor(value, dtype=torch.float64), scale, where="constant")
    return encoded if session.rank == 0 else torch.zeros_like(encoded)


class Comparing(Layer):
    """Base of the layers with a window; w = 0 makes them identities."""

    compares = True
    input_limit = MAX_SCALE
    comparisons = 1  # ReLUs per element

    def __init__(self, window: BitWindow) -> None:
        super().__init__()
        self.window = window

    def out_scale(self, scales: Sequence[int]) -> int:
        return SCALE if self.window.w else scales[0]

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        return relu_cost(inputs[0].numel * self.comparisons, inputs[0].scale, self.window, parties)

    def forward(self, x: MPCTensor) -> MPCTensor:
        if not self.window.w:
            return x
        out, scale = self.compute(share_of(x), scale_of(x))
        return from_share(out, scale)

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        """Share and scale of the result."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"window {self.window}, {self.window.w} bits" if self.window.w else "no bits: identity"


class ReLU(Comparing):
    """max(x, 0): 65 bits plus the window's, for N = 2 4w + 58 - L bits in 2 + L rounds, L = ceil(log2(w - 1))."""

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        return relu(share, scale, self.window)[0], SCALE


class LeakyReLU(Comparing):
    """x for x >= 0, slope * x below; the price of a ReLU."""

    def __init__(self, slope: float, window: BitWindow) -> None:
        super().__init__(window)
        self.slope = round(slope * 2**SCALE)

    def out_scale(self, scales: Sequence[int]) -> int:
        return 2 * SCALE if self.window.w else scales[0]

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        y, z = relu(share, scale, self.window)
        return z * self.slope + y * ((1 << SCALE) - self.slope), 2 * SCALE


class PReLU(LeakyReLU):
    """A slope per channel (dimension 1), public or private to `owner` (then one Beaver product more)."""

    weight: Tensor

    def __init__(self, weight: Tensor, window: BitWindow, owner: int | None) -> None:
        super().__init__(0.0, window)
        self.owner = owner
        self.register_buffer("weight", ring.encode(weight, where="weight"))

    def share_weights(self) -> None:
        if self.owner is not None:
            self.weight = sessions.share_secret(self.weight, tuple(self.weight.shape), self.owner)

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        n = inputs[0].numel
        extra = cost.FREE if self.owner is None or not self.window.w else cost.product(n, n, n, parties)
        return super().cost(inputs, parties) + extra

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        y, z = relu(share, scale, self.window)
        weight = self.weight.view(-1, *[1] * (share.dim() - 2)).expand(share.shape)
        below = z - y
        product = below * weight if self.owner is None else beaver("mul", below, weight.contiguous(), {})
        return (y << SCALE) + product, 2 * SCALE


class Hardtanh(Comparing):
    """min(max(x, low), high): two comparisons per element, in the rounds of one."""

    comparisons = 2

    def __init__(self, low: float, high: float, window: BitWindow) -> None:
        super().__init__(window)
        self.low, self.high = low, high

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        session = self.session()
        bounds = (_constant(session, bound, scale) for bound in (self.low, self.high))
        y, _ = relu(torch.stack([share - bound for bound in bounds]), scale, self.window)
        return y[0] - y[1] + _constant(session, self.low, SCALE), SCALE


class Hardswish(Comparing):
    """x * min(max(x + 3, 0), 6) / 6: two comparisons and a Beaver product; the comparisons truncate x on the way."""

    comparisons = 2

    def out_scale(self, scales: Sequence[int]) -> int:
        return 3 * SCALE if self.window.w else scales[0]

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        n = inputs[0].numel
        return super().cost(inputs, parties) + (cost.product(n, n, n, parties) if self.window.w else cost.FREE)

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        three = _constant(self.session(), 3.0, scale)
        y, z = relu(torch.stack([share + three, share - three]), scale, self.window)
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
        window: BitWindow,
        knots: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__(window)
        self.name = name
        self.knots, self.value, self.slope, self.bends, self.error = fit(function, span, knots)
        self.comparisons = len(self.knots)

    def out_scale(self, scales: Sequence[int]) -> int:
        return 2 * SCALE if self.window.w else scales[0]

    def compute(self, share: Tensor, scale: int) -> tuple[Tensor, int]:
        session = self.session()
        shifted = torch.stack([share - _constant(session, float(t), scale) for t in self.knots])
        y, z = relu(shifted, scale, self.window)
        bends = ring.encode(self.bends).view(-1, *[1] * share.dim())
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


def maximum(share: Tensor, window: BitWindow) -> Tensor:
    """Share of the maximum over dimension 0, scale 2^16, by a tree of max(a, b) = b + relu(a - b). Cost:
    `cost.maximum`.
    """
    while share.shape[0] > 1:
        pairs = share.shape[0] // 2
        a, b = share[:pairs], share[pairs : 2 * pairs]
        share = torch.cat([b + relu(a - b, SCALE, window)[0], share[2 * pairs :]])
    return share[0]


class MaxPool(Layer):
    """Maximum over windows of the last dimensions, one dimension after the other (fewer comparisons than all at once).

    Padding never wins in torch, and the maximum of a set does not change when an element is repeated: a place in the
    padding is replaced by the nearest one of the same pooling window that is not, so no "minus infinity" has to fit
    the ring.
    """

    compares = True

    def __init__(
        self,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        window: BitWindow,
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding, self.dilation = kernel, stride, padding, dilation
        self.ceil_mode, self.window = ceil_mode, window

    def places(self, size: int, d: int) -> Tensor:
        """Indices (kernel, out) along spatial dimension d of `size` places: what each pooling window looks at."""
        kernel, stride, padding, dilation = self.kernel[d], self.stride[d], self.padding[d], self.dilation[d]
        reach = size + 2 * padding - dilation * (kernel - 1) - 1
        out = (-(-reach // stride) if self.ceil_mode else reach // stride) + 1
        if self.ceil_mode and (out - 1) * stride >= size + padding:
            out -= 1  # torch: the last window must begin inside the input or the left padding
        start = torch.arange(out) * stride - padding
        first = (-start + dilation - 1).div(dilation, rounding_mode="floor").clamp(min=0)  # first tap inside
        last = (size - 1 - start).div(dilation, rounding_mode="floor").clamp(max=kernel - 1)  # last tap inside
        taps = torch.arange(kernel)[:, None].clamp(min=first[None]).minimum(last[None])
        return start[None] + taps * dilation

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        shape, total = list(inputs[0].shape), cost.FREE
        if not self.window.w:
            return total
        for d in reversed(range(len(self.kernel))):
            axis = len(shape) - len(self.kernel) + d
            kernel, shape[axis] = self.places(shape[axis], d).shape
            total += cost.maximum(torch.Size(shape).numel(), kernel, self.window.w, parties)
        return total

    def forward(self, x: MPCTensor) -> MPCTensor:
        share = share_of(x)
        for d in reversed(range(len(self.kernel))):
            axis = share.dim() - len(self.kernel) + d
            places = self.places(share.shape[axis], d).to(share.device)
            taps = torch.stack([share.index_select(axis, row) for row in places])
            # No bits: the comparison is dropped, the first place of every window is kept.
            share = maximum(taps, self.window) if self.window.w else taps[0]
        return from_share(share)

    def extra_repr(self) -> str:
        return f"kernel {tuple(self.kernel)}, stride {tuple(self.stride)}, window {self.window}"


class AdaptiveMaxPool(Layer):
    """Maximum over equal windows, `output_size` of them per dimension; the size must divide the input's."""

    compares = True

    def __init__(self, output_size: Sequence[int | None], window: BitWindow) -> None:
        super().__init__()
        self.output_size, self.window = output_size, window

    def pool(self, shape: Sequence[int]) -> MaxPool:
        """The plain pooling layer for inputs of this shape."""
        kernel = equal_windows(shape, self.output_size)
        zeros, ones = [0] * len(kernel), [1] * len(kernel)
        return MaxPool(kernel, kernel, zeros, ones, False, self.window)

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        return self.pool(inputs[0].shape).cost(inputs, parties)

    def forward(self, x: MPCTensor) -> MPCTensor:
        return self.pool(tuple(x.size()))(x)


class Softmax(Layer):
    """exp(x - max) / sum along `dim`: a maximum tree, two splines and a product; absolute error about 2e-3."""

    compares = True

    def __init__(self, dim: int, window: BitWindow) -> None:
        super().__init__()
        self.dim, self.window = dim, window
        self.exp = Spline(torch.exp, "exp", (-12.0, 0.0), window)
        self._reciprocals: dict[int, Spline] = {}

    def reciprocal(self, length: int) -> Spline:
        """1/x on [1, length], where a sum of `length` exponentials with maximum 1 lies."""
        if length not in self._reciprocals:
            self._reciprocals[length] = Spline(torch.reciprocal, "1/x", (1.0, float(max(2, length))), self.window)
        return self._reciprocals[length]

    def out_scale(self, scales: Sequence[int]) -> int:
        return 2 * SCALE if self.window.w else scales[0]

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        if not self.window.w:
            return cost.FREE
        n, length = inputs[0].numel, inputs[0].shape[self.dim]
        sums = n // length
        return (
            cost.maximum(sums, length, self.window.w, parties)
            + self.exp.cost([Spec((n,), SCALE)], parties)
            + self.reciprocal(length).cost([Spec((sums,), 2 * SCALE)], parties)
            + cost.truncate(n + sums, parties)
            + cost.product(n, sums, n, parties)
        )

    def forward(self, x: MPCTensor) -> MPCTensor:
        if not self.window.w:
            return x
        share = share_of(x).movedim(self.dim, 0)
        exp, scale = self.exp.compute(share - maximum(share, self.window), SCALE)
        inverse, _ = self.reciprocal(len(share)).compute(exp.sum(0), scale)
        both = truncate(self.session(), torch.cat([exp.reshape(-1), inverse.reshape(-1)]), SCALE)
        numerator, inverse = both[: exp.numel()].view(share.shape), both[exp.numel() :].view(1, *share.shape[1:])
        return from_share(beaver("mul", numerator, inverse, {}).movedim(0, self.dim), 2 * SCALE)
