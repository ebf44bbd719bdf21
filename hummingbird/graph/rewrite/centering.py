"""Values that a norm would center are centered by the weights before it: the norm is left with no mean to take.

(x - mean) of a sum of rows is the sum of each row less its own mean, and W x + b less its mean is a linear layer:
(W - m) x + (b - mean(b)), m the mean of W's rows. So where all that adds up to a norm's input is the result of linear
layers, or has mean 0 by itself as another norm's result has, and nothing but such norms and sums reads it, these layers
take the mean away, exactly. A "scale_last" s x + t becomes the linear layer diag(s) - s / n, of n^2 weights. That norms
forgive a shift is Ashkboos et al., SliceGPT, 2024, section 3.1.

A norm without a mean reads fewer bits of its input, and as many sums less: n x - sum of x is log2(n) bits larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hummingbird.graph.rewrite.fold import sums
from hummingbird.graph.steps import Step, refs

_SUMS = "add", "sub"
_NOTHING = 2.0**-12  # of the largest weight: what is left below that is rounding


def centered(steps: Sequence[Step]) -> list[Step]:
    """The steps with norms that take no mean wherever weights can; names, references and results stay.

    Such a norm has the attribute "centered": its input's rows have mean 0.
    """
    steps = list(steps)
    shifts = _shifts(steps)
    free = _free(steps, shifts)
    sources: set[int] = set()
    for number, step in enumerate(steps):
        if (length := _taken(step)) and free[step.inputs[0].index] == length:
            sources.add(step.inputs[0].index)
            steps[number] = replace(step, attrs=step.attrs | {"center": False, "centered": True})
    for number in reversed(range(len(steps))):
        if number in sources:
            steps[number] = _less_mean(steps[number])
            if steps[number].op in _SUMS:
                sources.update(ref.index for ref in refs(steps[number].inputs))
    return steps


def _taken(step: Step) -> int:
    """How many values a norm of the last dimension takes a mean of; 0 for other steps."""
    a = step.attrs
    known = step.op == "norm" and a["center"] and a["last"] == 1 and a["sizes"] is not None
    return int(a["sizes"][0]) if known else 0


def _shifts(steps: Sequence[Step]) -> list[int]:
    """The length of each value's rows if a number added to a row changes nothing for all that reads it, else 0."""
    asked: list[set[int]] = [set() for _ in steps]
    found = [0] * len(steps)
    for number in reversed(range(len(steps))):
        step = steps[number]
        found[number] = next(iter(asked[number])) if len(asked[number]) == 1 else 0
        for ref in refs(step.inputs):
            asked[ref.index].add(found[number] if step.op in _SUMS else _taken(step))
    return found


def _free(steps: Sequence[Step], shifts: Sequence[int]) -> list[int]:
    """The length of each value's rows if they have mean 0, or can have it by other weights; else 0."""
    found: list[int] = []
    for step, length in zip(steps, shifts, strict=True):
        inputs = {found[ref.index] for ref in refs(step.inputs)}
        if step.op in ("linear", "scale_last"):
            weight = step.attrs["weight" if step.op == "linear" else "scale"]
            apart = weight.dim() == (2 if step.op == "linear" else 1)
            found.append(length if apart and len(weight) == length else 0)
        elif step.op == "norm":
            found.append(_taken(step))
        elif step.op in _SUMS and len(inputs) == 1 and _fits(step, length):
            found.append(inputs.pop())
        else:
            found.append(0)
    return found


def _fits(step: Step, length: int) -> bool:
    """Whether what a sum adds is another value, or a constant that may lose its mean too."""
    value = step.attrs.get("value")
    if "value" not in step.attrs:
        return True
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape[-1] == length > 0


def _less_mean(step: Step) -> Step:
    """The step with constants that leave its rows no mean."""
    a = step.attrs
    if step.op == "linear":
        bias = None if a["bias"] is None else _centered(a["bias"], 0)
        return replace(step, attrs=a | {"weight": _centered(a["weight"], 0), "bias": bias})
    if step.op == "scale_last":
        dense = _centered(torch.diag(a["scale"]), 0)
        return replace(step, op="linear", attrs={"weight": dense, "bias": _centered(a["shift"], 0)})
    if "value" in a:
        return replace(step, attrs=a | {"value": _centered(a["value"], -1)})
    return step


def _centered(x: Tensor, dim: int) -> Tensor:
    """x less its mean along a dimension, of x's type; all 0 where no more is left than rounding."""
    moved = x.double().movedim(dim, -1)
    mean = sums(moved.reshape(-1, moved.shape[-1])) / moved.shape[-1]
    out = moved - mean.view(*moved.shape[:-1], 1)
    if not x.is_meta and x.numel() and float(out.abs().max()) < _NOTHING * float(x.abs().max()):
        out = torch.zeros_like(out)
    return out.movedim(-1, dim).to(x.dtype).contiguous()
