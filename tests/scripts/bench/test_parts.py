"""The bits of a ReLU by part: they add up to the price, and are those of the formulas for each part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hummingbird.errors import HummingbirdError
from scripts.bench import parts


@pytest.mark.slow
def test_parts_are_those_of_the_formulas(tmp_path: Path) -> None:
    count = 640
    assert parts.main(["--count", str(count), "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    shipped, *published = rows
    found = {part: shipped[f"{part}_bits_per_relu"] for part in parts.PARTS}
    assert found == {"circuit": 6 * 4 * 64, "others": 2 * 64, "b2a": 64, "product": 2 * 64}
    for row, window in zip(published, parts.WINDOWS, strict=True):
        width = window.k - window.m
        assert row["window"] == str(window) and sum(row[f"{part}_percent"] for part in parts.PARTS) == pytest.approx(
            100
        )
        assert row["circuit_bits_per_relu"] == (width - 1).bit_length() * 4 * width
        assert row["others_bits_per_relu"] == 2 * width
        assert (row["b2a_bits_per_relu"], row["product_bits_per_relu"]) == (1, 2 * 64)


def test_no_relus_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert parts.main(["--count", "0"]) == 1
    assert "error: at least one (at --count)" in capsys.readouterr().err


def test_a_part_that_is_never_called_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HummingbirdError, match="are not the price, 1856 bits"):
        parts._row("CrypTen", parts.WINDOWS[0], 1, lambda: None, [], 1856)
