"""Constants rounded as in private inference, to the fraction bits of their layers.

Rounding changes weights before windows by at most 2^-10 of the largest weight, other weights by 2^-14, factors by 2^-18
of themselves unless the ring has too few bits (`ring.fraction`), and a mean's reciprocal by 2^-8. With these roundings
and that of the inputs, a simulation differs from private inference only by the rounding of values between layers to
2^-16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from hummingbird.bits import EXACT
from hummingbird.graph import Step
from hummingbird.mpc.layers.averaging import AdaptiveAvgPool, AvgPool, Mean, Resize
from hummingbird.mpc.layers.constants import Scale
from hummingbird.mpc.layers.layer import Layer
from hummingbird.mpc.layers.linear import Linear
from hummingbird.mpc.plan import builders
from hummingbird.mpc.plan.columns import WEIGHTS
from hummingbird.mpc.plan.net import PlanStep
from hummingbird.mpc.protocols.gmw import Gmw

After = Callable[[Tensor, Tensor], Tensor]  # (input of a step, its result) -> its result with rounded constants
ALL_BITS: Mapping[str, int] = {}  # all weights have the bits that they have before exact comparisons
_MEANS = frozenset({"avg_pool", "adaptive_avg_pool", "mean"})


def rounded(x: Tensor, bits: int) -> Tensor:
    """Round x to the nearest multiple of 2^-bits, in x's type."""
    unit = 2.0**bits
    return ((x.double() * unit).round() / unit).to(x.dtype)


def rounded_step(step: Step, scales: Mapping[str, int] = ALL_BITS) -> Step:
    """Return a folded step with the weights, or the factor, of its layer rounded as in private inference.

    scales: name of a step -> fraction bits of its weights, if a window reduces them (`Linear.coarser`).
    """
    name = WEIGHTS.get(step.op)
    if name is None or name not in step.attrs or "halved" in step.attrs:
        return step
    layer, value = _layer(step), step.attrs[name]
    if isinstance(layer, Scale):
        return replace(step, attrs=step.attrs | {name: layer.integer * 2.0**-layer.fraction})
    assert isinstance(layer, Linear)
    fraction = scales.get(step.name, layer.fraction)
    value = rounded(value, layer.fraction)
    if fraction < layer.fraction:
        value = ((value.double() * 2.0**fraction + 0.5).floor() / 2.0**fraction).to(value.dtype)
    return replace(step, attrs=step.attrs | {name: value})


def weight_scales(plan: Sequence[PlanStep]) -> dict[str, int]:
    """Return the number of fraction bits of the weights of each linear layer of a plan, by name."""
    return {step.name: step.layer.fraction for step in plan if isinstance(step.layer, Linear)}


def after(step: Step) -> After | None:
    """Return a function that corrects a step's exact result, as private inference rounds the step's constants.

    For a mean the function multiplies by the rounded reciprocal over the exact one; for a resizing it computes the
    result with rounded weights. Returns None if the step has no rounded constants.
    """
    if step.op not in (*_MEANS, "resize"):
        return None
    layer = _layer(step)
    if isinstance(layer, Resize):
        return lambda x, out: layer.real(x, out.shape[2:])
    if isinstance(layer, AvgPool):
        division = layer.division
        ratio = division.integer * 2.0**-division.fraction / division.factor
        return None if ratio == 1 or not layer.uniform else lambda x, out: out * ratio
    assert isinstance(layer, (AdaptiveAvgPool, Mean))

    def corrected(x: Tensor, out: Tensor) -> Tensor:
        ratio = layer.rounded(x.shape)
        return out if bool((ratio == 1).all()) else out * ratio.to(out)

    return corrected


def _layer(step: Step) -> Layer:
    return builders.BUILDERS[step.op](step, Gmw(EXACT), None)
