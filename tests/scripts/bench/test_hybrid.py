"""The benchmark of two parties without a dealer: rows of every section, and errors before anything is measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch

from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import HummingbirdError
from hummingbird.hybrid import make_plan
from models import MODELS, get_model, load_checkpoint
from scripts.bench import garble, hybrid, hybrid_nets, hybrid_rows, ot, relay
from scripts.bench import party as bench_party
from scripts.bench.hybrid import main
from scripts.bench.hybrid_nets import Served, measure
from scripts.bench.hybrid_rows import cells, number, row
from scripts.program import median
from tests.support import python
from tests.support.paths import ROOT


@pytest.fixture(autouse=True)
def _one_thread():  # type: ignore[no-untyped-def]
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_row_is_flat_and_its_cells_are_short() -> None:
    made = row("a", "ms", 1234.56, predicted=3.0, mark="<= 3", more=1)
    assert cells(made) == ["a", "ms", "1,234.6", "3", "<= 3", ""] and made["more"] == 1
    assert [number(x) for x in (None, 0.0123456, 10.0, 38.75)] == ["", "0.012346", "10", "38.75"]


def test_the_median_leaves_the_first_call_out() -> None:
    calls: list[int] = []
    assert median(lambda: calls.append(1), 3) >= 0 and len(calls) == 4


def test_impala_s_tables_follow_from_its_count_and_ours_are_the_page_s() -> None:
    shown = {r["what"].partition(": ")[2]: r for r in hybrid_rows.formulas()}
    assert shown["CIFAR-10 (paper: with the encrypted layers)"]["predicted"] == 173_056 * 2080
    assert shown["MNIST"]["predicted"] == pytest.approx(23.1e6, rel=0.002)
    ours = {r["what"]: r["predicted"] for r in hybrid_rows.formulas() if r["what"].startswith("ours")}
    assert list(ours.values()) == [342 + 38.75, 161.25, 355.5 + 40, 162.5]


def test_garbling_rows_state_the_bytes_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hybrid_rows.shutil, "which", lambda name: None)  # three adders: test_garble.py
    monkeypatch.setattr(garble, "best", lambda run: run() is None or 1e-3)
    rows = list(hybrid_rows.garbling(64))
    bytes_ = [r for r in rows if r["unit"] == "bytes a ReLU"]
    assert len(bytes_) == 2 and all(r["measured"] == r["predicted"] for r in bytes_)
    assert len(rows) >= 4 and all(r["measured"] > 0 and not r["mark"] for r in rows)  # marks are for 10,000


def test_transfer_rows_state_the_bytes_of_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ot, "best", lambda run: run() is None or 1e-3)
    rows = list(hybrid_rows.transfers(1000))
    bytes_ = [r for r in rows if r["unit"] == "bytes"]
    assert len(bytes_) == 3 and all(r["measured"] == r["predicted"] for r in bytes_)
    assert len(rows) == 9 and all(r["measured"] > 0 for r in rows)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers and relays are forks of a process that has imported everything."""
    python.forking(monkeypatch, bench_party, relay)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_net_over_a_socket() -> None:
    """Behind a relay, which takes its time for every round trip."""
    served = Served(["models:get_model", "digits", "10"], (1, 8, 8), BitConfig.of(BitWindow(20, 12)), delay=0.01)
    with served.net() as (net, folder):
        found = measure(net, folder, torch.rand(2, 1, 8, 8), 2)
        assert found["online_seconds"] >= 0.02 * (len(net.plan.gates) + 1)
        assert net.ready == 0 and all(value > 0 for value in found.values())
        expected = hybrid_nets.predicted(net.plan)
    for key in ("offline_megabytes", "online_megabytes"):
        assert found[key] == pytest.approx(expected[key], abs=1e-9)  # to the byte
    rows = list(hybrid_nets.figures("digits", found, expected, {"megabytes": "<= 9"}, {"seconds": 1.0}))
    assert len(rows) == 7 and rows[0]["paper"] == 1.0 and rows[1]["mark"] == "<= 9"


@pytest.mark.usefixtures("forked")
def test_a_server_that_does_not_start_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    served = Served(["models:get_model", "digits", "10"], (2, 8, 8), BitConfig.of(BitWindow(20, 12)))
    with pytest.raises(HummingbirdError, match="did not start"), served.net():
        pass
    assert "error: " in capfd.readouterr().err


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if "resnet" in case.model else [])
        for case in (*hybrid_nets.SHIPPED, hybrid_nets.SPARSE)
    ],
    ids=lambda case: case.weights,
)
def test_the_windows_that_are_shipped_make_a_plan(case: hybrid_nets.Case) -> None:
    net = load_checkpoint(ROOT / "checkpoints" / case.weights, get_model(case.model, 10)).eval()
    model = make_plan(net, MODELS[case.model].input_shape, str(ROOT / "checkpoints" / case.bits))
    assert {gate.kind for gate in model.plan.gates.values()} == {"relu"}


def test_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line to rows in the file and a table; in this process, which saves a start."""

    def launch(section: str, args: argparse.Namespace) -> list[hybrid.Row]:
        worker = tmp_path / "worker.json"
        options = [f"--{name}={getattr(args, name)}" for name in hybrid.NUMBERS]
        assert main(["--worker", section, *options, "--json", str(worker)]) == 0
        found: list[hybrid.Row] = json.loads(worker.read_text())
        return found

    monkeypatch.setattr(hybrid, "launch", launch)
    monkeypatch.setattr(hybrid_rows.shutil, "which", lambda name: None)
    file = tmp_path / "rows.json"
    assert main(["--only", "garbling", "--relus", "64", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    assert {"section", "what", "unit", "measured", "predicted", "mark", "paper", "cpu", "kernels"} <= set(rows[0])
    assert "garbler data: tables" in capsys.readouterr().out


@pytest.mark.parametrize(("netem", "by"), [pytest.param(True, "netem", marks=pytest.mark.slow), (False, "a relay")])
def test_a_delay_that_tc_cannot_make_is_a_relay_s(
    netem: bool, by: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(section: str, args: argparse.Namespace) -> list[hybrid.Row]:
        assert args.relay == (0 if netem else 2.5) and hybrid._shaped(args).round_trip_seconds == 0.005 * netem
        args.worker = section
        return hybrid.work(args)

    monkeypatch.setattr(hybrid, "launch", launch)
    if not netem:  # the other case runs the section whole
        monkeypatch.setitem(hybrid.SECTIONS, "bytes", lambda args: hybrid_rows.formulas())
    monkeypatch.setattr(hybrid, "obstacle", lambda link: "" if netem else "no netem")
    assert main(["--only", "bytes", "--link", "1gbit", "--rtt", "5"]) == 0
    assert f"; 1 Gb/s + 5 ms, the delay by {by})" in capsys.readouterr().out


def test_a_section_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hybrid.sys, "executable", "false")
    assert main(["--only", "garbling"]) == 1
    assert "ended with code 1" in (said := capsys.readouterr().err) and "garbling" in said


@pytest.mark.parametrize(
    ("words", "where"),
    [*(([f"--{name}", "0"], f"--{name}") for name in hybrid.NUMBERS), (["--json", "absent/rows.json"], "--json")],
)
def test_wrong_options_are_one_error(words: list[str], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and where in said.err and not said.out
