"""Reports: aligned tables and paragraphs as text, and the same as HTML for notebooks (standard library only)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_LEFT, _RIGHT, _SUM = "text-align: left", "text-align: right", "; border-top: 1px solid; font-weight: bold"


class Report(str):
    """A text that a terminal prints as it is, and that a notebook shows as HTML when a cell ends with it.

    text: the text. html: its content as HTML elements.

        table = text_table(("layer", "kB"), [("relu", "1.5")])
        print(table)
    """

    html: str

    def __new__(cls, text: str, html: str) -> Report:
        made = super().__new__(cls, text)
        made.html = html
        return made

    @classmethod
    def of(cls, *parts: str, between: str = "\n\n") -> Report:
        """Return one report that joins tables and paragraphs.

        parts: reports, or texts, which become paragraphs and keep their line breaks. between: the text between two
        parts.
        """
        html = (part.html if isinstance(part, Report) else _paragraph(part) for part in parts)
        return cls(between.join(parts), "".join(html))

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # of a str: its text alone
        return str(self), self.html

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<div>{self.html}</div>"


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, total: bool = False) -> Report:
    """Return a table with aligned columns, as a `Report`.

    head: the titles of the columns. rows: the cells of each row, as texts. left: how many columns, from the first, are
    aligned left; the others are aligned right. total: whether the last row is a sum, below a horizontal line.
    """
    lines = [tuple(head), *map(tuple, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]

    def text(line: Sequence[str]) -> str:
        cells = zip(line, widths, strict=True)
        return "  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(cells)).rstrip()

    def row(line: Sequence[str], tag: str = "td", style: str = "") -> str:
        return f"<tr>{''.join(_cell(tag, cell, i < left, style) for i, cell in enumerate(line))}</tr>"

    texts = [text(line) for line in lines]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    body = [*texts[1:-1], rule, texts[-1]] if total else texts[1:]
    above, below = (lines[1:-1], [lines[-1]]) if total else (lines[1:], [])
    parts = (
        ("thead", [row(lines[0], "th")]),
        ("tbody", [row(line) for line in above]),
        ("tfoot", [row(line, style=_SUM) for line in below]),
    )
    html = "".join(f"<{name}>{''.join(found)}</{name}>" for name, found in parts if found)
    return Report("\n".join([texts[0], rule, *body]), f"<table>{html}</table>")


def _cell(tag: str, text: str, left: bool, style: str) -> str:
    return f'<{tag} style="{_LEFT if left else _RIGHT}{style}">{escape(text)}</{tag}>'


def _paragraph(text: str) -> str:
    return f'<p style="white-space: pre-line">{escape(text)}</p>'
