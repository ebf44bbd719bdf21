"""The bench of a table in parts on a Ray cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.bench.pir_ray import main
from tests.support.ray_clusters import clustered, play


@clustered
@pytest.mark.slow
def test_it_compares_parts_with_one_process(tmp_path: Path) -> None:
    assert "all answers are equal" in play("bench", tmp_path)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["decoder"] for row in rows] == ["xor", "sum"]
    for row in rows:
        assert (row["rows"], row["parts"], row["keys"]) == (5000, 2, 5)
        assert row["ray_work_seconds"] >= 0 and row["one_work_seconds"] >= 0 and row["ray_wall_seconds"] > 0


def test_numbers_that_cannot_be_meant(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--parts", "0"], ["--row-bytes", "6"]):
        assert main(words) == 1
        assert "a number that cannot be meant" in capsys.readouterr().err
