"""Accuracy against online bytes: windows for several budgets of one net, in a table, a file each, and a picture.

A budget w/64 keeps w bits of each comparison on average. --uniform adds the best single window [k:k-w) for all layers,
measured on the same images with the same random numbers: what the search gains by giving layers different windows
(Maeng and Suh, "HummingBird", 2023, section 4.3). All budgets share the net, the images, and what was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from torch import nn
from tqdm import tqdm

from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError
from hummingbird.search.budget import read_budget
from hummingbird.search.study import Study
from hummingbird.table import text_table
from scripts.files import check_writable, write_together
from scripts.party import machine
from scripts.program import command_of, end
from search import plots
from search.find_bits import check_states, interrupted, online, open_study, origin, search_bar, state_of
from search.options import add_net_arguments, add_search_arguments, load_net_and_images, search_options

_EPILOG = """examples:
  the digits net, which holds no images out, so that training images choose:
    python -m search.frontier --model digits --weights checkpoints/digits.pt --dataset digits --split train \\
        --group layer --uniform --out-folder windows --plot frontier.png

  ResNet-18 on CIFAR-10:
    python -m search.frontier --model resnet18 --weights resnet18.pt --dataset cifar10 --data DATA \\
        --budgets exact eco 8/64 6/64 --uniform --out-folder windows --json frontier.json --plot frontier.png

