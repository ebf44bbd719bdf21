"""How fast this machine serves private lookups: the kernel timed on small tables, and the model fitted to it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from tqdm import tqdm

from hummingbird.kernels import rows as kernel
from hummingbird.pir import dpf
from hummingbird.pir.price import Price, Speed, blocks

_ROWS = (256, 1024, 4096, 16384)  # buckets of plans are of such sizes
_REPEATS = 5


def measure(widths: Sequence[int], clients: int, prf: str) -> tuple[Speed, float]:
    """The speed of one core at batches of `clients` keys on records of `widths` bytes, and the largest relative error
    of the model on what was measured.

    Expansion and selection together, the best of several runs; `prf` expands the keys.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        sizes = [(rows, width) for rows in _ROWS for width in widths]
        with tqdm(sizes, desc="speed", unit="table", leave=False) as bar:
            measured = [_time(rows, width, clients, prf) for rows, width in bar]
    finally:
        torch.set_num_threads(threads)
    speed = Speed.fit(measured)
    return speed, max(abs(speed.seconds(price) / seconds - 1) for price, seconds in measured)


def _time(rows: int, width: int, clients: int, prf: str) -> tuple[Price, float]:
    table = kernel.Table(rows, width)
    table.fill(0, (torch.arange(rows * width) * 97 % 251).to(torch.uint8).view(rows, width))
    keys = dpf.generate(torch.arange(clients) * 31 % rows, rows, prf)[0]
    passes = max(1, 4096 * 64 // (rows * width))  # long enough for the clock
    best = float("inf")
    for _ in range(_REPEATS):
        started = time.perf_counter()
        for _ in range(passes):
            table.answer(keys)
        best = min(best, (time.perf_counter() - started) / passes)
    return Price(clients, 0, 2 * clients * width, clients * rows, clients * rows * width, clients * blocks(rows)), best
