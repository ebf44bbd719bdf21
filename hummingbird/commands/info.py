"""`info`: prints versions, devices, kernels, and whether CrypTen needed its shim."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
from typing import Any

import torch

from hummingbird import kernels
from hummingbird.crypten import adapter
from hummingbird.version import VERSION

HELP = "Print versions, devices, kernels, and whether CrypTen needed its shim."


def add_parser(commands: Any) -> None:
    """Add the command `info`, with its options, to the command line."""
    commands.add_parser("info", help=HELP, description=HELP).set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the versions of packages, the devices, the kernels in use, and whether CrypTen needs the shim.

    The shim stands in for a module that CrypTen imports and that this torch lacks. Returns exit code 0.
    """

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
            "in use: this torch lacks a module that CrypTen imports" if adapter.SHIMMED else "not needed",
        ),
        ("CPU", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads for torch"),
        ("GPU", ", ".join(gpus) or "none"),
        ("kernels", kernels.active()),
    ]
    for key, value in rows:
        print(f"{key:14} {value}")
    return 0
