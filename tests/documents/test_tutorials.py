"""The tutorials run, and show what they showed: committed outputs are those of a whole run, without warnings."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest

from tests.documents.test_names import anchors
from tests.support import python
from tests.support.notebooks import EXAMPLES, TUTORIALS, executed, pictures, script, texts
from tests.support.pages import run, text_of
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM

AGREEMENTS = {"1": 1, "2": 2, "5": 1}  # shares of answers that a tutorial shows
PLACES = re.compile(r"(?<![\w.:/])/(?:tmp|home|root|usr|work|Users|opt)/|0x[0-9a-f]{6}")


def test_the_cells_of_a_tutorial_print_what_they_printed(tmp_path: Path) -> None:
    """Those of the one whose lines are the same in each run, as one program, in a folder without files."""
    (path,) = (path for path in TUTORIALS if path.name[0] == "3")
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    program, environment = "\n".join(cell.source for cell in cells), {**os.environ, "MPLBACKEND": "agg"}
    words = [sys.executable, "-c", program]
    ended = python.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PROGRAM)
    shown = [output.text for cell in cells for output in cell.outputs if output.output_type == "stream"]
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "".join(shown), "") and len(shown) == 4


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_anew(path: Path, tmp_path: Path) -> None:
    """In a folder without files, so that it needs nothing of a checkout; an error in a cell fails the test."""
    found, committed = executed(path, tmp_path), nbformat.read(path, as_version=4)
    assert pictures(found) == pictures(committed)
    told = "\n".join(texts(found))
    assert "stderr: " not in told, told
    agreements = [float(number) for number in re.findall(r"in the clear: +([\d.]+)%", told)]
    assert all(number >= 95 for number in agreements) and len(agreements) == AGREEMENTS.get(path.name[0], 0)


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_what_a_tutorial_shows_is_committed(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    shown = [*texts(notebook)]
    assert shown and pictures(notebook) and not [text for text in shown if text.startswith("stderr: ")]
    assert not [text for text in (*shown, *(cell.source for cell in notebook.cells)) if PLACES.search(text)]
    assert path.stat().st_size < 1 << 18 and set(notebook.metadata) == {"kernelspec", "language_info"}
    assert PLACES.search("at /tmp/x.py") and PLACES.search("<Server at 0x7fbb8b3a90d0>")  # it can fail


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_links_of_a_tutorial_lead_somewhere(path: Path) -> None:
    pages = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    links = re.findall(r"\]\(([^)#]+)(#([\w-]+))?\)", "\n".join(pages))
    assert links
    for target, _, heading in links:
        assert (there := (path.parent / target).resolve()).is_file(), target
        assert not heading or heading in anchors(there), heading
    assert f"tutorials/{path.name}" in text_of(ROOT / "docs/index.md")


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_an_example_is_its_tutorial_as_a_script(path: Path) -> None:
    """`python -m tests.support.notebooks examples` writes them."""
    assert text_of(EXAMPLES / f"{path.stem}.py") == script(path)
    assert {found.stem for found in EXAMPLES.iterdir()} == {tutorial.stem for tutorial in TUTORIALS}


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    told = run([sys.executable, str(EXAMPLES / f"{path.stem}.py")], tmp_path)
    agreements = [float(number) for number in re.findall(r"in the clear: +([\d.]+)%", told)]
    assert all(number >= 95 for number in agreements) and len(agreements) == AGREEMENTS.get(path.name[0], 0)
    assert [*tmp_path.glob("*.png")]


def test_there_are_tutorials() -> None:
    assert [path.name[0] for path in TUTORIALS] == ["1", "2", "3", "4", "5"]
