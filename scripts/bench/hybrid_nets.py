"""Rows of scripts/bench/hybrid.py: whole nets between two processes on this host, a server program and this one.

Session and transformed weights are there before an image is timed. `offline`: a slot is dealt. `online`: an image that
has one. Bytes are those of all messages, both ways.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird.bits import BitConfig, BitWindow
from hummingbird.commands.subject import evaluate
from hummingbird.hybrid import prices
from hummingbird.hybrid.client import RemoteNet
from hummingbird.hybrid.plan import Plan
from hummingbird.simulation.simulate import simulate
from models import trained
from scripts.bench.hybrid_rows import Row, row
from scripts.bench.party import serving
from scripts.bench.relay import relayed
from scripts.program import ROOT, taken
from scripts.train.data import load

_BATCH = 16  # images that a net of plain torch takes at a time
_SHOWN = {
    "": "an image in all",
    "offline": "before it is there",
    "online": "with it",
    "stored": "a slot, the data's side",
}


class Case(NamedTuple):
    """A net of `checkpoints/`, marks for an image, and figures of Impala's paper."""

    model: str
    dataset: str
    weights: str
    bits: str
    marks: dict[str, str]
    paper: dict[str, float]


SHIPPED = (
    Case(
        "impala-mnist",
        "mnist",
        "impala-mnist.pt",
        "impala-mnist.bits.json",
        {"megabytes": "<= 7", "seconds": "<= 0.15", "accuracy": ">= 99.0"},
        {"megabytes": 23.1, "seconds": 0.27, "accuracy": 99.22},
    ),
    Case(
        "impala-cifar10",
        "cifar10",
        "impala-cifar10.pt",
        "impala-cifar10.bits.json",
        {"megabytes": "<= 110", "seconds": "<= 1", "online_seconds": "<= 0.3", "accuracy": ">= 81.7"},
        {"megabytes": 364, "seconds": 3.3, "accuracy": 81.63},
    ),
    Case("resnet18", "cifar10", "resnet18-cifar10.pt", "resnet18-cifar10-cut-9.bits.json", {}, {}),
)
SPARSE = Case("impala-cifar10", "cifar10", "impala-cifar10-sparse.pt", "impala-cifar10-sparse.bits.json", {}, {})
# Name -> words for `models.get_model`, and by who garbles gigabytes of the paper: what its artifact's files for
# CIFAR send, and 3,590 (garbler) or 18,248 (evaluator) bytes for each ReLU at the client.
CHARACTERISED: dict[str, tuple[list[str], dict[str, dict[str, float]]]] = {
    "ResNet-18": (
        ["resnet18", "100", "pool=none"],
        {
            "data": {"megabytes": 11_690, "stored_megabytes": 2000},
            "model": {
                "megabytes": 11_700,
                "stored_megabytes": 10_165,
                "offline_seconds": 236,
                "online_seconds": 29,
            },
        },
    ),
    "ResNet-32": (
        ["resnet32", "100"],
        {
            "data": {"megabytes": 6040, "stored_megabytes": 1088},
            "model": {"megabytes": 6400, "stored_megabytes": 5531},
        },
    ),
    "VGG-16": (
        ["vgg16", "100", "hidden=4096"],
        {
            "data": {"megabytes": 5610, "stored_megabytes": 1022},
            "model": {"megabytes": 5950, "stored_megabytes": 5195},
        },
    ),
}
_MARKS = {
    "megabytes": {"data": "<= 400", "model": "<= 400"},
    "stored_megabytes": {"data": "<= 100", "model": "<= 320"},
    "offline_seconds": {"data": "<= 15", "model": "<= 15"},
    "online_seconds": {"data": "<= 2", "model": "<= 2"},
}


@dataclass(frozen=True)
class Served:
    """A net as `gc-server` is told of it: words of --model, the images' shape, windows, and who garbles."""

    model: list[str]
    shape: tuple[int, ...]
    bits: BitConfig
    garbler: str = "data"
    port: int = 0  # on loopback, for a link that is shaped; 0: a unix socket
    delay: float = 0.0  # each way by a relay on that port, seconds

    @contextmanager
    def net(self) -> Iterator[tuple[RemoteNet, Path]]:
        """The net behind a server of its own, with one thread, and the folder of the data's side."""
        with self.running() as (net, folder, _):
            yield net, folder

    @contextmanager
    def running(self) -> Iterator[tuple[RemoteNet, Path, int]]:
        """The net as in `net`, and the id of the server's process."""
        with tempfile.TemporaryDirectory(prefix="hb") as name:
            folder = Path(name)
            self.bits.save(folder / "bits.json")
            # Behind a relay is a unix socket: what passes would take the shaped loopback's time twice.
            address = f"127.0.0.1:{self.port}" if self.port and not self.delay else f"unix:{folder / 'gc.sock'}"
            words = ["gc-server", "--model", *self.model, "--input", "x".join(map(str, self.shape))]
            words += ["--bits", str(folder / "bits.json"), "--garbler", self.garbler]
            words += ["--store", str(folder / "server"), "--listen", address]
            with serving(words, ready="gc-server listening on ") as (process,):
                with relayed(address, self.delay, self.port) if self.delay else nullcontext(address) as near:
                    with RemoteNet(near, folder / "client") as net:
                        yield net, folder / "client", process.pid


