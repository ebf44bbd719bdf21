"""Choose which layers' ciphertexts serve several slots of a set: those for which this is less work, tap by tap.

A polynomial has room for a layer's values of several slots. A layer with few nonzero weights is then cheap, because
each of them takes one multiplication for all these slots (he/bfv/taps.py; Choi et al., Impala, 2022), and there are
fewer replies. The choice compares counts of multiplications at the model's side (`bfv.LayerWork`), and takes nothing
that sends more bytes. It is a part of the plan, so the data's side learns it: that a layer has few nonzero weights for
its shape, but not which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.he import bfv
from hummingbird.he.bfv import taps
from hummingbird.hybrid.encrypted import layout
from hummingbird.hybrid.plan import SET, Linear, LinearWeights, Plan
from hummingbird.polynomials.blocks import even

MOST_HELD = 1 << 26  # values of layers' inputs and results that the data's side holds for a set, 8 bytes each


def with_sets(plan: Plan, parameters: Mapping[int, LinearWeights]) -> Plan:
    """Return the plan with the number of slots that share each layer's ciphertexts, if a set's values fit the memory.

    parameters: the layers' weights, by number of the step.
    """
    held = sum(step.count + step.image[0] * step.image[1] * step.image[2] for step in plan.linears.values())
    if SET * held > MOST_HELD:
        return plan
    steps = list(plan.steps)
    for number, step in plan.linears.items():
        steps[number] = replace(step, together=slots_together(step, parameters[number].weight))
    return replace(plan, steps=tuple(steps))


def slots_together(step: Linear, weight: Tensor) -> int:
    """Return how many slots of a set share a layer's ciphertexts with the least work; 1: none do.

    weight: int64 of `step.weight`.
    """
    single = layout(step)
    least, best = SET * bfv.LayerWork.by_products(single).total, 1
    for slots, places in _shared(step):
        messages = -(-SET // slots)
        if messages * (places.up_bytes + places.down_bytes) > SET * (single.up_bytes + single.down_bytes):
            continue
        nonzero = int(places.planes.kept(weight).count_nonzero())
        work = messages * bfv.LayerWork.by_taps(places, nonzero).total
        if work < least and places.norms(weight) <= taps.MOST_NORM:
            least, best = work, slots
    return best


def _shared(step: Linear) -> Iterator[tuple[int, bfv.Layout]]:
    """Yield the numbers of slots that may share a layer's ciphertexts, with the layouts for which there is room."""
    for slots in even(SET)[1:]:
        try:
            yield slots, layout(step, slots)
        except InputError:
            return  # the kernel spans too much for so many
