"""Memory that was freed stays with the process until it is returned."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from tests.support.patience import HANG

PROGRAM = """
from pathlib import Path

import torch

from hummingbird.kernels import devices

def held():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024

assert devices.keep_freed_memory()
kept = [torch.ones(1 << 19) for _ in range(200)]
last = torch.ones(1 << 10)  # above the others in the heap: without `return_freed_memory` their pages stay
most = held()
del kept
freed = held()
devices.return_freed_memory()
print(most - freed < 100, freed - held() > 300)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer has an allocator of its own")
def test_freed_memory_is_returned_on_request() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=HANG, check=True)
    assert ended.stdout.split() == ["True", "True"]
