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
    """server: seconds of one core of each server for a pass; client: seconds of a core for an inference: its keys
    chosen and made, its rows decoded. messages: bytes of an inference's messages, both ways and both servers; content:
    of the keys and records in them.
    """

    server: float
    client: float
    messages: int
    content: int


def timed(table: Tensor, plan: Plan, wanted: Sequence[Tensor], prf: str) -> Timed:
    """A pass for clients that each want the rows int64 (n,) of one inference, from table (rows, dim).

    HummingbirdError unless every row that the planner finds is the table's, all others are zeros, the servers answer
    together what they answer one by one, and all inferences send and get equally much. Memory: `plan_servers`, twice.
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
    """The packed answers to packed queries in one pass, as `service.Batcher` has them made, in this thread."""
    keys = [unpack_query(query, server.facts, server.party)[1] for query in queries]
    state, records = server.answer(torch.cat(keys), _DECODER)
    return [pack_answer(state, part) for part in records.split([len(some) for some in keys])]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch and the kernels stay in the thread whose time is taken."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Tap:
    """A `Link` to a server in this process that keeps what is exchanged, and adds up the server's seconds."""

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
    """One inference after the other."""
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
    """Bytes of an inference's messages at all servers, and of their content."""
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
    """The client's seconds for all inferences: all that its calls take, without the servers."""
    times = []
    for _ in range(REPEATS):
        before, started = sum(tap.seconds for tap in taps), time.thread_time()
        for rows in wanted:
            private(rows)
        times.append(time.thread_time() - started - (sum(tap.seconds for tap in taps) - before))
    return min(times)
