"""The committed charts are those of the committed tables, small and well-formed, whatever matplotlib's version is."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from hummingbird.errors import InputError
from scripts.papers import charts, figures
from scripts.papers.charts import Bar, Line, Panel
from tests.support.paths import ROOT

pytest.importorskip("matplotlib")

FOLDER = ROOT / "docs/figures"
SVG = "{http://www.w3.org/2000/svg}"
DC = "http://purl.org/dc/elements/1.1/"
MARKS = ("bar-", "line-")


def marks(text: str) -> dict[str, list[tuple[float, float]]]:
    """The corners of bars and the points of lines by the names of their groups."""
    groups = [node for node in ElementTree.fromstring(text).iter(f"{SVG}g") if node.get("id", "").startswith(MARKS)]
    found = {}
    for group in groups:
        path = group.find(f"{SVG}path")
        assert path is not None
        corners = re.findall(r"[ML] (\S+) (\S+)", path.get("d", ""))
        found[group.get("id", "")] = [(float(x), float(y)) for x, y in corners]
    assert len(found) == len(groups)  # each name once
    return found


def words(text: str) -> list[str]:
    """All that can be read in a chart, with its title and its description."""
    tree = ElementTree.fromstring(text)
    parts = [node for name in (f"{SVG}title", f"{{{DC}}}description", f"{SVG}text") for node in tree.iter(name)]
    return [node.text or "" for node in parts]


def same(one: str, other: str) -> bool:
    """Whether two charts have the same words, and their marks, of the same colours, on the same points."""
    first, second = marks(one), marks(other)
    return (
        words(one) == words(other)
        and re.findall(r"#[0-9a-f]{6}", one) == re.findall(r"#[0-9a-f]{6}", other)
        and first.keys() == second.keys()
        and all(np.shape(own) == np.shape(second[name]) for name, own in first.items())
        and all(np.abs(np.subtract(own, second[name])).max() < 0.01 for name, own in first.items())
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("accuracy", "seconds") else pytest.mark.slow) for name in figures.CHARTS],
)
def test_a_committed_chart_is_that_of_its_table(name: str) -> None:
    drawn, committed = figures.CHARTS[name](), (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert same(committed, drawn), "run python -m scripts.papers.figures"
    assert drawn == figures.CHARTS[name]()  # the same bytes, of one version of matplotlib
    assert len(drawn.encode()) < 60_000 and marks(drawn)
    assert "fill: #ffffff" in drawn.partition("</g>")[0]  # the page: letters are dark


def test_the_comparison_of_charts_can_fail() -> None:
    text = charts.bar_chart("A", "words", [Bar("half", [(1, "a"), (1, "b")], "2"), Bar("all", [(4, "a")])], {"a": "x"})
    assert same(text, text)
    more = [Bar("half", [(1, "a"), (1.01, "b")], "2"), Bar("all", [(4, "a")])]
    for changed in (
        text.replace(">half<", ">third<"),
        text.replace("words", "other"),
        text.replace("#d18f1f", "#d18f1e"),
        text.replace('id="bar-0-1"', 'id="bar-0-2"'),
        charts.bar_chart("A", "words", more, {"a": "x"}),
    ):
        assert not same(text, changed)


def test_every_chart_is_on_a_page() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    names = {path.stem for path in FOLDER.iterdir()}
    assert names == set(figures.CHARTS) and all(f"](figures/{name}.svg)" in pages for name in names)


@pytest.mark.slow
def test_the_program_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert figures.main(["--out-folder", str(tmp_path / "drawn")]) == 0
    assert "wrote accuracy.svg" in capsys.readouterr().out
    for path in FOLDER.iterdir():
        assert same((tmp_path / "drawn" / path.name).read_text(encoding="utf-8"), path.read_text(encoding="utf-8"))


def test_tables_are_read_by_their_heads(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n| a | b |\n|---|---:|\n| x | 1 |\n\n## B\n\ntext\n\n| a | b |\n|---|---:|\n| x | 1,234.5 ± 2 |\n"
    )
    assert charts.table(page, "# A") == {"x": {"a": "x", "b": "1"}}
    assert charts.number(charts.table(page, "## B")["x"]["b"]) == 1234.5
    for words in ("## C", "1,234.5"):
        with pytest.raises(InputError, match="no table"):
            charts.table(page, words)
    with pytest.raises(InputError, match="begins with no number"):
        charts.number("none sent")


def test_bars_are_as_long_as_their_numbers() -> None:
    text = charts.bar_chart("A & B", "w", [Bar("half", [(1, "a"), (1, "b")], "2"), Bar("all", [(4, "a")])], {"a": "x"})
    bars = {name: [x for x, _ in corners] for name, corners in marks(text).items()}
    lengths = {name: max(xs) - min(xs) for name, xs in bars.items()}
    assert lengths["bar-1-0"] / 4 == pytest.approx(lengths["bar-0-0"]) == pytest.approx(lengths["bar-0-1"])
    assert min(bars["bar-0-0"]) == min(bars["bar-1-0"]) and max(bars["bar-0-0"]) == min(bars["bar-0-1"])
    assert words(text) == ["A & B", "w", "half", "2", "all", "A & B", "x"]


def test_points_are_where_their_numbers_are() -> None:
    line = Line("a", [(1, 0, "low"), (10, 5, ""), (100, 10, "high")])
    panel = Panel("up", "across", [line], (1, 10, 100), (0, 5, 10), logarithmic=True)
    text = charts.line_chart("title", "words", [panel], {"a": "x"})
    (low, middle, high) = marks(text)["line-0-0"]
    assert middle == pytest.approx([(a + b) / 2 for a, b in zip(low, high, strict=True)])
    assert low[0] < high[0] and low[1] > high[1]  # y of an SVG grows downwards
    assert {"up", "across", "low", "high", "1", "10", "100", "0", "5"} <= set(words(text))
