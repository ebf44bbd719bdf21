"""The charts of the pages, drawn from the tables beside them: `python -m scripts.papers.figures` writes docs/figures.

    accuracy    docs/windows.md       accuracy against bits kept and against kB sent
    capacity-*  docs/capacity.md      latency against the rate and the store, and faster primitives, of a paper remade
    layers      checkpoints           kB that ResNet-18's layers send for an image, by the formulas of `estimate`
    seconds     docs/benchmarks.md    seconds of an image through ResNet-18, by link
    times       docs/benchmarks.md    where an image's time goes in ResNet-18, by stage
    two-party   docs/two-party.md     where an image's time goes without a dealer

A figure has no number that does not stand in a table, or in a formula that tests compare with what is sent. A file has
its letters as text, so that the reader's fonts draw them, and all bars and lines under names, by which tests read them.
One version of matplotlib writes the same bytes on every machine.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import hummingbird
from hummingbird.errors import InputError
from hummingbird.pictures import AMBER, BLUE, GREY, INK, NOTE, picture
from hummingbird.report import Estimate
from models import get_model
from scripts.bench.layer_times import HEAD
from scripts.program import ROOT, main_of, new_parser

Rows = dict[str, dict[str, str]]  # cells by the row's first cell, then by the column's head

WIDTH = 860.0  # points, of every chart
_COLOURS = {"a": BLUE, "b": AMBER, "c": GREY}
_STYLE = {  # besides the one of all pictures
    "svg_fonttype": "none",
    "svg_hashsalt": "hummingbird",  # without one, names inside a file are random
    "font_size": 12,
}


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


def line_chart(title: str, words: str, panels: Sequence[Panel], legend: dict[str, str]) -> str:
    """Draw panels side by side as an SVG. Line j of panel i is in the group "line-i-j"."""

    def draw(figure: Any) -> None:
        width = (WIDTH - 24) / len(panels)
        for number, panel in enumerate(panels):
            box = [(24 + number * width + 36) / WIDTH, 60 / height, (width - 76) / WIDTH, 250 / height]
            axes = figure.add_axes(box)
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

    height = 400.0
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


def accuracy() -> str:
    """Accuracy of ResNet-18 against bits kept, and against kB sent."""
    page, net = ROOT / "docs/windows.md", "ResNet-18, CIFAR-10"
    exact = table(page, "## Accuracy")[net]
    changed = table(page, "Answers, of 10,000")
    private = table(page, "## Private inference")
    budgets = [name for name in exact if re.fullmatch(r"\d/64", name)]
    found = [(number(name), number(exact[name]), "") for name in budgets]
    rows = [changed[f"{net}, {name}"] for name in budgets]
    uniform = [
        (number(name), number(row["accuracy"]), row["one window for all layers"])  # the last column of this name
        for name, row in zip(budgets, rows, strict=True)
    ]
    sent = [(number(private[name]["kB/image"]), number(exact[name]), name) for name in ("exact", "eco", *budgets)]
    lines = [Line("a", sent[:3]), *(Line("a", [point], True) for point in sent[3:])]
    least = min(y for _, y, _ in (*found, *uniform))
    marks = range(int(least) - 1, 96, 2)
    return line_chart(
        "ResNet-18 on CIFAR-10: what windows cost in accuracy, and save in bytes",
        "; ".join(f"{x:g} bits: {y:g} % searched" for x, y, _ in found)
        + "; "
        + "; ".join(f"{name} {y:g} % at {x:g} kB" for x, y, name in sent),
        [
            Panel(
                "accuracy, %",
                "bits kept of 64, on average",
                [Line("a", found), Line("b", uniform, True)],
                range(3, 10),
                marks,
            ),
            Panel("accuracy, %", "kB sent by a party for an image", lines, (400, 800, 1600, 3200), marks, True),
        ],
        {"a": "windows searched by layer, of 10,000 test images", "b": "one window for all layers"},
    )


def layers() -> str:
    """KB that a party sends for an image, by stage, with exact comparisons and with shipped windows."""
    net, shape = get_model("resnet18", 10).eval(), (1, 3, 32, 32)
    windows = ROOT / "checkpoints/resnet18-cifar10-8-64.bits.json"
    exact, found = (_sent(hummingbird.estimate(net, shape, bits)) for bits in (None, windows))
    bars = []
    for name, most in exact.items():
        bars += [Bar(name, [(most, "c")], f"{most:,.1f} kB"), Bar("", [(found[name], "a")], f"{found[name]:,.1f} kB")]
    return bar_chart(
        "ResNet-18, 32x32 pixels: what a party sends for an image, by stage",
        "; ".join(f"{name}: {most:.1f} kB exact, {found[name]:.1f} kB with windows" for name, most in exact.items()),
        bars,
        {"c": "exact comparisons", "a": "8 bits of 64 (resnet18-cifar10-8-64.bits.json)"},
        left=150,
    )


def _sent(costs: Estimate) -> dict[str, float]:
    """KB by stage: the outermost module of a ReLU, and all other layers together."""
    found: dict[str, float] = {}
    for step in costs.layers:
        stage = step.name.partition(".")[0] if step.window else "linear layers"
        found[stage] = found.get(stage, 0.0) + step.cost.bits / 8e3
    rest = found.pop("linear layers")
    return {**found, "linear layers": rest}


def seconds() -> str:
    """Seconds of an image through ResNet-18, by link."""
    rows = table(ROOT / "docs/benchmarks.md", "<!-- measured -->")
    window, exact = "ResNet-18, window [20:12)", "ResNet-18, exact [64:0)"
    each = "seconds per image"
    shaped = rows[f"{window}, at 352 Mb/s: {each}, dealer online"]
    bars = [
        Bar("on one host (loopback)"),
        _timed("CrypTen 0.4.1, exact", rows[f"{window}: {each}, dealer online"]["CrypTen 0.4.1"], "c"),
        _timed("exact, dealer online", rows[f"{exact}: {each}, dealer online"]["here"], "a"),
        _timed("window [20:12), dealer online", rows[f"{window}: {each}, dealer online"]["here"], "a"),
        _timed("window [20:12), dealt in advance", rows[f"{window}: {each}, dealt in advance"]["here"], "a"),
        Bar("at 352 Mb/s"),
        _timed("CrypTen 0.4.1, exact", shaped["CrypTen 0.4.1"], "c"),
        _timed("window [20:12), dealer online", shaped["here"], "a"),
    ]
    return bar_chart(
        "ResNet-18, 32x32 pixels: seconds for an image, in batches of 8",
        "; ".join(f"{bar.name}: {bar.words}" if bar.words else bar.name for bar in bars),
        bars,
        {"c": "CrypTen as shipped", "a": "here"},
    )


def _timed(name: str, cell: str, colour: str) -> Bar:
    return Bar(name, [(number(cell), colour)], f"{number(cell):g} s")


def times() -> str:
    """Milliseconds of party 0 for an image through ResNet-18, by stage."""
    rows = table(ROOT / "docs/benchmarks.md", "## Where an image's time goes")
    bars = []
    for name, row in rows.items():
        parts = [(number(row[column]), colour) for column, colour in zip(HEAD[1:], "abc", strict=True)]
        if name != "all":
            bars.append(Bar(name, parts, f"{sum(length for length, _ in parts):.1f} ms"))
    return bar_chart(
        "ResNet-18, 32x32 pixels, 8 bits of 64: where an image's time goes at party 0",
        "; ".join(f"{bar.name}: {bar.words}" for bar in bars),
        bars,
        dict(zip("abc", HEAD[1:], strict=True)),
        left=150,
    )


def two_party() -> str:
    """Seconds before the image is there and with it, two parties without a dealer."""
    page = ROOT / "docs/two-party.md"
    rows = table(page, "weights existed before:")
    bars = []
    for name, row in rows.items():
        before, with_it = number(row["s before"]), number(row["s with it"])
        bars.append(Bar(name, [(before, "c"), (with_it, "a")], f"{before:g} s and {with_it:g} s"))
    return bar_chart(
        "Two parties without a dealer: where an image's time goes",
        "; ".join(f"{bar.name}: {bar.words}" for bar in bars),
        bars,
        {"c": "before the image is there", "a": "with the image"},
    )


_CAPACITY = ROOT / "docs/capacity.md"


def capacity_rate() -> str:
    """Minutes from arrival to prediction against requests an hour, baseline and proposal of Garimella et al."""
    rows = table(_CAPACITY, "## Figures 7 and 12")
    panels = []
    for what, marks in (("mean", (0, 10, 20, 30, 40)), ("p99", (0, 40, 80, 120, 160))):
        lines = [Line(colour, _measured(rows, f"{who}, {what}", _hourly)) for who, colour in _SERVICES.items()]
        panels.append(Panel(f"{what}, minutes", "requests an hour", lines, range(0, 16, 3), marks))
    return line_chart(
        "ResNet-18 on CIFAR, 16 GB: minutes from arrival to prediction",
        "; ".join(
            f"1 per {name} minutes: {row['baseline, mean']} and {row['proposal, mean']}" for name, row in rows.items()
        ),
        panels,
        {"c": "baseline: SG, one thread", "a": "proposal: CG, LPHE, WSA"},
    )


_SERVICES = {"baseline": "c", "proposal": "a"}


def _hourly(minutes: str) -> float:
    """Requests an hour, of the minutes between two."""
    return 60 / number(minutes)


def _measured(rows: Rows, column: str, across: Callable[[str], float]) -> list[tuple[float, float, str]]:
    """A column's minutes, where they do not grow, at `across` of the rows' names."""
    cells = [(name, row[column]) for name, row in rows.items() if name != "limit" and row[column] != "grows"]
    return [(across(name), number(cell), "") for name, cell in cells]


def capacity_store() -> str:
    """Minutes from arrival to prediction against the client's store, RLP and LPHE."""
    rows = table(_CAPACITY, "## Figure 10")
    panels = []
    for column, marks in (("1 per 60", (0, 50, 100, 150)), ("1 per 18", (0, 25, 50, 75, 100))):
        lines = [
            Line(colour, _measured(rows, f"{how}, {column}", number)) for how, colour in (("RLP", "c"), ("LPHE", "a"))
        ]
        rate = f"a request every {column.removeprefix('1 per ')} minutes: mean, minutes"
        panels.append(Panel(rate, "GB at the client", lines, (8, 16, 32, 64, 140), marks, True))
    return line_chart(
        "ResNet-18 on TinyImageNet, CG: minutes from arrival to prediction",
        "; ".join(f"{name}: RLP {row['RLP, 1 per 18']}, LPHE {row['LPHE, 1 per 18']}" for name, row in rows.items()),
        panels,
        {"c": "RLP: refills side by side", "a": "LPHE: layers side by side"},
    )


