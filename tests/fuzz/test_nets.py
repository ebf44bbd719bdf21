"""The fuzz over random nets (tests/fuzz/nets.py): 200 of them are right or refused, and its verdicts hold."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hummingbird.errors import InputError, ModelError
from hummingbird.graph import OPS, Ref, Step, trace
from hummingbird.graph.steps import map_refs
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.session.sharing import Shared
from tests.fuzz import decoders, nets, pair, recurrent, run
from tests.fuzz.bounds import BOUNDS, MOVES, UNIT, walk
from tests.fuzz.grammar import KINDS
from tests.fuzz.make import PAIRS, SPREAD, recipe
from tests.fuzz.run import judge, truth

NETS = range(200)


@pytest.mark.slow
def test_two_hundred_random_nets_are_right_or_refused() -> None:
    found = list(nets.results(NETS, 1, None))
    failed = [f"python -m tests.fuzz.nets --only {r.number}: {r}" for r in found if r.verdict in nets.FAILED]
    assert not failed, "\n".join(failed)
    assert sum(r.verdict == "right" for r in found) >= 0.8 * len(found), nets.report(found)


# The bounds -----------------------------------------------------------------------------------------------------------


def test_every_operation_has_a_bound() -> None:
    undrawn = {"pack", "public", "share_public", "embedding"}  # no random net has one
    undrawn |= {"seen", "rows_at", "cached_matmul"}  # of the chunks of a causal net
    assert set(BOUNDS) | MOVES | undrawn | {"input", "custom", "elementwise"} == set(OPS)
    assert not set(BOUNDS) & MOVES


def values(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The net's output for x in float64, and the bound for two parties."""
    found, errors = walk(trace(net), x, 2)
    return found[-1], errors[-1]


def test_a_bound_worked_out_by_hand() -> None:
    layer = nn.Linear(2, 1)
    layer.weight.data, layer.bias.data = torch.tensor([[0.5, -2.0]]), torch.tensor([1.0])
    out, bound = values(nn.Sequential(layer, nn.ReLU()), torch.tensor([[3.0, 1.0]]))
    # Inputs are half a unit off, weights 2^-21 and float32's 2^-24 of 2, the bias float32's; at rest 2 units, twice.
    weights = (2.0**-21 + 2.0**-23) * (3 + 1 + UNIT)
    expected = (0.5 + 2) * UNIT / 2 + weights + 2.0**-24 + 2 * UNIT + 2 * UNIT
    assert float(out) == 0.5 and float(bound) == pytest.approx(expected, rel=1e-9)


