"""`pir-owner`: keys, signed tables, updates and figures, for the owner of the table of two `pir-server`s."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hummingbird import disk, records
from hummingbird.commands.output import check_writable
from hummingbird.errors import AgreementError, InputError
from hummingbird.pir import building
from hummingbird.pir.batching.plan import Plan
from hummingbird.pir.batching.tables import TableLink
from hummingbird.pir.integrity import Owner, read_key
from hummingbird.pir.keyword_table import KeywordTable
from hummingbird.pir.pair import descriptions
from hummingbird.pir.table import DTYPES, Facts, Source
from hummingbird.pir.table_server import TableServer, ask, connected, disconnect
from hummingbird.pir.updating import Updater
from hummingbird.progress import progress_line
from hummingbird.rpc import options
from hummingbird.rpc.options import array_of, positive

HELP = "Keys, signed rows, updates and figures, for the owner of a table at two pir-servers."
_DESCRIPTION = """For the owner of a table that two pir-servers hold.

Make a key pair, and give the public key to both servers (pir-server --owner) and, if rows are signed, to the clients.
Anyone with the secret key can change rows. Servers never need the secret key."""
_KEYGEN = """Make a key pair: FILE, the secret key, for the owner alone (mode 0600), and FILE.pub, the public key.

Existing files are not overwritten. A pir-server's --identity takes such a key too."""
_SIGN = """Sign every row of a table, so that clients detect a server that changes one; adds 72 bytes to each row.

Give the same signed file to both servers. Signing again makes another table."""
_UPDATE = """Change rows at both servers, in order and durably: an acknowledged update survives a crash.

A server that has missed updates first gets them from the other server's journal; so after a failure run the same
command again. Without --indices and --rows nothing else happens. With a plan, name the servers of the full table: its
updates reach the hot table and every bucket.

Of a table by keyword, give the table's file (--table), and --keywords with --rows, or --remove. Rows are inserted or
replaced. The file stays as it is: changes since it was written come from the servers' journals."""
_BUILD = """Make the file of a table that pir-server opens at once, whatever its size.

The rows come from a .parquet, .npy or .safetensors file, which is read a piece at a time.

With --keywords, rows are looked up by a text in place of a number (pir.KeywordClient). Memory: some 2 GiB, and 33 bytes
for each keyword. Parquet needs the extra: pip install 'hummingbird-mpc[parquet]'"""
_METRICS = "Print the figures of both servers: version, lookups, passes over the table, latency."
_EXAMPLE = """example:
  python -m hummingbird pir-owner """
_SERVERS = "--servers pir0.example:7000 pir1.example:7000 \\\n      --tls-cert me.crt --tls-key me.key --tls-ca ca.crt"
_EXAMPLES = {
    "keygen": "keygen --key owner.key",
    "sign": "sign --key owner.key --table table.npy --out signed.safetensors",
    "build": "build --table words.parquet --column vector --keywords word --out words.safetensors",
    "update": f"update --key owner.key --indices indices.npy --rows rows.npy \\\n      {_SERVERS}",
    "metrics": f"metrics {_SERVERS}",
}
_BAR = "{desc}: {percentage:3.0f} % |{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"


