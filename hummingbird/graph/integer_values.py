"""Where a net computes on whole numbers: torch does on what argmax gives, int64, until a real number meets it, and on a
comparison times a whole number.

Private inference has reals only. The two agree in all that keeps whole numbers whole; they do not where torch rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hummingbird.errors import Problem
from hummingbird.graph.steps import Step, refs

_KEEP = frozenset(
    "argmax relu neg add sub mul square sum cat stack flatten reshape permute transpose squeeze unsqueeze chunk split "
    "getitem pad max_pool adaptive_max_pool hardtanh avg_pool adaptive_avg_pool output abs maximum minimum expand "
    "unflatten unbind matmul einsum flip roll edge_pad pixel_shuffle pixel_unshuffle channel_shuffle".split()
)
_MAKE_REAL = frozenset(("add", "sub", "mul", "maximum", "minimum"))  # with a number that has a fraction


HINT = "return what argmax gives and do the rest on the opened result; of a comparison, take (x > 0).float()"


def rounded(steps: Sequence[Step]) -> list[Problem]:
    """Steps at which torch would round whole numbers: means, and numbers with a fraction in a hardtanh or a pad."""
    return [
        Problem(steps[number].name, f"torch rounds what {steps[number].op} makes of whole numbers (int64)", HINT)
        for number in sorted(integer_values(steps))
        if _fractions(steps[number]) or steps[number].op in ("avg_pool", "adaptive_avg_pool")
    ]


def integer_values(steps: Sequence[Step]) -> set[int]:
    """The steps whose values are whole numbers in torch."""
    whole: set[int] = set()
    for number, step in enumerate(steps):
        inputs = [ref.index for ref in refs(step.inputs) if not _is_neutral(steps[ref.index])]
        makes_real = bool(_fractions(step)) and step.op in _MAKE_REAL
        kept = step.op in _KEEP and bool(inputs) and whole.issuperset(inputs) and not makes_real
        if step.op == "argmax" or step.attrs.get("whole") or kept:
            whole.add(number)
    return whole


def _fractions(step: Step) -> list[object]:
    """Numbers of a step's attributes that are not whole."""
    return [step.attrs[name] for name in ("low", "high", "value") if not _is_whole(step.attrs.get(name, 0))]


def _is_neutral(step: Step) -> bool:
    """Whether whole numbers stay whole beside its value: sizes, comparisons, and constants without fractions."""
    return step.op in ("size", "int", "greater") or (step.op == "constant" and _is_whole(step.attrs["value"]))


def _is_whole(constant: object) -> bool:
    values = torch.as_tensor(constant, dtype=torch.float64)
    return values.is_meta or bool((values == values.round()).all())
