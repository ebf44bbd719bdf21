"""A server over gRPC, which answers the queries of many clients in one pass over the table.

A single query reads the whole table, and so does a batch of hundreds. So `Batcher` collects queries, for up to
`max_wait` seconds after the first or until there are `max_batch` keys. Queries that arrive during a pass join the next
one. Methods: Describe, Answer (a query), Update (signed by the owner), Offer (an update, held until Switch), Switch,
PastUpdate (an update that was made), Metrics (JSON).
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import grpc
import torch
from torch import Tensor

from hummingbird.errors import ConfigError, PeerError
from hummingbird.pir.serving.metrics import Metrics
from hummingbird.pir.serving.server import Answer, Server
from hummingbird.pir.table import State
from hummingbird.rpc.admission import Admission, Limits
from hummingbird.rpc.service import Method, Tls, serve

MAX_BATCH = 192
MAX_WAIT = 0.002
_PATIENCE = 600.0  # seconds until an unanswered query is given up; clients have their own deadlines


@dataclass(eq=False)
class _Job:
    keys: Tensor
    decoder: str
    wanted: Callable[[], bool]
    arrived: float = field(default_factory=time.monotonic)
    result: Future[tuple[State, Tensor]] = field(default_factory=Future)


class Batcher:
    """Collects queries of several clients, and answers them by one call of `answer`, which is one pass over the table.

    answer: a function with the arguments and results of `Server.answer`. metrics: counts the passes.
    max_batch: number of waiting keys at which a pass begins; a pass has more only if a single query has.
    max_wait: seconds, 0 to 60, after which a pass begins with fewer keys.
    """

    def __init__(
        self, answer: Answer, metrics: Metrics, max_batch: int = MAX_BATCH, max_wait: float = MAX_WAIT
    ) -> None:
        if max_batch < 1 or not 0 <= max_wait <= 60:
            hint = "at least 1 key, and 0 to 60 seconds"
            raise ConfigError(f"batches of {max_batch} within {max_wait} s", where="pir.Batcher", hint=hint)
        self._answer, self._metrics, self._max_batch, self._max_wait = answer, metrics, max_batch, max_wait
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="pir-batcher", daemon=True)
        self._thread.start()

    def answer(self, keys: Tensor, decoder: str, wanted: Callable[[], bool] = lambda: True) -> tuple[State, Tensor]:
        """Answer a query's keys together with other queries, in one pass over the table, and wait for the result.

        keys, decoder: the query's, as in `Server.answer`; so are the results, the table's state and a record for each
        key.
        wanted: a function without arguments that is called when the pass begins; it returns whether the client still
        waits for the answer. Raises PeerError if the client is gone, or the server stops.
        """
        job = _Job(keys, decoder, wanted)
        with self._changed:
            if self._closing:
                raise PeerError("this server is stopping", hint="ask again when it is back")
            self._jobs.append(job)
            self._changed.notify()
        return job.result.result(_PATIENCE)

    def hurry(self) -> None:
        """Begin every pass immediately from now on, without waiting for further queries."""
        with self._changed:
            self._max_wait = 0.0
            self._changed.notify()

    def close(self, timeout: float = 60.0) -> None:
        """Answer the queries that wait, take no more, and end the thread; may be called twice.

        timeout: seconds to wait for the end of the thread.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while batch := self._collect():
            try:
                self._pass(batch)
            except Exception as error:  # for the waiting callers; the next batch is not affected
                for job in batch:
                    if not job.result.done():
                        job.result.set_exception(error)

    def _collect(self) -> list[_Job]:
        """Wait for the queries of the next pass, all with one decoder; returns them, or an empty list to end the
        thread.
        """
        with self._changed:
            while not self._jobs:
                if self._closing:
                    return []
                self._changed.wait(1.0)
            while not self._closing and sum(len(job.keys) for job in self._jobs) < self._max_batch:
                left = self._jobs[0].arrived + self._max_wait - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            decoder, count = self._jobs[0].decoder, 0
            batch: list[_Job] = []
            rest: deque[_Job] = deque()
            for job in self._jobs:
                if job.decoder == decoder and (not batch or count + len(job.keys) <= self._max_batch):
                    batch.append(job)
                    count += len(job.keys)
                else:
                    rest.append(job)
            self._jobs = rest
            return batch

    def _pass(self, batch: list[_Job]) -> None:
        live: list[_Job] = []
        for job in batch:
            if job.wanted():
                live.append(job)
            else:
                job.result.set_exception(PeerError("the client has gone"))
        if not live:
            return
        counts = [len(job.keys) for job in live]
        started = time.monotonic()
        state, records = self._answer(torch.cat([job.keys for job in live]), live[0].decoder)
        now = time.monotonic()
        self._metrics.add([now - job.arrived for job in live], counts, now - started)
        for job, part in zip(live, records.split(counts), strict=True):
            job.result.set_result((state, part))


