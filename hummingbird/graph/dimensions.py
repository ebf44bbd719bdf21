"""The number of dimensions of every step's value, from steps alone: no shape is known before the net has an input.

The rules are those of `ops/dimension_rules.py`; every operation has one.
"""

from __future__ import annotations

from collections.abc import Sequence

from hummingbird.graph.build import TUPLE
from hummingbird.graph.ops.dimension_rules import LISTED, Rank
from hummingbird.graph.ops.vocabulary import OPERATIONS
from hummingbird.graph.steps import Step, refs


def ranks(steps: Sequence[Step]) -> list[Rank]:
    """The rank of every step's value; of what makes several tensors (chunk, split, unbind), of each of them.

    KeyError for a step of no operation.
    """
    found: list[Rank] = []
    for step in steps:
        rule = OPERATIONS[step.op].dimensions
        given = [found[ref.index] for ref in refs(step.inputs) if not is_size(steps[ref.index])]
        if rule is None:
            found.append(None)
        elif rule == LISTED:
            found.append(_as_listed(steps, step))
        elif step.op == "getitem" and OPERATIONS[steps[step.inputs[0].index].op].makes == TUPLE:
            found.append(given[0])
        else:
            found.append(rule(step.attrs, given))
    return found


def is_size(step: Step) -> bool:
    """Whether a step's value is sizes, which have no dimensions."""
    return OPERATIONS[step.op].dimensions is None


def _as_listed(steps: Sequence[Step], step: Step) -> Rank:
    """As many dimensions as sizes are given, if each is one number."""
    sizes = [steps[ref.index] for ref in refs(step.inputs[1:])]
    shapes = [s for s in sizes if s.attrs.get("dim", 0) is None or isinstance(s.attrs.get("index"), slice)]
    return None if shapes else len(step.inputs) - 1
