"""Precision of small weights that multiply large inputs, in the first layers with weights.

All weights of a tensor have the same bits of fraction, and an input may reach 2^20: with 20 bits, a weight of 2^-17 for
such a column is rounded by 2^-4 of itself. So where a layer reads inputs of the net that no other weights have
multiplied, the inputs of a column (input channel) with small weights are halved, and its weights doubled as often,
before the weights are rounded. Halving adds bits of fraction and sends nothing. Up to six additional bits stay on the
input, and give the weights as many more. If a column needs more, the planner opens the halved inputs (`Lift`), or
rounds them if a window reads few bits; they keep 22 bits of fraction.

For private weights the number of halvings would reveal which columns are large. These weights have as many more bits
as the ring has room for, and their owner's conversion fails if that is too few. With `BitConfig.weight_bits` all
private weights have that number, and the conversion fails where columns of public weights would be doubled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hummingbird.bits import EXACT, BitConfig
from hummingbird.errors import Problem
from hummingbird.graph.steps import Ref, Step, map_refs, refs
from hummingbird.mpc.layers.layer import FLOOR, Layer, room
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import LEAST_PRECISION, PRECISION, SCALE, WEIGHT_SCALE, exponent_of

WEIGHTS = {
    "linear": "weight",
    "conv": "weight",
    "conv_transpose": "weight",
    "affine": "scale",
    "scale_last": "scale",
    "mul": "value",
}
# Steps whose results have magnitudes of their own, independent of those of the net's inputs.
_NEW_SCALES = WEIGHTS.keys() | set(
    "norm matmul einsum softmax log_softmax argmax greater sigmoid tanh hardsigmoid constant embedding share_public "
    "public public_constant public_call size int".split()
)
LEAST = 7  # columns whose largest weight is 2^-7 or more stay as they are: rounding errs by 2^-14 of it
ENOUGH = 5  # others are doubled to more than 2^-5 if six doublings suffice for all, otherwise to 1/2 or more
OFFSET = 2  # a bias above 2^2 cancels products of that size: columns then need as many more bits
FREE = 22 - SCALE  # bits of fraction that an input of `Linear` may have in addition to 16, the usual number
MOST = 12  # doublings: halved inputs of 22 bits of fraction then keep 2^-10, enough where inputs are of order 1
EVEN = 11  # doublings at which, for weight 1 and input 2^20, the rounding of both changes the product equally
LARGE = 7  # weights above 2^7 may multiply inputs below 2^-6, and with them the rounding of these inputs
# A column whose products stay below 2^-11 of the largest weight, or of 1, for inputs below 2^20, stays as it is.
NOTHING = 11


def kept(steps: Sequence[Step]) -> list[Step]:
    """Return the steps of a net with public weights, with small columns doubled and their inputs halved as often.

    A column is the weights that multiply one input channel. A step with doubled columns keeps its own weights as
    attribute "unscaled". A new step before it halves the inputs; it has the same name with the suffix ".columns", and
    the attribute "halved".
    """
    raw = measured(steps)
    out: list[Step] = []
    place: list[Ref] = []
    for step in steps:
        step = replace(step, inputs=map_refs(step.inputs, lambda ref: place[ref.index]))
        if len(place) in raw and (doublings := _doublings(step)) is not None:
            out.append(_halved(step, doublings))
            step = _doubled(replace(step, inputs=(Ref(len(out) - 1), *step.inputs[1:])), doublings)
        out.append(step)
        place.append(Ref(len(out) - 1))
    return out


def marked(steps: Sequence[Step], config: BitConfig) -> list[Step]:
    """Return all steps of a net with private weights; those whose weights multiply the net's inputs get "fraction".

    This attribute says how many bits of fraction the step's weights have (`private_bits`). A step gets it if its inputs
    are the net's own, or values as large as these (`measured`). With `config.weight_bits` all steps with weights get
    it.
    """
    reading, bits = measured(steps) if config.weight_bits is None else _with_weights(steps), private_bits(config)
    return [
        replace(step, attrs=step.attrs | {"fraction": bits}) if number in reading else step
        for number, step in enumerate(steps)
    ]


def private_bits(config: BitConfig) -> int:
    """Return how many bits of fraction private weights have that multiply a net's inputs.

    They are `config.weight_bits`, if it is a number. Else they are 20 for inputs up to 2^14, rising to 26 for inputs up
    to 2^20, the most that the ring has room for. If `config.input_range` is unknown, they are 26 if all comparisons are
    exact. With windows they are 20, since 26 would cost more.
    """
    most, room_left = config.input_range, room(FLOOR) - WEIGHT_SCALE
    if config.weight_bits is not None:
        return config.weight_bits
    if most is None:
        exact = all(window == EXACT for window in (config.default, *config.layers.values()))
        return WEIGHT_SCALE + (room_left if exact else 0)
    return WEIGHT_SCALE + max(0, min(room_left, exponent_of(most) - FLOOR + room_left))


def lost(steps: Sequence[Step], config: BitConfig) -> list[Problem]:
    """Find steps of a net with private weights in which rounding loses a column; return a problem for each.

    A column is the weights that multiply one value of the input. It is lost if two things hold: rounding changes one of
    its weights by more than 2^-10 of its largest weight; and this change, times the largest input, is more than 2^-8 of
    the largest weight of the whole tensor. With `config.weight_bits` it is lost if public weights would double it.
    """
    if config.weight_bits is not None:
        what, hint = "columns of weights so small that they would be rounded away", "leave weight_bits out"
        small = [steps[number] for number in sorted(measured(steps)) if _doublings(steps[number]) is not None]
        return [Problem(step.name, what, hint) for step in small]
    most = 2.0**FLOOR if config.input_range is None else config.input_range
    unit = 2.0 ** private_bits(config)
    found = []
    for number in sorted(measured(steps)):
        step, groups = steps[number], steps[number].attrs.get("groups", 1)
        weight = step.attrs[WEIGHTS[step.op]].detach().double()
        errors = largest_of_columns(step.op, (weight * unit).round() / unit - weight, groups)
        largest = largest_of_columns(step.op, weight, groups)
        much = errors * most > float(largest.max()) * 2.0**-LEAST_PRECISION
        if bool((much & (errors > largest * 2.0**-PRECISION)).any()):
            # The text does not say which or how many columns: the other parties see it.
            what = f"weights so small that, for inputs up to {most:g}, their rounding would be seen"
            found.append(Problem(step.name, what, _HINT))
    return found


_HINT = (
    "multiply columns of large values by powers of two before this layer, x * self.powers, and their weights by the "
    "inverse; or say that inputs are smaller, BitConfig(..., input_range=)"
)


def vanishing(steps: Sequence[Step], config: BitConfig) -> list[Problem]:
    """Return a problem for every step whose weights `config.weight_bits` changes by 1/8 of the largest, or more."""
    if config.weight_bits is None:
        return []
    found = []
    for step in (steps[number] for number in sorted(_with_weights(steps))):
        if 0 < float(step.attrs[WEIGHTS[step.op]].detach().abs().max()) < 4 * 2.0**-config.weight_bits:
            # The text does not say how small: the other parties see it.
            what = f"weights so small that {config.weight_bits} bits of fraction miss them by 1/8 of the largest"
            found.append(Problem(step.name, what, "a larger weight_bits"))
    return found


def fine(steps: Sequence[Step], config: BitConfig) -> list[Problem]:
    """Return a problem for every step that reads the net's inputs, if the inputs are too small for their rounding.

    Inputs are rounded by up to 2^-17. That is too much if it exceeds 2^-10 of `config.input_range`, the largest input.
    Otherwise the list is empty.
    """
    most = config.input_range
    if most is None or most * 2.0**-PRECISION >= 2.0 ** -(SCALE + 1):
        return []
    what = f"inputs are up to {most:g} (input_range), and are shared as multiples of 2^-16: that is too coarse for them"
    hint = "multiply the inputs by a power of two, divide the weights by it, and find the bits anew"
    return [Problem(steps[number].name, what, hint) for number in sorted(measured(steps))]


def coarse(steps: Sequence[Step]) -> list[str]:
    """Warn of steps whose weights are so large that they show the rounding of the net's inputs; return a text for each.

    Inputs are rounded by up to 2^-17. The warning is for weights above 2^7: they suggest inputs far below 1, but do not
    prove it.
    """
    said = []
    for number in sorted(measured(steps)):
        step = steps[number]
        largest = largest_of_columns(step.op, step.attrs[WEIGHTS[step.op]], step.attrs.get("groups", 1)).flatten()
        large = [place for place, value in enumerate(largest.tolist()) if value > 2.0**LARGE]
        if large:
            shown = "column" + "s" * (len(large) > 1) + " " + ", ".join(map(str, large[:4]))
            shown += f" and {len(large) - 4} more" if len(large) > 4 else ""
            most = float(largest.max())
            said.append(
                f"{step.name}: weights of up to {most:.3g} multiply {shown} of the inputs, which are rounded to "
                f"multiples of 2^-16 where they are shared: results err by up to {most * 2.0 ** -(SCALE + 1):.2g} for "
                "each. If these values are below 2^-6, multiply them by a power of two before they are shared, and "
                "divide their weights by it"
            )
    return said


def measured(steps: Sequence[Step]) -> set[int]:
    """Find the steps whose weights multiply the net's inputs, or values as large as the inputs; return their indices.

    Values are as large as the inputs as long as no weights have multiplied them, and no norm, sigmoid or the like has
    brought them to another range.
    """
    raw: list[bool] = []
    for step in steps:
        inputs = any(raw[ref.index] for ref in refs(step.inputs))
        # A product with a number, or of two values, has magnitudes that still follow the inputs.
        number = step.op == "mul" and not _has_weights(step)
        raw.append(step.op == "input" or (inputs and (step.op not in _NEW_SCALES or number)))
    return {
        number
        for number, step in enumerate(steps)
        if _has_weights(step) and any(raw[ref.index] for ref in refs(step.inputs))
    }


def _with_weights(steps: Sequence[Step]) -> set[int]:
    return {number for number, step in enumerate(steps) if _has_weights(step, 1)}


def _has_weights(step: Step, least: int = 2) -> bool:
    """Whether a step has at least `least` weights with values."""
    weight = step.attrs.get(WEIGHTS.get(step.op, ""))
    return isinstance(weight, Tensor) and weight.numel() >= least and not weight.is_meta


def largest_of_columns(op: str, weight: Tensor, groups: int = 1) -> Tensor:
    """Return the largest |weight| of every column, float64 (columns,): the weights that multiply one input channel.

    For a product with factors, every factor is a column, and the result has the weight's shape.
    op: the step's op, such as "linear" or "conv".
    weight: in torch's layout for this op.
    groups: of a convolution.
    """
    size = weight.detach().abs().double()
    if op == "linear":
        return size.amax(0)
    if op == "conv":  # (out, in / groups, ...)
        return size.unflatten(0, (groups, -1)).flatten(3).amax((1, 3)).flatten()
    return size.flatten(1).amax(1) if op == "conv_transpose" else size


def _doublings(step: Step) -> Tensor | None:
    """Compute how often the weights of each column are doubled before rounding; int64, one number for each column.

    A column is the weights that multiply one input channel; it is doubled if its weights are too small to be rounded.
    Returns None if no column needs it, and for weights that encoding refuses.
    step: one with weights.
    """
    largest = largest_of_columns(step.op, step.attrs[WEIGHTS[step.op]], step.attrs.get("groups", 1))
    if not bool(torch.isfinite(largest).all()) or float(largest.max()) < 2.0 ** -(FLOOR + NOTHING):
        return None  # encoding raises InputError
    mantissa, exponent = torch.frexp(largest)
    exponent = exponent - (mantissa == 0.5).to(exponent.dtype)  # the least one with largest <= 2^exponent
    alone = largest.shape == step.attrs[WEIGHTS[step.op]].shape  # factors: no result has two columns
    counts = largest > (2.0**-SCALE if alone else min(1.0, float(largest.max())) * 2.0**-NOTHING) * 2.0**-FLOOR
    offset = max(0, _bias(step) - OFFSET)
    if not bool((counts & (largest < 2.0 ** (offset - LEAST))).any()):
        return None
    few = (1 + offset - ENOUGH - exponent).clamp(min=0) * counts
    if int(few.max()) <= FREE:
        return few.long()
    most = torch.minimum(offset - exponent, EVEN - exponent // 2)
    return (most.clamp(min=0, max=MOST) * counts).long()


def _bias(step: Step) -> int:
    """Return log2, rounded up, of the largest magnitude in a step's bias; 0 without a bias."""
    bias = step.attrs.get("shift", step.attrs.get("bias"))
    return exponent_of(float(bias.detach().abs().max())) if bias is not None and bias.numel() else 0


