"""Gains of the proposal: Figures 11 and 14, totals, energy, stores and a large net of Garimella et al. (ASPLOS 2023).

Each function gives one `Section` of sums by `hummingbird.capacity.paper` under its profile `asplos23`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from hummingbird.capacity import paper
from hummingbird.capacity.compose import composed
from hummingbird.capacity.paper import BANDWIDTH, SERVER_STORE, Threads
from hummingbird.capacity.published import Net, asplos23
from hummingbird.capacity.service import Service
from models import get_model
from scripts.papers.asplos_section import (
    ARTIFACT,
    GB,
    R18,
    Pair,
    Section,
    nets,
    offline,
    online,
    percent,
    split,
    total,
    wire,
)

SPLITS = {"sg": (198, 802), "cg": (835, 165)}  # Mb/s up and down, as the paper has them for all nets
SHARES = range(5, 100, 9)  # % of the link for the way up: eleven points
# Figure 14 as the artifact's generate_fig14.ipynb has it: seconds, and the percent of them in advance.
FIGURE_14 = ((930.147, 76), (1052.268, 89), (662.468, 85), (644.927, 84), (492.236, 79), (53.613, 80), (6.048, 73))
FASTER: Mapping[str, tuple[int, int, int]] = {  # circuits, encryption, bytes
    "garbling 19x faster": (19, 1, 1),
    "garbling 100x": (100, 1, 1),
    "and encryption 1000x": (100, 1000, 1),
    "and bytes 10x fewer": (100, 1000, 10),
    "garbling 1000x, encryption 1000x, bytes 100x": (1000, 1000, 100),
}


def on_link(at: Service) -> float:
    """Seconds on the link, in advance and with the image."""
    return sum(wire(at, phase) for phase in at.phases().values())


def divided(kind: str, net: Net, share: float) -> Service:
    """SG or CG with this share of 1 Gb/s for the way up."""
    return paper.service(kind, net, up=share * BANDWIDTH, down=(1 - share) * BANDWIDTH)


def best(kind: str, net: Net) -> tuple[Service, float, float]:
    """SG or CG with the best split of the link, and this split in bits per second."""
    up, down = paper.best_split(divided(kind, net, 0.5))
    return paper.service(kind, net, up=up, down=down), up, down


def figure_11_sweep() -> Section:
    """Seconds on the link against its division."""
    net = asplos23().net(R18)
    rows = []
    for share in SHARES:
        cells = (f"{on_link(divided(kind, net, share / 100)):,.1f}" for kind in paper.KINDS)
        rows.append((f"{share / 100 * BANDWIDTH / 1e6:.0f} / {(1 - share / 100) * BANDWIDTH / 1e6:.0f}", *cells))
    words = (
        "ResNet-18 on TinyImageNet: seconds on the link of a request, in advance and with the image, by how 1 Gb/s is "
        "divided into up and down. The next table has the best division."
    )
    return Section("Figure 11: sweep of the division of the link (WSA)", words, ("up / down, Mb/s", "SG", "CG"), rows)


def figure_11() -> Section:
    """The best split of a link."""
    rows, pairs, saved, crossed = [], [], [], []
    for name, net in nets():
        ends = {}
        for kind, (up_printed, down_printed) in SPLITS.items():
            least, up, down = best(kind, net)
            ends[kind] = on_link(divided(kind, net, 0.5)), on_link(least)
            pairs.append(Pair(f"{name}, {kind.upper()}, Mb/s up", up / 1e6, up_printed))
            saved.append(1 - ends[kind][1] / ends[kind][0])
            here, printed = f"{up / 1e6:.0f} / {down / 1e6:.0f}", f"{up_printed} / {down_printed}"
            cells = (f"{ends[kind][0]:,.1f}", f"{ends[kind][1]:,.1f}", f"{saved[-1]:.1%}")
            rows.append((name, kind.upper(), here, printed, percent(pairs[-1]), *cells))
        crossed.append(1 - ends["cg"][1] / ends["sg"][0])
    pairs.append(Pair("saved at most, %, against the even division", 100 * max(saved), 35))
    words = (
        "1 Gb/s divided into up and down so that the bytes U and D of a request take least: "
        "up = B sqrt U / (sqrt U + sqrt D). The paper prints one division for all nets; deviations are those of the "
        "rate up."
    )
    below = (
        f"The paper says that the best division saves up to 35 %. Against the even division of the same protocol it "
        f"saves {min(saved):.1%} to {max(saved):.1%} here. CG's best division against SG's even one, which is the "
        f"proposal against the baseline, saves {min(crossed):.1%} to {max(crossed):.1%}."
    )
    head = ("", "", "up / down, Mb/s", "paper", "deviation", "even, s", "best, s", "saved")
    return Section("Figure 11: the best division of the link", words, head, rows, below, pairs)


def futures(net: Net) -> dict[str, Service]:
    """Services with one faster primitive after another, first of CG, as in Figure 14, and then the same of SG."""
    lphe = Threads(he=len(net.he))
    sg, cg = paper.service("sg", net, lphe, up=198e6, down=802e6), paper.proposed(net)
    found = {"SG, LPHE, 198 / 802 Mb/s": sg, "CG (proposed)": cg}
    for end, start in (("", cg), (", SG", sg)):
        for name, (gc, he, fewer) in FASTER.items():
            steps = dict.fromkeys(paper.GC, gc) | dict.fromkeys(paper.HE, he) | dict.fromkeys(paper.WIRE, fewer)
            found[name + end] = paper.faster(start, steps)
    return found


def seconds_of(at: Service) -> tuple[float, float]:
    """T_off without the generation of keys, and T_on."""
    keys = split(at, at.phases()["refill"])["keys"]
    return offline(at) - keys, online(at)


def figure_14() -> Section:
    """Totals with faster primitives, their parts, and how much of them is in advance."""
    found = {name: seconds_of(at) for name, at in futures(asplos23().net(R18)).items()}
    printed: list[tuple[float, int] | None] = [*FIGURE_14]
    pairs, rows = [], []
    for (name, (before, after)), beside in zip(
        found.items(), printed + [None] * (len(found) - len(printed)), strict=True
    ):
        whole, share = before + after, 100 * before / (before + after)
        pair = Pair(name, whole, beside[0], ARTIFACT) if beside else None
        pairs += [pair, Pair(f"{name}, % in advance", share, beside[1], ARTIFACT)] if beside and pair else []
        form = ",.0f" if whole > 20 else ".2f"
        theirs = (f"{beside[0]:{form}} s", percent(pair)) if beside else ("", "")
        online_cell = f"{after:,.1f} s" if after > 2 else f"{after:.2f} s"
        rows.append(
            (name, f"{whole:{form}} s", *theirs, f"{share:.0f} %", f"{beside[1]} %" if beside else "", online_cell)
        )
    texts = {"and bytes 10x fewer": 12.0, "garbling 1000x, encryption 1000x, bytes 100x": 1.63}
    pairs += [Pair(f"{name}, s with the image", found[name][1], seconds) for name, seconds in texts.items()]
    words = (
        "ResNet-18 on TinyImageNet, without the generation of keys; each row keeps what the one before has. Garbling "
        "includes encoding and evaluating, encryption includes decryption and evaluation. The last rows start from SG, "
        "the first row, in place of CG."
    )
    below = (
        "The paper's text has 12 s with the image where bytes are 10 times fewer, and 1.63 s in its last column; here "
        + " and ".join(f"{found[name][1]:.2f} s" for name in texts)
        + "."
    )
    head = ("", "model", "theirs", "deviation", "in advance", "theirs", "with the image")
    return Section("Figure 14: what faster primitives would give", words, head, rows, below, pairs)


def figure_14_parts() -> Section:
    """The parts of Figure 14's bars, in percent."""
    rows = []
    for name, at in futures(asplos23().net(R18)).items():
        before, after = split(at, at.phases()["refill"]), split(at, at.request)
        cells = (before["Comms"], before["GC"], before["HE"], after["Comms"], after["GC"], after["SS"])
        rows.append((name, *(f"{100 * cell / sum(cells):.1f} %" for cell in cells)))
    words = "The parts of each row of the table above, in percent of its seconds."
    head = ("", "link in advance", "garbling", "encryption", "link with the image", "evaluating", "shares")
    return Section("Figure 14: parts", words, head, rows)


