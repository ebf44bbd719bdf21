"""Impala: Tables 2 to 6."""

from __future__ import annotations

from scripts.papers.items import IN_KIND, NOT, Item, Line, Paper


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
        Line(f"a ReLU, {what}: bytes of its tables", "-", "garbling", where, "bytes_each", "{:.0f}"),
    )


def _net(name: str, what: str, key: str, paper: str, form: str) -> Line:
    return Line(f"{name}: {what}", paper, "hybrid-images", {"section": "images", "what": key}, "measured", form)


PAPER = Paper(
    name="Impala",
    source="Choi et al.: Impala: Low-Latency, Communication-Efficient Private Deep Learning Inference (2022)",
    machine="the authors' user, cloud and proxy",
    items=(
        Item(
            "Table 2",
            "linear layers",
            IN_KIND,
            "one of three sizes",
            "two-party.md#what-it-costs",
            _layer("linear, 4096 to 1024", "510"),
        ),
        Item(
            "Table 3",
            "convolutions",
            IN_KIND,
            "two of three sizes",
            "two-party.md#what-it-costs",
            (*_layer("32x32x32, 3x3, 32", "920"), *_layer("16x16x128, 3x3, 128", "3,680")),
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
            "nets of the paper's shape trained here; without the proxy; other systems' figures stay in the paper",
            "two-party.md#what-it-costs",
        ),
        Item("Table 6, sparse nets", "nets pruned and faster by skipping zeros", NOT, "not measured yet"),
    ),
)
