"""Tables and figures of Garimella et al. (ASPLOS 2023), beside the numbers that they print.

Each function gives one `Section`. All numbers are those of `hummingbird.capacity.paper` under its profile `asplos23`;
only a row's column "paper" is copied from the paper.

Figures 7, 10 and 12 have latency against the rate of requests: one client, one server, requests in order of arrival,
Poisson for 24 hours from an empty store; the recurrence of `hummingbird.capacity`. Every request that arrives in those
hours counts, also one that is served after them. All others follow from sums.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hummingbird.capacity import paper
from hummingbird.capacity.arrivals import poisson
from hummingbird.capacity.limit import limits
from hummingbird.capacity.paper import BANDWIDTH, Threads
from hummingbird.capacity.published import Net, asplos23
from hummingbird.capacity.recurrence import simulate
from hummingbird.capacity.service import Phase, Send, Service
from hummingbird.capacity.system import Draws, system_of

R18 = "tinyimagenet/resnet18"
I5_SECONDS = 107.2  # the paper's garbling on an i5, which the artifact has no fit of
NAMES = {"resnet18": "ResNet-18", "resnet32": "ResNet-32", "vgg16": "VGG-16"}
SETS = {"cifar10": "CIFAR", "tinyimagenet": "TinyImageNet"}
GB = 1e9


class Section(NamedTuple):
    """A heading, words, a table's head and rows; below: words after it, a chart's line among them."""

    title: str
    words: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    below: str = ""


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


def wire(at: Service, phase: Phase) -> float:
    """Seconds on the link of a phase."""
    return sum(at.step_seconds(step) for step in phase.steps if isinstance(step.work, Send))


COMPARED = ("", "model", "paper", "ratio")


def compared(what: str, value: float, printed: float, form: str = ",.0f", unit: str = "s") -> tuple[str, ...]:
    """A row of COMPARED; form: of both numbers."""
    return what, f"{value:{form}} {unit}".rstrip(), f"{printed:{form}} {unit}".rstrip(), f"{value / printed:.4f}"


def table_1() -> Section:
    """Where a request's time goes before anything is improved."""
    at = paper.baseline(asplos23().net(R18))
    rows = [
        compared("in advance", offline(at), 1809),
        compared("with the image", online(at), 243),
        compared("in all", total(at), 2052),
    ]
    words = "The server garbles (SG), one thread evaluates ciphertexts, 500 Mb/s each way; ResNet-18 on TinyImageNet."
    return Section("Table 1: one request of the baseline", words, COMPARED, rows)


def storage() -> Section:
    """Bytes of a token at the client: Figures 3 and 8."""
    rows = []
    for name, net in nets():
        sg, cg = (paper.token_bytes(kind, net, asplos23()) / GB for kind in ("sg", "cg"))
        rows.append((name, f"{sg:.1f} GB", f"{cg:.2f} GB", f"{sg / cg:.2f}"))
    words = (
        "What the client keeps of one request: the garbled circuits if the server garbles (SG), the labels if it "
        "garbles itself (CG). The paper's are 41 GB, 8 GB and 5x for ResNet-18 on TinyImageNet."
    )
    return Section("Figures 3 and 8: the client's store", words, ("", "SG", "CG", "SG / CG"), rows)


def parts() -> Section:
    """Seconds of computing and of the link: Figures 4 and 5."""
    net = asplos23().net(R18)
    at = paper.baseline(net)
    rows = [
        (f"{step.name}, {step.work.host}", phase, f"{at.step_seconds(step):,.1f} s", "", "")  # type: ignore[union-attr]
        for phase, steps in (("in advance", at.phases()["refill"].steps), ("with the image", at.request.steps))
        for step in steps
        if not isinstance(step.work, Send)
    ]
    for rate in (0.1e9, 0.25e9, 0.5e9, 1e9):
        halved = paper.service("sg", net, up=rate / 2, down=rate / 2)
        before, after = wire(halved, halved.phases()["refill"]), wire(halved, halved.request)
        whole = ("11 min", f"{before / 660:.3f}") if rate == 1e9 else ("", "")
        rows.append((f"link, {rate / 1e9:g} Gb/s in all, halved", "in advance", f"{before:,.1f} s", *whole))
        rows.append(("", "with the image", f"{after:,.1f} s", "", ""))
    words = "SG, ResNet-18 on TinyImageNet: what computes, and the link at several rates."
    return Section("Figures 4 and 5: computing and the link", words, ("", "", "model", "paper", "ratio"), rows)


