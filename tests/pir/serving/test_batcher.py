"""The batching of queries from many clients: who waits for whom, for how long, and whom a failure reaches."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from hummingbird.errors import ConfigError, InputError, PeerError
from hummingbird.pir import Owner, Server, Service, dpf
from hummingbird.pir.messages import pack_query
from hummingbird.pir.serving.metrics import Metrics
from hummingbird.pir.serving.service import Batcher
from hummingbird.pir.table_server import Remote
from tests.support.patience import HANG, NEVER, until

OWNER = Owner()
TABLE = torch.randn(5000, 8, generator=torch.Generator().manual_seed(0))


class Counting:
    """Stands in for a table: remembers how many keys each pass had, and echoes them."""

    def __init__(self) -> None:
        self.passes, self.free = [], threading.Event()
        self.free.set()

    def __call__(self, keys, decoder):
        self.passes.append(len(keys))
        assert self.free.wait(HANG)
        return decoder, keys.clone()


def ask(batcher: Batcher, sizes: list[int], decoders: str = "x") -> list:
    """Queries of these sizes at the same time; every result is its own keys."""
    keys = [torch.full((size, 4), number, dtype=torch.uint8) for number, size in enumerate(sizes)]
    results: list = [None] * len(sizes)

    def run(number: int) -> None:
        try:
            results[number] = batcher.answer(keys[number], decoders[number % len(decoders)])
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(sizes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    for number, result in enumerate(results):
        assert isinstance(result, Exception) or torch.equal(result[1], keys[number])
    return results


def ask_during_a_pass(work: Counting, batcher: Batcher, sizes: list[int], decoders: str = "x") -> list:
    """The same, of queries that all come while one of a single key is under way."""
    with ThreadPoolExecutor() as pool:
        work.free.clear()
        first = pool.submit(ask, batcher, [1])
        until(lambda: work.passes == [1], "the first pass")
        others = pool.submit(ask, batcher, sizes, decoders)
        until(lambda: len(batcher._jobs) == len(sizes), "the other queries")
        work.free.set()
        first.result(HANG)
        return others.result(HANG)


def test_queries_wait_for_each_other():
    work, metrics = Counting(), Metrics()
    batcher = Batcher(work, metrics, max_batch=8)
    batcher._max_wait = NEVER
    ask(batcher, [1] * 5 + [3])
    assert work.passes == [8]  # full: it does not wait on
    assert metrics.read()["batches"] == {"8": 1} and metrics.read()["queries"] == 8
    batcher.close()


def test_nobody_waits_longer_than_the_window():
    work = Counting()
    batcher = Batcher(work, Metrics(), max_batch=1000, max_wait=1.0)
    started = time.monotonic()
    ask(batcher, [1, 2])
    assert work.passes == [3] and time.monotonic() - started >= 1.0
    batcher.close()


def test_queries_that_come_during_a_pass_are_in_the_next():
    work = Counting()
    batcher = Batcher(work, Metrics(), max_batch=4, max_wait=0.0)
    ask_during_a_pass(work, batcher, [1, 1, 1, 1, 9])
    assert work.passes[0] == 1 and sorted(work.passes[1:]) == [4, 9]
    batcher.close()


def test_decoders_are_not_mixed_and_a_failure_reaches_all():
    work = Counting()
    batcher = Batcher(work, Metrics(), max_batch=4, max_wait=0.0)
    results = ask_during_a_pass(work, batcher, [1] * 4, "xs")
    assert work.passes == [1, 2, 2] and [result[0] for result in results] == ["x", "s", "x", "s"]
    batcher.close()

    def fail(keys, decoder):
        raise InputError("no")

    broken = Batcher(fail, Metrics(), max_batch=3, max_wait=60.0)
    assert [str(result) for result in ask(broken, [1, 1, 1])] == ["no"] * 3
    assert str(ask(broken, [3])[0]) == "no"  # it goes on
    broken.close()


def test_a_failure_beside_the_work_reaches_all_and_the_batcher_goes_on():
    class Full(Metrics):
        def add(self, *_):
            raise MemoryError("no room")

    def lost():
        raise RuntimeError("connection")

    batcher = Batcher(Counting(), Full(), max_batch=3, max_wait=60.0)
    assert [type(result) for result in ask(batcher, [1, 1, 1])] == [MemoryError] * 3
    with pytest.raises(RuntimeError, match="connection"):
        batcher.answer(torch.zeros(3, 4, dtype=torch.uint8), "x", lost)
    assert type(ask(batcher, [3])[0]) is MemoryError
    batcher.close()


def test_queued_queries_are_answered_at_the_end():
    server = Server(TABLE[:50], 0)
    folder = Path(tempfile.mkdtemp(prefix="hb"))
    service = Service(server, f"unix:{folder}/s")
    service._methods._batcher._max_wait = NEVER
    link = Remote("server 0", f"unix:{folder}/s", None, HANG)
    query = pack_query("xor", dpf.generate(torch.arange(2), 50)[0])
    waiting = [link.begin(query) for _ in range(3)]
    until(lambda: len(service._methods._batcher._jobs) == 3, "three queries")
    service.stop()
    assert [finish() for finish in waiting] == [server.handle(query)] * 3
    assert service.metrics.read()["batches"] == {"6": 1}
    with pytest.raises(PeerError):
        link.begin(query)()
    link.close()
    shutil.rmtree(folder)


def test_at_the_end_nobody_waits_for_others():
    batcher = Batcher(Counting(), Metrics(), max_batch=100, max_wait=60.0)
    batcher._max_wait = NEVER
    answers = list[object]()
    thread = threading.Thread(target=lambda: answers.extend(ask(batcher, [1, 1])))
    thread.start()
    until(lambda: len(batcher._jobs) == 2, "two queries")
    batcher.hurry()
    thread.join(HANG)
    assert len(answers) == 2 and len(ask(batcher, [1])) == 1
    batcher.close()


def test_who_has_gone_is_not_computed_for():
    work = Counting()
    batcher = Batcher(work, Metrics(), max_batch=10, max_wait=0.1)
    with pytest.raises(PeerError, match="gone"):
        batcher.answer(torch.zeros(2, 4, dtype=torch.uint8), "x", lambda: False)
    assert work.passes == []
    batcher.close()
    with pytest.raises(PeerError, match="stopping"):
        batcher.answer(torch.zeros(2, 4, dtype=torch.uint8), "x")
    for batch, wait in ((0, 0.1), (4, -1.0), (4, float("nan"))):
        with pytest.raises(ConfigError):
            Batcher(work, Metrics(), batch, wait)
