"""One of the two servers as a program: `python -m hummingbird pir-server --table FILE --party 0 --listen ...`.

It serves until SIGTERM or SIGINT, then answers the queued queries, and prints a line of statistics.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hummingbird.errors import InputError
from hummingbird.pir.batching.plan import Plan
from hummingbird.pir.integrity import read_key
from hummingbird.pir.serving.bucket_server import plan_servers
from hummingbird.pir.serving.server import Server, open_server
from hummingbird.pir.serving.service import MAX_BATCH, MAX_WAIT, Methods
from hummingbird.pir.serving.tables import ServedTables, TablesMethods
from hummingbird.pir.table import Source
from hummingbird.rpc import options
from hummingbird.rpc.programs import ServiceParts, run_service
from hummingbird.rpc.server import ServiceConfig, ServiceProgram

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

DESCRIPTION = """Serve one half of private lookups in a table: rows are returned without this server learning which.

Trust: the operators of the two servers, party 0 and party 1, must not collude. Whoever sees both keys of a query, or
the traffic of both servers without TLS, knows its row. Run them on hosts of different operators. Whoever may connect
may ask: clients learn the rows they ask for, and the whole table in time.

With --owner, who has that key may change rows (pir-owner). Every update is in the journal before it is acknowledged."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the program `pir-server` to its parser."""
    tables = parser.add_mutually_exclusive_group(required=True)
    tables.add_argument("--table", type=Path, metavar="FILE", help="rows: .npy or .safetensors")
    tables.add_argument(
        "--tables",
        nargs="+",
        metavar="NAME=FILE",
        help="several tables at one address, for pir.EmbeddingTables: a request asks all of them",
    )
    parser.add_argument("--tensor", metavar="NAME", help="name of the table, if a .safetensors file holds several")
    parser.add_argument("--party", required=True, type=int, choices=(0, 1), help="which of the two servers this is")
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="serve many lookups at once, by the plan in a file of Plan.to_json or search.pir_plan --plan",
    )
    parser.add_argument(
        "--max-batch", type=int, default=MAX_BATCH, metavar="N", help=f"keys in one pass (default {MAX_BATCH})"
    )
    parser.add_argument(
        "--max-wait",
        type=float,
        default=1e3 * MAX_WAIT,
        metavar="MS",
        help=f"milliseconds that a query waits for others (default {1e3 * MAX_WAIT:g})",
    )
    parser.add_argument(
        "--workers", type=int, default=0, metavar="N", help="processes that share the rows (default: none)"
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="put the rows on the nodes of a Ray cluster, of which this host is one: auto, HOST:PORT of its head, or "
        "local, a cluster of this program alone; every node needs the table's file at the same path",
    )
    parser.add_argument(
        "--parts",
        type=int,
        metavar="N",
        help="with --ray: actors that share the rows, each on a node of its own if "
        "there are as many; each takes --threads CPUs (default 1)",
    )
    parser.add_argument(
        "--device",
        default="cpu",
        metavar="NAMES",
        help="where the rows are: cpu, cuda, or a part on each of several, cuda:0,cuda:1; GPUs answer clients with "
        "decoder sum and prf chacha12 only (default cpu)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads for a pass, without workers; of each part")
    parser.add_argument(
        "--owner", type=Path, metavar="FILE", help="public key (64 hex digits) of the owner, who may update rows"
    )
    parser.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="file of this server's updates, which it makes again at its start (default: with --owner, beside the "
        "table, TABLE.party0.journal or TABLE.party1.journal)",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare a prepared file with its digests before serving it (default: while serving it, above 256 MiB)",
    )
    parser.add_argument("--identity", type=Path, metavar="FILE", help="secret key (64 hex digits) that signs answers")
    listen = "HOST:PORT or unix:PATH; for a plan with a hot table that one's address, then the full table's"
    options.add_service(parser, addresses="+", listen=listen)


def main(args: argparse.Namespace) -> int:
    """Run the program `pir-server`: serve a table until SIGTERM or SIGINT; returns 0. args: its options.

    Raises the errors of `rpc.programs.run_service`, InputError for a wrong table or key, and PeerError if a worker
    process ends.
    """
    config = options.service_of(args)
    if args.threads is not None and args.threads < 1:
        raise InputError(f"{args.threads} threads", where="--threads", hint="at least 1")
    if (args.ray is None) != (args.parts is None):
        raise InputError("--ray and --parts belong together", where="pir-server", hint="give both or none")
    if args.ray is not None and (args.workers or args.device != "cpu" or args.plan is not None):
        hint = "the parts are actors on CPUs, of a table without a plan"
        raise InputError("--ray with --workers, --device or --plan", where="pir-server", hint=hint)
    if args.tables:
        given = [name for name in ("tensor", "plan", "ray", "journal") if getattr(args, name) is not None]
        given += ["workers"] * bool(args.workers) + ["device"] * (args.device != "cpu")
        if given:
            hint = "each table is in this process, on the CPU, with its journal beside it"
            raise InputError(f"--tables with --{given[0]}", where="pir-server", hint=hint)
    threads = 1 if args.ray is not None and args.threads is None else args.threads
    if threads is not None:
        torch.set_num_threads(threads)
    keys = {name: read_key(path) for name in ("owner", "identity") if (path := getattr(args, name)) is not None}
    run_service("pir-server", config, lambda program: _parts(args, keys, config, program))
    return 0


