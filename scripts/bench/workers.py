"""Worker processes that end when the process that started them does, whatever ended it: Ctrl-C, SIGTERM, SIGKILL."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor


def workers(count: int, threads: int | None = None) -> ProcessPoolExecutor:
    """A pool of fresh processes, as a context. threads: of torch in each; as many as torch likes if not given."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, spawn, initializer=_begin, initargs=(threads,))


def _begin(threads: int | None) -> None:
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    if threads is not None:
        import torch  # here: a worker without it begins in a moment

        torch.set_num_threads(threads)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()  # a pipe that the parent's death closes
    os._exit(1)