def _halved(step: Step, doublings: Tensor) -> Step:
    scale = 1 / (1 << doublings).float()
    last = step.op in ("linear", "scale_last", "mul")
    attrs = {"scale": scale, "shift": torch.zeros_like(scale), "halved": True}
    return Step(f"{step.name}.columns", "scale_last" if last else "affine", step.inputs[:1], attrs)


def _doubled(step: Step, doublings: Tensor) -> Step:
    name = WEIGHTS[step.op]
    weight = step.attrs[name]
    if step.op == "conv":  # each group of outputs has columns of its own
        groups = step.attrs["groups"]
        doublings = doublings.view(groups, 1, -1).expand(groups, len(weight) // groups, -1)
        doublings = doublings.reshape(*weight.shape[:2], *[1] * (weight.dim() - 2))
    elif step.op == "conv_transpose":
        doublings = doublings.view(-1, *[1] * (weight.dim() - 1))
    doubled = weight.detach() * (1 << doublings).to(weight.device, weight.dtype)
    return replace(step, attrs=step.attrs | {name: doubled, "unscaled": weight})


class Halved(Layer):
    """Layer that divides each column of x, an input channel of the next layer, by a power of two. Sends nothing.

    The result has log2 of the largest power as additional bits of fraction, so nothing is rounded.
    scale: for each column, the reciprocal of its power.
    last: whether columns are along the last dimension; otherwise they are along dimension 1, the channels.
    """

    input_limit = 24

    def __init__(self, scale: Tensor, last: bool) -> None:
        super().__init__()
        halvings = 1 - torch.frexp(scale.double())[1].long()
        self.fraction, self.last = int(halvings.max()), last
        self.register_buffer("shifts", self.fraction - halvings)

    shifts: Tensor

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] + self.fraction

    def weight_scale(self, later: int) -> int:
        return later

    def forward(self, session: Session, x: Shared) -> Shared:
        share = x.share
        shifts = self.shifts if self.last else self.shifts.view(-1, *[1] * (share.dim() - 2))
        return Shared(share << shifts, x.scale + self.fraction)

    def label(self) -> str:
        return f"columns halved, up to {self.fraction} times"
