"""HummingBird: Tables 1 to 3, Figures 1, 3 and 7 to 12."""

from __future__ import annotations

from typing import Any

from scripts.bench.common import CRYPTEN
from scripts.papers.items import IN_KIND, NOT, REMADE, Item, Line, Paper

_NET = {"kind": "accuracy", "net": "resnet18-cifar10"}


def _accuracy(setting: str, paper: str) -> Line:
    where = {**_NET, "setting": setting}
    return Line(f"ResNet-18, CIFAR-10, {setting}: %", paper, "windows", where, "accuracy_percent", "{:.2f}")


def _search(setting: str) -> Line:
    where: dict[str, Any] = {**_NET, "kind": "search", "setting": setting}
    return Line(f"ResNet-18, CIFAR-10, {setting}: seconds", "270 to 336 (A100)", "windows", where, "seconds", "{:,.0f}")


def _row(link: str, window: str, protocol: str = "masked") -> dict[str, Any]:
    if protocol == "crypten":
        return {"link": link, "protocol": CRYPTEN}
    if protocol == "published":
        return {"link": link, "window": window, "protocol": protocol}
    aim = {"material": "streamed", "aim": "throughput"}
    return {"link": link, "window": window, "protocol": protocol, **aim}


def _faster(link: str, window: str, paper: str, protocol: str = "masked") -> Line:
    by = "as published" if protocol == "published" else "masked, dealer online"
    what = f"ResNet-18, {window}, {link}: times faster than CrypTen, {by}"
    return Line(what, paper, "resnet", _row(link, window, protocol), "speedup_total", "{:.1f}")


def _parts(link: str) -> tuple[Line, ...]:
    form, names = (
        "{:,.1f}",
        {"seconds_per_image": "ms an image", "wire_seconds_per_image": "of it waiting for messages"},
    )
    return tuple(
        Line(f"ResNet-18, {link}, {who}: {what}", "-", "resnet", where, key, form, 1e3)
        for who, where in (("CrypTen", _row(link, "", "crypten")), ("[20:12)", _row(link, "[20:12)")))
        for key, what in names.items()
    )


_LINKS = ("loopback", "10 Gb/s", "352 Mb/s")


PAPER = Paper(
    name="HummingBird",
    source="Maeng, Suh: Approximating ReLU on a Reduced Ring for Efficient MPC-based Private Inference (2023)",
    machine="two NVIDIA A100 or V100; CrypTen",
    items=(
        Item(
            "Table 1",
            "accuracy by window: six nets",
            IN_KIND,
            "ResNet-18 on CIFAR-10 with the nets shipped here, and on a split of its own of CIFAR-100; ResNet-50 has "
            "not been trained here; Tiny-ImageNet's training half is not at hand",
            "windows.md#accuracy-tables-1-and-3-figure-7",
            (
                _accuracy("exact", "92.78"),
                _accuracy("eco", "92.78"),
                _accuracy("8/64", "0.3 below exact"),
                _accuracy("6/64", "90.09"),
            ),
        ),
        Item(
            "Table 2",
            "seconds of a search",
            IN_KIND,
            "one of six nets, on two cores in place of an A100",
            "windows.md#search-time-table-2",
            (_search("8/64"), _search("6/64")),
        ),
        Item(
            "Table 3",
            "accuracy after fine-tuning with windows in place",
            IN_KIND,
            "one of six nets, by files that are not shipped; on the windows found by today's search it does not help",
            "windows.md#accuracy-tables-1-and-3-figure-7",
        ),
        Item(
            "Figure 1",
            "images a second of ResNet-18, 512 images",
            NOT,
            "two GPUs; no machine with a GPU measured it",
            "gpu.md",
        ),
        Item(
            "Figure 3",
            "the communication of a ReLU by part",
            REMADE,
            "",
            "",
            tuple(
                Line(
                    f"CrypTen, {name}, % of the bits",
                    paper,
                    "relu-parts",
                    {"protocol": CRYPTEN, "window": "[64:0)"},
                    f"{part}_percent",
                    "{:.2f}",
                )
                for part, name, paper in (
                    ("circuit", "the adder's tree", "82.8"),
                    ("others", "the AND before it", "6.9"),
                    ("product", "the product", "6.9"),
                    ("b2a", "the sign bit's sharing", "3.45"),
                )
            ),
        ),
        Item(
            "Figures 7 and 9",
            "times faster than CrypTen, by net, window and link",
            IN_KIND,
            "ResNet-18 on two cores in place of two GPUs, with one window for all layers",
            "benchmarks.md",
            (
                *(
                    _faster(link, window, paper, protocol)
                    for window, paper in (
                        ("[24:0)", "1.8 to 3.0 (eco, A100s)"),
                        ("[20:12)", "3.7 to 6.9 (8/64, A100s)"),
                    )
                    for link in _LINKS
                    for protocol in ("published", "masked")
                ),
            ),
        ),
        Item("Figure 8", "the same on V100s", NOT, "no machine with a GPU measured it", "gpu.md"),
        Item(
            "Figure 10",
            "computation and communication, before and after",
            IN_KIND,
            "ResNet-18 on two cores; benchmarks.md has the stages",
            "benchmarks.md",
            (*_parts("loopback"), *_parts("352 Mb/s")),
        ),
        Item(
            "Figure 11",
            "accuracy against bits kept",
            IN_KIND,
            "one of six nets",
            "windows.md#accuracy-tables-1-and-3-figure-7",
        ),
        Item("Figure 12", "the windows of each layer", IN_KIND, "one of six nets", "windows.md#windows-figure-12"),
        Item(
            "Section 5.4",
            "one window for all layers loses more than 8 points at the same budget",
            IN_KIND,
            "the claim does not hold here: ResNet-18 on CIFAR-10 loses 0.1 points at 8 bits, 0.7 at 6 and 5.8 at 4",
            "windows.md#accuracy-tables-1-and-3-figure-7",
            (
                _accuracy("uniform 8/64", "more than 8 points below exact"),
                _accuracy("uniform 6/64", "more than 8 points below exact"),
            ),
        ),
    ),
)
