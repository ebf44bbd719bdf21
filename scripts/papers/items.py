"""Parts of a page of evidence: papers, their tables and figures, and lines "paper | here"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REMADE, IN_KIND, NOT = "remade", "in kind", "not"


@dataclass(frozen=True)
class Line:
    """One figure of a paper beside the one here.

    what: names it, with its unit. paper: as the paper prints it; "-" if it prints none. run: name of the run. where:
    fields and values of the row that has the figure. key: the row's field. form: format of the figure; scale: times it.
    """

    what: str
    paper: str
    run: str
    where: Mapping[str, Any]
    key: str
    form: str = "{:,.3g}"
    scale: float = 1.0


@dataclass(frozen=True)
class Item:
    """A table or a figure of a paper.

    name: as "Table 2". title: its contents. state: REMADE; IN_KIND, on other data, nets or machines of another kind; or
    NOT. reason: why it is in kind or not at all. page: where it is shown, as "lookup.md#plans"; "" for this page alone.
    """

    name: str
    title: str
    state: str
    reason: str = ""
    page: str = ""
    lines: tuple[Line, ...] = field(default=())


@dataclass(frozen=True)
class Paper:
    """A paper and all of its tables and figures that hold measurements.

    name: of the system or the authors. source: authors, title, venue. machine: on which the paper measured.
    """

    name: str
    source: str
    machine: str
    items: tuple[Item, ...]
