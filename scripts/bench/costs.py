"""Cost of 1,000 images: core-hours, gigabytes, money and energy of a net, by who makes the material.

    python -m scripts.bench.costs --prices core-hour=0.0446 gb-sent=0.09 --priced 2026-11-28 --json costs.json
    python -m scripts.bench.costs --nets resnet18 --prices core-hour=0.03 gb-sent=0.02 --priced 2026-11-28

One party's work on this machine is measured, each net by itself; bytes are those of the plan. The sheet adds up what
all parties and the dealer do for an image: the material (offline) and the inference (online, with a party's expansion
of a dealer's seeds), and what they send, to each other and to the client. Cores and links are paid for as they are
used: a service that idles costs more (`hummingbird plan run --prices`). The method is that of studies of the price of
private inference: seconds of processors at a price for an hour, and bytes sent at a price for a gigabyte. Energy is
that of the processor's package while a party works, per core-second, where Linux shows it (RAPL, Intel and AMD).

"garbled" is `hummingbird.hybrid`, two parties without a dealer: both run here, and what both use and send is counted.
`hummingbird.he` is not in the sheet: its price is that of a batch of thousands of images, however many are in it.

    resnet18    ResNet-18 for CIFAR-10 with its shipped windows of 8 bits; garbled with those of 9 bits
    resnet50    torchvision's ResNet-50 for images of 224x224, random weights, windows [20:12)
    bert        a block of BERT-base on 128 words, random weights, windows [20:14); the net has 12
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torchvision
from torch import nn

import hummingbird
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.capacity.limit import loads
from hummingbird.capacity.nets import gmw, masked, measure
from hummingbird.capacity.profile import Profile
from hummingbird.capacity.service import Hosts, Phase, Prices, Service
from hummingbird.commands.output import check_outputs
from hummingbird.commands.plan_service import prices_of
from hummingbird.commands.program import machine
from hummingbird.errors import InputError
from hummingbird.hybrid.plan import SET
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.progress import progress_line
from models import trained
from scripts.bench import bert, hybrid_sparse
from scripts.bench.hybrid_nets import Served
from scripts.program import ROOT, add_json, columns, main_of, maybe, new_parser, write_rows

THOUSAND = 1000
_STORE = 1e15  # bytes: a store with room for any material
_RAPL = Path("/sys/class/powercap/intel-rapl:0")
_SHOWN = [
    ("net", "{net}"),
    ("material", "{material}"),
    ("core-h offline", "{offline_core_hours:.4f}"),
    ("online", "{online_core_hours:.4f}"),
    ("GB offline", "{offline_gigabytes:,.2f}"),
    ("online", "{online_gigabytes:,.2f}"),
    ("$ cores", "{cores_dollars:.4f}"),
    ("$ sent", "{sent_dollars:.4f}"),
    ("$ in all", "{dollars:.4f}"),
    ("kJ", maybe("kilojoules", ",.2f", nothing="-")),
]


class Way(NamedTuple):
    """A way to the material: its name, options of `convert_model`, and the kind of dealer of the planner's service."""

    name: str
    options: dict[str, str]
    dealer: str


WAYS = (
    Way("dealer", {}, "store"),
    Way("dealer, gmw", {"protocol": "gmw"}, "store"),
    Way("pair", {"aim": "pair"}, "pair-store"),
    Way("pair:silent", {"aim": "pair:silent"}, "pair-store"),
)


GARBLED = "garbled"


class Case(NamedTuple):
    """A net of the sheet.

    name: in rows. plain: makes the net. options: converts it. shape: of a slice. repeats: how often each part is timed.
    garbled: the net, its shape and its windows as `gc-server` takes them; None: not in the sheet.
    """

    name: str
    plain: Callable[[], nn.Module]
    options: Callable[[nn.Module], dict[str, Any]]
    shape: tuple[int, ...]
    repeats: int
    garbled: Callable[[], Served] | None = None


def _garbled_resnet18() -> Served:
    weights, bits = (ROOT / f"checkpoints/resnet18-cifar10{end}" for end in (".pt", "-cut-9.bits.json"))
    return Served(["models:trained", "resnet18", "10", str(weights)], (3, 32, 32), BitConfig.load(bits))


def _resnet50() -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.resnet50().eval()


def _bert(plain: nn.Module) -> dict[str, Any]:
    found = hummingbird.find_rows(plain, bert.inputs(0, 4))
    rows = {name: replace(rows, error=0.008) if "gelu" in name else rows for name, rows in found.items()}
    return {"bits": BitConfig(BitWindow(20, 14)).with_rows(rows), "example": bert.inputs(0)}


CASES = {
    "resnet18": Case(
        "ResNet-18, CIFAR-10",
        lambda: trained("resnet18", 10, str(ROOT / "checkpoints/resnet18-cifar10.pt")),
        lambda plain: {"bits": BitConfig.load(ROOT / "checkpoints/resnet18-cifar10-8-64.bits.json")},
        (1, 3, 32, 32),
        3,
        _garbled_resnet18,
    ),
    "resnet50": Case(
        "ResNet-50, 224 pixels", _resnet50, lambda plain: {"bits": BitWindow(20, 12)}, (1, 3, 224, 224), 1
    ),
    "bert": Case("BERT-base, a block of 12", lambda: bert.net(1), _bert, (1, bert.WORDS, bert.WIDTH), 1),
}


