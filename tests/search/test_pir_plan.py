"""`python -m search.pir_plan`: rows are what their plans are, and the chosen ones are within the budgets."""

from __future__ import annotations

import json
import operator
import re
import shlex
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hummingbird.errors import HummingbirdError
from hummingbird.pir.batching.cost_model import Speed, price
from hummingbird.pir.serving.bucket_server import plan_servers
from search import pir_grid, pir_plan, pir_speed, pir_timed
from search.pir_apps import Application
from search.pir_grid import Profile, Recipe, found, recipes, share_dropped
from search.pir_plan import ECO, chosen, main, parser

ROWS, WIDTH = 2000, 64
SPEED = Speed(1e-5, 1e-7, 1e-13, 1e-7, 1e-9, 1e-12, 1e-10)
TABLE = torch.randn(ROWS, WIDTH // 2, generator=torch.Generator().manual_seed(5)).half()


def accesses(count: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(30, generator=generator) ** 3 * ROWS).long() for _ in range(count)]


class Shares:
    """Quality is the share of wanted rows that were found."""

    def __init__(self, seed: int, count: int | None) -> None:
        self.wanted: Sequence[Tensor] = accesses(count or 50, seed)

    def quality(self, marks: Sequence[Tensor]) -> float:
        return 1 - share_dropped(marks)


def application(*_: object) -> Application:
    seeds = {"train": 0, "validation": 1, "test": 2}
    return Application("shares", "AUC", True, TABLE, accesses(200, 0), lambda split, n: Shares(seeds[split], n))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pir_plan, "load_application", application)
    monkeypatch.setattr(pir_plan, "measure", lambda *_: (SPEED, 0.01))
    monkeypatch.setattr(pir_timed, "REPEATS", 1)
    monkeypatch.setattr("search.pir_grid.SIZES", (8, 24, 48))
    monkeypatch.setattr("search.pir_grid.SHARES", (0.1,))
    monkeypatch.setattr("search.pir_grid.COMPANIONS", (0, 2))


WORDS = ["--application", "movielens", "--weights", "none.pt", "--samples", "20", "--screen", "5", "--clients", "6"]


@pytest.mark.slow
def test_rows_are_what_their_plans_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows_file, picture, plan_file = tmp_path / "rows.json", tmp_path / "plans.png", tmp_path / "plan.json"
    assert main([*WORDS, "--json", str(rows_file), "--plot", str(picture), "--plan", str(plan_file)]) == 0
    rows = json.loads(rows_file.read_text())
    profile, shares = Profile(accesses(200, 0), ROWS), Shares(1, 20)
    for row in rows:
        recipe = Recipe(**{name: row[name] for name in Recipe.__dataclass_fields__})
        plan = profile.plan(recipe)
        marks = found(plan, shares.wanted)
        assert row["family"] == recipe.family and row["keys"] == plan.keys
        assert row["dropped_percent"] == 100 * share_dropped(marks) and row["quality"] == shares.quality(marks)
        assert row["loss_percent"] == pytest.approx(row["dropped_percent"])
        cost = price(plan.codes, plan.parts * WIDTH)
        assert (row["bytes_per_inference"], row["prf_blocks"]) == (cost.bytes, cost.blocks)
        assert row["inferences_per_second"] == pytest.approx(1 / SPEED.seconds(cost))
        assert row["bytes_per_inference"] <= 300e3 and row["pass_seconds"] <= 0.3
    assert {row["kind"] for row in rows} == {"plain", "bins", "cuckoo"}
    assert any(row["companions"] for row in rows) and any(row["hot"] for row in rows)
    tested = [row for row in rows if "test_quality" in row]
    for row in rows:
        figures = [row[key] for key in ("timed_inferences_per_second", "client_milliseconds", "message_bytes")]
        assert all(figures) if row in tested else figures == [None] * 3
    for row in tested:
        assert row["timed_inferences_per_second"] == pytest.approx(6 / row["timed_pass_seconds"])
        extra = row["message_bytes"] - row["bytes_per_inference"]
        assert 0 < extra <= 4 * 128 * (2 if row["hot"] else 1)  # headers of a query and an answer of each server
    assert tested and all(0.4 < row["test_quality"] <= 1 for row in tested)

    text = capsys.readouterr().out
    picked = chosen(rows, "AUC", 300e3)
    words = {(word, row["family"]) for word, row in picked}
    shown = {(line.split()[-13], line) for line in text.splitlines() if re.search(r" (eco|relaxed) ", line)}
    assert len(shown) == len(picked) >= len(words)
    assert "2,000 rows of 64 bytes; all rows found: AUC 1.0000 (validation), 1.0000 (test)" in text
    eco = [row for word, row in picked if word == "eco"]
    best = max(eco, key=lambda row: row["inferences_per_second"])
    plan = profile.plan(Recipe(**{name: best[name] for name in Recipe.__dataclass_fields__}))
    assert plan_file.read_text() == plan.to_json()
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_chosen_plans_are_the_fastest_that_lose_little() -> None:
    def row(kind: str, loss: float, speed: float) -> dict[str, object]:
        costs = {"inferences_per_second": speed, "bytes_per_inference": 1000 * speed}
        return {"kind": kind, "loss_percent": loss, **costs}

    def speeds(measure: str, budget: float) -> list[object]:
        return [picked["inferences_per_second"] for _, picked in chosen(rows, measure, budget)]

    rows = [
        row("bins", 0.0, 10),
        row("bins", 0.04, 20),
        row("bins", 0.3, 30),
        row("bins", 0.6, 90),
        row("cuckoo", 2.0, 99),
    ]
    assert [word for word, _ in chosen(rows, "AUC", 1e6)] == ["eco", "relaxed"]
    assert speeds("AUC", 1e6) == [20, 30] and speeds("perplexity", 1e6) == [20, 90, 99]
    assert speeds("AUC", 20e3) == [20, 20] and speeds("AUC", 19e3) == [10, 10] and speeds("AUC", 9e3) == []
    assert 100 * ECO == pytest.approx(0.05)


