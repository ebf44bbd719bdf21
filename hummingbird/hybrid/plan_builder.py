"""A plan under construction: steps without final units; their rings follow from their readers.

The ring of a value is the largest that one of its readers needs. Each part of a sum needs the sum's ring; but if its
factor is a multiple of 2^j, ring - j bits suffice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hummingbird.bits import BitWindow
from hummingbird.errors import ConfigError
from hummingbird.graph import Ref
from hummingbird.hybrid.plan import MOST_RING, Gate, Linear, LinearWeights, Model, Plan, Step
from hummingbird.hybrid.scales import UnitGroup, ValueScale, fraction, holds_weights, holds_window, joined, known, power
from hummingbird.hybrid.together import with_sets
from hummingbird.ring import SCALE

INPUT_FRACTION = 8  # fraction bits of an image: 1/256 is finer than a pixel's step in images normalized to deviation 1


@dataclass(eq=False)
class UnfinishedStep:
    """A step of a plan under construction; its name, op, inputs, shape and attrs become those of the plan's `Step`.

    scale: the unit, which may be unknown yet.
    rests: whether the data side's share follows from its masks only, so that a layer may read the value.
    signs: for a sum, 1 or -1 for each value; the value is also multiplied by an integer that brings it to the sum's
    unit.
    factors: for a sum without signs, the integer that multiplies each value.
    real: for a sum, a real number that is added.
    weights: for a layer, its weights, float64 (O, C // groups, h, w), and its bias or None.
    geometry: for a layer, the fields of a `Linear` by name.
    kind, width: for a gate, the fields of a `Gate`.
    window: the window to which the values are cut.
    limit: bound on the absolute real values, None if unknown.
    ring, bound: bits of the shares, and a bound on the absolute values as integers; chosen at the end.
    """

    name: str
    op: str
    inputs: list[UnfinishedStep]
    shape: tuple[int, ...]
    scale: ValueScale
    rests: bool
    attrs: dict[str, Any] = field(default_factory=dict)
    signs: tuple[int, ...] = ()
    factors: tuple[int, ...] = ()
    real: float = 0.0
    weights: tuple[Tensor, Tensor | None] | None = None
    geometry: dict[str, Any] = field(default_factory=dict)
    kind: str = ""
    width: int = 0
    window: BitWindow | None = None
    limit: float | None = None
    ring: int = 0
    bound: int = 0


class PlanBuilder:
    """A plan under construction: it has a method for each kind of step, and chooses units and rings at the end."""

    def __init__(self) -> None:
        self.steps: list[UnfinishedStep] = []
        self._names: set[str] = set()

    def _add(self, draft: UnfinishedStep) -> UnfinishedStep:
        while draft.name in self._names:
            draft.name += "_"
        self._names.add(draft.name)
        self.steps.append(draft)
        return draft

    def input(self, name: str, shape: tuple[int, ...]) -> UnfinishedStep:
        return self._add(UnfinishedStep(name, "input", [], shape, known(2.0**-INPUT_FRACTION), True))

    def local(
        self,
        name: str,
        op: str,
        x: UnfinishedStep,
        shape: tuple[int, ...],
        attrs: Mapping[str, Any],
        ratio: float = 1.0,
    ) -> UnfinishedStep:
        """Add a step that each side computes alone from its share of one value, such as a view or a pool; return the
        step.

        name, op, shape, attrs: of the step; op is one of `plan.LOCAL`. x: the value.
        ratio: the unit of the result divided by the unit of x.
        """
        return self._add(UnfinishedStep(name, op, [x], shape, x.scale.times(ratio), x.rests, dict(attrs)))

    def sum(
        self, name: str, parts: Sequence[UnfinishedStep], signs: Sequence[int] = (), real: float = 0.0
    ) -> UnfinishedStep:
        """Add a step that sums values, and perhaps a real number, and return the step. The values have equal shapes.

        The step multiplies each value by an integer that brings it to the sum's unit.
        name: of the step. parts: the values. signs: 1 or -1 for each value; by default all are added.
        real: the number that is added, 0 for none.
        """
        scale = joined([part.scale for part in parts])
        return self.weighted(name, parts, scale, signs=tuple(signs) or (1,) * len(parts), real=real)

    def weighted(self, name: str, parts: Sequence[UnfinishedStep], scale: ValueScale, **attrs: Any) -> UnfinishedStep:
        """Add a step that sums values, in a given unit, and return the step.

        name: of the step. parts: the values. scale: the unit of the sum.
        attrs: further fields of the `UnfinishedStep`: `signs` of the values, or integers `factors` by which they are
        multiplied, and perhaps `real`, a number that is added, or `limit`, a bound.
        """
        rests = all(part.rests for part in parts)
        return self._add(UnfinishedStep(name, "sum", list(parts), parts[0].shape, scale, rests, **attrs))

    def concatenated(self, name: str, parts: Sequence[UnfinishedStep]) -> UnfinishedStep:
        """Add a step that concatenates values along the first dimension of one image, and return the step.

        name: of the step. parts: the values, which must all have one unit.
        """
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        rests, scale = all(part.rests for part in parts), parts[0].scale.times(1.0)
        return self._add(UnfinishedStep(name, "cat", list(parts), shape, scale, rests))

    def linear(
        self,
        name: str,
        x: UnfinishedStep,
        shape: tuple[int, ...],
        weight: Tensor,
        bias: Tensor | None,
        geometry: dict[str, Any],
    ) -> UnfinishedStep:
        """Add a layer with weights to the plan, and return the step.

        The unit of its result is chosen later, together with the units of values that are added to the result.
        name: of the step. x: the input, a value that layers may read (`UnfinishedStep.rests`).
        shape: of the result, for one image. weight: float (O, C // groups, h, w). bias: float (O,) or None.
        geometry: fields of the plan's `Linear` by name, such as "image", "weight" and "stride".
        """
        weights = weight.double(), None if bias is None else bias.double()
        scale = ValueScale(UnitGroup())
        rms = float(weights[0].square().mean().sqrt())
        scale.group.demands.append(holds_weights(rms, x.scale, scale))
        return self._add(UnfinishedStep(name, "linear", [x], shape, scale, False, weights=weights, geometry=geometry))

    def cut(self, name: str, x: UnfinishedStep, window: BitWindow) -> UnfinishedStep:
        """Add a step that drops low bits of x, and return it: its unit is 2^(m-16), the lowest bit of the window [k:m).

        name: of the step. x: the value to cut.
        A unit of x that is no power of two is first changed to one that is, by a sum. If this unit is 2^(m-16) or more,
        nothing is dropped, and the value with this unit is returned.
        """
        scale = power(x.scale)
        if scale is not x.scale:
            x = self.weighted(f"{name}.scaled", [x], scale, signs=(1,))
        unit = 2.0 ** (window.m - SCALE)
        if x.scale.known and x.scale.unit >= unit:
            return x
        if not x.scale.known:
            x.scale.group.demands.append(holds_window(window.m, x.scale))
        return self._add(UnfinishedStep(name, "cut", [x], x.shape, known(unit), x.rests, window=window))

    def gate(self, name: str, x: UnfinishedStep, kind: str, window: BitWindow) -> UnfinishedStep:
        """Add a step with garbled gates to the plan, and return the step.

        name: of the step. x: the value that the gates read. It was cut, or follows from cut values without a layer, so
        that its unit is known. kind: "relu" or "lift".
        window: [k:m); the gates read the bits of x below bit k. Raises ConfigError if these are fewer than two.
        """
        width = window.k - SCALE + fraction(x.scale.unit)
        if width < 2:
            hint = "narrow the ReLU's window like the max pooling's, or leave the latter's out"
            what = f"window {window} keeps {width} bits of numbers in units of 2^-{fraction(x.scale.unit)}"
            raise ConfigError(what, where=name, hint=hint)
        return self._add(
            UnfinishedStep(name, "gate", [x], x.shape, known(x.scale.unit), True, kind=kind, width=width, window=window)
        )

    def finished(
        self, last: UnfinishedStep, garbler: str, input_range: float, window: BitWindow | None, attrs: Mapping[str, Any]
    ) -> Model:
        """Finish the plan: choose units and rings, and round weights to integers; return a `Model`, the plan with its
        weights.

        last: the step whose value is the plan's result. garbler: the side that garbles, "data" or "model". input_range:
        bound on |x| of an image. window: bounds the result; None for the bound that follows from the weights.
        attrs: attributes of the output step, which is added here. Raises ConfigError, naming the steps, for values that
        need too large a ring, and ModelError if no unit is fine enough.
        """
        self._add(UnfinishedStep("output", "output", [last], last.shape, last.scale.times(1.0), False, dict(attrs)))
        for draft in self.steps:
            if not draft.scale.known:
                draft.scale.group.resolve(draft.name)
        parameters = {number: _parameters(draft) for number, draft in enumerate(self.steps) if draft.op == "linear"}
        for number, draft in enumerate(self.steps):
            _complete(draft)
            draft.bound = _bound(draft, input_range, parameters.get(number))
        ring = (2 * last.bound).bit_length()
        self.steps[-1].ring = ring if window is None else math.ceil(window.k - SCALE - math.log2(last.scale.unit))
        for draft in reversed(self.steps):
            for part, needed in zip(draft.inputs, _needs(draft), strict=True):
                part.ring = max(part.ring, needed)
        self._check()
        numbers = {id(draft): number for number, draft in enumerate(self.steps)}
        steps = tuple(_step(draft, tuple(Ref(numbers[id(part)]) for part in draft.inputs)) for draft in self.steps)
        return Model(with_sets(Plan(steps, garbler, input_range), parameters), parameters)

    def _check(self) -> None:
        wide = [draft for draft in self.steps if draft.ring > MOST_RING]
        if wide:
            cuts = [draft for draft in wide if draft.op == "linear"] or wide
            said = "; ".join(f"{draft.name}: {draft.ring}" for draft in cuts)
            hint = "windows [k:m) with a lower k, or a higher m; for the last layer, a window that bounds the logits"
            raise ConfigError(f"shares need rings of more than {MOST_RING} bits: {said}", where="bits", hint=hint)


def _parameters(draft: UnfinishedStep) -> LinearWeights:
    assert draft.weights is not None
    weight, bias = draft.weights
    unit = draft.scale.unit
    integers = (weight * (draft.inputs[0].scale.unit / unit)).round().long()
    shift = torch.zeros(len(weight), dtype=torch.int64) if bias is None else (bias / unit).round().long()
    return LinearWeights(integers.contiguous(), shift)


def _complete(draft: UnfinishedStep) -> None:
    """Set the integer attributes of a sum (factors, constant) or a cut (dropped bits), once all units are chosen."""
    unit = draft.scale.unit
    if draft.op == "sum":
        pairs = zip(draft.signs, draft.inputs, strict=True)
        factors = draft.factors or tuple(sign * round(part.scale.unit / unit) for sign, part in pairs)
        draft.attrs = {"factors": factors, "constant": round(draft.real / unit)}
    elif draft.op == "cut":
        draft.attrs = {"m": fraction(draft.inputs[0].scale.unit) - fraction(unit)}


def _bound(draft: UnfinishedStep, input_range: float, parameters: LinearWeights | None) -> int:
    """Return a bound on the absolute integers of a step's value, if all cut values lie in their windows.

    draft: the step. input_range: bound on |x| of an image. parameters: the integer weights of a layer, None for other
    steps.
    """
    bounds, found = [part.bound for part in draft.inputs], 0
    if draft.op == "input":
        return round(input_range / draft.scale.unit)
    if parameters is not None:
        return int((parameters.weight.abs().flatten(1).sum(1) * bounds[0] + parameters.bias.abs()).max())
    if draft.op == "gate":
        return 1 << (draft.width - 1)
    if draft.op == "sum":
        products = (abs(factor) * bound for factor, bound in zip(draft.attrs["factors"], bounds, strict=True))
        found = sum(products) + abs(draft.attrs["constant"])
    elif draft.op == "sum_pool":
        found = bounds[0] * math.prod(draft.attrs["kernel"])
    else:
        found = (bounds[0] >> draft.attrs["m"]) + 1 if draft.op == "cut" else max(bounds)
    limit = draft.limit if draft.window is None else 2.0 ** (draft.window.k - 1 - SCALE)
    return found if limit is None else min(found, math.ceil(limit / draft.scale.unit))


def _needs(draft: UnfinishedStep) -> list[int]:
    """Return for each input of a step how many low bits of the input's shares the step reads: a list of ints."""
    if draft.op == "gate":
        return [draft.width]
    if draft.op == "cut":
        return [draft.ring + draft.attrs["m"]]
    if draft.op == "sum":
        return [max(1, draft.ring - _zeros(factor)) for factor in draft.attrs["factors"]]
    return [draft.ring] * len(draft.inputs)


def _zeros(factor: int) -> int:
    return (factor & -factor).bit_length() - 1


def _step(draft: UnfinishedStep, inputs: tuple[Ref, ...]) -> Step:
    common = draft.name, draft.op, inputs, draft.shape, draft.ring, draft.scale.unit, draft.attrs
    if draft.op == "linear":
        return Linear(*common, **draft.geometry)
    return Gate(*common, draft.kind, draft.width) if draft.op == "gate" else Step(*common)