def test_small_constants_are_held_to_a_share_of_themselves() -> None:
    class By(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    x = torch.full((1, 1), 1000.0)
    for factor in (1e-6, 1e-3, 1.0, 8.0):
        out, bound = values(By(factor), x)
        # 2^-8 of the product and float32's 2^-24, half a unit of the input, and a rest of two units
        assert float(bound) <= (float(out) + factor * UNIT) * (2.0**-8 + 2.0**-24) + factor * UNIT / 2 + 2 * UNIT


@pytest.mark.slow
@pytest.mark.parametrize("sign", [1, -1])
def test_errors_of_inputs_stay_below_what_the_walk_says(sign: int) -> None:
    """The walk's Lipschitz bounds, on real errors: an input moved by half a unit moves no value by more."""
    for number in range(0, 60):
        made = recipe(number)
        net, x = made.build()
        if "argmax" in made.kinds:  # jumps
            continue
        try:
            known = truth(net, x, made.parties)
        except ModelError:  # refused
            continue
        moved, _ = walk(known.steps, x.double() + sign * UNIT / 2, made.parties)
        for step, before, after, bound in zip(known.steps, known.values, moved, known.errors, strict=True):
            if isinstance(before, Tensor):
                rounding = 1e-12 * (1 + before.abs().max())  # of float64
                # Where a logarithm's argument may reach 0 there is no bound, and `judge` takes no error for right.
                within = ((after - before).abs() <= bound + rounding) | bound.isnan()
                assert bool(within.all()), f"net {number}, {step}"


# The verdicts ---------------------------------------------------------------------------------------------------------


def doubled(steps: list[Step], index: int) -> list[Step]:
    """The net with the value of step `index` doubled wherever it is read: its scale is off by one bit."""

    def moved(ref: Ref) -> Ref:
        return Ref(ref.index + (ref.index >= index))

    later = [replace(step, inputs=map_refs(step.inputs, moved)) for step in steps[index + 1 :]]
    return [*steps[: index + 1], Step("off", "mul", (Ref(index),), {"value": 2.0}), *later]


def off_by_one_bit(name: str) -> run.Tamper:
    """Doubles what the layer makes."""

    def tamper(private: PrivateNet) -> None:
        layer = private.get_submodule(name)
        layer.register_forward_hook(lambda module, inputs, out: Shared(out.share * 2, out.scale))

    return tamper


LAYERS = frozenset("conv conv_transpose linear affine avg_pool adaptive_avg_pool mean mul square relu hardtanh".split())


@pytest.mark.slow
def test_a_scale_off_by_one_bit_is_found() -> None:
    """In some layer of each net: found wherever it moves torch's own result by twice what is allowed."""
    tried = matters = 0
    for number in range(120):
        made = recipe(number)
        net, x = made.build()
        try:
            known = truth(net, x, made.parties)
        except ModelError:  # refused
            continue
        places = [index for index, step in enumerate(known.steps) if step.op in LAYERS]
        if not places or made.headroom is not None or judge(number).verdict != "right":
            continue
        tried += 1
        place = places[number % len(places)]
        off, _ = walk(doubled(known.steps, place), x, made.parties)
        moved = (off[-1] - known.output).abs()
        allowed = known.errors[-1].clamp(min=run.TOLERANCE * float(known.output.abs().max()))
        inside = max(float(v.abs().max()) for v in off if isinstance(v, Tensor)) < run.RANGE
        if inside and bool((moved > 2 * allowed).any()):
            matters += 1
            result = judge(number, off_by_one_bit(known.steps[place].name))
            assert result.verdict == "wrong", f"net {number}, {known.steps[place]}: {result}"
    assert tried >= 40 and matters >= tried / 2, f"{matters} of {tried}: the bounds are too loose to find it"


def test_refusals_are_told_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random nets are hardly ever refused, so one is here as it may be: the numbers of its text are no kind."""

    def refusing(*_: Any) -> None:
        raise InputError("3 of (4, 5) values are above 1.5e6", where="x", hint="divide by 2.0")

    monkeypatch.setattr(run, "private_output", refusing)
    found = [judge(0)]
    assert found[0].verdict == "refused" and not any(c.isdigit() for c in found[0].reason)
    assert "values are above" in found[0].reason and "refused" in nets.report(found)


def test_an_error_that_is_not_the_packages_is_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("x")

    monkeypatch.setattr(run, "private_output", broken)
    found = [judge(0)]
    assert found[0].verdict == "raw" and found[0].reason == "KeyError: .."
    assert "KeyError" in nets.report(found)


def test_parties_that_wait_for_ever_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SECONDS", 0.2)
    with pytest.raises(TimeoutError):
        run._in_time(lambda: threading.Event().wait(30))  # type: ignore[arg-type, return-value]


# The nets -------------------------------------------------------------------------------------------------------------


def test_a_net_is_the_same_whenever_it_is_made() -> None:
    for number in (3, 77, 5000):
        first, second = recipe(number), recipe(number)
        assert first == second
        (one, x), (two, y) = first.build(), second.build()
        assert torch.equal(x, y)
        assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def test_the_first_numbers_hold_every_ordered_pair_once() -> None:
    assert {PAIRS[number * SPREAD % len(PAIRS)] for number in range(len(PAIRS))} == set(PAIRS)
    assert len(PAIRS) == len(KINDS) ** 2
    for number in range(0, len(PAIRS), 50):
        pair = PAIRS[number * SPREAD % len(PAIRS)]
        assert pair in recipe(number).pairs or "argmax" in pair


@pytest.mark.slow
def test_the_nets_reach_the_whole_vocabulary() -> None:
    seen, settings = set(), set()
    for number in range(250):
        made = recipe(number)
        seen.update(made.kinds)
        settings.add((made.protocol, made.parties, made.weights == "public"))
        assert len(made.kinds) <= 8 + ("raw" in made.kinds) + 6 * ("branch" in made.kinds)
    assert seen == {*KINDS, "raw", "branch", "join"} and len(settings) == 8


# The program ----------------------------------------------------------------------------------------------------------


def test_the_program_writes_a_row_per_net_and_fails_if_any_net_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "fuzz.json"
    shown, _, kinds = nets._GRAMMARS["private"]

    def judged(number: int) -> run.Result:
        return run.Result(number, "wrong" if number == 7 else "right")

    monkeypatch.setitem(nets._GRAMMARS, "private", (shown, judged, kinds))
    assert nets.main(["--nets", "5", "--seed", "1", "--json", str(out)]) == 0
    assert [row["number"] for row in json.loads(out.read_text())] == [1, 2, 3, 4, 5]
    assert nets.main(["--nets", "5", "--seed", "4"]) == 1
    assert "net 7" in capsys.readouterr().out
    assert nets.main(["--json", str(tmp_path / "none" / "fuzz.json")]) == 1, "a folder that is not there"


@pytest.mark.slow
def test_one_net_is_shown_with_the_errors_of_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert nets.main(["--only", "2"]) == 0
    shown = capsys.readouterr().out
    assert "class Net(nn.Module)" in shown and "private:" in shown and ", bound " in shown


# Recurrent nets -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [range(60)])
def test_random_recurrent_nets_are_right(numbers: range) -> None:
    found = [recurrent.judge(number) for number in numbers]
    assert {result.verdict for result in found} <= {"right", "out of range"}, found
    assert len(numbers) < 8 or {kind for result in found for kind in result.kinds} == recurrent.KINDS.keys()


# Decoders -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [range(1, 40)])
def test_random_decoders_are_right_in_conversation(numbers: range) -> None:
    found = [decoders.judge(number) for number in numbers]
    assert {result.verdict for result in found} == {"right"}, found
    assert len(numbers) < 8 or {kind for result in found for kind in result.kinds} == {*decoders.KINDS}


# Two parties without a dealer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [range(6), pytest.param(range(6, 300), marks=pytest.mark.slow)])
def test_random_nets_with_private_weights_without_a_dealer(numbers: range) -> None:
    found = [pair.judge(number) for number in numbers if pair.recipe(number).weights != "public"]
    assert not [result for result in found if result.verdict not in ("right", "refused", "out of range")], found
    assert 2 * sum(result.verdict == "right" for result in found) > len(found) > len(numbers) // 8
