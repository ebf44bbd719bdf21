"""The service of CrypTen as it is shipped: its price, and what it refuses. tests/scripts/tools/test_calibrate.py runs
it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from torch import nn

from hummingbird import convert_model, cost
from hummingbird.__main__ import main
from hummingbird.bits import BitWindow
from hummingbird.capacity import Compute, Rounds, Send, Service, crypten, shipped
from hummingbird.capacity.profile import Measurement, Profile
from hummingbird.commands.program import machine
from hummingbird.errors import ConfigError, ModelError
from hummingbird.mpc.plan.net import PrivateNet
from models import get_model

SHAPE = (3, 1, 8, 8)


@pytest.fixture(scope="module")
def private() -> PrivateNet:
    return convert_model(get_model("digits", 10).eval(), BitWindow(20, 12))


def profile(private: PrivateNet) -> Profile:
    """Seconds of work that is a sum of its amounts."""
    names = sorted(shipped.amounts(private, SHAPE))
    rows = []
    for number in range(2, 16):
        work = {name: float(pow(number, at, 23) + 1) for at, name in enumerate(names, 1)}
        seconds = {"compute": (1e-6 * work["products"] + 1e-3 * work["layers"],), "triples": (1e-6 * work["compared"],)}
        rows.append(Measurement("crypten", f"{number}", "", work, seconds))
    return Profile(machine(), 1, tuple(rows))


def sent(service: Service) -> dict[str, float]:
    """Bytes that each party sends."""
    total = Counter[str]()
    for step in service.request.steps:
        if isinstance(step.work, Send):
            total[step.work.source] += int(step.work.bytes)
    return dict(total)


def test_bytes_and_rounds_are_the_price_s(private: PrivateNet) -> None:
    """Whatever the windows: 1,856 bits and 9 rounds for a ReLU, and a round for the result."""
    service, relus = crypten(private, SHAPE, profile(private)), [3 * 1024, 3 * 512, 3 * 1024]
    assert shipped.cost(private, SHAPE).bits == 1856 * sum(relus)
    assert sent(service) == {"party-0": 232 * sum(relus), "party-1": 232 * sum(relus) + 8 * 30}
    rounds = [step.work.rounds for step in service.request.steps if isinstance(step.work, Rounds)]
    assert sum(rounds) == 9 * 3 + 1 and service.images == 3 and service.refill is None and service.slots == 1


@pytest.mark.slow
def test_the_price_of_resnet18_is_what_was_measured() -> None:
    """Figures of docs/windows.md: 43,713 kB an image and 154 rounds, the opening among them."""
    found = shipped.cost(convert_model(get_model("resnet18", 10).eval()), (1, 3, 32, 32))
    assert found.rounds + 1 == 154 and round(found.bits / 8e3) == 43713


def test_frames_of_ours_are_not_in_it() -> None:
    ours, shipped_ones = cost.crypten_relu(100, 2), cost.crypten_shipped_relu(100, 2)
    assert shipped_ones.bits == 100 * 1856 == ours.bits - 9 * 8 * cost.HEADER_BYTES
    assert (shipped_ones.rounds, shipped_ones.offline_bits) == (ours.rounds, ours.offline_bits)


def test_triples_are_drawn_within_the_request(private: PrivateNet) -> None:
    service = crypten(private, SHAPE, profile(private))
    work = {step.name: step.work for step in service.request.steps}
    amounts = shipped.amounts(private, SHAPE)
    compute, triples = work["compute party-0"], work["triples party-0"]
    assert isinstance(compute, Compute) and isinstance(triples, Compute)
    assert triples.core_seconds == pytest.approx(1e-6 * 3 * 2560, rel=1e-6)
    assert compute.core_seconds == pytest.approx(1e-6 * amounts["products"] + 1e-3 * amounts["layers"], rel=1e-6)
    seconds = {step.name: service.step_seconds(step) for step in service.request.steps}
    path = ("triples party-0", "compute party-0", "party-0 to party-1", "rounds", "result", "opening")
    assert service.seconds(service.request) == pytest.approx(sum(seconds[name] for name in path))


def test_a_net_without_comparisons_needs_no_triples() -> None:
    private = convert_model(nn.Linear(8, 3).eval())
    work = shipped.amounts(private, (2, 8))
    row = Measurement("crypten", "it", shipped.digest(private, (2, 8)), work, {"compute": (0.5,)})
    service = crypten(private, (2, 8), Profile(machine(), 1, (row,)))
    assert [step.name for step in service.request.steps if isinstance(step.work, Compute)] == [
        "compute party-0",
        "compute party-1",
    ]
    assert "seconds measured" in service.notes[0] and "hides nothing from party 0" in service.notes[1]


def test_what_does_not_fit_is_refused(private: PrivateNet) -> None:
    with pytest.raises(ModelError, match=r"no price of CrypTen's max_pool") as caught:
        crypten(convert_model(nn.Sequential(nn.MaxPool2d(2), nn.Sigmoid()).eval()), SHAPE, profile(private))
    assert [problem.name for problem in caught.value.problems] == ["0", "1"]
    with pytest.raises(ConfigError, match="private weights"):
        crypten(convert_model(get_model("digits", 10).eval(), weights=0), SHAPE, profile(private))
    with pytest.raises(ConfigError, match="no measurements of crypten: compute") as missing:
        crypten(private, SHAPE, Profile(machine(), 1, ()))
    assert "scripts.tools.calibrate --only crypten --json" in str(missing.value)


def test_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, private: PrivateNet) -> None:
    path = tmp_path / "profile.json"
    path.write_text(profile(private).to_text())
    words = ["plan", "show", "--service", "crypten", "--profile", str(path)]
    net = ["--model", "models:get_model", "digits", "10", "--input", "3x1x8x8"]
    assert main([*words, *net, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [step["rounds"] for step in found["steps"] if "rounds" in step] == [27, 1]
    for bad, says in ((["--bits", "x.json"], "--bits beside"), (["--parties", "3"], "--parties beside")):
        assert main([*words, *net, *bad]) == 1
        assert f"{says} --service crypten" in capsys.readouterr().err
