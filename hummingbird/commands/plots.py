"""The two pictures of a search: retained and discarded bits per layer, and accuracy against bytes sent.

The first is Figure 12 of Maeng and Suh, "HummingBird", 2023: a column of bits for every layer. The second shows the
accuracy at other budgets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hummingbird.bits import BitConfig
from hummingbird.commands.files import check_writable
from hummingbird.errors import EnvironmentProblem, InputError
from hummingbird.ring import SCALE
from hummingbird.window_search import ComparingLayer

_KEPT, _CUT, _UNIFORM = "#4c72b0", "#d8d8d8", "#dd8452"


def drawing() -> Any:
    """Return matplotlib.pyplot, set to draw into files. Raises EnvironmentProblem without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise EnvironmentProblem("a plot needs matplotlib", hint="pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def check(path: Path, where: str) -> None:
    """Raise an error, before hours of search, if the picture of its result could not be written.

    where: the option that names the picture. Raises EnvironmentProblem without matplotlib, InputError for a path or a
    format that cannot be written.
    """
    known = drawing().gcf().canvas.get_supported_filetypes()
    drawing().close()
    if path.suffix[1:] not in known:
        raise InputError(f"{path.name} names no format", where=where, hint=f"one of .{', .'.join(sorted(known))}")
    check_writable(path, where)


def draw_windows(layers: Sequence[ComparingLayer], config: BitConfig, path: Path) -> None:
    """Draw every layer's 64 bits, with the kept ones in colour, and a mark at the largest |x| that the layer compares.

    config: the windows, whose bits are kept. Draws only the lower 32 bits if no window and no |x| reaches bit 32.
    """
    pyplot = drawing()
    windows = [config.window(layer.name) for layer in layers]
    highest = max(max(window.k for window in windows), max(layer.largest for layer in layers).bit_length())
    height = 32 if highest <= 32 else 64
    figure, axes = pyplot.subplots(figsize=(max(4.0, 1.5 + 0.35 * len(layers)), 4.5))
    places = range(len(layers))
    axes.bar(places, [height] * len(layers), 0.8, color=_CUT, label="discarded")
    axes.bar(
        places, [window.w for window in windows], 0.8, [window.low for window in windows], color=_KEPT, label="retained"
    )
    marks = [(place, math.log2(layer.largest)) for place, layer in zip(places, layers, strict=True) if layer.largest]
    if marks:
        axes.hlines(
            [y for _, y in marks],
            [x - 0.4 for x, _ in marks],
            [x + 0.4 for x, _ in marks],
            color="black",
            label="largest |x|",
        )
    axes.axhline(SCALE, color="black", linewidth=0.5, linestyle=":", label="1.0")
    axes.set_ylim(0, height)
    axes.set_yticks(range(0, height + 1, 8))
    axes.set_ylabel("bit" if height == 64 else "bit (those from 32 to 63 are discarded too)")
    axes.set_xticks(places, [layer.name for layer in layers], rotation=60, ha="right", fontsize=7)
    figure.legend(loc="upper center", ncol=4, fontsize=7, frameon=False)
    _save(figure, path, top=0.95)


def draw_frontier(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw accuracy against kB sent online per image: one line for the windows found, one for uniform windows.

    Windows are uniform if all layers have the same. rows: figures, one for each budget and line. path: the picture.
    """
    pyplot = drawing()
    figure, axes = pyplot.subplots(figsize=(6.5, 4.5))
    for how, colour, mark in (("searched", _KEPT, "o"), ("uniform", _UNIFORM, "s")):
        line = sorted((row for row in rows if row["windows"] == how and row["met"]), key=_sent)
        if not line:
            continue
        axes.plot(
            [_sent(row) for row in line],
            [row["accuracy_percent"] for row in line],
            color=colour,
            marker=mark,
            label=f"{how} windows",
        )
        for row in line:
            axes.annotate(
                row["budget"],
                (_sent(row), row["accuracy_percent"]),
                xytext=(3, 5 if how == "searched" else -11),
                textcoords="offset points",
                fontsize=7,
            )
    axes.axhline(rows[0]["exact_accuracy_percent"], color="black", linewidth=0.5, linestyle=":", label="exact net")
    axes.set_xlabel("kB sent online per party and image")
    axes.set_ylabel(f"accuracy, % of {rows[0]['images']} images")
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    _save(figure, path)


def _sent(row: dict[str, Any]) -> float:
    return float(row["online_kilobytes_per_image"])


def _save(figure: Any, path: Path, top: float = 1.0) -> None:
    figure.tight_layout(rect=(0, 0, 1, top))
    figure.savefig(path, dpi=150)
    drawing().close(figure)