def figure_9() -> Section:
    """Layers of the homomorphic evaluation side by side."""
    printed = {R18: (17.76, 2.35)}
    rows, gains = [], []
    for name, net in asplos23().nets.items():
        one, all_, gain = net.he[0] / 60, net.he[-1] / 60, net.he[0] / net.he[-1]
        beside = [f"{p:g}" for p in printed.get(name, ())] or ["", ""]
        rows.append((spoken(name), str(len(net.he)), f"{one:.3f}", beside[0], f"{all_:.3f}", beside[1], f"{gain:.2f}"))
        gains.append(gain)
    mean = sum(gains) / len(gains)
    rows.append(("mean (paper: 9.7)", "", "", "", "", "", f"{mean:.2f}"))
    least = min(range(len(asplos23().net(R18).he)), key=lambda i: asplos23().net(R18).he[i])
    he = asplos23().net(R18).he
    words = "Minutes of the homomorphic evaluation with one thread, and with as many as the paper measured."
    below = (
        f"More threads are not always fewer seconds: ResNet-18 takes {he[11]:.0f} s with 12 and {he[10]:.0f} s with "
        f"11, and least, {he[least]:.0f} s, with {least + 1}. Layers are given to threads whole."
    )
    head = ("", "threads", "one, min", "paper", "all, min", "paper", "times")
    return Section("Figure 9: layers side by side (LPHE)", words, head, rows, below)


def figure_11() -> Section:
    """The best split of a link."""
    rows = []
    for name, net in nets():
        for kind in ("sg", "cg"):
            even = paper.service(kind, net, up=BANDWIDTH / 2, down=BANDWIDTH / 2)
            up, down = paper.best_split(even)
            best = paper.service(kind, net, up=up, down=down)
            least, most = (sum(wire(at, phase) for phase in at.phases().values()) for at in (best, even))
            printed = {"sg": "198 / 802", "cg": "835 / 165"}[kind]
            split = f"{up / 1e6:.0f} / {down / 1e6:.0f}"
            rows.append(
                (name, kind.upper(), split, printed, f"{most:,.1f}", f"{least:,.1f}", f"{1 - least / most:.1%}")
            )
    words = (
        "1 Gb/s divided into up and down so that the bytes U and D of a request take least: "
        "up = B sqrt U / (sqrt U + sqrt D). The paper prints one split for all nets, and savings of up to 35 %; "
        "against the even split they are those of the last column."
    )
    head = ("", "", "up / down, Mb/s", "paper", "even, s", "best, s", "saved")
    return Section("Figure 11: dividing the link (WSA)", words, head, rows)


def figure_13() -> Section:
    """Faster clients and servers."""
    at = paper.proposed(asplos23().net(R18))
    atom = next(at.step_seconds(step) for step in at.phases()["refill"].steps if step.name == "garbling")
    rows = []
    for name, garbling, printed in (
        ("Atom", 1.0, 382.6),
        ("i5", atom / I5_SECONDS, 107.2),
        ("twice an i5", 2 * atom / I5_SECONDS, 53.8),
    ):
        for server in (1, 2, 4):
            faster = paper.faster(at, {"garbling": garbling, "homomorphic evaluation": server, "evaluation": server})
            beside = (f"{atom / garbling:.1f} s", f"{printed} s") if server == 1 else ("", "")
            rows.append((name, f"{server}x", *beside, f"{offline(faster):,.0f} s", f"{online(faster):,.1f} s"))
    words = (
        "CG with LPHE and 835 / 165 Mb/s: garbling on other clients, and a server whose encrypted layers and circuits "
        "are 2 and 4 times faster. The i5 is the paper's own measurement, which the artifact has no constants of: it "
        "is put in, not derived; half of it is 53.6 s."
    )
    head = ("client", "server", "garbling", "paper", "in advance", "with the image")
    return Section("Figure 13: faster machines", words, head, rows)


