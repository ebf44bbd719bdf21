"""HummingBird as published: right on every window, in the rounds and bits of its price."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from hummingbird.bits import BitWindow
from hummingbird.mpc.protocols import gmw
from scripts.bench.published import price
from scripts.program import ROOT
from tests.support import python
from tests.support.patience import PROGRAM


@pytest.mark.parametrize("width", range(2, 65))
def test_the_price_is_the_papers_but_for_whole_words(width: int) -> None:
    count = 64 * 7
    cost = price(count, BitWindow(width, 0))
    assert cost.bits == count * gmw.published_bits(width)
    assert cost.rounds == (width - 1).bit_length() + 3
    odd = price(5, BitWindow(width, 0))
    assert 5 * gmw.published_bits(width) <= odd.bits < 5 * gmw.published_bits(width) + 64 * odd.rounds


def test_relus_on_windows(tmp_path: Path) -> None:
    """Two parties, values below 2^4 of 16 bits of fraction: an error of at most 2^m units; counted bits are priced."""
    windows, count = ["64:0", "21:0", "21:9", "22:20", "27:14"], 1001
    options = ["--contestants", "published", "--windows", *windows, "--count", str(count), "--repeats", "1"]
    command = [sys.executable, "-m", "scripts.bench.relu", *options, "--json", str(tmp_path / "rows.json")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = python.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    for text, row in zip(windows, rows, strict=True):
        k, m = map(int, text.split(":"))
        cost = price(count, BitWindow(k, m))
        assert row["rounds"] == cost.rounds and row["online_bits_per_relu"] == cost.bits / count
        assert 2.0 ** (m - 17) / 9 < row["largest_error"] <= 2.0 ** max(m - 16, -15), text
