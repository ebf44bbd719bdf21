"""The page docs/results.md: every table and figure of the papers, and the figures here beside theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scripts.papers.evidence import Record, Run, spread
from scripts.papers.items import IN_KIND, NOT, REMADE, Item, Line, Paper
from scripts.papers.results_page import table

_HEAD = """# Results: five papers, and the figures here

Tables and figures of five papers: remade, remade in kind, or not, with the reason. Figures here come from records,
which name the command, the commit, the machine and its load. This page is written by

```sh
python -m scripts.papers
```

which measures what has no record yet, or was measured before its code changed or while other programs used the
machine. A figure is the median of its repetitions, with the least and the largest in brackets. A figure of a paper was
measured on that paper's machine: a ratio of the two compares systems with their machines.
"""
_COSTS = """## What {images:,} images cost

Core-hours and gigabytes of all parties and the dealer for {images:,} images, at prices of {priced}:
${core_hour_dollars} for a core-hour and ${gb_sent_dollars} for a gigabyte sent. Offline is the material, made by a
dealer or by the pair of parties; a party's expansion of a dealer's seeds counts as online. "garbled" is
`hummingbird.hybrid`, whose two parties are both counted. Of BERT-base they are texts of 128 words through one of its 12
blocks. Money is linear in the prices, so other prices follow from the hours and the gigabytes. "-": the machine does
not show its processor's energy (RAPL).

```sh
{command}
```
"""
_STATES = {REMADE: "remade", IN_KIND: "in kind", NOT: "not remade"}


def page(papers: Sequence[Paper], runs: Mapping[str, Run], records: Mapping[str, Record]) -> str:
    """Write the whole page in Markdown. records: by the names of their runs."""
    parts = [_HEAD, _counts(papers), *(_paper(paper, runs, records) for paper in papers)]
    if "costs" in records:
        parts.append(_costs(records["costs"], runs["costs"]))
    parts.append(_machines(runs, records))
    return "\n".join(parts)


def _counts(papers: Sequence[Paper]) -> str:
    rows = []
    for paper in papers:
        states = [item.state for item in paper.items]
        rows.append((f"[{paper.name}](#{_anchor(paper.name)})", *(str(states.count(state)) for state in _STATES)))
    return table(("paper", *_STATES.values()), rows)


def _anchor(title: str) -> str:
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter == "-")


def _paper(paper: Paper, runs: Mapping[str, Run], records: Mapping[str, Record]) -> str:
    items = [(item.name, item.title, _STATES[item.state], item.reason, _link(item)) for item in paper.items]
    listed = table(("table or figure", "contents", "here", "why", "page"), items, left=5)
    lines = [(item, line) for item in paper.items for line in item.lines if line.run in records]
    parts = [f"## {paper.name}\n\n{paper.source}. Measured there on {paper.machine}.\n\n{listed}"]
    if lines:
        cells = [(item.name, line.what, line.paper, _here(line, records[line.run]), line.run) for item, line in lines]
        parts.append(table(("table or figure", "figure", "paper", "here", "record"), cells, left=2))
        names = dict.fromkeys(line.run for _, line in lines)
        parts.append("```sh\n" + "\n".join(runs[name].command for name in names) + "\n```\n")
    missing = sorted({line.run for item in paper.items for line in item.lines} - records.keys())
    if missing:
        parts.append(f"No record yet: {', '.join(missing)}.\n")
    return "\n".join(parts)


def _link(item: Item) -> str:
    return f"[{item.page.partition('#')[0]}]({item.page})" if item.page else ""


def _here(line: Line, record: Record) -> str:
    return spread((line.scale * value for value in record.figure(line.where, line.key)), line.form)


def _costs(record: Record, run: Run) -> str:
    rows = record.rows()
    cells = [
        (
            row["net"],
            row["material"],
            *(f"{row[f'{when}_core_hours']:.4f}" for when in ("offline", "online")),
            *(f"{row[f'{when}_gigabytes']:,.2f}" for when in ("offline", "online")),
            *(f"{row[key]:.4f}" for key in ("cores_dollars", "sent_dollars", "dollars")),
            "-" if row["kilojoules"] is None else f"{row['kilojoules']:,.2f}",
        )
        for row in rows
    ]
    head = ("net", "material", "core-hours offline", "online", "GB offline", "online", "$ cores", "$ sent", "$", "kJ")
    return _COSTS.format(**rows[0], command=run.command) + "\n" + table(head, cells, left=2)


def _machines(runs: Mapping[str, Run], records: Mapping[str, Record]) -> str:
    rows = [
        (
            f"[{name}](evidence/{name}.json)",
            f"`{runs[name].command}`",
            record.commit,
            record.date,
            f"{record.seconds:,.0f}",
            f"{record.others:.2f}",
            record.machine.get("cpu", ""),
            record.machine.get("kernels", ""),
            record.machine.get("torch", ""),
        )
        for name, record in records.items()
    ]
    head = ("record", "command", "commit", "date", "seconds", "others, cores", "processor", "kernels", "PyTorch")
    return "## Records\n\n" + table(head, rows, left=4)
