"""Charts as SVG text: bars and lines, in light and dark, the same bytes for the same numbers on every machine.

matplotlib's files change with its version and its fonts. These need neither: sizes are whole numbers of pixels, letters
are the reader's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

WIDTH = 860
_STYLE = """\
    svg { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 13px; }
    .page { fill: #ffffff; }
    .ink { fill: #1b2430; }
    .name { fill: #1b2430; font-weight: 600; }
    .note { fill: #4a5668; }
    .axis { stroke: #8c98a8; fill: none; }
    .grid { stroke: #dde3ea; fill: none; }
    .a { fill: #2f6fd0; stroke: #2f6fd0; }
    .b { fill: #c08a2d; stroke: #c08a2d; }
    .c { fill: #8c98a8; stroke: #8c98a8; }
    .line { fill: none; stroke-width: 2; }
    @media (prefers-color-scheme: dark) {
      .page { fill: #12171e; }
      .ink, .name { fill: #e8edf4; }
      .note { fill: #a9b5c5; }
      .axis { stroke: #66758a; }
      .grid { stroke: #2a3440; }
      .a { fill: #6aa3f5; stroke: #6aa3f5; }
      .b { fill: #c99a45; stroke: #c99a45; }
      .c { fill: #66758a; stroke: #66758a; }
      .line { fill: none; }
    }"""


class Bar(NamedTuple):
    """A row of a bar chart: its name, lengths one after the other, each with a colour "a" to "c", and words behind.

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


@dataclass
class Drawing:
    """Elements on a page of WIDTH x `height` pixels; `text()` is the file. title, words: for who cannot see it."""

    title: str
    words: str
    height: int
    elements: list[str] = field(default_factory=list)

    def write(self, x: float, y: float, text: str, kind: str = "ink", anchor: str = "start") -> None:
        """Letters at a place."""
        self.elements.append(
            f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """A filled rectangle."""
        self.elements.append(
            f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}"/>'
        )

    def join(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """A line through points."""
        places = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
        self.elements.append(f'<polyline class="{kind}" points="{places}"/>')

    def dot(self, x: float, y: float, kind: str) -> None:
        """A point."""
        self.elements.append(f'<circle class="{kind}" cx="{x:.0f}" cy="{y:.0f}" r="4"/>')

    def legend(self, x: float, y: float, names: dict[str, str]) -> None:
        """Colours and their meanings, in a row."""
        for colour, name in names.items():
            self.box(x, y - 10, 11, 11, colour)
            self.write(x + 18, y, name, "note")
            x += 40 + 7 * len(name)

    def text(self) -> str:
        """The file."""
        inner = "\n".join(f"  {element}" for element in self.elements)
        return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" role="img" aria-labelledby="title text">
  <title id="title">{escape(self.title)}</title>
  <desc id="text">{escape(self.words)}</desc>
  <style>
{_STYLE}
  </style>
  <rect class="page" width="{WIDTH}" height="{self.height}" rx="12"/>
{inner}
</svg>
"""


def bar_chart(title: str, words: str, rows: Sequence[Bar], legend: dict[str, str], *, left: int = 250) -> str:
    """Horizontal bars on one linear scale from 0; left: pixels for their names."""
    step, top = 24, 66
    drawing = Drawing(title, words, top + step * len(rows) + 16)
    drawing.write(24, 30, title, "name")
    drawing.legend(24, 52, legend)
    most = max(sum(length for length, _ in row.parts) for row in rows)
    scale = (WIDTH - left - 190) / most
    for number, row in enumerate(rows):
        y, x = top + step * number, float(left)
        if not row.parts:
            drawing.write(24, y + 16, row.name, "name")
            continue
        drawing.write(left - 10, y + 16, row.name, "ink", "end")
        for length, colour in row.parts:
            drawing.box(x, y + 4, max(1.0, length * scale), step - 8, colour)
            x += length * scale
        drawing.write(x + 8, y + 16, row.words, "note")
    return drawing.text()


class Panel(NamedTuple):
    """A diagram: lines over axes with marks at these places. logarithmic: the x axis."""

    below: str
    lines: Sequence[Line]
    x_marks: Sequence[float]
    y_marks: Sequence[float]
    logarithmic: bool = False


def line_chart(title: str, words: str, panels: Sequence[Panel], legend: dict[str, str]) -> str:
    """Panels side by side, with one y axis' unit each."""
    drawing = Drawing(title, words, 400)
    drawing.write(24, 30, title, "name")
    drawing.legend(24, 52, legend)
    width = (WIDTH - 24) / len(panels)
    for number, panel in enumerate(panels):
        _draw(drawing, panel, 24 + number * width + 36, 80, width - 76, 260)
    return drawing.text()


def _draw(drawing: Drawing, panel: Panel, left: float, top: float, width: float, height: float) -> None:
    """A panel, its axes at the left and the bottom of this rectangle."""

    def across(x: float) -> float:
        first, last, own = panel.x_marks[0], panel.x_marks[-1], x
        if panel.logarithmic:
            first, last, own = math.log(first), math.log(last), math.log(x)
        return left + width * (own - first) / (last - first)

    def up(y: float) -> float:
        return top + height * (panel.y_marks[-1] - y) / (panel.y_marks[-1] - panel.y_marks[0])

    for mark in panel.y_marks:
        drawing.join([(left, up(mark)), (left + width, up(mark))], "grid")
        drawing.write(left - 8, up(mark) + 4, f"{mark:g}", "note", "end")
    for mark in panel.x_marks:
        drawing.join([(across(mark), top + height), (across(mark), top + height + 5)], "axis")
        drawing.write(across(mark), top + height + 20, f"{mark:,g}", "note", "middle")
    drawing.join([(left, top), (left, top + height), (left + width, top + height)], "axis")
    drawing.write(left + width / 2, top + height + 42, panel.below, "ink", "middle")
    for line in panel.lines:
        places = [(across(x), up(y)) for x, y, _ in line.points]
        drawing.join(places, f"{line.colour} line")
        for (x, y), (_, _, word) in zip(places, line.points, strict=True):
            drawing.dot(x, y, line.colour)
            if word:
                drawing.write(x + 7, y + (18 if line.below else -8), word, "note")
