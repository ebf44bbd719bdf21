"""Costs of a request: Table 1 and Figures 3, 4, 5, 8 and 9 of Garimella et al. (ASPLOS 2023).

Each function gives one `Section` of sums by `hummingbird.capacity.paper` under its profile `asplos23`.
"""

from __future__ import annotations

from functools import cache

from hummingbird.capacity import paper
from hummingbird.capacity.compose import composed
from hummingbird.capacity.paper import BANDWIDTH, Threads
from hummingbird.capacity.published import Net, asplos23
from scripts.papers.asplos_profile import torch_net
from scripts.papers.asplos_section import (
    ARTIFACT,
    GB,
    NAMES,
    PARTS,
    R18,
    Pair,
    Section,
    percent,
    split,
    spoken,
    wire,
)

# Seconds that the artifact's program e2e_latency prints for the baseline of Table 1.
TABLE_1 = {
    "GC": (25.110211597928128, 199.91925001126128),
    "HE": (1078.0834037299999, 0.0),
    "SS": (0.0, 0.6101814999999533),
    "Comms": (704.4405820799999, 42.53061284799992),
}
# The artifact's numbers of ReLUs for Figures 3 and 8 (its program storage_per_inf_server_garbler), by net: 32, 64 and
# 224 pixels a side. Its figures count the bytes of ReLUs alone.
FIGURE_3 = {
    "resnet18": (557056, 2228224, 27295744),
    "resnet32": (303104, 1212416, 14852096),
    "vgg16": (276480, 1105920, 13547520),
}
FIGURE_3_BYTES = {"sg": 18248, "cg": 3590}
# Seconds of the homomorphic evaluation in Figure 4: sums of off_server_compute_he_eval in simulator/experiments/utils,
# which are not the measurements of the table by threads.
FIGURE_4 = {
    "cifar10/resnet18": 286.003,
    "cifar10/resnet32": 40.942,
    "cifar10/vgg16": 226.932,
    "tinyimagenet/resnet18": 1055.450,
    "tinyimagenet/resnet32": 109.830,
    "tinyimagenet/vgg16": 550.180,
}
SETS = ("cifar10", "tinyimagenet", "imagenet")


@cache
def net_of(name: str) -> Net:
    """A measured net, or for ImageNet one that is composed of its layers."""
    return composed(*torch_net(name), name=name) if name.startswith("imagenet/") else asplos23().net(name)


def table_1() -> Section:
    """Where a request's time goes before anything is improved, by part."""
    at = paper.baseline(asplos23().net(R18))
    found = [split(at, phase) for phase in (at.phases()["refill"], at.request)]
    found.append({name: found[0][name] + found[1][name] for name in PARTS})
    when = ("in advance", "with the image", "in all")
    pairs, rows = [], []
    for name, theirs in TABLE_1.items():
        row = [name]
        for phase, seconds, printed in zip(when, found, (*theirs, sum(theirs)), strict=True):
            pair = Pair(f"{name} {phase}", seconds[name], printed, ARTIFACT) if printed else None
            pairs += [pair] if pair else []
            row += [f"{seconds[name]:,.1f} s", f"{printed:,.1f} s" if printed else "", percent(pair)]
        rows.append(row)
    rows.append(["keys", *(cell for seconds in found for cell in (f"{seconds['keys']:,.1f} s", "", ""))])
    sums = [
        Pair(f"all {phase}", sum(f.values()), t) for phase, f, t in zip(when, found, (1809, 243, 2052), strict=True)
    ]
    cells = (c for pair in sums for c in (f"{pair.here:,.1f} s", f"{pair.printed:,.0f} s", percent(pair)))
    rows.append(["all", *cells])
    digits = sum(float(f"{seconds:.3g}") for name, seconds in found[0].items() if name != "keys")
    words = (
        "The server garbles (SG), one thread evaluates ciphertexts, 500 Mb/s each way; ResNet-18 on TinyImageNet. "
        "GC is garbling, encoding and evaluating circuits, HE encryption, evaluation and decryption, SS the linear "
        "layers on shares, Comms the link. The last row's sums are the paper's, the parts those that the authors' "
        "program e2e_latency prints for this setting: it leaves out the generation of keys."
    )
    below = f"The parts in advance, without keys and each rounded to three digits, add up to {digits:,.0f} s."
    head = ("", *(cell for phase in when for cell in (phase, "theirs", "deviation")))
    return Section("Table 1: one request of the baseline", words, head, rows, below, [*pairs, *sums])


