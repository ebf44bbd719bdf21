"""Sections of docs/capacity.md: a table each, what of it the authors print, and how both are written down.

A `Pair` is a quantity of Garimella et al. (ASPLOS 2023): the model's number and theirs. The page's first table is made
of the pairs of all sections, and tests bound every deviation.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hummingbird.capacity import paper
from hummingbird.capacity.published import Net, asplos23
from hummingbird.capacity.service import Phase, Send, Service

R18 = "tinyimagenet/resnet18"
NAMES = {"resnet18": "ResNet-18", "resnet32": "ResNet-32", "vgg16": "VGG-16"}
SETS = {"cifar10": "CIFAR", "tinyimagenet": "TinyImageNet", "imagenet": "ImageNet"}
GB = 1e9
PAPER, ARTIFACT = "paper", "artifact"  # where a printed number is from


class Pair(NamedTuple):
    """A quantity that the authors print: the model's number, and theirs.

    source: PAPER if its text, a table or a figure has the number, ARTIFACT if their published programs or notebooks
    print it.
    """

    what: str
    here: float
    printed: float
    source: str = PAPER

    @property
    def deviation(self) -> float:
        """The relative difference of the model's number from theirs."""
        return self.here / self.printed - 1


class Section(NamedTuple):
    """A heading, words, a table's head and rows; below: words after it.

    pairs: what the authors print of it. kind: "remade" if the section has what theirs has, "remade in kind" if only
    from other inputs.
    """

    title: str
    words: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    below: str = ""
    pairs: Sequence[Pair] = ()
    kind: str = "remade"

    @property
    def item(self) -> str:
        """The table or figure that it remakes, such as `Figure 3`."""
        return self.title.partition(":")[0]


def spoken(name: str) -> str:
    """`ResNet-18, TinyImageNet` for tinyimagenet/resnet18."""
    dataset, _, model = name.partition("/")
    return f"{NAMES[model]}, {SETS[dataset]}"


def nets() -> Iterator[tuple[str, Net]]:
    """The six nets by what tables call them."""
    return ((spoken(name), net) for name, net in asplos23().nets.items())


def offline(at: Service) -> float:
    """T_off in seconds."""
    return at.seconds(at.phases()["refill"])


def online(at: Service) -> float:
    """T_on in seconds."""
    return at.seconds(at.request)


def total(at: Service) -> float:
    """T_off + T_on in seconds."""
    return offline(at) + online(at)


PARTS: Mapping[str, Sequence[str]] = {
    "GC": paper.GC,
    "HE": paper.HE,
    "SS": ("linear layers",),
    "Comms": paper.WIRE,
    "keys": ("key generation",),
}


def split(at: Service, phase: Phase) -> dict[str, float]:
    """The seconds of a phase by the parts that the paper has, and those of generating keys, which it leaves out."""
    part = {name: group for group, names in PARTS.items() for name in names}
    found = dict.fromkeys(PARTS, 0.0)
    for step in phase.steps:
        found[part[step.name]] += at.step_seconds(step)
    return found


def wire(at: Service, phase: Phase, source: str | None = None) -> float:
    """Seconds on the link of a phase; source: of what this host sends only."""
    sends = [step for step in phase.steps if isinstance(step.work, Send)]
    return sum(at.step_seconds(step) for step in sends if source in (None, step.work.source))  # type: ignore[union-attr]


def percent(pair: Pair | None) -> str:
    """A pair's deviation as a cell, `+0.12 %`; none without a pair."""
    return "" if pair is None else f"{round(100 * pair.deviation, 2) + 0.0:+.2f} %"  # + 0.0: no -0.00


def markdown(section: Section) -> str:
    """The section as Markdown: columns with numbers to the right."""
    columns = zip(*section.rows, strict=True)
    rule = ["---:" if any(re.match(r"[-+\d]", cell) for cell in column) else "---" for column in columns]
    rule[0] = "---"
    lines: Iterable[Sequence[str]] = (section.head, rule, *section.rows)
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    below = f"\n{filled(section.below)}\n" if section.below else ""
    return f"## {section.title}\n\n{filled(section.words)}\n\n{table}\n{below}"


def filled(words: str) -> str:
    """Paragraphs in lines of at most 120 characters."""
    return "\n\n".join(textwrap.fill(part, 120, break_long_words=False) for part in words.split("\n\n"))
