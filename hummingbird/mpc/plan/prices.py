"""Prices of a plan's steps, and the depths at which they run, for one shape of the input.

Shapes follow from the input's shape on torch's meta device. A step that opens beside longer ones has the price of its
messages without the rounds and headers that it shares with them (depths.py), so the sum of all prices is the net's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor, nn

from hummingbird.cost import FREE, Cost, opening
from hummingbird.errors import ConfigError, InputError
from hummingbird.graph import Step, calls, run_all
from hummingbird.graph.causal import AT
from hummingbird.graph.steps import refs
from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.layers.layer import Layer, Spec
from hummingbird.mpc.pair.material import offline_bits
from hummingbird.mpc.plan.depths import Depths
from hummingbird.mpc.plan.steps import PlanStep
from hummingbird.mpc.protocols.step_tables import TransferKind


class PlannedCost(NamedTuple):
    """The price of a step of the plan, as `hummingbird estimate` prints it.

    window, variant: the window of the step's comparison, and how it decides signs; "" without a comparison.
    elements: the number of elements of the result.
    range: the layer is right if the values that it compares, or else its results, stay below 2^range.
    shared: how many rounds it takes that count for another step, in whose frames its openings travel.
    """

    name: str
    op: str
    window: str
    variant: str
    elements: int
    range: int | None
    cost: Cost
    breadth: int  # how many values it works on at once (mpc/layers/layer.py)
    shared: int = 0


class PlanPrice(NamedTuple):
    """The price of every step of a plan on inputs of one shape, and the steps' depths."""

    steps: list[PlannedCost]
    depths: Depths


def agreement_cost(names: Sequence[str], parties: int) -> Cost:
    """Return the cost of comparing public inputs of these names: each party sends one text with a digest for each."""
    return opening(parties, len(json.dumps(dict.fromkeys(names, "0" * 64)).encode()))


def price(plan: Sequence[PlanStep], graph: Sequence[Step], shape: tuple[int, ...], parties: int) -> PlanPrice:
    """Return the price of a plan's steps for an input of this shape; InputError if the net cannot take the shape.

    plan: the steps. graph: the steps of the net's graph on the meta device. parties: their number.
    """
    values = _values(graph, shape)
    agreed = [step.name for step in plan if step.op == "public" and step.name != AT]
    out, rounds = list[PlannedCost](), list[int]()
    for step in plan:
        value = values[step.source]
        elements = value.numel() if isinstance(value, Tensor) else 0
        own, variant, breadth, reach = FREE, "", elements, None
        if isinstance(step.layer, Layer):
            specs = [
                Spec(tuple(values[plan[ref.index].source].shape), plan[ref.index].scale)
                for ref in refs(step.inputs)
                if isinstance(values[plan[ref.index].source], Tensor)
            ]
            try:
                own = step.layer.cost(specs, parties)
            except InputError as error:
                raise InputError(error.what, where=step.name, hint=error.hint) from None
            breadth, reach = max(elements, step.layer.breadth(specs)), step.layer.range
            if step.layer.comparison is not None:
                variant = step.layer.variant(specs[0].scale, parties, elements)
        rounds.append(own.rounds)
        if step.name in agreed[:1]:  # all public inputs are compared in one round, before the first step
            own = agreement_cost(agreed, parties)
        out.append(PlannedCost(step.name, step.op, _window(step.layer), variant, elements, reach, own, breadth))
    depths = Depths.of(
        [{ref.index for ref in refs(step.inputs)} for step in plan],
        rounds,
        {number for number, step in enumerate(plan) if step.op == "custom"},
        [planned.breadth for planned in out],
    )
    for number in depths.beside - depths.leads:
        shared = out[number].cost.rounds
        out[number] = out[number]._replace(cost=out[number].cost - opening(parties, 0) * shared, shared=shared)
    return PlanPrice(out, depths)


def made_by_pair(
    steps: Sequence[PlannedCost], made: Sequence[tuple[str, Request[Any]]], transfers: TransferKind
) -> list[PlannedCost]:
    """Return the steps' prices with the offline bits of two parties that make the material with each other.

    made: the requests of a slice, each with the name of its layer. transfers: how they make transfers.
    Raises ConfigError for a request that two parties cannot make.
    """
    bits: Counter[str] = Counter()
    for name, request in made:
        try:
            bits[name] += offline_bits([request], transfers)
        except ConfigError as error:
            raise ConfigError(error.what, where=name, hint=error.hint) from None
    # Steps of one name are one layer: all bits count for the first.
    return [step._replace(cost=replace(step.cost, offline_bits=bits.pop(step.name, 0))) for step in steps]


def _values(graph: Sequence[Step], shape: tuple[int, ...]) -> list[Any]:
    """Return the values of the net's steps on the meta device. Raises InputError if the net cannot take the shape."""
    several = graph[0].attrs.get("names") == ()  # public inputs alone: (batch, 0)
    if not shape or 0 in shape[: 1 if several else None]:
        raise InputError(
            f"an input of shape {shape} is no batch of images",
            where="input",
            hint="the first dimension is the batch: give one image or more",
        )
    try:
        return run_all(graph, *calls.on_meta(graph, shape))
    except InputError as error:
        raise InputError(error.what, where=error.where or "input", hint=error.hint) from None
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise InputError(
            f"the net cannot take an input of shape {shape}: {str(error).splitlines()[0]}",
            where="input",
            hint="the first dimension is the batch; the others must be those the net was trained on",
        ) from None


def _window(layer: nn.Module | None) -> str:
    comparison = layer.comparison if isinstance(layer, Layer) else None
    return str(comparison.window) if comparison else ""
