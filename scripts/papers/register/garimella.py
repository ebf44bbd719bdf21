"""Garimella et al.: Figures 3 to 14 and Table 1."""

from __future__ import annotations

from scripts.papers.items import REMADE, Item, Paper

PAPER = Paper(
    name="Garimella et al.",
    source="Garimella, Ghodsi, Jha, Garg, Reagen: Characterizing and Optimizing End-to-End Systems for Private "
    "Inference (ASPLOS 2023)",
    machine="an Intel Atom client and an AMD EPYC server, by the authors' measurements and simulator",
    items=(Item("Figures 3 to 14, Table 1", "the model of the service", REMADE, "", "capacity.md"),),
)
