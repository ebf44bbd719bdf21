"""The table of an image's time: a real run of two parties, and sums that are right."""

from __future__ import annotations

import pytest

from hummingbird.channel.meter import MeterRow
from scripts.bench import layer_times
from scripts.bench.layer_times import by_stage, markdown, quickest


def row(layer: str, window: str, *seconds: float) -> MeterRow:
    return MeterRow(
        layer, window=window, compute_seconds=seconds[0], wait_seconds=seconds[1], offline_seconds=seconds[2]
    )


def test_rows_are_summed_by_stage() -> None:
    rows = [
        row("conv1", "", 0.002, 0, 0),
        row("relu1", "[20:12)", 0.004, 0.008, 0.016),
        row("layer1.0.conv1", "", 0.032, 0, 0),
        row("layer1.0.relu1", "[20:12)", 0.064, 0.5, 1),
        row("layer1.1.relu1", "[20:12)", 0.064, 0.5, 1),
        row("fc", "", 0.001, 0, 0),
        row("fc.rounded", "", 0.001, 0, 0),
    ]
    found = by_stage(rows, 2)
    assert found == {
        "relu1": [2, 4, 8],
        "layer1: linear": [16, 0, 0],
        "layer1: ReLUs": [64, 500, 1000],
        "other layers": [2, 0, 0],
    }
    lines = markdown(found).splitlines()
    assert lines[0] == "| stage | computes | waits for party 1 | waits for the dealer |" and len(lines) == 7
    assert lines[-1] == "| all | 84.00 | 504.00 | 1008.00 |"
    assert quickest([rows, rows[:3], rows[2:]]) == rows[:3]


@pytest.mark.slow
def test_a_run_of_two_parties(capsys: pytest.CaptureFixture[str]) -> None:
    assert layer_times.main(["--model", "digits", "--batches", "2", "--batch", "3"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    names = [line.split(" | ")[0] for line in lines]
    assert names == ["| stage", "| ---", "| relu1", "| relu2", "| relu3", "| other layers", "| all"]
    figures = [[float(cell) for cell in line.strip("| ").split(" | ")[1:]] for line in lines[2:]]
    for column in zip(*figures, strict=True):
        assert sum(column[:-1]) == pytest.approx(column[-1], abs=0.03) and column[-1] >= 0


def test_no_batches_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert layer_times.main(["--batches", "0"]) == 1
    assert "error: no images (at --batch, --batches)" in capsys.readouterr().err
