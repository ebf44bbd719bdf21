"""Garimella et al.: Table 1, Figures 3 to 14 and claims of the text, all by the model of docs/capacity.md."""

from __future__ import annotations

from scripts.papers.items import IN_KIND, NOT, REMADE, Item, Paper

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

PAPER = Paper(
    name="Garimella et al.",
    source="Garimella, Ghodsi, Jha, Garg, Reagen: Characterizing and Optimizing End-to-End Systems for Private "
    "Inference (ASPLOS 2023)",
    machine="an Intel Atom client and an AMD EPYC server, which the figures here model (`python -m "
    "scripts.papers.asplos`); the page has the deviation of each",
    items=(
        *(Item(name, title, REMADE, "", f"capacity.md#{anchor}") for name, (title, anchor) in _REMADE.items()),
        Item("Figure 6", "a chart without published numbers", NOT, "neither the artifact nor its formulas have one"),
        Item("Text, ImageNet", "ResNet-50", IN_KIND, "composed of its layers", "capacity.md#resnet-50-imagenet"),
    ),
)
