"""Rows of scripts/bench/hybrid.py: one quantity each, measured, beside what was predicted, its mark and the paper's.

Here are those by formula, with nothing run, and those of garbled ReLUs and transfers alone. Impala's Table 6 follows
from its Table 4: for each ReLU 128 w bytes offline and 80 w online, for each 2x2 maximum 416 w and 272 w. Ours are
those of every message (hummingbird/hybrid/prices.py). TinyImageNet: the nets of CIFAR-100 on images of 64x64, with 200
classes; figures of Garimella et al. beside them, from the files of their artifact.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from typing import Any

from hummingbird import cost
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.hybrid import make_plan
from hummingbird.hybrid.gc import relu
from hummingbird.kernels.cpu import library
from hummingbird.ot import cot
from models import get_model
from scripts.bench import garble, ot

Row = dict[str, Any]
HEAD = ["what", "unit", "measured", "predicted", "mark", "paper"]


def row(
    what: str,
    unit: str,
    measured: float | None,
    *,
    predicted: float | None = None,
    mark: str = "",
    paper: float | None = None,
    **more: Any,
) -> Row:
    """A flat row; mark: what the project set out to reach, as "<= 3". `more`: columns of the file alone."""
    figures = {"measured": measured, "predicted": predicted, "mark": mark, "paper": paper}
    return {"what": what, "unit": unit, **figures, **more}


def cells(row: Row) -> list[str]:
    """The row's cells below `HEAD`."""
    measured, predicted, paper = (number(row[key]) for key in ("measured", "predicted", "paper"))
    return [row["what"], row["unit"], measured, predicted, row["mark"], paper]


def number(value: float | None) -> str:
    """Five figures, or all of a whole number; "" for None."""
    if value is None:
        return ""
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.5g}"


WIDTH, RING = 10, 20
_COUNT = 2048  # whole tiles of ReLUs and whole blocks of transfers
# Megabytes in all, and of a client's store, by who garbles.
_TINY = {"data": (44_030, 8000), "model": (46_690, 40_661)}


def formulas() -> Iterator[Row]:
    """Impala's count of a ReLU, a maximum and its two nets, and ours of a ReLU."""
    for what, relus, pools, paper in (
        ("a ReLU", 1, 0, None),
        ("a 2x2 maximum", 0, 1, None),
        ("CIFAR-10 (paper: with the encrypted layers)", 173_056, 0, 364e6),
        ("MNIST", 2660, 2560, 23.1e6),
    ):
        offline, online = cost.impala(relus, pools, WIDTH)
        yield row(f"Impala, w = {WIDTH}: {what}", "bytes", None, predicted=offline + online, paper=paper)
    for garbler in ("data", "model"):
        tables = relu.Circuit("relu", WIDTH, RING, garbler).table_bytes(_COUNT)
        offline = (tables + cot.message_bytes(_COUNT * WIDTH, garbler == "data")) / _COUNT
        online = sum(cost.garbled_online(_COUNT, WIDTH, RING, garbler)) / _COUNT
        for when, size, paper in (("before the image", offline, 1280), ("with the image", online, 800)):
            what = f"ours, w = {WIDTH}, k' = {RING}, garbler {garbler}: a ReLU, {when}"
            yield row(what, "bytes", None, predicted=size, paper=paper)


def tiny() -> Iterator[Row]:
    """ResNet-18 on TinyImageNet, by the plan, random weights."""
    from scripts.bench.hybrid_nets import predicted

    net, bits = get_model("resnet18", 200, pool="none").eval(), BitConfig.of(BitWindow(20, 10))
    for garbler, (total, stored) in _TINY.items():
        sizes = predicted(make_plan(net, (3, 64, 64), bits, garbler).plan)
        name = f"ResNet-18, TinyImageNet, garbler {garbler}"
        yield row(f"{name}: an image", "MB", None, predicted=sizes["megabytes"], paper=total)
        yield row(f"{name}: its slot, the data's side", "MB", None, predicted=sizes["stored_megabytes"], paper=stored)


RELUS = 10_000
# Instruction set -> what does AES with it, and the mark in milliseconds.
_ISAS = {"avx512": ("VAES", "<= 3"), "avx2": ("AES-NI", "<= 8"), "portable": ("bit-sliced", "")}
_PAPER_MILLISECONDS = 500.0


def garbling(n: int) -> Iterator[Row]:
    """Bytes of a ReLU's tables and milliseconds of n; where there is a compiler, how much longer three adders take."""
    adders = shutil.which("c++") is not None
    found = garble.measure(argparse.Namespace(count=n, width=WIDTH, ring=RING, adders=adders))
    marked = n == RELUS
    for garbler in ("data", "model"):
        rows = {r["instructions"]: r for r in found if r["circuit"] == f"relu, garbler {garbler}"}
        who = f"{n:,} ReLUs, w = {WIDTH}, garbler {garbler}"
        size = relu.Circuit("relu", WIDTH, RING, garbler).table_bytes(n) / n
        yield row(f"{who}: tables", "bytes a ReLU", next(iter(rows.values()))["bytes_each"], predicted=size)
        for isa, r in rows.items():
            name, mark = _ISAS[isa]
            parts = {key: r[key] for key in ("garble_ms", "evaluate_ms")}
            marks = {"mark": mark, "paper": _PAPER_MILLISECONDS} if marked else {}
            yield row(f"{who}: garble + evaluate, {name}", "ms", r["sum_ms"], **marks, **parts)
    ours = {r["instructions"]: r["sum_ms"] for r in found if r["circuit"] == "relu, garbler data"}
    for r in found:
        if r["circuit"] == garble.ADDERS:
            isa = r["instructions"]
            yield row(f"three adders, {_ISAS[isa][0]}", "times ours", r["sum_ms"] / ours[isa], mark=">= 1.7")


def transfers(n: int) -> Iterator[Row]:
    """The set-up of a session's transfers, then bytes of each and millions a second of each side."""
    sender, receiver, first = ot.set_up()
    for r in first:
        yield row(f"transfers, {r['step']}", "ms", r["ns"] / 1e6)
    yield row("transfers, set-up, both ways", "bytes", sum(r["bytes"] for r in first), predicted=sum(cost.COT_SET_UP))
    rows = {r["step"]: r for r in ot.extensions(sender, receiver, n, library.isa())}
    for kind in ("random", "chosen"):
        predicted = cot.message_bytes(n, kind == "random") / n
        yield row(f"transfer, {kind} choices", "bytes", rows[f"{kind} choices, receiver"]["bytes"], predicted=predicted)
        for side in ("receiver", "sender"):
            rate = 1e3 / rows[f"{kind} choices, {side}"]["ns"]
            yield row(f"transfers, {kind} choices, {side}", "M/s", rate, mark=">= 25")
