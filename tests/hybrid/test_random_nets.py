"""Random nets between two parties (tests/fuzz/hybrid.py): right or refused; and faults are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn

from hummingbird.errors import ModelError
from hummingbird.hybrid import lowering, plan_builder, spatial
from hummingbird.hybrid.plan import Gate, LinearWeights
from tests.fuzz import hybrid, nets
from tests.fuzz.hybrid import judge, recipe
from tests.hybrid.test_convert import WIDE, make_plan

NETS = range(300, 314)  # the first of them between two sides


@pytest.fixture(scope="module")
def found() -> dict[int, hybrid.Result]:
    with nets._one_thread():
        return {number: judge(number) for number in NETS}


def test_random_nets_are_right_or_refused(found: dict[int, hybrid.Result]) -> None:
    failed = [f"python -m tests.fuzz.nets --two-party --only {r.number}: {r}" for r in found.values()]
    failed = [text for text, r in zip(failed, found.values(), strict=True) if r.verdict in nets.FAILED]
    assert not failed, "\n".join(failed)
    assert found[NETS[0]].verdict == "right" and NETS[0] % hybrid.REALLY == 0
    assert sum(r.verdict == "right" for r in found.values()) >= 0.7 * len(found)
    assert "of what is right" in nets.report(list(found.values()), hybrid.WEIGHTS)


def _lifted(to: Any, number: int, step: Any, x: Any) -> Any:
    return to.drafts.gate(step.name, to.drafts.cut(f"{step.name}.cut", x, window := to.config.default), "lift", window)


def _narrower(*given: Any) -> Gate:
    *rest, width = given
    return cast(Callable[..., Gate], Gate)(*rest, width - 1)


def _floored(step: Any) -> LinearWeights:
    weight, bias = step.weights
    whole = (weight * (step.inputs[0].scale.unit / step.scale.unit)).floor().long()
    shift = torch.zeros(len(weight)) if bias is None else (bias / step.scale.unit).floor()
    return LinearWeights(whole.contiguous(), shift.long())


def _divided(drafts: Any, name: str, x: Any, shape: Any, divisor: int, *sizes: Any) -> Any:
    return _SUM_POOL(drafts, name, x, shape, divisor + 1, *sizes)


_SUM_POOL = spatial._sum_pool
FAULTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "a ReLU lets everything pass": ("relu", lambda patch: patch.setitem(lowering._RULES, "relu", _lifted)),
    "weights are cut off": ("conv", lambda patch: patch.setattr(plan_builder, "_parameters", _floored)),
    "gates of a bit less": ("relu", lambda patch: patch.setattr(plan_builder, "Gate", _narrower)),
    "averages over one place more": ("avg_pool", lambda patch: patch.setattr(spatial, "_sum_pool", _divided)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, found: dict[int, hybrid.Result], monkeypatch: pytest.MonkeyPatch) -> None:
    kind, change = FAULTS[fault]
    change(monkeypatch)
    right = [r.number for r in found.values() if r.verdict == "right" and any(kind in name for name in r.kinds)]
    with nets._one_thread():
        assert any(judge(number).verdict == "wrong" for number in right)


def test_nets_are_the_same_whenever_they_are_made(found: dict[int, hybrid.Result]) -> None:
    made = recipe(NETS[1])
    assert made == recipe(NETS[1]) and made.kinds == found[NETS[1]].kinds
    assert {r.weights for r in found.values()} == {"data garbles", "model garbles"}
    for said in (", own m", ", least k"):
        assert {said in r.windows for r in found.values()} == {False, True}


# What random nets have shown --------------------------------------------------------------------------------------


class Broadcast(nn.Module):
    """A sum of a map and of one number for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x).relu()
        return x + x.mean((2, 3), keepdim=True)


def test_a_sum_of_two_shapes_is_refused() -> None:
    with pytest.raises(ModelError, match=r"\(2, 4, 4\) and \(2, 1, 1\)") as caught:
        make_plan(Broadcast(), (1, 6, 6), WIDE)
    assert [problem.name for problem in caught.value.problems] == ["add"] and caught.value.problems[0].hint


class Twice(nn.Module):
    """A value that no activation has cut, read by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.one, self.other = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        return self.one(x) + self.other(x)


def test_a_value_that_two_layers_read_is_cut_once() -> None:
    plan = make_plan(Twice(), (1, 6, 6), WIDE).plan
    assert [gate.name for gate in plan.gates.values()] == ["conv.lift"]
