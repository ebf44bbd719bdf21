"""Private embedding lookup: two servers hold a table and return its rows without learning which.

`dpf` makes the keys, `embedding` is what a net uses, `client` asks the two servers, over `link`s by `messages`. `table`
is what a server holds, `server` one of the two, `deposits` what clients leave there, `shards` its worker processes,
`service` the same over gRPC, with its `metrics`, `command` the program. `integrity` has the owner's signatures on rows
and updates, and the audit that names a lying server. For many lookups in one inference: `batch` codes, a `plan` of them
from a `profile` of the training data, its `price`, and `batched`, servers and layer of a plan.

Trust: the two servers must not collude. Whoever sees both keys of a query knows its row.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hummingbird.pir.auditing import audit
    from hummingbird.pir.batch import BatchCode
    from hummingbird.pir.bucket_server import BatchedEmbedding, plan_servers
    from hummingbird.pir.client import Client
    from hummingbird.pir.embedding import PrivateEmbedding, PrivateEmbeddingBag
    from hummingbird.pir.integrity import IntegrityError, Owner
    from hummingbird.pir.plan import Plan
    from hummingbird.pir.server import Server, local_servers
    from hummingbird.pir.service import Service
    from hummingbird.pir.table import Source

_HOMES = {
    "BatchCode": "batch",
    "BatchedEmbedding": "bucket_server",
    "Client": "client",
    "IntegrityError": "integrity",
    "Owner": "integrity",
    "Plan": "plan",
    "PrivateEmbedding": "embedding",
    "PrivateEmbeddingBag": "embedding",
    "Server": "server",
    "Service": "service",
    "Source": "table",
    "audit": "auditing",
    "local_servers": "server",
    "plan_servers": "bucket_server",
}

__all__ = [
    "BatchCode",
    "BatchedEmbedding",
    "Client",
    "IntegrityError",
    "Owner",
    "Plan",
    "PrivateEmbedding",
    "PrivateEmbeddingBag",
    "Server",
    "Service",
    "Source",
    "audit",
    "local_servers",
    "plan_servers",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hummingbird.pir' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hummingbird.pir.{_HOMES[name]}"), name)