def futures(net: Net) -> dict[str, float]:
    """Seconds of a request in all, less the key's, with one faster primitive after another."""
    lphe = Threads(he=len(net.he))
    cg = paper.proposed(net)
    rows = {"SG, LPHE, 198 / 802 Mb/s": paper.service("sg", net, lphe, up=198e6, down=802e6), "CG (proposed)": cg}
    for name, groups in (
        ("garbling 19x faster", (19, 1, 1)),
        ("garbling 100x", (100, 1, 1)),
        ("and encryption 1000x", (100, 1000, 1)),
        ("and bytes 10x fewer", (100, 1000, 10)),
        ("garbling 1000x, encryption 1000x, bytes 100x", (1000, 1000, 100)),
    ):
        gc, he, fewer = groups
        steps = dict.fromkeys(paper.GC, gc) | dict.fromkeys(paper.HE, he) | dict.fromkeys(paper.WIRE, fewer)
        rows[name] = paper.faster(cg, steps)
    return {name: total(at) - net.keygen for name, at in rows.items()}


def figure_14() -> Section:
    """Totals with faster primitives."""
    printed = (930, 1052, 662, 645, 492, 54, 6)
    found = futures(asplos23().net(R18))
    rows = [compared(name, value, beside) for (name, value), beside in zip(found.items(), printed, strict=True)]
    words = (
        "ResNet-18 on TinyImageNet, without the generation of keys; each row keeps what the one before has. Garbling "
        "includes encoding and evaluating, encryption includes decryption and evaluation."
    )
    return Section("Figure 14: what faster primitives would give", words, COMPARED, rows)


def ratios() -> list[float]:
    """Baseline over proposal, of the totals, for each net."""
    return [total(paper.baseline(net)) / total(paper.proposed(net)) for net in asplos23().nets.values()]


def totals() -> Section:
    """The proposal against the baseline, for all nets."""
    rows = []
    for (name, net), ratio in zip(nets(), ratios(), strict=True):
        old, new = paper.baseline(net), paper.proposed(net)
        cells = (offline(old), online(old), offline(new), online(new))
        rows.append((name, *(f"{seconds:,.1f}" for seconds in cells), f"{ratio:.3f}"))
    rows.append(("mean (paper: 1.8)", *[""] * 4, f"{sum(ratios()) / len(rows):.3f}"))
    rows.append(("largest (paper: 2.24)", *[""] * 4, f"{max(ratios()):.3f}"))
    words = "Seconds of a request, baseline (SG, one thread, 500 / 500) and proposal (CG, LPHE, 835 / 165)."
    head = ("", "SG in advance", "with image", "CG in advance", "with image", "SG / CG")
    return Section("The proposal in all", words, head, rows)


SUMS = (table_1, storage, parts, figure_9, figure_11, figure_13, figure_14, totals)


DAY = 24 * 3600.0
RUNS = 1000
CORES = 4  # of the client: the paper's RLP has as many refills at a time


class Latency(NamedTuple):
    """Seconds from a request's arrival to its prediction."""

    mean: float
    p50: float
    p99: float


def latency(at: Service, rate: float, seed: int = 0) -> Latency:
    """Latency over the requests of RUNS days at `rate` per second, each day from an empty store."""
    expected = rate * DAY
    load = poisson(rate).load(RUNS, math.ceil(expected + 8 * math.sqrt(expected)) + 8, seed)  # past the day's end
    seconds = Draws(request=np.array([[online(at)]]), refill=np.array([[offline(at)]]))
    outcome = simulate(system_of(at, full=False), load, seconds)
    found = outcome.latency[outcome.arrived < DAY]
    return Latency(float(found.mean()), *(float(value) for value in np.quantile(found, (0.5, 0.99))))


def _minutes(at: Service, every: float) -> tuple[str, str]:
    """Mean and p99 in minutes for a request every `every` minutes; none where the backlog grows, beyond the limit."""
    if 60 * every * limits(at)[0].rate <= 1:
        return "grows", "grows"
    found = latency(at, 1 / (60 * every))
    return f"{found.mean / 60:.2f}", f"{found.p99 / 60:.1f}"