def add_parser(commands: Any) -> None:
    """Add the command `pir-owner`, with its options, to the command line."""
    top = commands.add_parser("pir-owner", help=HELP, description=_DESCRIPTION, formatter_class=_Plain)
    actions = top.add_subparsers(dest="action", required=True, metavar="ACTION")
    keygen = _action(actions, "keygen", "Make a key pair.", _KEYGEN, _keygen)
    _add_key(keygen, "file for the secret key")
    sign = _action(actions, "sign", "Sign the rows of a table.", _SIGN, _sign)
    _add_key(sign, "the owner's secret key")
    sign.add_argument("--table", required=True, type=Path, metavar="FILE", help="rows: .npy or .safetensors")
    sign.add_argument("--tensor", metavar="NAME", help="name of the rows in a .safetensors file with several tensors")
    sign.add_argument("--out", required=True, type=Path, metavar="FILE.safetensors", help="the signed table")
    build = _action(actions, "build", "Make the file of a large table, or of one by keyword.", _BUILD, _build)
    build.add_argument("--table", required=True, type=Path, metavar="FILE", help="rows: .parquet, .npy or .safetensors")
    build.add_argument("--tensor", metavar="NAME", help="name of the rows in a .safetensors file with several tensors")
    build.add_argument("--column", metavar="NAME", help="name of the column with the rows in a .parquet file")
    build.add_argument(
        "--keywords",
        metavar="NAME",
        help="a .parquet file's column of keywords; else a text file with one on each line",
    )
    build.add_argument(
        "--room", type=options.count, metavar="N", help="how many keywords there may be later (default: as now)"
    )
    build.add_argument("--out", required=True, type=Path, metavar="FILE.safetensors", help="the table")
    update = _action(actions, "update", "Change rows at both servers.", _UPDATE, _update)
    _add_key(update, "the owner's secret key")
    _add_servers(update)
    update.add_argument("--indices", type=Path, metavar="FILE.npy", help="row numbers (n,), each once")
    update.add_argument("--rows", type=Path, metavar="FILE", help="new rows (n, dim): .npy or .safetensors")
    update.add_argument("--table", type=Path, metavar="FILE.safetensors", help="the table by keyword that they serve")
    update.add_argument("--keywords", type=Path, metavar="FILE", help="keywords of the new rows, one on each line")
    update.add_argument("--remove", type=Path, metavar="FILE", help="keywords to remove, one on each line")
    update.add_argument("--plan", type=Path, metavar="FILE", help="the plan that the servers serve")
    metrics = _action(actions, "metrics", "Print the servers' figures.", _METRICS, _metrics)
    _add_servers(metrics)
    metrics.add_argument("--json", action="store_true", help="everything, as JSON, a line for each server")


_Plain = argparse.RawDescriptionHelpFormatter


def _action(actions: Any, name: str, help: str, description: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=help, description=description, formatter_class=_Plain, epilog=_EXAMPLE + _EXAMPLES[name]
    )
    parser.set_defaults(run=run)
    return parser


def _add_key(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--key", required=True, type=Path, metavar="FILE", help=what)


def _add_servers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--servers", required=True, nargs=2, metavar="ADDRESS", help="party 0 and party 1: HOST:PORT or unix:PATH"
    )
    parser.add_argument(
        "--timeout", type=positive, default=60.0, metavar="S", help="longest wait for each answer, seconds (default 60)"
    )
    text = "the table to ask for, where the servers hold several (pir-server --tables)"
    parser.add_argument("--name", metavar="NAME", help=text)
    options.add_tls(parser, "certificate of the owner (PEM)", "certificate of the servers' authority (PEM)")
    text = "files of this side's tokens for party 0 and for party 1, instead of a certificate; TLS then takes --tls-ca "
    text += "alone"
    parser.add_argument("--token-file", type=Path, nargs=2, metavar="FILE", help=text)


