"""`check`: runs a small random net between two parties and a dealer on this host, and compares it with plain torch."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import torch
from torch import nn

import hummingbird
from hummingbird.errors import LaunchError
from hummingbird.launching.launch import launch
from hummingbird.rpc.options import positive

HELP = "Run a small net between two parties and a dealer on this host, and compare with plain PyTorch."
TOLERANCE = 0.01  # far above the error of three layers with 2^-16 rounding on logits of order one
_TIMEOUT = 600.0  # seconds: a busy machine is no failure


def net() -> nn.Module:
    """Return the small net of the self-test, with the same weights at every party."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    ).eval()


def party(session: hummingbird.Session) -> tuple[str, bool]:
    """Run the self-test's small net as one party, by `hummingbird.launch`; return a line of text, and whether it
    failed.
    """
    plain = net()
    images = torch.rand(4, 1, 8, 8)
    with hummingbird.meter() as m:
        private = hummingbird.convert_model(plain, bits=hummingbird.BitWindow(24, 0))
        logits = private(hummingbird.cryptensor(images if session.rank == 0 else None, src=0)).get_plain_text(dst=0)
    wrong = [row.layer for row in m.rows.values() if row.kind and row.bits_sent != row.bits_predicted]
    if wrong:
        return f"party {session.rank}: bits sent differ from the prediction at {wrong}", True
    if session.rank:
        return "", False
    with torch.no_grad():
        error = float((logits - plain(images)).abs().max())
    sent = f"{m.total.rounds} rounds, {m.total.bits_sent / 8e3:.1f} kB, as predicted"
    return f"party 0: largest logit error {error:.1e}, {sent}", error > TOLERANCE


def add_parser(commands: Any) -> None:
    """Add the command `check`, with its options, to the command line."""
    sub = commands.add_parser("check", help=HELP, description=HELP)
    text = "longest silence of a process, seconds (default: %(default)g)"
    sub.add_argument("--timeout", type=positive, default=_TIMEOUT, metavar="SECONDS", help=text)
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run a small net between two parties and a dealer on this host, and compare its result with plain PyTorch's.

    Returns the exit code: 1 if a result or the count of bits is wrong, or if a process fails; else 0.
    """
    started, failed = time.perf_counter(), False
    print("two parties and a dealer start; each imports torch ...", flush=True)
    try:
        found = launch(party, timeout=args.timeout)
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        failed = True
    else:
        failed = any(wrong for _, wrong in found)
        print("\n".join(text for text, _ in found if text))
    print(f"{'FAILED' if failed else 'ok'}: two parties and a dealer, {time.perf_counter() - started:.1f} s")
    return int(failed)
