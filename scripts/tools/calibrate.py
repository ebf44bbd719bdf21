"""This machine's speed at private inference, as a profile that `python -m hummingbird plan` reads.

    python -m scripts.tools.calibrate --json profile.json
    python -m scripts.tools.calibrate --json profile.json --model models:get_model resnet18 10 --input 1x3x32x32
    python -m scripts.tools.calibrate --only he --json profile.json
    python -m scripts.tools.calibrate --only serve --json profile.json

Slices of small nets by `masked` and `gmw` (what a party computes, the seeds that it expands, what a dealer deals) and
by CrypTen as shipped (what one of two parties computes, and its provider), turns of nets on ciphertexts, passes of
servers for private lookups, and garbled ReLUs: each several times, every sample kept, with how much work is in it. A
planned net is composed of these; one that is named here is measured itself, which is exact. No link is involved: a plan
is told of one. `--only serve` measures whole services on this host, which `bench_serve --predict` puts to the test.
Leave the machine alone meanwhile: what else runs on it is in the figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from hummingbird import convert_model, graph, he
from hummingbird.bits import EXACT, BitWindow
from hummingbird.capacity import encrypted, lookups, shipped
from hummingbird.capacity.nets import measure, samples
from hummingbird.capacity.profile import STEADY, Measurement, Profile, spread
from hummingbird.channel import meter
from hummingbird.commands.estimate import add_arguments, encrypted_net, planned, private_net
from hummingbird.commands.output import check_outputs, write_together
from hummingbird.commands.program import machine
from hummingbird.crypten.adapter import crypten
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.hybrid.gc import relu
from hummingbird.pir.batching.batch_code import BatchCode
from hummingbird.pir.batching.cost_model import price
from hummingbird.progress import progress_line
from hummingbird.rpc.options import count
from hummingbird.table import text_table
from scripts.bench.crypten_baseline import infer, start
from scripts.bench.garble import Inputs
from scripts.bench.link import Link, places
from scripts.bench.party import launch
from scripts.bench.serve_reality import calibrated_rows
from scripts.program import main_of, new_parser
from search.pir_speed import asked
from search.pir_timed import answer_together

SECTIONS, SERVICES = ("mpc", "crypten", "he", "pir", "gc"), "serve"
_WINDOWS = {"[20:12)": BitWindow(20, 12), "[18:0)": BitWindow(18, 0), "exact": EXACT}
_PROTOCOLS = ("masked", "gmw")
_MOST = 1 << 29  # bits of a slice's material: two parties that make more of it would take minutes for all samples


def _nets() -> Iterator[tuple[str, nn.Module, tuple[int, ...]]]:
    """Nets by name, with the shape of a slice: each kind of work in several sizes, alone and together."""
    for size in (1 << 10, 1 << 14, 1 << 18):
        yield f"relu {size}", nn.ReLU(), (1, size)
    for channels, side in ((16, 32), (64, 16), (128, 8)):
        conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        yield f"convolution {channels}x{side}x{side}", conv, (1, channels, side, side)
    yield "linear 1024 512", nn.Linear(1024, 512), (16, 1024)
    for depth in (4, 12):
        layers = list[nn.Module]()
        for _ in range(depth // 4):
            layers += [nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32)]
            layers.append(nn.ReLU())
        yield f"{depth // 4} blocks 32x16x16", nn.Sequential(*layers), (1, 32, 16, 16)
    head = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(32 * 15 * 15, 10))
    yield "a small net, 4 images", head, (4, 3, 32, 32)


def _mpc(repeats: int) -> Iterator[Measurement]:
    """A row for each net, window, protocol and maker of material; nets without a ReLU have no window.

    Material of more than `_MOST` bits is left out.
    """
    for name, net, shape in _nets():
        windows = _WINDOWS if any(isinstance(part, nn.ReLU) for part in net.modules()) else {"": EXACT}
        for title, window in windows.items():
            for protocol, aim in itertools.product(_PROTOCOLS, ("latency", "pair", "pair:silent")):
                private = convert_model(net.eval(), window, protocol=protocol, aim=aim)
                if sum(step.cost.offline_bits for step in private.costs(shape, 2)) > _MOST and aim != "latency":
                    continue
                yield measure(f"{name} {title}".strip(), private, shape, repeats=repeats)


def _gc(repeats: int) -> Iterator[Measurement]:
    """Garbled ReLUs, garbled by the side of the data; an AND has two blocks."""
    for width, ring in ((8, 20), (16, 32), (24, 32)):
        circuit, number = relu.Circuit("relu", width, ring, "data"), 1 << 13
        x = Inputs(number, width, ring)
        head = (circuit, x.key, 0)
        garbling = partial(relu.garble, *head, x.delta, x.labels, x.shares, x.masks)
        evaluating = partial(relu.evaluate, *head, x.held, garbling())
        seconds = {"garble": samples(garbling, repeats), "evaluate": samples(evaluating, repeats)}
        amounts = {"and_gates": number * circuit.blocks / 2, "instances": float(number)}
        yield Measurement("gc", f"{circuit}", "", amounts, seconds)


def _pir(repeats: int) -> Iterator[Measurement]:
    """Seconds of an inference in a server's passes over tables, for one client and for several."""
    for size, width, clients in itertools.product((1 << 12, 1 << 16, 1 << 20), (64, 256), (1, 8)):
        for buckets, keys in ((1, 8), (8, 2), (32, 1)):
            code = BatchCode(size, buckets, 1, keys)
            server, queries = asked(code, width, clients, "aes")
            times = samples(partial(answer_together, server, queries), repeats)
            name = f"{size} rows of {width} B, {code.keys} keys, {clients} client(s)"
            work = lookups.amounts(price([code], width), clients)
            yield Measurement(lookups.KIND, name, "", work, {"answer": tuple(seconds / clients for seconds in times)})


