"""Impala: Tables 2 to 6."""

from __future__ import annotations

from scripts.papers.items import IN_KIND, Item, Line, Paper


def _layer(name: str, paper: str) -> tuple[Line, ...]:
    where = {"section": "layers", "what": f"layer {name}"}
    return (
        Line(f"{name}: ms, both sides, before the image", paper, "hybrid-parts", where, "measured", "{:,.1f}"),
        Line(
            f"{name}: kB, both messages",
            "-",
            "hybrid-parts",
            {"section": "layers", "what": f"layer {name}: both messages"},
            "measured",
            "{:,.0f}",
            1e-3,
        ),
    )


def _circuit(circuit: str, what: str, paper: str = "-") -> tuple[Line, ...]:
    where = {"circuit": circuit, "instructions": "avx2"}
    return (
        Line(f"10,000 ReLUs, {what}: ms to garble", paper, "garbling", where, "garble_ms", "{:.2f}"),
        Line(
            f"10,000 ReLUs, {what}: ms to evaluate",
            "50" if paper != "-" else "-",
            "garbling",
            where,
            "evaluate_ms",
            "{:.2f}",
        ),
        Line(f"a ReLU, {what}: bytes of its tables", "-", "garbling", where, "bytes_each", "{:.1f}"),
    )


def _net(name: str, weights: str, seconds: str, megabytes: str, right: str) -> tuple[Line, ...]:
    lines = [
        Line(
            f"{name}: {unit} an image, {said}",
            paper,
            "hybrid-images",
            _image(weights, what, unit),
            "measured",
            "{:.3g}",
        )
        for unit, sums in (("s", seconds), ("MB", megabytes))
        for said, what, paper in (
            ("before it is there", "before it is there", "-"),
            ("with it", "with it", "-"),
            ("in all", "an image in all", sums),
        )
    ]
    cut = {"section": "accuracy", "what": f"{weights}: as cut by {weights.removesuffix('.pt')}.bits.json"}
    lines.append(Line(f"{name}: % right of 10,000", right, "hybrid-accuracy", cut, "measured", "{:.2f}"))
    return tuple(lines)


def _proxied(name: str, net: str) -> tuple[Line, ...]:
    return tuple(
        Line(f"{name}, through the proxy, {sent}: {what}", "-", "hybrid-proxy", {"net": net, "input": kind}, key, form)
        for kind, sent in (("shares", "image masked"), ("switched", "image encrypted"))
        for what, key, form in (
            ("s with the image", "seconds", "{:.3g}"),
            ("s of the user's core", "user_cpu_seconds", "{:.2g}"),
            ("MB that the user sends", "megabytes_sent", "{:.3g}"),
            ("right of 20", "right", "{:.0f}"),
        )
    )


def _image(weights: str, what: str, unit: str) -> dict[str, str]:
    return {"section": "images", "what": f"{weights}: {what}", "unit": unit}


_PARTS = (
    "products {}, any weights, an image of 1",
    "products {}, any weights, an image of 14",
    "taps {}, 0% zeros, an image of 14",
    "taps {}, 90% zeros, an image of 14",
)


def _part(what: str) -> Line:
    name = what.format("16x16x128, 3x3, 128")
    where = {"section": "layers", "what": f"{name}: the server's whole part"}
    return Line(f"{name}, ms", "-", "hybrid-parts", where, "measured", "{:,.1f}")


_WAYS = ("dense, by products", "90 % zeros, by products", "90 % zeros, by taps")


def _sparse(way: str, when: str) -> Line:
    where = {"section": "sparse", "what": f"impala-cifar10, {way}: {when}", "unit": "s of a core"}
    return Line(f"CIFAR-10, {way}: {when}, s of a core", "-", "hybrid-sparse", where, "measured", "{:.2f}")


PAPER = Paper(
    name="Impala",
    source="Choi et al.: Impala: Low-Latency, Communication-Efficient Private Deep Learning Inference (2022)",
    machine="the authors' user, cloud and proxy",
    items=(
        Item(
            "Table 2",
            "linear layers",
            IN_KIND,
            "one core; the paper counts rotation keys that are there already",
            "two-party.md#sparse-nets",
            (
                *_layer("linear, 256 to 128", "from 5"),
                *_layer("linear, 1024 to 128", "-"),
                *_layer("linear, 4096 to 1024", "510"),
            ),
        ),
        Item(
            "Table 3",
            "convolutions",
            IN_KIND,
            "one core",
            "two-party.md#sparse-nets",
            (
                *_layer("32x32x32, 3x3, 32", "920"),
                *_layer("16x16x128, 3x3, 128", "3,680"),
                *_layer("64x64x64, 3x3, 64", "38,000"),
            ),
        ),
        Item(
            "Sparse convolutions",
            "the server's part by taps, with and without zeros, and by products",
            IN_KIND,
            "one layer, 16x16x128, 3x3, 128; one core",
            "two-party.md#sparse-nets",
            tuple(_part(what) for what in _PARTS),
        ),
        Item(
            "Table 4",
            "garbled ReLUs: seconds and bytes",
            IN_KIND,
            "one core; the circuit here is smaller, and the paper's circuit is timed beside it",
            "two-party.md#what-it-costs",
            (
                *_circuit("relu, garbler data", "the circuit here", "450"),
                *_circuit("three adders", "the paper's circuit, garbled here"),
            ),
        ),
        Item(
            "Tables 5 and 6",
            "MNIST and CIFAR-10: accuracy, seconds, bytes, beside other systems",
            IN_KIND,
            "nets of the paper's shape trained here; other systems' figures stay in the paper",
            "two-party.md#what-it-costs",
            (
                *_net("MNIST", "impala-mnist.pt", "0.27", "23.1", "99.22"),
                *_net("CIFAR-10", "impala-cifar10.pt", "3.3", "364", "81.63"),
                *_proxied("MNIST", "impala-mnist"),
                *_proxied("CIFAR-10", "impala-cifar10"),
                *_proxied("ResNet-18, CIFAR-10", "resnet18"),
            ),
        ),
        Item(
            "Table 6, sparse nets",
            "nets pruned, and faster by skipping zeros",
            IN_KIND,
            "the CIFAR-10 net with 90 % zeros; seconds of a core of both sides, without the proxy",
            "two-party.md#sparse-nets",
            tuple(_sparse(way, when) for way in _WAYS for when in ("before it is there", "with it", "an image in all")),
        ),
    ),
)
