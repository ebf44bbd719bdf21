"""The bits of a ReLU by part, for CrypTen as shipped and for HummingBird as published: Figure 3 of HummingBird's paper.

    python -m scripts.bench.parts --json parts.json

Two processes on this host compute ReLUs, and a meter counts what one party sends in each part: "circuit", the tree of
ANDs that adds the parties' shares bit by bit; "others", the AND before the tree; "b2a", which turns the sign bit into
an additive sharing; and "product", the sign bit times the value.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hummingbird.bits import EXACT, BitWindow
from hummingbird.channel.meter import meter, within
from hummingbird.commands.output import check_outputs
from hummingbird.commands.party import run_party
from hummingbird.commands.program import machine
from hummingbird.cost import crypten_shipped_relu
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.table import text_table
from scripts.bench.common import CRYPTEN
from scripts.bench.contest import PUBLISHED
from scripts.bench.link import Link, places
from scripts.bench.party import launch
from scripts.program import add_json, main_of, new_parser, write_rows

PARTS = ("circuit", "others", "b2a", "product")
WINDOWS = (EXACT, BitWindow(20, 0), BitWindow(20, 12))


def parser() -> argparse.ArgumentParser:
    p = new_parser(__doc__)
    p.add_argument("--count", type=int, default=1 << 16, help="ReLUs at once (default 2^16)")
    add_json(p)
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    return p


def counted(count: int) -> list[dict[str, Any]]:
    """Compute `count` ReLUs as one of two parties; return a row for each protocol and window."""
    from crypten.mpc.primitives import beaver, circuit

    from hummingbird.crypten.adapter import crypten
    from scripts.bench import published
    from scripts.bench.crypten_baseline import start
    from scripts.bench.relu import values

    start()
    x = crypten.cryptensor(values(count), src=0)
    shipped = [(circuit, "__SPK_circuit", "circuit"), (beaver, "B2A_single_bit", "b2a"), (beaver, "mul", "product")]
    rows = [_row(CRYPTEN, EXACT, count, x.relu, shipped, crypten_shipped_relu(count, 2).bits)]
    packed = [(published, "_tree", "circuit"), (published, "_arithmetic", "b2a"), (beaver, "mul", "product")]
    for window in WINDOWS:
        price = published.price(count, window).bits
        rows.append(_row(PUBLISHED, window, count, lambda w=window: published.relu(x, w), packed, price))
    return rows


def _row(
    protocol: str, window: BitWindow, count: int, relu: Callable[[], Any], functions: Any, price: int
) -> dict[str, Any]:
    """Count the bits of `relu` by part.

    functions: module, name and part of each function that is a part; what is sent outside of them is "others". Raises
    HummingbirdError if a part sends nothing, or if they do not add up to the price.
    """
    with _parts(functions), meter() as m, within("others"):
        relu()
    bits = {part: m.rows[part].bits_sent if part in m.rows else 0 for part in PARTS}
    if not all(bits.values()) or sum(bits.values()) != price or m.total.bits_sent != price:
        raise HummingbirdError(f"the parts {bits} are not the price, {price} bits", where=f"{protocol}, {window}")
    shares = {f"{part}_percent": 100 * number / price for part, number in bits.items()}
    each = {f"{part}_bits_per_relu": number / count for part, number in bits.items()}
    return {"protocol": protocol, "window": str(window), "bits_per_relu": price / count, **each, **shares}


@contextmanager
def _parts(functions: Any) -> Iterator[None]:
    """Count, in this block, the messages of each function for its part."""

    def counting(function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with within(part):
                return function(*args, **kwargs)

        return call

    kept = [(module, name, getattr(module, name)) for module, name, _ in functions]
    for (module, name, function), (*_, part) in zip(kept, functions, strict=True):
        setattr(module, name, counting(function, part))
    try:
        yield
    finally:
        for module, name, function in kept:
            setattr(module, name, function)


def run(args: argparse.Namespace) -> None:
    """Be one party, or start two, print the table and write the rows."""
    if args.worker:
        rows = counted(args.count)
        if os.environ["RANK"] == "0":
            args.result.write_text(json.dumps(rows))
        return
    if args.count < 1:
        raise InputError("at least one", where="--count")
    check_outputs(args)
    with places(Link(), 2) as where:
        rows = launch(where, "scripts.bench.parts", ["--worker", "--count", str(args.count)])
    head = ["protocol", "window", "bits", *(f"{part} %" for part in PARTS)]
    cells = [
        [row["protocol"], row["window"], f"{row['bits_per_relu']:,.1f}", *(f"{row[f'{p}_percent']:.2f}" for p in PARTS)]
        for row in rows
    ]
    print(f"Bits of a ReLU that one party sends, {args.count:,} at once")
    print(text_table(head, cells))
    write_rows(args.json, [{**row, **machine()} for row in rows])


main = main_of(parser, lambda args: run_party(lambda: run(args)) if args.worker else run(args))

if __name__ == "__main__":
    main()