def crypten_rows(nets: Iterable[tuple[str, nn.Module, Sequence[int]]], repeats: int, threads: int) -> list[Measurement]:
    """A row of CrypTen for each net, at one of two parties: both call this, in processes with torchrun's variables.

    A party's seconds are those of a batch less those for which it waits, and less those of the provider, which are
    apart. HummingbirdError for a run that sends other bits, or in other rounds, than the price says.
    """
    start()
    torch.set_num_threads(threads)
    return [_crypten_row(name, net.eval(), tuple(shape), repeats) for name, net, shape in nets]


def _crypten_row(name: str, net: nn.Module, shape: tuple[int, ...], repeats: int) -> Measurement:
    private, steps = convert_model(net), graph.trace(net)
    expected = shipped.cost(private, shape)
    seconds: dict[str, list[float]] = {"compute": [], "triples": []}
    with crypten.no_grad():
        shared = crypten.cryptensor(torch.zeros(shape), src=0)
        for repeat in range(repeats + 1):
            crypten.communicator.get().barrier()
            with meter.meter() as m:
                started = time.perf_counter()
                infer(steps, shared)
                taken = time.perf_counter() - started
            total = m.total
            check_price(name, (total.rounds, total.bits_sent), (expected.rounds, expected.bits))
            if repeat:
                seconds["compute"].append(taken - total.wait_seconds - total.offline_seconds)
                seconds["triples"].append(total.offline_seconds)
    kept = {part: tuple(samples) for part, samples in seconds.items() if min(samples) > 0}
    return Measurement(shipped.KIND, name, shipped.digest(private, shape), shipped.amounts(private, shape), kept)


def check_price(name: str, counted: tuple[int, int], priced: tuple[int, int]) -> None:
    """HummingbirdError unless the rounds and bits that were counted are those of the price."""
    if counted != priced:
        raise HummingbirdError(f"{counted} rounds and bits, the price is {priced}", where=name)


def _crypten(args: argparse.Namespace) -> Iterator[Measurement]:
    """Rows of two parties' processes on this host."""
    options = ["--repeats", str(args.repeats), "--threads", str(args.threads), "--only"]
    options += ["crypten"] if "crypten" in args.only else []
    if args.protocol == "crypten":
        options += ["--input", "x".join(map(str, args.input))]
        options += ["--saved", args.saved] if args.saved else ["--model", *args.model]
        options += ["--weights", str(args.weights)] if args.weights else []
    with places(Link(), shipped.PARTIES) as where:
        for found in launch(where, "scripts.tools.calibrate", ["--worker", *options]):
            yield Measurement(
                **{**found, "seconds": {part: tuple(samples) for part, samples in found["seconds"].items()}}
            )


def _work(args: argparse.Namespace) -> None:
    """Measure at one party of CrypTen; party 0 writes the rows."""
    nets = list(_nets()) if "crypten" in args.only else []
    if args.model or args.saved:
        nets.append(("the net", planned(args)[0], args.input))
    found = [asdict(row) for row in crypten_rows(nets, args.repeats, args.threads)]
    if os.environ["RANK"] == "0":
        args.result.write_text(json.dumps(found))


_Nets = dict[str, tuple[nn.Module, tuple[int, ...]]]


class _Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


def _aided() -> _Nets:
    """Nets whose client computes the activations: each linear layer is a turn of its own."""
    conv = nn.Sequential(nn.Conv2d(1, 5, 5, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(845, 100))
    deep = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.AvgPool2d(7))
    return {
        "linear 64 10": (nn.Linear(64, 10), (64,)),
        "linear 512 256": (nn.Linear(512, 256), (512,)),
        "convolution 1x28x28, ReLU, linear": (conv, (1, 28, 28)),
        "two convolutions 8x16x16": (deep, (8, 16, 16)),
        "convolution 16x8x8, 16 groups": (nn.Conv2d(16, 16, 3, padding=1, groups=16), (16, 8, 8)),
    }


