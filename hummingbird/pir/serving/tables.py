"""Several tables of one party at one address: a request asks any of them, and each of them is read once for it.

The method Several takes calls (`messages.pack_calls`), each of a method of one table, and returns their answers. So
clients, owners and batches work as with one table; only the messages travel together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import cast

import grpc
from torch import Tensor, nn

from hummingbird.errors import InputError, PeerError
from hummingbird.pir.messages import MAX_CALLS, pack_results, unpack_calls
from hummingbird.pir.serving.server import Server
from hummingbird.pir.serving.service import MAX_BATCH, MAX_WAIT, Methods
from hummingbird.pir.table import Source
from hummingbird.rpc.admission import MAX_MESSAGE
from hummingbird.rpc.service import Method

_THREADS = 256  # calls that are answered at a time; they wait for passes over their tables
Run = Callable[[str, str, bytes], bytes]


class ServedTables:
    """The servers of one party for several tables, in this process, under their tables' names.

    Raises InputError for no table, or more than 256, and for servers of different parties.

    >>> both = [pir.ServedTables({"a": pir.Server(torch.ones(9, 2), party)}) for party in (0, 1)]
    >>> pir.EmbeddingTables(both, {"a": 2})({"a": torch.tensor([[3, 4]])})
    {'a': tensor([[2., 2.]])}
    """

    def __init__(self, servers: Mapping[str, Server]) -> None:
        if not 0 < len(servers) <= MAX_CALLS or len({server.party for server in servers.values()}) != 1:
            hint = f"1 to {MAX_CALLS} tables of one party"
            raise InputError(f"{len(servers)} tables", where="pir.ServedTables", hint=hint)
        self.servers = dict(servers)
        self.name = next(iter(servers.values())).name

    def begin(self, message: bytes, method: str = "Several") -> Callable[[], bytes]:
        """Take a message of a client in this process; return a function that computes and returns the answer."""
        if method != "Several":
            raise InputError(f"several tables have no method {method}", where=self.name)
        return lambda: self.answer(message, lambda table, name, data: self.servers[table].begin(data, name)())

    def answer(self, message: bytes, run: Run, together: ThreadPoolExecutor | None = None) -> bytes:
        """Answer the calls in a message by `run`, which gets the table's name, the method and the message of each.

        together: threads for them; None: one after another. Several calls are lookups, or ask for descriptions, each of
        another table. Raises the first error of a call; and InputError, before any is made, for a table or method that
        is not there, or for other calls; and for answers that no message holds.
        """
        calls = unpack_calls(message)
        tables, methods = {table for table, *_ in calls}, {method for _, method, _ in calls}
        if len(calls) > 1 and (len(tables) < len(calls) or not methods <= {"Answer", "Describe"}):
            hint = "one request asks each table once; what changes a table is a request of its own"
            raise InputError("calls that do not go together", where=self.name, hint=hint)
        for table, method, _ in calls:
            if table not in self.servers:
                hint = f"there are: {', '.join(self.servers)}"[:400]
                raise InputError(f"there is no table {table[:100]!r}", where=self.name, hint=hint)
            if method not in ("Describe", "Answer", "Update", "Offer", "Switch", "PastUpdate", "Metrics"):
                raise InputError(f"there is no method {method!r}", where=self.name)

        def one(call: tuple[str, str, bytes]) -> bytes:
            try:
                return run(*call)
            except (InputError, PeerError) as error:
                if type(error) not in (InputError, PeerError):  # with more than a text
                    raise
                raise type(error)(f"table {call[0]}: {error.what}", where=error.where, hint=error.hint) from None

        results = [*(map(one, calls) if together is None or len(calls) == 1 else together.map(one, calls))]
        if sum(map(len, results)) > MAX_MESSAGE:
            raise InputError("the answers are too large for one message", where=self.name, hint="ask for fewer rows")
        return pack_results(results)

    def close(self) -> None:
        """End all servers; may be called twice."""
        for server in self.servers.values():
            server.close()


class TablesMethods:
    """The gRPC methods of several tables at one address. methods: those of each table, by its name.

    max_batch, max_wait: of each table, as in `Methods`.
    """

    def __init__(self, tables: ServedTables, max_batch: int = MAX_BATCH, max_wait: float = MAX_WAIT) -> None:
        self._tables = tables
        self.methods = {name: Methods(server, max_batch, max_wait) for name, server in tables.servers.items()}
        self._handlers = {name: methods.handlers() for name, methods in self.methods.items()}
        self._pool, self._closing = ThreadPoolExecutor(_THREADS, thread_name_prefix="pir-tables"), False

    def handlers(self) -> dict[str, Method]:
        """Return the functions that answer gRPC methods, by their names, for `rpc.service.serve`.

        Clients and owners of one table begin with Describe or Metrics: they get an error that names the tables.
        """
        return {"Several": self._several, "Describe": self._unnamed, "Metrics": self._unnamed}

    def _unnamed(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        hint = f"name one, by pir.TableLink or pir-owner --name: {', '.join(self._tables.servers)}"[:400]
        raise InputError(f"this server has {len(self.methods)} tables", where=self._tables.name, hint=hint)

    def _several(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        def run(table: str, method: str, message: bytes) -> bytes:
            return cast(bytes, self._handlers[table][method](message, context))  # none of them streams

        try:
            return self._tables.answer(data, run, self._pool)
        except (RuntimeError, CancelledError):  # of the pool, when it takes no more
            if not self._closing:
                raise
            raise PeerError("this server is stopping", hint="ask again when it is back") from None

    def hurry(self) -> None:
        """Begin every pass immediately from now on, without waiting for further queries."""
        for methods in self.methods.values():
            methods.hurry()

    def close(self, grace: float = 30.0) -> None:
        """Answer the queued queries within `grace` seconds, and take no more; may be called twice."""
        self._closing, deadline = True, time.monotonic() + grace
        for methods in self.methods.values():
            methods.close(max(0.0, deadline - time.monotonic()))
        self._pool.shutdown(wait=False, cancel_futures=True)


def local_tables(
    tables: Mapping[str, Source | Tensor | nn.Module], *, owner: bytes | None = None
) -> tuple[ServedTables, ServedTables]:
    """Make the servers of both parties for several tables in this process, for trials: whoever controls the process
    sees every index.

    tables: by their names, each as for `Server`. owner: public key of the owner, who may update rows.

    >>> shops, items = torch.nn.EmbeddingBag(50, 8, mode="sum"), torch.nn.EmbeddingBag(900, 8, mode="sum")
    >>> servers = pir.local_tables({"shops": shops, "items": items})
    >>> layer = pir.EmbeddingTables.from_torch({"shops": shops, "items": items}, {"shops": 1, "items": 20}, servers)
    >>> out = layer({"shops": torch.tensor([[7]]), "items": torch.tensor([[3, 14, 15]])})
    >>> torch.equal(out["items"], items(torch.tensor([[3, 14, 15]])))
    True
    """
    sources = {name: table if isinstance(table, Source) else Source.of(table) for name, table in tables.items()}
    zero, one = (
        ServedTables({name: Server(source, party, owner=owner) for name, source in sources.items()}) for party in (0, 1)
    )
    return zero, one
