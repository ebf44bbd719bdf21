"""Random nets on encrypted images (tests/fuzz/he.py): right or refused, image by image; and faults are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hummingbird.he.compile import non_interactive
from hummingbird.he.runtime import precision
from tests.fuzz import he, nets
from tests.fuzz.he import judge, recipe

NETS = range(130, 145)


@pytest.fixture(scope="module")
def found() -> dict[int, he.Result]:
    with nets._one_thread():
        return {number: judge(number) for number in NETS}


def test_random_nets_are_right_or_refused(found: dict[int, he.Result]) -> None:
    failed = [f"python -m tests.fuzz.nets --encrypted --only {r.number}: {r}" for r in found.values()]
    failed = [text for text, r in zip(failed, found.values(), strict=True) if r.verdict in nets.FAILED]
    assert not failed, "\n".join(failed)
    assert sum(r.verdict == "right" for r in found.values()) >= 0.45 * len(found)
    assert "of what is right" in nets.report(list(found.values()), he.WEIGHTS)


def _unjudged(*given: Any, **more: Any) -> None:
    """Say nothing."""


def _coarse(self: non_interactive.PlanAttempt) -> int:
    return _SCALE(self) - 10


_SCALE = non_interactive.PlanAttempt._input_scale
FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "no image is judged": lambda patch: patch.setattr(precision.Shadow, "check", _unjudged),
    "no plan is judged": lambda patch: [
        patch.setattr(non_interactive, "_check_bits", _unjudged),
        patch.setattr(precision.Shadow, "check", _unjudged),
    ][0],
    "inputs are held too coarse, and nobody judges": lambda patch: [
        patch.setattr(non_interactive.PlanAttempt, "_input_scale", _coarse),
        patch.setattr(precision.Shadow, "check", _unjudged),
    ][0],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[fault](monkeypatch)
    with nets._one_thread():
        assert any(judge(number).verdict == "wrong" for number in NETS)


def test_nets_are_the_same_whenever_they_are_made(found: dict[int, he.Result]) -> None:
    made = recipe(NETS[1])
    assert made == recipe(NETS[1]) and made.kinds == found[NETS[1]].kinds
    assert {r.weights for r in found.values()} == {"range", "samples"}
