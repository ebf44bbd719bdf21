"""The benchmark of garbled ReLUs: a row for each circuit and instruction set, wrong results and sizes refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from hummingbird.errors import EnvironmentProblem
from hummingbird.hybrid.gc import relu
from hummingbird.kernels import devices
from hummingbird.kernels.cpu import library
from scripts.bench import garble
from scripts.bench.garble import Adders, isas, main

pytestmark = pytest.mark.skipif(not library.available(), reason="the native library is not built")


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch):
    threads, isa = torch.get_num_threads(), library.isa()
    monkeypatch.setattr(garble, "best", lambda run: run() is run or 1e-3)
    monkeypatch.setattr(devices, "keep_freed_memory", lambda: True)
    yield
    torch.set_num_threads(threads)
    assert library.isa() == isa


def test_rows_of_every_instruction_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "32", "--ring", "12", "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["instructions"] for row in rows[::3]] == isas()
    assert {(row["circuit"], row["bytes_each"]) for row in rows} == {
        ("relu, garbler data", relu.Circuit("relu", 10, 12, "data").table_bytes(16) / 16),
        ("relu, garbler model", relu.Circuit("relu", 10, 12, "model").table_bytes(16) / 16),
        ("lift, garbler data", relu.Circuit("lift", 10, 12, "data").table_bytes(16) / 16),
    }
    assert "relu, garbler data" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_three_adders_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are compared before they are timed; the sizes are the blocks counted by hand."""
    monkeypatch.setattr(garble, "_FLAGS", ("-O0", *garble._FLAGS[1:]))  # compiles soonest
    adders = Adders(str(tmp_path))
    for isa in isas():
        for width, ring in ((10, 20), (2, 3), (6, 32)):
            gates = width - 1
            blocks = (1 + 2 * (gates - 1)) + 2 * gates + (1 + 2 * (gates - 1) + ring - 1 - gates)
            assert adders.measure(width, ring, 48, isa)[2] == 3 * (256 * blocks + 2 * ring)


def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(relu, "plain", lambda circuit, x: x & 1)
    assert main(["--count", "16"]) == 1
    assert "does not compute its function" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--count", "100"], ["--count", "0"], ["--adders", "--width", "12"], ["--width", "1"]]
)
def test_sizes_that_do_not_fit_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 1
    assert "error:" in capsys.readouterr().err


def test_without_a_compiler_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("false", "no-such-program"):
        monkeypatch.setattr(garble, "_COMPILER", name)
        with pytest.raises(EnvironmentProblem, match="three_adders"):
            Adders(str(tmp_path))
