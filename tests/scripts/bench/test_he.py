"""The benchmark of inference on ciphertexts: rows of every section, and errors before anything is measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.bench import he, he_ablation, he_kernels, he_nets, party
from scripts.bench.he import jobs, main, medians, show
from tests.support import python
from tests.support.data import data_folder


@pytest.fixture
def _one_thread():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_jobs_are_processes_and_the_torch_path_takes_turns_with_the_fast_one() -> None:
    assert jobs(["torch"], 1) == ["nets:relu", "torch:relu", "nets:square", "torch:square"]
    assert jobs(["nets", "torch"], 2)[:4] == ["nets:relu", "torch:relu"] * 2
    assert jobs(["kernels", "sockets"], 2) == ["sockets:relu", "sockets:square", "kernels"]
    assert jobs(["sparse"], 2) == ["sparse:impala-cifar10", "sparse:impala-cifar10-sparse"]


def test_the_median_run_is_shown_and_the_median_of_ratios() -> None:
    other = {"section": "kernels", "kernel": "transform"}
    times = {"nets": (2.0, 1.0, 4.0), "torch": (5.0, 3.5, 4.0)}
    rows = [
        {"section": path, "net": "a", "milliseconds_per_image": times[path][i]}
        for i in range(3)
        for path in ("nets", "torch")
    ]
    fast, slow, last = medians([other, *rows])
    assert fast["milliseconds_per_image"] == 2 and "times_the_fast_path" not in fast
    assert slow["milliseconds_per_image"] == 4 and slow["times_the_fast_path"] == 2.5
    assert last is other


@pytest.fixture
def mnist() -> str:
    return str(data_folder("mnist"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["relu", "square"])
def test_a_net_in_process(kind: str, mnist, _one_thread, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    done: list[float] = []
    row = he_nets.in_process(f"cryptonets-{kind}", he_nets.cryptonets(kind, mnist, 40), done.append)
    check(row)
    assert sum(done) == row["images"] == 40
    parts = sum(row[f"{part}_milliseconds_per_image"] for part in ("encrypt", "server", "decrypt", "client"))
    assert parts == pytest.approx(row["milliseconds_per_image"])
    show([{"section": "nets", "kernels": "", "cpu": "", **row}])
    assert f"cryptonets-{kind}" in capsys.readouterr().out


@pytest.mark.parametrize("count", [8, pytest.param(40, marks=pytest.mark.slow)])
def test_a_net_over_a_socket(count: int, mnist, _one_thread, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    python.forking(monkeypatch, party)
    row = he_nets.over_a_socket("cryptonets-relu", "relu", he_nets.cryptonets("relu", mnist, count), 1)
    check(row)
    assert row["images_per_second"] > 0
    show([{"section": "sockets", "kernels": "", "cpu": "", "link": "loopback", **row}])


def check(row: dict[str, Any]) -> None:
    """The same answers as torch's, and errors within what the planner promises, 2^-12 of typical values, in two layers
    and with room for values that are not typical.
    """
    assert row["other_answers"] == 0 and row["accuracy"] == row["torch_accuracy"] > 0.9
    assert row["largest_error"] < 2**-8 * row["largest_output"]


@pytest.mark.slow
def test_a_net_with_zeros(_one_thread, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    """Impala's net, and the same with nine of ten weights pruned, give torch's answers."""
    rows = []
    for name in he_nets.PRUNED:
        given = he_nets.impala(name, str(data_folder("cifar10")), 64)
        rows.append({"zeros": he_nets.zeros(given.net)} | he_nets.in_process(name, given, lambda count: None))
    assert [round(row["zeros"], 2) for row in rows] == [0, 0.9]
    for row in rows:
        assert row["other_answers"] == 0 and row["largest_error"] < 2**-8 * row["largest_output"]
    show([{"section": "sparse", "kernels": "", "cpu": "", **row} for row in rows])
    assert "90%" in capsys.readouterr().out


@pytest.mark.slow
def test_the_program(
    tmp_path: Path, _one_thread, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    """MobileNetV2, from the command line to a row in the file and a table; in this process, which saves a start."""

    def rows_of(module: str, job: str, args: argparse.Namespace, names: tuple[str, ...], prefix: list[str]) -> he.Rows:
        assert not prefix
        worker = tmp_path / "worker.json"
        options = [f"--{name}={getattr(args, name)}" for name in ("size", "batch")]
        assert module == "scripts.bench.he" and {"size", "batch"} <= set(names)
        assert main(["--worker", job, *options, "--json", str(worker)]) == 0
        return json.loads(worker.read_text())

    monkeypatch.setattr(he, "rows_of", rows_of)
    file = tmp_path / "rows.json"
    assert main(["--only", "mobilenet", "--size", "32", "--batch", "2", "--json", str(file)]) == 0
    (row,) = json.loads(file.read_text())
    assert row["net"] == "mobilenetv2-0.35-32" and row["largest_error"] < 2**-8 * row["largest_output"]
    assert {"cpu", "kernels", "torch", "hummingbird"} <= set(row)
    assert "mobilenetv2-0.35-32" in capsys.readouterr().out


def test_a_job_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(he.sys, "executable", "false")
    assert main(["--only", "kernels"]) == 1
    assert "error: the job ended with code 1" in capsys.readouterr().err


def test_kernel_rows(_one_thread, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(he_kernels, "COUNT", 8)
    monkeypatch.setattr(he_kernels, "best", lambda run, budget=0.0: run() is None or 1e-3)
    done: list[int] = []
    rows = he_kernels.measure(lambda: done.append(1))
    assert len(done) == len(rows) == he_kernels.STEPS
    assert {"transform", "encode", "encrypt", "decrypt", "decode", "product"} <= {row["kernel"] for row in rows}
    show([{"section": "kernels", "kernels": "", "cpu": "", **row} for row in rows])


def test_ablation_rows(_one_thread, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """Every study runs and finds the same results on both sides."""
    monkeypatch.setattr(he_ablation, "ROWS", 1)
    monkeypatch.setattr(he_ablation, "INPUTS", 40)
    monkeypatch.setattr(he_ablation, "best", lambda run, budget=0.0: run() is None or 1e-3)
    done: list[int] = []
    rows = he_ablation.measure(lambda: done.append(1))
    assert len(done) == he_ablation.STEPS and len({row["optimisation"] for row in rows}) == len(rows) == 5
    show([{"section": "ablation", "kernels": "", "cpu": "", **row} for row in rows])


def test_wrong_results_end_the_ablation() -> None:
    layer = he_ablation.Layer.make()
    layer.check(layer.outputs)
    with pytest.raises(SystemExit, match="wrong outputs"):
        layer.check(layer.outputs + 0.01)
    with pytest.raises(SystemExit, match="differ"):
        he_ablation.same(torch.zeros(2), torch.ones(2))


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["--images", "0"], "--images"),
        (["--batch", "0"], "--batch"),
        (["--repeats", "0"], "--repeats"),
        (["--size", "16"], "--size"),
        (["--json", "absent/rows.json"], "--json"),
        (["--only", "sockets", "--link", "10g"], "(at --link)"),
        (["--link", "10gbit"], "--only sockets"),
    ],
)
def test_wrong_options_are_one_error(words: list[str], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and where in said.err and not said.out
