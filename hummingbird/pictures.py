"""Pictures: the style that all share, and bars that show where a net's bytes, rounds and seconds go.

matplotlib draws them. It is not installed with the package, but with `hummingbird-mpc[plot]`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hummingbird.errors import ConfigError, needs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, NOTE, AXIS, GRID = "#1b2430", "#4a5668", "#8c98a8", "#dde3ea"
BLUE, AMBER, GREY, RED, VIOLET, GREEN = "#2f6fd0", "#d18f1f", "#97a3b3", "#c2483f", "#7b61b8", "#3f9a5b"
STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica", "Arial", "sans-serif"],  # the widest first
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": AXIS,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "xtick.color": AXIS,
    "ytick.color": AXIS,
    "xtick.labelcolor": NOTE,
    "ytick.labelcolor": NOTE,
    "legend.frameon": False,
    "figure.facecolor": "white",  # not transparent: on a dark page the picture is a light card
    "axes.axisbelow": True,
}


@contextlib.contextmanager
def picture(width: float, height: float, **style: Any) -> Iterator[Figure]:
    """Return a context that gives its block an empty matplotlib figure to draw into, in this package's style.

    width, height: inches. style: changes to the style, with "_" for the dots in matplotlib's names: `font_size=12`.
    Raises EnvironmentProblem without matplotlib.
    """
    with needs("plot", "a picture"):
        import matplotlib
        from matplotlib.figure import Figure
    changed: dict[Any, Any] = {**STYLE, **{name.replace("_", "."): value for name, value in style.items()}}
    with matplotlib.rc_context(changed):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        figure.draw_without_rendering()  # makes marks and names of axes, which have the style of this moment


def formats() -> set[str]:
    """Return the suffixes of files that matplotlib can write, such as "png". Raises EnvironmentProblem without it."""
    with picture(1, 1) as figure:
        return set(figure.canvas.get_supported_filetypes())


# Bars by layer --------------------------------------------------------------------------------------------------------

MOST = 40  # rows of a picture
_COLOURS = ((BLUE, AMBER, RED), (GREY,))  # of the parts of each bar of a layer


class Measure(NamedTuple):
    """A quantity that a picture shows of each layer, such as its bytes: the numbers, and how they are written.

    unit: of the picture's numbers. form: their format, as in ",.1f". per: by how much the numbers in `bars` are
    divided; 8,000 if they are bits and the picture shows kB. bars: one or two bars for each layer, online before
    offline. A bar is a dict: the name of each of its parts, and the part's numbers, one for each layer.
    """

    unit: str
    form: str
    per: float
    bars: Sequence[Mapping[str, Sequence[float]]]


def layer_name(*words: str) -> str:
    """Return the name of a layer in a picture, made of its qualified name, its operation and its window.

    words: these three as text; the last two may be empty.
    """
    name, op, *window = words
    return " ".join(word for word in (name, "" if op in name else op, *window) if word)


def by_layer(title: str, names: Sequence[str], of: str, measures: Mapping[str, Measure]) -> Figure:
    """Draw horizontal bars for every layer, in the net's order from the top; return the matplotlib figure.

    Layers without any of the quantity are left out. If there are more than `MOST` layers, the smallest are added up in
    the last row.
    title: above the picture. names: of the layers. of: the quantity to draw, a key of `measures`, such as "bytes".
    measures: the numbers of all layers, for each quantity. Raises ConfigError for another key, and EnvironmentProblem
    without matplotlib.
    """
    if of not in measures:
        raise ConfigError(f"there is no picture of {of!r}", where="of", hint=f"one of {', '.join(measures)}")
    unit, form, per, bars = measures[of]
    rows = _rows(names, bars)
    with picture(7.5, 1.2 + (0.08 + 0.15 * len(bars)) * max(1, len(rows))) as figure:
        axes, thick, most = figure.subplots(), 0.84 / len(bars), 0.0
        for number, (bar, colours) in enumerate(zip(bars, _COLOURS, strict=False)):
            heights = [row + (number - (len(bars) - 1) / 2) * thick for row in range(len(rows))]
            ends = [0.0] * len(rows)
            for (part, amounts), colour in zip(bar.items(), colours, strict=False):
                lengths = [sum(amounts[place] for place in places) / per for _, places in rows]
                label = f"{part}: {sum(amounts) / per:{form}} {unit}"
                axes.barh(heights, lengths, 0.92 * thick, ends, color=colour, label=label)
                ends = [end + length for end, length in zip(ends, lengths, strict=True)]
            style: dict[str, Any] = {
                "textcoords": "offset points",
                "va": "center_baseline",
                "fontsize": 7,
                "color": NOTE,
            }
            for height, end in zip(heights, ends, strict=True):
                axes.annotate(f"{end:{form}}" if end else "", (end, height), (3, 0), **style)
            most = max([most, *ends])
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.tick_params(axis="y", length=0)
        axes.set(ylim=(max(1, len(rows)) - 0.4, -0.6), xlim=(0, 1.12 * most or 1.0), xlabel=unit)
        axes.locator_params(axis="x", integer=form == ",.0f", steps=[1, 2, 5, 10])
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.grid(axis="x")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize=8, borderaxespad=0.2)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


def _rows(names: Sequence[str], bars: Sequence[Mapping[str, Sequence[float]]]) -> list[tuple[str, list[int]]]:
    """Choose the rows of a picture; return a list of (name, indices), the layers that one row shows.

    The indices count `names`. A row has one layer; the last row adds up the smallest ones if there are more than
    `MOST`. Layers that are 0 in all bars have no row. names: of all layers. bars: as in `Measure`.
    """
    sums = [sum(numbers[place] for bar in bars for numbers in bar.values()) for place in range(len(names))]
    shown = [place for place, found in enumerate(sums) if found]
    if len(shown) <= MOST:
        return [(names[place], [place]) for place in shown]
    large = sorted(shown, key=sums.__getitem__)[1 - MOST :]
    small = sorted({*shown} - {*large})
    return [*((names[place], [place]) for place in sorted(large)), (f"{len(small)} smaller layers", small)]
