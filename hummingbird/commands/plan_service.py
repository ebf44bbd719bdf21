"""The service of `plan`: read from the options for its kind, machines and link, and shown by `plan show`."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hummingbird.capacity import paper, profile, service_json
from hummingbird.capacity import quantities as units
from hummingbird.capacity.compose import composed, garbled_here
from hummingbird.capacity.encrypted import he
from hummingbird.capacity.limit import limits, mean_seconds
from hummingbird.capacity.lookups import pir
from hummingbird.capacity.nets import PAIR_STORE, gmw, masked
from hummingbird.capacity.published import Net, asplos23
from hummingbird.capacity.published import PublishedProfile as Published
from hummingbird.capacity.quantities import shown_bytes, shown_rate, shown_seconds
from hummingbird.capacity.service import Compute, Hosts, Prices, Send, Service, WorkStep
from hummingbird.capacity.shipped import crypten
from hummingbird.commands.estimate import add_arguments, encrypted_net, private_net
from hummingbird.commands.sources import net_of
from hummingbird.errors import ConfigError, InputError
from hummingbird.mpc.dealer.folder import PAIR
from hummingbird.mpc.pair.dealer import link_of, transfers_of
from hummingbird.mpc.protocols.step_tables import TableChoice
from hummingbird.pir.batching.batch_code import BatchCode
from hummingbird.pir.batching.plan import Plan
from hummingbird.rpc.options import count, shape
from hummingbird.table import text_table

# The output of `plan show`: hosts, every step with its seconds, tokens, and the largest rate -------------------------


def figures(service: Service) -> dict[str, Any]:
    """Return the figures of a service's model by name: seconds, tokens, the largest rate and so on.

    Values are numbers and texts, but for the lists of limits, steps and notes.
    """
    bounds = limits(service)
    return {
        "service": service.name,
        "offline_seconds": mean_seconds(service, service.refill) if service.refill else 0.0,
        "online_seconds": mean_seconds(service, service.request),
        "session_seconds": mean_seconds(service, service.session) if service.session else 0.0,
        "tokens": service.most_tokens,
        "tokens_per_refill": service.refill_tokens,
        "tokens_per_request": service.request_tokens,
        "images_per_request": service.images,
        "requests_per_batch": service.batch,
        "transit_seconds": service.transit_seconds(),
        **{f"{role}_bytes_per_token": size for role, size in service.token_bytes.items()},
        "limit_requests_per_second": bounds[0].rate,
        "limit_images_per_second": bounds[0].rate * service.images,
        "limit_cause": bounds[0].cause,
        "limits": [{"requests_per_second": bound.rate, "cause": bound.cause} for bound in bounds],
        "steps": [
            {"phase": name, "step": step.name, **_work(step), "seconds": service.step_seconds(step)}
            for name, phase in service.phases().items()
            for step in phase.steps
        ],
        "notes": list(service.notes),
    }


def _work(step: WorkStep) -> dict[str, Any]:
    work = step.work
    if isinstance(work, Compute):
        return {"host": work.host, "core_seconds": work.core_seconds, "width": work.width}
    if isinstance(work, Send):
        return {"source": work.source, "target": work.target, "bytes": work.bytes}
    return {"rounds": work.rounds}


def tables(service: Service) -> str:
    """Return a service's model as tables and sentences for people: hosts, steps, tokens and the largest rate."""
    found = figures(service)
    parts = [service.name, _hosts(service), _steps(service)]
    if service.refill is not None:
        stored = ", ".join(f"{shown_bytes(size)} at {role}" for role, size in service.token_bytes.items())
        images = service.most_tokens // service.request_tokens * service.images
        parts.append(
            f"a refill takes {shown_seconds(found['offline_seconds'])} and makes {service.refill_tokens} token(s) of "
            f"{stored}\nthe stores hold {service.most_tokens:,}: {images:,} images"
            + ("" if service.most_tokens else "; tokens are made on demand")
        )
    best = limits(service)
    online = f"a request takes {shown_seconds(found['online_seconds'])} online, alone, for {service.images} image(s)"
    if service.batch > 1:
        online += f"\nup to {service.batch} are served as one, each further in {shown_seconds(service.each)}; "
        online += f"the first waits {shown_seconds(service.hold)} at most"
    if service.transit is not None:
        online += f"\non its way there and back it is another {shown_seconds(service.transit_seconds())}"
    rate = f"at most {shown_rate(best[0].rate)}: {best[0].rate * service.images * 3600:,.0f} images/h"
    others = "".join(f"\n  then {shown_rate(bound.rate)}: {bound.cause}" for bound in best[1:4])
    parts.append(f"{online}\n{rate}, set by {best[0].cause}{others}")
    return "\n\n".join([*parts, *service.notes])


