"""Lowest bits that the plan says are zero in every share are, whatever runs, and nobody opens them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird.bits import BitWindow
from hummingbird.convert import build
from hummingbird.mpc.layers.layer import Lift, Spec, held
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.plan.steps import PlanStep
from hummingbird.mpc.protocols.lift import lift_price
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from tests.support.covering import covering
from tests.support.gates import ACTIVATIONS, block
from tests.support.operations import Case, Function, cases

CASES = cases() | {f"{name}, gated": Case(block(name), torch.rand(2, 3, 5, 5) - 0.5, 0.0) for name in ACTIVATIONS}
ROUNDED, COARSE = BitWindow(20, 12, 6), BitWindow(20, 12)


@pytest.fixture
def zeros(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Notes the steps that run, with how many bits of every share must be zero, which is tried."""
    seen: list[tuple[str, int]] = []
    call = PrivateNet._call

    def checked(session: Session, step: PlanStep, arguments: tuple[Any, ...]) -> Any:
        out = call(session, step, arguments)
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, Shared):
                assert not bool((value.share & ((1 << step.grain) - 1)).any()), (step.name, step.grain)
        seen.append((step.name, step.grain))
        return out

    monkeypatch.setattr(PrivateNet, "_call", staticmethod(checked))
    return seen


# What keeps zeros, what adds others to them, and tables, from which they come.
QUICK = ["conv2d", "max_pool padded", "relu", "silu", "cat", "pad with a value", "add, sub, neg", "avg_pool", "mul"]
QUICK += ["constants that broadcast", "where", "expand", "attention, causal", "silu, gated", "hardswish, gated"]


@covering("name, window", CASES, [ROUNDED, COARSE], ids=str, quick=QUICK)
def test_bits_that_are_said_to_be_zero_are(name: str, window: BitWindow, zeros: list[tuple[str, int]]) -> None:
    net, x, _ = CASES[name]
    hummingbird.simulate(net.eval(), window, mode="exact", parties=3, seed=0)(x)
    assert zeros
    if name in ("silu", "relu"):
        assert max(grain for _, grain in zeros) == (6 if name == "silu" or window.q else 0)


def lift_of(net: nn.Module, window: BitWindow) -> Lift:
    (found,) = (step.layer for step in build(net.eval(), window).plan if isinstance(step.layer, Lift))
    return found


def test_a_lift_opens_no_zeros() -> None:
    """A table with 10 bits of fraction, moved, negated and added to itself: 10 bits, and those of a bound of 2^4."""
    net = nn.Sequential(nn.SiLU(), Function(lambda x: x.transpose(1, 2) + (-x).transpose(1, 2).flip(1)))
    lift, x = lift_of(net, COARSE), 3 * torch.randn(2, 4, 5)
    assert lift._sizes(16) == (6, 10 + held(4), 64 - 6)
    assert lift.cost([Spec((40,), 16)], 2) == lift_price(40, 10 + held(4), 58, 2)
    found = hummingbird.simulate(net, COARSE, mode="exact", seed=0)(x)
    assert float((found - net(x)).abs().max()) < 0.01


def test_a_value_that_other_bits_are_added_to_has_none() -> None:
    net = nn.Sequential(nn.SiLU(), Function(lambda x: x + 0.3))
    assert lift_of(net, COARSE)._sizes(16)[0] == 0
