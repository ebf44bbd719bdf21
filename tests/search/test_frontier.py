"""`python -m search.frontier`: every row is what its file says, and the picture shows the rows."""

from __future__ import annotations

import json
import re
import shlex
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.commands import output
from hummingbird.commands.frontier import BUDGETS, planned, uniform_window
from hummingbird.convert import convert_model
from hummingbird.window_search.study import Study
from models import get_model, load_checkpoint
from scripts.train.data import load
from search.frontier import main, parser
from tests.search.test_find_bits import NET, SHAPE, SMALL, WEIGHTS, interrupt_at, result
from tests.support.data import WITH_SKLEARN
from tests.support.paths import ROOT

pytestmark = WITH_SKLEARN

SHORT = [*SMALL, "--widths", "0", "2", "3", "4", "--reach", "2"]
ONE = [*NET, "--samples", "64", "--group", "all=relu1,relu2,relu3", "--widths", "0", "2", "3", "4", "--reach", "2"]


@pytest.fixture(scope="module")
def study() -> Study:
    images, labels = load("digits", "train")
    return Study(load_checkpoint(WEIGHTS, get_model("digits", 10)).eval(), images[:64], labels[:64], by="layer")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "budgets"),
    [
        (ONE, ("4/64", "3/64", "1/64")),
        (SHORT, ("exact", "eco", "4/64", "3/64", "1/64")),
    ],
    ids=["one group", "every layer"],
)
def test_rows_files_and_picture(
    given: list[str],
    budgets: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    study: Study,
) -> None:
    drawn: list[Any] = []
    save = output._save
    monkeypatch.setattr(output, "_save", lambda figure, *rest: (drawn.append(figure), save(figure, *rest)))
    windows, rows_file, picture = tmp_path / "windows", tmp_path / "rows.json", tmp_path / "frontier.png"
    windows.mkdir()
    words = [*given, "--budgets", *budgets, "--uniform", "--out-folder", str(windows)]
    assert main([*words, "--json", str(rows_file), "--plot", str(picture)]) == 0
    rows = json.loads(rows_file.read_text())
    searched = [("searched", budget) for budget in budgets]
    assert [(row["windows"], row["budget"]) for row in rows] == [
        *searched,
        *[("uniform", budget) for budget in budgets if "/" in budget],
    ]

    net = load_checkpoint(WEIGHTS, get_model("digits", 10)).eval()
    met = [row for row in rows if row["met"]]
    for row in met:
        config = BitConfig.load(windows / row["file"])
        costs = [planned.cost for planned in convert_model(net, config).costs((1, *SHAPE), 2)]
        assert row["online_kilobytes_per_image"] == sum(cost.bits for cost in costs) / 8e3
        assert row["rounds"] == sum(cost.rounds for cost in costs)
        assert row["accuracy_percent"] == pytest.approx(100 * (study.accuracy(config) or 0))
        kept = sum(config.window(layer.name).w * layer.outputs for layer in study.layers)
        assert row["bits_per_comparison"] == pytest.approx(kept / sum(layer.outputs for layer in study.layers))
        if row["budget"] not in ("exact", "eco"):
            assert 64 * row["bits_per_comparison"] <= 64 * int(row["budget"].partition("/")[0])
    assert sorted(path.name for path in windows.iterdir()) == sorted(row["file"] for row in met)  # and no states
    assert {(row["windows"], row["budget"]) for row in rows if not row["met"]} == {
        ("searched", "1/64"),
        ("uniform", "1/64"),
    }
    assert all(
        "found no assignment" in row["why"] or "no uniform window" in row["why"] for row in rows if not row["met"]
    )
    for row in rows:
        assert all(isinstance(value, (str, int, float)) for value in row.values())
        exact = 100 * (study.accuracy(BitConfig()) or 0)
        assert row["images"] == 64 and row["exact_accuracy_percent"] == pytest.approx(exact)
        assert row["cpu"] and row["torch"]

    text = capsys.readouterr().out
    assert re.search(r"^1/64 +searched +none( +-)+$", text, re.MULTILINE)
    assert "1/64 searched: found no assignment within 0.015625" in text
    row = met[budgets.index("4/64")]
    assert re.search(rf"^4/64 +searched +4-64\.json +{row['accuracy_percent']:.2f} ", text, re.MULTILINE)

    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = [line for line in drawn[0].axes[0].lines if len(line.get_xdata()) > 1]
    shown = {(x, y) for line in lines[:2] for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)}
    assert shown == {(row["online_kilobytes_per_image"], row["accuracy_percent"]) for row in met}
    assert {text.get_text() for text in drawn[0].axes[0].texts} == {row["budget"] for row in met}


