"""`pir-owner`: keys, signed tables, updates and figures, for the owner of the table of two `pir-server`s."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from hummingbird import disk, records
from hummingbird.commands.output import check_writable
from hummingbird.errors import AgreementError, InputError
from hummingbird.pir.batching.plan import Plan
from hummingbird.pir.integrity import Owner, read_key
from hummingbird.pir.pair import descriptions
from hummingbird.pir.table import DTYPES, Facts, Source
from hummingbird.pir.table_server import ask, connected, disconnect
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
updates reach the hot table and every bucket."""
_METRICS = "Print the figures of both servers: version, lookups, passes over the table, latency."
_EXAMPLE = """example:
  python -m hummingbird pir-owner """
_SERVERS = "--servers pir0.example:7000 pir1.example:7000 \\\n      --tls-cert me.crt --tls-key me.key --tls-ca ca.crt"
_EXAMPLES = {
    "keygen": "keygen --key owner.key",
    "sign": "sign --key owner.key --table table.npy --out signed.safetensors",
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
    update = _action(actions, "update", "Change rows at both servers.", _UPDATE, _update)
    _add_key(update, "the owner's secret key")
    _add_servers(update)
    update.add_argument("--indices", type=Path, metavar="FILE.npy", help="row numbers (n,), each once")
    update.add_argument("--rows", type=Path, metavar="FILE", help="new rows (n, dim): .npy or .safetensors")
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


def _update(args: argparse.Namespace) -> int:
    if (args.indices is None) != (args.rows is None):
        raise InputError("--indices and --rows belong together", where="pir-owner update", hint="give both or none")
    owner, new = Owner(read_key(args.key)), None if args.rows is None else _new_rows(args)
    plan = None if args.plan is None else Plan.load(args.plan)
    caller = {**_caller(args), "timeout": args.timeout}
    with Updater(owner, args.servers, table=lambda facts: _whole(facts, plan), **caller) as updater:
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
    links = connected(args.servers, timeout=args.timeout, where="pir-owner metrics", **_caller(args))
    try:
        told = ask(links, [b"", b""], "Metrics", "pir-owner metrics")
        found = [records.read(data, _ANSWER, name="metrics", where="pir-owner metrics") for data in told]
        described = descriptions(links, "pir-owner metrics")
    finally:
        disconnect(links)
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
    indices, source = array_of(args.indices, "--indices"), Source.open(args.rows)
    if indices.is_floating_point() or indices.dtype == torch.bool:
        raise InputError(f"indices of {indices.dtype}", where="--indices", hint="whole numbers (n,)")
    if source.facts.table_id:
        raise InputError("the rows are signed", where="--rows", hint="give plain rows: update signs them")
    rows = torch.from_numpy(source.records).view(DTYPES[source.facts.dtype])
    return indices.long(), rows.view(source.facts.rows, source.facts.dim)


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
