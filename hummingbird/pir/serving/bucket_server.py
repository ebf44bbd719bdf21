"""Servers that hold the buckets of a plan, for the lookups of whole inferences (the layer: batching/embedding.py).

Each code of a plan is a table of its own to `Server` and `Client`: its facts are those of one bucket, and a query holds
the keys of whole inferences, which `Buckets` hands to the buckets. So batching windows, signed answers, states and
errors are the same as for one table. Traffic follows from the plan and the number of inferences alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hummingbird.errors import InputError
from hummingbird.kernels.lookups import rows as kernel
from hummingbird.pir.batching.batch_code import BatchCode
from hummingbird.pir.batching.plan import Plan
from hummingbird.pir.serving.server import Answer, Server
from hummingbird.pir.serving.updates import Updates
from hummingbird.pir.table import Source, State, leaf_digests


class Buckets:
    """The buckets of a code, made ready for queries: a `shards.Shard` whose queries are of whole inferences.

    records: uint8 (buckets, bucket_rows, record_bytes).
    """

    def __init__(self, code: BatchCode, records: Tensor) -> None:
        self._code = code
        self._tables = [kernel.Table(*part.shape) for part in records]
        self.digests: list[bytes] = []
        for table, part in zip(self._tables, records, strict=True):
            self.digests += leaf_digests(part.numpy())
            table.fill(0, part)

    def accept(self, keys: Tensor, width: int) -> None:
        """Take all keys and widths."""

    def answer(self, keys: Tensor, width: int) -> Tensor:
        """Answers to the keys of whole inferences, in their order (`BucketServer` has checked that)."""
        code = self._code
        by_bucket = keys.view(-1, code.buckets, code.rounds, keys.shape[1]).transpose(0, 1)
        records = kernel.answer_each(self._tables, by_bucket.flatten(1, 2), width)
        return records.view(code.buckets, -1, code.rounds, records.shape[2]).transpose(0, 1).reshape(len(keys), -1)

    def write(self, indices: Tensor, records: Tensor) -> None:
        """Replace the records of rows of the code, int64 (n,), in all buckets that have them."""
        buckets, inside = (part.flatten() for part in self._code.places(indices))
        records = records.repeat_interleave(self._code.choices, 0)
        for bucket in buckets.unique().tolist():
            here = buckets == bucket
            self._tables[bucket].update(inside[here], records[here])

    def check(self) -> None:
        """Do nothing: buckets have no process that could end."""

    def close(self) -> None:
        """Do nothing: buckets hold memory only."""


class BucketServer(Server):
    """A server of a code's buckets. A query that is not of whole inferences is refused before it waits with others.

    table: facts of one bucket; options: of `Server`.
    """

    def __init__(self, table: Source, party: int, code: BatchCode, records: Tensor, **options: Any) -> None:
        super().__init__(table, party, shard=Buckets(code, records), **options)
        self._code = code

    def handle(self, query: bytes, answer: Answer | None = None) -> bytes:
        """Answer as `Server.handle` does; InputError unless every bucket and round gets a key, equally often."""

        def whole(keys: Tensor, decoder: str) -> tuple[State, Tensor]:
            if len(keys) % self._code.keys:
                hint = "client and servers need the same plan"
                raise InputError(f"an inference has {self._code.keys} keys here, the query {len(keys)}", hint=hint)
            return (answer or self.answer)(keys, decoder)

        return super().handle(query, whole)


class BucketRows:
    """The rows of a table as they are now, for updates: what to write into the tables of a plan.

    records: uint8 (rows + 1, record_bytes), zeros at the end; changed by updates.
    """

    def __init__(self, plan: Plan, records: Tensor) -> None:
        self._plan, self._records = plan, records

    def laid_out(self) -> list[Tensor]:
        """Records uint8 (buckets, bucket_rows, record_bytes) of every code's tables."""
        # Place -1, an empty one, is the zeros behind the last row.
        return [self._records[places].flatten(2) for places in self._plan.layouts()]

    def spread(self, indices: Tensor, records: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Change rows, and tell for every code which of its rows get which records."""
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
    """One server of party 0 or 1 for each of the plan's codes, in their order; put them on the wire as any other.

    table: a Source, plain or signed, a tensor (rows, dim), or an nn.Embedding or nn.EmbeddingBag. owner: public key of
    who may update rows; the last server, the full table's, takes updates for all. identity, journal: of `Server`; one
    journal for all. Memory: 3 times the table for a cuckoo code, and that times 1 + C with C companions; once more for
    updates. InputError for a table of another number of rows than the plan's.
    """
    source = table if isinstance(table, Source) else Source.of(table)
    if source.facts.rows != plan.full.rows:
        what = f"the table has {source.facts.rows} rows, the plan {plan.full.rows}"
        raise InputError(what, where="pir.plan_servers", hint="make the plan for this table")
    rows = BucketRows(plan, torch.from_numpy(np.concatenate([source.records, np.zeros_like(source.records[:1])])))
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
