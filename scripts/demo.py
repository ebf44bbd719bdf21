"""Private inference of handwritten digits on this machine: CrypTen as shipped, then the reduced ring, side by side.

make demo
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the project's folder must be importable
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hummingbird.commands.output import check_outputs
from hummingbird.errors import HummingbirdError
from hummingbird.table import text_table
from scripts.bench.party import ROOT, on_this_host

WEIGHTS = str(ROOT / "checkpoints" / "digits.pt")
BITS = str(ROOT / "checkpoints" / "digits.bits.json")


def runs(count: int) -> list[tuple[str, str, list[str]]]:
    """Label, program and options of every run on `count` images."""
    baseline = ["--model", "digits", "--checkpoint", WEIGHTS, "--images", str(count)]
    net = ["--model", "models:get_model", "digits", "10", "--weights", WEIGHTS]
    infer = [*net, "--data", "scripts.train.data:load", "digits", "test", "--samples", str(count)]
    return [
        ("CrypTen 0.4.1, exact", "scripts.bench.crypten_baseline", baseline),
        ("hummingbird, exact", "hummingbird infer", infer),
        ("hummingbird, 8 of 64 bits", "hummingbird infer", [*infer, "--bits", BITS]),
    ]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--images", type=int, default=500, help="how many of the 500 test images (default: all)")
    p.add_argument("--json", type=Path, help="write the figures to a file")
    args = p.parse_args()
    check_outputs(args)
    started = time.perf_counter()
    print(
        f"Private inference of {args.images} handwritten digits by two parties, each a process on this machine.\n"
        "Party 0 owns the images and learns the answers; party 1 computes on shares that tell it nothing.\n"
        "In hummingbird's runs a third process deals random numbers: it sees no image, no share, no result.\n"
    )
    rows: list[dict[str, Any]] = []
    programs = runs(args.images)
    for number, (label, program, options) in enumerate(programs, 1):
        print(f"{number}/{len(programs)}  {label}", flush=True)
        rows.append({"run": label, **on_this_host(2, program, options)})
    exact = rows[0]
    cells = [
        (
            row["run"],
            f"{row['accuracy_private_percent']:.1f} %",
            f"{row['accuracy_plain_percent']:.1f} %",
            f"{row['online_kilobytes_per_image']:.1f}",
            f"{exact['online_kilobytes_per_image'] / row['online_kilobytes_per_image']:.1f}x",
            f"{row['rounds_per_batch']:.0f}",
            f"{row['seconds']:.2f}",
            f"{row['online_seconds']:.2f}",
            f"{row['offline_seconds']:.2f}",
        )
        for row in rows
    ]
    head = ("", "private", "plain", "kB/image", "fewer", "rounds", "seconds", "online", "offline")
    print("\n" + text_table(head, cells))
    print(
        "\nprivate, plain: accuracy on encrypted and on plain images.  kB/image: sent online by one party.\n"
        "rounds: messages that wait for each other, per batch of 100.\n"
        "offline: seconds for random numbers, which do not depend on the images.\n"
        f"\nDone in {time.perf_counter() - started:.0f} s. Next: docs/quickstart.md, with a net of your own."
    )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except HummingbirdError as error:
        sys.exit(f"error: {error}")
