"""Garimella et al.: Table 1, Figures 3 to 14 and claims of the text, all by the model of docs/capacity.md."""

from __future__ import annotations

from scripts.papers.items import IN_KIND, NOT, REMADE, Item, Line, Paper

_REMADE = {
    "Table 1": ("a request's seconds by GC, HE, SS and the link", "table-1-one-request-of-the-baseline"),
    "Figure 3": ("the client's store by net", "figure-3-the-clients-store"),
    "Figure 4": ("minutes of computing by net", "figure-4-computing"),
    "Figure 5": ("minutes on the link by its rate", "figure-5-the-link"),
    "Figure 7": ("latency against the rate, in parts", "figure-7-latency-against-the-rate-in-parts"),
    "Figure 8": ("the client's store, by who garbles", "figure-8-the-clients-store-by-who-garbles"),
    "Figure 9": ("layers side by side", "figure-9-layers-side-by-side-lphe"),
    "Figure 10": ("refills or layers side by side", "figure-10-refills-or-layers-side-by-side"),
    "Figure 11": ("the division of the link", "figure-11-sweep-of-the-division-of-the-link-wsa"),
    "Figure 12": ("rates that are sustained, six nets", "figure-12-rates-that-are-sustained"),
    "Figure 13": ("faster clients and servers", "figure-13-faster-machines"),
    "Figure 14": ("faster primitives", "figure-14-what-faster-primitives-would-give"),
    "Text, 1.8 times": ("the proposal's speedup in all", "speedup-the-proposal-in-all"),
    "Text, 1.25 J": ("the client's energy", "energy-the-clients-circuits"),
    "Text, 10 TB": ("the server's store", "store-the-servers"),
    "Text, clients": ("several clients of one server", "clients-several-of-one-server"),
}

# The artifact's files: MB in all, and of the client's store, by who garbles.
_SERVED = {
    ("ResNet-18", "data"): ("11,690", "2,000"),
    ("ResNet-18", "model"): ("11,700", "10,165"),
    ("ResNet-32", "data"): ("6,040", "1,088"),
    ("ResNet-32", "model"): ("6,400", "5,531"),
    ("VGG-16", "data"): ("5,610", "1,022"),
    ("VGG-16", "model"): ("5,950", "5,195"),
}


def _served(net: str, garbler: str) -> tuple[Line, ...]:
    size, store = _SERVED[net, garbler]
    return tuple(
        Line(
            f"{net}, CIFAR-100, garbler {garbler}: {said}, {unit}",
            paper,
            "hybrid-nets",
            {"section": "characterised", "what": f"{net}, garbler {garbler}: {what}", "unit": unit},
            "measured",
            "{:,.3g}",
        )
        for said, what, unit, paper in (
            ("an image in all", "an image in all", "MB", size),
            ("the client's store", "a slot, the data's side", "MB", store),
            ("before the image", "before it is there", "s", "-"),
            ("with it", "with it", "s", "-"),
        )
    )


PAPER = Paper(
    name="Garimella et al.",
    source="Garimella, Ghodsi, Jha, Garg, Reagen: Characterizing and Optimizing End-to-End Systems for Private "
    "Inference (ASPLOS 2023)",
    machine="an Intel Atom client and an AMD EPYC server, which the figures here model (`python -m "
    "scripts.papers.asplos`); the page has the deviation of each",
    items=(
        *(Item(name, title, REMADE, "", f"capacity.md#{anchor}") for name, (title, anchor) in _REMADE.items()),
        Item("Figure 6", "a chart without published numbers", NOT, "neither the artifact nor its formulas have one"),
        Item(
            "Artifact",
            "bytes of a request, and of what the client stores for it",
            IN_KIND,
            "gc-server and a client on one host, random weights; the circuits and the packing here are smaller",
            "two-party.md#what-it-costs",
            tuple(line for net, garbler in _SERVED for line in _served(net, garbler)),
        ),
        Item("Text, ImageNet", "ResNet-50", IN_KIND, "composed of its layers", "capacity.md#resnet-50-imagenet"),
    ),
)
