"""Oblivious transfers on one thread: nanoseconds of one at either side, for each instruction set, and the set-up.

    python -m scripts.bench.ot --json ot.json

A time is the least of several calls for --count transfers, messages included: what `ot.cot` does between two
sides but for the network. Silent transfers are drawn, 65,536 at a time, from an iteration of each size of `ot.silent`;
the messages that begin it are not in the time. Before it is timed, the keys of both sides are compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import torch

from hummingbird.commands.output import check_outputs
from hummingbird.commands.program import machine
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.kernels import pack_bits
from hummingbird.kernels.cot import choose
from hummingbird.kernels.cpu import library
from hummingbird.ot import cot
from hummingbird.ot.silent import SETS, Extension, SilentReceiver, SilentSender
from hummingbird.prg import fresh, new_seed
from scripts.program import add_json, alone, best, columns, main_of, new_parser, write_rows


def set_up() -> tuple[cot.Sender, cot.Receiver, list[dict[str, Any]]]:
    """Both sides, and rows of the time that each took."""
    start = cot.SetUp()
    receiver, reply = cot.accept(start.message)
    times = {
        "set-up, sender": best(cot.SetUp) + best(lambda: start.finish(reply)),
        "set-up, receiver": best(lambda: cot.accept(start.message)),
    }
    octets = dict(zip(times, (len(start.message), len(reply)), strict=True))
    rows = [{"step": name, "instructions": "", "ns": 1e9 * time, "bytes": octets[name]} for name, time in times.items()]
    return start.finish(reply), receiver, rows


def extensions(sender: cot.Sender, receiver: cot.Receiver, count: int, isa: str) -> list[dict[str, Any]]:
    """Rows of one transfer of each kind at either side, and of a label; HummingbirdError for keys that do not fit."""
    message, choices, keys = receiver.random(0, count)
    packed, rows = pack_bits(choices), []
    for random in (True, False):
        message = message if random else receiver.chosen(0, choices)[0]
        if not torch.equal(keys, choose(sender.extend(0, count, message, random), packed, sender.delta)):
            raise HummingbirdError("the keys of the two sides do not fit", where="scripts.bench.ot")
        ask = (lambda: receiver.random(0, count)) if random else (lambda: receiver.chosen(0, choices))
        times = best(ask), best(lambda sent=message, kind=random: sender.extend(0, count, sent, kind))
        for side, time in zip(("receiver", "sender"), times, strict=True):
            octets = len(message) / count if side == "receiver" else 0
            name = f"{'random' if random else 'chosen'} choices, {side}"
            rows.append({"step": name, "instructions": isa, "ns": 1e9 * time / count, "bytes": octets})
    labels = fresh().words(count, 2)
    told = best(lambda: choose(labels, packed, sender.delta))
    return [*rows, {"step": "label of a bit", "instructions": isa, "ns": 1e9 * told / count, "bytes": 16}]


_DRAWN = 1 << 16  # silent transfers in one call


def silent_draws() -> Iterator[dict[str, Any]]:
    """Rows of a silent transfer at either side, by size of the iteration; HummingbirdError for keys that do not fit."""
    for size in SETS:
        sender, receiver, _ = set_up()
        public, extension = new_seed(), Extension(size, size.base)
        sides = SilentSender(sender, public), SilentReceiver(receiver, public)
        sides[1].learn(sides[0].answer(extension, sides[1].ask(extension)))
        times: list[list[float]] = [[], []]
        for _ in range(size.outputs // _DRAWN):
            keys = []
            for side, seconds in zip(sides, times, strict=True):
                started = perf_counter()
                keys.append(side.take(_DRAWN))
                seconds.append(perf_counter() - started)
            choices = pack_bits((keys[1][:, 0] & 1).to(torch.uint8))
            if not torch.equal(keys[1], choose(keys[0], choices, sender.delta)):
                raise HummingbirdError("the keys of the two sides do not fit", where="scripts.bench.ot")
        octets = Extension(size).bits / 8 / (size.outputs - size.base)  # if the iteration before makes the base
        for name, seconds in zip(("sender", "receiver"), times, strict=True):
            step = f"silent, {size.trees} trees of 2^{size.depth}, table of 2^{size.log_table}, {name}"
            yield {"step": step, "instructions": library.isa(), "ns": 1e9 * min(seconds) / _DRAWN, "bytes": octets}


def run(args: argparse.Namespace) -> None:
    """Measure, print the table, write the rows."""
    if args.count < 1:
        raise InputError(f"expected at least one transfer, got {args.count}", where="--count")
    check_outputs(args)
    alone()
    sender, receiver, rows = set_up()
    before = library.isa()
    try:
        for isa in reversed(library.ISAS):
            if library.set_isa(isa):
                rows += extensions(sender, receiver, args.count, isa)
    finally:
        library.set_isa(before)
    rows += silent_draws()
    shown = [
        *(("step", "{step}"), ("instructions", "{instructions}"), ("time", lambda row: _time(row["ns"]))),
        ("bytes sent", "{bytes:,.3f}"),
    ]
    print(columns(rows, shown, left=2))
    write_rows(args.json, [row | {"count": args.count, **machine()} for row in rows])


def _time(ns: float) -> str:
    return f"{ns:,.2f} ns" if ns < 1e5 else f"{ns / 1e6:,.1f} ms"


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = new_parser(__doc__)
    p.add_argument("--count", type=int, default=100_000, help="transfers in one call (default: %(default)s)")
    add_json(p)
    return p


main = main_of(parser, run)


if __name__ == "__main__":
    sys.exit(main())
