"""`validate`: measures the accuracy that a net loses with its windows, and the windows' margins, on images without
parties.

An accuracy p on n images has a standard error of sqrt(p (1 - p) / n), for other images of the same kind. The loss is
measured on the same images, so that its error is smaller: with b predictions changed from right to wrong and c from
wrong to right, the error of (c - b) / n is sqrt(b + c - (c - b)^2 / n) / n (McNemar, "Note on the sampling error of the
difference between correlated proportions", 1947). Comparisons with m > 0 prune at random (HummingBird, section 4): the
mean of R runs with different seeds has a standard error of s / sqrt(R), where s is their standard deviation.

With --dealer pair the twin has the forms of a net that two parties run without a dealer: splines of comparisons in
place of tables of polynomials. Weights have the bits of fraction that the file of windows names (`weight_bits`).

Warns of images beyond the range for which the windows were made (`input_range`): their values may leave the windows.

A sign is right if |x| < 2^(k-1), in ring units (2^16 is one). A layer's margin is log2(2^(k-1) / largest |x|), for x
compared with the windows in place; with --cut, in the net without windows.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

import hummingbird
from hummingbird import ranks
from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.commands.output import check_writable, write_json
from hummingbird.commands.program import NOTES, add_command, agree_on, end_ranked, machine
from hummingbird.commands.subject import Subject, add_subject_arguments, predict, subject_of
from hummingbird.errors import InputError
from hummingbird.hybrid.convert import PROTOCOL
from hummingbird.mpc.pair.dealer import transfers_of
from hummingbird.mpc.protocols.step_tables import TableChoice
from hummingbird.progress import progress_line
from hummingbird.ring import SCALE
from hummingbird.simulation.observe import magnitudes
from hummingbird.table import text_table

HELP = "Compare a net with and without windows, and measure how much room the windows leave."
_EPILOG = """example, with my_net.py and my_data.py in the current folder:
    python -m hummingbird validate --model my_net:net --weights net.pt --bits bits.json --data my_data:images test

my_net.net() returns the net; my_data.images("test") returns a pair of images (N, ...) and labels (N,), a data set, or a
DataLoader.
"""


def add_parser(commands: Any) -> None:
    """Add the command `validate`, with its options, to the command line."""
    sub = add_command(commands, "validate", HELP, HELP, _EPILOG + NOTES)
    add_arguments(sub)
    add_subject_arguments(sub, "--data", "images to measure on, and their labels")
    sub.set_defaults(run=lambda args: main(args, lambda: subject_of(args)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options of `validate` but those that name the net and its images."""
    parser.add_argument("--bits", required=True, type=Path, metavar="FILE", help="the windows")
    parser.add_argument(
        "--cut",
        action="store_true",
        help="compute as two parties without a dealer do (gc-server), in integers; for windows of find-bits --cut",
    )
    text = "two parties without a dealer, whose nets have splines in place of tables; for sessions with this dealer"
    parser.add_argument("--dealer", metavar="pair[:HOW]", help=text)
    parser.add_argument(
        "--repeat", type=int, default=5, metavar="R", help="runs with different seeds (default: %(default)s)"
    )
    parser.add_argument(
        "--margin",
        type=float,
        default=0.5,
        help="warn if the margin of a window with m = 0 is smaller, in bits (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, a row for each layer")


def standard_error(accuracy: float, n: int) -> float:
    """Return the standard error of an accuracy that was measured on n images."""
    return math.sqrt(accuracy * (1 - accuracy) / n)


def paired_error(lost: float, won: float, n: int) -> float:
    """Return the standard error of a change of accuracy, measured twice on the same n images: of (won - lost) / n.

    lost: number of predictions that changed from right to wrong. won: number that changed from wrong to right.
    """
    return math.sqrt(max(0.0, lost + won - (won - lost) ** 2 / n)) / n


def mean_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of `values`, from runs with different seeds; NaN for a single run."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


@dataclass(frozen=True)
class Validation:
    """The result of `validate`: the accuracy without and with windows, and how many predictions the windows change.

    images: their number. runs: number of simulated runs with windows, over which all figures with windows are means.
    accuracy_plain, accuracy: without and with windows, 0 to 1. accuracy_error_of_runs: standard error of that mean.
    changed: predictions that the windows change; right_to_wrong, wrong_to_right: those that change an answer's
    correctness.
    """

    images: int
    runs: int
    accuracy_plain: float
    accuracy: float
    accuracy_error_of_runs: float | None  # None for a single run
    changed: float
    right_to_wrong: float
    wrong_to_right: float


