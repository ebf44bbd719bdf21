"""Services of nets on ciphertexts: bytes and turns are the plan's, and what a model counts; seconds are a profile's."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hummingbird import he as encrypted
from hummingbird.__main__ import main
from hummingbird.capacity import Compute, Phase, Rounds, Send, he
from hummingbird.capacity.encrypted import PARTS, amounts, digest, measure
from hummingbird.capacity.profile import Measurement, Profile
from hummingbird.commands.program import machine
from hummingbird.errors import ConfigError
from hummingbird.he import HEModel


class Square(nn.Module):
    """x * x, elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x


@pytest.fixture(scope="module")
def aided() -> HEModel:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    return encrypted.convert_model(layers.eval(), (1, 4, 4))


@pytest.fixture(scope="module")
def polynomial() -> HEModel:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 4), Square(), nn.Linear(4, 3))
    return encrypted.convert_model(layers.eval(), (6,), "polynomial")


def profile(model: HEModel, images: int) -> Profile:
    return Profile(machine(), 1, tuple(measure("small", model.plan, images, repeats=2)))


def sent(phase: Phase) -> dict[str, float]:
    """Bytes up and down."""
    total = Counter[str]()
    for step in phase.steps:
        if isinstance(step.work, Send):
            total["up" if step.work.source == "client" else "down"] += int(step.work.bytes)
    return dict(total)


@pytest.mark.parametrize("mode", ["aided", "polynomial"])
def test_bytes_and_rounds_are_the_plan_s_and_what_a_model_counts(mode: str, request: pytest.FixtureRequest) -> None:
    model: HEModel = request.getfixturevalue(mode)
    service = he(model, 3, profile(model, 3))
    model(torch.zeros(3, *model.public.input_shape))
    assert model.last is not None
    assert sent(service.request) == {way: model.last.count[way] for way in ("up", "down")}
    assert tuple(sent(service.request).values()) == model.public.batch_bytes()
    rounds = [step.work.rounds for step in service.request.steps if isinstance(step.work, Rounds)]
    assert sum(rounds) == 2 * len(model.public.turns) == (2 if mode == "polynomial" else 4)
    assert service.images == 3 and service.refill is None and "seconds measured" in service.notes[0]


def test_measured_turns_are_known_again(aided: HEModel) -> None:
    """By work, not by weights; another number of images is other work."""
    rows = measure("small", aided.plan, 2, repeats=3)
    assert [len(row.seconds[part]) for row in rows for part in PARTS] == [3] * 8
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    other = encrypted.make_plan(layers.eval(), (1, 4, 4))
    assert [row.digest for row in rows] == [digest(other, number, 2) for number in range(2)]
    assert rows[0].digest != digest(other, 0, 1)
    service = he(aided, 2, Profile(machine(), 1, tuple(rows)))
    step = next(step.work for step in service.request.steps if step.name == "evaluate 1")
    assert isinstance(step, Compute) and step.core_seconds == pytest.approx(sum(rows[1].seconds["evaluate"]) / 3)


def test_the_longest_of_three_at_a_time(aided: HEModel) -> None:
    service = he(aided, 2, profile(aided, 2))
    seconds = {step.name: service.step_seconds(step) for step in service.request.steps}
    total = 0.0
    for number in range(2):
        total += max(seconds[f"{name} {number}"] for name in ("encrypt", "up", "receive"))
        total += max(seconds[f"{name} {number}"] for name in ("evaluate", "down", "decrypt"))
        total += service.rtt
    assert service.seconds(service.request) == pytest.approx(total)


def test_work_is_counted(aided: HEModel, polynomial: HEModel) -> None:
    """Products of each weight with every residue of a ciphertext; squares are of three components where products."""
    public, found = aided.public, amounts(aided.plan, 0, 5)
    degree, primes = public.parameters.degree, len(public.parameters.primes)
    assert found["sent"] == public.turns[0].sent * primes * degree
    assert found["products"] == (2 * 9 + 2) * 4 * 2 * primes * degree  # a bias is a weight of the constant 1
    assert found["plain"] == 5 * (public.turns[0].sent + public.turns[0].returned) and not found["made"]
    assert amounts(polynomial.plan, 0, 5)["made"] >= 4 * 3 * polynomial.public.parameters.degree


@pytest.mark.slow
def test_a_net_that_was_not_measured_is_composed(aided: HEModel) -> None:
    """Seconds that are a sum of the amounts are found exactly, and the error of composing says so."""
    names = sorted(amounts(aided.plan, 0, 1))
    rows = []
    for number in range(2, 22):
        work = {name: float(pow(number, place, 23) + 1) for place, name in enumerate(names, 1)}
        seconds = dict.fromkeys(PARTS, (1e-9 * (work["sent"] + work["plain"]),))
        rows.append(Measurement("he client-aided", f"{number}", "", work, seconds))
    service = he(aided, 7, Profile(machine(), 1, tuple(rows)))
    work = amounts(aided.plan, 1, 7)
    step = next(step.work for step in service.request.steps if step.name == "encrypt 1")
    assert isinstance(step, Compute)
    assert step.core_seconds == pytest.approx(1e-9 * (work["sent"] + work["plain"]), rel=1e-6)
    assert "composed of its layers (error 0 %" in service.notes[0]


def test_what_does_not_fit_is_refused(aided: HEModel, polynomial: HEModel) -> None:
    measured = profile(aided, 2)
    with pytest.raises(ConfigError, match="a request of 2049 images"):
        he(aided, 2049, measured)
    with pytest.raises(ConfigError, match="no measurements of he polynomial: encrypt") as caught:
        he(polynomial, 2, measured)
    assert "scripts.tools.calibrate --only he --json" in str(caught.value)


NET = ["--model", "models:get_model", "cryptonets", "10", "activation=relu", "--input", "4x1x28x28"]


def test_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, aided: HEModel) -> None:
    path = tmp_path / "profile.json"
    rows = [row for images in (1, 2, 3) for row in measure("small", aided.plan, images, repeats=1)]
    path.write_text(Profile(machine(), 1, tuple(rows)).to_text())
    words = ["plan", "show", "--service", "he", "--profile", str(path)]
    assert main([*words, *NET, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images_per_request"] == 4 and len(found["steps"]) == 3 * 8
    for bad, says in (
        (["--model", "torch.nn:Softmax2d", "--input", "1x3x4x4"], "there is nothing to do for a server"),
        ([*NET, "--mode", "polynomial"], "act1: relu of an encrypted value"),
        ([*NET, "--bits", "bits.json"], "--bits beside a net on ciphertexts"),
        ([*NET, "--dealer", "stream"], "--dealer beside --service he"),
        ([*NET[:-1], "4096x1x28x28"], "a request of 4096 images"),
    ):
        assert main([*words, *bad]) == 1, bad
        assert says in capsys.readouterr().err
