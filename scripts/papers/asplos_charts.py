"""Charts of docs/capacity.md, drawn from its tables: Figures 4, 7 and 10 to 14 of Garimella et al. (ASPLOS 2023).

`python -m scripts.papers.figures` writes them with all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from scripts.papers.charts import Bar, Line, Panel, Rows, bar_chart, line_chart, number, table
from scripts.program import ROOT

_PAGE = ROOT / "docs/capacity.md"
_MEAN = "mean, minutes"


def _hourly(minutes: str) -> float:
    """Requests an hour, of the minutes between two."""
    return 60 / number(minutes)


def _measured(rows: Rows, column: str, across: Callable[[str], float]) -> list[tuple[float, float, str]]:
    """A column's numbers, where they do not grow, at `across` of the rows' names, but that of the row `limit`."""
    cells = [(name, row[column]) for name, row in rows.items() if name != "limit" and row[column] != "grows"]
    return [(across(name), number(cell), "") for name, cell in cells]


def _lines(rows: Rows, colours: dict[str, str], across: Callable[[str], float], most: float = math.inf) -> list[Line]:
    """A line for each column, in its colour, of the points up to `most`."""
    found = {column: _measured(rows, column, across) for column in colours}
    return [Line(colours[column], [p for p in points if p[1] <= most]) for column, points in found.items()]


def _marks(most: float, count: int = 4) -> list[float]:
    """Marks of an axis from 0 to at least `most`, `count` steps of 1, 1.5, 2, 3, 4, 5 or 8 times a power of ten."""
    least = most / count
    power = 10.0 ** math.floor(math.log10(least))
    step = next(step * power for step in (1, 1.5, 2, 3, 4, 5, 8, 10) if step * power >= least * (1 - 1e-9))
    return [step * number for number in range(count + 1)]


def _described(rows: Rows, columns: Sequence[str]) -> str:
    """Rows as words, for who cannot see the chart."""
    return "; ".join(f"{name}: {', '.join(row[column] for column in columns)}" for name, row in rows.items())


def computing() -> str:
    """Minutes of computing by net, as Figure 4."""
    rows = table(_PAGE, "## Figure 4")
    columns = {"HE, min": "a", "garbling, min": "b", "evaluating, min": "c"}
    bars = []
    for name, row in rows.items():
        if "ImageNet" not in name.replace("TinyImageNet", ""):
            parts = [(number(row[column]), colour) for column, colour in columns.items()]
            bars.append(Bar(name, parts, f"{sum(length for length, _ in parts):.1f} min"))
    names = ("homomorphic evaluation, server", "garbling, server", "evaluating circuits, client")
    return bar_chart(
        "The baseline: minutes of computing for a request",
        _described(rows, [*columns]),
        bars,
        dict(zip("abc", names, strict=True)),
        left=190,
    )


def parts() -> str:
    """Minutes of the baseline by part against the rate, as Figure 7: each line adds a part to the one below."""
    rows = table(_PAGE, "## Figure 7")
    sums: dict[str, list[tuple[float, float, str]]] = {"a": [], "b": [], "c": []}
    for name, row in rows.items():
        height = 0.0
        for colour, part in zip(sums, ("online", "offline", "queue"), strict=True):
            height += number(row[part])
            sums[colour].append((_hourly(name), height, ""))
    panels = []
    for title, most in (("up to an hour, minutes", 60.0), ("all, minutes", max(y for _, y, _ in sums["c"]))):
        shown = [Line(colour, [p for p in points if p[1] <= most]) for colour, points in reversed(sums.items())]
        panels.append(Panel(title, "requests an hour", shown, (0, 1, 2, 3, 4), _marks(most)))
    return line_chart(
        "ResNet-18 on TinyImageNet, SG, 128 GB: where the minutes from arrival to prediction go",
        _described(rows, ("online", "offline", "queue", "mean")),
        panels,
        {"a": "with the image", "b": "and for a token", "c": "and for requests before"},
    )


def store() -> str:
    """Minutes from arrival to prediction against the client's store, RLP and LPHE, as Figure 10."""
    rows = table(_PAGE, "## Figure 10")
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


def division() -> str:
    """Seconds on the link against its division, as Figure 11."""
    rows = table(_PAGE, "## Figure 11: sweep")
    most = 2000.0
    lines = _lines(rows, {"SG": "c", "CG": "a"}, number, most)
    panel = Panel(
        f"seconds on the link, up to {most:,.0f}", "Mb/s up, of 1,000", lines, range(0, 1001, 200), _marks(most)
    )
    return line_chart(
        "ResNet-18 on TinyImageNet: seconds on the link by its division",
        _described(rows, ("SG", "CG")),
        [panel],
        {"c": "SG", "a": "CG"},
    )


