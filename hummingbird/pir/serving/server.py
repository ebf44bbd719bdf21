"""One of the two servers, in this process: a table, its state, and its methods. Also the audit of a server's statement.

`Server` answers the same messages in process as over gRPC (service.py). A query selects about half of the table by its
key's bits, and every record is read for any key: neither the time nor the size of an answer depends on the row.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from hummingbird.errors import AgreementError, InputError, PeerError
from hummingbird.pir import integrity
from hummingbird.pir.integrity import Statement
from hummingbird.pir.messages import TableDescription, pack_answer, unpack_answer, unpack_query, unpack_version
from hummingbird.pir.prepared import SlicedRecords
from hummingbird.pir.serving.ray_parts import RayParts
from hummingbird.pir.serving.updates import Updates
from hummingbird.pir.serving.workers import Shard, Workers, opened, whole_only
from hummingbird.pir.table import Source, State, first_state

Answer = Callable[[Tensor, str], tuple[State, Tensor]]
AT_ONCE = 256 << 20  # bytes of a prepared file that is compared before it is served: about a second
FIRST = 60.0  # seconds in which the first query of a larger one has a cold disk for itself


class Server:
    """The server of party 0 or party 1 for a table; the two parties must not collude.

    table: a Source, a tensor (rows, dim), an nn.Embedding or nn.EmbeddingBag.
    owner: public key of the owner, who may update rows; None for nobody.
    identity: the 32 secret bytes of the key that signs answers; None: answers are not signed.
    device: "cpu", or "cuda", which answers only sums with ChaCha12 keys; with several, as in "cuda:0,cuda:1", each
    holds a part of the table.
    shard: the records ready for queries, such as `workers.Workers`; default: in this process, on the device. journal:
    file in which updates are kept, created if missing; at its start the server applies the updates in it again. Without
    a journal, updates are lost when the server ends. verify: compare a prepared file with its digests first. Otherwise
    a file above 256 MiB is compared in a thread while the server answers: a damaged row makes half of all answers wrong
    until the thread finds it; then the server refuses all queries.
    Methods may be called from any thread. Raises InputError for a missing device and a damaged file, EnvironmentProblem
    if memory is too small, and the errors of `updates.Updates.recover`.

    >>> server = pir.Server(table, 0)
    >>> server
    Server(party 0, 1000 rows of 16 float32)
    >>> server.state.version
    0
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
        verify: bool = False,
    ) -> None:
        if party not in (0, 1):
            raise InputError(f"party {party!r}", where="pir.Server(party)", hint="the servers are parties 0 and 1")
        source = table if isinstance(table, Source) else Source.of(table)
        self.party, self.facts, self.name = party, source.facts, f"server {party} (in this process)"
        self._identity = None if identity is None else integrity.Identity(identity)
        behind = not verify and source.digests is not None and source.records.size > AT_ONCE
        if not behind:
            source.verify()
        self._shard = opened(source, device) if shard is None else shard
        self._state = first_state(self.facts, source.version, self._shard.digests)
        in_place = (shard is None and device == "cpu") or isinstance(shard, Workers)
        mapped = source.records if in_place and source.digests is not None else None
        self._mapped = mapped if isinstance(mapped, SlicedRecords) else None
        self._failed = ""  # the reason for refusing all queries
        self._ended, self._answered = False, threading.Event()
        self.lock = threading.Lock()  # held while answering or changing the table
        self.updates: Updates | None = None
        if owner is not None or journal is not None:
            self.updates = Updates(self.facts, [self], owner)
        if self.updates is not None and journal is not None:
            self.updates.recover(journal)
        self._shard.follow(self._changes)
        if behind:
            threading.Thread(target=self._verified, args=(source,), name="pir-verify", daemon=True).start()

    def __repr__(self) -> str:
        return f"Server(party {self.party}, {self.facts.rows} rows of {self.facts.dim} {self.facts.dtype})"

    @property
    def state(self) -> State:
        """The state of the served table: its version, and a digest of its contents."""
        return self._state

    @property
    def signs(self) -> bool:
        """Whether this server signs its answers."""
        return self._identity is not None

    def describe(self) -> bytes:
        """Return the server's description of itself, as the bytes of `TableDescription.pack`."""
        return TableDescription(self.party, self.facts, self._state, self.signs).pack()

    def answer(self, keys: Tensor, decoder: str) -> tuple[State, Tensor]:
        """Combine, for each key, the records that it selects; return the table's state, and the results, uint8 (B,
        record_bytes).

        keys: uint8 (B, key_bytes), checked before.
        decoder: how records are combined: `xor`, or `sum`, word by word, mod 2^width, with `Facts.word_bits` as the
        width.
        """
        with self.lock:
            if self._failed:
                self.check()
            answer = self._shard.answer(keys, self._width(decoder))
            self._answered.set()
            if self._mapped is not None and not self._mapped.unchanged():
                self.fail("the table's file was changed while it was served")
                self.check()
            return self._state, answer

    def _width(self, decoder: str) -> int:
        return 0 if decoder == "xor" else self.facts.word_bits

    def handle(self, query: bytes, answer: Answer | None = None) -> bytes:
        """Answer a query; return the packed answer.

        query: a packed query.
        answer: a function to call in place of `Server.answer`, with its arguments. `service.Batcher` gives one that
        answers several clients' queries together.
        Raises InputError for a malformed query. The error's text depends on the table only.
        """
        decoder, keys = unpack_query(query, self.facts, self.party)
        self._shard.accept(keys, self._width(decoder))  # before it joins a batch, which would fail with it
        state, records = (answer or self.answer)(keys, decoder)
        signature = self._identity.sign(self.party, query, state, records) if self._identity else None
        return pack_answer(state, records, signature)

    def begin(self, message: bytes, method: str = "Answer") -> Callable[[], bytes]:
        """Take a message of a `Client` in this process; return a function that computes and returns the answer.

        message: the packed request. method: the call: Describe, Answer, Offer, Switch, Update or PastUpdate.
        """
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
        """Apply an update that the owner has signed, and return the server's new description, packed.

        message: the update, for the table's present state. Nothing is done if it is applied already. Raises the errors
        of `updates.Updates.make`; then the table is unchanged.
        """
        self._updates().make(message)
        return self.describe()

    def offer(self, message: bytes) -> bytes:
        """Check an update that the owner has signed, and hold it until `switch` applies it; the table does not change
        yet.

        message: the update. Returns the server's description, packed. Raises the errors of `Server.update`.
        """
        self._updates().offer(message)
        return self.describe()

    def switch(self, digest: bytes) -> bytes:
        """Apply the update that was offered, and return the server's new description, packed.

        digest: SHA-256 of the update's message. If the server does not hold this update, the result is b"", and the
        caller sends the update itself, by `update`. Raises the errors of `Server.update`.
        """
        return self.describe() if self._updates().switch(digest) else b""

    def _updates(self) -> Updates:
        if self.updates is None:
            hint = "start it with the owner's public key (--owner); of a plan, the full table's server takes them"
            raise InputError("this server takes no updates", hint=hint)
        return self.updates

    def past_update(self, message: bytes) -> bytes:
        """Return an earlier update from the journal, as the owner signed it.

        message: the version of the table to which it was applied, 8 bytes. Raises InputError if the journal does not
        have it.
        """
        if self.updates is None:
            raise InputError("this server keeps no journal of updates", hint="start it with --owner")
        return self.updates.past(unpack_version(message))

    def write(self, indices: Tensor, records: Tensor) -> None:
        """Replace the records of some rows of this server's table. The caller holds the server's `lock`.

        indices: numbers of the rows, int64 (n,). records: uint8 (n, record_bytes).
        """
        self._shard.write(indices, records)

    def advance(self, state: State) -> None:
        """Set the state of this server's table to `state`, after an update. The caller holds the server's `lock`."""
        self._state = state

    def fail(self, reason: str = "an update was made in part") -> None:
        """Refuse all queries from now on. reason: for the error that each of them gets."""
        self._failed = reason

    def check(self) -> bool:
        """Return whether queries can be answered now: not while a part of the table is being loaded again.

        Raises PeerError if a worker process has ended, an update has changed a part of the table only, or the table's
        file is damaged.
        """
        if self._failed:
            raise PeerError(self._failed, where=self.name, hint="start this server again")
        return self._shard.check()

    def _verified(self, source: Source) -> None:
        """Compare the table's file with its digests, with what queries leave of the processor, after the first one."""
        self._answered.wait(FIRST)
        with contextlib.suppress(OSError, AttributeError):  # on Linux a thread has a priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        try:
            source.verify(lambda: self._ended)
        except Exception as error:  # whatever it is, the rest of the file was not compared
            self.fail(f"the table's file: {getattr(error, 'what', error)}")

    def _changes(self) -> AbstractContextManager[Iterable[tuple[Tensor, Tensor]]]:
        return nullcontext(()) if self.updates is None else self.updates.unchanging()

    def close(self) -> None:
        """End the worker processes, and close the journal; may be called twice."""
        self._ended = True
        self._answered.set()
        self._shard.close()
        if self.updates is not None:
            self.updates.close()


