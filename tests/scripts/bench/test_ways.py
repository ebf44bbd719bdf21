"""The benchmark that sets all ways beside each other: figures, reasons of those that refuse a net, and options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hummingbird.kernels.cpu import library
from scripts.bench import ways


@pytest.mark.slow
def test_a_row_for_each_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two parties, whose bits are those of the price, and a way that does not take the net."""
    if not library.available():
        pytest.skip("the native library is not built")
    file = tmp_path / "rows.json"
    assert ways.main(["--only", "bert-tiny", "--ways", "dealer", "pair:silent", "hybrid", "--json", str(file)]) == 0
    dealt, made, refused = json.loads(file.read_text())
    assert dealt["same_answers"] == made["same_answers"] == 1 and dealt["seconds"] > 0
    assert 2 * dealt["megabytes"] < made["megabytes"] < 200 and dealt["megabytes"] > dealt["online_megabytes"] > 1
    assert refused["refused"].startswith("norm.norm: norm is not supported") and "megabytes" not in refused
    assert "refused: norm.norm: norm is not supported on garbled gates" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--only", "vgg"], ["--ways", "trust"]])
def test_unknown_names_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ways.main(words)
    assert "invalid choice" in capsys.readouterr().err


def test_a_file_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert ways.main(["--json", "absent/x.json"]) == 1
    assert "--json" in capsys.readouterr().err
