"""`check`: runs a small net between two parties and a dealer on this host (hummingbird/selftest.py)."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from hummingbird import selftest
from hummingbird.errors import LaunchError
from hummingbird.launching.launch import launch
from hummingbird.rpc.options import positive

HELP = "Run a small net between two parties and a dealer on this host, and compare with plain PyTorch."
_TIMEOUT = 600.0  # seconds: a busy machine is no failure


def add_parser(commands: Any) -> None:
    """Add the command `check`, with its options, to the command line."""
    sub = commands.add_parser("check", help=HELP, description=HELP)
    text = "longest silence of a process, seconds (default: %(default)g)"
    sub.add_argument("--timeout", type=positive, default=_TIMEOUT, metavar="SECONDS", help=text)
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run a small net between two parties and a dealer on this host, and compare with plain PyTorch."""
    started, failed = time.perf_counter(), False
    print("two parties and a dealer start; each imports torch ...", flush=True)
    try:
        found = launch(selftest.party, timeout=args.timeout)
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        failed = True
    else:
        failed = any(wrong for _, wrong in found)
        print("\n".join(text for text, _ in found if text))
    print(f"{'FAILED' if failed else 'ok'}: two parties and a dealer, {time.perf_counter() - started:.1f} s")
    return int(failed)
