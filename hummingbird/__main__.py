"""Commands: python -m hummingbird info | check | estimate | deal | dealer | he-server | he-client | pir-server."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import torch

from hummingbird import net_commands
from hummingbird.errors import HummingbirdError
from hummingbird.version import VERSION


def info(args: argparse.Namespace) -> int:
    """Print versions, devices, kernels, and whether CrypTen needed its shim."""
    from hummingbird import kernels
    from hummingbird.mpc import _crypten

    def version(name: str) -> str:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return "not installed"

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    rows = [
        ("hummingbird", VERSION),
        ("Python", platform.python_version()),
        *((name, version(name)) for name in ("torch", "crypten", "torchvision", "numpy", "cryptography", "grpcio")),
        (
            "CrypTen shim",
            "in use: this torch lacks a module that CrypTen imports" if _crypten.SHIMMED else "not needed",
        ),
        ("CPU", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads for torch"),
        ("GPU", ", ".join(gpus) or "none"),
        ("kernels", kernels.active()),
    ]
    if version("hummingbird-ml") != "not installed":
        rows.append(
            (
                "WARNING",
                "the package hummingbird-ml is installed too and has the same import name: use another environment",
            )
        )
    for key, value in rows:
        print(f"{key:14} {value}")
    return 0


def check(args: argparse.Namespace) -> int:
    """Run a small net between two parties and a dealer on this host, and compare with plain PyTorch."""
    started = time.perf_counter()
    rendezvous = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
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


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m hummingbird", description="Private inference of PyTorch nets between servers."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("info", help=info.__doc__, description=info.__doc__).set_defaults(run=info)
    sub = commands.add_parser("check", help=check.__doc__, description=check.__doc__)
    sub.add_argument("--timeout", type=float, default=60.0, help="seconds after which the test has failed (default 60)")
    sub.set_defaults(run=check)
    net_commands.add_parsers(commands)
    from hummingbird.mpc.dealer import command

    sub = commands.add_parser(
        "dealer",
        help="Deal correlated randomness to the parties of other runs; sees no input.",
        description="The trusted third party of the offline phase: it sends random numbers and sees no input, no "
        "weight and no result. It must not collude with any party: together they could read that run's secrets.",
    )
    command.add_arguments(sub)
    sub.set_defaults(run=command.main)
    from hummingbird.he import command as he

    he.add_parsers(commands, net_commands.add_model_arguments, net_commands.build)
    from hummingbird.pir import command as pir_server

    text = "Serve one half of private lookups in a table; must not collude with the other server."
    sub = commands.add_parser("pir-server", help=text, description=pir_server.DESCRIPTION)
    pir_server.add_arguments(sub)
    sub.set_defaults(run=pir_server.main)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; errors are two lines, what and hint."""
    args = parser().parse_args(argv)
    try:
        return int(args.run(args) or 0)
    except HummingbirdError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