def figure_3() -> Section:
    """Bytes of a token at the client if the server garbles, for three data sets."""
    pairs, rows = [], []
    for model, relus in FIGURE_3.items():
        for dataset, count in zip(SETS, relus, strict=True):
            name = f"{dataset}/{model}"
            net = net_of(name)
            here = paper.token_bytes("sg", net, asplos23()) / GB
            pair = Pair(spoken(name), here, FIGURE_3_BYTES["sg"] * count / GB, ARTIFACT)
            pairs.append(pair)
            rows.append((spoken(name), f"{net.relus:,}", f"{here:.1f} GB", f"{pair.printed:.1f} GB", percent(pair)))
    r18 = paper.token_bytes("sg", net_of(R18), asplos23()) / GB
    pairs.append(Pair(f"{spoken(R18)}, as the text says it", r18, 41))
    words = (
        "What the client keeps for one request if the server garbles: circuits and labels of all ReLUs, and 8 bytes "
        "for each value of the linear layers, which the authors' figure leaves out. It has 276,480 ReLUs for VGG-16 "
        "at 32 pixels, without those of the hidden linear layers, which their simulator has. The nets for ImageNet "
        "are those for CIFAR at 224 pixels; their linear layers are counted here, not measured."
    )
    return Section(
        "Figure 3: the client's store", words, ("", "ReLUs", "model", "theirs", "deviation"), rows, "", pairs
    )


def figure_4() -> Section:
    """Minutes of computing: the homomorphic evaluation, garbling and evaluating of circuits."""
    pairs, rows = [], []
    for dataset in SETS:
        for model in NAMES:
            name = f"{dataset}/{model}"
            at = paper.service("sg", net_of(name), Threads(4, 1, 4), up=BANDWIDTH / 2, down=BANDWIDTH / 2)
            steps = {step.name: at.step_seconds(step) for phase in at.phases().values() for step in phase.steps}
            here = [steps[step] / 60 for step in ("homomorphic evaluation", "garbling", "evaluation")]
            printed = FIGURE_4.get(name)
            pair = Pair(f"{spoken(name)}, HE", here[0], printed / 60, ARTIFACT) if printed else None
            pairs += [pair] if pair else []
            theirs = f"{pair.printed:.2f}" if pair else ""
            rows.append((spoken(name), f"{here[0]:.2f}", theirs, percent(pair), *(f"{one:.2f}" for one in here[1:])))
    words = (
        "Minutes of a request in the baseline: the homomorphic evaluation on one thread of the server, garbling on "
        "four of its threads and evaluating circuits on the client's four. The authors' figure takes the evaluation's "
        "seconds from other measurements than their table by threads, which this page uses; garbling and evaluating "
        "are a straight line each, the same for them and here. The rows of ImageNet are composed of layers."
    )
    head = ("", "HE, min", "theirs", "deviation", "garbling, min", "evaluating, min")
    return Section("Figure 4: computing", words, head, rows, "", pairs)