def _hosts(service: Service) -> str:
    def link(rate: float) -> str:
        return "-" if rate == math.inf else f"{rate / 1e6:,.4g}"

    rows = [
        (role, str(host.cores), shown_bytes(host.store) if host.store else "-", link(host.up), link(host.down))
        for role, host in service.hosts.items()
    ]
    table = text_table(("host", "cores", "store", "up Mb/s", "down Mb/s"), rows)
    return f"{table}\nround trip {shown_seconds(service.rtt)}"


def _steps(service: Service) -> str:
    rows = []
    for name, phase in service.phases().items():
        for step in phase.steps:
            work = step.work
            if isinstance(work, Compute):
                where, amount = work.host, f"{work.core_seconds:.4g} core-s on {work.width}"
            elif isinstance(work, Send):
                where, amount = f"{work.source} > {work.target}", shown_bytes(work.bytes)
            else:
                where, amount = "", f"{work.rounds:g} rounds"
            rows.append((name, step.name, where, amount, shown_seconds(service.step_seconds(step))))
        total = shown_seconds(mean_seconds(service, phase))
        rows.append((name, "longest path, mean", "", "", total))
    return text_table(("phase", "step", "where", "work", "alone"), rows, left=3)


# Services by name, built from the options of `plan` -------------------------------------------------------------------

MEASURED = "asplos23/"
_NETS = {"masked": masked, "gmw": gmw}
_DEFAULTS = {"dealer": None, "lanes": 1, "parties": 2}
_NET = ("model", "weights", "saved", "input", "bits", "private_weights", "protocol", "aim", "mode")
_LOOKUPS = ("table", "plan", "lookups")
OTHERS = (*_NET, *_LOOKUPS, "net", "threads", "profile", *_DEFAULTS)  # options that a service's file excludes
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
    """Raise InputError if one of `options` is not set: this kind of service (--service) needs them all.

    options: names of options without "--". A net may also be given by --saved in place of --model.
    """
    for option in options:
        if getattr(args, option) is None and (option != "model" or args.saved is None):
            what = "a net" if option == "model" else f"--{option}"
            raise InputError(f"--service {args.service} without {what}", where=f"--{option}", hint=_HINTS[option])


def _of_net(args: argparse.Namespace) -> Service:
    """Return the model (capacity/service.py) of a service in which parties compute a net on shares."""
    name = args.service
    refuse(args, "net", "threads", "mode", *_LOOKUPS)
    _need(args, "input", "profile", "model")
    if args.protocol not in (None, name):
        raise ConfigError(f"--protocol {args.protocol}", where="--service", hint=f"--service {args.protocol}")
    args.protocol = None if args.saved else name
    dealer, transfers = _dealer(args), transfers_of(args.dealer)
    aim = {"stream": "throughput", "store": "latency"}.get(dealer, "")
    if transfers is not None:
        aim = str(TableChoice(PAIR, transfers=transfers))
    args.aim = args.aim or aim
    speed, private = profile.load(args.profile), private_net(args)
    if transfers is not None and private.facts["aim"] != aim:
        what = f"a net of aim {private.facts['aim']!r} beside --dealer {args.dealer}, which makes material for {aim!r}"
        raise InputError(what, where="--aim", hint="leave --aim out")
    return _NETS[name](private, args.input, speed, dealer, args.parties, args.lanes)


def _dealer(args: argparse.Namespace) -> str:
    """Return the kind of dealer that the options describe: "store" if they set the size of a store, else "stream".

    The size is that of --store, or varies by --vary. Raises InputError if --dealer names the other kind, or none. With
    --dealer pair[:HOW], it is "pair-store" or "pair".
    """
    stored = args.store is not None or getattr(args, "vary", None) == "store"
    try:
        made = transfers_of(args.dealer) is not None
    except ConfigError:
        made = False
    if made:
        return PAIR_STORE if stored else PAIR
    if args.dealer not in (None, "stream", "store"):
        hint = "stream, store, pair, pair:silent, or pair:RTT:BANDWIDTH"
        raise InputError(f"--dealer {args.dealer}", where="--dealer", hint=hint)
    if args.dealer == "stream" and stored:
        hint = "leave --store out, or plan --dealer store"
        raise InputError("a store beside a dealer that streams", where="--store", hint=hint)
    if args.dealer == "store" and not stored:
        hint = "--store SIZE, as in 64GB: of each party"
        raise InputError("--dealer store without the size of a store", where="--store", hint=hint)
    return "store" if stored else "stream"


