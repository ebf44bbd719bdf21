"""Nets of packages: how their modules are read, their inputs are made, and rows come from private runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird.errors import EnvironmentProblem
from scripts.tools import trained_elsewhere as tool
from scripts.tools.trained_elsewhere import compared, rows_of, tensors
from scripts.tools.trained_nets import NETS, Trained, above, brain_waves, folder, notes, part
from tests.support.paths import ROOT

PAGE = (ROOT / "docs/trained-elsewhere.md").read_text()
REFUSED = ("hey_jarvis", "speech_from_samples")
SHORT = ("alexa", "pnet", "rnet", "speech", "speech_from_samples")


class Signs(nn.Module):
    """Two results: x, and a score whose sign decides."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, torch.relu(self.layer(x)).sum(1, keepdim=True) - 1


def test_errors_are_parts_of_the_largest_value_and_decisions_are_counted() -> None:
    torch.manual_seed(0)
    x = torch.tensor([[1.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 4, 0], [0, 0, 0, -4]])
    net = Signs().eval()
    trained = Trained(net, x, above(0, 1))
    first, scores = (result.detach() for result in net(x))
    assert compared(trained, x, [first, scores]) == {"error": 0.0, "decisions": 100.0}
    assert compared(trained, x, [first + 0.5, scores])["error"] == 12.5  # 0.5 of 4
    turned = scores.clone()
    turned[3] = -scores[3]
    assert compared(trained, x, [first, turned])["decisions"] == 75


def alone(fn: Callable[..., Any], *args: object) -> list[Any]:
    """`hummingbird.launch` with one party, in this process."""
    try:
        return [fn(hummingbird.init(), *args)]
    finally:
        hummingbird.uninit()


@pytest.mark.parametrize("launch", [alone, pytest.param(hummingbird.launch, marks=pytest.mark.slow)])
def test_rows_come_from_private_runs(launch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hummingbird, "launch", launch)
    torch.manual_seed(0)
    rows = rows_of("signs", Trained(Signs().eval(), torch.randn(40, 4), above(0, 1), "16/64"))
    assert [row["windows"] for row in rows] == ["exact", "16/64"]
    for row in rows:
        # x is rounded to 2^-16 by its input, results of layers by a few of these; the largest value is over 1
        assert (row["inputs"], row["input"]) == (20, "4") and row["error"] < 0.1 and row["seconds"] > 0
    assert rows[1]["online_mb"] < rows[0]["online_mb"] and rows[1]["rounds"] < rows[0]["rounds"]


def test_a_net_that_does_not_convert_has_a_reason() -> None:
    net = nn.Sequential(nn.Conv1d(4, 4, 1), nn.LocalResponseNorm(2)).eval()
    (row,) = rows_of("norm", Trained(net, torch.rand(8, 4, 3), above(0)))
    assert "LocalResponseNorm" in row["refused"]


def test_a_module_is_read_without_what_its_package_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "sounds_elsewhere"
    package.mkdir()
    (package / "__init__.py").write_text("import no_reader_of_sound\n")
    (package / "net.py").write_text("import sounds_elsewhere\nBINS = sounds_elsewhere.BINS\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert folder("sounds_elsewhere") == package
    assert part("sounds_elsewhere", "net", BINS=3).BINS == 3
    assert not [name for name in sys.modules if name.startswith("sounds_elsewhere")]
    with pytest.raises(EnvironmentProblem, match="package not_there is not installed"):
        folder("not_there")


def test_notes_have_mean_zero_deviation_one_and_their_pitch() -> None:
    frames = notes(9)
    assert frames.shape == (9, 1024)
    assert torch.allclose(frames.mean(1), torch.zeros(9), atol=1e-5) and torch.allclose(frames.std(1), torch.ones(9))
    # The middle one is 80 * sqrt(12.5) = 283 Hz: 18.1 periods in a frame; strong frequencies are its multiples.
    strong = int(torch.fft.rfft(frames[4]).abs().argmax())
    assert min(abs(strong - 18.1 * n) for n in range(1, 9)) < 1


def test_brain_waves_have_spikes_in_the_second_half_but_for_a_quarter() -> None:
    waves = brain_waves(32)
    assert waves.shape == (32, 16 * 256)
    first, second = waves[:, :2048].std(1), waves[:, 2048:].std(1)
    assert (second[16:] > 2.5 * first[16:]).all() and (second[:8] < 2 * first[:8]).all()  # the noise itself drifts


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in SHORT)) for name in NETS])
def test_a_net_of_a_package_converts_and_keeps_its_decisions(name: str) -> None:
    try:
        trained = NETS[name]()
    except EnvironmentProblem as missing:
        pytest.skip(str(missing))
    if name in REFUSED:
        (row,) = rows_of(name, trained)
        assert row["refused"]
        return
    if name == "voice":  # its plan for 160 frames takes minutes
        trained = replace(trained, inputs=trained.inputs[:, :6])
    with torch.no_grad():
        plain = tensors(trained.net(trained.inputs))
    decided = trained.decided(plain)
    assert len(decided) == len(trained.inputs) and len(decided.unique()) > 1
    few = trained.inputs[:: len(trained.inputs) // 4]
    twin = hummingbird.simulate(trained.net, mode="exact", seed=0, example=few)
    with torch.no_grad():
        assert compared(trained, few, tensors(twin(few)))["error"] < 1  # percent, which the page promises


def test_the_page_has_every_net() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert named == set(NETS)


def test_a_net_whose_package_is_missing_is_left_out_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(hummingbird, "launch", alone)
    torch.manual_seed(0)
    trained = Trained(Signs().eval(), torch.randn(40, 4), above(0, 1), "16/64")
    nets = {"absent": lambda: folder("not_there"), "signs": lambda: trained}
    monkeypatch.setattr(tool, "NETS", nets)
    assert tool.main(["--json", str(tmp_path / "rows.json")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == [
        line for line in PAGE.splitlines() if line.startswith(("| net | input", "|---|---|---|---:"))
    ]
    assert [line.split(" | ")[0] for line in printed[2:4]] == ["| `signs`"] * 2
    assert printed[4].startswith("absent did not run: ") and "not_there is not installed" in printed[4]


def test_a_wrong_name_is_an_error_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["rnet", "wnet"]) == 1
    assert "there is no net wnet" in capsys.readouterr().err
    assert tool.main(["--list"]) == 0 and capsys.readouterr().out.split() == list(NETS)
