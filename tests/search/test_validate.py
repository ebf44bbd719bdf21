"""`python -m search.validate`: accuracies, flips, their errors, and the room that windows leave."""

from __future__ import annotations

import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

import hummingbird
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.commands import validate
from hummingbird.commands.subject import predict
from hummingbird.commands.validate import mean_error, paired_error, rooms, standard_error
from models import get_model, load_checkpoint
from scripts.train.data import load
from search.validate import main
from tests.support.paths import ROOT

WEIGHTS = ROOT / "checkpoints" / "digits.pt"
NET = ["--model", "digits", "--weights", str(WEIGHTS), "--dataset", "digits", "--split", "test"]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _run(tmp_path: Path, config: BitConfig, *more: str) -> list[dict[str, Any]]:
    config.save(tmp_path / "bits.json")
    out = tmp_path / "rows.json"
    assert main([*NET, "--bits", str(tmp_path / "bits.json"), "--json", str(out), *more]) == 0
    return json.loads(out.read_text())


def test_errors_are_those_of_repeated_draws() -> None:
    """10,000 draws of 50 images: the spread of a figure is its stated error, to 5 % (7 standard errors of a spread)."""
    source, n, runs = random.Random(0), 50, 10_000
    hits = [sum(source.random() < 0.8 for _ in range(n)) / n for _ in range(runs)]
    assert statistics.stdev(hits) == pytest.approx(standard_error(0.8, n), rel=0.05)
    changes = []
    for _ in range(runs):
        turns = source.choices((-1, 1, 0), (0.10, 0.04, 0.86), k=n)
        changes.append(sum(turns) / n)
    assert statistics.stdev(changes) == pytest.approx(paired_error(0.10 * n, 0.04 * n, n), rel=0.05)
    means = [statistics.mean(hits[start : start + 5]) for start in range(0, runs, 5)]
    # 2000 means: a spread to 1.6 %; five of them are squared, averaged and rooted to the error of one mean.
    errors = [mean_error(hits[start : start + 5]) ** 2 for start in range(0, runs, 5)]
    assert statistics.stdev(means) == pytest.approx(math.sqrt(statistics.mean(errors)), rel=0.1)
    assert standard_error(1.0, 10) == 0 == paired_error(0, 0, 10) and math.isnan(mean_error([0.5]))


def test_figures_are_those_of_the_twins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    config = BitConfig(BitWindow(18, 15))
    rows = _run(tmp_path, config, "--repeat", "3", "--seed", "7")
    net = load_checkpoint(WEIGHTS, get_model("digits", 10)).eval()
    images, labels = load("digits", "test")
    plain = predict(net, images)
    runs = [predict(hummingbird.simulate(net, config, seed=seed), images) for seed in (7, 8, 9)]
    hits = [float((found == labels).float().mean()) for found in runs]
    row = rows[0]
    assert row["accuracy_plain"] == pytest.approx(float((plain == labels).float().mean()))
    assert row["accuracy"] == pytest.approx(statistics.mean(hits))
    assert row["accuracy_error_of_runs"] == pytest.approx(statistics.stdev(hits) / math.sqrt(3), abs=1e-6)
    assert row["changed"] == pytest.approx(sum(int((found != plain).sum()) for found in runs) / 3)
    # What was lost and won is the change of accuracy, exactly.
    assert (row["wrong_to_right"] - row["right_to_wrong"]) / 500 == pytest.approx(
        row["accuracy"] - row["accuracy_plain"]
    )
    assert row["right_to_wrong"] > 50  # the window hurts
    assert (row["images"], row["runs"], row["seed"], len(rows)) == (500, 3, 7, 3)
    text = capsys.readouterr().out
    assert f"with windows  {100 * row['accuracy']:.2f} % (mean of 3 runs" in text
    assert text.count("beyond the window's 2") == 3


def test_the_room_of_a_layer_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    net = load_checkpoint(WEIGHTS, get_model("digits", 10)).eval()
    seen: list[float] = []
    net.relu1.register_forward_pre_hook(lambda _, x: seen.append(float(x[0].abs().max())))
    predict(net, load("digits", "test")[0])
    layers = {"relu1": BitWindow(20, 12), "relu2": BitWindow(0, 0)}
    rows = {row["layer"]: row for row in _run(tmp_path, BitConfig(layers=layers), "--repeat", "1")}
    # Up to the rounding of batch norm folded into the convolution, and up to one unit of 2^-16.
    assert rows["relu1"]["largest"] == pytest.approx(max(seen), abs=1e-4)
    assert rows["relu1"]["limit"] == 8
    assert rows["relu1"]["margin_bits"] == pytest.approx(math.log2(8 / max(seen)), abs=1e-4)
    assert rows["relu2"]["margin_bits"] is None and rows["relu3"]["margin_bits"] > 40
    assert all(row["warning"] == "" and row["accuracy_error_of_runs"] is None for row in rows.values())
    text = capsys.readouterr().out
    assert "(one run)" in text and "identity" in text and "warning" not in text


