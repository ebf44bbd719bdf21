"""The benchmark of material that two parties make: a row for each kind, and errors before it measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hummingbird.kernels.cpu import library
from scripts.bench import pair


@pytest.mark.slow
def test_a_row_for_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not library.available():
        pytest.skip("the native library is not built")
    file = tmp_path / "rows.json"
    assert pair.main(["--count", "320", "--calls", "1", "--json", str(file)]) == 0
    rows = {row["kind"]: row for row in json.loads(file.read_text())}
    assert list(rows) == ["set-up", *pair.requests(320), pair.IMAGE] and rows["masked ReLU"]["transfers"] == 31
    assert rows["masked ReLU"]["bits"] == 404 and rows["masked ReLU"]["microseconds"] > 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(rows)


@pytest.mark.slow
def test_silent_transfers_send_a_quarter(tmp_path: Path) -> None:
    """Also for kinds that are chosen by name, in three calls, of which one has an extension."""
    if not library.available():
        pytest.skip("the native library is not built")
    file = tmp_path / "rows.json"
    words = ["--count", "9600", "--calls", "3", "--transfers", "silent", "--kinds", "masked ReLU", "--json", str(file)]
    assert pair.main(words) == 0
    first, row = json.loads(file.read_text())
    assert (first["kind"], row["kind"], row["made"]) == ("set-up", "masked ReLU", "silent")
    assert first["bytes"] > 4e5 and (row["transfers"], row["bits"]) == (39, 264) and row["bytes"] < 40


@pytest.mark.slow
def test_a_row_for_a_kind_by_its_name(tmp_path: Path) -> None:
    if not library.available():
        pytest.skip("the native library is not built")
    words = ["--count", "320", "--calls", "1", "--kinds", "masked ReLU", "--json", str(tmp_path / "rows.json")]
    assert pair.main(words) == 0
    row = json.loads((tmp_path / "rows.json").read_text())[-1]
    assert (row["kind"], row["transfers"], row["bits"]) == ("masked ReLU", 31, 404) and row["microseconds"] > 0


@pytest.mark.parametrize(
    ("words", "where"),
    [(["--count", "0"], "--count"), (["--json", "absent/x.json"], "--json"), (["--kinds", "loud"], "--kinds")],
)
def test_wrong_options_are_one_error(words: list[str], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert pair.main(words) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and where in said.err and not said.out
