"""The meter: who is charged, nested meters, and what its table and its JSON say."""

from __future__ import annotations

import json
from dataclasses import fields
from types import SimpleNamespace

import pytest

from hummingbird.channel import meter
from hummingbird.channel.meter import OUTSIDE, Meter, MeterRow
from hummingbird.cost import FREE, Cost


def test_counts_go_to_the_layer_they_were_made_in() -> None:
    with meter.meter() as m:
        meter.count(bits=8, rounds=1)
        with meter.layer("a", "relu", Cost(2, 100, 50), window="[8:0)", elements=7):
            assert meter.current_layer() == "a"
            meter.count(bits=100, rounds=2, offline_bits=50)
            with meter.layer("a.inner", "select", Cost(1, 5, 0)):
                assert meter.current_layer() == "a.inner"
                meter.count(bits=5, rounds=1)
            meter.count(bits=1)
        meter.count(bits=16)
    assert meter.current_layer() == ""
    assert {name: (row.bits_sent, row.rounds) for name, row in m.rows.items()} == {
        OUTSIDE: (24, 1),
        "a": (101, 2),
        "a.inner": (5, 1),
    }
    a = m.rows["a"]
    assert (a.kind, a.window, a.calls, a.elements) == ("relu", "[8:0)", 1, 7)
    assert (a.rounds_predicted, a.bits_predicted, a.offline_bits_predicted, a.offline_bits) == (2, 100, 50, 50)


def test_calls_of_a_layer_add_up() -> None:
    with meter.meter() as m:
        for _ in range(3):
            with meter.layer("relu", "relu", Cost(1, 10, 2), elements=4):
                meter.count(bits=10, rounds=1, offline_bits=2)
    row = m.rows["relu"]
    assert (row.calls, row.elements, row.rounds, row.bits_sent, row.bits_predicted) == (3, 12, 3, 30, 30)
    assert (row.rounds_predicted, row.offline_bits, row.offline_bits_predicted) == (3, 6, 6)


def test_the_total_is_the_sum_of_all_rows() -> None:
    with meter.meter() as m:
        for number in range(4):
            with meter.layer(f"l{number}", "k", Cost(number, 10 * number, number), elements=1):
                meter.count(bits=3 * number, rounds=number, waited=0.5, offline_bits=number, offline_seconds=0.25)
    total = m.total
    for item in fields(MeterRow):
        values = [getattr(row, item.name) for row in m.rows.values()]
        if all(isinstance(value, (int, float)) for value in values):
            assert getattr(total, item.name) == pytest.approx(sum(values)), item.name
    assert (total.layer, total.bits_sent, total.wait_seconds, total.offline_seconds) == ("total", 18, 2.0, 1.0)


def test_nested_meters_each_see_what_happens_while_they_are_open() -> None:
    with meter.meter() as outer:
        meter.count(bits=1)
        with meter.meter() as inner:
            meter.count(bits=10)
        meter.count(bits=100)
    meter.count(bits=1000)
    assert outer.total.bits_sent == 111 and inner.total.bits_sent == 10


def test_nested_meters_with_equal_rows_are_still_two() -> None:
    with meter.meter() as outer:
        with meter.meter() as inner:
            meter.count(bits=8)
        meter.count(bits=8)
    assert outer.total.bits_sent == 16 and inner.total.bits_sent == 8


def test_a_meter_opened_inside_a_layer() -> None:
    with meter.meter() as outer, meter.layer("a", "relu", Cost(1, 8)):
        with meter.meter() as inner:
            meter.count(bits=8, rounds=1)
    assert outer.rows["a"].bits_sent == 8 and inner.rows["a"].bits_sent == 8
    assert outer.rows["a"].calls == 1


def test_an_error_closes_meters_and_layers() -> None:
    with pytest.raises(KeyError), meter.meter() as m, meter.layer("a", "relu", FREE):
        raise KeyError
    assert m.rows["a"].calls == 1 and meter.current_layer() == ""
    meter.count(bits=8)
    assert m.total.bits_sent == 0


def test_without_a_meter_nothing_is_kept() -> None:
    with meter.layer("a", "relu", FREE):
        meter.count(bits=8)
    with meter.meter() as m:
        pass
    assert m.rows == {} and m.total == MeterRow("total")