def test_the_front_is_not_beaten_by_what_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among all plans of the grid, tried on the same inferences: nothing left out is better in both ways."""
    args = parser().parse_args(WORDS)
    search, shares = pir_plan.Search(application(), SPEED, args), Shares(1, 5)
    affordable = search.affordable(["bins", "cuckoo"])
    front = search.front(affordable, shares, 5)
    assert 0 < len(front) < len(affordable)
    points = {}
    for recipe in affordable:
        dropped = share_dropped(found(search.profile.plan(recipe), shares.wanted))
        cost = search.price(recipe)
        points[recipe] = (dropped, SPEED.seconds(cost), cost.bytes)
    for recipe in affordable:
        if recipe not in front and points[recipe][0] <= 0.5:
            family = [points[other] for other in front if other.family == recipe.family]
            assert any(all(map(operator.le, other, points[recipe])) for other in family)


def test_every_budget_of_bytes_gets_plans_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plans are searched once, and a smaller budget has those that a search within it alone finds."""
    budgets = (60e3, 25e3, 40e3)
    spoken = [f"{budget / 1e3:g}kB" for budget in budgets]
    assert main([*WORDS, "--budget-bytes", *spoken, "--json", str(tmp_path / "all.json")]) == 0
    text, rows = capsys.readouterr().out, json.loads((tmp_path / "all.json").read_text())
    assert {tuple(row["budgets_bytes"]) for row in rows} == {(60e3, 40e3, 25e3)}
    assert re.findall(r"^(\d+) .* (?:eco|relaxed) ", text, re.MULTILINE) == [
        f"{budget / 1e3:g}" for budget in sorted(budgets, reverse=True) for _ in chosen(rows, "AUC", budget)
    ]
    for budget, words in zip(budgets, spoken, strict=True):
        assert main([*WORDS, "--budget-bytes", words, "--json", str(tmp_path / "one.json")]) == 0
        alone = json.loads((tmp_path / "one.json").read_text())
        speeds = [[row["inferences_per_second"] for _, row in chosen(some, "AUC", budget)] for some in (rows, alone)]
        assert speeds[0] == speeds[1] != []
        assert all(row["timed_inferences_per_second"] for _, row in chosen(rows, "AUC", budget))


