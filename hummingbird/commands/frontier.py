"""`frontier`: finds windows for several budgets of one net, and shows accuracy against online bytes in a table and a
picture.

A budget w/64 keeps w bits of each comparison on average. --uniform adds the best single window [k:k-w) for all layers,
measured on the same images with the same random numbers, which shows the gain of different windows for layers (Maeng
and Suh, "HummingBird", 2023, section 4.3). All budgets share the net, the images, and the measurements.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from hummingbird import ranks
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.commands import output
from hummingbird.commands.output import check_writable, write_json, write_together
from hummingbird.commands.program import NOTES as RANKS
from hummingbird.commands.program import add_command, agree_on, command_of, end_ranked, machine
from hummingbird.commands.searching import (
    add_search_arguments,
    check_states,
    interrupted,
    online,
    search_options,
    state_of,
    study_of,
)
from hummingbird.commands.subject import Subject, add_subject_arguments, subject_of
from hummingbird.errors import ConfigError, InputError
from hummingbird.progress import progress_line
from hummingbird.table import text_table
from hummingbird.window_search.objective import read_budget
from hummingbird.window_search.rounding import without_q
from hummingbird.window_search.study import Study, find_windows

HELP = "Find windows at several budgets, and show accuracy against bytes sent."
_EPILOG = """example, with my_net.py and my_data.py in the current folder:
    python -m hummingbird frontier --model my_net:net --weights net.pt --data my_data:images validation \\
        --budgets exact eco 8/64 6/64 --uniform --out-folder windows --json frontier.json --plot frontier.png

my_net.net() returns the net; my_data.images("validation") returns a pair of images (N, ...) and labels (N,), a data
set, or a DataLoader.
"""
NOTES = (
    """
--out-folder gets a file for every budget that can be met: 6-64.json, and uniform-6-64.json with --uniform. Every search
keeps its answers in a .state file beside it until all searches have ended. After Ctrl-C or a kill the same command with
--resume finishes with the same result.

The windows are for inference with a dealer. For gc-server, two parties without one, use find-bits --cut at each budget.
"""
    + RANKS
)
BUDGETS = ("exact", "eco", "8/64", "7/64", "6/64", "5/64")
_WORDS = ("exact", "eco")
_UNMET = ("budget", "eco", "group all")  # `where` of the errors of a search that no windows meet the budget
Row = dict[str, Any]


def add_parser(commands: Any) -> None:
    """Add the command `frontier`, with its options, to the command line."""
    sub = add_command(commands, "frontier", HELP, __doc__, _EPILOG + NOTES)
    add_arguments(sub)
    add_subject_arguments(sub, "--data", "images on which the windows are chosen, and their labels")
    sub.set_defaults(run=lambda args: main(args, lambda: subject_of(args), command_of("hummingbird", args.words)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options of `frontier` but those that name the net and its images."""
    parser.add_argument("--out-folder", required=True, type=Path, metavar="FOLDER", help="folder for the windows")
    parser.add_argument(
        "--budgets",
        nargs="+",
        default=BUDGETS,
        metavar="B",
        help=f"exact, eco, and fractions of all bits (default: {' '.join(BUDGETS)})",
    )
    text = "also find the best single window for all layers, at the same budgets"
    parser.add_argument("--uniform", action="store_true", help=text)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the rows to a file (.png, .pdf)")
    add_search_arguments(parser)


def uniform_window(study: Study, budget: Fraction) -> BitWindow:
    """Return the best window that all layers may share within a budget. Raises errors of `Study.search`.

    budget: the mean number of bits that a comparison keeps, divided by 64.
    """
    return next(iter(study.search(budget, uniform=True).layers.values()))


class Frontier:
    """Computes the rows of the command's table: the accuracy and cost of the windows found for each budget of bits.

    All rows share a net, labelled images, a study and the options.
    """

    def __init__(self, subject: Subject, args: argparse.Namespace, command: str) -> None:
        labels = subject.labels
        self.net, self.args, self.study = subject.net, args, study_of(args, subject)
        self.provenance = {**subject.names, "command": command}
        exact = self.study.accuracy(BitConfig())
        if labels is None or exact is None:
            what = "accuracy needs labels" if labels is None else f"no accuracy is known of {self.study.answers}"
            raise InputError(what, where=subject.source, hint="give labels, or use find-bits, which needs none")
        self.exact = exact
        self.facts: Row = {
            **subject.names,
            **{key: getattr(args, key) for key in ("protocol", "parties", "seed")},
            "images": len(labels),
            "exact_accuracy_percent": 100 * self.exact,
            **machine(),
        }

    def row(self, how: str, budget: str) -> Row:
        """Search windows for a budget, and write them to a file; return a row of the table: figures by name.

        how: "searched", or "uniform" for one window for all layers. budget: mean bits of a comparison, as in "6/64", or
        "eco", or "exact" for exact comparisons, without a search. If no windows meet the budget, the row says why, and
        no file is written.
        """
        out = file_of(self.args.out_folder, how, budget)
        row = {"windows": how, "budget": budget}
        try:
            config = self._search(how, budget, what=out.stem, state=state_of(out))
        except ConfigError as problem:
            if problem.where not in _UNMET:
                raise
            return {**row, "met": False, "why": problem.what, **self.facts}
        if ranks.first():
            write_together({out: config.to_json().encode()})
        said, cost = config.provenance, online(self.net, config, self.args, self.study.searched.image_shape)
        return {
            **row,
            "met": True,
            "accuracy_percent": 100 * said["accuracy"],
            "bits_per_comparison": 64 * said["cost"],
            "online_kilobytes_per_image": cost.bits / 8e3,
            "rounds": cost.rounds,
            **self._in_all(config),
            "windows_tried": said["evaluations"],
            "seconds": said["seconds"],
            "file": out.name,
            **self.facts,
        }

    def _in_all(self, config: BitConfig) -> Row:
        """Return the kB that all parties and the dealer send together for an image, as figures by name.

        One figure is for the windows of `config`. With --knobs q, where these windows also round results by q bits
        (`BitWindow`), a second figure is for the same windows with q = 0.
        """
        costs = {"in_all_kilobytes_per_image": config}
        if self.args.knobs:
            costs["in_all_kilobytes_without_q"] = without_q(config)
        in_all = self.study.searched.in_all
        return {key: sum(in_all(each, self.args.parties).values()) / 8e3 for key, each in costs.items()}

    def _search(self, how: str, budget: str, what: str, state: Path) -> BitConfig:
        if budget == "exact":
            return BitConfig(
                provenance={
                    **self.provenance,
                    "how": "exact",
                    "accuracy": self.exact,
                    "cost": 1.0,
                    "evaluations": 1,
                    "seconds": 0.0,
                }
            )
        limit = None if budget == "eco" else read_budget(budget, "bits", "--budgets")
        options = {"provenance": self.provenance, "uniform": how == "uniform", **search_options(self.args)}
        return find_windows(self.study, limit, self.study.objective(), what=what, state=state, **options)