@dataclass(frozen=True)
class WindowRange:
    """A layer's window, and how far the values that it compares are from leaving the window.

    k, m, q: of the window. largest: the largest |x| that the layer compares, a real number. limit: the |x| from which
    signs are wrong, 2^(k-1) in ring units, as a real number. margin_bits: log2(limit / largest). warning: a text, or
    "".
    """

    layer: str
    k: int
    m: int
    q: int
    largest: float
    limit: float  # 2^(k-1) in ring units
    margin_bits: float | None  # None if nothing but zeros is compared
    warning: str


def _aim(args: argparse.Namespace) -> str:
    """Return the aim of the twin's tables by --dealer. Raises InputError for one that is not of two parties alone."""
    if args.dealer is None:
        return "latency"
    transfers = transfers_of(args.dealer)
    if transfers is None or args.cut or args.parties != 2:
        hint = "--dealer pair, pair:silent or pair:RTT:BANDWIDTH, with two parties and without --cut; "
        raise InputError(
            f"validate with the dealer {args.dealer}", where="--dealer", hint=f"{hint}leave it out for other dealers"
        )
    return str(TableChoice("pair", transfers=transfers))


def outcome(subject: Subject, config: BitConfig, args: argparse.Namespace) -> Validation:
    """Run the net, and `args.repeat` simulations of it with windows and different seeds; return how predictions differ.

    subject: the net, images and labels. config: the windows. Returns a `Validation`. Raises the errors of `simulate`.
    """
    net, images, labels = subject.net, subject.images, subject.labelled
    hummingbird.simulate(net, config, args.protocol, args.parties, cut=args.cut, aim=_aim(args))  # warns of other use
    windows = config if args.cut else config.windows  # `input_range` determines the width of --cut's integers
    runs = [
        hummingbird.simulate(
            net, windows, args.protocol, args.parties, seed=args.seed + run, cut=args.cut, aim=_aim(args)
        )
        for run in range(args.repeat)
    ]
    bar = progress_line([net, *runs], desc="runs", unit="run")
    plain, *predicted = (predict(model, images) for model in bar)
    right, total = plain == labels, len(labels)
    hits = [int((found == labels).sum()) for found in predicted]
    error = mean_error([hit / total for hit in hits])
    return Validation(
        total,
        len(runs),
        int(right.sum()) / total,
        sum(hits) / total / len(runs),
        None if math.isnan(error) else error,
        sum(int((found != plain).sum()) for found in predicted) / len(runs),
        sum(int((right & (found != labels)).sum()) for found in predicted) / len(runs),
        sum(int((~right & (found == labels)).sum()) for found in predicted) / len(runs),
    )


def reached(subject: Subject, config: BitConfig, args: argparse.Namespace) -> dict[str, int]:
    """Return the largest |x| that each layer compares on the subject's images, by name, in ring units.

    config: the windows, which are applied during the measurement. With --cut they are not, and only layers with a
    window are in the result.
    """
    options = {"protocol": args.protocol, "parties": args.parties, "seed": args.seed, "aim": _aim(args)}
    with progress_line(total=len(subject.images), desc="magnitudes", unit="image") as bar:
        found = magnitudes(
            subject.net,
            subject.images,
            None if args.cut else config.windows,
            **options,
            progress=lambda done, _: bar.update(done - bar.n),
        )
    # A max pooling before a ReLU takes its window from the ReLU's.
    return {name: most for name, most in found.items() if not args.cut or config.window(name) != EXACT}


def rooms(largest: Mapping[str, int], config: BitConfig, margin: float) -> list[WindowRange]:
    """Return for each layer how far the values that it compares are from leaving its window, as a `WindowRange`.

    largest: the largest |x| that each layer compares, by name, in ring units. config: the windows. margin: bits. A
    layer gets a warning if its largest |x| is beyond the window's limit 2^(k-1). A window that is to change no decision
    (m = q = 0) also gets one if log2(limit / largest |x|) is below `margin`.
    """
    found = []
    for name, most in largest.items():
        window = config.window(name)
        bits = window.k - 1 - math.log2(most) if window.w and most else None
        seen, limit = most / 2**SCALE, 2.0 ** (window.k - 1 - SCALE)
        warning = ""
        if bits is not None and bits < 0:
            warning = f"|x| reaches {seen:.4g}, beyond the window's {limit:g}: such values have wrong signs"
        elif bits is not None and bits < margin and window.low == 0:
            warning = f"{bits:.2f} bits from |x| = {seen:.4g} to the window's {limit:g}: other images may leave it"
        found.append(WindowRange(name, window.k, window.m, window.q, seen, limit, bits, warning))
    return found


