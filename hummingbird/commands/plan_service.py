"""The service that `plan` is about, as options name it: which, on which machines, over which link."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from hummingbird.capacity import quantities as units
from hummingbird.capacity import service_json
from hummingbird.capacity.nets import DEALERS
from hummingbird.capacity.service import Hosts, Prices, Service
from hummingbird.commands.plan_builders import BUILDERS, MEASURED, OTHERS, measured, refuse
from hummingbird.commands.planned import add_arguments
from hummingbird.errors import InputError
from hummingbird.rpc.options import count, shape

_PRICES = {field.name.replace("_", "-"): field.name for field in dataclasses.fields(Prices)}


def add_service(parser: argparse.ArgumentParser) -> None:
    """--service to --workers, which `service_of` reads."""
    text = "masked, gmw, crypten or he (a net of --model, with --input and --profile); sg or cg (a net of --model, "
    text += "with --input, --up and --down; --profile: its garbling); asplos23/sg or asplos23/cg (a net of --net); pir "
    text += "(a table of --table, with --profile); or a file that `plan show --save` wrote"
    parser.add_argument("--service", required=True, metavar="NAME|FILE", help=text)
    aim = "latency, throughput with --dealer stream"
    add_arguments(parser, "shape of a request: one slice of images", required=False, encrypted=True, aim=aim)
    group = parser.add_argument_group("masked, gmw, crypten, he")
    text = "this kind of machine's speed, by `python -m scripts.tools.calibrate`"
    group.add_argument("--profile", type=Path, metavar="FILE", help=text)
    text = "stream: it makes material during the request, as the one that `serve` starts; store: slots dealt ahead "
    text += "(default with --store, or where it is varied)"
    group.add_argument("--dealer", choices=DEALERS, help=text)
    group.add_argument("--lanes", type=count, default=1, metavar="G", help="lanes of each party (default 1)")
    group = parser.add_argument_group("pir")
    text = "rows of the table, and bytes of a row, as in 1048576x256"
    group.add_argument("--table", type=table, metavar="ROWSxBYTES", help=text)
    text = "many lookups at once, by the plan in a file, as `pir-server --plan`"
    group.add_argument("--plan", type=Path, metavar="FILE", help=text)
    group.add_argument("--lookups", type=count, metavar="N", help="rows of a request, without --plan (default 1)")
    group = parser.add_argument_group("sg, cg (Garimella et al., 2023)")
    group.add_argument("--net", metavar="DATASET/NET", help="one of the six measured nets")
    text = "threads of the client, and of the server for homomorphic evaluation and for garbled circuits"
    group.add_argument("--threads", nargs=3, type=count, metavar=("C", "HE", "GC"), help=text)
    group = parser.add_argument_group("machines and link", "in place of the service's own")
    group.add_argument("--cores", type=count, metavar="N", help="of every host")
    group.add_argument("--store", type=units.size, metavar="SIZE", help="of every host that keeps tokens, as in 64GB")
    group.add_argument("--bandwidth", type=units.link, metavar="RATE", help="both ways, as in 352mbit")
    group.add_argument("--up", type=units.link, metavar="RATE", help="up, of every host whose link has a limit")
    group.add_argument("--down", type=units.link, metavar="RATE", help="down")
    group.add_argument("--rtt", type=units.seconds, metavar="TIME", help="there and back, as in 2ms")
    text = f"money: {', '.join(_PRICES)}; as in core-hour=0.04 gb-sent=0.09 gb-month=0.02"
    group.add_argument("--prices", nargs="+", metavar="NAME=PRICE", help=text)
    group.add_argument("--slots", type=count, metavar="N", help="requests at a time")
    group.add_argument("--workers", type=count, metavar="N", help="refills at a time")
    text = "requests served as one, with the work, bytes and rounds of one"
    group.add_argument("--batch", type=count, metavar="N", help=text)
    text = "of a batch: its first request waits so long for others"
    group.add_argument("--window", type=units.seconds, dest="hold", metavar="TIME", help=text)
    text = "of a batch: more for each request but the first"
    group.add_argument("--each", type=units.seconds, metavar="TIME", help=text)


def table(text: str) -> tuple[int, ...]:
    """Rows and bytes of a row, written as in 1048576x256."""
    sizes = shape(text)
    if len(sizes) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} is no table such as 1048576x256")
    return sizes


def service_of(args: argparse.Namespace) -> Service:
    """The service that the options name, on their machines; ConfigError and InputError for what cannot be."""
    name = args.service
    if name in BUILDERS:
        found = BUILDERS[name](args)
    elif name.startswith(MEASURED):
        found = measured(name.removeprefix(MEASURED), args)
    else:
        refuse(args, *OTHERS)
        found = service_json.from_text(_read(Path(name)), name)
    machines = Hosts(args.cores, args.store, args.bandwidth, args.rtt, args.up, args.down, prices_of(args))
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
    """The prices of --prices, None without; InputError for another name, or what is no number."""
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
