"""The wheels that a machine with a GPU and without a network needs carried: fetched where there is a network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hummingbird.errors import EnvironmentProblem

PYTHON = "3.12"
PRESENT = (  # packages of that machine: with CARRIED, all that the steps import
    *("torch", "torchvision", "triton", "numpy", "pyyaml", "pandas", "scipy", "onnx", "grpcio", "protobuf"),
    *("prometheus-client", "cloudpickle", "safetensors", "pytest", "pytest-timeout", "pytest-xdist", "tqdm"),
    *("scikit-learn", "setuptools", "pip"),
)
BINARY = ("omegaconf", "cryptography", "cffi")  # cryptography calls cffi's backend
SOURCE = ("crypten==0.4.1",)  # the index has its source only
CARRIED = (*BINARY, "crypten")
MOST_BYTES = 32 << 20  # of wheels: they travel with the checkout
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def commands(folder: str) -> list[list[str]]:
    """The words after Python's name, for pip."""
    platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
    download = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", PYTHON]
    return [
        [*download, "--implementation", "cp", *platforms, "--dest", folder, *BINARY],
        ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, *SOURCE],
    ]


def fetch(folder: Path, run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run) -> list[Path]:
    """Fill a folder with the wheels, in half a minute; EnvironmentProblem if pip fails, or if they are too large."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SKLEARN_ALLOW_DEPRECATED_SKLEARN_PACKAGE_INSTALL": "True"}
    for words in commands(str(folder)):
        done = run([sys.executable, *words], env=environment, capture_output=True, text=True)
        if done.returncode:
            what = f"`python {' '.join(words)}` failed: {done.stderr.strip()[-500:]}"
            raise EnvironmentProblem(what, where="wheels", hint="this needs a network, once; then carry the folder")
    wheels = sorted(folder.glob("*.whl"))
    if (size := sum(path.stat().st_size for path in wheels)) > MOST_BYTES:
        what = f"{size / 1e6:.0f} MB of wheels, more than {MOST_BYTES / 1e6:.0f}"
        raise EnvironmentProblem(what, where=str(folder), hint="empty the folder first: it may hold others")
    return wheels
