"""The first table of docs/capacity.md: every table and figure of the paper, and the largest deviation in each."""

from __future__ import annotations

from collections.abc import Sequence

from scripts.papers.asplos_section import Section, percent

ITEMS = ("Table 1", *(f"Figure {number}" for number in range(3, 15)))
NOT_REMADE = {"Figure 6": "not, because neither the artifact nor its formulas have a number of it"}
OTHERS = {
    "Speedup": "the total speedup of 1.8",
    "Energy": "the client's energy",
    "Store": "the server's store",
    "Clients": "several clients",
    "ResNet-50": "ResNet-50 on ImageNet",
}


def summary(sections: Sequence[Section]) -> Section:
    """A row for each table and figure, and for each claim of the text: how it is remade, and the largest deviation."""
    rows = []
    for item in (*ITEMS, *OTHERS):
        of = [section for section in sections if section.item == item]
        name = OTHERS.get(item, item)
        if not of:
            rows.append((name, NOT_REMADE[item], "", ""))
            continue
        pairs = [pair for section in of for pair in section.pairs]
        how = "remade in kind" if any(section.kind != "remade" for section in of) else "remade"
        if not pairs:
            rows.append((name, how, "", "no number of theirs to compare with"))
            continue
        worst = max(pairs, key=lambda pair: abs(pair.deviation))
        where = f"{worst.what}: {worst.here:,.4g} for {worst.printed:,.4g}"
        rows.append((name, how, percent(worst), f"{where} ({worst.source})"))
    words = (
        "Each table and figure from Figure 3 on, and claims of the text: whether it is remade here, and the largest "
        'deviation from the authors\' numbers. "paper" is a number of the paper, "artifact" one that its published '
        "programs print, mostly in more digits."
    )
    head = ("", "here", "largest deviation", "in")
    return Section("Overview", words, head, rows)