def package_joules() -> float | None:
    """Read the energy that the processor's package has used, in joules; None where Linux does not show it."""
    try:
        return int((_RAPL / "energy_uj").read_text()) / 1e6
    except (OSError, ValueError):
        return None


def work_of(service: Service, phase: Phase | None) -> tuple[float, float]:
    """Return the core-seconds and the bytes sent by all hosts but clients, for one run of a phase."""
    found = loads(service, phase).items() if phase is not None else ()
    own = [(kind, amount) for (role, kind), amount in found if role not in service.clients]
    return sum(n for kind, n in own if kind == "cores"), sum(n for kind, n in own if kind == "up") / 8


def cost_row(name: str, way: Way, private: PrivateNet, shape: tuple[int, ...], repeats: int, prices: Prices) -> Any:
    """Measure a net and return its row of the sheet. shape: of a slice of one image."""
    energy, started = package_joules(), time.process_time()
    found = measure(name, private, shape, repeats=repeats)
    watts = _watts(energy, time.process_time() - started)
    profile = Profile(machine(), torch.get_num_threads(), (found,))
    make = gmw if way.options.get("protocol") == "gmw" else masked
    service = make(private, shape, profile, way.dealer).at(Hosts(store=_STORE))
    offline, online, transit = (work_of(service, phase) for phase in (service.refill, service.request, service.transit))
    online = (online[0] + transit[0], online[1] + transit[1])
    return _row(name, way.name, offline, online, watts, prices)


def garbled_row(name: str, served: Served, prices: Prices) -> Any:
    """Run a net of two parties without a dealer on random images, and return its row of the sheet."""
    with served.running() as (net, _, server):
        way = hybrid_sparse.Way(name, net, server, 1)
        images = torch.rand(SET, *served.shape)
        net.prepare(1)
        net(images[:1])  # session and transformed weights
        energy = package_joules()
        (_, dealt, size), (_, asked, more) = way.dealt(), way.asked(images)
        watts = _watts(energy, SET * (dealt + asked))
    return _row(name, GARBLED, (dealt, size), (asked, more), watts, prices)


def _watts(before: float | None, core_seconds: float) -> float | None:
    now = package_joules()
    return None if before is None or now is None or now <= before else (now - before) / core_seconds


def _row(
    name: str,
    material: str,
    offline: tuple[float, float],
    online: tuple[float, float],
    watts: float | None,
    prices: Prices,
) -> dict[str, Any]:
    """Make a row of the core-seconds and bytes of an image. watts: of a core."""
    hours = [THOUSAND * seconds / 3600 for seconds in (offline[0], online[0])]
    gigabytes = [THOUSAND * size / 1e9 for size in (offline[1], online[1])]
    dollars = sum(hours) * prices.core_hour, sum(gigabytes) * prices.gb_sent
    return {
        "net": name,
        "material": material,
        "images": THOUSAND,
        "offline_core_hours": hours[0],
        "online_core_hours": hours[1],
        "offline_gigabytes": gigabytes[0],
        "online_gigabytes": gigabytes[1],
        "cores_dollars": dollars[0],
        "sent_dollars": dollars[1],
        "dollars": sum(dollars),
        "kilojoules": None if watts is None else 3.6 * sum(hours) * watts,
        "watts_per_core": watts,
        "core_hour_dollars": prices.core_hour,
        "gb_sent_dollars": prices.gb_sent,
    }


def sheet(names: list[str], prices: Prices) -> Iterator[dict[str, Any]]:
    """Yield the rows of these nets, by every way."""
    torch.set_num_threads(1)
    for name in names:
        case = CASES[name]
        plain = case.plain()
        options = case.options(plain)
        for way in WAYS:
            private = hummingbird.convert_model(plain, **options, **way.options)
            yield cost_row(case.name, way, private, case.shape, case.repeats, prices)
        if case.garbled is not None:
            yield garbled_row(case.name, case.garbled(), prices)


def run(args: argparse.Namespace) -> None:
    """Measure, print the sheet, write the rows."""
    prices = prices_of(args)
    if prices is None:
        raise InputError("no prices", where="--prices", hint="core-hour=0.0446 gb-sent=0.09, in dollars")
    if prices.gb_month:
        raise InputError("a price of storage", where="--prices", hint="the sheet stores nothing: core-hour, gb-sent")
    check_outputs(args)
    count = sum(len(WAYS) + (CASES[name].garbled is not None) for name in args.nets)
    steps = progress_line(sheet(args.nets, prices), total=count, desc="costs", unit="row")
    rows = [{**row, "priced": args.priced, **machine()} for row in steps]
    each = f"${prices.core_hour} a core-hour, ${prices.gb_sent} a GB sent"
    print(f"{THOUSAND:,} images, prices of {args.priced}: {each}\n")
    print(columns(rows, _SHOWN, left=2))
    if rows[0]["watts_per_core"] is None:
        print("\nno energy: this machine does not show its processor's (RAPL)")
    write_rows(args.json, rows)


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    made = new_parser(__doc__, "scripts.bench.costs")
    made.add_argument("--nets", nargs="+", choices=tuple(CASES), default=list(CASES), help="default: all")
    text = "in dollars: core-hour=X gb-sent=Y"
    made.add_argument("--prices", nargs="+", required=True, metavar="NAME=PRICE", help=text)
    made.add_argument("--priced", required=True, metavar="DATE", help="of the prices, for the rows")
    add_json(made)
    return made


main = main_of(parser, run)


if __name__ == "__main__":
    sys.exit(main())
