"""How fast this machine serves private lookups: passes of real servers timed, and the model fitted to them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hummingbird.pir import dpf
from hummingbird.pir.batching.batch_code import BatchCode
from hummingbird.pir.batching.cost_model import Price, Speed, price
from hummingbird.pir.batching.plan import Plan
from hummingbird.pir.messages import pack_query
from hummingbird.pir.serving.bucket_server import plan_servers
from hummingbird.pir.serving.server import Server
from hummingbird.progress import progress_line
from scripts.bench.pir import seconds
from search.pir_timed import REPEATS, answer_together, one_thread

# Buckets and keys for each of them: sizes of plans are between them.
_SIZES = ((1, 8), (1, 64), (8, 1), (8, 2), (32, 1), (32, 2), (96, 1))
_HOT = 10  # a hot table has one row in so many
_ROUNDS = 3  # through all settings


def measure(rows: int, widths: Sequence[int], clients: int, prf: str) -> tuple[Speed, float]:
    """Measure and fit the speed of one core, for passes that serve `clients` inferences on tables of `rows` rows.

    widths: bytes of a record. prf: the pseudo-random function that expands keys. Returns the speed, and the largest
    relative error of the model on what was measured. A whole table is served, bucket by bucket, as a plan's is: a lone
    bucket stays in the cache, and says little of a table that does not.
    """
    codes = [BatchCode(size, b, 1, n) for size in (rows, max(1, rows // _HOT)) for b, n in _SIZES if b <= size]
    settings = [(code, width) for code in codes for width in widths]
    # CPU time of this thread: a clock on the wall counts the turns of other processes, too. These still take caches and
    # memory, for seconds on end and up to a fifth of the time, so that the least is of rounds that are far apart.
    with one_thread(), progress_line(settings * _ROUNDS, desc="speed", unit="table") as bar:
        timed = [_time(code, width, clients, prf) for code, width in bar]
    count = len(settings)
    measured = [min(timed[number::count], key=lambda each: each[1]) for number in range(count)]
    speed = Speed.fit(measured)
    return speed, max(abs(speed.seconds(cost) / took - 1) for cost, took in measured)


def _time(code: BatchCode, width: int, clients: int, prf: str) -> tuple[Price, float]:
    """Return the price of an inference by a code, and the seconds that it takes a server. width: bytes of a record."""
    server, queries = asked(code, width, clients, prf)
    return price([code], width), seconds(lambda: answer_together(server, queries), REPEATS) / clients


def asked(code: BatchCode, width: int, clients: int, prf: str) -> tuple[Server, list[bytes]]:
    """Make a server of a code's table with records of `width` bytes, and one query of each of `clients` clients."""
    (server,) = plan_servers(torch.zeros(code.rows, width, dtype=torch.uint8), Plan(code), 0)
    places = (torch.arange(clients * code.keys) * 31 % code.bucket_rows).view(clients, code.keys)
    return server, [pack_query("xor", dpf.generate(some, code.bucket_rows, prf)[0]) for some in places]
