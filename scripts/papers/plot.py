"""Where the time goes and the speedup, as bars: as HummingBird's Figures 1, 9, 10 and 11 (Maeng and Suh, 2023).

One column per link. Above, a stacked bar per run: linear layers, ReLU (computing), the rest, the wire (waiting for the
other party), and correlated randomness; beside it, hatched, work on that randomness which other threads and the dealer
do. Below, times faster than CrypTen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hummingbird.pictures import AMBER, BLUE, GREEN, GREY, INK, RED, VIOLET, picture
from scripts.bench.contest import BESIDE, PARTS

LABELS = {
    "linear": "linear layers",
    "relu": "ReLU, computing",
    "rest": "other layers, opening",
    "wire": "wire (waiting)",
    "offline": "drawing randomness, or waiting",
    "expanding": "seeds, meanwhile",
    "dealer": "dealer, meanwhile or before",
}
COLOURS = dict(zip(PARTS, (BLUE, AMBER, GREY, RED, VIOLET), strict=True))


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw a benchmark's rows into a file; its suffix says the format. EnvironmentProblem without matplotlib."""
    key = next(key.removeprefix("online_") for key in rows[0] if key.startswith("online_") and "seconds_per" in key)
    links = list(dict.fromkeys(row["link"] for row in rows))
    most = max(sum(row["link"] == link for row in rows) for link in links)
    size = (1.5 + len(links) * max(2.8, 0.4 * most), 7.5)
    with picture(*size) as figure:
        axes = figure.subplots(2, len(links), squeeze=False)
        for column, link in enumerate(links):
            here = [row for row in rows if row["link"] == link]
            places, names = range(len(here)), [_name(row, here) for row in here]
            above, below = axes[0][column], axes[1][column]
            bottom = [0.0] * len(here)
            for part in PARTS:
                heights = [max(0.0, row[f"{part}_{key}"]) for row in here]
                above.bar(places, heights, 0.6, bottom, color=COLOURS[part], label=LABELS[part])
                bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
            bottom = [0.0] * len(here)
            for part, hatch in zip(BESIDE, ("...", "///"), strict=True):
                heights = [row[f"{part}_{key}"] for row in here]
                style = {"color": "white", "edgecolor": INK, "linewidth": 0.5, "hatch": hatch}
                above.bar([x + 0.4 for x in places], heights, 0.2, bottom, label=LABELS[part], **style)
                bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
            how = ", ".join(dict.fromkeys(row["times"] for row in here))
            above.set_title(f"{link} ({how})", fontsize=9)
            above.set_xticks(places, [])
            bars = below.bar(places, [row["speedup_total"] for row in here], 0.6, color=GREEN)
            below.bar_label(bars, fmt="%.1f", fontsize=7)
            below.set_xticks(places, names, rotation=60, ha="right", fontsize=7)
        axes[0][0].set_ylabel(key.replace("_", " "))
        axes[1][0].set_ylabel("times faster than CrypTen")
        handles, labels = axes[0][0].get_legend_handles_labels()
        across = min(len(labels), int(size[0] / 2))
        figure.legend(handles, labels, loc="outside upper center", ncol=across, fontsize=7)
        figure.savefig(path, dpi=150)


def _name(row: dict[str, Any], here: Sequence[dict[str, Any]]) -> str:
    """The label that tells a bar from the others."""
    same = [r for r in here if (r["protocol"], r["window"]) == (row["protocol"], row["window"])]
    differ = [key for key in ("material", "aim", "dealer") if len({r[key] for r in same}) > 1 and row[key]]
    words = [row["protocol"], row["window"], *(row[key] for key in differ)]
    words += [row["weights"]] if len({r.get("weights") for r in here}) > 1 else []
    return " ".join(words)