def _shipped(args: argparse.Namespace) -> Service:
    """Return the model (capacity/service.py) of a service in which parties compute a net by CrypTen as shipped."""
    refuse(args, "net", "threads", "mode", "protocol", "aim", "bits", "private_weights", *_LOOKUPS, *_DEFAULTS)
    _need(args, "input", "profile", "model")
    speed = profile.load(args.profile)
    return crypten(private_net(args), args.input, speed)


def _encrypted(args: argparse.Namespace) -> Service:
    """Return the model (capacity/service.py) of a service in which a server computes a net on ciphertexts."""
    refuse(args, "net", "threads", "protocol", "aim", *_LOOKUPS, *_DEFAULTS)
    _need(args, "input", "profile", "model")
    speed = profile.load(args.profile)
    return he(encrypted_net(args), args.input[0], speed)


def _lookups(args: argparse.Namespace) -> Service:
    """Return the model (capacity/service.py) of a service of private lookups in the table of --table.

    A request looks up --lookups rows (1 by default), one by one, or, with --plan, the many rows of that plan's batch.
    """
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
    """Return the model of a service with a net that Garimella et al. measured, the net of --net.

    kind: "sg" if the server garbles, "cg" if the client does.
    """
    refuse(args, *_NET, *_LOOKUPS, "profile")
    _need(args, "net", *_links(args))
    return _garbled(kind, asplos23().net(args.net), args)


def _composed(args: argparse.Namespace) -> Service:
    """Return the model of a service that garbles and serves the user's own net, of --model and --input.

    The net's costs are put together from those of its layers, as measured for published nets. The server garbles with
    --service sg, the client with --service cg (capacity/paper.py). With --profile, garbling takes the seconds that were
    measured on the user's machine.
    """
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
    """Return the model of a service that computes a net by garbled circuits, with the threads, store and links of the
    options.

    kind: "sg" if the server garbles, "cg" if the client does. net: has the seconds and bytes of the net's steps.
    published: has the seconds of garbling, and the bytes that a ReLU takes; None: those of Garimella et al.
    """
    up, down = args.up or args.bandwidth, args.down or args.bandwidth
    threads = paper.Threads(*args.threads) if args.threads else paper.ONE
    return paper.service(kind, net, threads, up=up, down=down, store=args.store or 0, profile=published)


def refuse(args: argparse.Namespace, *options: str) -> None:
    """Raise InputError if one of `options` is set: this kind of service (--service) does not take them.

    options: names of options without "--". An option with its default value counts as not set.
    """
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


# The options ---------------------------------------------------------------------------------------------------------

_PRICES = {field.name.replace("_", "-"): field.name for field in dataclasses.fields(Prices)}


