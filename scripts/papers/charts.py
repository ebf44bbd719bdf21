"""Charts as SVG files: bars and lines drawn by matplotlib from numbers, and the tables of pages that hold the numbers.

A file has its letters as text, so that the reader's fonts draw them, and all bars and lines under names, by which tests
read them. One version of matplotlib writes the same bytes on every machine.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hummingbird.errors import InputError
from hummingbird.pictures import AMBER, BLUE, GREEN, GREY, INK, NOTE, RED, VIOLET, picture

Rows = dict[str, dict[str, str]]  # cells by the row's first cell, then by the column's head

WIDTH = 860.0  # points, of every chart
_COLOURS = {"a": BLUE, "b": AMBER, "c": GREY, "d": GREEN, "e": RED, "f": VIOLET}
_STYLE = {  # besides the one of all pictures
    "svg_fonttype": "none",
    "svg_hashsalt": "hummingbird",  # without one, names inside a file are random
    "font_size": 12,
}


class Bar(NamedTuple):
    """A row of a bar chart: its name, lengths one after the other, each with a colour "a" to "f", and words behind.

    A row without lengths is a heading.
    """

    name: str
    parts: Sequence[tuple[float, str]] = ()
    words: str = ""


class Line(NamedTuple):
    """Points (x, y) of a panel in one colour, joined, each with a word; "" for none."""

    colour: str
    points: Sequence[tuple[float, float, str]]
    below: bool = False  # the words


class Panel(NamedTuple):
    """A diagram: lines over axes with marks at these places. above, below: names of the y and of the x axis.

    logarithmic: the x axis.
    """

    above: str
    below: str
    lines: Sequence[Line]
    x_marks: Sequence[float]
    y_marks: Sequence[float]
    logarithmic: bool = False


def bar_chart(title: str, words: str, rows: Sequence[Bar], legend: dict[str, str], *, left: float = 250) -> str:
    """Draw horizontal bars on one linear scale from 0, as an SVG; left: points for their names.

    Part j of row i is the path in the group "bar-i-j".
    """

    def draw(figure: Any) -> None:
        axes = figure.add_axes([left / WIDTH, 16 / height, (WIDTH - left - 170) / WIDTH, step * len(rows) / height])
        axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, max(sum(length for length, _ in row.parts) for row in rows)))
        axes.axis("off")
        for number, row in enumerate(rows):
            end = 0.0
            for part, (length, colour) in enumerate(row.parts):
                bar = axes.barh(number, length, 0.68, end, color=_COLOURS[colour])[0]
                bar.set(gid=f"bar-{number}-{part}", clip_on=False)
                end += length
            style = {"textcoords": "offset points", "va": "center_baseline", "annotation_clip": False}
            if not row.parts:
                axes.annotate(row.name, (0, number), (24 - left, 0), weight="bold", **style)
                continue
            axes.annotate(row.name, (0, number), (-10, 0), ha="right", **style)
            axes.annotate(row.words, (end, number), (8, 0), color=NOTE, **style)

    step = 24.0
    height = 66 + step * len(rows) + 16
    return _file(title, words, height, legend, draw)


def line_chart(
    title: str, words: str, panels: Sequence[Panel], legend: dict[str, str], *, across: int | None = None
) -> str:
    """Draw panels as an SVG, `across` of them side by side (all by default), and the others below.

    Line j of panel i is in the group "line-i-j".
    """

    def draw(figure: Any) -> None:
        for number, panel in enumerate(panels):
            row, column = divmod(number, columns)
            box = [24 + column * width + 36, height - 340 * (row + 1), width - 76, 250]
            axes = figure.add_axes([box[0] / WIDTH, box[1] / height, box[2] / WIDTH, box[3] / height])
            axes.set_xscale("log" if panel.logarithmic else "linear")
            axes.set_xticks(panel.x_marks, [f"{mark:,g}" for mark in panel.x_marks])
            axes.set_xticks([], minor=True)
            axes.set_yticks(panel.y_marks, [f"{mark:g}" for mark in panel.y_marks])
            axes.tick_params(axis="y", length=0, pad=8)
            axes.set_xlabel(panel.below, labelpad=8)
            axes.set_title(panel.above, loc="left", x=-24 / (width - 76), color=INK, size=12, pad=12)
            axes.grid(axis="y")
            for own, line in enumerate(panel.lines):
                xs, ys = [x for x, _, _ in line.points], [y for _, y, _ in line.points]
                style = {"color": _COLOURS[line.colour], "marker": "o", "markersize": 7, "clip_on": False, "zorder": 3}
                axes.plot(xs, ys, linewidth=2, gid=f"line-{number}-{own}", **style)
                for x, y, word in line.points:
                    offset = (7, -15) if line.below else (7, 7)
                    axes.annotate(word, (x, y), offset, textcoords="offset points", color=NOTE, annotation_clip=False)
            axes.set(xlim=(panel.x_marks[0], panel.x_marks[-1]), ylim=(panel.y_marks[0], panel.y_marks[-1]))

    columns = across or len(panels)
    width = (WIDTH - 24) / columns
    height = 60.0 + 340 * -(-len(panels) // columns)
    return _file(title, words, height, legend, draw)


def _file(title: str, words: str, height: float, legend: dict[str, str], draw: Callable[[Any], None]) -> str:
    """An SVG of WIDTH x `height` points; words: the description, for who cannot see it."""
    with picture(WIDTH / 72, height / 72, figure_dpi=72, **_STYLE) as figure:
        from matplotlib.patches import Rectangle

        figure.set_layout_engine("none")  # places are points
        figure.text(24 / WIDTH, 1 - 30 / height, title, weight="bold", size=13)
        names = [Rectangle((0, 0), 1, 1, color=_COLOURS[colour]) for colour in legend]
        figure.legend(
            names,
            list(legend.values()),
            loc="center left",
            bbox_to_anchor=(24 / WIDTH, 1 - 47 / height),
            ncols=len(legend),
            frameon=False,
            labelcolor=NOTE,
            borderpad=0,
            borderaxespad=0,
            handlelength=1,
            handleheight=1,
        )
        draw(figure)
        written = io.StringIO()
        about = {"Title": title, "Description": words, "Date": None, "Creator": None}
        figure.savefig(written, format="svg", metadata=about)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"


def table(page: Path, after: str) -> Rows:
    """The first table of a page behind these words; InputError without."""
    _, found, rest = page.read_text(encoding="utf-8").partition(after)
    lines = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    if not found or lines is None:
        raise InputError(f"no table behind {after!r}", where=str(page), hint="the table that the chart is drawn from")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[0].splitlines()]
    head = cells[0]
    return {row[0]: dict(zip(head, row, strict=True)) for row in cells[2:]}


def number(cell: str) -> float:
    """The first number of a cell: 93.32 of "93.32 ± 0.05"."""
    found = re.match(r"-?[\d,]+(?:\.\d+)?", cell)
    if found is None:
        raise InputError(f"{cell!r} begins with no number", where="table")
    return float(found[0].replace(",", ""))
