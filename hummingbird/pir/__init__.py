"""Private embedding lookup: two servers hold a table and return rows without learning which.

dpf             keys of a distributed point function
client          lookups by a client of the two servers
pair            the two servers as one client sees them: same table, same state
table_server    connections to the servers
messages        formats of messages
table           tables as servers hold them
prepared        their prepared files, which are mapped
keywords        lookups by keyword, a text or bytes in place of a row's number
keyword_table   tables by keyword, as their owner has them
building        prepared files of large tables, from Parquet and other files
integrity       signatures of the table's owner on rows and updates, and of servers on answers
updating        the owner's client, which sends updates to both servers
batching/       many lookups in one inference: batch codes, a plan from the training data, its cost; embedding layers,
                of one table or of several
serving/        one of the two servers: worker processes, updates, the program over gRPC, and the audit of a server

Trust: the two servers must not collude. Whoever sees both keys of a query knows its row.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hummingbird.pir.batching.batch_code import BatchCode
    from hummingbird.pir.batching.embedding import BatchedEmbedding, PrivateEmbedding, PrivateEmbeddingBag
    from hummingbird.pir.batching.plan import Plan
    from hummingbird.pir.batching.tables import EmbeddingTables, TableLink
    from hummingbird.pir.building import FileRows, ParquetRows, build
    from hummingbird.pir.client import Client
    from hummingbird.pir.integrity import IntegrityError, Owner
    from hummingbird.pir.keyword_table import KeywordTable
    from hummingbird.pir.keywords import KeywordClient
    from hummingbird.pir.serving.bucket_server import plan_servers
    from hummingbird.pir.serving.server import Server, audit, local_servers
    from hummingbird.pir.serving.service import Service
    from hummingbird.pir.serving.tables import ServedTables, local_tables
    from hummingbird.pir.table import Source
    from hummingbird.pir.updating import Updater

_HOMES = {
    "BatchCode": "batching.batch_code",
    "BatchedEmbedding": "batching.embedding",
    "Client": "client",
    "EmbeddingTables": "batching.tables",
    "FileRows": "building",
    "IntegrityError": "integrity",
    "KeywordClient": "keywords",
    "KeywordTable": "keyword_table",
    "Owner": "integrity",
    "ParquetRows": "building",
    "Plan": "batching.plan",
    "PrivateEmbedding": "batching.embedding",
    "PrivateEmbeddingBag": "batching.embedding",
    "Server": "serving.server",
    "Service": "serving.service",
    "Source": "table",
    "TableLink": "batching.tables",
    "ServedTables": "serving.tables",
    "Updater": "updating",
    "audit": "serving.server",
    "build": "building",
    "local_servers": "serving.server",
    "local_tables": "serving.tables",
    "plan_servers": "serving.bucket_server",
}

__all__ = [
    "BatchCode",
    "BatchedEmbedding",
    "Client",
    "EmbeddingTables",
    "FileRows",
    "IntegrityError",
    "KeywordClient",
    "KeywordTable",
    "Owner",
    "ParquetRows",
    "Plan",
    "PrivateEmbedding",
    "PrivateEmbeddingBag",
    "Server",
    "Service",
    "Source",
    "TableLink",
    "ServedTables",
    "Updater",
    "audit",
    "build",
    "local_servers",
    "local_tables",
    "plan_servers",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hummingbird.pir' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hummingbird.pir.{_HOMES[name]}"), name)