_SYSTEMS = {"SG, 16 GB": "c", "SG, 32 GB": "b", "SG, 64 GB": "d", "CG, 16 GB": "a"}
_PANELS = [f"{net}, {data}" for data in ("CIFAR", "TinyImageNet") for net in ("ResNet-32", "VGG-16", "ResNet-18")]


def rate() -> str:
    """Minutes from arrival to prediction against the rate, six nets, as Figure 12."""
    panels, words = [], []
    found = table(_PAGE, "## Figure 12: six nets")
    for name in _PANELS:
        own = f"{name}, "
        rows = {row.removeprefix(own): cells for row, cells in found.items() if row.startswith(own)}
        proposal = max(y for _, y, _ in _measured(rows, "CG, 16 GB", _hourly))
        most = 1.5 * proposal
        x = max(x for x, _, _ in _measured(rows, "CG, 16 GB", _hourly))
        lines = _lines(rows, _SYSTEMS, _hourly, most)
        panels.append(Panel(f"{name}: {_MEAN}", "requests an hour", lines, _marks(x, 3), _marks(most)))
        words.append(f"{name}: {_described(rows, [*_SYSTEMS])}")
    return line_chart(
        "Minutes from arrival to prediction, baseline (SG) and proposal (CG), by the client's store",
        ". ".join(words),
        panels,
        {colour: name for name, colour in _SYSTEMS.items()},
        across=3,
    )


def machines() -> str:
    """Minutes from arrival to prediction with faster machines, as Figure 13."""
    rows = table(_PAGE, "## Figure 13: curves")
    panels = []
    for title, columns in (
        ("CG, clients", ("CG, Atom", "CG, i5", "CG, twice an i5")),
        ("CG, servers", ("CG, Atom", "CG, 2x", "CG, 4x")),
        ("SG, servers", ("SG, 1x", "SG, 2x", "SG, 4x")),
    ):
        lines = _lines(rows, dict(zip(columns, "cba", strict=True)), _hourly, 40.0)
        panels.append(Panel(f"{title}: {_MEAN}", "requests an hour", lines, _marks(6, 3), _marks(40)))
    return line_chart(
        "ResNet-18 on TinyImageNet: minutes from arrival to prediction with faster machines",
        _described(rows, [column for column in next(iter(rows.values())) if "," in column]),
        panels,
        {"c": "Atom, 1x", "b": "i5, or a server of 2x", "a": "twice an i5, or a server of 4x"},
    )


_PARTS = {
    "link in advance": "c",
    "garbling": "b",
    "encryption": "a",
    "link with the image": "e",
    "evaluating": "f",
    "shares": "d",
}


def future() -> str:
    """Seconds of a request with faster primitives by part, as Figure 14."""
    rows, seconds = table(_PAGE, "## Figure 14: parts"), table(_PAGE, "## Figure 14: what")
    bars = [
        Bar(name, [(number(row[part]), colour) for part, colour in _PARTS.items()], seconds[name]["model"])
        for name, row in rows.items()
    ]
    return bar_chart(
        "ResNet-18 on TinyImageNet: percent of a request's seconds with faster primitives, and seconds in all",
        "; ".join(f"{bar.name}: {bar.words}" for bar in bars),
        bars,
        {colour: part for part, colour in _PARTS.items()},
        left=330,
    )


# By name, each with the section that it stands below and its words.
BELOW: dict[str, tuple[str, str]] = {
    "capacity-computing": ("Figure 4", "Minutes of computing by net"),
    "capacity-parts": ("Figure 7", "Minutes from arrival to prediction by part against the rate"),
    "capacity-store": ("Figure 10", "Minutes from arrival to prediction against the store"),
    "capacity-split": ("Figure 11: sweep", "Seconds on the link by its division"),
    "capacity-rate": ("Figure 12: six nets", "Minutes from arrival to prediction against the rate, six nets"),
    "capacity-machines": ("Figure 13: curves", "Minutes from arrival to prediction with faster machines"),
    "capacity-future": ("Figure 14: parts", "Parts of a request with faster primitives"),
}
CHARTS: dict[str, Callable[[], str]] = dict(
    zip(BELOW, (computing, parts, store, division, rate, machines, future), strict=True)
)
