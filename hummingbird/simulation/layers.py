"""The layers that compare, on real tensors: the formulas of mpc/activations.py and mpc/maximum.py over the law.

Each is built from the private layer itself, so that windows, knots, pooling places and rounded constants are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hummingbird.graph import OPS, Step
from hummingbird.mpc import activations as act
from hummingbird.mpc.layer import Layer
from hummingbird.mpc.maximum import AdaptiveMaxPool, Argmax, MaxPool, Softmax
from hummingbird.mpc.protocols.law import Law
from hummingbird.mpc.smooth import Curve, combine
from hummingbird.mpc.splines import Fit
from hummingbird.ring import SCALE
from hummingbird.simulation.compare import Compare

Twin = Callable[..., Tensor]  # (value, the slopes of a PReLU) -> value


def build(layer: Layer, step: Step, scale: int, parties: int, compare: Compare) -> Twin:
    """The twin of a private layer whose input has this scale."""
    comparison = layer.comparison
    assert comparison is not None
    if comparison.drops:
        return _first_places(layer) if isinstance(layer, (MaxPool, AdaptiveMaxPool)) else lambda x, *_: x.clone()
    law = comparison.law(scale, parties)
    if isinstance(layer, Argmax):
        return _argmax(layer, parties)
    if isinstance(layer, Softmax):
        return _softmax(layer, law, parties, compare)
    if isinstance(layer, (MaxPool, AdaptiveMaxPool)):
        return _max_pool(layer, step, law, compare)
    if isinstance(layer, act.PReLU):
        return _prelu(law, compare)
    if isinstance(layer, act.LeakyReLU):
        return _leaky(layer.slope * 2.0**-layer.fraction, law, compare)
    if isinstance(layer, act.Hardtanh):
        return _hardtanh(layer, law, compare)
    if isinstance(layer, act.Hardswish):
        return _hardswish(law, compare)
    if isinstance(layer, act.EvenSmooth):
        return _even_smooth(layer.curve, law, layer.again(scale).law(SCALE, parties), compare)
    if isinstance(layer, act.Smooth):
        return lambda x: _smooth(layer.curve, law, compare, x)
    if isinstance(layer, act.Spline):
        return lambda x: _spline(layer.curve, law, compare, x)
    assert isinstance(layer, act.ReLU), f"no twin of {type(layer).__name__}"
    return lambda x: compare.relu(x, law)


def _common(compare: Compare, law: Law) -> int | None:
    """gmw: comparisons of x - t for several t cut the same shares: party 0 alone adds t. Masks are fresh for each."""
    return compare.draw() if law.draws and not law.draws_again else None


def _leaky(slope: float, law: Law, compare: Compare) -> Twin:
    def leaky(x: Tensor) -> Tensor:
        y, z = compare.both(x, law)
        return z * slope + y * (1 - slope)

    return leaky


def _prelu(law: Law, compare: Compare) -> Twin:
    def prelu(x: Tensor, weight: Tensor) -> Tensor:
        y, z = compare.both(x, law)
        return y + (z - y) * weight.to(x.dtype).view(-1, *[1] * (x.dim() - 2))

    return prelu


def _hardtanh(layer: act.Hardtanh, law: Law, compare: Compare) -> Twin:
    def hardtanh(x: Tensor) -> Tensor:
        u = _common(compare, law)
        above = [compare.both(x - bound, law, u)[0] for bound in (layer.low, layer.high)]
        return layer.low + above[0] - above[1]

    return hardtanh


def _hardswish(law: Law, compare: Compare) -> Twin:
    def hardswish(x: Tensor) -> Tensor:
        u = _common(compare, law)
        lower, upper = (compare.both(x + bound, law, u)[0] for bound in (3.0, -3.0))
        clamped = lower - upper - 3.0
        return clamped * (clamped + 3.0) * act.SIXTH + upper

    return hardswish


def _spline(curve: Fit, law: Law, compare: Compare, x: Tensor) -> Tensor:
    """value + slope z_0 + sum of bends y_j, in more digits than x may have, for the sum has terms that cancel."""
    u, real = _common(compare, law), x.float() if curve.fraction == SCALE else x.double()
    out = torch.full_like(real, curve.value * 2.0 ** -(SCALE + curve.fraction))
    for number, (knot, bend) in enumerate(zip(curve.knots.tolist(), curve.bends, strict=True)):
        y, z = compare.both(real - knot, law, u)
        out = out + y * (bend * 2.0**-curve.fraction)
        if number == 0 and curve.slopes[0]:
            out = out + z * (curve.slopes[0] * 2.0**-curve.fraction)
    return out.to(x.dtype)


def _smooth(curve: Curve, law: Law, compare: Compare, x: Tensor) -> Tensor:
    """In float64: far from zero, relu(x - t_j) - relu(x - t_n) cancels."""
    u, real = _common(compare, law), x.double()
    return combine(curve, [compare.both(real - knot, law, u)[0] for knot in curve.knots.tolist()]).to(x.dtype)


def _even_smooth(curve: Curve, law: Law, again: Law, compare: Compare) -> Twin:
    def even(x: Tensor) -> Tensor:
        y, z = compare.both(x.double(), law)
        return (_smooth(curve, again, compare, 2 * y - z) + z / 2).to(x.dtype)

    return even


def _maximum(taps: Tensor, law: Law, compare: Compare) -> Tensor:
    """`mpc.maximum.maximum`: a tree of b + relu(a - b) over dimension 0."""
    while taps.shape[0] > 1:
        pairs = taps.shape[0] // 2
        a, b = taps[:pairs], taps[pairs : 2 * pairs]
        taps = torch.cat([b + compare.relu(a - b, law), taps[2 * pairs :]])
    return taps[0]


def _taps(layer: Layer, x: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """One dimension after the other, as the private layer goes through them."""
    pool = layer.pool(x.shape) if isinstance(layer, AdaptiveMaxPool) else layer
    assert isinstance(pool, MaxPool)
    for d in reversed(range(len(pool.kernel))):
        axis = x.dim() - len(pool.kernel) + d
        places = pool.places(x.shape[axis], d).to(x.device)
        x = reduce(torch.stack([x.index_select(axis, row) for row in places]))
    return x


def _first_places(layer: Layer) -> Twin:
    return lambda x: _taps(layer, x, lambda taps: taps[0])


def _max_pool(layer: Layer, step: Step, law: Law, compare: Compare) -> Twin:
    def max_pool(x: Tensor) -> Tensor:
        # Every difference lies within the spread of all values: then torch's own pooling is what the tree computes.
        if not law.draws and x.numel():
            least, most = (float(end) for end in torch.aminmax(x.detach()))
            if law.holds(least - most, most - least):
                return OPS[step.op](step.attrs, x)
        return _taps(layer, x, lambda taps: _maximum(taps, law, compare))

    return max_pool


def _softmax(layer: Softmax, law: Law, parties: int, compare: Compare) -> Twin:
    def softmax(x: Tensor) -> Tensor:
        values = x.float().movedim(layer.dim, 0)
        length = len(values)
        exp = _spline(layer.exp(length).curve, law, compare, values - _maximum(values, law, compare))
        inverse = _spline(layer.reciprocal(length).curve, law, compare, exp.sum(0))
        return (exp * inverse).movedim(0, layer.dim).to(x.dtype)

    return softmax


def _argmax(layer: Argmax, parties: int) -> Twin:
    """On integers, as the private layer does it; its window has m = 0: nothing is random."""

    def argmax(x: Tensor, *_: Any) -> Tensor:
        values = x.detach().movedim(layer.dim, 0)
        length = len(values)
        places = torch.arange(length, device=x.device).view(-1, *[1] * (values.dim() - 1))
        bits, comparison = layer._widened(length)
        law = comparison.law(SCALE, parties)

        def relu(r: Tensor) -> Tensor:
            bit, z = law.decide(r, torch.zeros_like(r))
            return z * bit

        # Below 2^30 as reals, so that c more bits stay inside the ring.
        numbers = (law.ring(values) << bits) + (length - 1 - places)
        most = numbers
        while most.shape[0] > 1:
            pairs = most.shape[0] // 2
            a, b = most[:pairs], most[pairs : 2 * pairs]
            most = torch.cat([b + relu(a - b), most[2 * pairs :]])
        index = (relu(numbers - most[0] + 1) * places).sum(0)
        return (index.unsqueeze(layer.dim) if layer.keepdim else index).to(x.dtype)

    return argmax
