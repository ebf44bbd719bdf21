"""Aligned text tables, for terminals (standard library only)."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, total: bool = False) -> str:
    """Return a table with aligned columns as text; the first `left` columns are aligned left, the others right.

    total: whether a horizontal line precedes the last row.
    """
    lines = [tuple(head), *map(tuple, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]

    def text(line: Sequence[str]) -> str:
        cells = zip(line, widths, strict=True)
        return "  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(cells)).rstrip()

    texts = [text(line) for line in lines]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    body = [*texts[1:-1], rule, texts[-1]] if total else texts[1:]
    return "\n".join([texts[0], rule, *body])
