"""Servers that hold the buckets of a plan, for the lookups of whole inferences (the layer: batching/embedding.py).

`Server` and `Client` see each code of a plan as a table: its facts are those of one bucket, and a query holds the keys
of whole inferences, which `Buckets` distributes to the buckets. So batching, signed answers, states and errors are the
same as for one table. Traffic depends only on the plan and the number of inferences.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hummingbird.errors import InputError
from hummingbird.kernels import lookups as kernel
from hummingbird.pir.batching.batch_code import BatchCode
from hummingbird.pir.batching.plan import Plan
from hummingbird.pir.prepared import leaf_digests
from hummingbird.pir.serving.server import Answer, Server
from hummingbird.pir.serving.updates import Updates
from hummingbird.pir.serving.workers import InProcess, whole_only
from hummingbird.pir.table import Source, State


class Buckets(InProcess):
    """The buckets of a batch code in memory, ready to answer keys; a `BucketServer` uses them as its `workers.Shard`.

    code: the batch code. records: the records in each bucket, uint8 (buckets, bucket_rows, record_bytes).
    """

    def __init__(self, code: BatchCode, records: Tensor) -> None:
        self._code = code
        self._tables = [kernel.Table(*part.shape) for part in records]
        self.digests: list[bytes] = []
        for table, part in zip(self._tables, records, strict=True):
            self.digests += leaf_digests(part.numpy())
            table.fill(0, part)

    def accept(self, keys: Tensor, width: int) -> None:
        """Do nothing: buckets can answer any keys, whether records are combined by XOR or by sums."""

    def answer(self, keys: Tensor, width: int) -> Tensor:
        """Combine, for each key, the records that it selects in its bucket; return uint8 (keys, record_bytes).

        keys: uint8 (keys, key_bytes), of one or more inferences, one inference after the other; `BucketServer` has
        checked their number.
        width: bits of the words that are added; 0: the records are combined by XOR.
        """
        code = self._code
        by_bucket = keys.view(-1, code.buckets, code.rounds, keys.shape[1]).transpose(0, 1)
        records = kernel.answer_each(self._tables, by_bucket.flatten(1, 2), width)
        return records.view(code.buckets, -1, code.rounds, records.shape[2]).transpose(0, 1).reshape(len(keys), -1)

    def write(self, indices: Tensor, records: Tensor) -> None:
        """Replace records in all buckets that hold them.

        indices: numbers of the records in the batch code's table, int64 (n,). records: the new ones, uint8 (n,
        record_bytes).
        """
        buckets, inside = (part.flatten() for part in self._code.places(indices))
        records = records.repeat_interleave(self._code.choices, 0)
        for bucket in buckets.unique().tolist():
            here = buckets == bucket
            self._tables[bucket].update(inside[here], records[here])


class BucketServer(Server):
    """A server of the buckets of one batch code, which answers the keys of complete inferences only.

    It refuses a query with another number of keys at once, so that no other client's query fails with it.
    table: has the facts of one bucket, and no rows. party: 0 or 1. code: the batch code. records: the records in all
    buckets, uint8 (buckets, bucket_rows, record_bytes). options: further arguments of `Server`.
    """

    def __init__(self, table: Source, party: int, code: BatchCode, records: Tensor, **options: Any) -> None:
        super().__init__(table, party, shard=Buckets(code, records), **options)
        self._code = code

    def handle(self, query: bytes, answer: Answer | None = None) -> bytes:
        """Answer a query; return the packed answer.

        query: a packed query, whose keys must be those of one or more complete inferences; otherwise InputError is
        raised.
        answer: a function to call in place of `Server.answer`, with its arguments.
        """

        def whole(keys: Tensor, decoder: str) -> tuple[State, Tensor]:
            if len(keys) % self._code.keys:
                hint = "client and servers need the same plan"
                raise InputError(f"an inference has {self._code.keys} keys here, the query {len(keys)}", hint=hint)
            return (answer or self.answer)(keys, decoder)

        return super().handle(query, whole)


class BucketRows:
    """The rows of a plan's table as they are now, from which the records in all buckets are computed.

    plan: says which rows are in which record. records: uint8 (rows + 1, record_bytes), the rows and, after them, a row
    of zeros; `spread` changes them.
    """

    def __init__(self, plan: Plan, records: Tensor) -> None:
        self._plan, self._records = plan, records

    def laid_out(self) -> list[Tensor]:
        """Return for each batch code of the plan the records to store in its buckets: uint8 (buckets, bucket_rows,
        record_bytes).
        """
        # Row -1, for an empty position, is the last row, of zeros.
        return [self._records[places].flatten(2) for places in self._plan.layouts()]

    def spread(self, indices: Tensor, records: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Change rows of the plan's table, and return which records change with them in the tables that are served.

        indices: numbers of the rows, int64 (n,). records: their new contents, uint8 (n, record_bytes).
        The result has a pair for each batch code of the plan: the numbers of the records in its table, and the new
        records.
        """
        self._records[indices] = records
        return [(own, self._records[rows].flatten(1)) for own, rows in self._plan.touched(indices)]


def plan_servers(
    table: Source | Tensor | nn.Module,
    plan: Plan,
    party: int,
    *,
    owner: bytes | None = None,
    identity: bytes | None = None,
    journal: Path | None = None,
) -> list[Server]:
    """Make the servers of party 0 or party 1 for a plan: one for each of the plan's tables (`Plan.codes`), in order.

    Each is served as any other server. table: a Source, plain or signed, a tensor (rows, dim), an nn.Embedding or
    nn.EmbeddingBag.
    owner: public key of the owner, who may update rows; the last server, of the full table, takes updates for all.
    identity: the 32 secret bytes of the key that signs answers; None: answers are not signed. journal: file in which
    the updates of all these servers are kept; None for no journal.
    Memory: 3 times the table for a cuckoo code, times 1 + C with C companions, plus the table once for updates. Raises
    InputError if the table has another number of rows than the plan's.

    >>> plan = pir.Plan(pir.BatchCode.cuckoo(rows=1000, wanted=8))
    >>> [server.facts.rows for server in pir.plan_servers(table, plan, 0)]
    [250]
    """
    source = table if isinstance(table, Source) else Source.of(table)
    if source.facts.keywords:
        raise whole_only("with a plan")
    if source.facts.rows != plan.full.rows:
        what = f"the table has {source.facts.rows} rows, the plan {plan.full.rows}"
        raise InputError(what, where="pir.plan_servers", hint="make the plan for this table")
    rows = BucketRows(
        plan, torch.from_numpy(np.concatenate([np.asarray(source.records), np.zeros_like(source.records[:1])]))
    )
    servers: list[Server] = []
    for code, records in zip(plan.codes, rows.laid_out(), strict=True):
        facts = plan.facts(code, source.facts)
        whole = Source(facts, source.version, np.empty((0, facts.record_bytes), np.uint8))
        servers.append(BucketServer(whole, party, code, records, identity=identity))
    if owner is not None or journal is not None:
        servers[-1].updates = Updates(source.facts, servers, owner, rows.spread)
        if journal is not None:
            servers[-1].updates.recover(journal)
    return servers
