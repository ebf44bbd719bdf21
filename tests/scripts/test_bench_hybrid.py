"""The benchmark of two parties without a dealer: rows of every section, and errors before anything is measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch

from hummingbird.kernels.cpu import library
from hummingbird.kernels.garble import Circuit
from scripts import bench_hybrid, hybrid_kernels
from scripts.bench_hybrid import main
from scripts.hybrid_rows import cells, median, number, row


@pytest.fixture(autouse=True)
def _one_thread():  # type: ignore[no-untyped-def]
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_row_is_flat_and_its_cells_are_short() -> None:
    made = row("a", "ms", 1234.56, predicted=3.0, mark="<= 3", more=1)
    assert cells(made) == ["a", "ms", "1,234.6", "3", "<= 3", ""] and made["more"] == 1
    assert [number(x) for x in (None, 0.0123456, 10.0, 38.75)] == ["", "0.01235", "10", "38.75"]


def test_the_median_leaves_the_first_call_out() -> None:
    calls: list[int] = []
    assert median(lambda: calls.append(1), 3) >= 0 and len(calls) == 4


def test_garbling_rows_state_the_bytes_of_the_tables() -> None:
    before = library.isa() if library.available() else None
    rows = list(hybrid_kernels.garbling(100, 1))
    bytes_ = [r for r in rows if r["unit"] == "bytes a ReLU"]
    assert len(bytes_) == 2 and all(r["measured"] == r["predicted"] for r in bytes_)
    assert len(rows) >= 4 and all(r["measured"] > 0 and not r["mark"] for r in rows)  # marks are for 10,000
    assert before is None or library.isa() == before


def test_transfer_rows_state_the_bytes_of_the_messages() -> None:
    rows = list(hybrid_kernels.transfers(1000, 1))
    bytes_ = [r for r in rows if r["unit"] == "bytes"]
    assert len(bytes_) == 3 and all(r["measured"] == r["predicted"] for r in bytes_)
    assert len(rows) == 8 and all(r["measured"] > 0 for r in rows)


def test_a_wrong_key_ends_the_benchmark() -> None:
    sender, _, _ = hybrid_kernels._set_up()
    _, other, _ = hybrid_kernels._set_up()
    with pytest.raises(RuntimeError, match="a key is wrong"):
        list(hybrid_kernels._extension(sender, other, 100, True, 1))


@pytest.mark.parametrize("garbler", ["data", "model"])
def test_a_wrong_result_ends_the_benchmark(garbler: str) -> None:
    case = hybrid_kernels.Case(Circuit("relu", 5, 12, garbler), 20)
    case.check()
    case.relu = case.relu + 1
    with pytest.raises(RuntimeError, match="is not the ReLU"):
        case.check()


def test_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line to rows in the file and a table; in this process, which saves a start."""

    def launch(section: str, args: argparse.Namespace) -> list[bench_hybrid.Row]:
        worker = tmp_path / "worker.json"
        options = [f"--{name}={getattr(args, name)}" for name in bench_hybrid.NUMBERS]
        assert main(["--worker", section, *options, "--json", str(worker)]) == 0
        found: list[bench_hybrid.Row] = json.loads(worker.read_text())
        return found

    monkeypatch.setattr(bench_hybrid, "launch", launch)
    file = tmp_path / "rows.json"
    assert main(["--only", "garbling", "--relus", "50", "--repeats", "1", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    assert {"section", "what", "unit", "measured", "predicted", "mark", "paper", "cpu", "kernels"} <= set(rows[0])
    assert "D garbles: tables" in capsys.readouterr().out


def test_a_section_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench_hybrid.sys, "executable", "false")
    assert main(["--only", "garbling"]) == 1
    assert "ended with code 1" in (said := capsys.readouterr().err) and "garbling" in said


@pytest.mark.parametrize(
    ("words", "where"),
    [*(([f"--{name}", "0"], f"--{name}") for name in bench_hybrid.NUMBERS), (["--json", "absent/rows.json"], "--json")],
)
def test_wrong_options_are_one_error(words: list[str], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and where in said.err and not said.out
