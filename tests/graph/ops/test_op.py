"""Operations as one `Op` each: no two of them have a name in common, and torch has every name that they have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird.graph import ops
from hummingbird.graph.ops import activations
from hummingbird.graph.ops.op import Spelling
from hummingbird.graph.ops.vocabulary import OPERATIONS, REFUSED, ROOMS, SPELLINGS, module_rule


def twice(spellings: Sequence[Spelling]) -> list[Any]:
    """Names, modules, functions, methods and operators that lead to two rules: the second would hide the first."""
    return [
        name
        for found in (
            (name for s in spellings for name in s.names.split()),
            (module for s in spellings for module in s.modules),
            (function for s in spellings for function in s.functions),
            (method for s in spellings for method in s.methods.split()),
            (name for s in spellings for name in s.operators.split()),
        )
        for name in repeated(found)
    ]


def repeated(values: Iterable[Any]) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1]


def unknown(spellings: Sequence[Spelling]) -> list[str]:
    """Names that torch has nowhere: such a spelling would be left out without a word."""
    names = [name for s in spellings for name in s.names.split()]
    lost = [name for name in names if not any(hasattr(space, name) for space in (torch, F, Tensor))]
    lost += [name for s in spellings for name in s.methods.split() if not hasattr(Tensor, name)]
    newer = {"rms_norm"}  # torch 2.4
    return [name for name in lost if name not in newer]


def test_no_two_rules_have_a_name_in_common_and_torch_has_every_name() -> None:
    assert twice(SPELLINGS) == [] and unknown(SPELLINGS) == []
    assert repeated(op.name for room in ROOMS for op in getattr(room, "OPS", ())) == []
    assert repeated(name for refused in REFUSED for name in refused.names.split()) == []


def test_what_is_refused_has_no_rule() -> None:
    modules = [module for refused in REFUSED for module in refused.modules if issubclass(module, nn.Module)]
    assert len(modules) > 6 and not [module for module in modules if any(module in s.modules for s in SPELLINGS)]
    assert module_rule(nn.ReLU()) == (OPERATIONS["relu"].spellings[0].rule, "")


def test_every_room_is_collected() -> None:
    files = {path.stem for path in Path(ops.__path__[0]).glob("*.py")}
    rules = {"__init__", "op", "vocabulary", "batch_rules", "dimension_rules"}
    assert files - rules == {room.__name__.rpartition(".")[2] for room in ROOMS}


def test_these_tests_can_fail() -> None:
    relu = Spelling(activations.relu6, "relu", {nn.ReLU: ""}, (getattr,), "to", "add")
    found = twice([*SPELLINGS, relu])
    assert set(found) == {"relu", nn.ReLU, getattr, "to", "add"}
    assert unknown([Spelling(activations.relu6, "relu rellu", methods="too")]) == ["rellu", "too"]
