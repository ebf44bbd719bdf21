"""Rows of scripts/bench/hybrid.py: one quantity each, measured, beside what was predicted, its mark and the paper's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]
HEAD = ["what", "unit", "measured", "predicted", "mark", "paper"]


def row(
    what: str,
    unit: str,
    measured: float | None,
    *,
    predicted: float | None = None,
    mark: str = "",
    paper: float | None = None,
    **more: Any,
) -> Row:
    """A flat row; mark: what the project set out to reach, as "<= 3". `more`: columns of the file alone."""
    figures = {"measured": measured, "predicted": predicted, "mark": mark, "paper": paper}
    return {"what": what, "unit": unit, **figures, **more}


def cells(row: Row) -> list[str]:
    """The row's cells below `HEAD`."""
    measured, predicted, paper = (number(row[key]) for key in ("measured", "predicted", "paper"))
    return [row["what"], row["unit"], measured, predicted, row["mark"], paper]


def number(value: float | None) -> str:
    """Five figures, or all of a whole number; "" for None."""
    if value is None:
        return ""
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.5g}"


def taken(run: Callable[[], object]) -> float:
    """Seconds of a call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def median(run: Callable[[], object], repeats: int) -> float:
    """The median time of a call in seconds, after one that is not counted."""
    run()
    return statistics.median(taken(run) for _ in range(repeats))