def add_service(parser: argparse.ArgumentParser) -> None:
    """Add the options from --service to --each, which `service_of` reads."""
    text = "masked, gmw, crypten or he (a net of --model, with --input and --profile); sg or cg (a net of --model, "
    text += "with --input, --up and --down; --profile: its garbling); asplos23/sg or asplos23/cg (a net of --net); pir "
    text += "(a table of --table, with --profile); or a file that `plan show --save` wrote"
    parser.add_argument("--service", required=True, metavar="NAME|FILE", help=text)
    aim = "latency, throughput with --dealer stream, pair with --dealer pair"
    add_arguments(parser, "shape of a request: one slice of images", required=False, encrypted=True, aim=aim)
    group = parser.add_argument_group("masked, gmw, crypten, he")
    text = "a machine's measured seconds, by `python -m scripts.tools.calibrate`"
    group.add_argument("--profile", type=Path, metavar="FILE", help=text)
    text = "stream: makes material during the request, as the dealer that `serve` starts; store: slots dealt ahead "
    text += (
        "(default with --store, or if the store is varied); pair: no dealer, the two parties make the material with "
    )
    text += "each other, during the request, or in advance with --store; pair:silent: with fewer bytes and more work; "
    text += "pair:RTT:BANDWIDTH: in the fastest way on this link, such as pair:0.02:100e6"
    group.add_argument("--dealer", metavar="stream|store|pair[:HOW]", help=text)
    group.add_argument("--lanes", type=count, default=1, metavar="G", help="lanes of each party (default 1)")
    group = parser.add_argument_group("pir")
    text = "rows of the table, and bytes of a row, as in 1048576x256"
    group.add_argument("--table", type=table, metavar="ROWSxBYTES", help=text)
    text = "plan of many lookups at once, as for `pir-server --plan`"
    group.add_argument("--plan", type=Path, metavar="FILE", help=text)
    group.add_argument("--lookups", type=count, metavar="N", help="lookups of a request without --plan (default 1)")
    group = parser.add_argument_group("sg, cg (Garimella et al., 2023)")
    group.add_argument("--net", metavar="DATASET/NET", help="one of the six measured nets")
    text = "threads of the client, and of the server for homomorphic evaluation and for garbled circuits"
    group.add_argument("--threads", nargs=3, type=count, metavar=("C", "HE", "GC"), help=text)
    group = parser.add_argument_group("machines and link", "in place of the service's own")
    group.add_argument("--cores", type=count, metavar="N", help="cores of every host")
    text = "store of every host that keeps tokens, as in 64GB"
    group.add_argument("--store", type=units.size, metavar="SIZE", help=text)
    text = "bandwidth in both directions of every link with a limit, as in 352mbit (default: that of --dealer "
    text += "pair:RTT:BANDWIDTH, else the service's own)"
    group.add_argument("--bandwidth", type=units.link, metavar="RATE", help=text)
    group.add_argument("--up", type=units.link, metavar="RATE", help="bandwidth up of every link with a limit")
    group.add_argument("--down", type=units.link, metavar="RATE", help="bandwidth down of every link with a limit")
    text = "round-trip time, as in 2ms (default: that of --dealer pair:RTT:BANDWIDTH, else the service's own)"
    group.add_argument("--rtt", type=units.seconds, metavar="TIME", help=text)
    text = f"prices of a host, {', '.join(_PRICES)}; as in core-hour=0.04 gb-sent=0.09 gb-month=0.02"
    group.add_argument("--prices", nargs="+", metavar="NAME=PRICE", help=text)
    group.add_argument("--slots", type=count, metavar="N", help="requests at a time")
    group.add_argument("--workers", type=count, metavar="N", help="refills at a time")
    text = "requests served as one, with the work, bytes and rounds of one"
    group.add_argument("--batch", type=count, metavar="N", help=text)
    text = "longest wait of a batch's first request for others"
    group.add_argument("--window", type=units.seconds, dest="hold", metavar="TIME", help=text)
    text = "additional time for each request of a batch but the first"
    group.add_argument("--each", type=units.seconds, metavar="TIME", help=text)


def table(text: str) -> tuple[int, ...]:
    """Read the size of a table, written as in 1048576x256; return its rows, and the bytes of a row."""
    sizes = shape(text)
    if len(sizes) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} is no table such as 1048576x256")
    return sizes


def service_of(args: argparse.Namespace) -> Service:
    """Return the model of the service that the options describe (capacity/service.py), on the machines that they
    describe.

    Raises ConfigError and InputError for invalid options.
    """
    name = args.service
    if name in BUILDERS:
        found = BUILDERS[name](args)
    elif name.startswith(MEASURED):
        found = measured(name.removeprefix(MEASURED), args)
    else:
        refuse(args, *OTHERS)
        found = service_json.from_text(_read(Path(name)), name)
    link = link_of(args.dealer)
    bandwidth = link.bandwidth if link and args.bandwidth is None else args.bandwidth
    rtt = link.rtt if link and args.rtt is None else args.rtt
    machines = Hosts(args.cores, args.store, bandwidth, rtt, args.up, args.down, prices_of(args))
    own = ("slots", "workers", "batch", "hold", "each")
    given = {key: getattr(args, key) for key in own if getattr(args, key) is not None}
    there = dataclasses.replace(found.at(machines), **given)
    if there.batch == 1 and (args.hold or args.each):
        option = "--window" if args.hold else "--each"
        raise InputError(f"{option} without batches", where=option, hint="--batch N, or leave it out")
    return there


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        hint = f"{', '.join(BUILDERS)}, {MEASURED}sg, {MEASURED}cg, or a file that `plan show --save` wrote"
        raise InputError(f"no service {str(path)!r}: {error}", where="--service", hint=hint) from None


def prices_of(args: argparse.Namespace) -> Prices | None:
    """Return the prices in money that --prices sets, for a core hour, a GB sent and a GB stored for a month.

    Returns None without the option. Raises InputError for an unknown name, or a value that is no number.
    """
    if not args.prices:
        return None
    found = {}
    for word in args.prices:
        name, equals, value = word.partition("=")
        try:
            found[_PRICES[name]] = float(value)
        except (KeyError, ValueError):
            hint = "NAME=PRICE: core-hour=0.04, gb-sent=0.09 or gb-month=0.02"
            raise InputError(f"{word!r} is no price", where="--prices", hint=hint) from None
    return Prices(**found)
