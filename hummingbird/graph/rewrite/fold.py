"""Scales and shifts become new weights of the linear layers beside them.

Batch norm at inference is y = s x + t per channel, s = gamma / sqrt(var + eps), t = beta - s mean. After a convolution
or linear layer W x + b that nothing else reads, it is that layer with weight s W and bias s b + t (Jacob et al. 2018,
section 3.2). A layer norm ends with s x + t for each value of the last dimension: a linear layer W (s x + t) + b that
reads it is that layer with weight W s and bias W t + b, and takes the norm's own result.

The arithmetic is float64, one correctly rounded IEEE 754 operation at a time: every machine gets the same float32
weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hummingbird.graph.dimensions import ranks
from hummingbird.graph.ops.dimension_rules import INPUT, Rank
from hummingbird.graph.steps import Step, compact, refs


def fold(steps: Sequence[Step]) -> list[Step]:
    """Replace every "batch_norm" by new weights of the layer before it, or by an "affine" step, and let linear layers
    behind a "scale_last" have its numbers in their own.

    A batch norm is folded if the layer before has no other reader and neither module is called twice.
    """
    return compact(_scaled_inside(_batch_norms(steps)))


def _scaled_inside(steps: list[Step]) -> list[Step]:
    """Linear layers read what a "scale_last" reads; it stays where something else reads it too."""
    for index, step in enumerate(steps):
        if step.op != "linear" or (before := steps[step.inputs[0].index]).op != "scale_last":
            continue
        if before.attrs["scale"].shape == step.attrs["weight"].shape[1:]:
            steps[index] = replace(step, inputs=before.inputs, attrs=step.attrs | _with_scale(step, before))
    return steps


def _with_scale(step: Step, before: Step) -> dict[str, Tensor]:
    weight, bias = step.attrs["weight"].double(), step.attrs["bias"]
    moved = sums(weight * before.attrs["shift"].double())
    found = {
        "weight": weight * before.attrs["scale"].double(),
        "bias": moved if bias is None else moved + bias.double(),
    }
    return {name: value.to(step.attrs["weight"].dtype) for name, value in found.items()}


def sums(rows: Tensor) -> Tensor:
    """The sum of every row by halves: torch's own adds in an order that differs from machine to machine."""
    while rows.shape[1] > 1:
        odd = rows[:, -1:] if rows.shape[1] % 2 else rows[:, :0]
        rows = torch.cat([rows[:, : rows.shape[1] // 2 * 2 : 2] + rows[:, 1::2], odd], 1)
    return rows[:, 0]


def _batch_norms(steps: Sequence[Step]) -> list[Step]:
    steps = compact(steps)
    known = ranks(steps)
    readers = Counter(ref.index for step in steps for ref in refs(step.inputs))
    forward: dict[int, int] = {}
    for index, step in enumerate(steps):
        if step.op != "batch_norm":
            continue
        scale, shift = _scale_shift(step.attrs)
        read: int = step.inputs[0].index
        source = forward.get(read, read)
        before = steps[source]
        alone = readers[read] == 1 and not _reused(steps, before, step)
        if alone and _channels_agree(steps, known, source, len(scale)):
            steps[source] = scaled_outputs(before, scale, shift)
            forward[index] = source
        else:
            dtype = step.attrs["mean"].dtype
            steps[index] = replace(step, op="affine", attrs={"scale": scale.to(dtype), "shift": shift.to(dtype)})
    return compact(steps, forward)


def _scale_shift(a: dict[str, Any]) -> tuple[Tensor, Tensor]:
    scale = 1 / torch.sqrt(a["var"].double() + a["eps"])
    if a["weight"] is not None:
        scale = a["weight"].double() * scale
    shift = -a["mean"].double() * scale
    return scale, shift if a["bias"] is None else a["bias"].double() + shift


def scaled_outputs(step: Step, scale: Tensor, shift: Tensor) -> Step:
    """A convolution or linear layer whose outputs are scaled and shifted, float64 (channels,) each."""
    weight, bias = step.attrs["weight"], step.attrs["bias"]
    if step.op == "conv_transpose":  # weight (in, out / groups, ...): output channel g * out/groups + o
        groups = step.attrs["groups"]
        grouped = weight.double().reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        scaled = grouped * scale.reshape(groups, 1, -1, *(1,) * (weight.dim() - 2))
        scaled = scaled.reshape(weight.shape)
    else:
        scaled = weight.double() * scale.reshape(-1, *(1,) * (weight.dim() - 1))
    moved = shift if bias is None else bias.double() * scale + shift
    return replace(step, attrs=step.attrs | {"weight": scaled.to(weight.dtype), "bias": moved.to(weight.dtype)})


def _reused(steps: Sequence[Step], *candidates: Step) -> bool:
    modules = {step.name.partition("#")[0] for step in candidates}
    return any("#" in step.name and step.name.partition("#")[0] in modules for step in steps)


def _channels_agree(steps: list[Step], known: Sequence[Rank], index: int, channels: int) -> bool:
    """Whether step `index` has weights whose outputs are the channels (dim 1) of the norm that follows.

    They are for a convolution. For a linear layer they are only if its rank is 2, (batch, features). Where the rank is
    that of the net's input and nothing else says it, 2 is assumed and written on the input step, which refuses others.
    """
    step = steps[index]
    if step.op == "conv_transpose":
        return bool(step.attrs["weight"].shape[1] * step.attrs["groups"] == channels)
    if step.op not in ("conv", "linear") or len(step.attrs["weight"]) != channels:
        return False
    if step.op == "conv":
        return True
    rank = known[step.inputs[0].index]
    if rank == INPUT:
        first = next(number for number, candidate in enumerate(steps) if candidate.op == "input")
        steps[first] = replace(steps[first], attrs={"rank": 2})
        rank = 2
    return rank == 2