class Methods:
    """The gRPC methods of a server, which answer several clients' queries in one pass over the table.

    max_batch: number of waiting keys at which a pass begins. max_wait: seconds after which it begins with fewer.
    """

    def __init__(
        self,
        server: Server,
        max_batch: int = MAX_BATCH,
        max_wait: float = MAX_WAIT,
    ) -> None:
        self.server, self.metrics = server, Metrics()
        self._batcher = Batcher(server.answer, self.metrics, max_batch, max_wait)

    def handlers(self) -> dict[str, Method]:
        """Return the function that answers each gRPC method, by the method's name, for `rpc.service.serve`."""
        server = self.server
        return {
            "Describe": lambda data, context: server.describe(),
            "Answer": lambda data, context: server.handle(data, self._collected(context)),
            "Update": lambda data, context: server.update(data),
            "Offer": lambda data, context: server.offer(data),
            "Switch": lambda data, context: server.switch(data),
            "PastUpdate": lambda data, context: server.past_update(data),
            "Metrics": lambda data, context: json.dumps(self.metrics.read()).encode(),
        }

    def hurry(self) -> None:
        """Begin every pass immediately from now on, without waiting for further queries."""
        self._batcher.hurry()

    def close(self, grace: float = 30.0) -> None:
        """Answer the queued queries within `grace` seconds, and take no more; may be called twice."""
        self._batcher.close(grace)

    def _collected(self, context: grpc.ServicerContext) -> Answer:
        return lambda keys, decoder: self._batcher.answer(keys, decoder, context.is_active)


class Service:
    """A server that clients can reach at an address, from now until `stop`.

    TRUST: the two servers must have different operators. address: HOST:PORT or unix:PATH. tls: mutual TLS, needed for
    other hosts: whoever has a certificate of the authority that it names may ask. max_batch: number of waiting keys at
    which a pass over the table begins. max_wait: seconds after which it begins with fewer. limits: on calls and
    callers. Raises the errors of `rpc.service.serve`, and ConfigError for a wrong max_batch or max_wait.

    >>> services = [pir.Service(pir.Server(table, party), f"unix:pir{party}.sock") for party in (0, 1)]
    >>> client = pir.Client(("unix:pir0.sock", "unix:pir1.sock"))
    >>> client.rows(torch.tensor([3, 14, 15])).shape
    torch.Size([3, 16])
    >>> client.close()
    >>> for service in services:
    ...     service.stop(0)
    """

    def __init__(
        self,
        server: Server,
        address: str,
        tls: Tls | None = None,
        *,
        max_batch: int = MAX_BATCH,
        max_wait: float = MAX_WAIT,
        limits: Limits | None = None,
    ) -> None:
        self._methods = Methods(server, max_batch, max_wait)
        self.metrics = self._methods.metrics
        try:
            self._server = serve(self._methods.handlers(), address, tls, gate=Admission(limits))
        except BaseException:
            self._methods.close()
            raise

    def stop(self, grace: float = 30.0) -> None:
        """Refuse new queries, answer the queued ones within `grace` seconds, and end; may be called twice."""
        ended = self._server.stop(grace)
        self._methods.close(grace)
        ended.wait(grace + 1.0)
