"""The page of plans for private lookups: each figure of a row lands in its cell, and the best row is the one shown."""

from __future__ import annotations

from typing import Any

from scripts.papers.results_lookup import LOSSES, page


def row(family: str, loss: float, speed: float, **more: Any) -> dict[str, Any]:
    """As `search.pir_plan --json` writes it."""
    facts = {
        **{"application": "movielens", "measure": "AUC", "higher_is_better": True, "split": "validation"},
        **{"inferences": 1000, "exact": 0.75, "test_inferences": 900, "test_exact": 0.72, "table_rows": 9743},
        **{"row_bytes": 64, "clients": 32, "budgets_bytes": [2e7, 1.3e6], "budget_seconds": 0.3, "prf": "aes"},
        **{"speed_model_error_percent": 12.3, "hummingbird": "0", "torch": "2", "cpu": "one core"},
        **{"command": "python -m search.pir_plan --application movielens"},
    }
    plan = {"full": 16, "hot": 24 if "hot" in family else 0, "share": 0.1, "dropped_percent": 7.125}
    costs = {"bytes_per_inference": int(1e6 / speed) * 1000, "prf_blocks": 3000}
    tried = {"family": family, "kind": family.split(" + ")[0], "loss_percent": loss, "inferences_per_second": speed}
    timed = {"timed_inferences_per_second": 0.8 * speed, "client_milliseconds": 2.125}
    return {**facts, **plan, **costs, **tried, **timed, "test_loss_percent": 1.25, **more}


ROWS = [
    row("plain", 0.0, 100),
    row("plain", 0.4, 150),
    row("bins", 0.3, 400),
    row("bins + hot", -0.1, 500),
    row("bins + hot", 0.04, 700),
    row("bins + hot", 1.0, 900),
    row("cuckoo", 0.0, 1400),
    row("plain", 3.0, 60.5, application="other", measure="perplexity", command="python -m search.pir_plan other"),
]


def cells(text: str, title: str, line: str) -> list[str]:
    """Cells of the first line, under this title, that begins so."""
    found = text.partition(title)[2].partition(line)[2].partition("\n")[0]
    return [cell.strip() for cell in found.strip(" |").split("|")]


def test_the_best_plan_within_every_loss_is_shown() -> None:
    text = page(ROWS)
    assert LOSSES == (0.05, 0.5, 2.0, 5.0)
    speed, traffic = "## Inferences per second within 20000 kB", "## kB per inference"
    assert cells(text, speed, "| MovieLens, MLP | one key per lookup |") == ["100", "150", "150", "150"]
    assert cells(text, speed, "|  | bins |") == ["-", "400", "400", "400"]
    assert cells(text, speed, "|  | bins + hot |") == ["700", "700", "900", "900"]
    assert cells(text, speed, "|  | cuckoo code |") == ["1,400"] * 4
    assert cells(text, speed, "| other | one key per lookup |") == ["-", "-", "-", "60.5"]
    small = "## Inferences per second within 1300 kB"
    assert cells(text, small, "| MovieLens, MLP | bins + hot |") == ["-", "-", "900", "900"]
    assert cells(text, small, "|  | cuckoo code |") == ["1,400"] * 4
    assert cells(text, traffic, "|  | bins + hot |") == ["1,428", "1,428", "1,111", "1,111"]
    assert cells(text, "## Thousands of PRF blocks", "|  | bins + hot |") == ["3.00"] * 4


def test_gains_chosen_plans_and_where_they_come_from() -> None:
    text = page(ROWS)
    gains = "| times as fast |"
    assert cells(text, gains, "| MovieLens, MLP, 20000 kB, loss <= 0.05 % |") == ["-", "7.0", "14.0", "2.0"]
    assert cells(text, gains, "| MovieLens, MLP, 20000 kB, loss <= 0.5 % |") == ["1.8", "4.7", "9.3", "2.0"]
    assert cells(text, gains, "| other, 1300 kB, loss <= 5 % |") == ["-"] * 4
    eco = cells(text, "## Chosen plans", "| MovieLens, MLP, eco, 20000 kB | bins + hot |")
    assert eco == ["16 + 24 hot of 10 %", "7.12", "0.04", "1.25", "1,428.0", "700", "560", "2.12"]
    assert cells(text, "## Chosen plans", "| MovieLens, MLP, relaxed, 20000 kB | bins + hot |")[-3] == "700"
    assert cells(text, "## Chosen plans", "| other, relaxed, 20000 kB | one key per lookup |")[-3:-1] == ["60", "48"]
    assert "python -m search.pir_plan --application movielens\npython -m search.pir_plan other\n" in text
    assert "0.7500 on 1,000 inferences of the validation split, 0.7200 on 900 of the test split" in text
    assert "(12 % off at most)" in " ".join(text.split()) and "{" not in text
