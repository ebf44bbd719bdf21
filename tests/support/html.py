"""HTML of reports, read back as tables of cells."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

Rows = list[tuple[str, ...]]


def tables(shown: Any) -> list[Rows]:
    """The tables that a notebook renders for an object, each as rows of cells; an error if tags do not match."""
    root = ElementTree.fromstring(shown._repr_html_())
    return [
        [tuple("".join(cell.itertext()) for cell in row) for row in table.iter("tr")] for table in root.iter("table")
    ]


def paragraphs(shown: Any) -> list[str]:
    """The paragraphs between them, with the line breaks that they have in the text."""
    return ["".join(part.itertext()) for part in ElementTree.fromstring(shown._repr_html_()).iter("p")]


def agree(shown: Any, text: str) -> None:
    """Fail unless the HTML has every line of the text, cell by cell, in the text's order, and nothing else."""
    root, lines = ElementTree.fromstring(shown._repr_html_()), []
    for part in root:
        if part.tag == "p":
            lines += "".join(part.itertext()).split("\n")
        else:
            lines += [" ".join(" ".join(row.itertext()).split()) for row in part.iter("tr")]
    wanted = [" ".join(line.split()) for line in text.split("\n") if line.strip("-")]
    assert [line for line in lines if line] == wanted
