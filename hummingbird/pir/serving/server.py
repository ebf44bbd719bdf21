"""One of the two servers, in this process: a table, a state, and what a client may ask of it.

`Server` answers messages as they come from the wire, and `service` puts it on the wire; so two in-process servers do
what two remote ones do. A query selects half of the table by its key's bits, and every record is read whatever the key:
neither the time nor the size of an answer depends on the row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from hummingbird.errors import InputError, PeerError
from hummingbird.pir import integrity
from hummingbird.pir.messages import TableDescription, pack_answer, unpack_query, unpack_version
from hummingbird.pir.serving.shards import Shard, opened
from hummingbird.pir.serving.updates import Updates
from hummingbird.pir.serving.workers import Workers
from hummingbird.pir.table import Source, State, first_state

Answer = Callable[[Tensor, str], tuple[State, Tensor]]


class Server:
    """Party 0 or 1 over a table: `Server(Source.open("table.npy"), 0)`. The two parties must not collude.

    table: a Source, a tensor (rows, dim), an nn.Embedding or nn.EmbeddingBag. owner: public key of who may update rows;
    without it nobody may. identity: 32 secret bytes, with which answers are signed. device: "cpu", or "cuda" for sums
    by ChaCha12 keys; several, "cuda:0,cuda:1", each hold a part. shard: its records made ready
    (`workers.Workers`), by default in this process, on the device. journal: the file that keeps updates, made if there
    is none; those in it are made again; without one they last as long as this server. Methods may be called from any
    thread. InputError where there is no such device, EnvironmentProblem where its memory is too small, and the errors
    of `updates.Updates.recover`.
    """

    def __init__(
        self,
        table: Source | Tensor | nn.Module,
        party: int,
        *,
        owner: bytes | None = None,
        identity: bytes | None = None,
        device: str = "cpu",
        shard: Shard | None = None,
        journal: Path | None = None,
    ) -> None:
        if party not in (0, 1):
            raise InputError(f"party {party!r}", where="pir.Server(party)", hint="the servers are parties 0 and 1")
        source = table if isinstance(table, Source) else Source.of(table)
        self.party, self.facts, self.name = party, source.facts, f"server {party} (in this process)"
        self._identity = None if identity is None else integrity.Identity(identity)
        self._shard = opened(source, device) if shard is None else shard
        self._state = first_state(self.facts, source.version, self._shard.digests)
        self._failed = False
        self.lock = threading.Lock()  # of who answers, or changes the table
        self.updates: Updates | None = None
        if owner is not None or journal is not None:
            self.updates = Updates(self.facts, [self], owner)
        if self.updates is not None and journal is not None:
            self.updates.recover(journal)

    def __repr__(self) -> str:
        return f"Server(party {self.party}, {self.facts.rows} rows of {self.facts.dim} {self.facts.dtype})"

    @property
    def state(self) -> State:
        """Version and digest of what is served now."""
        return self._state

    @property
    def signs(self) -> bool:
        """Whether answers are signed."""
        return self._identity is not None

    def describe(self) -> bytes:
        """A packed Description."""
        return TableDescription(self.party, self.facts, self._state, self.signs).pack()

    def answer(self, keys: Tensor, decoder: str) -> tuple[State, Tensor]:
        """State and selected records for checked keys: uint8 (B, record_bytes), XOR (`xor`) or sum mod 2^width."""
        with self.lock:
            if self._failed:
                self.check()
            return self._state, self._shard.answer(keys, self._width(decoder))

    def _width(self, decoder: str) -> int:
        return 0 if decoder == "xor" else self.facts.word_bits

    def handle(self, query: bytes, answer: Answer | None = None) -> bytes:
        """The packed answer to a packed query. answer: in place of `answer`, to collect queries (`service.Batcher`).

        InputError for a malformed query; its text depends on the table alone.
        """
        decoder, keys = unpack_query(query, self.facts, self.party)
        self._shard.accept(keys, self._width(decoder))  # before it waits with others' queries, which would fail with it
        state, records = (answer or self.answer)(keys, decoder)
        signature = self._identity.sign(self.party, query, state, records) if self._identity else None
        return pack_answer(state, records, signature)

    def begin(self, message: bytes, method: str = "Answer") -> Callable[[], bytes]:
        """Take a message of a `Client` in this process, as `link.Link.begin`."""
        if method == "Describe":
            return self.describe
        if method == "Update":
            return lambda: self.update(message)
        if method == "Offer":
            return lambda: self.offer(message)
        if method == "Switch":
            return lambda: self.switch(message)
        if method == "PastUpdate":
            return lambda: self.past_update(message)
        return lambda: self.handle(message)

    def update(self, message: bytes) -> bytes:
        """Write the rows of an owner's signed update, which applies to this state only; returns the new description.

        An update that is made already does nothing. Raises as `updates.Updates.make`, and leaves the table as it is.
        """
        self._updates().make(message)
        return self.describe()

    def offer(self, message: bytes) -> bytes:
        """Hold an owner's signed update for `switch`; returns the description, which stays. Raises as `update`."""
        self._updates().offer(message)
        return self.describe()

    def switch(self, digest: bytes) -> bytes:
        """Make the update that was offered, by the SHA-256 of its message; returns the new description, or nothing
        where it is not held: send it by `update` then. Raises as `update`.
        """
        return self.describe() if self._updates().switch(digest) else b""

    def _updates(self) -> Updates:
        if self.updates is None:
            hint = "start it with the owner's public key (--owner); of a plan, the full table's server takes them"
            raise InputError("this server takes no updates", hint=hint)
        return self.updates

    def past_update(self, message: bytes) -> bytes:
        """The owner's signed update of a version to the next, from the journal. message: the version, 8 bytes.

        InputError where it is not kept.
        """
        if self.updates is None:
            raise InputError("this server keeps no journal of updates", hint="start it with --owner")
        return self.updates.past(unpack_version(message))

    def write(self, indices: Tensor, records: Tensor) -> None:
        """Replace records, while `lock` is held."""
        self._shard.write(indices, records)

    def advance(self, state: State) -> None:
        """Answer from this state from now on, while `lock` is held."""
        self._state = state

    def fail(self) -> None:
        """Refuse every query from now on: the table is changed in part."""
        self._failed = True

    def check(self) -> None:
        """PeerError if a worker process has ended, or the table is changed in part."""
        self._shard.check()
        if self._failed:
            raise PeerError("an update was made in part", where=self.name, hint="start this server again")

    def close(self) -> None:
        """End the worker processes, and let go of the journal; may be called twice."""
        self._shard.close()
        if self.updates is not None:
            self.updates.close()


