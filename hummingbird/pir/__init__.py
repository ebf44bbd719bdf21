"""Private embedding lookup: two servers hold a table and return its rows without learning which.

`dpf` makes the keys, `embedding` is what a net uses, `client` asks the two servers, over `link`s by `messages`. `table`
is what a server holds, `integrity` the owner's signatures on rows and updates, `updating` hands those to both servers.

batching/       many lookups in one inference: batch codes, a plan of them from the training data, its price and layer
serving/        one of the two servers, its worker processes, the program over gRPC, the audit that names a liar

Trust: the two servers must not collude. Whoever sees both keys of a query knows its row.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hummingbird.pir.batching.batch_code import BatchCode
    from hummingbird.pir.batching.embedding import BatchedEmbedding
    from hummingbird.pir.batching.plan import Plan
    from hummingbird.pir.client import Client
    from hummingbird.pir.embedding import PrivateEmbedding, PrivateEmbeddingBag
    from hummingbird.pir.integrity import IntegrityError, Owner
    from hummingbird.pir.serving.auditing import audit
    from hummingbird.pir.serving.bucket_server import plan_servers
    from hummingbird.pir.serving.server import Server, local_servers
    from hummingbird.pir.serving.service import Service
    from hummingbird.pir.table import Source
    from hummingbird.pir.updating import Updater

_HOMES = {
    "BatchCode": "batching.batch_code",
    "BatchedEmbedding": "batching.embedding",
    "Client": "client",
    "IntegrityError": "integrity",
    "Owner": "integrity",
    "Plan": "batching.plan",
    "PrivateEmbedding": "embedding",
    "PrivateEmbeddingBag": "embedding",
    "Server": "serving.server",
    "Service": "serving.service",
    "Source": "table",
    "Updater": "updating",
    "audit": "serving.auditing",
    "local_servers": "serving.server",
    "plan_servers": "serving.bucket_server",
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
    "Updater",
    "audit",
    "local_servers",
    "plan_servers",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hummingbird.pir' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hummingbird.pir.{_HOMES[name]}"), name)
