"""Facts about the values of a net's steps that follow from the steps alone, before any input is known.

    ranks             the number of dimensions of each value, by the rules of `ops/dimension_rules.py`
    integer_values    which values torch computes as integers (int64)

Private inference computes on reals only. Its results equal torch's wherever integers stay integers; they differ where
torch rounds, and `rounded` lists those steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hummingbird.errors import Problem
from hummingbird.graph.build import TUPLE
from hummingbird.graph.ops.dimension_rules import LISTED, Rank
from hummingbird.graph.ops.op import Integers
from hummingbird.graph.ops.select import HINT
from hummingbird.graph.ops.vocabulary import OPERATIONS
from hummingbird.graph.steps import Step, refs


def ranks(steps: Sequence[Step]) -> list[Rank]:
    """Compute the number of dimensions of every step's value; for a tuple (chunk, split, unbind), of each tensor in it.

    Raises KeyError for a step whose operation is not in OPERATIONS.
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
    """Whether a step's value is a size or a shape, which has no number of dimensions."""
    return OPERATIONS[step.op].dimensions is None


def _as_listed(steps: Sequence[Step], step: Step) -> Rank:
    """Return the number of dimensions of a step's value, if the step, such as a reshape, reads all its sizes one by
    one.

    It is the number of these sizes. Returns None if an input is a whole shape, or a slice of one, whose length is not
    known here.
    """
    sizes = [steps[ref.index] for ref in refs(step.inputs[1:])]
    shapes = [s for s in sizes if s.attrs.get("dim", 0) is None or isinstance(s.attrs.get("index"), slice)]
    return None if shapes else len(step.inputs) - 1


# Integers ------------------------------------------------------------------------------------------------------------
#
# torch goes on in int64 after argmax, and after a comparison times an integer, until a real number meets the value.


def rounded(steps: Sequence[Step]) -> list[Problem]:
    """List a problem for each step at which torch would round to integers.

    These are means of integers, and a hardtanh or pad of integers whose constant has a fraction.
    """
    return [
        Problem(steps[number].name, f"torch rounds the result of {steps[number].op} on integers (int64)", HINT)
        for number in sorted(integer_values(steps))
        if _fractions(steps[number]) or _does(steps[number]) == "rounded"
    ]


def integer_values(steps: Sequence[Step]) -> set[int]:
    """Return the numbers of the steps whose values are integers in torch."""
    whole: set[int] = set()
    for number, step in enumerate(steps):
        inputs = [ref.index for ref in refs(step.inputs) if not _is_neutral(steps[ref.index])]
        does = _does(step)
        makes_real = does == "promoted" and bool(_fractions(step))
        kept = does in ("kept", "promoted", "rounded") and bool(inputs) and whole.issuperset(inputs) and not makes_real
        if does == "made" or step.attrs.get("whole") or kept:
            whole.add(number)
    return whole


def _does(step: Step) -> Integers:
    """Return how a step treats integers (`Op.integers`); "" for a step that could not be converted."""
    return OPERATIONS[step.op].integers if step.op in OPERATIONS else ""


def _fractions(step: Step) -> list[object]:
    """List the constants among a step's attributes that are not integers."""
    return [step.attrs[name] for name in ("low", "high", "value") if not _is_whole(step.attrs.get(name, 0))]


def _is_neutral(step: Step) -> bool:
    """Whether a step's value, added to or multiplied by integers, leaves an integer result.

    Such values are sizes, comparisons and integer constants.
    """
    return _does(step) == "neutral" or (step.op == "constant" and _is_whole(step.attrs["value"]))


def _is_whole(constant: object) -> bool:
    values = torch.as_tensor(constant, dtype=torch.float64)
    return values.is_meta or bool((values == values.round()).all())