def test_time_is_computed_waited_or_spent_on_the_dealer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([7.0, 10.0, 18.0, 20.0])  # when the block and its layer begin, and when they end
    monkeypatch.setattr(meter, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    with meter.meter() as m, meter.layer("a", "relu", FREE):
        meter.count(waited=2.0, offline_seconds=1.0)
    row = m.rows["a"]
    assert (row.wait_seconds, row.offline_seconds, row.compute_seconds) == (2.0, 1.0, 5.0)
    assert m.seconds == 13.0


def test_json_is_a_flat_list_with_units_in_the_keys() -> None:
    with meter.meter() as m:
        with meter.layer("a", "relu", Cost(1, 8, 4), window="[8:0)"):
            meter.count(bits=8, rounds=1)
        meter.count(bits=1)
    rows = json.loads(m.to_json())
    assert [row["layer"] for row in rows] == ["a", OUTSIDE]
    assert set(rows[0]) == {item.name for item in fields(MeterRow)}
    assert all(isinstance(value, (str, int, float)) for row in rows for value in row.values())
    assert rows[0]["bits_sent"] == 8 and rows[0]["window"] == "[8:0)"
    assert {"compute_seconds", "bits_sent", "offline_bits"} <= set(rows[0])


def test_the_table_shows_layers_that_send_and_sums_up_the_rest() -> None:
    with meter.meter() as m:
        with meter.layer("conv", "conv", FREE):
            pass
        with meter.layer("flatten", "flatten", FREE):
            pass
        with meter.layer("relu", "relu", Cost(3, 12_345_600, 8000), window="[20:12)"):
            meter.count(bits=12_345_600, rounds=3, offline_bits=8000, waited=0.25)
    text = m.table()
    lines = text.splitlines()
    assert lines[0].split()[:3] == ["layer", "kind", "window"]
    (relu,) = [line for line in lines if line.startswith("relu")]
    assert relu.split()[:7] == ["relu", "relu", "[20:12)", "3", "1,543.2", "1,543.2", "1.0"]
    assert "0.250" in relu
    assert sum(line.startswith("layers without messages") for line in lines) == 1
    assert not any(line.startswith(("conv", "flatten")) for line in lines)
    assert lines[-1].split()[:2] == ["total", "3"] and set(lines[-2]) == {"-"}
    assert len({len(line) for line in (lines[1], lines[-2])}) == 1
    short = m.table(every_layer=False).splitlines()
    assert not any(line.startswith("relu") for line in short) and short[-1].split() == lines[-1].split()


def test_lanes_add_up_and_the_slowest_tells_the_time() -> None:
    """Lane 2 had no image. What lane 1 alone has seen is in the sum too."""
    quick, slow, idle = (Meter(seconds=seconds) for seconds in (2.0, 3.0, 0.1))
    for at, m in ((1, quick), (2, slow)):
        m.rows["relu"] = MeterRow(
            layer="relu",
            kind="relu",
            window="[8:0)",
            calls=at,
            elements=10 * at,
            rounds_predicted=2 * at,
            rounds=2 * at,
            bits_predicted=80 * at,
            bits_sent=80 * at,
            offline_bits_predicted=40 * at,
            offline_bits=40 * at,
            compute_seconds=0.5 * at,
            wait_seconds=0.25 * at,
            offline_seconds=0.125 * at,
            expanding_seconds=4.0 / at,
            dealer_seconds=1.0 * at,
        )
    slow.rows["late"] = MeterRow("late", bits_sent=8, wait_seconds=1.0)
    quick.rows[OUTSIDE] = MeterRow(OUTSIDE, bits_sent=16, wait_seconds=9.0)
    m = Meter.over_lanes([quick, slow, idle])
    assert m.rows["relu"] == MeterRow(
        layer="relu",
        kind="relu",
        window="[8:0)",
        calls=3,
        elements=30,
        rounds_predicted=6,
        rounds=6,
        bits_predicted=240,
        bits_sent=240,
        offline_bits_predicted=120,
        offline_bits=120,
        compute_seconds=1.0,
        wait_seconds=0.5,
        offline_seconds=0.25,
        expanding_seconds=2.0,
        dealer_seconds=3.0,
    )
    assert m.rows["late"] == slow.rows["late"] and m.rows[OUTSIDE] == MeterRow(OUTSIDE, bits_sent=16)
    assert m.seconds == 3.0 and m.total.bits_sent == 264
    first, head, *_ = m.table().splitlines()
    assert first == "3 lanes: rounds, kB and dealer s are sums; other seconds: lane 1, the slowest"
    assert head.startswith("layer")


def test_an_empty_table_is_still_a_table() -> None:
    with meter.meter() as m:
        pass
    assert m.table().splitlines()[-1].startswith("total")