def figure_5() -> Section:
    """Seconds on the link, at several rates."""
    rows, pairs = [], []
    for rate in (0.1e9, 0.25e9, 0.5e9, 0.75e9, 1e9):
        at = paper.service("sg", net_of(R18), up=rate / 2, down=rate / 2)
        refill = at.phases()["refill"]
        before = [wire(at, refill, source) for source in ("client", "server")]
        after = [wire(at, at.request, source) for source in ("client", "server")]
        pair = Pair("in advance at 1 Gb/s, minutes", sum(before) / 60, 11) if rate == 1e9 else None
        pairs += [pair] if pair else []
        cells = (*(f"{s / 60:.2f}" for s in before), f"{sum(before) / 60:.2f}", "11" if pair else "", percent(pair))
        rows.append((f"{rate / 1e9:g}", *cells, *(f"{s / 60:.2f}" for s in after), f"{sum(after) / 60:.2f}"))
    words = "SG, ResNet-18 on TinyImageNet: minutes on the link, half of the rate for each direction."
    below = f"The paper has 11 minutes at 1 Gb/s; what goes down in advance takes {before[1] / 60:.2f} of them alone."
    head = ("Gb/s", *("in advance, up", "down", "both", "paper", "deviation"), *("with the image, up", "down", "both"))
    return Section("Figure 5: the link", words, head, rows, below, pairs)


def figure_8() -> Section:
    """Bytes of a token at the client, whoever garbles."""
    rows, pairs = [], []
    for name, net in asplos23().nets.items():
        dataset, _, model = name.partition("/")
        relus = FIGURE_3[model][SETS.index(dataset)]
        sizes = {}
        cells: list[str] = []
        for kind in paper.KINDS:
            sizes[kind] = paper.token_bytes(kind, net, asplos23()) / GB
            pair = Pair(f"{spoken(name)}, {kind.upper()}", sizes[kind], FIGURE_3_BYTES[kind] * relus / GB, ARTIFACT)
            pairs.append(pair)
            cells += [f"{pair.here:.2f} GB", f"{pair.printed:.2f} GB", percent(pair)]
        rows.append((spoken(name), *cells, f"{sizes['sg'] / sizes['cg']:.2f}"))
        if name == R18:
            pairs.append(Pair(f"{spoken(name)}, SG / CG, as the text says it", sizes["sg"] / sizes["cg"], 5))
            pairs.append(Pair(f"{spoken(name)}, CG, as the text says it", sizes["cg"], 8))
    words = (
        "The client keeps the garbled circuits if the server garbles (SG), and the labels if it garbles itself (CG). "
        "In the paper's text that is 41 GB, 8 GB and 5 times for ResNet-18 on TinyImageNet."
    )
    head = ("", "SG", "theirs", "deviation", "CG", "theirs", "deviation", "SG / CG")
    return Section("Figure 8: the client's store, by who garbles", words, head, rows, "", pairs)


def figure_9() -> Section:
    """Layers of the homomorphic evaluation side by side."""
    texts = {R18: (17.76, 2.35)}
    rows, gains, pairs = [], [], []
    for name, net in asplos23().nets.items():
        one, all_, gain = net.he[0] / 60, net.he[-1] / 60, net.he[0] / net.he[-1]
        beside = [f"{p:g}" for p in texts.get(name, ())] or ["", ""]
        if name in texts:
            pairs += [Pair(f"{spoken(name)}, one thread, minutes", one, texts[name][0])]
            pairs += [Pair(f"{spoken(name)}, all threads, minutes", all_, texts[name][1])]
        rows.append((spoken(name), str(len(net.he)), f"{one:.3f}", beside[0], f"{all_:.3f}", beside[1], f"{gain:.2f}"))
        gains.append(gain)
    mean = Pair("times, mean of six nets", sum(gains) / len(gains), 9.7)
    rows.append(("mean (paper: 9.7)", "", "", "", "", "", f"{mean.here:.2f}"))
    he = asplos23().net(R18).he
    least = min(range(len(he)), key=he.__getitem__)
    words = "Minutes of the homomorphic evaluation with one thread, and with as many as the paper measured."
    below = (
        f"More threads are not always fewer seconds: ResNet-18 takes {he[11]:.0f} s with 12 and {he[10]:.0f} s with "
        f"11, and least, {he[least]:.0f} s, with {least + 1}. Layers are given to threads whole."
    )
    head = ("", "threads", "one, min", "paper", "all, min", "paper", "times")
    return Section("Figure 9: layers side by side (LPHE)", words, head, rows, below, [*pairs, mean])


SUMS = (table_1, figure_3, figure_4, figure_5, figure_8, figure_9)