def capacity_future() -> str:
    """Seconds of a request with faster primitives."""
    rows = table(_CAPACITY, "## Figure 14")
    bars = [Bar(name, [(number(row["model"]), "a")], row["model"]) for name, row in rows.items()]
    return bar_chart(
        "ResNet-18 on TinyImageNet: a request with faster primitives",
        "; ".join(f"{bar.name}: {bar.words}" for bar in bars),
        bars,
        {"a": "seconds in all"},
        left=330,
    )


CHARTS: dict[str, Callable[[], str]] = {
    "accuracy": accuracy,
    "capacity-future": capacity_future,
    "capacity-rate": capacity_rate,
    "capacity-store": capacity_store,
    "layers": layers,
    "seconds": seconds,
    "times": times,
    "two-party": two_party,
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser(__doc__, "scripts.papers.figures")
    made.add_argument(
        "--out-folder", type=Path, default=ROOT / "docs/figures", metavar="FOLDER", help="default: docs/figures"
    )
    return made


def run(args: argparse.Namespace) -> None:
    """Draw and write all charts."""
    drawn = {name: draw() for name, draw in CHARTS.items()}
    args.out_folder.mkdir(exist_ok=True)
    for name, text in drawn.items():
        (args.out_folder / f"{name}.svg").write_text(text, encoding="utf-8")
    print(f"wrote {', '.join(f'{name}.svg' for name in drawn)} to {args.out_folder}")


main = main_of(parser, run, "interrupted")


if __name__ == "__main__":
    sys.exit(main())
