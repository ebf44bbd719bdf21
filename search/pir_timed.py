"""Plans at work: real servers and a real client in this process, checked and timed on inferences of an application.

Times are CPU time of the one thread that works, the least of the repeats, so that other work on the machine counts
little.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird.errors import HummingbirdError
from hummingbird.pir.batching.embedding import BatchedEmbedding
from hummingbird.pir.batching.plan import Plan
from hummingbird.pir.client import Client
from hummingbird.pir.messages import pack_answer, unpack_answer, unpack_query
from hummingbird.pir.serving.bucket_server import plan_servers
from hummingbird.pir.serving.server import Server
from scripts.bench.pir import seconds
from search.pir_grid import found

REPEATS = 15
_DECODER = "xor"


class Timed(NamedTuple):
    """Times and traffic of a plan's lookups.

    server: seconds of one core of each server for a pass. client: seconds of one core for an inference, in which the
    client chooses and makes keys, and decodes rows. messages: bytes of an inference's messages, both ways and at both
    servers. content: bytes of the keys and records in these messages.
    """

    server: float
    client: float
    messages: int
    content: int


def timed(table: Tensor, plan: Plan, wanted: Sequence[Tensor], prf: str) -> Timed:
    """Check and time one pass for clients that look up rows by a plan, one inference each.

    table: (rows, dim). wanted: for each client, the numbers of the rows that it wants, int64 (n,). prf: the
    pseudo-random function that expands keys. Raises HummingbirdError unless every row that the plan finds is the
    table's, all others are zeros, the servers answer the same in a pass as one by one, and all inferences send and
    receive equally many bytes. Takes twice the memory of `plan_servers`.
    """
    with one_thread():
        taps = [[_Tap(server) for server in plan_servers(table, plan, party)] for party in (0, 1)]
        private = BatchedEmbedding(plan, [Client(pair, prf=prf) for pair in zip(*taps, strict=True)])
        _check(table, private, wanted)
        messages, content = _traffic([*taps[0], *taps[1]])
        asked = [(tap.server, [query for query, _ in tap.exchanged]) for tap in taps[0]]
        for tap, (server, queries) in zip(taps[0], asked, strict=True):
            if answer_together(server, queries) != [answer for _, answer in tap.exchanged]:
                raise HummingbirdError("queries have other answers in a pass than alone", where=str(plan.codes))
        server = seconds(lambda: [answer_together(*each) for each in asked], REPEATS)
        client = _client_seconds(private, [*taps[0], *taps[1]], wanted)
    return Timed(server, client / len(wanted), messages, content)


def answer_together(server: Server, queries: Sequence[bytes]) -> list[bytes]:
    """Answer packed queries in one pass, in this thread, as `service.Batcher` does; returns the packed answers."""
    keys = [unpack_query(query, server.facts, server.party)[1] for query in queries]
    state, records = server.answer(torch.cat(keys), _DECODER)
    return [pack_answer(state, part) for part in records.split([len(some) for some in keys])]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch and the kernels, inside a `with` block, in the thread whose time is taken."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Tap:
    """A `TableServer` before a server in this process, which keeps all messages, and adds up the server's seconds."""

    def __init__(self, server: Server) -> None:
        self.server, self.name, self.seconds = server, server.name, 0.0
        self.exchanged: list[tuple[bytes, bytes]] = []

    def begin(self, message: bytes, method: str = "Answer") -> Callable[[], bytes]:
        if method != "Answer":
            return self.server.begin(message, method)
        started = time.thread_time()
        answer = self.server.handle(message)
        self.seconds += time.thread_time() - started
        self.exchanged.append((message, answer))
        return lambda: answer


def _check(table: Tensor, private: BatchedEmbedding, wanted: Sequence[Tensor]) -> None:
    """Raise HummingbirdError unless private lookups, one inference after the other, give the rows of `table`.

    A row that the plan does not find must be zeros.
    """
    marks = found(private.plan, wanted)
    for rows, mark in zip(wanted, marks, strict=True):
        expected = table[rows].masked_fill(~mark[:, None], 0)
        if not torch.equal(private(rows).view(torch.uint8), expected.view(torch.uint8)):
            raise HummingbirdError("a wrong row", where=str(private.plan.codes))
    dropped = sum(int((~mark).sum()) for mark in marks)
    if private.dropped != dropped:
        what = f"{private.dropped} lookups dropped, {dropped} by the planner alone"
        raise HummingbirdError(what, where=str(private.plan.codes))


def _traffic(taps: Sequence[_Tap]) -> tuple[int, int]:
    """Return the bytes of an inference's messages at all servers, and those of the keys and records in them.

    Raises HummingbirdError if inferences differ in the sizes of their messages.
    """
    inferences = zip(*(tap.exchanged for tap in taps), strict=True)
    sizes = {tuple((len(query), len(answer)) for query, answer in exchanged) for exchanged in inferences}
    if len(sizes) != 1:
        raise HummingbirdError("inferences have messages of different sizes", where=str(sorted(sizes)))
    content = 0
    for tap in taps:
        query, answer = tap.exchanged[0]
        keys = unpack_query(query, tap.server.facts, tap.server.party)[1]
        content += keys.numel() + unpack_answer(answer, len(keys), tap.server.facts, signed=False)[1].numel()
    return sum(map(sum, sizes.pop())), content


def _client_seconds(private: BatchedEmbedding, taps: Sequence[_Tap], wanted: Sequence[Tensor]) -> float:
    """Measure the client's seconds for all inferences: what its calls take, less what the servers take of it."""
    times = []
    for _ in range(REPEATS):
        before, started = sum(tap.seconds for tap in taps), time.thread_time()
        for rows in wanted:
            private(rows)
        times.append(time.thread_time() - started - (sum(tap.seconds for tap in taps) - before))
    return min(times)
