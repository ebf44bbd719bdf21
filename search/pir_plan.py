"""Plans for the private lookups of an application: which keys to send so that a net gets the rows that matter.

    eco        the fastest plan that loses no quality: at most 0.05 %, which is within the noise of the split
    relaxed    the fastest one that loses less than 0.5 % of AUC, or 5 % of perplexity

within --budget-bytes of traffic and --budget-seconds for a pass that serves --clients at once. Of several budgets of
bytes, each gets plans of its own. A grid of plans is priced in closed form with the speed of this machine, measured
first; those that the budgets allow are tried on a few inferences of the validation split; those that no other plan of
their family beats are tried on more, with the net. The test split then says what the chosen ones are worth, and they
are built, checked and timed on its lookups. Profiles are of the training split. Lam et al., ASPLOS 2024, sections 4
and 5.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hummingbird.commands import output
from hummingbird.commands.output import check_writable, write_together
from hummingbird.commands.program import command_of, end, machine
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.kernels.lookups import PRFS
from hummingbird.pir.batching.cost_model import Price, Speed, pareto
from hummingbird.progress import progress_line
from hummingbird.table import text_table
from hummingbird.window_search.objective import read_budget
from search import pir_plots
from search.pir_apps import APPLICATIONS, Application, Evaluation, load_application
from search.pir_grid import COMPANIONS, KINDS, Profile, Recipe, found, recipes, share_dropped
from search.pir_speed import measure
from search.pir_timed import timed

_EPILOG = """examples:
  the recommender:
    python -m search.pir_plan --application movielens --weights checkpoints/movielens-mlp.pt --data DATA

  the language model, with a picture, the paper's devices alone:
    python -m search.pir_plan --application wikitext2 --weights checkpoints/wikitext2-lstm.pt --data DATA \\
        --kinds plain bins --json words.json --plot words.png

