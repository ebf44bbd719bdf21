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
from collections.abc import Sequence
from pathlib import Path

from hummingbird.capacity.profile import load
from hummingbird.capacity.published import asplos23
from hummingbird.commands.program import end
from scripts.papers.asplos_masked import masked_section
from scripts.papers.asplos_queues import QUEUES
from scripts.papers.asplos_tables import SUMS, Section, markdown, spoken

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
(`hummingbird/capacity/profiles/asplos23.json`); `hummingbird/capacity/paper.py` has the formulas. Ratios are the
model's number over the paper's. The artifact names its nets for 32x32 images after CIFAR-10.
"""
# Charts by the title of the section that they stand below; `python -m scripts.papers.figures` draws them from its
# table.
_CHARTS = {
    "Figures 7 and 12": "![Minutes from arrival to prediction against the rate](figures/capacity-rate.svg)",
    "Figure 10": "![Minutes from arrival to prediction against the store](figures/capacity-store.svg)",
    "Figure 14": "![Seconds of a request with faster primitives](figures/capacity-future.svg)",
}


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
    for section in sections:
        chart = next((line for title, line in _CHARTS.items() if section.title.startswith(title)), "")
        parts.append(markdown(section) + (f"\n{chart}\n" if chart else ""))
    return "\n".join(parts)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m scripts.papers.asplos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--profile", type=Path, metavar="FILE", help="of a machine, for the part on `masked`")
    made.add_argument("--out", type=Path, default=OUT, metavar="FILE", help="default: docs/capacity.md")
    return made


def run(args: argparse.Namespace) -> None:
    """Compute all sections and write the page."""
    machine = load(args.profile) if args.profile else None
    sections = [make() for make in (*SUMS, *QUEUES, composed_section)]
    sections += [masked_section(machine)] if machine else []
    command = "python -m scripts.papers.asplos" + (" --profile profile.json" if machine else "")
    args.out.write_text(page(sections, command), encoding="utf-8")
    print(f"wrote {args.out}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; 0 on success, 1 after an `error:` line."""
    args = parser().parse_args(arguments)
    return end(lambda: run(args), lambda: "interrupted")


if __name__ == "__main__":
    sys.exit(main())
