"""Rewrites of a net's steps that keep its results: folded scales, centred weights, poolings first.

    fold           scales and shifts (batch norms, a layer norm's affine part) become part of neighbouring weights
    centered       the weights before a norm take the mean of its input away
    pools_first    a ReLU in front of a max pooling moves behind it

Arithmetic on weights is float64, one correctly rounded IEEE 754 operation at a time: every machine gets the same
float32 weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hummingbird.graph.ops.dimension_rules import INPUT, Rank
from hummingbird.graph.ops.functions import joined
from hummingbird.graph.properties import ranks
from hummingbird.graph.steps import Ref, Step, compact, refs

# Folded scales -------------------------------------------------------------------------------------------------------
#
# Batch norm at inference is y = s x + t per channel, s = gamma / sqrt(var + eps), t = beta - s mean. Behind a
# convolution or linear layer W x + b that nothing else reads, both become one layer with weight s W and bias s b + t
# (Jacob et al. 2018, section 3.2). A layer norm ends with s x + t for each value of the last dimension: a linear layer
# W (s x + t) + b that reads it gets weight W s and bias W t + b, and reads the value x before the factors.


def fold(steps: Sequence[Step], join: bool = True) -> list[Step]:
    """Return the steps with batch norms and constant factors folded into the layers beside them.

    join: whether elementwise steps that are one function of one value become one step (`functions.joined`).

    Every "batch_norm" is folded into the layer before it, if nothing else reads that layer, neither module is called
    twice, and their channels agree; otherwise it becomes an "affine" step. Every "scale_last", a factor and a shift for
    each position of the last dimensions, is folded into the linear layers that read it, if their sizes agree.
    """
    folded = compact(_scaled_inside(_batch_norms(steps)))
    return joined(folded) if join else folded


def _scaled_inside(steps: list[Step]) -> list[Step]:
    """Fold each "scale_last", factors and shifts along the last dimension, into the linear layers that read it.

    Returns `steps`, which is changed. A folded "scale_last" stays in the list, as other steps may read it.
    """
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
    """Return the sum of each row of a matrix, (rows, values), added in an order that is the same on every machine.

    Neighbours are added pairwise; torch's own sum adds in an order that differs between machines.
    """
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
    """Return a convolution or linear layer with its weights changed so that it computes scale * output + shift.

    scale, shift: float64 (channels,), a number for each output channel.
    """
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
    """Whether a batch norm can be folded into step `index`, which must have `channels` outputs in dimension 1.

    channels: how many channels the batch norm scales. known: the number of dimensions of every step's value. A
    convolution has its outputs in dimension 1; a linear layer only if its value has 2 dimensions, (batch, features). If
    that depends on the net's input, whose number of dimensions is not known, 2 is assumed: the input step gets the
    attribute `rank`, with which the net refuses other inputs.
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


# Centred weights -----------------------------------------------------------------------------------------------------
#
# A norm subtracts the mean of each row of its input. (x - mean) of a sum of rows is the sum of (row - its mean), and
# W x + b less its mean is a linear layer: (W - m) x + (b - mean(b)), m the mean of W's rows. So the linear layers can
# take the mean away, exactly, where a norm's input is a sum of their results, or of values whose mean is 0 already
# (another norm's result), and only such norms and sums read these values. A "scale_last" s x + t becomes the linear
# layer diag(s) - s / n, of n^2 weights. Source: Ashkboos et al., SliceGPT, 2024, section 3.1.
#
# A norm without a mean reads fewer bits of its input, and sums less: n x - sum of x is log2(n) bits larger than x.

_SUMS = "add", "sub"
_NOTHING = 2.0**-12  # of the largest weight: a centred value below it is a rounding error


