"""docs/capacity.md is what its program writes: sums to the letter, queues within what their draws allow."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from hummingbird import convert_model
from hummingbird.capacity.nets import measure
from hummingbird.capacity.profile import Profile
from hummingbird.commands.program import machine
from scripts.papers import asplos, asplos_tables
from scripts.papers.asplos import WINDOWS, masked_section
from scripts.papers.asplos_tables import SUMS, markdown
from scripts.papers.figures import number, table
from tests.support.covering import every

PAGE = asplos.OUT.read_text(encoding="utf-8")


def test_sums_on_the_page_are_the_model_s() -> None:
    for make in (*SUMS, asplos.composed_section):
        assert markdown(make()) in PAGE, f"{make.__name__}: run python -m scripts.papers.asplos"


@pytest.mark.parametrize("make", every(len(asplos_tables.QUEUES), asplos_tables.QUEUES))
def test_queues_on_the_page_are_the_model_s(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asplos_tables, "RUNS", 100)
    section = make()
    committed = table(asplos.OUT, f"## {section.title}")
    assert [row[0] for row in section.rows] == list(committed)
    for row in section.rows:
        for head, cell in zip(section.head, row, strict=True):
            if cell in ("grows", "") or head.endswith("p99"):
                continue
            assert re.sub(r"[\d.,]", "", committed[row[0]][head]) == re.sub(r"[\d.,]", "", cell)
            if "mean" in head or "1 per" in head:  # minutes
                assert number(committed[row[0]][head]) == pytest.approx(number(cell), rel=0.25)
            else:
                assert committed[row[0]][head] == cell


def test_the_program_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asplos_tables, "RUNS", 2)
    out = tmp_path / "page.md"
    assert asplos.main(["--out", str(out)]) == 0 and "wrote" in capsys.readouterr().out
    headings = re.findall(r"^## .*", out.read_text(), re.MULTILINE)
    assert headings == re.findall(r"^## .*", PAGE, re.MULTILINE)[: len(headings)] and len(headings) == 11
    assert asplos.main(["--out", str(out), "--profile", str(tmp_path / "none.json")]) == 1
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.slow
def test_the_same_nets_by_masked() -> None:
    """On a profile of two small nets: its seconds are not looked at, tokens and rounds are."""
    rows = []
    for width in (2, 4):
        head = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(width * 16, 3))
        net = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), head).eval()
        rows += [measure(f"{width}", convert_model(net, bits), (1, 3, 8, 8), repeats=2) for bits in WINDOWS.values()]
    section = masked_section(Profile(machine(), 1, tuple(rows)), ["cifar10/resnet32"])
    exact, window = section.rows
    assert exact[:2] == ("ResNet-32, CIFAR", "exact") and window[1] == "[20:12)"
    for row in section.rows:
        assert number(row[3]) == pytest.approx(16_000 / number(row[2]), rel=0.01) and number(row[6]) > 0
    assert "composed of its layers" in section.below