def figures_7_and_12() -> Section:
    """Baseline and proposal, ResNet-18 on CIFAR, at 16 GB."""
    net = asplos23().net("cifar10/resnet18")
    services = (paper.baseline(net, 16 * GB, gc=4), paper.proposed(net, 16 * GB))
    rows = [
        (f"{every:g}", *_minutes(services[0], every), *_minutes(services[1], every))
        for every in (60, 30, 20, 15, 12, 10, 9, 7, 6, 5, 4.5, 4.2)
    ]
    rows.append(("limit", *(cell for at in services for cell in (f"1 per {1 / limits(at)[0].rate / 60:.2f}", ""))))
    cg = latency(paper.proposed(asplos23().net(R18), 16 * GB), 1 / (33 * 60))
    held, lost = (latency(paper.baseline(asplos23().net(R18), store * GB, gc=4), 3e-4) for store in (128, 82))
    words = (
        "ResNet-18 on CIFAR, 16 GB at the client: the paper raises the rate it sustains from one request in 12 minutes "
        "to one in 5. Minutes from arrival to prediction, by minutes between requests on average."
    )
    below = (
        "A mean says little here: ResNet-18 on TinyImageNet with CG, 16 GB and a request every 33 minutes takes "
        f"{cg.mean / 60:.1f} minutes on average, {cg.p50 / 60:.1f} in half of the cases and {cg.p99 / 60:.0f} in one "
        "of a hundred.\n\n"
        "The artifact counts its store in floating point, and loses a token to it: the baseline for TinyImageNet with "
        f"128 GB, which hold 3 tokens, takes {held.mean / 60:.1f} minutes at 3e-4 requests a second, and Figure 7 has "
        f"12.2, which is rather that of 2 tokens, {lost.mean / 60:.1f}. It also leaves out requests that are not done "
        "when the day ends."
    )
    head = ("minutes between requests", "baseline, mean", "baseline, p99", "proposal, mean", "proposal, p99")
    return Section("Figures 7 and 12: latency against the rate", words, head, rows, below)


def figure_10() -> Section:
    """Refills side by side against layers side by side."""
    net = asplos23().net(R18)
    rows = []
    for store in (8, 16, 32, 64, 140):
        layers = paper.proposed(net, store * GB)
        refills = paper.side_by_side(layers, "cg", net, CORES)
        cells: list[str] = []
        for at in (refills, layers):
            often = f"{1 / limits(at)[0].rate:,.0f} s"
            cells += [often, *(_minutes(at, every)[0] for every in (60, 30, 18))]
        rows.append((f"{store} GB", str(layers.most_tokens), *cells))
    words = (
        "CG, ResNet-18 on TinyImageNet: one core for each of several refills (RLP), or all for the layers of one "
        "(LPHE). Seconds between the requests that can be kept up with, and mean minutes from arrival to prediction "
        "with a request every 60, 30 and 18 minutes."
    )
    below = (
        "The paper has 3126 and 1053 s at 8 GB, as here. At 140 GB it has a token per 627 s by RLP and per 939 s by "
        f"LPHE. 627 cannot be derived: the client has {CORES} cores, hence as many refills, each of "
        f"{offline(paper.side_by_side(paper.proposed(net), 'cg', net, CORES)):,.1f} s. With several refills the link "
        "is promised to each in full, as the paper does; the event engine shares it."
    )
    columns = [f"{name}, {of}" for name in ("RLP", "LPHE") for of in ("s", "1 per 60", "1 per 30", "1 per 18")]
    head = ("store", "K", *columns)
    return Section("Figure 10: refills or layers side by side", words, head, rows, below)


QUEUES = (figures_7_and_12, figure_10)


def markdown(section: Section) -> str:
    """The section as Markdown: numbers to the right."""
    rule = ["---" if not cell else "---:" for cell in section.head]
    rule[0] = "---"
    lines: Iterable[Sequence[str]] = (section.head, rule, *section.rows)
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    below = f"\n{_filled(section.below)}\n" if section.below else ""
    return f"## {section.title}\n\n{_filled(section.words)}\n\n{table}\n{below}"


def _filled(words: str) -> str:
    """Paragraphs in lines of at most 120 characters."""
    return "\n\n".join(textwrap.fill(part, 120, break_long_words=False) for part in words.split("\n\n"))