def file_of(folder: Path, how: str, budget: str) -> Path:
    """Return the file in `folder` for the windows of one search, such as 6-64.json, or uniform-6-64.json.

    how: "searched", or "uniform" for one window for all layers. budget: as the option names it, such as "6/64".
    """
    return folder / f"{'uniform-' if how == 'uniform' else ''}{budget.replace('/', '-')}.json"


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a text table: a line for each search, then the reasons of searches that found no windows.

    rows: those of `Frontier.row`, figures by name.
    """
    sizes = {
        "bits_per_comparison": "bits each",
        "online_kilobytes_per_image": "online kB",
        "in_all_kilobytes_without_q": "in all kB without q",
        "in_all_kilobytes_per_image": "in all kB",
    }
    sizes = {key: name for key, name in sizes.items() if any(key in row for row in rows)}
    head = ("budget", "windows", "file", "accuracy %", "lost", *sizes.values(), "rounds", "tried", "seconds")
    lines = []
    for row in rows:
        if not row["met"]:
            lines.append((row["budget"], row["windows"], "none", *["-"] * (len(head) - 3)))
            continue
        lost = row["exact_accuracy_percent"] - row["accuracy_percent"]
        figures = [f"{row[key]:.2f}" for key in sizes]
        last = (f"{row['rounds']}", f"{row['windows_tried']}", f"{row['seconds']:.1f}")
        where = (row["budget"], row["windows"], row["file"])
        lines.append((*where, f"{row['accuracy_percent']:.2f}", f"{lost:.2f}", *figures, *last))
    return "\n".join([text_table(head, lines, left=3), *_reasons(rows)])


def _reasons(rows: Sequence[Row]) -> list[str]:
    return [f"{row['budget']} {row['windows']}: {row['why']}" for row in rows if not row["met"]]


def run(args: argparse.Namespace, load: Callable[[], Subject], command: str, states: list[Path]) -> None:
    """Search windows at every budget; write the windows, the rows and the picture, and print the rows.

    load: returns net, images and labels, after the options are checked. command: the command line, for the provenance.
    states: a list, to which the paths of the searches' state files are added.
    """
    agree_on(args)
    if ranks.first():
        if args.json:
            check_writable(args.json, "--json")
        if args.plot:
            output.check(args.plot, "--plot")
        states += states_of(args)
        check_states(states, args.resume)
    subject = load().settled()
    frontier = Frontier(subject, args, command)
    with progress_line(planned(args), desc="budgets", unit="search") as pairs:
        rows = [frontier.row(*pair) for pair in pairs]
    if not ranks.first():
        return
    if args.json:
        write_json(args.json, rows)
    if args.plot:
        output.draw_frontier(rows, args.plot)
    for state in states:
        state.unlink(missing_ok=True)
    notes = [
        f"answers: {frontier.study.answers}",
        f"online: per party, one image, whole net; {len(subject.images)} images of {subject.source}",
        "in all: from all parties and the dealer, aim throughput",
    ]
    print("\n".join([table(rows), "", *notes]))


def planned(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the searches that the command makes, each as a pair (how, budget).

    how: "searched", or "uniform" for one window for all layers. budget: one of --budgets, such as "6/64", "exact" or
    "eco". Raises ConfigError for an invalid budget.
    """
    budgets = list(dict.fromkeys(args.budgets))
    numbers = [budget for budget in budgets if budget not in _WORDS]
    for budget in numbers:
        read_budget(budget, "bits", "--budgets")
    return [("searched", budget) for budget in budgets] + [("uniform", budget) for budget in numbers if args.uniform]


def states_of(args: argparse.Namespace) -> list[Path]:
    """Return the state files of all searches, from which --resume continues.

    Raises ConfigError for an invalid budget, and InputError if the folder of --out-folder is missing.
    """
    files = [file_of(args.out_folder, *pair) for pair in planned(args)]
    for file in files:
        check_writable(file, "--out-folder")
    return [state_of(file) for file in files]


def main(args: argparse.Namespace, load: Callable[[], Subject], command: str) -> int:
    """Run the command `frontier`; return the exit code: 0 on success, 1 after an `error:` line, 130 after Ctrl-C.

    load: returns net, images and labels, after the options are checked. command: the command line, for the provenance.
    """
    states: list[Path] = []
    return end_ranked(lambda: run(args, load, command, states), lambda: interrupted(states))
