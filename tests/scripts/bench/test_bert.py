"""The measurement of BERT-base, with one block in place of twelve: from a store, and with a dealer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.bench import bert


@pytest.mark.slow
def test_a_block_runs_from_a_store_and_with_a_dealer(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    words = ["--layers", "1", "--repeats", "1", "--folder", str(tmp_path), "--json", str(rows)]
    assert bert.main(["--material", "stored", "streamed", *words]) in (0, None)
    found = json.loads(rows.read_text())
    assert {row["material"] for row in found} == {"stored", "streamed"} and len(found) == 4
    assert all(row["error_percent"] < 1 and row["rounds"] > 0 for row in found)