def open_server(
    path: Path,
    party: int,
    *,
    tensor: str | None = None,
    workers: int = 0,
    ray: str | None = None,
    parts: int = 1,
    owner: bytes | None = None,
    identity: bytes | None = None,
    device: str = "cpu",
    journal: Path | None = None,
    verify: bool = False,
) -> Server:
    """Make the server of a party for the table in a file, .npy or .safetensors.

    tensor: the table's name, if the file holds several. workers: number of processes that share the rows; 0: all rows
    are in this process, on `device`. ray: the address of a Ray cluster on whose nodes the rows are, in `parts` parts of
    as many threads as torch uses here (`ray_parts.RayParts`). Other arguments: as for `Server`.
    """
    if workers and device != "cpu":
        hint = "a GPU needs none"
        raise InputError(f"{workers} workers for a table on {device}", where="open_server(workers)", hint=hint)
    source = Source.open(path, tensor)
    if source.facts.keywords and (workers or ray is not None):
        raise whole_only("in several processes")
    shard: Shard
    if ray is not None:
        shard = RayParts(ray, path, tensor, parts, torch.get_num_threads())
    else:
        shard = Workers(path, tensor, workers) if workers else opened(source, device)
    try:
        return Server(source, party, owner=owner, identity=identity, shard=shard, journal=journal, verify=verify)
    except BaseException:
        shard.close()
        raise


