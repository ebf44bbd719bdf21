"""`check`: a small net between two parties and a dealer on this host (hummingbird/selftest.py is one of them)."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from typing import Any

from hummingbird.mpc import lanes

HELP = "Run a small net between two parties and a dealer on this host, and compare with plain PyTorch."


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    sub = commands.add_parser("check", help=HELP, description=HELP)
    sub.add_argument("--timeout", type=float, default=60.0, help="seconds after which the test has failed (default 60)")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run a small net between two parties and a dealer on this host, and compare with plain PyTorch."""
    started = time.perf_counter()
    rendezvous = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        lanes.VARIABLE: "1",
    }
    parties = [
        subprocess.Popen(
            [sys.executable, "-m", "hummingbird.selftest"],
            env={**os.environ, **rendezvous, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = []
    for party in parties:
        try:
            outputs.append(party.communicate(timeout=args.timeout)[0])
        except subprocess.TimeoutExpired:
            party.kill()
            outputs.append(party.communicate()[0] + f"\nstopped after {args.timeout:g} s")
    failed = any(party.returncode for party in parties)
    print("\n".join(f"party {rank}: {text.strip()}" for rank, text in enumerate(outputs) if text.strip()))
    print(f"{'FAILED' if failed else 'ok'}: two parties and a dealer, {time.perf_counter() - started:.1f} s")
    return int(failed)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
