"""The benchmark of lookups over gRPC: a row for every window and load, and errors before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.bench.pir_service import main


@pytest.mark.slow
def test_a_row_for_every_window_and_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    small = ["--rows", "2000", "--dim", "4", "--loads", "40", "--seconds", "1", "--windows", "192:20"]
    assert main([*small, "--json", str(file)]) == 0
    (row,) = json.loads(file.read_text())
    assert row["errors"] == 0 and row["answered_per_second"] > 0 and row["p50_ms"] > 0 and row["mean_batch"] >= 1
    assert "192:20" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["--rows", "0"], "--rows"),
        (["--loads", "0"], "--loads"),
        (["--windows", "192"], "--windows"),
        (["--json", "absent/rows.json"], "--json"),
    ],
)
def test_wrong_options_are_one_error(words: list[str], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and where in said.err and not said.out