def measure(net: RemoteNet, folder: Path, images: Tensor, repeats: int) -> dict[str, float]:
    """Medians for one image, after one that is not counted: seconds, bytes, and what its slot takes in the store."""
    net.prepare(1)
    net(images[:1])
    before, offline, online, stored = (sent(net.offline), sent(net.online)), [], [], 0
    for number in range(repeats):
        image = images[number % len(images)][None]
        offline.append(taken(lambda: net.prepare(1)))
        stored = sum(path.stat().st_size for path in folder.glob("slot-*"))
        online.append(taken(lambda image=image: net(image)))  # type: ignore[misc]
    return {
        "offline_seconds": statistics.median(offline),
        "online_seconds": statistics.median(online),
        "offline_megabytes": (sent(net.offline) - before[0]) / repeats / 1e6,
        "online_megabytes": (sent(net.online) - before[1]) / repeats / 1e6,
        "stored_megabytes": stored / 1e6,
    }


def sent(count: Counter[str]) -> int:
    """Bytes of all messages but the openings, which name the session and the release."""
    return count.total() - count["opening"]


def predicted(plan: Plan) -> dict[str, float]:
    """Megabytes of an image whose slot is dealt by a call of its own, and what its slot takes at the data's side."""
    offline, online = sum({**prices.offline(plan), **prices.call()}.values()), sum(prices.online(plan).values())
    found = {"": offline + online, "offline_": offline, "online_": online, "stored_": prices.stored(plan)[0]}
    return {f"{key}megabytes": size / 1e6 for key, size in found.items()}


def figures(
    name: str,
    found: dict[str, float],
    expected: dict[str, float],
    marks: dict[str, str],
    paper: dict[str, float],
) -> Iterator[Row]:
    """Rows of a net's measurement, and of its sums."""
    total = {
        "seconds": found["offline_seconds"] + found["online_seconds"],
        "megabytes": found["offline_megabytes"] + found["online_megabytes"],
    }
    units = {"seconds": "s", "megabytes": "MB"}
    for key, value in {**total, **found}.items():
        what, _, unit = key.rpartition("_")
        named = f"{name}: {_SHOWN[what]}"
        beside = {"predicted": expected.get(key), "paper": paper.get(key)}
        yield row(named, units[unit], value, mark=marks.get(key, ""), **beside)


def shipped(data: str | None, count: int, repeats: int, port: int = 0, delay: float = 0.0) -> Iterator[Row]:
    """The nets of `checkpoints/`: accuracy of `count` private images, and what one takes. port, delay: of `Served`."""
    for case in SHIPPED:
        images, labels = (x[: max(count, 1)] for x in load(case.dataset, "test", data))
        bits = BitConfig.load(ROOT / "checkpoints" / case.bits)
        words = ["models:trained", case.model, "10", f"checkpoints/{case.weights}"]
        with Served(words, tuple(images.shape[1:]), bits, port=port, delay=delay).net() as (net, folder):
            found = measure(net, folder, images, repeats)
            yield from figures(case.weights, found, predicted(net.plan), case.marks, case.paper)
            yield row(f"{case.weights}: an image that has a slot", "round trips", len(net.plan.gates) + 1)
            right = int((net(images).argmax(1) == labels).sum())
        paper, mark = case.paper.get("accuracy"), case.marks.get("accuracy", "")
        yield row(f"{case.weights}: private images", "% right", 100 * right / len(images), mark=mark, paper=paper)


def accuracy(data: str | None, count: int) -> Iterator[Row]:
    """Percent right of the first `count` test images: the nets themselves, and as cut, by the plaintext twin."""
    for case in (*SHIPPED, SPARSE):
        images, labels = (x[:count] for x in load(case.dataset, "test", data))
        net = trained(case.model, 10, str(ROOT / "checkpoints" / case.weights))
        bits = BitConfig.load(ROOT / "checkpoints" / case.bits)
        plain = 100 * evaluate(net, images, labels, batch=_BATCH)
        yield row(f"{case.weights}: in the clear", "% right", plain)
        name = f"{case.weights}: as cut by {case.bits}"
        mark = case.marks.get("accuracy", f">= {plain - 0.5:.2f}")
        cut = 100 * evaluate(simulate(net, bits, cut=True), images, labels, batch=_BATCH)
        yield row(name, "% right", cut, mark=mark)
        if case.model == "resnet18":
            wider = replace(bits, layers={name: BitWindow(w.k, w.k - 10) for name, w in bits.layers.items()})
            cut = 100 * evaluate(simulate(net, wider, cut=True), images, labels, batch=_BATCH)
            yield row(f"{case.weights}: as cut to 10 bits", "% right", cut, mark=mark)


def characterised(repeats: int, port: int = 0, delay: float = 0.0) -> Iterator[Row]:
    """The nets of Garimella et al. for CIFAR-100, random weights, with either garbler."""
    bits = BitConfig.of(BitWindow(20, 10))
    for name, (words, paper) in CHARACTERISED.items():
        for garbler in ("data", "model"):
            marks = {key: value[garbler] for key, value in _MARKS.items()} if name == "ResNet-18" else {}
            served = Served(["models:get_model", *words], (3, 32, 32), bits, garbler, port, delay)
            with served.net() as (net, folder):
                found = measure(net, folder, torch.randn(1, 3, 32, 32).clamp(-4, 4), repeats)
                expected = predicted(net.plan)
            yield from figures(f"{name}, garbler {garbler}", found, expected, marks, paper[garbler])
