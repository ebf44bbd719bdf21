"""The benchmark of a user behind a proxy: answers of the net, and bytes as predicted for each way to send images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hummingbird.hybrid.users import INPUTS
from models import get_model, load_checkpoint
from scripts.bench import proxy
from scripts.program import ROOT


@pytest.mark.slow
def test_rows_of_a_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random images, labelled by the plain net: all are right, whichever way they are sent."""
    images = torch.rand(2, 1, 28, 28)
    net = load_checkpoint(ROOT / "checkpoints/impala-mnist.pt", get_model("impala-mnist", 10)).eval()
    with torch.no_grad():
        labels = net(images).argmax(1)
    monkeypatch.setattr(proxy, "load", lambda *_: (images, labels))
    assert proxy.main(["--nets", "impala-mnist", "--images", "2", "--json", str(tmp_path / "rows.json")]) == 0
    masked, encrypted = json.loads((tmp_path / "rows.json").read_text())
    assert [masked["input"], encrypted["input"]] == list(INPUTS)
    for row in (masked, encrypted):
        assert row["right"] == row["images"] == 2 and 0 < row["user_cpu_seconds"] <= row["seconds"]
    assert (
        masked["megabytes_sent"] < encrypted["megabytes_sent"]
        and masked["megabytes_once"] < encrypted["megabytes_once"]
    )


def test_no_images_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert proxy.main(["--images", "0"]) == 1
    assert "error: at least one (at --images)" in capsys.readouterr().err
