"""The benchmark of material that two parties make: a row for each kind, and errors before it measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hummingbird.kernels.cpu import library
from scripts.bench import pair


def test_a_row_for_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not library.available():
        pytest.skip("the native library is not built")
    file = tmp_path / "rows.json"
    assert pair.main(["--count", "320", "--calls", "1", "--json", str(file)]) == 0
    rows = {row["kind"]: row for row in json.loads(file.read_text())}
    assert list(rows) == list(pair.requests(320)) and rows["masked ReLU"]["transfers"] == 31
    assert rows["masked ReLU"]["bits"] == 404 and rows["masked ReLU"]["microseconds"] > 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(rows)


@pytest.mark.parametrize(("words", "where"), [(["--count", "0"], "--count"), (["--json", "absent/x.json"], "--json")])
def test_wrong_options_are_one_error(words: list[str], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert pair.main(words) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and where in said.err and not said.out
