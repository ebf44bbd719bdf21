"""Constants as private inference has them: rounded to the bits of fraction that their layers give them.

Weights and factors are at most 2^-10 of their largest away from what they were (`ring.fraction`), a mean's reciprocal
2^-8; with these roundings in place a twin differs from private inference by the rounding of values to 2^-16 alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from hummingbird.bits import EXACT
from hummingbird.graph import Step
from hummingbird.mpc import builders
from hummingbird.mpc.averaging import AdaptiveAvgPool, AvgPool, Mean
from hummingbird.mpc.constants import Scale
from hummingbird.mpc.layer import Layer
from hummingbird.mpc.linear import Linear
from hummingbird.mpc.protocols.gmw import Gmw

After = Callable[[Tensor, Tensor], Tensor]  # (input of a step, its result) -> its result with rounded constants
_WEIGHTS = {"conv": "weight", "conv_transpose": "weight", "linear": "weight", "affine": "scale", "scale_last": "scale"}
_MEANS = frozenset({"avg_pool", "adaptive_avg_pool", "mean"})


def rounded(x: Tensor, bits: int) -> Tensor:
    """x to the nearest multiple of 2^-bits, in x's type."""
    unit = 2.0**bits
    return ((x.double() * unit).round() / unit).to(x.dtype)


def rounded_step(step: Step) -> Step:
    """A folded step with the weights, or the factor, that its layer has."""
    if step.op in _WEIGHTS:
        layer = _layer(step)
        assert isinstance(layer, Linear)
        name = _WEIGHTS[step.op]
        return replace(step, attrs=step.attrs | {name: rounded(step.attrs[name], layer.fraction)})
    if step.op == "mul" and "value" in step.attrs:
        layer = _layer(step)
        if isinstance(layer, Linear):
            return replace(step, attrs=step.attrs | {"value": rounded(step.attrs["value"], layer.fraction)})
        assert isinstance(layer, Scale)
        return replace(step, attrs=step.attrs | {"value": layer.integer * 2.0**-layer.fraction})
    return step


def after(step: Step) -> After | None:
    """For a mean: its result times the rounded reciprocal over the true one. None where nothing is rounded."""
    if step.op not in _MEANS:
        return None
    layer = _layer(step)
    if isinstance(layer, AvgPool):
        division = layer.division
        ratio = division.integer * 2.0**-division.fraction / division.factor
        return None if ratio == 1 or not layer.uniform else lambda x, out: out * ratio
    assert isinstance(layer, (AdaptiveAvgPool, Mean))

    def corrected(x: Tensor, out: Tensor) -> Tensor:
        places = layer.places(x.shape)
        ratio = layer.reciprocal(places) * places * 2.0**-layer.fraction
        return out if ratio == 1 else out * ratio

    return corrected


def _layer(step: Step) -> Layer:
    return builders.BUILDERS[step.op](step, Gmw(EXACT), None)
