"""Rows of scripts/bench/hybrid.py: garbled ReLUs, those of Impala beside them, and oblivious transfers, alone.

They are timed by scripts/bench/garble.py and scripts/bench/ot.py, which compare results with plain numbers first.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator

from hummingbird import cost
from hummingbird.hybrid.gc import cot, relu
from hummingbird.kernels.cpu import library
from scripts.bench import garble, ot
from scripts.bench.hybrid_rows import Row, row

RELUS, WIDTH, RING = 10_000, 10, 20
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
