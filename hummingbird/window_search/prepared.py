"""The result of `prepare`: numbers, a table and a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from hummingbird.bits import BitConfig
from hummingbird.errors import EnvironmentProblem
from hummingbird.report import Estimate, link_words
from hummingbird.ring import SCALE
from hummingbird.table import text_table
from hummingbird.window_search.problem import ComparingLayer


@dataclass(frozen=True)
class Candidate:
    """Windows to choose from, with figures that were measured on images which did not choose them.

    accuracy: proportion of right answers; None without labels. changed: proportion of answers that differ from the
    plain net's. distance: of outputs from the plain net's, in units of their spread (answers.py). costs: of one image
    through the whole net.
    """

    name: str
    bits: BitConfig
    accuracy: float | None
    changed: float
    distance: float
    costs: Estimate


@dataclass(frozen=True, repr=False)
class Prepared:
    """The windows found for a trained net, with accuracy and cost of private inference with them; `str` makes a table.

    bits: for `convert_model(net, bits=prepared.bits)`. layers: the comparing layers, each with the `largest` |x| seen,
    in ring units (2^16 is one). choices: "exact", "eco" (windows that hold all values seen), the best uniform window
    (one for all layers), and last the windows found. images: how many images chose the windows, and how many others
    measured.
    accuracy_plain: accuracy of the net itself, None without labels. answers: how answers are judged.
    """

    bits: BitConfig
    layers: Sequence[ComparingLayer]
    choices: Sequence[Candidate]
    images: tuple[int, int]
    accuracy_plain: float | None
    answers: str

    @property
    def accuracy(self) -> float | None:
        """The accuracy of private inference, by simulation, on images that did not choose the windows."""
        return self.choices[-1].accuracy

    @property
    def accuracy_error(self) -> float | None:
        """The standard error of an accuracy: how far it may differ on other images of the same kind."""
        if self.accuracy_plain is None:
            return None
        return math.sqrt(self.accuracy_plain * (1 - self.accuracy_plain) / self.images[1])

    @property
    def costs(self) -> Estimate:
        """Rounds, bytes and seconds on the network of one image with these windows, by layer."""
        return self.choices[-1].costs

    def save(self, path: str | PathLike[str]) -> None:
        """Write the windows into a file that `convert_model(net, bits=path)` and `--bits` read."""
        self.bits.save(Path(path))

    def plot(self) -> Any:
        """Plot the accuracy over the kB sent online per party and image; returns a matplotlib figure with `savefig`.

        Without labels the proportion of unchanged answers takes the place of the accuracy. A notebook shows the figure
        after `%matplotlib inline` if a cell ends with it. Raises EnvironmentProblem without matplotlib.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise EnvironmentProblem("a plot needs matplotlib", hint="pip install matplotlib") from None
        figure = Figure(figsize=(6.5, 4.5), layout="tight")
        axes = figure.subplots()
        known, error = self.accuracy_plain is not None, self.accuracy_error
        plain = 1.0 if self.accuracy_plain is None else self.accuracy_plain
        axes.axhline(100 * plain, color="black", linewidth=0.5, linestyle=":", label="plain net")
        for choice in self.choices:
            share = 1 - choice.changed if choice.accuracy is None else choice.accuracy
            place = choice.costs.online_bytes / 1e3, 100 * share
            axes.errorbar(*place, yerr=error and 100 * error, marker="o", capsize=3, label=choice.name)
        axes.set_xlabel("kB sent online per party and image")
        axes.set_ylabel(f"{'accuracy' if known else 'answers that stay'}, % of {self.images[1]:,} images")
        axes.set_xlim(left=0)
        axes.legend(fontsize=8, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=3)
        return figure

    def __str__(self) -> str:
        costs, (chose, measured) = self.costs, self.images
        head = ("windows", "accuracy %", "changed %", "distance %", "online kB", "rounds", "wire ms", "offline kB")
        rows = [("plain net", _percent(self.accuracy_plain), *["-"] * 6)]
        for choice in self.choices:
            found = choice.costs
            figures = choice.accuracy, choice.changed, choice.distance
            sizes = (f"{found.online_bytes / 1e3:,.1f}", str(found.rounds), f"{1e3 * found.seconds:,.2f}")
            offline = f"{found.offline_bytes / 1e3:,.1f}"
            rows.append((choice.name, *map(_percent, figures), *sizes, offline))
        error, others = self.accuracy_error, f"of {measured:,} others"
        accuracy = (
            f"accuracy is {others}, standard error {_percent(error)}" if error is not None else f"figures are {others}"
        )
        link = link_words(costs.bandwidth, costs.rtt)
        notes = [
            f"answers: {self.answers}; distance: of outputs, root mean square, in their spread",
            f"{chose:,} images chose the windows; {accuracy}, by the plaintext twin",
            f"costs: of each of {costs.parties} parties for one image at a time; {link}, without computation",
        ]
        if below := self.bits.provenance.get("below_range"):
            notes.append(f"the budget forces k below the largest |x| seen in {', '.join(below)}")
        table = text_table(head, rows)
        return "\n\n".join([table, layer_table(self.layers, self.bits), "\n".join(notes)])

    __repr__ = __str__


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def layer_table(layers: Sequence[ComparingLayer], config: BitConfig) -> str:
    """Make a text table with a line for every layer: its window, the largest |x| seen, and the margin between them.

    The margin is the number of bits between the largest |x| and the largest value that the window holds.
    """
    head = ("layer", "outputs", "largest |x|", "window", "kept", "cut above", "cut below", "margin bits")
    rows = []
    for layer in layers:
        window, most = config.window(layer.name), layer.largest
        margin = f"{window.k - 1 - math.log2(most):.2f}" if window.k and most else "-"
        cuts = (window.w, 64 - window.k, window.low) if window.k else (0, 64, 0)
        texts = (layer.name, f"{layer.outputs:,}", f"{most / 2**SCALE:.3f}", str(window), *map(str, cuts), margin)
        rows.append(texts)
    return text_table(head, rows)
