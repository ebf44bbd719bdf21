"""Private inference of handwritten digits on this machine: CrypTen as shipped, then the reduced ring, side by side.

make demo
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from hummingbird.commands.output import check_outputs
from hummingbird.errors import HummingbirdError
from scripts.bench.party import on_this_host
from scripts.program import ROOT, columns, new_parser, write_rows

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
    p = new_parser(__doc__)
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
    sent = rows[0]["online_kilobytes_per_image"]
    shown = [
        *(("", "{run}"), ("private", "{accuracy_private_percent:.1f} %"), ("plain", "{accuracy_plain_percent:.1f} %")),
        ("kB/image", "{online_kilobytes_per_image:.1f}"),
        ("fewer", lambda row: f"{sent / row['online_kilobytes_per_image']:.1f}x"),
        *(("rounds", "{rounds_per_batch:.0f}"), ("seconds", "{seconds:.2f}")),
        *(("online", "{online_seconds:.2f}"), ("offline", "{offline_seconds:.2f}")),
    ]
    print("\n" + columns(rows, shown))
    print(
        "\nprivate, plain: accuracy on encrypted and on plain images.  kB/image: sent online by one party.\n"
        "rounds: messages that wait for each other, per batch of 100.\n"
        "offline: seconds for random numbers, which do not depend on the images.\n"
        f"\nDone in {time.perf_counter() - started:.0f} s. Next: docs/quickstart.md, with a net of your own."
    )
    write_rows(args.json, rows)


if __name__ == "__main__":
    try:
        main()
    except HummingbirdError as error:
        sys.exit(f"error: {error}")
