"""Saves of a net that are killed: `python -m tests.jobs.killed_saves FOLDER SECONDS`, on one thread, for it forks.

Folder "N" is what is left of save N, if anything is: it was killed at a random moment of the time that a save takes.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import torch

import hummingbird
from tests.support.saved import secret


def main() -> None:
    torch.set_num_threads(1)
    (net, _), folder = secret(), sys.argv[1]
    for name in ("imports", "timed"):
        begun = time.monotonic()
        hummingbird.save(net, f"{folder}/{name}", weights=1)
        took = time.monotonic() - begun
    end, number = time.monotonic() + float(sys.argv[2]), 0
    while time.monotonic() < end:
        child, number = os.fork(), number + 1
        if child == 0:
            hummingbird.save(net, f"{folder}/{number}", weights=1)
            os._exit(0)
        time.sleep(random.uniform(0, 2 * took))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
