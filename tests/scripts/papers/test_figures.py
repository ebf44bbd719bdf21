"""The committed charts are those of the committed tables, small, and well-formed."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from hummingbird.errors import InputError
from scripts.papers import figures
from scripts.papers.svg import Bar, Line, Panel, bar_chart, line_chart
from tests.support.paths import ROOT

FOLDER = ROOT / "docs/figures"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "layers" else []) for name in figures.CHARTS]
)
def test_a_committed_chart_is_that_of_its_table(name: str) -> None:
    drawn = figures.CHARTS[name]()
    assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == drawn, "run python -m scripts.papers.figures"
    assert len(drawn.encode()) < 60_000 and "prefers-color-scheme: dark" in drawn


def test_every_chart_is_on_a_page() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    names = {path.stem for path in FOLDER.iterdir()}
    assert names == set(figures.CHARTS) and all(f"](figures/{name}.svg)" in pages for name in names)


@pytest.mark.slow
def test_the_program_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert figures.main(["--out-folder", str(tmp_path / "drawn")]) == 0
    assert "wrote accuracy.svg" in capsys.readouterr().out
    for path in FOLDER.iterdir():
        assert (tmp_path / "drawn" / path.name).read_bytes() == path.read_bytes()


def test_tables_are_read_by_their_heads(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n| a | b |\n|---|---:|\n| x | 1 |\n\n## B\n\ntext\n\n| a | b |\n|---|---:|\n| x | 1,234.5 ± 2 |\n"
    )
    assert figures.table(page, "# A") == {"x": {"a": "x", "b": "1"}}
    assert figures.number(figures.table(page, "## B")["x"]["b"]) == 1234.5
    for words in ("## C", "1,234.5"):
        with pytest.raises(InputError, match="no table"):
            figures.table(page, words)
    with pytest.raises(InputError, match="begins with no number"):
        figures.number("none sent")


def test_bars_are_as_long_as_their_numbers() -> None:
    text = bar_chart("A & B", "words", [Bar("half", [(1, "a"), (1, "b")], "2"), Bar("whole", [(4, "a")])], {"a": "x"})
    boxes = [node for node in ElementTree.fromstring(text).iter(f"{SVG}rect") if int(node.get("height", "0")) == 16]
    first, second, whole = ((int(node.get("x", "")), int(node.get("width", ""))) for node in boxes)
    assert whole[1] == 4 * first[1] == 4 * second[1] and first[0] == whole[0] == second[0] - first[1]


def test_points_are_where_their_numbers_are() -> None:
    lines = [Line("a", [(1, 0, "low"), (10, 5, ""), (100, 10, "high")])]
    text = line_chart("title", "words", [Panel("x", lines, (1, 10, 100), (0, 5, 10), logarithmic=True)], {"a": "x"})
    dots = [node for node in ElementTree.fromstring(text).iter(f"{SVG}circle")]
    places = [(int(node.get("cx", "")), int(node.get("cy", ""))) for node in dots]
    assert places[1] == pytest.approx([(a + b) / 2 for a, b in zip(places[0], places[2], strict=True)], abs=1)
    assert places[0][0] < places[2][0] and places[0][1] > places[2][1]