def test_no_kind_of_plan_is_held_back_by_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget of 300 kB pays for fewer keys than the largest of the grid, for rows of 64 bytes or more; and the
    baseline has as many keys for a bin as the co-design, or more.
    """
    monkeypatch.undo()
    made, most = list(recipes()), max(pir_grid.SIZES)
    for rows in (9743, 33278):
        for kind in ("plain", "bins"):
            assert Recipe(kind, most).price(rows, 2 * 384).bytes > 300e3
        assert max(r.full for r in made if r.kind == "bins" and r.price(rows, 64).bytes <= 300e3) >= 256
    rounds = {family: {r.rounds for r in made if r.family == family} for family in ("bins", "bins + hot")}
    assert rounds == {"bins": {1, 2, 3, 4}, "bins + hot": {1, 2}}
    assert {r.companions for r in made} == {0, 1, 2, 3, 4, 5}
    assert Recipe("bins", 256, rounds=2) in made  # 287 kB for the language model's rows of 384 bytes


def test_the_grid_is_of_plans_that_can_be_made() -> None:
    made = list(recipes())
    assert len(made) == len(set(made)) and {recipe.kind for recipe in made} == {"plain", "bins", "cuckoo"}
    profile = Profile(accesses(50, 0), ROWS)
    for recipe in made:
        plan = profile.plan(recipe)
        assert recipe.full + recipe.hot <= plan.keys <= recipe.full + recipe.hot + 2 * len(plan.codes)
        assert (plan.parts, plan.hot is not None) == (1 + recipe.companions, recipe.hot > 0)
    assert Recipe("cuckoo", 96).codes(20) == ()  # more buckets of a group than rows


def test_the_speed_of_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pir_speed, "REPEATS", 1)
    threads = torch.get_num_threads()
    speed, error = pir_speed.measure(50, [64, 256], 8, "aes")  # a hot table of 5 rows has few buckets
    assert torch.get_num_threads() == threads and error >= 0
    assert min(astuple(speed)) >= 0 < max(astuple(speed))


@pytest.mark.parametrize(
    "recipe", [Recipe("plain", 8), Recipe("bins", 8, 24, 0.1, 2, 2), Recipe("cuckoo", 24, 24, 0.1)]
)
def test_a_plan_at_work_finds_what_the_planner_finds(recipe: Recipe) -> None:
    profile, wanted = Profile(accesses(200, 0), ROWS), accesses(7, 2)
    threads = torch.get_num_threads()
    took = pir_timed.timed(TABLE, profile.plan(recipe), wanted, "chacha12")
    assert took.content == recipe.price(ROWS, WIDTH).bytes < took.messages
    assert took.server > 0 and took.client > 0 and torch.get_num_threads() == threads


def test_wrong_rows_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, wanted = Profile(accesses(200, 0), ROWS).plan(Recipe("bins", 8)), accesses(3, 2)
    other = TABLE.clone()
    other[wanted[1]] += 1
    with monkeypatch.context() as patch, pytest.raises(HummingbirdError, match="a wrong row"):
        patch.setattr(pir_timed, "plan_servers", lambda table, *rest: plan_servers(other, *rest))
        pir_timed.timed(TABLE, plan, wanted, "aes")
    with monkeypatch.context() as patch, pytest.raises(HummingbirdError, match="a wrong row"):  # zeros, where none is
        patch.setattr(pir_timed, "found", lambda _, wanted: [torch.ones(len(rows)).bool() for rows in wanted])
        pir_timed.timed(TABLE, plan, wanted, "aes")
    with monkeypatch.context() as patch, pytest.raises(HummingbirdError, match="other answers in a pass than alone"):
        patch.setattr(pir_timed, "answer_together", lambda server, queries: [b""])
        pir_timed.timed(TABLE, plan, wanted, "aes")


def test_bytes_that_were_not_foreseen_are_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pir_plan, "timed", lambda *_: pir_timed.Timed(1.0, 1.0, 30, 20))
    assert main(WORDS) == 1
    assert "error: messages have 20 bytes of keys and records, not" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--samples 0", "a number below 1"),
        ("--clients 0", "a number below 1"),
        ("--budget-bytes much", "'much' is no budget of bytes"),
        ("--budget-seconds 0", "a budget of 0 seconds"),
        ("--budget-bytes 300kB much", "'much' is no budget of bytes"),
        ("--budget-bytes 1kB", "no plan is within the budgets"),
        ("--json absent/rows.json", "there is no folder absent (at --json)"),
        ("--plot rows.nothing", "rows.nothing names no format (at --plot)"),
    ],
)
def test_wrong_arguments_are_one_error(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*WORDS, *shlex.split(words)]) == 1
    error = capsys.readouterr().err
    assert error.count("error: ") == 1 and message in error
    assert list(tmp_path.iterdir()) == []


def test_missing_weights_and_data_are_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from search import pir_apps

    monkeypatch.setattr(pir_plan, "load_application", pir_apps.load_application)
    for name in pir_apps.APPLICATIONS:
        assert main(["--application", name, "--weights", "none.pt", "--data", str(tmp_path)]) == 1
        assert capsys.readouterr().err.startswith("error: there is no file ")


def test_help_teaches() -> None:
    lines = re.sub(r" \\\n +", " ", parser().format_help())
    shown = re.findall(r"^    (python -m search\.pir_plan .*)$", lines, re.MULTILINE)
    assert len(shown) == 2
    for line in shown:
        parser().parse_args(shlex.split(line)[3:])