def _caller(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments `tls` and `tokens` for `pir.table_server.connected`, from the options."""
    files = args.token_file or [None]
    found = [options.caller_of(argparse.Namespace(**{**vars(args), "token_file": file})) for file in files]
    tokens = None if args.token_file is None else [caller["token"] for caller in found]
    return {"tls": found[0]["tls"], "tokens": tokens}


@contextlib.contextmanager
def _linked(args: argparse.Namespace) -> Iterator[list[TableServer]]:
    """Connect to both servers inside a `with` block. If --name is given, calls go to the table of that name."""
    links = connected(args.servers, timeout=args.timeout, where=f"pir-owner {args.action}", **_caller(args))
    try:
        yield links if args.name is None else [TableLink(link, args.name) for link in links]
    finally:
        disconnect(links)


# Actions --------------------------------------------------------------------------------------------------------------


def _keygen(args: argparse.Namespace) -> int:
    owner, public = Owner(), args.key.with_name(f"{args.key.name}.pub")
    check_writable(args.key, "--key")
    made: list[Path] = []
    try:
        for path, key, mode in ((args.key, owner.key, 0o600), (public, owner.public, 0o644)):
            disk.create(path, [f"{key.hex()}\n".encode()], mode=mode)
            made.append(path)
        disk.sync(public.parent)
    except OSError as error:
        for path in made:
            path.unlink(missing_ok=True)
        hint = "a key is never overwritten: name another file" if isinstance(error, FileExistsError) else ""
        raise InputError(f"cannot write: {error.strerror}", where=str(error.filename or args.key), hint=hint) from None
    print(f"{args.key}: the secret key; {public}: the public key {owner.public.hex()}")
    return 0


def _sign(args: argparse.Namespace) -> int:
    owner, source = Owner(read_key(args.key)), Source.open(args.table, args.tensor)
    check_writable(args.out, "--out")
    if args.out.suffix != ".safetensors":
        raise InputError(f"{args.out} is no .safetensors file", where="--out", hint="name it so, for pir-server")
    with progress_line(total=source.facts.rows, desc="rows signed", delay=1, bar_format=_BAR) as bar:
        signed = owner.sign(source, progress=bar.update)
    signed.save(args.out)
    size = args.out.stat().st_size
    print(f"{args.out}: {signed.facts.text()}, {size / 1e6:,.1f} MB; public key {owner.public.hex()}")
    return 0


def _build(args: argparse.Namespace) -> int:
    check_writable(args.out, "--out")
    if args.out.suffix != ".safetensors":
        raise InputError(f"{args.out} is no .safetensors file", where="--out", hint="name it so, for pir-server")
    rows: building.RowSource
    if args.table.suffix == ".parquet":
        if args.column is None or args.tensor is not None:
            raise InputError("a .parquet file has columns", where="--column", hint="name the column with the rows")
        rows = building.ParquetRows(args.table, args.column, args.keywords)
    else:
        if args.column is not None:
            raise InputError(f"{args.table} has no columns", where="--column", hint="only a .parquet file has")
        rows = building.FileRows(args.table, args.tensor, args.keywords)
    if args.room is not None and args.keywords is None:
        raise InputError("a table by number has the rows it has", where="--room", hint="it belongs to --keywords")
    with _bar(building.reads(rows, args.room), "rows read") as bar:
        facts = building.build(args.out, rows, room=args.room, progress=bar.update)
    print(f"{args.out}: {facts.text()}, {args.out.stat().st_size / 1e6:,.1f} MB; {rows.count:,} rows read")
    return 0


def _update_keywords(args: argparse.Namespace) -> int:
    """Insert, replace and remove rows of a table by keyword."""
    for name in ("indices", "plan"):
        if getattr(args, name) is not None:
            raise InputError("a table by keyword has none", where=f"--{name}", hint="give --keywords and --rows")
    if (args.keywords is None) != (args.rows is None) or args.table is None:
        hint = "--table, and --keywords with --rows, or --remove"
        raise InputError("an option is missing", where="pir-owner update", hint=hint)
    owner, table = Owner(read_key(args.key)), KeywordTable.open(Source.open(args.table))
    new, gone = ([] if path is None else [*building.keyword_lines(path)] for path in (args.keywords, args.remove))
    rows = None if args.rows is None else _tensor_of(args.rows)
    if rows is not None:
        table.checked(new, rows)
    before = len(table)
    with _linked(args) as links, Updater(owner, links) as updater:
        updater.bring_up()
        table.catch_up(updater)
        there = [word for word in dict.fromkeys(gone) if word in table]
        if gone:
            print(f"{len(there):,} keywords to remove, {len({*gone}) - len(there):,} are not there")
            table.remove(there, updater)
        if rows is not None:
            table.put(new, rows, updater)
        _print_versions(updater, "now")
    print(f"{len(table):,} keywords, of at most {table.room:,}; the file has {before:,}")
    return 0


def _update(args: argparse.Namespace) -> int:
    if args.table is not None or args.keywords is not None or args.remove is not None:
        return _update_keywords(args)
    if (args.indices is None) != (args.rows is None):
        raise InputError("--indices and --rows belong together", where="pir-owner update", hint="give both or none")
    owner, new = Owner(read_key(args.key)), None if args.rows is None else _new_rows(args)
    plan = None if args.plan is None else Plan.load(args.plan)
    with _linked(args) as links, Updater(owner, links, table=lambda facts: _whole(facts, plan)) as updater:
        if new is not None:
            updater.check(*new)
        _print_versions(updater, "before")
        zero, one = (description.state.version for description in updater.describe())
        with _bar(abs(zero - one), "missed updates") as bar:
            missed = updater.bring_up(bar.update)
        if missed:
            print(f"{updater.links[zero > one].name} was behind: {missed} update{'s' * (missed > 1)} handed to it")
        if new is not None:
            with _bar(len(new[0]), "rows") as bar:
                updater.update(*new, progress=bar.update)
            print(f"{len(new[0]):,} rows changed")
        _print_versions(updater, "now")
    return 0


_ANSWER = records.mapping(records.anything(), 256)


def _metrics(args: argparse.Namespace) -> int:
    with _linked(args) as links:
        told = ask(links, [b"", b""], "Metrics", "pir-owner metrics")
        found = [records.read(data, _ANSWER, name="metrics", where="pir-owner metrics") for data in told]
        described = descriptions(links, "pir-owner metrics")
    for link, description, now in zip(links, described, found, strict=True):
        version, digest, table = description.state.version, description.state.digest.hex(), description.facts.text()
        if args.json:
            print(json.dumps({"server": link.name, "table": table, "version": version, "digest": digest, **now}))
            continue
        print(f"{link.name}: {table}, version {version}, digest {digest[:8]}")
        print(
            f"  {now['queries']:,} lookups in {now['passes']:,} passes, {now['mean_batch']:g} a pass; up "
            f"{now['uptime_seconds']:,.0f} s, {now['busy_seconds']:,.1f} s at work; latency p50 {now['p50_ms']:g} ms, "
            f"p99 {now['p99_ms']:g} ms"
        )
    return 0


def _new_rows(args: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices, int64 (n,), of the rows to change, and the new rows (n, dim), from their files."""
    indices = array_of(args.indices, "--indices")
    if indices.is_floating_point() or indices.dtype == torch.bool:
        raise InputError(f"indices of {indices.dtype}", where="--indices", hint="whole numbers (n,)")
    return indices.long(), _tensor_of(args.rows)


def _tensor_of(path: Path) -> torch.Tensor:
    """Return the plain rows in a file, (n, dim)."""
    source = Source.open(path)
    if source.facts.table_id:
        raise InputError("the rows are signed", where="--rows", hint="give plain rows: update signs them")
    rows = torch.from_numpy(np.asarray(source.records)).view(DTYPES[source.facts.dtype])
    return rows.view(source.facts.rows, source.facts.dim)


def _whole(facts: Facts, plan: Plan | None) -> Facts:
    """Return the facts of the owner's whole table (rows, dimension, type ...) from those that the servers report.

    facts: what the servers report of their table. plan: the plan by which the servers' tables are divided into buckets;
    then `facts` must be those of the plan's full table, the bucket that holds all rows, or else AgreementError is
    raised. None: the servers hold the whole table, and `facts` is the result.
    """
    if plan is None:
        return facts
    table = plan.table(facts)
    if plan.facts(plan.full, table) != facts:
        hint = "name the servers of the full table, each pir-server's last address"
        raise AgreementError(f"the servers hold {facts.text()}, not the full table of this plan", hint=hint)
    return table


def _print_versions(updater: Updater, when: str) -> None:
    texts = [
        f"{link.name} at version {description.state.version}"
        for link, description in zip(updater.links, updater.describe(), strict=True)
    ]
    print(f"{when}: {', '.join(texts)}", flush=True)


@contextlib.contextmanager
def _bar(total: int, what: str) -> Iterator[Any]:
    with progress_line(total=total, desc=what, delay=1, bar_format=_BAR) as bar:
        yield bar
