"""The tables of HummingBird (Maeng and Suh, 2023) remade with our checkpoints, beside the paper's figures.

    Table 1     accuracy of the exact nets
    Figure 7    accuracy with the windows of eco and of budgets, and with one window for all layers instead
    Table 2     how long the search took
    Table 3     6/64 before and after fine-tuning
    Figure 12   the windows
    and test images through two parties on this host with each of them, and through CrypTen

A folder of checkpoints holds, for a net and its data, as resnet18-cifar10:

    STEM.pt                            weights                       python -m scripts.train.images
    STEM-eco.bits.json                 windows of HummingBird-eco    python -m search.find_bits
    STEM-8-64.bits.json                at a budget of 8/64
    STEM-6-64.bits.json                at a budget of 6/64, and where they are there:
    STEM-5-64.bits.json, STEM-4-64.bits.json
    STEM-tuned.pt, STEM-tuned.bits.json    fine-tuned at 6/64    python -m search.finetune

Every figure is measured here, but for the seconds of a search, which its configuration tells. Test images choose
nothing: windows come from validation images, which the net was not trained on.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import hummingbird
from hummingbird.bits import BitConfig
from hummingbird.commands.frontier import uniform_window
from hummingbird.commands.output import check_outputs, check_writable
from hummingbird.commands.program import command_of, end, machine
from hummingbird.commands.subject import predict
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.progress import progress_line
from hummingbird.window_search.study import Study
from models import MODELS, load_checkpoint
from scripts.bench.party import on_this_host
from scripts.papers import results_page
from scripts.program import new_parser, write_rows
from scripts.train.data import DATASETS, load
from scripts.train.images import net_for

Row = dict[str, Any]

NETS = [(model, dataset) for model in MODELS for dataset in DATASETS]
# Setting -> what the files of weights and windows add to the net's name.
SETTINGS: dict[str, tuple[str, str | None]] = {
    "exact": (".pt", None),
    "eco": (".pt", "-eco.bits.json"),
    "8/64": (".pt", "-8-64.bits.json"),
    "6/64": (".pt", "-6-64.bits.json"),
    "5/64": (".pt", "-5-64.bits.json"),
    "4/64": (".pt", "-4-64.bits.json"),
    "6/64 fine-tuned": ("-tuned.pt", "-tuned.bits.json"),
}
OPTIONAL = frozenset({"5/64", "4/64", "6/64 fine-tuned"})
BATCH = 250
CRYPTEN_IMAGES = 200


@dataclass(frozen=True, eq=False)
class Case:
    """A net with its files; images and labels: of the test split."""

    model: str
    dataset: str
    folder: Path
    images: Tensor
    labels: Tensor
    _plain: dict[str, Tensor] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        return f"{self.model}-{self.dataset}"

    @property
    def settings(self) -> list[str]:
        """Those whose files are there."""
        return [name for name, (_, ending) in SETTINGS.items() if ending is None or self.file(ending).exists()]

    @property
    def budgets(self) -> list[str]:
        """Those of the settings."""
        return [name for name in self.settings if name.endswith("/64")]

    def file(self, ending: str) -> Path:
        return self.folder / (self.stem + ending)

    @property
    def options(self) -> dict[str, int]:
        """Options with which the net takes images of the data set."""
        return MODELS[self.model].options_for(DATASETS[self.dataset].shape) or {}

    def net(self, setting: str) -> nn.Module:
        net = net_for(self.model, self.dataset).eval()
        return load_checkpoint(self.file(SETTINGS[setting][0]), net)

    def plain(self, setting: str) -> Tensor:
        """Predictions without windows for all images, made once for each file of weights."""
        weights = SETTINGS[setting][0]
        if weights not in self._plain:
            self._plain[weights] = predict(self.net(setting), self.images, batch=BATCH)
        return self._plain[weights]

    def bits(self, setting: str) -> BitConfig:
        ending = SETTINGS[setting][1]
        return BitConfig() if ending is None else BitConfig.load(self.file(ending))


def percent(right: Tensor, labels: Tensor) -> float:
    return 100 * float((right == labels).double().mean())


def repeated(net: nn.Module, bits: BitConfig, images: Tensor, repeats: int) -> list[Tensor]:
    """Predictions of the twin, once for every seed."""
    return [predict(hummingbird.simulate(net, bits, seed=seed), images, batch=BATCH) for seed in range(repeats)]


def accuracy_row(case: Case, setting: str, bits: BitConfig, repeats: int, *, of: str) -> Row:
    """Accuracy on the test split of the net `of` a setting with windows in place, as mean and deviation over seeds."""
    net, plain = case.net(of), case.plain(of)
    # Without low bits to lose there is no chance in it.
    random = any(bits.window(name).m for name in bits.layers) or bits.default.m > 0
    found = repeated(net, bits, case.images, repeats if random else 1)
    accuracies = [percent(each, case.labels) for each in found]
    return {
        "kind": "accuracy",
        "net": case.stem,
        "setting": setting,
        "images": len(case.labels),
        "plain_percent": percent(plain, case.labels),
        "accuracy_percent": statistics.mean(accuracies),
        "deviation_over_seeds_percent": statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
        "seeds": len(accuracies),
        "changed_predictions": statistics.mean(float((each != plain).sum()) for each in found),
    }


def uniform_row(case: Case, budget: str, args: argparse.Namespace) -> Row:
    """The best single window for all layers within a budget, chosen on validation images as the search's are."""
    net, provenance = case.net("exact"), case.bits(budget).provenance
    images, labels = load(case.dataset, provenance["split"], args.data)
    samples = int(provenance["samples"])
    window = uniform_window(Study(net, images[:samples], labels[:samples]), Fraction(budget))
    row = accuracy_row(case, f"uniform {budget}", BitConfig(window), args.repeats, of="exact")
    return {**row, "window": str(window)}


