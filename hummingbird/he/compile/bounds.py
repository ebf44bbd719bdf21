"""Bounds on a net's values for any input of |x| <= R: interval arithmetic with centres and radii.

A linear step maps the centre as usual, and the radius with absolute weights and no bias (Rump 1999, section 3). Bounds
grow with every layer, because the worst case assumes all signs. If they grow too large, the largest measured values
with a margin replace them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hummingbird.graph import OPS, Step
from hummingbird.graph.interpreter import arguments
from hummingbird.he.compile.magnitudes import Magnitude

MARGIN = 4.0  # factor on the largest measured values: 2 bits
_Interval = tuple[Tensor, Tensor]
_LINEAR = frozenset(
    "conv conv_transpose linear affine scale_last avg_pool adaptive_avg_pool mean sum neg pad cat stack flatten "
    "reshape permute transpose squeeze unsqueeze expand unbind chunk split getitem roll flip pixel_shuffle "
    "pixel_unshuffle channel_shuffle output".split()
)
# |f(x)| <= max(|x|, 1) times the largest attribute (bounds of a clamp, a slope), at least 1.
_WITHIN = frozenset(
    "relu leaky_relu hardtanh sigmoid hardsigmoid tanh silu hardswish gelu softmax max_pool adaptive_max_pool abs "
    "maximum minimum greater edge_pad root_scale resize".split()
)


def seen(sizes: Sequence[Magnitude | None]) -> list[float]:
    """Return for each step 4 times the largest |result| that was measured, as a bound that is no guarantee.

    sizes: the measured magnitude of each step's value.
    """
    return [0.0 if size is None else MARGIN * size.peak for size in sizes]


def proven(steps: Sequence[Step], shape: Sequence[int], bound: float) -> list[float]:
    """Return for each step a number that |result| never exceeds, for all inputs with |x| <= bound; uses interval
    arithmetic.

    The number is infinite where no bound is known. shape: of one image.
    """
    centres: list[Any] = []
    radii: list[Any] = []
    for step in steps:
        if step.op == "input":
            centre: Any = torch.zeros(1, *shape, dtype=torch.float64)
            radius: Any = torch.full_like(centre, bound)
        else:
            centre, radius = _step(step, arguments(step, centres), arguments(step, radii))
        centres.append(centre)
        radii.append(radius)
    return [_largest(centre, radius) for centre, radius in zip(centres, radii, strict=True)]


def _largest(centre: Any, radius: Any) -> float:
    if isinstance(centre, tuple):
        return max(_largest(c, r) for c, r in zip(centre, radius, strict=True))
    return float((centre.abs() + radius).max())


def _step(step: Step, c: Any, r: Any) -> tuple[Any, Any]:
    """Return the centre and the radius of an interval in which each number of a step's value must lie, as a pair of
    tensors.

    c, r: for each input of the step, the centres and the radii of the intervals of its numbers. For a step with several
    results, such as a chunk, both returned values are tuples.
    """
    a, op = step.attrs, OPS[step.op]
    if step.op in _LINEAR or (step.op in ("add", "sub", "mul") and "value" in a):
        if step.op in ("add", "sub"):
            value = op(a, c[0])
            return value, r[0].expand(value.shape)
        return op(a, *c), op(_absolute(a), *r) if step.op != "neg" else r[0]
    if step.op in ("add", "sub"):
        return op(a, *c), r[0] + r[1]
    if step.op in ("square", "mul"):
        (c, r), (d, s) = (c[0], r[0]), (c[-1], r[-1])
        corners = torch.stack([(c + x * r) * (d + y * s) for x in (-1, 1) for y in (-1, 1)])
        low, high = corners.amin(0), corners.amax(0)
        if step.op == "square":
            low = torch.where(c.abs() <= r, 0.0, (c.abs() - r).square())
        return (low + high) / 2, (high - low) / 2
    value, top = op(a, *c), math.inf  # infinite: no bound is known
    if step.op in _WITHIN and a.get("mode") != "bicubic":  # bicubic overshoots
        one = max([1.0, *(abs(a[name]) for name in ("low", "high", "slope", "value") if name in a)])
        pairs = zip(c, r, strict=True)
        top = max([1.0, *(_largest(x, y) for x, y in pairs if isinstance(x, Tensor))]) * one
    return torch.zeros_like(value, dtype=torch.float64), torch.full_like(value, top, dtype=torch.float64)


def _absolute(attrs: dict[str, Any]) -> dict[str, Any]:
    """Return a linear step's attributes with its weights made absolute, and its bias and other summands made 0.

    With these attributes, the step maps the radius of an interval of inputs to the radius of the interval of results.
    """
    out = dict(attrs)
    for name in ("weight", "scale"):
        if isinstance(out.get(name), Tensor):
            out[name] = out[name].abs()
    if "value" in out:  # a factor, or a padding value
        out["value"] = 0.0 if "pads" in out else abs(out["value"])
    if out.get("bias") is not None:
        out["bias"] = None
    if "shift" in out:
        out["shift"] = torch.zeros_like(out["shift"])
    return out
