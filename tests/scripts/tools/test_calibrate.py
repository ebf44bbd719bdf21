"""The program that measures this machine: CrypTen between two parties, whose messages have the price; bad options."""

from __future__ import annotations

from pathlib import Path

import pytest

from hummingbird import convert_model
from hummingbird.capacity import load_profile, shipped
from hummingbird.capacity.profile import Measurement, Profile
from hummingbird.commands.program import machine
from hummingbird.errors import HummingbirdError
from models import get_model
from scripts.tools import calibrate

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
        calibrate.check_price("it", (9, 1856), (9, 1855))


@pytest.mark.parametrize(("busy", "above"), [((0.5, 2.0), "1 of 2 are above (a ReLU)"), ((1.0, 1.01), "")])
def test_a_spread_that_is_no_measurement_is_named(busy: tuple[float, ...], above: str, tmp_path: Path) -> None:
    """By the program that measures, and by every plan that rests on the samples; services vary by themselves."""
    rows = [
        Measurement("mpc masked", "a ReLU", "a", {"values": 1.0}, {"compute": (1.0, *busy, 1.0, *busy)}),
        Measurement("mpc masked", "a layer", "b", {"values": 2.0}, {"compute": (2.0, 2.1, 2.0, 9.0, 2.0, 2.0)}),
        Measurement("serve", "digits", "c", {"requests": 1.0}, {"alone": (1.0, 9.0, 1.0, 9.0)}),
    ]
    made = Profile(machine(), 1, tuple(rows))
    assert above in calibrate.judged(made) and ("hint:" in calibrate.judged(made)) == bool(above)
    note = made.origin(made.seconds("mpc masked", "compute", {"values": 1.0}, "a"))
    assert ("which is no measurement" in note) == bool(above)
    steady = made.origin(made.seconds("mpc masked", "compute", {"values": 2.0}, "b"))
    assert "no measurement" not in steady  # one sample of six


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
