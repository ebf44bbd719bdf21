"""The benchmark of the plaintext twin: one row for every setting, and errors before anything is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from scripts.bench.simulate import main

SMALL = ["--model", "digits", "--batch", "4", "--repeats", "1", "--threads", "1"]


def test_a_row_for_every_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads, file = torch.get_num_threads(), tmp_path / "rows.json"
    try:
        assert main([*SMALL, "--windows", "20:12", "64:0", "--json", str(file)]) == 0
    finally:
        torch.set_num_threads(threads)
    rows = json.loads(file.read_text())
    settings = {(row["type"], row["mode"], row["window"]) for row in rows}
    assert len(rows) == len(settings) == 8 and {row["threads"] for row in rows} == {1}
    assert all(row["ratio"] == pytest.approx(row["twin_milliseconds"] / row["net_milliseconds"]) for row in rows)
    assert len(capsys.readouterr().out.splitlines()) == 2 + 2 + 8


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["--windows", "20"], "20"),
        (["--batch", "0"], "--batch"),
        (["--repeats", "0"], "--repeats"),
        (["--threads", "0"], "--threads"),
        (["--json", "absent/rows.json"], "--json"),
    ],
)
def test_wrong_options_are_one_error(words: list[str], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, *words]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and where in said.err and not said.out
