"""The page of `scripts.tools.gpu`: marks beside what was measured, kernels and roofs, and every step's outcome."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hummingbird.commands.output import write_together
from hummingbird.errors import InputError
from hummingbird.kernels.gpu import sizes
from scripts.program import ROOT
from scripts.tools.gpu_steps import STEPS

NOT_YET = "not measured yet"
DOCUMENT, PUBLISHED = ROOT / "docs/gpu.md", ROOT / "docs/gpu.json"
BEGIN, END = "<!-- measured on a GPU -->\n", "<!-- /measured on a GPU -->\n"

_MARKS = """
Marks are targets derived for an H100 with both parties on it, material dealt in advance, and windows [20:12). Images a
second do not include waits for material, which is on the card before the clock starts; separate lines include the time
to bring it there. "At 10 Gb/s" is a link shaped by `tc` if root may make one, and else computed from the bits and
rounds on loopback: the last column says which.
"""

Rows = list[dict[str, Any]]


class Figure(NamedTuple):
    """A line of the table: a step's row, and a figure of it. every: what a second holds of `key`, or its inverse."""

    what: str
    step: str
    where: dict[str, Any]  # what the row must say
    key: str
    inverse: bool
    mark: str
    unit: str


_STORED = {"material": "stored"}
_LOOPBACK, _TEN = {"link": "loopback", **_STORED}, {"link": "10 Gb/s", **_STORED}
_IMAGE, _RELU = "online_seconds_per_image", "online_microseconds_per_relu"
FIGURES = [
    Figure("ReLU [20:12), loopback, material in advance", "relu", _LOOPBACK, _RELU, True, "-", "million ReLUs/s"),
    Figure("ResNet-18/CIFAR, 516 images, loopback", "resnet18", _LOOPBACK, _IMAGE, True, "2,500", "images/s"),
    Figure("the same at 10 Gb/s", "resnet18", _TEN, _IMAGE, True, "1,900", "images/s"),
    Figure(
        "the same, loopback, waits for material in it",
        "resnet18",
        _LOOPBACK,
        "seconds_per_image",
        True,
        "-",
        "images/s",
    ),
    Figure("the same: dealt in advance in", "resnet18", _LOOPBACK, "dealer_seconds_per_image", False, "-", "s/image"),
    Figure("ResNet-50/ImageNet, 18 images, loopback", "resnet50", _LOOPBACK, _IMAGE, True, "45", "images/s"),
    Figure("the same at 10 Gb/s", "resnet50", _TEN, _IMAGE, True, "34", "images/s"),
    Figure(
        "the same, loopback, waits for material in it",
        "resnet50",
        _LOOPBACK,
        "seconds_per_image",
        True,
        "-",
        "images/s",
    ),
    Figure("the same: dealt in advance in", "resnet50", _LOOPBACK, "dealer_seconds_per_image", False, "-", "s/image"),
    Figure(
        "lookups in 2^20 rows of 256 B, 512 at once",
        "pir",
        {"kind": "answer", "batch": 512},
        "queries_per_second",
        False,
        "100,000",
        "queries/s",
    ),
    Figure("MobileNetV2 0.35, encrypted 96x96 images", "he", {}, "milliseconds_per_image", False, "-", "ms/image"),
]


def rows_of(state: dict[str, Any], step: str) -> Rows:
    """The figures that a step has left, or none."""
    return list(state["steps"].get(step, {}).get("figures", []))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, rule, *rows))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _marks(state: dict[str, Any]) -> str:
    lines = []
    for figure in FIGURES:
        found = [row for row in rows_of(state, figure.step) if figure.where.items() <= row.items()]
        here, how = NOT_YET, ""
        if found:
            value = found[0][figure.key]
            here = f"{_number(1 / value if figure.inverse else value)} {figure.unit}"
            how = found[0].get("times", "measured")
        lines.append((figure.what, f"{figure.mark} {figure.unit}" if figure.mark != "-" else "-", here, how))
    return _table(("what", "mark on an H100", "here", "the link"), lines)