def centered(steps: Sequence[Step]) -> list[Step]:
    """Return the steps with weights changed so that norms need not subtract a mean, where that is possible.

    The results, names and references stay the same. A norm whose input now has rows of mean 0 gets the attributes
    center=False and centered=True: it does not subtract the mean.
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
    """Return the length of a norm's rows if the step is a norm that subtracts each row's mean, else 0.

    The rows must lie along the last dimension.
    """
    a = step.attrs
    known = step.op == "norm" and a["center"] and a["last"] == 1 and a["sizes"] is not None
    return int(a["sizes"][0]) if known else 0


def _shifts(steps: Sequence[Step]) -> list[int]:
    """Return for each step the length of its value's rows if a number added to a whole row changes no result, else 0.

    A row lies along the last dimension. A value has this property if only norms that subtract a row's mean read it,
    directly or through sums.
    """
    asked: list[set[int]] = [set() for _ in steps]
    found = [0] * len(steps)
    for number in reversed(range(len(steps))):
        step = steps[number]
        found[number] = next(iter(asked[number])) if len(asked[number]) == 1 else 0
        for ref in refs(step.inputs):
            asked[ref.index].add(found[number] if step.op in _SUMS else _taken(step))
    return found


def _free(steps: Sequence[Step], shifts: Sequence[int]) -> list[int]:
    """Return for each step the length of its value's rows if they have mean 0 or can get it by changed weights, else 0.

    A row lies along the last dimension. shifts: for each step the length of the rows if adding a number to a row
    changes no result, else 0 (`_shifts`).
    """
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
    """Whether a sum has rows of mean 0 once all its operands have rows of mean 0.

    It has if both operands are values, or if the constant operand has rows of this `length`. A number, or a constant
    that is broadcast along the row, has no rows whose mean could be subtracted.
    """
    value = step.attrs.get("value")
    if "value" not in step.attrs:
        return True
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape[-1] == length > 0


def _less_mean(step: Step) -> Step:
    """Return a step with constants (weights, bias, summand) changed so that the rows of its value have mean 0."""
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
    """Return x less its mean along dimension `dim`, in x's type; zeros if only rounding errors are left."""
    moved = x.double().movedim(dim, -1)
    mean = sums(moved.reshape(-1, moved.shape[-1])) / moved.shape[-1]
    out = moved - mean.view(*moved.shape[:-1], 1)
    if not x.is_meta and x.numel() and float(out.abs().max()) < _NOTHING * float(x.abs().max()):
        out = torch.zeros_like(out)
    return out.movedim(-1, dim).to(x.dtype).contiguous()


# Max pooling before ReLU ---------------------------------------------------------------------------------------------
#
# max(relu(a), relu(b)) = relu(max(a, b)), for all a and b: a ReLU and the max pooling behind it can be exchanged. The
# pooling costs the same, and the ReLU is computed on the pooling's results only: a quarter of the values for windows of
# 2 x 2. Where anything else reads the ReLU, both stay where they are.

_POOLS = "max_pool", "adaptive_max_pool"


def pools_first(steps: Sequence[Step]) -> tuple[list[Step], dict[str, list[str]]]:
    """Return the steps with each ReLU exchanged with the max pooling that is its only reader, to compute fewer ReLUs.

    Also returns, for each pooling, by name, the names of the ReLUs that now come after it. All names, and the values of
    all other steps, stay the same.
    """
    steps, passed = list(steps), dict[str, list[str]]()
    readers = Counter(ref.index for step in steps for ref in refs(step.inputs))
    while found := _next(steps, readers):
        relu, pool = found
        first, second = steps[relu], steps[pool]
        # The pooling stands where its only input stood, so no other step's reference changes.
        steps[relu], steps[pool] = replace(second, inputs=first.inputs), replace(first, inputs=(Ref(relu),))
        passed.setdefault(second.name, []).append(first.name)
    return steps, passed


def _next(steps: Sequence[Step], readers: Counter[int]) -> tuple[int, int] | None:
    """Find a ReLU that only a max pooling reads; return the step numbers of both, or None if there is no such pair.

    readers: how many inputs of steps read each value.
    """
    for pool, step in enumerate(steps):
        if step.op in _POOLS:
            (source,) = refs(step.inputs)
            if steps[source.index].op == "relu" and readers[source.index] == 1:
                return source.index, pool
    return None
