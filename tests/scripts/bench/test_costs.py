"""The sheet of costs: bytes are those of the plan, money is linear in prices, and both halves add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.capacity.service import Prices
from hummingbird.cost import FREE, asking
from hummingbird.hybrid import make_plan, prices
from hummingbird.serving.plan import input_bits, result_bits
from models import trained
from scripts.bench import costs
from scripts.bench.costs import CASES, GARBLED, THOUSAND, WAYS, Case, Way, cost_row, main
from scripts.bench.hybrid_nets import Served
from scripts.program import ROOT

SHAPE, RESULTS = (1, 2, 8, 8), 5


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, RESULTS)).eval()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_row_has_the_bytes_of_the_plan(way: Way) -> None:
    private = hummingbird.convert_model(net(), BitWindow(20, 12), **way.options)
    row = cost_row("a net", way, private, SHAPE, 1, Prices(core_hour=3.6, gb_sent=2.0))
    online = sum((step.cost for step in private.costs(SHAPE, 2)), FREE).bits  # of a party
    _, back = asking(2, 128, input_bits(private.plan), RESULTS, result_bits(private.plan))
    assert row["online_gigabytes"] * 1e9 / THOUSAND == pytest.approx(2 * online / 8 + back)
    assert row["offline_gigabytes"] > 0 and row["offline_core_hours"] > 0 and row["online_core_hours"] > 0
    assert row["cores_dollars"] == pytest.approx(3.6 * (row["offline_core_hours"] + row["online_core_hours"]))
    assert row["sent_dollars"] == pytest.approx(2 * (row["offline_gigabytes"] + row["online_gigabytes"]))
    assert row["dollars"] == pytest.approx(row["cores_dollars"] + row["sent_dollars"])


def test_energy_is_that_of_the_processor_or_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_RAPL", tmp_path)
    assert costs.package_joules() is None
    (tmp_path / "energy_uj").write_text("2500000\n")
    assert costs.package_joules() == 2.5
    readings = [1.0, 31.0]
    monkeypatch.setattr(costs, "package_joules", lambda: readings.pop(0))
    private = hummingbird.convert_model(net(), BitWindow(20, 12))
    row = cost_row("a net", WAYS[0], private, SHAPE, 1, Prices())
    hours = row["offline_core_hours"] + row["online_core_hours"]
    assert row["kilojoules"] == pytest.approx(3.6 * hours * row["watts_per_core"]) and row["watts_per_core"] > 0


@pytest.mark.slow
def test_the_sheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shipped = [str(ROOT / f"checkpoints/impala-mnist{ending}") for ending in (".pt", ".bits.json")]
    served = Served(["models:trained", "impala-mnist", "10", shipped[0]], (1, 28, 28), BitConfig.load(shipped[1]))
    options = {"bits": BitWindow(20, 12)}
    monkeypatch.setitem(CASES, "resnet18", Case("a net", net, lambda plain: options, SHAPE, 1, lambda: served))
    words = ["--nets", "resnet18", "--priced", "2026-01-01", "--json", str(tmp_path / "rows.json")]
    assert main([*words, "--prices", "core-hour=0.05", "gb-sent=0.1"]) == 0
    rows, text = json.loads((tmp_path / "rows.json").read_text()), capsys.readouterr().out
    assert [row["material"] for row in rows] == [*(way.name for way in WAYS), GARBLED]
    assert "prices of 2026-01-01: $0.05" in text
    plan = make_plan(trained("impala-mnist", 10, shipped[0]), (1, 28, 28), BitConfig.load(shipped[1])).plan
    expected = sum({**prices.offline(plan), **prices.call()}.values()), sum(prices.online(plan).values())
    assert rows[-1]["offline_gigabytes"] * 1e9 / THOUSAND == pytest.approx(expected[0])
    assert rows[-1]["online_gigabytes"] * 1e9 / THOUSAND == pytest.approx(expected[1])
    assert rows[-1]["offline_core_hours"] > 0 and rows[-1]["online_core_hours"] > 0
    assert all(row["cpu"] and row["priced"] == "2026-01-01" and row["images"] == THOUSAND for row in rows)
    for wrong, said in (("core-hour=much", "is no price"), ("gb-month=1", "a price of storage")):
        assert main([*words, "--prices", wrong]) == 1 and said in capsys.readouterr().err
