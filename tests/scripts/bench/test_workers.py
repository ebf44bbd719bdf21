"""Workers of programs: none is left once its program is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import python
from tests.support.paths import ROOT
from tests.support.patience import HANG, until

PROGRAM = """
import os, time
from scripts.bench.party import workers
with workers(1) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 3600).result()
"""


def alive(process: int) -> bool:
    """Whether it runs: one that nobody has waited for does not."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_program(number: signal.Signals) -> None:
    program = python.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    worker = int(program.stdout.readline())
    assert alive(worker) and worker != program.pid
    program.send_signal(number)
    program.wait(HANG)
    until(lambda: not alive(worker), "the worker to end")
    program.stdout.close()
