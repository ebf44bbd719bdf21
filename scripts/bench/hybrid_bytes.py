"""Rows of scripts/bench/hybrid.py: bytes by formula, Impala's own count and ours, with nothing run.

Impala's Table 6 follows from its Table 4: for each ReLU 128 w bytes offline and 80 w online, for each 2x2 maximum 416 w
and 272 w. Ours are those of every message (hummingbird/hybrid/prices.py). TinyImageNet: the nets of CIFAR-100 on images
of 64x64, with 200 classes; figures of Garimella et al. beside them, from the files of their artifact.
"""

from __future__ import annotations

from collections.abc import Iterator

from hummingbird import cost
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.hybrid import make_plan
from hummingbird.hybrid.gc import cot, relu
from models import get_model
from scripts.bench.hybrid_rows import Row, row

WIDTH, RING = 10, 20
_COUNT = 2048  # whole tiles of ReLUs and whole blocks of transfers
# Megabytes in all, and of a client's store, by who garbles.
_TINY = {"data": (44_030, 8000), "model": (46_690, 40_661)}


def formulas() -> Iterator[Row]:
    """Impala's count of a ReLU, a maximum and its two nets, and ours of a ReLU."""
    for what, relus, pools, paper in (
        ("a ReLU", 1, 0, None),
        ("a 2x2 maximum", 0, 1, None),
        ("CIFAR-10 (paper: with the encrypted layers)", 173_056, 0, 364e6),
        ("MNIST", 2660, 2560, 23.1e6),
    ):
        offline, online = cost.impala(relus, pools, WIDTH)
        yield row(f"Impala, w = {WIDTH}: {what}", "bytes", None, predicted=offline + online, paper=paper)
    for garbler in ("data", "model"):
        tables = relu.Circuit("relu", WIDTH, RING, garbler).table_bytes(_COUNT)
        offline = (tables + cot.message_bytes(_COUNT * WIDTH, garbler == "data")) / _COUNT
        online = sum(cost.garbled_online(_COUNT, WIDTH, RING, garbler)) / _COUNT
        for when, size, paper in (("before the image", offline, 1280), ("with the image", online, 800)):
            what = f"ours, w = {WIDTH}, k' = {RING}, garbler {garbler}: a ReLU, {when}"
            yield row(what, "bytes", None, predicted=size, paper=paper)


def tiny() -> Iterator[Row]:
    """ResNet-18 on TinyImageNet, by the plan, random weights."""
    from scripts.bench.hybrid_nets import predicted

    net, bits = get_model("resnet18", 200, pool="none").eval(), BitConfig.of(BitWindow(20, 10))
    for garbler, (total, stored) in _TINY.items():
        sizes = predicted(make_plan(net, (3, 64, 64), bits, garbler).plan)
        name = f"ResNet-18, TinyImageNet, garbler {garbler}"
        yield row(f"{name}: an image", "MB", None, predicted=sizes["megabytes"], paper=total)
        yield row(f"{name}: its slot, the data's side", "MB", None, predicted=sizes["stored_megabytes"], paper=stored)
