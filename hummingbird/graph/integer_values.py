"""Where a net computes on whole numbers: torch does on what argmax gives, int64, until a real number meets it, and on a
comparison times a whole number.

Private inference has reals only. The two agree in all that keeps whole numbers whole; they do not where torch rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hummingbird.errors import Problem
from hummingbird.graph.ops.op import Integers
from hummingbird.graph.ops.select import HINT
from hummingbird.graph.ops.vocabulary import OPERATIONS
from hummingbird.graph.steps import Step, refs


def rounded(steps: Sequence[Step]) -> list[Problem]:
    """Steps at which torch would round whole numbers: means, and numbers with a fraction in a hardtanh or a pad."""
    return [
        Problem(steps[number].name, f"torch rounds what {steps[number].op} makes of whole numbers (int64)", HINT)
        for number in sorted(integer_values(steps))
        if _fractions(steps[number]) or _does(steps[number]) == "rounded"
    ]


def integer_values(steps: Sequence[Step]) -> set[int]:
    """The steps whose values are whole numbers in torch."""
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
    """How a step treats whole numbers, as `Op.integers` has it; "" where it could not be converted."""
    return OPERATIONS[step.op].integers if step.op in OPERATIONS else ""


def _fractions(step: Step) -> list[object]:
    """Numbers of a step's attributes that are not whole."""
    return [step.attrs[name] for name in ("low", "high", "value") if not _is_whole(step.attrs.get(name, 0))]


def _is_neutral(step: Step) -> bool:
    """Whether whole numbers stay whole beside its value: sizes, comparisons, and constants without fractions."""
    return _does(step) == "neutral" or (step.op == "constant" and _is_whole(step.attrs["value"]))


def _is_whole(constant: object) -> bool:
    values = torch.as_tensor(constant, dtype=torch.float64)
    return values.is_meta or bool((values == values.round()).all())