def open_server(
    path: Path,
    party: int,
    *,
    tensor: str | None = None,
    workers: int = 0,
    owner: bytes | None = None,
    identity: bytes | None = None,
    device: str = "cpu",
    journal: Path | None = None,
) -> Server:
    """A server of a table in a file. workers: processes that share its rows; 0: in this process, on a device."""
    if workers and device != "cpu":
        hint = "a GPU needs none"
        raise InputError(f"{workers} workers for a table on {device}", where="open_server(workers)", hint=hint)
    source = Source.open(path, tensor)
    shard = Workers(path, tensor, workers) if workers else opened(source, device)
    try:
        return Server(source, party, owner=owner, identity=identity, shard=shard, journal=journal)
    except BaseException:
        shard.close()
        raise


def local_servers(
    table: Source | Tensor | nn.Module, *, owner: bytes | None = None, device: str = "cpu"
) -> tuple[Server, Server]:
    """Both servers in this process, for trying things out: whoever controls the process sees every index.

        servers = local_servers(embedding)
        private = PrivateEmbedding.from_torch(embedding, servers)

    owner: public key of who may update rows. device: of both, as `Server` takes it.
    """
    source = table if isinstance(table, Source) else Source.of(table)
    return Server(source, 0, owner=owner, device=device), Server(source, 1, owner=owner, device=device)
