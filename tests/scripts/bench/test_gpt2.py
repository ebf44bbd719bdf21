"""The measurement of a word of GPT-2 small's shape, with one block in place of twelve, from a store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hummingbird.errors import InputError
from scripts.bench import gpt2


@pytest.mark.slow
def test_words_of_a_block_run_from_a_store(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    words = ["--layers", "1", "--places", "64", "--repeats", "1", "--folder", str(tmp_path), "--json", str(rows)]
    assert gpt2.main(words) in (0, None)
    found = json.loads(rows.read_text())
    assert [row["word"] for row in found] == [0, 1, 2]
    assert all(row["error_percent"] < 1 and row["rounds"] == 11 + 3 for row in found)


def test_more_words_than_places_are_refused() -> None:
    args = gpt2.parser().parse_args(["--places", "8", "--repeats", "7"])
    with pytest.raises(InputError, match="7 words"):
        gpt2.run(args)
