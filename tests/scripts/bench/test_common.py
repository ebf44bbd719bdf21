"""The benchmarks: what they compute from a run, what they write, and that they run as a user runs them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hummingbird import cost
from hummingbird.channel.meter import Meter, MeterRow
from hummingbird.cost import Cost
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.mpc.protocols.masked import relu_price
from scripts.bench import common, link, relu, resnet
from scripts.bench.common import Unit, Work
from scripts.bench.contest import BESIDE, PARTS, Sample, window_of
from scripts.bench.link import Link, places
from scripts.bench.party import launch
from scripts.papers import plot
from tests.support import python
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM

SAMPLE = Sample(
    seconds=1.0,
    linear_seconds=0.3,
    relu_seconds=0.2,
    rest_seconds=0.05,
    wire_seconds=0.4,
    offline_seconds=0.05,
    expanding_seconds=0.5,
    dealer_seconds=0.7,
    online_bits=10**7,
    relu_bits=9 * 10**6,
    offline_bits=4 * 10**7,
    rounds=20,
)


def parts(sample: Sample) -> float:
    return sum(getattr(sample, f"{part}_seconds") for part in PARTS)


# From a run to a row --------------------------------------------------------------------------------------------------


def test_a_computed_link_replaces_the_waiting_and_nothing_else() -> None:
    """20 one-way trips of 5 ms and 10^7 bits at 10^8 bits per second: 0.2 s."""
    there = SAMPLE.over(Link(1e8, 0.01))
    assert there.wire_seconds == pytest.approx(0.2) and there.seconds == pytest.approx(1.0 - 0.4 + 0.2)
    assert parts(there) == pytest.approx(there.seconds)
    far = SAMPLE.over(Link(1e8, 0.01), far=True)  # and 4 * 10^7 bits from the dealer
    assert parts(far) == pytest.approx(far.seconds) and far.seconds == pytest.approx(there.seconds + 0.4)
    assert replace(there, wire_seconds=0.4, seconds=1.0) == SAMPLE


def test_a_computed_delay_adds_half_a_round_trip_for_every_round() -> None:
    later = SAMPLE.delayed(0.1)
    assert later.seconds == pytest.approx(2.0) and later.wire_seconds == pytest.approx(1.4)
    assert parts(later) == pytest.approx(later.seconds)


def test_a_sample_is_what_the_meter_saw() -> None:
    m = Meter()
    for name, kind, compute, bits in (
        ("conv1", "conv", 0.3, 0),
        ("relu", "relu", 0.2, 80),
        ("opening", "open", 0.1, 64),
    ):
        rounds = int(bits > 0)
        m.rows[name] = MeterRow(name, kind, rounds=rounds, rounds_predicted=rounds, bits_sent=bits, bits_predicted=bits)
        m.rows[name].compute_seconds, m.rows[name].wait_seconds = compute, 0.1
    m.rows["relu"].offline_seconds, m.rows["relu"].dealer_seconds = 0.05, 0.4
    m.rows["relu"].offline_bits = m.rows["relu"].offline_bits_predicted = 33
    sample = Sample.of(1.5, m)
    assert (sample.linear_seconds, sample.relu_seconds, sample.dealer_seconds) == (0.3, 0.2, 0.4)
    assert (sample.online_bits, sample.relu_bits, sample.offline_bits, sample.rounds) == (144, 80, 33, 2)
    assert parts(sample) == pytest.approx(1.5) and sample.wire_seconds == pytest.approx(0.3)

    m.rows["relu"].offline_bits = 0  # no dealer: CrypTen's triples are priced only
    assert Sample.of(1.5, m).offline_bits == 33
    m.rows["relu"].offline_bits = 32
    with pytest.raises(HummingbirdError, match="32 offline bits, predicted 33"):
        Sample.of(1.5, m)
    m.rows["relu"].offline_bits, m.rows["relu"].bits_sent = 33, 81
    with pytest.raises(HummingbirdError, match="the price was"):
        Sample.of(1.5, m)


@pytest.mark.parametrize(
    ("unit", "time", "size"),
    [
        (Unit("relu", 10**6, "microseconds", "bits"), 1.0, 10.0),
        (Unit("image", 8, "seconds", "megabytes"), 0.125, 0.15625),
    ],
)
def test_figures_are_per_unit(unit: Unit, time: float, size: float) -> None:
    figures = unit.figures(SAMPLE)
    assert figures[f"{unit.time}_per_{unit.name}"] == pytest.approx(time)
    assert figures[f"online_{unit.time}_per_{unit.name}"] == pytest.approx(0.95 * time)
    assert sum(figures[f"{part}_{unit.time}_per_{unit.name}"] for part in PARTS) == pytest.approx(time)
    assert figures[f"dealer_{unit.time}_per_{unit.name}"] == pytest.approx(0.7 * time)
    assert figures[f"online_{unit.size}_per_{unit.name}"] == pytest.approx(size)
    assert figures[f"offline_{unit.size}_per_{unit.name}"] == pytest.approx(4 * size)
    assert figures[f"all_{unit.size}_per_{unit.name}"] == pytest.approx(6 * size)


@pytest.mark.parametrize("text", ["", "20", "20:", ":12", "20-12", "a:b"])
def test_what_is_no_window(text: str) -> None:
    with pytest.raises(InputError, match="is not a window"):
        window_of(text)


UNIT = Unit("relu", 1000, "microseconds", "bits")


def compared(monkeypatch: pytest.MonkeyPatch, why: str, no_netem: str, *links: str) -> list[dict[str, Any]]:
    """Rows where links can be made or not, of a run that takes 1 s with CrypTen and half of everything with gmw."""
    half = {key: value / 2 if isinstance(value, float) else value // 2 for key, value in asdict(SAMPLE).items()}
    asked = []

    def contest(there: Link, *_: Any) -> list[dict[str, Any]]:
        asked.append(there)
        both = {"window": "[64:0)", "largest_error": 0.0}
        first = {"protocol": "CrypTen 0.4.1", "material": "drawn", "dealer": None, "sample": asdict(SAMPLE)}
        other = {"protocol": "gmw", "material": "streamed", "dealer": "near", "sample": half}
        return [{"aim": None, **run, **both} for run in (first, other)]

    monkeypatch.setattr(common, "_contest", contest)
    monkeypatch.setattr(
        common, "obstacle", lambda there: no_netem if there.round_trip_seconds else why and there != Link() and why
    )
    args = argparse.Namespace(links=links, rtt=[0.0, 20.0], repeats=3, device="cpu", dealers=["far"])
    rows = common.compare(args, Work("none", [], [], ()), UNIT, {"elements": 1000})
    assert len(asked) == len(set(asked))  # nothing is run twice
    return rows


def test_rows_where_no_link_can_be_made(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = compared(monkeypatch, "not root", "no netem", "loopback", "352mbit")
    assert [row["times"] for row in rows] == ["measured"] * 2 + ["round trips computed"] * 2 + ["computed"] * 4
    assert "352 Mb/s is computed: not root" in capsys.readouterr().err
    assert [row["link"] for row in rows[::2]] == ["loopback", "loopback + 20 ms", "352 Mb/s", "352 Mb/s + 20 ms"]
    wire = Cost(20, 10**7).seconds(352e6, 0.02)
    assert rows[6]["wire_microseconds_per_relu"] == pytest.approx(1e3 * wire)
    assert rows[6]["microseconds_per_relu"] == pytest.approx(1e3 * (0.6 + wire))
    dealt = 2e7 / 352e6  # half of the sample's
    assert rows[7]["dealer"] == "far" and rows[7]["offline_microseconds_per_relu"] == pytest.approx(25 + 1e3 * dealt)
    assert rows[6]["link_megabits_per_second"] == 352 and rows[6]["round_trip_milliseconds"] == 20


def test_rows_where_links_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = compared(monkeypatch, "", "no netem", "10gbit", "352mbit")
    assert [row["times"] for row in rows] == (["measured"] * 2 + ["round trips computed"] * 2) * 2
    rows = compared(monkeypatch, "", "", "10gbit")
    assert [row["times"] for row in rows] == ["measured"] * 4
    assert [row["speedup_total"] for row in rows] == [1.0, 2.0] * 2
    assert [row["fewer_relu_bits"] for row in rows] == [row["fewer_bits_in_all"] for row in rows] == [1.0, 2.0] * 2
    assert rows[0]["offline_size"] == "predicted, not dealt" and rows[1]["offline_size"] == "measured"


def test_rows_without_crypten_have_no_ratios(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = {"protocol": "masked", "material": "stored", "window": "[20:12)", "sample": asdict(SAMPLE)}
    run |= {"aim": "latency", "dealer": None}
    monkeypatch.setattr(common, "_contest", lambda *_: [run])
    args = argparse.Namespace(links=["loopback"], rtt=[0.0], repeats=3, device="cpu")
    (row,) = common.compare(args, Work("none", [], [], ()), UNIT, {})
    assert row["device"] == "cpu" and not any("speedup" in key or "fewer" in key for key in row)
    common.show("ReLUs", [row], UNIT, {})
    assert "masked" in capsys.readouterr().out


def test_the_table_has_one_part_per_link(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = compared(monkeypatch, "not root", "no netem", "loopback", "352mbit")
    common.show("1,000 ReLUs", rows, UNIT, {"largest_error": ("error", "{:.1e}")})
    out = capsys.readouterr().out
    assert "352 Mb/s + 20 ms (computed)\n" in out and "loopback (measured)\n" in out
    assert out.count("CrypTen 0.4.1  [64:0)  drawn") == 4 and "40000.00*" in out and "2.0x" in out


@pytest.mark.slow
def test_a_plot_for_every_format(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = compared(monkeypatch, "not root", "no netem", "loopback", "352mbit")
    for name, magic in (("plot.png", b"\x89PNG"), ("plot.pdf", b"%PDF")):
        plot.draw(rows, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(magic)


# Parties --------------------------------------------------------------------------------------------------------------


def test_a_party_that_fails_is_quoted() -> None:
    with (
        places(Link(), 2) as where,
        pytest.raises(HummingbirdError, match=r"party 1: (.|\n)*json\.tool: error: "),
    ):
        launch(where, "json.tool", ["--no-such-option"])


def check(rows: list[dict[str, Any]], unit: Unit) -> None:
    """Checks that hold for the rows of both benchmarks."""
    for row in rows:
        assert all(not isinstance(value, (dict, list)) for value in row.values())
        assert {"hummingbird", "torch", "cpu", "kernels", "times", "repeats", "parties", "rounds"} <= set(row)
        total = row[f"{unit.time}_per_{unit.name}"]
        assert sum(row[f"{part}_{unit.time}_per_{unit.name}"] for part in PARTS) == pytest.approx(total)
        assert all(row[f"{part}_{unit.time}_per_{unit.name}"] >= 0 for part in BESIDE)


@pytest.mark.slow
def test_bench_relu_over_a_link(tmp_path: Path) -> None:
    count, options = 20_000, ["--links", "352mbit", "--rtt", "0", "10", "--windows", "20:12", "--repeats", "1"]
    written = ["--json", str(tmp_path / "rows.json"), "--plot", str(tmp_path / "plot.png")]
    command = [sys.executable, "-m", "scripts.bench.relu", "--count", str(count), *options, *written]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = python.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    if not link.obstacle(Link(1e9)):
        assert not [name for name in link._existing() if name.startswith(link.PREFIX)]
    rows = json.loads((tmp_path / "rows.json").read_text())
    check(rows, Unit("relu", count, "microseconds", "bits"))
    crypten, first, gmw, fast, masked, *stored = rows[: len(rows) // 2]
    assert crypten["online_bits_per_relu"] == 1856 and crypten["rounds"] == 9  # as published
    assert crypten["offline_bits_per_relu"] == cost.crypten_relu(count, 2).offline_bits / count == 960
    assert 241 <= first["online_bits_per_relu"] < 241.1 and first["rounds"] == 6  # as published
    assert first["protocol"] == "published" and first["offline_bits_per_relu"] == 184  # of bits that ANDs use
    assert first["largest_error"] == pytest.approx(gmw["largest_error"], rel=0.5)
    assert 87 <= gmw["online_bits_per_relu"] < 87.1 and gmw["rounds"] == 5
    assert 22 <= fast["online_bits_per_relu"] < 22.1 and fast["rounds"] == 2
    whole = relu_price(count, 20, 12, 64, 2, whole=True)  # its input comes as it was shared: no carry is dealt
    assert fast["offline_bits_per_relu"] == whole.offline_bits / count == 428
    assert [row["dealer"] for row in (crypten, gmw, fast, masked)] == [None, "far", "far", "far"]
    # Of a dealer that streams the fewest bytes in all, of a store the fewest rounds (mpc/protocols/step_tables.py).
    assert 26 <= masked["online_bits_per_relu"] < 26.1 and masked["rounds"] == 3
    assert all(22 <= row["online_bits_per_relu"] < 22.1 and row["rounds"] == 2 for row in stored) and stored
    assert gmw["offline_bits_per_relu"] == 144
    assert crypten["largest_error"] < 2**-14 and masked["largest_error"] < 2**-3  # m = 12 of 16 bits of fraction
    for row in (gmw, fast, masked):  # the dealer's link is like the parties': its bucket is none
        assert row["microseconds_per_relu"] > row["offline_bits_per_relu"] / 352
    for row, delayed in zip(rows[: len(rows) // 2], rows[len(rows) // 2 :], strict=True):
        assert (row["round_trip_milliseconds"], delayed["round_trip_milliseconds"]) == (0, 10)
        assert row["link"] == "352 Mb/s" and row["elements"] == count
        sending = count * row["online_bits_per_relu"] / 352e6
        if row["times"] == "computed":
            assert row["wire_microseconds_per_relu"] == pytest.approx(1e6 * sending / count)
        else:  # the bucket passes 16 KiB of a round at once
            free = row["rounds"] * 8 * (16 << 10) / 352e6
            assert row["microseconds_per_relu"] * count > 1e6 * (sending - free)
    assert "offline us" in done.stdout and "352 Mb/s + 10 ms" in done.stdout
    assert all(row["material"] == "stored" for row in stored)


@pytest.mark.slow
def test_bench_resnet_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, and with two contestants only, to save half of the time."""
    chosen = [each for each in common.CONTESTANTS if each.name in ("crypten", "masked-latency")]
    monkeypatch.setattr(common, "CONTESTANTS", chosen)
    options = ["--weights", "trained", "--epochs", "1", "--batch", "1", "--repeats", "1", "--windows", "64:0"]
    monkeypatch.setattr(sys, "argv", ["bench_resnet", *options, "--json", str(tmp_path / "rows.json")])
    resnet.main()
    rows = json.loads((tmp_path / "rows.json").read_text())
    check(rows, Unit("image", 1, "seconds", "megabytes"))
    assert [row["protocol"] for row in rows] == ["CrypTen 0.4.1", "masked"]
    assert rows[0]["rounds"] == 154 and rows[0]["offline_megabytes_per_image"] == 188_416 * 960 / 8e6
    for row in rows:
        assert row["largest_logit_error_percent"] < 1.0, row
        assert row["linear_seconds_per_image"] > 0 and row["relu_seconds_per_image"] > 0
        assert row["model"] == "resnet18" and row["batch"] == 1 and row["weights"] == "trained"
    assert "trained weights" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "cuda"], "CrypTen as shipped is measured on the CPU"),
        (["--contestants", "stored", "--plot", "p.png"], "the plot shows times faster than CrypTen"),
    ],
)
def test_crypten_is_the_baseline_on_the_cpu(options: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "device_name", lambda device: device)
    monkeypatch.setattr(sys, "argv", ["bench_relu", *options])
    with pytest.raises(SystemExit, match=said):
        relu.main()


@pytest.mark.parametrize(
    "option", [["--windows", "20"], ["--links", "fast"], ["--repeats", "0"], ["--rtt", "-1"], ["--device", "tpu"]]
)
def test_what_cannot_be_run_is_an_error_and_a_hint(
    option: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_relu", *option])
    with pytest.raises(SystemExit) as ended:
        relu.main()
    assert str(ended.value.code).startswith("error: ")
