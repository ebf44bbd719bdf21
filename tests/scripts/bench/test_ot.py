"""The benchmark of oblivious transfers: a row for every step and instruction set, and errors before it measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hummingbird import cost
from hummingbird.kernels import devices
from hummingbird.kernels.cpu import library
from hummingbird.ot import cot
from hummingbird.ot.silent import SETS, Extension
from scripts.bench import ot


def test_a_row_for_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not library.available():
        pytest.skip("the native library is not built")
    monkeypatch.setattr(ot, "best", lambda run: float(run() is not None))
    monkeypatch.setattr(ot, "SETS", SETS[:1])
    monkeypatch.setattr(devices, "keep_freed_memory", lambda: True)
    threads, before, file = torch.get_num_threads(), library.isa(), tmp_path / "rows.json"
    try:
        assert ot.main(["--count", "1280", "--json", str(file)]) == 0
    finally:
        torch.set_num_threads(threads)
    assert library.isa() == before
    rows = json.loads(file.read_text())
    isas = {row["instructions"] for row in rows} - {""}
    assert before in isas and len(rows) == 2 + 5 * len(isas) + 2
    octets = {row["step"]: row["bytes"] for row in rows}
    assert (octets["set-up, sender"], octets["set-up, receiver"]) == cost.COT_SET_UP
    assert octets["random choices, receiver"] * 1280 == cot.message_bytes(1280, random=True)
    assert octets["chosen choices, receiver"] * 1280 == cot.message_bytes(1280, random=False)
    size = SETS[0]
    left = size.outputs - size.base
    assert octets[f"silent, {size.trees} trees of 2^10, table of 2^16, sender"] * left == Extension(size).bits / 8
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(rows)


@pytest.mark.parametrize(("words", "where"), [(["--count", "0"], "--count"), (["--json", "absent/ot.json"], "--json")])
def test_wrong_options_are_one_error(words: list[str], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ot.main(words) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and where in said.err and not said.out
