"""A step of `scripts.tools.gpu`: the C++ kernels for this Python, built where there are none that load, and loaded
then.

A library of another machine or of other sources is there and does not load; and setup.py, for which it is optional,
ends well without one.
"""

from __future__ import annotations

import subprocess
import sys

from scripts.bench.party import ROOT

BUILD = ["setup.py", "--quiet", "build_ext", "--inplace", "--force", "--parallel=8"]
LOADS = ["-c", "from hummingbird.kernels.cpu import library; raise SystemExit(not library.available())"]


def run(words: list[str]) -> bool:
    """Whether a program of Python ends well."""
    return subprocess.run([sys.executable, *words], cwd=ROOT).returncode == 0


def main() -> int:
    """Run the program; 1 where the kernels do not load in the end."""
    if run(LOADS):
        print("the C++ kernels are there")
    elif not run(BUILD) or not run(LOADS):
        print("error: the C++ kernels were built, and do not load\nhint: see what the compiler said", file=sys.stderr)
        return 1
    else:
        print("the C++ kernels are built")
    return 0
