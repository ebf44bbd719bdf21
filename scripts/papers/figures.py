"""The charts of the pages, drawn from the tables beside them: `python -m scripts.papers.figures` writes docs/figures.

    accuracy    docs/windows.md       accuracy against bits kept and against kB sent
    capacity-*  docs/capacity.md      latency against the rate and the store, and faster primitives, of a paper remade
    layers      checkpoints           kB that ResNet-18's layers send for an image, by the formulas of `estimate`
    seconds     docs/benchmarks.md    seconds of an image through ResNet-18, by link
    times       docs/benchmarks.md    where an image's time goes in ResNet-18, by stage
    two-party   docs/two-party.md     where an image's time goes without a dealer

A figure has no number that does not stand in a table, or in a formula that tests compare with what is sent.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

import hummingbird
from hummingbird.report import Estimate
from models import get_model
from scripts.bench.layer_times import HEAD
from scripts.papers import asplos_charts
from scripts.papers.charts import Bar, Line, Panel, bar_chart, line_chart, number, table
from scripts.program import ROOT, main_of, new_parser


def accuracy() -> str:
    """Accuracy of ResNet-18 against bits kept, and against kB sent."""
    page, net = ROOT / "docs/windows.md", "ResNet-18, CIFAR-10"
    exact = table(page, "## Accuracy")[net]
    changed = table(page, "Answers, of 10,000")
    private = table(page, "## Private inference")
    budgets = [name for name in exact if re.fullmatch(r"\d/64", name)]
    found = [(number(name), number(exact[name]), "") for name in budgets]
    rows = [changed[f"{net}, {name}"] for name in budgets]
    uniform = [
        (number(name), number(row["accuracy"]), row["one window for all layers"])  # the last column of this name
        for name, row in zip(budgets, rows, strict=True)
    ]
    sent = [(number(private[name]["kB/image"]), number(exact[name]), name) for name in ("exact", "eco", *budgets)]
    lines = [Line("a", sent[:3]), *(Line("a", [point], True) for point in sent[3:])]
    least = min(y for _, y, _ in (*found, *uniform))
    marks = range(int(least) - 1, 96, 2)
    return line_chart(
        "ResNet-18 on CIFAR-10: what windows cost in accuracy, and save in bytes",
        "; ".join(f"{x:g} bits: {y:g} % searched" for x, y, _ in found)
        + "; "
        + "; ".join(f"{name} {y:g} % at {x:g} kB" for x, y, name in sent),
        [
            Panel(
                "accuracy, %",
                "bits kept of 64, on average",
                [Line("a", found), Line("b", uniform, True)],
                range(3, 10),
                marks,
            ),
            Panel("accuracy, %", "kB sent by a party for an image", lines, (400, 800, 1600, 3200), marks, True),
        ],
        {"a": "windows searched by layer, of 10,000 test images", "b": "one window for all layers"},
    )


def layers() -> str:
    """KB that a party sends for an image, by stage, with exact comparisons and with shipped windows."""
    net, shape = get_model("resnet18", 10).eval(), (1, 3, 32, 32)
    windows = ROOT / "checkpoints/resnet18-cifar10-8-64.bits.json"
    exact, found = (_sent(hummingbird.estimate(net, shape, bits)) for bits in (None, windows))
    bars = []
    for name, most in exact.items():
        bars += [Bar(name, [(most, "c")], f"{most:,.1f} kB"), Bar("", [(found[name], "a")], f"{found[name]:,.1f} kB")]
    return bar_chart(
        "ResNet-18, 32x32 pixels: what a party sends for an image, by stage",
        "; ".join(f"{name}: {most:.1f} kB exact, {found[name]:.1f} kB with windows" for name, most in exact.items()),
        bars,
        {"c": "exact comparisons", "a": "8 bits of 64 (resnet18-cifar10-8-64.bits.json)"},
        left=150,
    )


def _sent(costs: Estimate) -> dict[str, float]:
    """KB by stage: the outermost module of a ReLU, and all other layers together."""
    found: dict[str, float] = {}
    for step in costs.layers:
        stage = step.name.partition(".")[0] if step.window else "linear layers"
        found[stage] = found.get(stage, 0.0) + step.cost.bits / 8e3
    rest = found.pop("linear layers")
    return {**found, "linear layers": rest}


def seconds() -> str:
    """Seconds of an image through ResNet-18, by link."""
    rows = table(ROOT / "docs/benchmarks.md", "<!-- measured -->")
    window, exact = "ResNet-18, window [20:12)", "ResNet-18, exact [64:0)"
    each = "seconds per image"
    shaped = rows[f"{window}, at 352 Mb/s: {each}, dealer online"]
    bars = [
        Bar("on one host (loopback)"),
        _timed("CrypTen 0.4.1, exact", rows[f"{window}: {each}, dealer online"]["CrypTen 0.4.1"], "c"),
        _timed("exact, dealer online", rows[f"{exact}: {each}, dealer online"]["here"], "a"),
        _timed("window [20:12), dealer online", rows[f"{window}: {each}, dealer online"]["here"], "a"),
        _timed("window [20:12), dealt in advance", rows[f"{window}: {each}, dealt in advance"]["here"], "a"),
        Bar("at 352 Mb/s"),
        _timed("CrypTen 0.4.1, exact", shaped["CrypTen 0.4.1"], "c"),
        _timed("window [20:12), dealer online", shaped["here"], "a"),
    ]
    return bar_chart(
        "ResNet-18, 32x32 pixels: seconds for an image, in batches of 8",
        "; ".join(f"{bar.name}: {bar.words}" if bar.words else bar.name for bar in bars),
        bars,
        {"c": "CrypTen as shipped", "a": "here"},
    )


def _timed(name: str, cell: str, colour: str) -> Bar:
    return Bar(name, [(number(cell), colour)], f"{number(cell):g} s")


def times() -> str:
    """Milliseconds of party 0 for an image through ResNet-18, by stage."""
    rows = table(ROOT / "docs/benchmarks.md", "## Where an image's time goes")
    bars = []
    for name, row in rows.items():
        parts = [(number(row[column]), colour) for column, colour in zip(HEAD[1:], "abc", strict=True)]
        if name != "all":
            bars.append(Bar(name, parts, f"{sum(length for length, _ in parts):.1f} ms"))
    return bar_chart(
        "ResNet-18, 32x32 pixels, 8 bits of 64: where an image's time goes at party 0",
        "; ".join(f"{bar.name}: {bar.words}" for bar in bars),
        bars,
        dict(zip("abc", HEAD[1:], strict=True)),
        left=150,
    )


def two_party() -> str:
    """Seconds before the image is there and with it, two parties without a dealer."""
    page = ROOT / "docs/two-party.md"
    rows = table(page, "weights existed before:")
    bars = []
    for name, row in rows.items():
        before, with_it = number(row["s before"]), number(row["s with it"])
        bars.append(Bar(name, [(before, "c"), (with_it, "a")], f"{before:g} s and {with_it:g} s"))
    return bar_chart(
        "Two parties without a dealer: where an image's time goes",
        "; ".join(f"{bar.name}: {bar.words}" for bar in bars),
        bars,
        {"c": "before the image is there", "a": "with the image"},
    )


CHARTS: dict[str, Callable[[], str]] = {
    "accuracy": accuracy,
    **asplos_charts.CHARTS,
    "layers": layers,
    "seconds": seconds,
    "times": times,
    "two-party": two_party,
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser(__doc__, "scripts.papers.figures")
    made.add_argument(
        "--out-folder", type=Path, default=ROOT / "docs/figures", metavar="FOLDER", help="default: docs/figures"
    )
    return made


def run(args: argparse.Namespace) -> None:
    """Draw and write all charts."""
    drawn = {name: draw() for name, draw in CHARTS.items()}
    args.out_folder.mkdir(exist_ok=True)
    for name, text in drawn.items():
        (args.out_folder / f"{name}.svg").write_text(text, encoding="utf-8")
    print(f"wrote {', '.join(f'{name}.svg' for name in drawn)} to {args.out_folder}")


main = main_of(parser, run, "interrupted")


if __name__ == "__main__":
    sys.exit(main())
