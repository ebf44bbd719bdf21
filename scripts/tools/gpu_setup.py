"""Wheels and kernels for a machine with a GPU and no network: it gets the wheels carried, and builds the kernels."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hummingbird.errors import EnvironmentProblem
from scripts.program import ROOT

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
    for words in commands(str(folder)):
        done = run([sys.executable, *words], capture_output=True, text=True)
        if done.returncode:
            what = f"`python {' '.join(words)}` failed: {done.stderr.strip()[-500:]}"
            raise EnvironmentProblem(what, where="wheels", hint="this needs a network, once; then carry the folder")
    wheels = sorted(folder.glob("*.whl"))
    if (size := sum(path.stat().st_size for path in wheels)) > MOST_BYTES:
        what = f"{size / 1e6:.0f} MB of wheels, more than {MOST_BYTES / 1e6:.0f}"
        raise EnvironmentProblem(what, where=str(folder), hint="empty the folder first: it may hold others")
    return wheels


BUILD = ["setup.py", "--quiet", "build_ext", "--inplace", "--force", "--parallel=8"]
LOADS = ["-c", "from hummingbird.kernels.cpu import library; raise SystemExit(not library.available())"]


def ends_well(words: list[str]) -> bool:
    """Whether a program of Python ends well."""
    return subprocess.run([sys.executable, *words], cwd=ROOT).returncode == 0


def build_kernels() -> int:
    """Build the C++ kernels for this Python, where there are none that load; 1 where they do not load in the end.

    A library of another machine or of other sources is there and does not load; and setup.py, for which it is
    optional, ends well without one.
    """
    if ends_well(LOADS):
        print("the C++ kernels are there")
    elif not ends_well(BUILD) or not ends_well(LOADS):
        print("error: the C++ kernels were built, and do not load\nhint: see what the compiler said", file=sys.stderr)
        return 1
    else:
        print("the C++ kernels are built")
    return 0
