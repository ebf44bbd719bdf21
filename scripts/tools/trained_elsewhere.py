"""Nets that others trained, in private: their error, the decisions that stay, bytes, rounds and seconds.

    python -m scripts.tools.trained_elsewhere --list
    python -m scripts.tools.trained_elsewhere alexa rnet --json rows.json

The nets are those of `scripts.tools.trained_nets`. Each one runs twice between two parties of this machine, with a
dealer online: with exact comparisons, and with the windows that `hummingbird.prepare` finds. Every other input chooses
the windows, the rest are measured. A net whose package is not installed is left out, with a line that says so.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.errors import EnvironmentProblem, InputError, ModelError
from hummingbird.mpc.session.session import Session
from hummingbird.progress import progress_line
from scripts.program import add_json, main_of, maybe, new_parser, taken, write_rows
from scripts.tools.trained_nets import NETS, Trained

BATCH, VALUES = 25, 60_000  # at once: inputs, and values in these, since large inputs have large material
RUNS = 3  # of one input; the median counts


def tensors(results: Any) -> list[Any]:
    """A net's results as a list."""
    return list(results) if isinstance(results, tuple) else [results]


def infer(session: Session, net: nn.Module, inputs: Tensor, choices: Sequence[Any]) -> list[Any]:
    """At a party, for each choice of windows: the results of all inputs, and seconds of one, from share to result."""

    def run(private: Any, batch: Tensor) -> list[Any]:
        shared = hummingbird.cryptensor(batch if session.rank == 0 else None, src=0)
        return [result.get_plain_text() for result in tensors(private(shared))]

    found = []
    for bits in choices:
        private = hummingbird.convert_model(net, bits=bits, example=inputs[:1])
        batches = [run(private, batch) for batch in inputs.split(max(1, min(BATCH, VALUES // inputs[0].numel())))]
        one = statistics.median(taken(partial(run, private, inputs[:1])) for _ in range(RUNS))
        found.append(([torch.cat(parts) for parts in zip(*batches, strict=True)], one))
    return found


def compared(trained: Trained, inputs: Tensor, results: Sequence[Tensor]) -> dict[str, float]:
    """The largest error in percent of the largest value, over all results, and the percent of decisions that stay."""
    with torch.no_grad():
        plain = tensors(trained.net(inputs))
    pairs = list(zip(results, plain, strict=True))
    error = max(float((got - wanted).abs().max() / wanted.abs().max()) for got, wanted in pairs)
    stay = (trained.decided(results) == trained.decided(plain)).float().mean()
    return {"error": 100 * error, "decisions": 100 * float(stay)}


def rows_of(name: str, trained: Trained) -> list[dict[str, Any]]:
    """The rows of a net: with exact comparisons and with windows, or the reason why it is refused."""
    chosen, measured = trained.inputs[::2], trained.inputs[1::2]
    row = {"net": name, "input": " x ".join(map(str, measured.shape[1:])), "inputs": len(measured)}
    try:
        found = hummingbird.prepare(trained.net, chosen, trained.budget, test=measured, margin=0.0)
    except ModelError as error:
        return [{**row, "refused": str(error.problems[0])}]
    rows, choices = [], (found.choices[0], found.choices[-1])
    ran = hummingbird.launch(infer, trained.net, measured, [choice.bits for choice in choices])[0]
    for choice, (results, seconds) in zip(choices, ran, strict=True):
        costs = choice.costs
        rows.append(
            {
                **row,
                "windows": choice.name,
                **compared(trained, measured, results),
                "online_mb": costs.online_bytes / 1e6,
                "offline_mb": costs.offline_bytes / 1e6,
                "rounds": costs.rounds,
                "seconds": seconds,
            }
        )
    return rows


SHOWN = (
    ("net", "`{net}`"),
    ("input", "{input}"),
    ("windows", "{windows}"),
    ("error, %", maybe("error", ".2g")),
    ("decisions kept, %", maybe("decisions", ".5g")),
    ("of inputs", "{inputs}"),
    ("online, MB", maybe("online_mb", ".3g")),
    ("offline, MB", maybe("offline_mb", ".3g")),
    ("rounds", "{rounds}"),
    ("seconds", maybe("seconds", ".2f")),
)


def page_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as the page has them, in Markdown."""
    lines = [[heading for heading, _ in SHOWN]]
    lines += [[cell.format(**row) if isinstance(cell, str) else cell(row) for _, cell in SHOWN] for row in rows]
    head, *others = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([head, "|" + "---|" * 3 + "---:|" * (len(SHOWN) - 3), *others])


def parser() -> argparse.ArgumentParser:
    p = new_parser(__doc__)
    p.add_argument("nets", nargs="*", metavar="NET", help="by default all")
    p.add_argument("--list", action="store_true", help="print the names of the nets")
    add_json(p)
    return p


def run(args: argparse.Namespace) -> None:
    if unknown := [name for name in args.nets if name not in NETS]:
        raise InputError(f"there is no net {', '.join(unknown)}", where="NET", hint=f"of {', '.join(NETS)}")
    if args.list:
        print("\n".join(NETS))
        return
    warnings.simplefilter("ignore")  # of files that were written by old releases
    rows = []
    for name in progress_line(args.nets or list(NETS), unit="net"):
        try:
            rows += rows_of(name, NETS[name]())
        except EnvironmentProblem as missing:
            rows.append({"net": name, "missing": str(missing)})
        write_rows(args.json, rows)
    print(page_table([row for row in rows if "windows" in row]))
    for row in rows:
        if "refused" in row:
            print(f"{row['net']} is refused: {row['refused']}")
        if "missing" in row:
            print(f"{row['net']} did not run: {row['missing']}")


main = main_of(parser, run)
if __name__ == "__main__":
    sys.exit(main())