def _parts(
    args: argparse.Namespace, keys: dict[str, bytes], config: ServiceConfig, program: ServiceProgram
) -> ServiceParts:
    """Open the tables that the program's options name; return the parts of the program for `run_service`.

    These are the gRPC methods, the figures for Prometheus, the printed lines, and functions that check and close the
    tables. args: the options. config: of the service. program: becomes not ready while a part of a table is missing.
    keys: the owner's public key under "owner", and this server's secret key under "identity"; each may be missing.
    """
    with ExitStack() as ends:
        named = _named(args, keys, ends)
        servers = [*named.values()]
        offered, batches = dict[str, Methods](), (args.max_batch, args.max_wait / 1e3)
        if args.tables is None:
            offered = {name: Methods(server, *batches) for name, server in named.items()}
            at_addresses: list[Methods | TablesMethods] = [*offered.values()]
        else:
            together = TablesMethods(ServedTables(named), *batches)
            offered, at_addresses = together.methods, [together]
        for methods in at_addresses:
            ends.callback(methods.close, config.grace)
        if len(config.listen) != len(at_addresses):
            hint = "one for each table of a plan, a full one and perhaps a hot one before it; one for --tables"
            raise InputError(f"{len(config.listen)} addresses, {len(at_addresses)} needed", where="--listen", hint=hint)
        who = f"pir-server party {args.party}"

        def of(name: str) -> str:
            return f" table {name}" if args.tables else ""

        def stopping() -> None:
            for methods in at_addresses:
                methods.hurry()

        def farewell() -> None:
            for name, methods in reversed(offered.items()):
                print(f"{who}{of(name)}: {methods.metrics.line()}", flush=True)

        return ServiceParts(
            [methods.handlers() for methods in at_addresses],
            lambda registry: registry.register(_figures(offered)),
            lines=[
                f"{who}{of(name)}: {server.facts.text()}, version {server.state.version}"
                for name, server in named.items()
            ],
            look=lambda: program.ready(all([server.check() for server in servers])),
            stopping=stopping,
            farewell=farewell,
            close=ends.pop_all().close,
        )


def _figures(offered: Mapping[str, Methods]) -> Collector:
    """Make the figures for Prometheus of the tables that this program serves.

    offered: the methods of each table's server, by its name. The last table of a plan is the full one, with all rows; a
    plan may have a hot table before it, a copy of some of these rows.
    """
    from hummingbird.pir.serving.figures import Figures

    tables = {
        name: (methods.metrics, lambda server=methods.server: server.state.version) for name, methods in offered.items()
    }
    updates = [methods.server.updates for methods in offered.values() if methods.server.updates is not None]
    return Figures(tables, lambda: sum(each.journal_bytes for each in updates))


def _named(args: argparse.Namespace, keys: dict[str, bytes], ends: ExitStack) -> dict[str, Server]:
    """Open the tables that the program's options name; return their servers by name, in order.

    A table alone, and the full table of a plan, is "full"; a plan may have "hot" before it. ends: closes them.
    """
    if args.tables is None:
        servers = _servers(args, keys)
        for server in servers:
            ends.callback(server.close)
        return dict(zip(("hot", "full")[-len(servers) :], servers, strict=True))
    found: dict[str, Server] = {}
    for word in args.tables:
        name, equals, file = word.partition("=")
        if not name or not equals or not file or name in found:
            raise InputError(f"{word!r}", where="--tables", hint="NAME=FILE, each name once")
        one = argparse.Namespace(**{**vars(args), "table": Path(file)})
        found[name] = open_server(
            one.table,
            args.party,
            journal=_journal(one),
            verify=args.verify,
            **keys,  # type: ignore[arg-type]
        )
        ends.callback(found[name].close)
    return found


def _servers(args: argparse.Namespace, keys: dict[str, bytes]) -> list[Server]:
    """Open the table that the program's options name; return a list with its server or, with a plan, the servers of the
    plan's tables.

    args: the options. keys: the owner's public key under "owner", and this server's secret key under "identity"; each
    may be missing.
    """
    journal = _journal(args)
    if args.plan is None:
        where: dict[str, Any] = {"workers": args.workers, "ray": args.ray, "device": args.device, **keys}
        where |= {"verify": args.verify} | ({} if args.parts is None else {"parts": args.parts})
        return [open_server(args.table, args.party, tensor=args.tensor, journal=journal, **where)]
    if args.workers or args.device != "cpu":
        hint = "a plan's tables are in this process, on the CPU"
        raise InputError("--plan with --workers or --device", where="pir-server", hint=hint)
    table, plan = Source.open(args.table, args.tensor), Plan.load(args.plan)
    return plan_servers(
        table, plan, args.party, owner=keys.get("owner"), identity=keys.get("identity"), journal=journal
    )


def _journal(args: argparse.Namespace) -> Path | None:
    """Return the path of the journal: the one in the options, else the one beside the table's file.

    Returns None, for no journal, if the options name none, allow no updates, and there is no journal beside the table.
    """
    beside: Path = args.table.with_name(f"{args.table.name}.party{args.party}.journal")
    return args.journal or (beside if args.owner is not None or beside.exists() else None)