def search_row(case: Case, setting: str) -> Row:
    """The search's facts in a configuration, and its windows."""
    bits = case.bits(setting)
    said = bits.provenance
    return {
        "kind": "search",
        "net": case.stem,
        "setting": setting,
        **{key: said.get(key) for key in ("samples", "seconds", "evaluations", "budget", "cost", "accuracy")},
        "groups": len(said.get("groups", ())),
        "command": said.get("command"),
        "windows": " ".join(f"{name}={window.k}:{window.m}" for name, window in bits.layers.items()),
    }


def infer_options(case: Case, weights: str, count: int, data: str | None) -> list[str]:
    """Options of `hummingbird infer`. Parties run in the project's own folder: paths are absolute."""
    options = [f"{name}={value}" for name, value in case.options.items()]
    net = ["--model", "models:get_model", case.model, str(DATASETS[case.dataset].classes), *options]
    images = [
        "--data",
        "scripts.train.data:load",
        case.dataset,
        "test",
        *([f"data={Path(data).resolve()}"] if data else []),
    ]
    return [*net, "--weights", str(case.file(weights)), *images, "--samples", str(count), "--batch", "50"]


def baseline_options(case: Case, count: int, data: str | None) -> list[str]:
    """Options of `scripts.bench.crypten_baseline` for the exact net, with absolute paths too."""
    net = ["--model", case.model, "--dataset", case.dataset, "--checkpoint", str(case.file(".pt"))]
    return [*net, "--images", str(count), "--batch", "50", *(["--data", str(Path(data).resolve())] if data else [])]


def private_row(case: Case, setting: str, args: argparse.Namespace) -> Row:
    """The first --images test images through two parties, and whether their accuracy is the twin's.

    A twin's predictions are the protocol's up to chance: the two accuracies are draws from one distribution, and differ
    by more than three deviations, with that of the twin's mean, once in 370 times. One image is allowed for what the
    twin leaves out, the rounding of fixed point.
    """
    (weights, windows), count = SETTINGS[setting], args.images
    bits = ["--bits", str(case.file(windows))] if windows else []
    figures = on_this_host(2, "hummingbird infer", [*infer_options(case, weights, count, args.data), *bits])
    found = repeated(case.net(setting), case.bits(setting), case.images[:count], 2 * args.repeats)
    twin = [percent(each, case.labels[:count]) for each in found]
    mean, deviation = statistics.mean(twin), statistics.stdev(twin)
    allowed = 3 * deviation * math.sqrt(1 + 1 / len(twin)) + 100 / count
    difference = figures["accuracy_private_percent"] - mean
    return {
        "kind": "private",
        "net": case.stem,
        "setting": setting,
        **figures,
        "accuracy_twin_percent": mean,
        "accuracy_twin_deviation_percent": deviation,
        "allowed_difference_percent": allowed,
        "equals_twin": abs(difference) <= allowed + 1e-9,  # percent: a difference of one image is rounded
    }