def totals() -> Section:
    """The proposal against the baseline, for all nets."""
    rows, ratios = [], []
    for name, net in nets():
        old, new = paper.baseline(net), paper.proposed(net)
        cells = (offline(old), online(old), offline(new), online(new))
        ratios.append(total(old) / total(new))
        rows.append((name, *(f"{seconds:,.1f}" for seconds in cells), f"{ratios[-1]:.3f}"))
    mean = Pair("mean of SG / CG", sum(ratios) / len(ratios), 1.8)
    rows.append(("mean (paper: 1.8)", *[""] * 4, f"{mean.here:.3f}"))
    words = (
        "Seconds of a request, baseline (SG, one thread, 500 / 500) and proposal (CG, LPHE, 835 / 165), and their "
        "ratio. That is the headline's total speedup of 1.8; its rates are those of Figure 12."
    )
    head = ("", "SG in advance", "with image", "CG in advance", "with image", "SG / CG")
    return Section("Speedup: the proposal in all", words, head, rows, "", [mean])


def energy() -> Section:
    """Joules of the client's processor, whoever garbles."""
    joules = {kind: paper.client_joules(kind, asplos23()) for kind in paper.KINDS}
    lines = asplos23().lines
    slopes = {"sg": lines["eval_client"].slope, "cg": lines["garble_client"].slope}
    tasks = {"sg": "SG: evaluate", "cg": "CG: garble"}
    rows = [(tasks[kind], f"{joules[kind]:.2f} J", f"{1000 * slopes[kind]:.3f} s") for kind in paper.KINDS]
    pair = Pair("CG / SG", joules["cg"] / joules["sg"], 1.8)
    seconds = slopes["cg"] / slopes["sg"]
    rows.append(("CG / SG (paper: 1.8)", f"{pair.here:.3f}", f"{seconds:.3f}"))
    words = (
        "What the client's processor spends on the circuits of one number of ReLUs, measured by the authors with "
        "powertop and printed in their text, beside its seconds for 1,000 ReLUs on one thread, from the artifact."
    )
    below = (
        f"So garbling takes {joules['cg'] / joules['sg'] / seconds:.2f} of the power of evaluating. The authors "
        "measured no energy of encryption and of the link."
    )
    return Section("Energy: the client's circuits", words, ("", "energy", "time"), rows, below, [pair])


