"""Where a net computes on whole numbers: torch does on what argmax gives, int64, until a real number meets it.

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


def rounded(steps: Sequence[Step]) -> list[Problem]:
    """Steps at which torch would round whole numbers: means, and numbers with a fraction in a hardtanh or a pad."""
    whole: set[int] = set()
    found = []
    for number, step in enumerate(steps):
        inputs = [ref.index for ref in refs(step.inputs) if not _is_neutral(steps[ref.index])]
        fractions = [step.attrs[name] for name in ("low", "high", "value") if not _is_whole(step.attrs.get(name, 0))]
        makes_real = bool(fractions) and step.op in _MAKE_REAL
        if step.op != "argmax" and (step.op not in _KEEP or not inputs or not whole.issuperset(inputs) or makes_real):
            continue
        whole.add(number)
        if fractions or step.op in ("avg_pool", "adaptive_avg_pool"):
            what = f"torch rounds what {step.op} makes of whole numbers (int64, from argmax)"
            found.append(Problem(step.name, what, "return what argmax gives, and do the rest on the opened result"))
    return found


def _is_neutral(step: Step) -> bool:
    """Whether whole numbers stay whole beside its value: sizes, comparisons, and constants without fractions."""
    return step.op in ("size", "int", "greater") or (step.op == "constant" and _is_whole(step.attrs["value"]))


def _is_whole(constant: object) -> bool:
    values = torch.as_tensor(constant, dtype=torch.float64)
    return values.is_meta or bool((values == values.round()).all())
