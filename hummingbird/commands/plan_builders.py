"""Services by name, built from what the options of `plan` say."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable

from hummingbird.capacity import paper, profile
from hummingbird.capacity.compose import composed, garbled_here
from hummingbird.capacity.encrypted import he
from hummingbird.capacity.lookups import pir
from hummingbird.capacity.nets import gmw, masked
from hummingbird.capacity.published import Net, asplos23
from hummingbird.capacity.published import PublishedProfile as Published
from hummingbird.capacity.service import Service
from hummingbird.capacity.shipped import crypten
from hummingbird.commands.planned import encrypted_net, private_net
from hummingbird.commands.sources import net_of
from hummingbird.errors import ConfigError, InputError
from hummingbird.pir.batching.batch_code import BatchCode
from hummingbird.pir.batching.plan import Plan

MEASURED = "asplos23/"
_NETS = {"masked": masked, "gmw": gmw}
_DEFAULTS = {"dealer": None, "lanes": 1, "parties": 2}
_NET = ("model", "weights", "saved", "input", "bits", "private_weights", "protocol", "aim", "mode")
_LOOKUPS = ("table", "plan", "lookups")
OTHERS = (*_NET, *_LOOKUPS, "net", "threads", "profile", *_DEFAULTS)  # beside a file
_HINTS = {
    "input": "the shape of a request, as in 1x3x32x32",
    "profile": "python -m scripts.tools.calibrate --json profile.json makes one",
    "model": "--model MODULE:FUNCTION, or --saved DIR",
    "table": "rows and bytes of a row, as in 1048576x256",
    "net": f"one of {', '.join(asplos23().nets)}",
    "up": "the client's link up, as in 500mbit",
    "down": "the client's link down, as in 500mbit",
}


def _need(args: argparse.Namespace, *options: str) -> None:
    """InputError for options that the service needs and has not got."""
    for option in options:
        if getattr(args, option) is None and (option != "model" or args.saved is None):
            what = "a net" if option == "model" else f"--{option}"
            raise InputError(f"--service {args.service} without {what}", where=f"--{option}", hint=_HINTS[option])


def _of_net(args: argparse.Namespace) -> Service:
    """A service between parties."""
    name = args.service
    refuse(args, "net", "threads", "mode", *_LOOKUPS)
    _need(args, "input", "profile", "model")
    if args.protocol not in (None, name):
        raise ConfigError(f"--protocol {args.protocol}", where="--service", hint=f"--service {args.protocol}")
    args.protocol = None if args.saved else name
    dealer = _dealer(args)
    args.aim = args.aim or ("throughput" if dealer == "stream" else "latency")
    speed = profile.load(args.profile)
    return _NETS[name](private_net(args), args.input, speed, dealer, args.parties, args.lanes)


def _dealer(args: argparse.Namespace) -> str:
    """The kind of dealer: as with `serve`, one that streams unless there is a store."""
    stored = args.store is not None or getattr(args, "vary", None) == "store"
    if args.dealer == "stream" and stored:
        hint = "leave --store out, or plan --dealer store"
        raise InputError("a store beside a dealer that streams", where="--store", hint=hint)
    if args.dealer == "store" and not stored:
        hint = "--store SIZE, as in 64GB: of each party"
        raise InputError("--dealer store without the size of a store", where="--store", hint=hint)
    return "store" if stored else "stream"


def _shipped(args: argparse.Namespace) -> Service:
    """CrypTen as it is shipped."""
    refuse(args, "net", "threads", "mode", "protocol", "aim", "bits", "private_weights", *_LOOKUPS, *_DEFAULTS)
    _need(args, "input", "profile", "model")
    speed = profile.load(args.profile)
    return crypten(private_net(args), args.input, speed)


def _encrypted(args: argparse.Namespace) -> Service:
    """A net on ciphertexts."""
    refuse(args, "net", "threads", "protocol", "aim", *_LOOKUPS, *_DEFAULTS)
    _need(args, "input", "profile", "model")
    speed = profile.load(args.profile)
    return he(encrypted_net(args), args.input[0], speed)


def _lookups(args: argparse.Namespace) -> Service:
    """Private lookups, of single rows or by a plan."""
    refuse(args, *_NET, "net", "threads", *_DEFAULTS)
    _need(args, "table", "profile")
    rows, width = args.table
    if args.plan is not None and args.lookups is not None:
        raise InputError("--lookups beside --plan, which says how many", where="--lookups", hint="leave it out")
    speed = profile.load(args.profile)
    if args.plan is None:
        return pir([BatchCode(rows, 1, 1, args.lookups or 1)], width, speed)
    plan = Plan.load(args.plan)
    if plan.full.rows != rows:
        what = f"a table of {rows} rows, and a plan for {plan.full.rows}"
        raise InputError(what, where="--table", hint="the table that the plan was made for")
    return pir(plan.codes, plan.parts * width, speed)


def measured(kind: str, args: argparse.Namespace) -> Service:
    """SG or CG for one of the measured nets."""
    refuse(args, *_NET, *_LOOKUPS, "profile")
    _need(args, "net", *_links(args))
    return _garbled(kind, asplos23().net(args.net), args)


def _composed(args: argparse.Namespace) -> Service:
    """SG or CG for a net of the user's own; garbling as --profile measured it, where it is given."""
    refuse(args, "net", "mode", "saved", "bits", "protocol", "aim", "private_weights", *_LOOKUPS, *_DEFAULTS)
    _need(args, "model", "input", *_links(args))
    if args.input[0] != 1:
        raise InputError(f"a request of {args.input[0]} images", where="--input", hint="one at a time: 1xCxHxW")
    net, published = composed(net_of(args), args.input[1:], name=args.model[0]), asplos23()
    error = max(max(parts.values()) for parts in published.error.values())
    notes = [f"composed of its layers by units of {published.name} (error {100 * error:.0f} % at most on its nets)"]
    if args.profile is not None:
        published, origin = garbled_here(profile.load(args.profile), published)
        notes.append(origin)
    found = _garbled(args.service, net, args, published)
    return dataclasses.replace(found, notes=(*found.notes, *notes))


def _links(args: argparse.Namespace) -> tuple[str, ...]:
    return () if args.bandwidth else ("up", "down")


def _garbled(kind: str, net: Net, args: argparse.Namespace, published: Published | None = None) -> Service:
    """SG or CG on the client's link."""
    up, down = args.up or args.bandwidth, args.down or args.bandwidth
    threads = paper.Threads(*args.threads) if args.threads else paper.ONE
    return paper.service(kind, net, threads, up=up, down=down, store=args.store or 0, profile=published)


def refuse(args: argparse.Namespace, *options: str) -> None:
    """InputError for options that another service takes."""
    for option in options:
        if getattr(args, option) not in (None, False, _DEFAULTS.get(option)):
            shown = option.replace("_", "-")
            raise InputError(
                f"--{shown} beside --service {args.service}", where=f"--{shown}", hint=f"leave --{shown} out"
            )


BUILDERS: dict[str, Callable[[argparse.Namespace], Service]] = {
    **dict.fromkeys(_NETS, _of_net),
    "crypten": _shipped,
    "he": _encrypted,
    "pir": _lookups,
    **dict.fromkeys(paper.KINDS, _composed),
}