--out-folder gets a file for every budget that windows meet: 6-64.json, and uniform-6-64.json with --uniform. Every
search keeps its answers in a .state beside it until all have ended. After Ctrl-C or a kill the same command with
--resume ends as it would have.
"""
BUDGETS = ("exact", "eco", "8/64", "7/64", "6/64", "5/64")
_WORDS = ("exact", "eco")
_UNMET = ("budget", "eco", "group all")  # where a search says that there are no such windows
Row = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m search.frontier",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--out-folder", required=True, type=Path, metavar="FOLDER", help="where to write the windows")
    made.add_argument(
        "--budgets",
        nargs="+",
        default=BUDGETS,
        metavar="B",
        help=f"exact, eco, and fractions of all bits (default: {' '.join(BUDGETS)})",
    )
    made.add_argument("--uniform", action="store_true", help="one window for all layers too, at the same budgets")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file")
    made.add_argument("--plot", type=Path, metavar="FILE", help="draw them into a file (.png, .pdf)")
    add_net_arguments(made)
    add_search_arguments(made)
    return made


def uniform_window(study: Study, budget: Fraction) -> BitWindow:
    """The best single window for all layers; errors of `Study.search`."""
    return next(iter(study.search(budget, uniform=True).layers.values()))


class Frontier:
    """What all rows share: a net, its study on `count` images, and the options."""

    def __init__(self, net: nn.Module, study: Study, count: int, args: argparse.Namespace, command: str) -> None:
        self.net, self.study, self.args, self.command = net, study, args, command
        exact = study.accuracy(BitConfig())
        assert exact is not None  # the programs have labels
        self.exact = exact
        self.facts: Row = {
            **{key: getattr(args, key) for key in ("model", "dataset", "split", "protocol", "parties", "seed")},
            "images": count,
            "exact_accuracy_percent": 100 * self.exact,
            **machine(),
        }

    def row(self, how: str, budget: str) -> Row:
        """Search, write the windows, and say what they are worth; or why there are none within the budget."""
        out = file_of(self.args.out_folder, how, budget)
        row = {"windows": how, "budget": budget}
        try:
            with search_bar(out.stem, "bits") as tell:
                config = self._search(how, budget, state=state_of(out), progress=tell)
        except ConfigError as problem:
            if problem.where not in _UNMET:
                raise
            return {**row, "met": False, "why": problem.what, **self.facts}
        write_together({out: config.to_json().encode()})
        said, cost = config.provenance, online(self.net, config, self.args, self.study.searched.image_shape)
        return {
            **row,
            "met": True,
            "accuracy_percent": 100 * said["accuracy"],
            "bits_per_comparison": 64 * said["cost"],
            "online_kilobytes_per_image": cost.bits / 8e3,
            "rounds": cost.rounds,
            "windows_tried": said["evaluations"],
            "seconds": said["seconds"],
            "file": out.name,
            **self.facts,
        }

    def _search(self, how: str, budget: str, **options: Any) -> BitConfig:
        provenance = origin(self.args, self.command)
        if budget == "exact":
            return BitConfig(
                provenance={
                    **provenance,
                    "how": "exact",
                    "accuracy": self.exact,
                    "cost": 1.0,
                    "evaluations": 1,
                    "seconds": 0.0,
                }
            )
        limit = None if budget == "eco" else read_budget(budget, "bits", "--budgets")
        options |= {"provenance": provenance, "uniform": how == "uniform"}
        return self.study.search(limit, **options, **search_options(self.args))


def file_of(folder: Path, how: str, budget: str) -> Path:
    """6-64.json, or uniform-6-64.json."""
    return folder / f"{'uniform-' if how == 'uniform' else ''}{budget.replace('/', '-')}.json"


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    head = ("budget", "windows", "file", "accuracy %", "lost", "bits each", "online kB", "rounds", "tried", "seconds")
    lines = []
    for row in rows:
        if not row["met"]:
            lines.append((row["budget"], row["windows"], "none", *["-"] * 7))
            continue
        lost = row["exact_accuracy_percent"] - row["accuracy_percent"]
        figures = [f"{row[key]:.2f}" for key in ("bits_per_comparison", "online_kilobytes_per_image")]
        last = (f"{row['rounds']}", f"{row['windows_tried']}", f"{row['seconds']:.1f}")
        where = (row["budget"], row["windows"], row["file"])
        lines.append((*where, f"{row['accuracy_percent']:.2f}", f"{lost:.2f}", *figures, *last))
    return "\n".join([text_table(head, lines, left=3), *_reasons(rows)])


def _reasons(rows: Sequence[Row]) -> list[str]:
    return [f"{row['budget']} {row['windows']}: {row['why']}" for row in rows if not row["met"]]


def run(args: argparse.Namespace, command: str, states: list[Path]) -> None:
    """Search at every budget; write windows, rows and picture, and print the rows. states: gets the searches' files."""
    if args.json:
        check_writable(args.json, "--json")
    if args.plot:
        plots.check(args.plot, "--plot")
    states += states_of(args)
    check_states(states, args.resume)
    net, images, labels = load_net_and_images(args)
    frontier = Frontier(net, open_study(args, net, images, labels), len(images), args, command)
    with tqdm(planned(args), desc="budgets", unit="search", leave=False) as pairs:
        rows = [frontier.row(*pair) for pair in pairs]
    if args.json:
        write_together({args.json: (json.dumps(rows, indent=2) + "\n").encode()})
    if args.plot:
        plots.draw_frontier(rows, args.plot)
    for state in states:
        state.unlink(missing_ok=True)
    print(f"{table(rows)}\n\nonline: per party, one image, whole net; {len(images)} images of the {args.split} split")


def planned(args: argparse.Namespace) -> list[tuple[str, str]]:
    """What is searched: how, and at which budget. ConfigError for a budget that is none."""
    budgets = list(dict.fromkeys(args.budgets))
    numbers = [budget for budget in budgets if budget not in _WORDS]
    for budget in numbers:
        read_budget(budget, "bits", "--budgets")
    return [("searched", budget) for budget in budgets] + [("uniform", budget) for budget in numbers if args.uniform]


def states_of(args: argparse.Namespace) -> list[Path]:
    """The states of all searches. Errors of `planned`, and InputError for a folder that is not there."""
    files = [file_of(args.out_folder, *pair) for pair in planned(args)]
    for file in files:
        check_writable(file, "--out-folder")
    return [state_of(file) for file in files]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; 0 on success, 1 after an `error:` line, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    args, states = parser().parse_args(words), list[Path]()
    return end(lambda: run(args, command_of("search.frontier", words), states), lambda: interrupted(states))


if __name__ == "__main__":
    sys.exit(main())