def _kernels(state: dict[str, Any]) -> str:
    rows = rows_of(state, "kernels")
    if not rows:
        return f"Kernels' shares of their roofs: {NOT_YET}.\n"
    head = ("kernel", "by", "elements", "us", "GB/s", "G operations/s", "share of the roof")
    lines = [
        (
            row["kernel"],
            row["by"],
            f"{row['elements']:,}",
            f"{row['microseconds']:,.1f}",
            f"{row['gigabytes_per_second']:,.1f}",
            f"{row['g_operations_per_second']:,.1f} {row['operations']}",
            f"{row['share_of_roof_percent']:.1f} % ({row['limit']})",
        )
        for row in rows
        if "kernel" in row
    ]
    roofs = ", ".join(f"{row['g_per_second']:,.0f} G {row['roof']}/s" for row in rows if "roof" in row)
    return f"Roofs measured in the same run: {roofs}.\n\n" + _table(head, lines, left=2)


def _steps(state: dict[str, Any]) -> str:
    lines = []
    for step in STEPS:
        outcome = state["steps"].get(step.name, {"state": NOT_YET})
        took = f"{outcome['seconds']:.0f}" if "seconds" in outcome else ""
        said = outcome.get("said", "").strip() if outcome["state"] == "passed" else ""
        cells = (step.name, step.what, outcome["state"], said, took)
        lines.append(tuple(cell.replace("|", "/").replace("\n", " ") for cell in cells))
    return _table(("step", "what", "outcome", "it said", "seconds"), lines, left=4)


def _machines(state: dict[str, Any]) -> str:
    found = {
        json.dumps(outcome["machine"]): outcome["machine"]
        for outcome in state["steps"].values()
        if "machine" in outcome
    }
    lines = [", ".join(f"{name} {value}" for name, value in machine.items()) for machine in found.values()]
    return "".join(f"- {line}\n" for line in lines)


def page(state: dict[str, Any]) -> str:
    """The tables in Markdown; a dry run's say first that they show nothing about speed. One line if nothing was run."""
    if not state["steps"]:
        return "No machine with a GPU: not measured yet. No figure that was measured here is of a GPU.\n"
    warning = "**A dry run on a CPU with tiny sizes: no figure below says anything about a GPU.**\n\n"
    parts = [_machines(state), _MARKS.lstrip(), _marks(state), _kernels(state), _steps(state)]
    return (warning if state.get("dry_run") else "") + "\n".join(parts)


def section(state: dict[str, Any]) -> str:
    """The part of docs/gpu.md between the marks."""
    return f"{BEGIN}{page(state)}{END}"


def published() -> dict[str, Any]:
    """The committed state, or one without steps."""
    return dict(json.loads(PUBLISHED.read_text())) if PUBLISHED.exists() else {"steps": {}}


def sizes_of(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The sizes of tiles that were searched, by card and kernel."""
    found: dict[str, dict[str, Any]] = {}
    for row in [row for step in STEPS if step.name.startswith("tune") for row in rows_of(state, step.name)]:
        found.setdefault(row["device"], {})[row["kernel"]] = row["sizes"]
    return found


def publish(source: Path) -> None:
    """Copy a state to docs/gpu.json, its page into docs/gpu.md, and sizes of tiles that were found to their file.

    InputError for no state, and for a dry run's.
    """
    if not source.exists():
        raise InputError("there are no figures", where=str(source), hint="run `python -m scripts.tools.gpu` first")
    state = json.loads(source.read_text())
    if state.get("dry_run"):
        raise InputError("these are a dry run's figures", where=str(source), hint="publish those of a GPU")
    for card, found in sizes_of(state).items():
        sizes.keep(card, found)
    text = DOCUMENT.read_text()
    start, end = text.index(BEGIN), text.index(END) + len(END)
    shown = text[:start] + section(state) + text[end:]
    write_together({DOCUMENT: shown.encode(), PUBLISHED: (json.dumps(state, indent=1) + "\n").encode()})