@pytest.mark.slow
def test_with_q_rows_have_fewer_bytes_in_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows_file, net = tmp_path / "rows.json", load_checkpoint(WEIGHTS, get_model("digits", 10)).eval()
    words = [*SMALL, "--budgets", "exact", "eco", "--knobs", "q", "--out-folder", str(tmp_path)]
    assert main([*words, "--json", str(rows_file)]) == 0
    exact, eco = json.loads(rows_file.read_text())
    for row in (exact, eco):
        private = convert_model(net, BitConfig.load(tmp_path / row["file"]), aim="throughput")
        moved = sum(2 * planned.cost.bits + planned.cost.offline_bits for planned in private.costs((1, *SHAPE), 2))
        assert row["in_all_kilobytes_per_image"] == moved / 8e3
    assert exact["in_all_kilobytes_without_q"] == exact["in_all_kilobytes_per_image"]
    assert eco["in_all_kilobytes_without_q"] > eco["in_all_kilobytes_per_image"]
    text = capsys.readouterr().out
    figures = [f"{eco[f'in_all_kilobytes_{key}']:.2f}" for key in ("without_q", "per_image")]
    assert re.search(rf"^eco .* {' +'.join(figures)} ", text, re.MULTILINE) and "in all kB without q" in text


@pytest.mark.parametrize("width", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_uniform_window_is_the_best_of_all(study: Study, width: int) -> None:
    """Against every window of that width."""
    window = uniform_window(study, Fraction(width, 64))
    limit = min(layer.limit for layer in study.layers)
    every = [BitWindow(k, k - width) for k in range(width, limit + 1)]
    names = study.searched.names
    score = {w: study.evaluator.full(BitConfig(EXACT, dict.fromkeys(names, w))) for w in every}
    assert window.w == width and score[window] == max(score.values()) > min(score.values())
    assert study.groups[0].name == "relu1"  # as it was


@pytest.mark.slow
def test_interrupted_and_resumed_is_undisturbed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*SHORT, "--budgets", "eco", "4/64", "2/64", "--uniform"]
    rows = {}
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    outputs = {
        name: ["--out-folder", str(tmp_path / name), "--json", str(tmp_path / f"{name}.json")]
        for name in ("whole", "parts")
    }
    assert main([*words, *outputs["whole"]]) == 0
    capsys.readouterr()
    for resume in ([], ["--resume"]):
        undo = interrupt_at(monkeypatch, 6)  # in the second search, and again behind what the first part has answered
        assert main([*words, *outputs["parts"], *resume]) == 130
        assert capsys.readouterr().err.endswith("\ninterrupted: go on with the same command and --resume\n")
        undo()
    assert main([*words, *outputs["parts"]]) == 1
    assert "the state of an unfinished search" in capsys.readouterr().err
    assert main([*words, *outputs["parts"], "--resume"]) == 0
    for name in outputs:
        rows[name] = json.loads((tmp_path / f"{name}.json").read_text())
        for row in rows[name]:
            row.pop("seconds", None)
    assert rows["whole"] == rows["parts"]
    for path in (tmp_path / "whole").iterdir():
        assert result(path) == result(tmp_path / "parts" / path.name)
    assert not list(tmp_path.rglob("*.state"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--budgets 8/64 many", "'many' is no budget of bits (at --budgets)"),
        ("--budgets 9", "a budget of 9 bits"),
        ("--budgets eco --margin 2", "an accuracy margin of 2"),
        ("--budgets eco --spare 40", "but the shares allow"),
        ("--samples 0", "0 images (at --samples)"),
        ("--weights absent.pt", "cannot read absent.pt"),
        ("--resume", "there is no search to resume"),
        ("--json absent/rows.json", "there is no folder absent (at --json)"),
        ("--plot rows.nothing", "rows.nothing names no format (at --plot)"),
    ],
)
def test_wrong_arguments_are_one_error(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main([*SMALL, "--out-folder", str(tmp_path), *shlex.split(words)]) == 1
    error = capsys.readouterr().err
    assert error.count("error: ") == 1 and message in error
    assert list(tmp_path.iterdir()) == []


def test_no_folder_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--out-folder", str(tmp_path / "absent")]) == 1
    assert "(at --out-folder)\nhint: make it first" in capsys.readouterr().err


def test_help_teaches_and_budgets_are_planned_once() -> None:
    lines = re.sub(r" \\\n +", " ", parser().format_help())
    shown = re.findall(r"^    (python -m search\.frontier .*)$", lines, re.MULTILINE)
    assert len(shown) == 2
    first, second = (planned(parser().parse_args(shlex.split(line)[3:])) for line in shown)
    assert [budget for how, budget in first if how == "searched"] == list(BUDGETS)
    assert second[-2:] == [("uniform", "8/64"), ("uniform", "6/64")]
    args = parser().parse_args([*SMALL, "--out-folder", ".", "--budgets", "8/64", "eco", "8/64"])
    assert planned(args) == [("searched", "8/64"), ("searched", "eco")]