def crypten_row(case: Case, args: argparse.Namespace) -> Row:
    """CrypTen as it is shipped on the exact net, on fewer images: its time per image is the same for every batch."""
    count = min(args.images, CRYPTEN_IMAGES)
    figures = on_this_host(2, "scripts.bench.crypten_baseline", baseline_options(case, count, args.data))
    per_image = 1e3 * figures["seconds"] / count
    return {"kind": "private", "net": case.stem, "setting": "CrypTen", **figures, "milliseconds_per_image": per_image}


def cases(folders: Sequence[Path], data: str | None) -> list[Case]:
    """The nets that the folders hold. InputError for one that lacks a file, and for none."""
    found = []
    for folder in folders:
        for model, dataset in NETS:
            stem = f"{model}-{dataset}"
            if not (folder / f"{stem}.pt").exists():
                continue
            needed = (pair for name, pair in SETTINGS.items() if name not in OPTIONAL)
            endings = {ending for pair in needed for ending in pair if ending}
            if missing := sorted(stem + ending for ending in endings if not (folder / (stem + ending)).exists()):
                hint = "search.find_bits and search.finetune make them; checkpoints/README.md has the commands"
                raise InputError(f"{stem} lacks {', '.join(missing)}", where=str(folder), hint=hint)
            found.append(Case(model, dataset, folder.resolve(), *load(dataset, "test", data)))
    if not found:
        hint = "a folder with weights named MODEL-DATASET.pt, such as resnet18-cifar10.pt"
        raise InputError("no nets", where=", ".join(map(str, folders)), hint=hint)
    return found


def measure(case: Case, args: argparse.Namespace) -> list[Row]:
    """All rows of a net."""
    work: list[tuple[str, Callable[[], Row]]] = []
    for setting in case.settings:
        if setting != "exact":
            work.append((f"search {setting}", partial(search_row, case, setting)))
        work.append((setting, partial(accuracy_row, case, setting, case.bits(setting), args.repeats, of=setting)))
        if args.images:
            work.append((f"private {setting}", partial(private_row, case, setting, args)))
    work += [(f"uniform {budget}", partial(uniform_row, case, budget, args)) for budget in case.budgets]
    if args.images:
        work.append(("CrypTen", partial(crypten_row, case, args)))
    rows = []
    with progress_line(work, unit="row") as bar:
        for what, make in bar:
            bar.set_description(f"{case.stem} {what}")
            rows.append({**make(), **machine()})
    return rows


def parser() -> argparse.ArgumentParser:
    p = new_parser(__doc__, "scripts.papers.results")
    p.add_argument(
        "--checkpoints",
        nargs="+",
        type=Path,
        default=[Path("checkpoints")],
        metavar="FOLDER",
        help="where the nets and their windows are (default: checkpoints)",
    )
    p.add_argument("--data", metavar="FOLDER", help="data folder (default: HUMMINGBIRD_DATA, else a download)")
    p.add_argument("--repeats", type=int, default=3, help="seeds of the twin, twice as many for --images (default: 3)")
    p.add_argument("--images", type=int, default=1000, help="test images to infer in private, 0: none (default: 1000)")
    p.add_argument("--out", type=Path, metavar="FILE", help="write the page of tables to a file (default: print it)")
    p.add_argument("--json", type=Path, metavar="FILE", help="write all figures as a list of flat rows")
    return p


def run(args: argparse.Namespace, command: str) -> None:
    """Measure, and write the page."""
    if args.repeats < 1 or args.images < 0:
        raise InputError(f"--repeats {args.repeats} --images {args.images}", hint="at least one seed; no images is 0")
    if args.out:
        check_writable(args.out, "--out")
    check_outputs(args)
    started = time.perf_counter()
    rows = [row for case in cases(args.checkpoints, args.data) for row in measure(case, args)]
    write_rows(args.json, rows)
    text = results_page.page(rows, command)
    if args.out:
        args.out.write_text(text)
        print(f"wrote {args.out} in {time.perf_counter() - started:.0f} s")
    else:
        print(text)
    wrong = [f"{row['net']} {row['setting']}" for row in rows if row.get("equals_twin") is False]
    if wrong:
        raise HummingbirdError(f"private accuracy is not the twin's: {', '.join(wrong)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; 0 on success, 1 after an `error:` line, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    args = parser().parse_args(words)
    return end(
        lambda: run(args, command_of("scripts.papers.results", words)), lambda: "interrupted: nothing was written"
    )


if __name__ == "__main__":
    sys.exit(main())