def test_what_is_warned_of() -> None:
    windows = {"full": (19, 0), "tight": (19, 0), "pruned": (19, 8), "roomy": (21, 0), "dead": (20, 0)}
    config = BitConfig(layers={name: BitWindow(*window) for name, window in windows.items()})
    top = 2**18
    largest = {"full": top + 1, "tight": top - 1, "pruned": top - 1, "roomy": top - 1, "dead": 0}
    found = {room.layer: room for room in rooms(largest, config, 0.5)}
    assert "beyond the window's 4" in found["full"].warning
    assert "other images may leave it" in found["tight"].warning
    assert not any(found[name].warning for name in ("pruned", "roomy", "dead"))
    assert found["roomy"].margin_bits == pytest.approx(2, abs=1e-4) and found["dead"].margin_bits is None
    assert not rooms(largest, config, 0.0)[1].warning
    assert rooms(largest, config, 2.5)[3].warning


def test_windows_of_no_consequence_change_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    row = _run(tmp_path, BitConfig(BitWindow(24, 0)), "--repeat", "2", "--samples", "100")[0]
    assert (row["changed"], row["accuracy_error_of_runs"], row["images"]) == (0, 0, 100)
    assert row["accuracy"] == row["accuracy_plain"]


def test_wrong_arguments_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    good, foreign = tmp_path / "bits.json", tmp_path / "foreign.json"
    BitConfig().save(good)
    BitConfig(layers={"layer1.0.relu": BitWindow(20, 12)}).save(foreign)
    for more, message in (
        (["--bits", str(foreign)], "names ['layer1.0.relu'], which the net lacks"),
        (["--bits", str(tmp_path / "absent.json")], "cannot read the bit configuration"),
        (
            ["--bits", str(good), "--weights", str(tmp_path / "absent.pt")],
            "hint: python -m scripts.train.images makes one",
        ),
        (["--bits", str(good), "--split", "validation"], "digits holds no images out for validation"),
        (["--bits", str(good), "--repeat", "0"], "0 runs (at --repeat)"),
        (["--bits", str(good), "--json", str(tmp_path / "absent" / "x.json")], "there is no folder"),
    ):
        assert main([*NET, *more]) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: ") and message in error, error


def test_the_twin_of_two_parties_without_a_dealer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--dealer pair: the predictions of the twin with this aim; the file's bits of weights count."""
    pytest.importorskip("sklearn")
    config, aims = BitConfig(BitWindow(21, 13), weight_bits=5), list[str]()
    for place, name in ((hummingbird, "simulate"), (validate, "magnitudes")):
        real = getattr(place, name)
        monkeypatch.setattr(
            place, name, lambda *args, real=real, **more: aims.append(more["aim"]) or real(*args, **more)
        )
    row, *_ = _run(tmp_path, config, "--repeat", "1", "--samples", "200", "--dealer", "pair:silent")
    assert aims == ["pair:silent"] * 3
    net, (images, labels) = load_checkpoint(WEIGHTS, get_model("digits", 10)).eval(), load("digits", "test")
    found = predict(hummingbird.simulate(net, config, seed=0, aim="pair:silent"), images[:200])
    assert row["dealer"] == "pair:silent"
    assert row["accuracy"] == pytest.approx(float((found == labels[:200]).float().mean()))
    assert row["changed"] == int((found != predict(net, images[:200])).sum())
    for words in (["--dealer", "host:1"], ["--dealer", "pair", "--parties", "3"], ["--dealer", "pair", "--cut"]):
        assert main([*NET, "--bits", str(tmp_path / "bits.json"), *words]) == 1
        assert "leave it out for other dealers" in capsys.readouterr().err
    with pytest.raises(AssertionError):
        _run(tmp_path, config, "--dealer", "pair:loud")
    assert "pair:softspoken" in capsys.readouterr().err
