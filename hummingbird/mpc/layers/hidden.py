"""Places that a mask of attention hides leave the softmax: no logit is moved out of its window.

In a net's steps a mask takes 2^12 off the logits that it hides (graph/ops/attention.py), and a comparison with a window
below [30:0) wraps. But a mask is public, by itself or in each call. So here a softmax knows which places are hidden: in
their stead it compares another value of their row, which is local, and their exponentials are times zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hummingbird.graph.ops.public import HIDDEN
from hummingbird.graph.steps import Ref, Step, compact, refs


def hidden_left_out(steps: Sequence[Step]) -> list[Step]:
    """The steps with masks as attributes of the softmaxes behind them: "causal", "hidden" (true for hidden places, a
    constant), and a further input for the mask of each call. What a mask adds to the places that it shows stays.
    """
    count = Counter(ref.index for step in steps for ref in refs(step.inputs))
    out = list(steps)
    for number, step in enumerate(steps):
        if step.op == "softmax" and step.attrs["dim"] == -1:
            out[number] = _masked(step, out, count)
    return compact(out)


def _masked(step: Step, out: list[Step], count: Counter[int]) -> Step:
    """The softmax with the masks before it that it alone reads."""
    while count[at := step.inputs[0].index] == 1:
        before = out[at]
        rest = step.inputs[1:]
        if before.op == "causal" and "causal" not in step.attrs:
            step = replace(step, inputs=(*before.inputs, *rest), attrs=step.attrs | {"causal": True})
        elif before.op == "add" and "hidden" not in step.attrs and (places := _hidden_by(before)) is not None:
            out[at] = _shown_part(before, places)
            source = Ref(at) if bool(out[at].attrs["value"].any()) else before.inputs[0]
            step = replace(step, inputs=(source, *rest), attrs=step.attrs | {"hidden": places})
        elif before.op == "add" and not rest and (mask := _mask_of_call(before, out, count)) is not None:
            return replace(step, inputs=(*step.inputs, mask))  # what the mask adds to places that it shows stays a sum
        else:
            return step
    return step


def _hidden_by(add: Step) -> Tensor | None:
    """The places that an added constant hides, if there are any and every row shows some."""
    value = add.attrs.get("value")
    if not isinstance(value, Tensor) or value.is_meta or not value.dim():
        return None
    places = value - value.amax(-1, keepdim=True) <= HIDDEN
    return places if bool(places.any()) else None


def _shown_part(add: Step, places: Tensor) -> Step:
    return replace(add, attrs=add.attrs | {"value": add.attrs["value"].masked_fill(places, 0.0)})


def _mask_of_call(add: Step, out: list[Step], count: Counter[int]) -> Ref | None:
    """The mask of each call that a sum adds to logits, None if there is none; the sum then adds its shown part."""
    if len(add.inputs) == 2 and out[at := add.inputs[1].index].op == "share_public" and count[at] == 1:
        source: Ref = out[at].inputs[0]
        if out[source.index].op == "public_call" and out[source.index].attrs["function"] == "hidden":
            out[at] = replace(out[at], attrs=out[at].attrs | {"shown": True})
            return source
    return None


def filled(values: Tensor, places: Tensor | None) -> Tensor:
    """Rows along dimension 0 with the first shown value in place of hidden ones; places: which are shown."""
    if places is None:
        return values
    return torch.where(places, values, values.gather(0, places.to(torch.int8).argmax(0, keepdim=True)))
