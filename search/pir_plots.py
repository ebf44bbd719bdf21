"""Quality against inferences per second, and against bytes: as Figures 11 and 16 to 19 of Lam et al. (ASPLOS 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hummingbird.pictures import AMBER, BLUE, GREY, INK, picture
from hummingbird.pir.batching.cost_model import pareto

_COLOURS = {"plain": GREY, "bins": AMBER, "cuckoo": BLUE}
_STYLES = {0: ":", 1: "--", 2: "-"}  # by how many of hot table and companions


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw quality against speed and against bytes into a file, with a line for every family of plans.

    rows: results of `Search.row`. A line joins the plans that no other of their family beats; a dotted line is the
    quality if all rows are found.
    """
    facts = rows[0]
    sign = -1 if facts["higher_is_better"] else 1
    with picture(11, 4.8) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        for family in dict.fromkeys(row["family"] for row in rows):
            here = [row for row in rows if row["family"] == family]
            kind, *more = family.split(" + ")
            mark = {"": "o", "hot": "s", "companions": "^"}[more[-1] if more else ""]
            style = {"color": _COLOURS[kind], "linestyle": _STYLES[len(more)], "marker": mark, "markersize": 4}
            for axes, key, factor in ((left, "inferences_per_second", 1.0), (right, "bytes_per_inference", 1e-3)):
                costs = [-row[key] if axes is left else row[key] for row in here]
                best = pareto([(cost, sign * row["quality"]) for cost, row in zip(costs, here, strict=True)])
                line = sorted((here[number][key] * factor, here[number]["quality"]) for number in best)
                axes.plot([x for x, _ in line], [y for _, y in line], label=family, **style)
        for axes in (left, right):
            axes.axhline(facts["exact"], color=INK, linewidth=0.5, linestyle=":", label="all rows found")
            axes.set_xscale("log")
            axes.tick_params(axis="x", which="both", labelsize=7)
        for budget in facts["budgets_bytes"]:
            right.axvline(budget / 1e3, color=INK, linewidth=0.5, linestyle="--")
        left.set_xlabel("inferences per second of one core of each server")
        right.set_xlabel("kB per inference, both servers, both ways")
        left.set_ylabel(f"{facts['measure']} ({facts['inferences']} inferences of the {facts['split']} split)")
        left.legend(fontsize=7)
        figure.suptitle(facts["application"], fontsize=10)
        figure.savefig(path, dpi=150)