def local_servers(
    table: Source | Tensor | nn.Module, *, owner: bytes | None = None, device: str = "cpu"
) -> tuple[Server, Server]:
    """Make the servers of both parties in this process, for trials: whoever controls the process sees every index.

    table: as for `Server`. owner: public key of the owner, who may update rows. device: of both servers, as in
    `Server`.

    >>> servers = pir.local_servers(table)
    >>> private = pir.PrivateEmbedding.from_torch(table, servers)
    >>> torch.equal(private(torch.tensor([3])), table(torch.tensor([3])))
    True
    """
    source = table if isinstance(table, Source) else Source.of(table)
    return Server(source, 0, owner=owner, device=device), Server(source, 1, owner=owner, device=device)


def audit(reference: Server, statement: Statement, identity: bytes | None = None) -> int:
    """Determine which party lied in a lookup, from one server's statement and the owner's copy of the table
    (integrity.py).

    reference: a server in this process with that copy, of the statement's party, and in the state that the answer
    names. identity: public key of the server that made the statement; with it the statement's signature is checked.
    Returns the party that lied, 0 or 1. The two servers' answers together must be wrong: so if this answer is
    right, the other party lied. The auditor must neither see the other party's statement on this lookup nor collude
    with that party: the two keys together reveal the row. Costs one answer.
    Raises InputError for a statement that is malformed or not from the server; AgreementError for a table in another
    state.

    >>> owner = pir.Owner()
    >>> signed = owner.sign(pir.Source.of(table))
    >>> servers = pir.local_servers(signed)
    >>> forged = torch.zeros(1000, servers[1].facts.record_bytes, dtype=torch.uint8)
    >>> servers[1].write(torch.arange(1000), forged)  # server 1 lies
    >>> try:
    ...     pir.Client(servers, owner=owner.public).rows(torch.tensor([7]))
    ... except pir.IntegrityError as error:
    ...     print("party", pir.audit(pir.Server(signed, 0), error.statements[0]), "lied")
    party 1 lied
    """
    if statement.party != reference.party:
        raise InputError(
            f"a statement of party {statement.party}, a reference of party {reference.party}", where="audit"
        )
    decoder, keys = unpack_query(statement.query, reference.facts, statement.party)
    state, records, signature = unpack_answer(statement.answer, len(keys), reference.facts, statement.signed)
    if identity is not None:
        key = integrity.public_key(identity, "audit(identity)")
        if not integrity.answer_signed(key, statement.party, statement.query, state, records, signature):
            raise InputError("the server with this key did not make this statement", where="audit(identity)")
    own_state, own = reference.answer(keys, decoder)
    if state != own_state:
        hint = "load the table as it was then, and the updates up to that version"
        what = f"the statement is about version {state.version}, the reference is at version {own_state.version}"
        raise AgreementError(what, where="audit", hint=hint)
    return 1 - statement.party if torch.equal(records, own) else statement.party
