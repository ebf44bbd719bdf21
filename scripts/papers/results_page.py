"""The page that `scripts.papers.results` writes: its rows as tables, the figures of Maeng and Suh (2023) beside
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]

# Percent, Tables 1 and 3. Its 8/64 is drawn, not printed: about 0.3 below the exact net (Figure 7).
PAPER_ACCURACY = {
    "resnet18-cifar10": {"exact": "92.78", "eco": "92.78", "8/64": "-0.3", "6/64": "90.09", "6/64 fine-tuned": "91.04"},
    "resnet18-cifar100": {"exact": "77.98", "eco": "77.98", "6/64": "73.04", "6/64 fine-tuned": "75.57"},
    "resnet50-cifar10": {"exact": "93.15", "eco": "93.15", "6/64": "87.60", "6/64 fine-tuned": "91.12"},
}
NAMES = {
    "resnet18-cifar10": "ResNet-18, CIFAR-10",
    "resnet18-cifar100": "ResNet-18, CIFAR-100 (1)",
    "resnet50-cifar10": "ResNet-50, CIFAR-10",
}
TITLE = """# Windows: accuracy, search and private runs

The tables of HummingBird (Maeng and Suh, 2023) with the nets of this repository. Written by

```sh
{command}
```

which measures every figure but the seconds of the searches. {machine}.
Windows are chosen on validation images that no net was trained on; the test images choose nothing.
"""
NOTE_CIFAR100 = """
(1) Not the canonical split: 18,000 training, 2,000 validation and 10,000 test images of a split of its own. Its
figures and the paper's are of different tasks; compare along a row.
"""

# Charts beside the tables of this net; `python -m scripts.papers.figures` draws them from the page, and they stay
# where it is.
_DRAWN = "resnet18-cifar10"
_ACCURACY = """
![Accuracy against bits kept, with windows by layer and one for all, and against kB sent](figures/accuracy.svg)
"""
_LAYERS = """![KB that a party sends for an image, by stage, exact and with 8 bits of 64](figures/layers.svg)
"""


def page(rows: Sequence[Row], command: str) -> str:
    """The whole page in Markdown."""
    some = rows[0]
    machine = f"hummingbird {some['hummingbird']}, PyTorch {some['torch']}, {some['cpu']}, kernels {some['kernels']}"
    nets = list(dict.fromkeys(row["net"] for row in rows))
    parts = [TITLE.format(command=command, machine=machine), _accuracy(rows, nets), _search(rows), _windows(rows, nets)]
    if any(row["kind"] == "private" for row in rows):
        parts.append(_private(rows, nets))
    return "\n".join(parts)


def _name(net: str) -> str:
    return NAMES.get(net, net)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *rows)) + "\n"


def _accuracy(rows: Sequence[Row], nets: Sequence[str]) -> str:
    found = {(row["net"], row["setting"]): row for row in rows if row["kind"] == "accuracy"}
    settings = list(dict.fromkeys(setting for _, setting in found if not setting.startswith("uniform")))

    def ours(net: str, setting: str) -> str:
        row = found.get((net, setting))
        if row is None:
            return "-"
        spread = f" ± {row['deviation_over_seeds_percent']:.2f}" if row["seeds"] > 1 else ""
        return f"{row['accuracy_percent']:.2f}{spread}"

    lines = []
    for net in nets:
        lines.append((_name(net), "here", *(ours(net, setting) for setting in settings)))
        lines.append(("", "paper", *(PAPER_ACCURACY.get(net, {}).get(setting, "-") for setting in settings)))
    some = next(iter(found.values()))

    def changed(row: Row) -> tuple[str, ...]:
        uniform = found.get((row["net"], f"uniform {row['setting']}"))
        other = ("-",) * 3
        if uniform is not None:
            other = uniform["window"], f"{uniform['changed_predictions']:.0f}", ours(row["net"], uniform["setting"])
        own = f"{row['changed_predictions']:.0f}", ours(row["net"], row["setting"])
        return f"{_name(row['net'])}, {row['setting']}", *own, *other

    windows = [changed(row) for row in found.values() if row["setting"] in settings and row["setting"] != "exact"]
    head = ("net", "answers changed", "accuracy", "one window for all layers", "answers changed", "accuracy")
    note = NOTE_CIFAR100 if any("cifar100" in net for net in nets) else ""
    return (
        "## Accuracy (Tables 1 and 3, Figure 7)\n\n"
        f"Percent of {some['images']:,} test images by the plaintext twin: mean and standard deviation over seeds\n"
        "of the protocol's own chance. The standard error from the choice of images is 0.25 to 0.5. The paper prints\n"
        "no figures for 8/64 and for uniform windows; it reports losses of about 0.3 and of more than 8 points.\n\n"
        + table(("net", "", *settings), lines, left=2)
        + f"\nAnswers, of {some['images']:,}, that differ from those of the plain net with the same weights, and the\n"
        "same for the best single window within the budget, chosen on the same validation images:\n\n"
        + table(head, windows)
        + (_ACCURACY if _DRAWN in nets else "")
        + note
    )


def _search(rows: Sequence[Row]) -> str:
    lines = [
        (
            f"{_name(row['net'])}, {row['setting']}",
            str(row["samples"]),
            str(row["evaluations"]),
            f"{row['seconds']:.0f}",
            f"{row['cost']:.4f}",
            f"`{row['command']}`",
        )
        for row in rows
        if row["kind"] == "search" and row["setting"] != "6/64 fine-tuned"
    ]
    head = ("search", "images", "windows tried", "seconds", "bits kept", "command")
    return (
        "## Search time (Table 2)\n\n"
        "The paper's searches for ResNet-18 took 4.5 to 5.6 minutes on an A100, with 1,024 images and five groups.\n\n"
        + table(head, lines)
    )


def _windows(rows: Sequence[Row], nets: Sequence[str]) -> str:
    parts = ["## Windows (Figure 12)\n\nBits k to m of every layer's shares, and in brackets how many that is.\n"]
    for net in nets:
        found = {
            row["setting"]: dict(word.split("=") for word in row["windows"].split())
            for row in rows
            if row["kind"] == "search" and row["net"] == net
        }
        names = list(dict.fromkeys(name for windows in found.values() for name in windows))
        lines = [(f"`{name}`", *(_window(windows[name]) for windows in found.values())) for name in names]
        parts.append(f"{_name(net).removesuffix(' (1)')}:\n\n" + table(("layer", *found), lines))
    return "\n".join(parts)


def _window(text: str) -> str:
    k, m = (int(part) for part in text.split(":"))
    return f"[{k}:{m}) ({k - m})"


def _private(rows: Sequence[Row], nets: Sequence[str]) -> str:
    parts = [
        "## Private inference (two parties and a dealer on this machine)\n\n"
        "The first test images in batches of 50. Private accuracy must lie within three deviations of the twin's mean\n"
        "over its seeds, with one image for rounding. kB are sent online by one party, and dealt to party 0; in\n"
        "all: by both parties and the dealer. CrypTen has no windows, and draws its triples at every party: its\n"
        "offline kB are those that a dealer would send for its ReLUs.\n"
    ]
    for net in nets:
        found = [row for row in rows if row["kind"] == "private" and row["net"] == net]
        if not found:
            continue
        crypten = next(row for row in found if row["setting"] == "CrypTen")
        lines = []
        for row in found:
            twin = row.get("accuracy_twin_percent")
            lines.append(
                (
                    row["setting"] if row is not crypten else f"CrypTen 0.4.1, exact, {row['images']:,} images",
                    f"{row['accuracy_private_percent']:.2f}",
                    "-" if twin is None else f"{twin:.2f} (within {row['allowed_difference_percent']:.2f})",
                    f"{row['milliseconds_per_image']:.1f}",
                    f"{crypten['milliseconds_per_image'] / row['milliseconds_per_image']:.1f}x",
                    f"{row['online_kilobytes_per_image']:,.0f}",
                    f"{crypten['online_kilobytes_per_image'] / row['online_kilobytes_per_image']:.1f}x",
                    f"{row['offline_kilobytes_per_image']:,.0f}",
                    f"{2 * row['online_kilobytes_per_image'] + row['offline_kilobytes_per_image']:,.0f}",
                    f"{row['rounds_per_batch']:.0f}",
                )
            )
        sizes = ("kB/image", "fewer", "offline kB", "in all kB")
        head = ("", "private %", "twin %", "ms/image", "faster", *sizes, "rounds/batch")
        parts.append(f"{_name(net).removesuffix(' (1)')}, {found[0]['images']:,} images:\n\n" + table(head, lines))
        if net == _DRAWN:
            parts.append(_LAYERS)
    return "\n".join(parts)