def stores() -> Section:
    """Bytes of a token at client and server, and how many the server's store has room for."""
    rows, pairs = [], []
    for name, net in nets():
        cells: list[str] = []
        for kind in paper.KINDS:
            at = paper.service(kind, net, up=1e9, down=1e9, store=SERVER_STORE, server_store=SERVER_STORE)
            own, size = at.token_bytes["client"], at.token_bytes["server"]
            cells += [f"{own / GB:.2f}", f"{size / GB:.2f}", f"{int(SERVER_STORE) // size:,}"]
        rows.append((name, *cells))
    net = asplos23().net(R18)
    kb = paper.server_token_bytes("cg", net, asplos23()) / net.relus / 1000
    pairs.append(Pair("kB a ReLU at the server, CG", kb, 18.2))
    words = (
        "GB of a token at the client and at the server, and tokens of all clients for which the paper's server of "
        f"{SERVER_STORE / 1e12:g} TB has room. If the client garbles, the circuits are at the server: {kb:.2f} kB for "
        "each ReLU of ResNet-18 on TinyImageNet, with the values of linear layers; the paper has 18.2. "
        "`paper.service(server_store=...)` bounds a service by it."
    )
    columns = [f"{kind.upper()}, {what}" for kind in paper.KINDS for what in ("client", "server", "tokens")]
    return Section("Store: the server's", words, ("", *columns), rows, "", pairs)


def resnet50() -> Net:
    """ResNet-50 for 224 pixels, composed of its layers; its pooling takes averages."""
    with torch.device("meta"):
        net = get_model("resnet50", 1000, image_size=64)
        net.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    return composed(net.eval(), (3, 224, 224), name="ResNet-50, ImageNet")


def large_net() -> Section:
    """ResNet-50 on ImageNet, composed of its layers."""
    net = resnet50()
    faster = {name: at for name, at in futures(net).items() if not name.endswith(", SG")}
    services = {"baseline (SG, one thread, 500 / 500)": paper.baseline(net), **faster}
    rows, whole = [], {}
    for name, at in services.items():
        before, after = seconds_of(at)
        whole[name] = before + after
        rows.append((name, f"{before:,.1f} s", f"{after:,.1f} s", f"{whole[name]:,.1f} s"))
    nearest = min(whole, key=lambda name: abs(whole[name] - 215))
    pairs = [Pair("ReLUs, millions", net.relus / 1e6, 9.6), Pair(f"seconds, {nearest}", whole[nearest], 215)]
    sizes = [paper.token_bytes(kind, net, asplos23()) / GB for kind in paper.KINDS]
    words = (
        f"{net.relus:,} ReLUs, put together from the costs of a ciphertext, a product and a ReLU (see the last part "
        "of this page), without the generation of keys. LPHE has a thread and a core for "
        f"each of its {len(net.he)} layers. The client's token has {sizes[0]:.0f} GB if the server garbles and "
        f"{sizes[1]:.0f} GB if it garbles itself."
    )
    below = (
        "The paper's text estimates 9.6 million ReLUs and 215 s. The sources at hand do not say from which speeds; the "
        f'nearest sum here is that of the row "{nearest}", off by {percent(pairs[1])}.'
    )
    head = ("", "in advance", "with the image", "in all")
    return Section("ResNet-50: ImageNet", words, head, rows, below, pairs, "remade in kind")


SUMS = (figure_11_sweep, figure_11, figure_14, figure_14_parts, totals, energy, stores, large_net)
