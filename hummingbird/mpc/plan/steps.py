"""The steps of a plan: for each step of a net's graph its private layer, and rescalings between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class PlanStep:
    """One step of a net's plan: it computes `layer(*inputs)`.

    Without a layer it computes `function(*inputs)`, a plain function on sizes, tuples or public values. Inputs and the
    output have neither: the step's value is its argument.
    name, op: qualified name of the module or operation, and the operation's name in the graph.
    inputs: the arguments, with a `Ref` for each earlier step.
    scale: bits of fraction of the result.
    source: index of the graph's step whose result has the same shape.
    valid, grain: how many of the result's lowest bits are right, and how many are zero, in every party's share.
    """

    name: str
    op: str
    layer: nn.Module | None
    function: Callable[..., Any] | None
    inputs: tuple[Any, ...]
    scale: int
    source: int
    valid: int
    grain: int = 0