A row of the table reads: the budget, keys for the full table (+ for the hot one, of that share of the rows),
companions stored with each row, lookups dropped, quality, kilobytes up and down, inferences per second of one core of
each server by the model and as timed, milliseconds of a pass as timed, and of the client for an inference.
"""
ECO, RELAXED = 5e-4, {"AUC": 5e-3, "perplexity": 5e-2}
_MOST_DROPPED = 0.5  # of the lookups, in plans that are tried with the net
_TIMED = ("timed_inferences_per_second", "timed_pass_seconds", "client_milliseconds", "message_bytes")
Row = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m search.pir_plan",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--application", required=True, choices=APPLICATIONS, help="what looks rows up")
    made.add_argument("--weights", required=True, type=Path, metavar="FILE", help="the net's trained weights")
    made.add_argument("--data", metavar="FOLDER", help="data folder (default: HUMMINGBIRD_DATA)")
    made.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help=f"of plans (default: {' '.join(KINDS)})")
    made.add_argument(
        "--samples", type=int, default=512, metavar="N", help="inferences tried with the net (default: %(default)s)"
    )
    made.add_argument(
        "--screen",
        type=int,
        default=256,
        metavar="N",
        help="inferences that every plan is tried on (default: %(default)s)",
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write all rows tried with the net to a file")
    made.add_argument(
        "--plan", type=Path, metavar="FILE", help="write the fastest eco plan, for clients and `pir-server --plan`"
    )
    made.add_argument("--plot", type=Path, metavar="FILE", help="draw them into a file (.png, .pdf)")
    group = made.add_argument_group("budgets and servers")
    group.add_argument(
        "--budget-bytes",
        nargs="+",
        default=["300kB"],
        metavar="B",
        help="of an inference; the largest of several bounds the search (default: 300kB)",
    )
    group.add_argument("--budget-seconds", default="0.3", metavar="S", help="of a pass (default: %(default)s)")
    group.add_argument(
        "--clients", type=int, default=32, metavar="N", help="inferences that share a pass (default: %(default)s)"
    )
    group.add_argument("--prf", choices=tuple(PRFS), default="aes", help="expands keys (default: %(default)s)")
    return made


class Search:
    """The search for plans of one application: its profile, the speed of this machine, and the budgets."""

    def __init__(self, application: Application, speed: Speed, args: argparse.Namespace) -> None:
        self.application, self.speed, self.clients = application, speed, args.clients
        self.profile = Profile(application.accesses, application.rows)
        self.budgets = read_bytes(args.budget_bytes)
        self.most_seconds = float(read_budget(args.budget_seconds, "seconds", "--budget-seconds"))

    def price(self, recipe: Recipe) -> Price:
        """Compute the price of one inference by a recipe's plan."""
        return recipe.price(self.application.rows, self.application.row_bytes)

    def affordable(self, kinds: Sequence[str]) -> list[Recipe]:
        """Return the recipes of the grid that fit the table and both budgets."""
        fitting = [recipe for recipe in recipes(kinds) if recipe.codes(self.application.rows)]
        return [recipe for recipe in fitting if self._within(self.price(recipe))]

    def _within(self, price: Price) -> bool:
        return price.bytes <= self.budgets[0] and self.clients * self.speed.seconds(price) <= self.most_seconds

    def front(self, candidates: Iterable[Recipe], evaluation: Evaluation, count: int) -> list[Recipe]:
        """Return, family by family, the recipes that no other of the family beats.

        A recipe beats another if it is as good in dropped lookups, seconds and bytes, and better in one of them: within
        any budget of bytes, the fastest plan is among those returned. Lookups are counted on the first `count`
        inferences of `evaluation`.
        """
        families: dict[str, list[tuple[Recipe, float]]] = {}
        complete: list[Recipe] = []  # that drop nothing: more keys would only cost more
        for recipe in candidates:
            if any(
                recipe == replace(less, full=recipe.full, hot=recipe.hot) for less in complete if _fewer(less, recipe)
            ):
                continue
            dropped = share_dropped(found(self.profile.plan(recipe), evaluation.wanted[:count]))
            if dropped <= _MOST_DROPPED:
                families.setdefault(recipe.family, []).append((recipe, dropped))
            if dropped == 0:
                complete.append(recipe)
        kept = []
        for tried in families.values():
            prices = [self.price(recipe) for recipe, _ in tried]
            costs = [(share, self.speed.seconds(p), p.bytes) for p, (_, share) in zip(prices, tried, strict=True)]
            kept += [tried[number][0] for number in pareto(costs)]
        return kept

    def row(self, recipe: Recipe, evaluation: Evaluation, exact: float) -> Row:
        """Try a recipe's plan with the net on `evaluation`; returns the recipe, its quality and its price.

        exact: the net's quality if all rows are found.
        """
        marks, price = found(self.profile.plan(recipe), evaluation.wanted), self.price(recipe)
        quality, seconds = evaluation.quality(marks), self.speed.seconds(price)
        return {
            "family": recipe.family,
            **{name: getattr(recipe, name) for name in Recipe.__dataclass_fields__},
            "dropped_percent": 100 * share_dropped(marks),
            "quality": quality,
            "loss_percent": 100 * self.application.loss(quality, exact),
            "keys": price.keys,
            "bytes_per_inference": price.bytes,
            "rows_read": price.rows,
            "bytes_read": price.read,
            "prf_blocks": price.blocks,
            "inferences_per_second": 1 / seconds,
            "pass_seconds": self.clients * seconds,
            **dict.fromkeys(_TIMED),
        }

    def time(self, row: Row, test: Evaluation, prf: str) -> Row:
        """Time a row's plan: real servers and a real client look up rows for inferences of the test split.

        prf: the pseudo-random function that expands keys. Returns the fields of the row that are measured.
        """
        wanted = [test.wanted[number * len(test.wanted) // self.clients] for number in range(self.clients)]
        took = timed(self.application.table, self.profile.plan(_recipe(row)), wanted, prf)
        if took.content != row["bytes_per_inference"]:
            what = f"messages have {took.content} bytes of keys and records, not {row['bytes_per_inference']}"
            raise HummingbirdError(what, where=row["family"])
        figures = (self.clients / took.server, took.server, 1e3 * took.client, took.messages)
        return dict(zip(_TIMED, figures, strict=True))


def _recipe(row: Row) -> Recipe:
    return Recipe(**{name: row[name] for name in Recipe.__dataclass_fields__})


def _fewer(one: Recipe, other: Recipe) -> bool:
    return one.full <= other.full and one.hot <= other.hot and bool(one.hot) == bool(other.hot)


def read_bytes(budgets: Sequence[str]) -> list[float]:
    """Read the budgets of --budget-bytes; returns bytes, the largest first. Raises InputError as `read_budget` does."""
    return sorted({float(read_budget(budget, "bytes", "--budget-bytes")) for budget in budgets}, reverse=True)


def chosen(rows: Sequence[Row], measure: str, budget: float) -> list[tuple[str, Row]]:
    """Choose, for every kind of plan, the fastest row that is eco, and the fastest that is relaxed (module head).

    measure: name of the quality. budget: most bytes of an inference. Returns pairs of the word "eco" or "relaxed" and
    the row.
    """
    out: list[tuple[str, Row]] = []
    rows = [row for row in rows if row["bytes_per_inference"] <= budget]
    for kind in KINDS:
        for word, most in (("eco", ECO), ("relaxed", RELAXED[measure])):
            fitting = [row for row in rows if row["kind"] == kind and row["loss_percent"] <= 100 * most]
            if fitting:
                out.append((word, max(fitting, key=lambda row: row["inferences_per_second"])))
    return out


def run(args: argparse.Namespace, command: str) -> None:
    """Measure, search, write rows and picture, and print the chosen plans and their quality on the test split.

    command: the command line, which is written with the rows.
    """
    if min(args.samples, args.screen, args.clients) < 1:
        raise InputError("a number below 1", where="--samples, --screen, --clients", hint="all are 1 or more")
    read_bytes(args.budget_bytes)
    read_budget(args.budget_seconds, "seconds", "--budget-seconds")
    for path, option in ((args.json, "--json"), (args.plan, "--plan")):
        if path:
            check_writable(path, option)
    if args.plot:
        output.check(args.plot, "--plot")
    application = load_application(args.application, args.weights, args.data)
    speed, error = measure(
        application.rows, [application.row_bytes * (1 + c) for c in COMPANIONS], args.clients, args.prf
    )
    search, evaluation = Search(application, speed, args), application.evaluation("validation", args.samples)
    exact = evaluation.quality([wanted >= 0 for wanted in evaluation.wanted])
    with progress_line(search.affordable(args.kinds), desc="plans", unit="plan") as bar:
        front = search.front(bar, evaluation, args.screen)
    test = application.evaluation("test", args.samples)
    base = test.quality([wanted >= 0 for wanted in test.wanted])
    facts = {
        **{"application": application.name, "measure": application.measure, "higher_is_better": application.higher},
        **{"split": "validation", "inferences": len(evaluation.wanted), "exact": exact},
        **{"test_inferences": len(test.wanted), "test_exact": base, "command": command},
        **{"table_rows": application.rows, "row_bytes": application.row_bytes, "clients": args.clients},
        **{"budgets_bytes": search.budgets, "budget_seconds": search.most_seconds, "prf": args.prf},
        **{"speed_model_error_percent": 100 * error, **machine()},
    }
    with progress_line(front, desc="quality", unit="plan") as bar:
        rows = [{**search.row(recipe, evaluation, exact), **facts} for recipe in bar]
    if not rows:
        hint = "more bytes or seconds, or fewer clients in a pass"
        raise InputError("no plan is within the budgets", where="--budget-bytes, --budget-seconds", hint=hint)
    picked = {budget: chosen(rows, application.measure, budget) for budget in search.budgets}
    for row in progress_line([row for pairs in picked.values() for _, row in pairs], desc="timing", unit="plan"):
        if "test_quality" in row:  # chosen twice
            continue
        row |= search.time(row, test, args.prf)
        row["test_quality"] = test.quality(found(search.profile.plan(_recipe(row)), test.wanted))
        row["test_loss_percent"] = 100 * application.loss(row["test_quality"], base)
    contents: dict[Path, bytes] = {}
    if args.json:
        contents[args.json] = (json.dumps(rows, indent=2) + "\n").encode()
    eco = [row for word, row in picked[search.budgets[0]] if word == "eco"]
    if args.plan and eco:
        best = max(eco, key=lambda row: row["inferences_per_second"])
        contents[args.plan] = search.profile.plan(_recipe(best)).to_json().encode()
    write_together(contents)
    if args.plot:
        pir_plots.draw(rows, args.plot)
    print(table(picked, application.measure))
    print(
        f"\n{application.rows:,} rows of {application.row_bytes} bytes; all rows found: {application.measure} "
        f"{exact:.4f} (validation), {base:.4f} (test); {len(evaluation.wanted)} and {len(test.wanted)} inferences\n"
        f"{len(rows)} plans tried with the net; speed model within {100 * error:.0f} % of what was measured here, "
        f"{args.clients} inferences in a pass"
    )
    if args.plan and not eco:
        raise InputError("no plan is eco", where="--plan", hint="more kinds of plans, or larger budgets")


def table(picked: Mapping[float, Sequence[tuple[str, Row]]], measure: str) -> str:
    """Format the chosen plans as a text table.

    picked: for each budget of bytes the result of `chosen`. measure: name of the quality.
    """
    head = (
        "within kB",
        "plan",
        "",
        "keys",
        "hot",
        "beside",
        "dropped %",
        measure,
        "loss %",
        "test loss %",
        "kB",
        "per second",
        "timed",
        "ms",
        "client ms",
    )
    lines = []
    for budget, word, row in ((budget, *pair) for budget, pairs in picked.items() for pair in pairs):
        hot = f"{row['hot']} of {100 * row['share']:g} %" if row["hot"] else "-"
        figures = (row["dropped_percent"], row["quality"], row["loss_percent"], row["test_loss_percent"])
        texts = [f"{figures[0]:.2f}", f"{figures[1]:.4f}", f"{figures[2]:.2f}", f"{figures[3]:.2f}"]
        speed = [f"{row['inferences_per_second']:,.0f}", f"{row['timed_inferences_per_second']:,.0f}"]
        speed += [f"{1e3 * row['timed_pass_seconds']:.2f}", f"{row['client_milliseconds']:.2f}"]
        traffic = f"{row['bytes_per_inference'] / 1e3:.1f}"
        plan = (row["family"], word, str(row["full"]), hot, str(row["companions"]))
        lines.append((f"{budget / 1e3:g}", *plan, *texts, traffic, *speed))
    return text_table(head, lines, left=3)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns 0 on success, 1 after an `error:` line, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    args = parser().parse_args(words)
    return end(lambda: run(args, command_of("search.pir_plan", words)), lambda: "interrupted: nothing was written")


if __name__ == "__main__":
    sys.exit(main())