def beyond(images: Tensor, config: BitConfig) -> str:
    """Return a warning if some of images (N, ...) exceed the range for which the windows were made, else ""."""
    most = config.input_range
    sizes = images.flatten(1).abs().amax(1)
    if most is None or not (far := int((sizes > most).sum())):
        return ""
    reach = f"|x| reaches {float(sizes.max()):.4g}, beyond the {most:.4g} that the windows were made for"
    return f"{far} of {len(images)} images: {reach}"


def show(result: Validation, found: Sequence[WindowRange], images: str) -> None:
    """Print the accuracies, how many predictions changed, the layers' windows and the warnings.

    result: the accuracies. found: each layer's window and how much room it leaves. images: the origin of the images.
    """
    n, lost, won = result.images, result.right_to_wrong, result.wrong_to_right
    plain, spread = result.accuracy_plain, result.accuracy_error_of_runs
    runs = "one run" if spread is None else f"mean of {result.runs} runs, standard error {100 * spread:.3f}"
    change, error = 100 * (won - lost) / n, 100 * paired_error(lost, won, n)
    print(f"images        {n:,} of {images}")
    print(f"plain         {100 * plain:.2f} %, standard error {100 * standard_error(plain, n):.2f}")
    print(f"with windows  {100 * result.accuracy:.2f} % ({runs})")
    print(f"change        {change:+.2f} %, standard error {error:.2f} on the same images")
    print(f"flips         {result.changed:.1f} a run: {lost:.1f} right to wrong, {won:.1f} wrong to right\n")
    rows = []
    for room in found:
        margin = "-" if room.margin_bits is None else f"{room.margin_bits:.2f}"
        limit = f"{room.limit:g}" if room.k else "identity"
        rows.append((room.layer, str(BitWindow(room.k, room.m, room.q)), f"{room.largest:.4g}", limit, margin))
    print(text_table(("layer", "window", "largest |x|", "2^(k-1)", "margin bits"), rows))
    for room in found:
        if room.warning:
            print(f"warning: {room.layer}: {room.warning}")


def run(args: argparse.Namespace, load: Callable[[], Subject]) -> None:
    """Measure accuracies and margins, print them, and write them to the file of --json.

    load: returns net, images and labels, after the options are checked.
    """
    if args.repeat < 1:
        raise InputError(f"{args.repeat} runs", where="--repeat", hint="1 or more; 2 or more tell how runs differ")
    agree_on(args)
    _aim(args)
    if args.json is not None and ranks.first():
        check_writable(args.json, "--json")
    config = BitConfig.load(args.bits)
    subject = load().settled()
    ranks.agree(lambda: {**subject.facts(), "--bits": config})
    result = outcome(subject, config, args)
    largest = reached(subject, config, args)
    if not ranks.first():
        return
    found = rooms(largest, config, args.margin)
    show(result, found, subject.source)
    if warning := beyond(subject.images, config):
        print(f"warning: {warning}")
    if args.json is not None:
        labelled: dict[str, Any] = {
            **subject.names,
            **{key: getattr(args, key) for key in ("protocol", "parties", "seed", "dealer")},
        }
        if args.cut:
            labelled["protocol"] = PROTOCOL
        labelled |= {"input_range": config.input_range, "largest_input": float(subject.images.abs().max())}
        write_json(args.json, [{**labelled, **asdict(result), **asdict(room), **machine()} for room in found])


def main(args: argparse.Namespace, load: Callable[[], Subject]) -> int:
    """Run the command `validate`; return the exit code: 0 on success, 1 after an `error:` line, 130 after Ctrl-C.

    load: returns net, images and labels, after the options are checked. Warnings do not change the exit code.
    """
    return end_ranked(lambda: run(args, load), lambda: "interrupted: nothing was written")
