"""Constants that a net adds or multiplies by: tensors become weights of the layer before, or of a new layer.

A tensor is the server's secret, so it cannot be part of a plan. If only this step reads a layer's result W x + b, then
a factor s and a summand t for each channel make it the layer s W x + (s b + t). Otherwise the step becomes a layer:
"affine" with one s and t for each channel, or "scale_last" with one for each value. A number in the net's code is
public: a factor changes the unit, a summand is added as it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hummingbird.graph import Step
from hummingbird.graph.rewrite import scaled_outputs
from hummingbird.graph.steps import compact, refs
from hummingbird.hybrid.plan_builder import UnfinishedStep

ARITHMETIC = frozenset({"add", "sub", "mul"})


def absorbed(steps: Sequence[Step], shapes: Sequence[Any]) -> list[Step]:
    """Return the steps, with layers in place of those that add or multiply by a tensor of the net, such as a parameter.

    Where it is possible, the tensor, or a number in its place, becomes part of the layer before the step. Otherwise a
    tensor becomes a layer of its own, and a number stays as it is. A step is not changed if its tensor changes the
    shape of an image's value, or differs between images.
    steps: of the net. shapes: of each step's value for one image.
    """
    steps = list(steps)
    readers = Counter(ref.index for step in steps for ref in refs(step.inputs))
    forward: dict[int, int] = {}
    for index, step in enumerate(steps):
        found = _numbers(step, shapes[index]) if step.op in ARITHMETIC and "value" in step.attrs else None
        if found is None:
            continue
        read = step.inputs[0].index
        source = forward.get(read, read)
        before, (scale, shift) = steps[source], found
        each = [_of_channels(x) for x in found]
        alike = shapes[read] == shapes[index]
        layer = before.op == "conv" or (before.op == "linear" and len(shapes[index]) == 1)
        if layer and alike and readers[read] == 1 and None not in each:
            steps[source], forward[index] = scaled_outputs(before, *each), source  # type: ignore[arg-type]
        elif isinstance(step.attrs["value"], Tensor) and alike:
            by_channel = None not in each
            attrs = dict(zip(("scale", "shift"), each if by_channel else (scale, shift), strict=True))
            steps[index] = replace(step, op="affine" if by_channel else "scale_last", attrs=attrs)
    return compact(steps, forward)


def _numbers(step: Step, shape: tuple[int, ...]) -> tuple[Tensor, Tensor] | None:
    """Return s and t of a step that computes s x + t, because it adds, subtracts or multiplies by a tensor or number.

    s and t are float64 in the shape of one image's value, `shape`. Returns None if the step's tensor has no such shape,
    or differs between images.
    """
    value = torch.as_tensor(step.attrs["value"], dtype=torch.float64)
    if value.dim() > len(shape) and value.shape[: value.dim() - len(shape)] != (1,) * (value.dim() - len(shape)):
        return None
    try:
        value = value.reshape(value.shape[-len(shape) :] if shape and value.dim() > len(shape) else value.shape)
        value = value.expand(shape)
    except RuntimeError:
        return None
    one, zero = torch.ones_like(value), torch.zeros_like(value)
    if step.op == "mul":
        return value, zero
    if step.op == "add":
        return one, value
    return (-one, value) if step.attrs.get("reversed") else (one, -value)


def _of_channels(x: Tensor) -> Tensor | None:
    """Return one value for each channel of x, its first dimension; None if values differ within a channel."""
    if not x.dim():
        return None
    rows = x.reshape(len(x), -1)
    return rows[:, 0].clone() if bool((rows == rows[:, :1]).all()) else None


# Rules of lowering.py -------------------------------------------------------------------------------------------------


def scale_last(to: Any, number: int, step: Step, x: UnfinishedStep) -> UnfinishedStep:
    """Add a layer to a plan for a step "scale_last", which computes factor * value + summand for each value of an
    image.

    to: the `Lowering` that builds the plan. number, step: the net's step, which has the factors and summands.
    x: the layer's input in the plan. Returns the plan's step for the result.
    """
    count = math.prod(x.shape)
    geometry = {"image": (count, 1, 1), "weight": (count, 1, 1, 1), "groups": count}
    weight, shift = (step.attrs[name].double().expand(x.shape).reshape(-1) for name in ("scale", "shift"))
    flat = to.resting(x)
    if len(x.shape) > 1:
        flat = to.drafts.local(f"{step.name}.row", "reshape", flat, (count,), {})
    out = to.drafts.linear(step.name, flat, (count,), weight.view(-1, 1, 1, 1), shift, geometry)
    return out if len(x.shape) == 1 else to.drafts.local(f"{step.name}.view", "reshape", out, x.shape, {})


def summed(to: Any, number: int, step: Step, *parts: UnfinishedStep) -> UnfinishedStep:
    """Add a sum to a plan for a step "add" or "sub", which reads two values, or a value and a number in the net's code.

    to: the `Lowering` that builds the plan. number, step: the net's step. parts: the one or two values in the plan.
    Returns the plan's step for the sum.
    """
    sign = -1 if step.op == "sub" else 1
    if len(parts) == 2:
        return to.drafts.sum(step.name, parts, (1, sign))
    of_x, of_value = (sign, 1) if step.attrs.get("reversed") else (1, sign)
    return to.drafts.sum(step.name, parts, (of_x,), of_value * step.attrs["value"])


def multiplied(to: Any, number: int, step: Step, x: UnfinishedStep) -> UnfinishedStep:
    """Add steps to a plan for a step "mul" or "neg", which multiplies a value by a number in the net's code.

    The value's integers stay and get another unit; for a negative number they change their sign.
    to: the `Lowering` that builds the plan. number, step: the net's step. x: the value in the plan.
    Returns the plan's step for the product.
    """
    factor = step.attrs.get("value", -1.0)
    if factor < 0:
        x = to.drafts.weighted(f"{step.name}.minus", [x], x.scale.times(1.0), signs=(-1,))
    return to.drafts.local(step.name, "reshape", x, x.shape, {}, abs(factor))
