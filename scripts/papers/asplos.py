"""Writes docs/capacity.md: every table and figure of Garimella et al. (ASPLOS 2023) remade, beside what they print.

    python -m scripts.papers.asplos                              # the paper's services; seconds
    python -m scripts.papers.asplos --profile profile.json       # and the same nets by `masked`, on a machine that
                                                          # `python -m scripts.tools.calibrate --json profile.json`
                                                          # measured

Nothing is measured here: seconds and bytes are those of the profile `asplos23`, which the package ships, queues
those of the planner's recurrence. Without a profile the page has no part on `masked`. `python -m
scripts.papers.figures` draws its charts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

import hummingbird
from hummingbird.bits import EXACT, BitWindow
from hummingbird.capacity.limit import limits
from hummingbird.capacity.nets import masked
from hummingbird.capacity.paper import BANDWIDTH
from hummingbird.capacity.profile import Profile, load
from hummingbird.capacity.published import asplos23
from hummingbird.capacity.service import Hosts
from hummingbird.progress import progress_line
from scripts.papers.asplos_charts import BELOW
from scripts.papers.asplos_costs import figure_3, figure_4, figure_5, figure_8, figure_9, table_1
from scripts.papers.asplos_profile import torch_net
from scripts.papers.asplos_proposal import (
    energy,
    figure_11,
    figure_11_sweep,
    figure_14,
    figure_14_parts,
    large_net,
    stores,
    totals,
)
from scripts.papers.asplos_queues import figure_7, figure_10
from scripts.papers.asplos_rates import figure_12, figure_13, figure_13_curves, rates, several_clients
from scripts.papers.asplos_section import GB, Section, markdown, offline, online, spoken
from scripts.papers.asplos_summary import summary
from scripts.program import main_of, new_parser

OUT = Path(__file__).parents[2] / "docs/capacity.md"
_HEAD = """# Capacity: the paper remade

K. Garimella, Z. Ghodsi, N. K. Jha, S. Garg and B. Reagen, "Characterizing and Optimizing End-to-End Systems for Private
Inference" (ASPLOS 2023) asked first what a private-inference service carries, and not only how long one image takes.
This page is their evaluation by `hummingbird.capacity`, written by

```sh
{command}
```

A client has images classified by a server's net. In advance the server computes linear layers on encrypted masks, and
one of the two garbles the ReLUs: the server (SG) or the client (CG). That makes a token, which the client stores and an
image uses up. Seconds and bytes of each step are the authors' own, published with their artifact
(`hummingbird/capacity/profiles/asplos23.json`); `hummingbird/capacity/paper.py` has the formulas. Deviations are those
of the model's number from theirs. The artifact names its nets for 32x32 images after CIFAR-10.
"""
# The sections in the page's order.
SECTIONS: Sequence[Callable[[], Section]] = (
    *(table_1, figure_3, figure_4, figure_5, figure_7, figure_8, figure_9, figure_10),
    *(figure_11_sweep, figure_11, rates, figure_12, figure_13, figure_13_curves, figure_14, figure_14_parts),
    *(totals, energy, stores, several_clients, large_net),
)

STORE, RTT = 16 * GB, 2e-3
WINDOWS = {"exact": EXACT, "[20:12)": BitWindow(20, 12)}


def masked_section(profile: Profile, names: Iterable[str] = tuple(asplos23().nets)) -> Section:
    """A row for each net and window: tokens in the store, seconds, images per hour and what bounds them."""
    rows, notes = [], set()
    for name in progress_line(names, desc="masked"):
        module, shape = torch_net(name)
        module = module.to_empty(device="cpu")  # prices do not depend on weights, whatever these are
        with torch.no_grad():
            for value in module.state_dict().values():
                value.fill_(1)
        for title, window in WINDOWS.items():
            private = hummingbird.convert_model(module, window)
            at = masked(private, (1, *shape), profile, "store").at(Hosts(store=STORE, bandwidth=BANDWIDTH / 2, rtt=RTT))
            notes |= set(at.notes)
            size = max(at.token_bytes.values())  # of one party: corrections go to the parties in turn
            least = limits(at)[0]
            seconds = (f"{offline(at):,.3f}", f"{online(at):,.3f}")
            hourly = f"{3600 * least.rate * at.images:,.0f}"
            rows.append(
                (spoken(name), title, f"{size / 1e6:,.1f}", f"{at.most_tokens:,}", *seconds, hourly, least.cause)
            )
    machine = "; ".join(sorted(notes))
    words = (
        "The same nets by hummingbird's default protocol, in another setting: two parties who must not collude hold "
        "shares of the image, and a dealer makes what they need in advance, so that nothing is garbled or encrypted. "
        "500 Mb/s each way, 2 ms there and back, 16 GB at each party; one image a request, exact comparisons and the "
        "window [20:12), bits 12 to 19 of 64."
    )
    below = f"Here {machine}. Without a dealer: [two-party.md](two-party.md)."
    head = ("", "window", "token, MB", "K", "in advance, s", "with the image, s", "images an hour", "bound by")
    return Section("The same nets with shares and a dealer", words, head, rows, below)


def composed_section() -> Section:
    """The stated error of nets that are composed of their layers."""
    rows = [
        (spoken(name), f"{100 * error['refill']:.1f} %", f"{100 * error['request']:.1f} %")
        for name, error in asplos23().error.items()
    ]
    words = (
        "`composed(net, shape)` of `hummingbird.capacity.compose` makes SG and CG of any net of convolutions, linear "
        "layers and ReLUs, from costs of a ciphertext, a product and a ReLU that were fitted to the six nets. Composed "
        "so, with 1 to all threads, their seconds are off by at most:"
    )
    below = (
        "VGG-16's table of threads for CIFAR lacks one of its three linear layers, which its array by layers has, and "
        "which the composition counts."
    )
    return Section("Nets of your own", words, ("", "in advance", "with the image"), rows, below)


def page(sections: Sequence[Section], command: str) -> str:
    """The whole page in Markdown."""
    parts = [_HEAD.format(command=command)]
    for section in (summary(sections), *sections):
        drawn = [(name, words) for name, (title, words) in BELOW.items() if section.title.startswith(title)]
        parts.append(markdown(section) + "".join(f"\n![{words}](figures/{name}.svg)\n" for name, words in drawn))
    return "\n".join(parts)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser(__doc__, "scripts.papers.asplos")
    made.add_argument("--profile", type=Path, metavar="FILE", help="of a machine, for the part on `masked`")
    made.add_argument("--out", type=Path, default=OUT, metavar="FILE", help="default: docs/capacity.md")
    return made


def run(args: argparse.Namespace) -> None:
    """Compute all sections and write the page."""
    machine = load(args.profile) if args.profile else None
    sections = [make() for make in progress_line((*SECTIONS, composed_section), desc="sections")]
    sections += [masked_section(machine)] if machine else []
    command = "python -m scripts.papers.asplos" + (" --profile profile.json" if machine else "")
    args.out.write_text(page(sections, command), encoding="utf-8")
    print(f"wrote {args.out}")


main = main_of(parser, run, "interrupted")


if __name__ == "__main__":
    sys.exit(main())
