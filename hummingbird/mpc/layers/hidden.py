"""Masks of attention become attributes of the softmax, so that no logit is moved out of its window.

In a net's steps a mask subtracts 2^12 from the logits that it hides (graph/ops/attention.py); a comparison with a
window below [30:0) then wraps. But masks are public, as constants or in each call. So a softmax takes the mask itself:
it replaces hidden logits by another value of their row, which is local, and multiplies their exponentials by zero.
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
    """Move the masks of attention into the softmaxes that read their sums with logits; return the changed steps.

    A softmax then has the attribute "causal", the attribute "hidden" (a constant, true where a logit is hidden), or a
    second input for a mask of each call. What a mask adds to shown logits stays.
    """
    count = Counter(ref.index for step in steps for ref in refs(step.inputs))
    out = list(steps)
    for number, step in enumerate(steps):
        if step.op == "softmax" and step.attrs["dim"] == -1:
            out[number] = _masked(step, out, count)
    return compact(out)


def _masked(step: Step, out: list[Step], count: Counter[int]) -> Step:
    """Move the masks directly before a softmax step into the softmax; return the changed softmax step.

    Masks that other steps read, too, stay.
    out: the net's steps, of which those that add a mask may be changed.
    count: how many steps read each step.
    """
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
            return replace(step, inputs=(*step.inputs, mask))  # the sum stays, of shown logits
        else:
            return step
    return step


def _hidden_by(add: Step) -> Tensor | None:
    """Find which logits a step hides by adding a constant to them.

    Returns a tensor that is true where the step puts a logit 2^12 or more below its row's largest; None if it hides no
    logit, or adds no constant tensor.
    """
    value = add.attrs.get("value")
    if not isinstance(value, Tensor) or value.is_meta or not value.dim():
        return None
    places = value - value.amax(-1, keepdim=True) <= HIDDEN
    return places if bool(places.any()) else None


def _shown_part(add: Step, places: Tensor) -> Step:
    return replace(add, attrs=add.attrs | {"value": add.attrs["value"].masked_fill(places, 0.0)})


def _mask_of_call(add: Step, out: list[Step], count: Counter[int]) -> Ref | None:
    """Find the mask, public in each call, that this step adds to logits; None if it adds none.

    The step is then changed in `out`: it adds only what the mask adds to logits that are not hidden.
    count: how many steps read each step.
    """
    if len(add.inputs) == 2 and out[at := add.inputs[1].index].op == "share_public" and count[at] == 1:
        source: Ref = out[at].inputs[0]
        if out[source.index].op == "public_call" and out[source.index].attrs["function"] == "hidden":
            out[at] = replace(out[at], attrs=out[at].attrs | {"shown": True})
            return source
    return None


def filled(values: Tensor, places: Tensor | None) -> Tensor:
    """Replace each hidden value of a row by the first shown value of this row; a row lies along dimension 0.

    places: true where a value is shown; None if all are.
    """
    if places is None:
        return values
    return torch.where(places, values, values.gather(0, places.to(torch.int8).argmax(0, keepdim=True)))
