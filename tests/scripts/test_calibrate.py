"""The program that measures this machine: CrypTen between two parties, whose messages have the price; bad options."""

from __future__ import annotations

from pathlib import Path

import pytest

from hummingbird import convert_model
from hummingbird.capacity import load_profile, shipped
from hummingbird.errors import HummingbirdError
from models import get_model
from scripts import calibrate, calibrate_crypten

NET = ["--model", "models:get_model", "digits", "10", "--input", "1x1x8x8"]


@pytest.mark.slow
def test_crypten_is_measured_and_sends_its_price(tmp_path: Path) -> None:
    """A worker that counts other bits or rounds than the price ends with an error, and so does the program."""
    path = tmp_path / "profile.json"
    assert calibrate.main(["--only", "--protocol", "crypten", "--repeats", "2", "--json", str(path), *NET]) == 0
    (row,) = load_profile(path).rows
    private = convert_model(get_model("digits", 10).eval())
    assert row.kind == "crypten" and row.digest == shipped.digest(private, (1, 1, 8, 8))
    assert row.amounts == shipped.amounts(private, (1, 1, 8, 8))
    assert {part: len(samples) for part, samples in row.seconds.items()} == {"compute": 2, "triples": 2}


def test_another_count_than_the_price_is_an_error() -> None:
    with pytest.raises(HummingbirdError, match=r"\(9, 1856\) rounds and bits, the price is \(9, 1855\)"):
        calibrate_crypten.check("it", (9, 1856), (9, 1855))


BAD = {
    "no file": (["--only", "gc"], "no file to write"),
    "a net without a shape": (["--json", "x.json", *NET[:4]], "a net without a shape"),
    "ciphertexts of no net": (["--json", "x.json", "--protocol", "he"], "--protocol he without a net"),
    "a mode of no ciphertexts": (["--json", "x.json", "--mode", "polynomial"], "--mode without --protocol he"),
    "windows on ciphertexts": (
        ["--only", "--json", "x.json", *NET, "--protocol", "he", "--bits", "b.json"],
        "--bits beside a net on ciphertexts",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options(
    case: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words, says = BAD[case]
    monkeypatch.chdir(tmp_path)
    assert calibrate.main(words) == 1
    assert says in capsys.readouterr().err and not list(tmp_path.iterdir())
