"""Commands: python -m hummingbird info | check | estimate | dealer."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import math
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

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


def estimate(args: argparse.Namespace) -> int:
    """Print rounds and bits of every layer of a net, and wire time, before anything runs."""
    from hummingbird.convert import convert_model
    from hummingbird.report import estimate_table

    module_name, _, function = args.model.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
        build = getattr(module, function or "get_model")
    except (ImportError, AttributeError) as error:
        raise HummingbirdError(
            f"cannot import {args.model!r}: {error}",
            where="--model",
            hint="PACKAGE.MODULE:FUNCTION, a function that returns a net",
        ) from None
    try:
        net = build(*args.model_args)
    except (TypeError, ValueError) as error:
        what, _, hint = str(error).partition("\nhint: ")
        hint = hint or "its arguments follow its name on the command line"
        raise HummingbirdError(f"{args.model} gives no net: {what}", where="--model", hint=hint) from None
    private = convert_model(net, bits=args.bits, weights=0 if args.private_weights else "public")
    print(estimate_table(private, args.input, args.parties, args.bandwidth, args.rtt))
    return 0


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.lower().replace(",", "x").split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 8x3x32x32") from None
    if min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} holds a size below 1")
    return shape


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


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
    sub = commands.add_parser(
        "estimate",
        help=estimate.__doc__,
        description=estimate.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        "  python -m hummingbird estimate --model models:get_model resnet18 10 --input 8x3x32x32\n"
        "  python -m hummingbird estimate --model torchvision.models:resnet50 --input 1x3x224x224 "
        "--bits bits.json --bandwidth 352e6 --rtt 0.02",
    )
    sub.add_argument("--model", required=True, metavar="MODULE:FUNCTION", help="a function that returns a torch net")
    sub.add_argument(
        "model_args",
        nargs="*",
        type=lambda text: int(text) if text.isdigit() else text,
        help="its positional arguments",
    )
    sub.add_argument("--input", required=True, type=_shape, metavar="BxCxHxW", help="shape of one batch")
    sub.add_argument("--bits", type=Path, help="bit configuration (JSON); default: exact comparisons")
    sub.add_argument("--parties", type=_count, default=2, help="number of parties (default 2)")
    sub.add_argument("--private-weights", action="store_true", help="the weights belong to one party")
    sub.add_argument("--bandwidth", type=_positive, default=10e9, metavar="BITS/S", help="per party (default 10e9)")
    sub.add_argument(
        "--rtt", type=_positive, default=0.0002, metavar="SECONDS", help="round-trip time (default 0.0002)"
    )
    sub.set_defaults(run=estimate)
    from hummingbird.mpc.dealer import command

    sub = commands.add_parser(
        "dealer",
        help="Deal correlated randomness to the parties of other runs; sees no input.",
        description="The trusted third party of the offline phase: it sends random numbers and sees no input, no "
        "weight and no result. It must not collude with any party: together they could read that run's secrets.",
    )
    command.add_arguments(sub)
    sub.set_defaults(run=command.main)
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