def _polynomial() -> _Nets:
    """Nets of sums and products: one turn each."""

    def layers(*sizes: int) -> nn.Module:
        linear = [nn.Linear(one, other) for one, other in zip(sizes, sizes[1:], strict=False)]
        return nn.Sequential(*[layer for each in linear for layer in (each, _Square())][:-1])

    conv = nn.Sequential(nn.Conv2d(1, 4, 5, stride=2), _Square(), nn.Flatten(), nn.Linear(144, 10))
    return {
        "linear 64 10": (layers(64, 10), (64,)),
        "linear 256 64": (layers(256, 64), (256,)),
        "linear 64 64 10, a square": (layers(64, 64, 10), (64,)),
        "linear 16 128 16, a square": (layers(16, 128, 16), (16,)),
        "linear 64 32 16, two squares": (layers(64, 32, 16, 10), (64,)),
        "convolution 1x16x16, square, linear": (conv, (1, 16, 16)),
    }


def _he(repeats: int) -> Iterator[Measurement]:
    """A row for each turn of each net, for a batch of one image and for a full one."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nets = {"client-aided": _aided(), "polynomial": _polynomial()}
    for mode, listed in nets.items():
        for name, (net, shape) in listed.items():
            plan = he.make_plan(net.eval(), shape, mode)
            for images in (1, plan.public.slots):
                yield from encrypted.measure(f"{name}, {images} image(s)", plan, images, repeats)


def rows(args: argparse.Namespace) -> Iterator[Measurement]:
    """All rows that are asked for."""
    if "mpc" in args.only:
        yield from _mpc(args.repeats)
    if "crypten" in args.only or args.protocol == "crypten":
        yield from _crypten(args)
    if "he" in args.only:
        yield from _he(args.repeats)
    if "gc" in args.only:
        yield from _gc(args.repeats)
    if "pir" in args.only:
        yield from _pir(args.repeats)
    if SERVICES in args.only:
        yield from calibrated_rows(max(1, args.repeats // 4))
    if args.protocol == "he":
        yield from encrypted.measure("the net", encrypted_net(args).plan, args.input[0], args.repeats)
    elif (args.model or args.saved) and args.protocol != "crypten":
        yield measure("the net", private_net(args), args.input, args.parties, args.repeats)


def run(args: argparse.Namespace) -> None:
    """Measure, print medians and spreads, write the profile."""
    if args.worker:
        return _work(args)
    if (args.model or args.saved) and args.input is None:
        raise InputError("a net without a shape", where="--input", hint="of one slice, as in 1x3x32x32")
    if args.protocol in ("he", "crypten") and not (args.model or args.saved):
        what = f"--protocol {args.protocol} without a net"
        raise InputError(what, where="--model", hint="MODULE:FUNCTION, and --input")
    if args.json is None:
        raise InputError("no file to write", where="--json", hint="--json profile.json")
    if args.mode and args.protocol != "he":
        raise InputError("--mode without --protocol he", where="--mode", hint="leave it out, or add --protocol he")
    check_outputs(args)
    torch.set_num_threads(args.threads)
    with progress_line(rows(args), desc="calibration", unit="row") as bar, torch.no_grad():
        profile = Profile(machine(), args.threads, tuple(bar))
    print(text_table(("kind", "work", "part", "median ms", "spread"), list(_cells(profile)), left=3))
    print(judged(profile))
    write_together({args.json: profile.to_text().encode()})


def _cells(profile: Profile) -> Iterator[tuple[str, ...]]:
    for row in profile.rows:
        for part, seconds in row.seconds.items():
            middle = statistics.median(seconds)
            yield row.kind, row.name, part, f"{1e3 * middle:,.3f}", f"{100 * spread(seconds):.0f} %"


def judged(profile: Profile) -> str:
    """Whether the samples of each part agree; those of services vary by themselves (serve_calibrate.py)."""
    parts = [(row.name, seconds) for row in profile.rows if row.kind != SERVICES for seconds in row.seconds.values()]
    wide = [name for name, seconds in parts if spread(seconds) > STEADY]
    what = f"spread: of the middle half of the samples; above {100 * STEADY:.0f} % it is no measurement"
    if not wide:
        return what
    names = ", ".join(dict.fromkeys(wide[:3])) + (" and others" if len(wide) > 3 else "")
    found = f"{what}: {len(wide)} of {len(parts)} are above ({names})"
    return f"{found}\nhint: calibrate again while nothing else runs here"


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = new_parser(__doc__)
    p.add_argument("--json", type=Path, metavar="FILE", help="the profile (needed)")
    text = f"default: {' '.join(SECTIONS)}"
    p.add_argument("--only", nargs="*", choices=(*SECTIONS, SERVICES), default=list(SECTIONS), help=text)
    p.add_argument("--repeats", type=count, default=20, metavar="N", help="samples of each (default: %(default)s)")
    text = "of each party, dealer and server (default: %(default)s)"
    p.add_argument("--threads", type=count, default=1, metavar="N", help=text)
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    add_arguments(p, "shape of a slice of the net, or of a batch", required=False, encrypted=True)
    return p


main = main_of(parser, run)


if __name__ == "__main__":
    sys.exit(main())
