"""`find-bits`: finds windows for every layer of a trained net, those of HummingBird-eco or those within a budget.

    eco         no budget: m = 0, and k above the largest |x| of every layer, so that no prediction changes
    a budget    the most accurate windows whose cost, in bits kept, bytes sent or seconds on the wire, is within it
    --knobs q   then, for each group, how many fraction bits of its results can be rounded away, for fewer bytes in all

Maeng and Suh, "HummingBird", 2023, sections 4.2 and 4.3. Everything runs on plain tensors, before any party starts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from hummingbird import ranks
from hummingbird.bits import BitConfig
from hummingbird.commands import output
from hummingbird.commands.output import check_writable, write_together
from hummingbird.commands.program import NOTES as RANKS
from hummingbird.commands.program import add_command, agree_on, command_of, end_ranked
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
from hummingbird.errors import ConfigError
from hummingbird.hybrid import make_plan, prices
from hummingbird.simulation.observe import find_rows, ranges
from hummingbird.table import text_table
from hummingbird.window_search import Objective
from hummingbird.window_search.objective import read_budget
from hummingbird.window_search.prepare import layer_table
from hummingbird.window_search.rounding import without_q
from hummingbird.window_search.study import OBJECTIVES, Study, find_windows, shown

HELP = "Find windows for every layer of a trained net."
_EPILOG = """examples, with my_net.py and my_data.py in the current folder:
  windows that change no prediction on these images; then 6 bits of 64 on average:
    python -m hummingbird find-bits --model my_net:net --weights net.pt --data my_data:images validation --out eco.json
    python -m hummingbird find-bits --model my_net:net --weights net.pt --data my_data:images validation \\
        --budget 6/64 --out 6-64.json --plot 6-64.png

  the same bits in fewer bytes: results of layers are rounded too, as far as the accuracy allows:
    python -m hummingbird find-bits --model my_net:net --weights net.pt --data my_data:images validation \\
        --budget 8/64 --knobs q --out bits.json

  at most 500 kB sent by each party for an image:
    python -m hummingbird find-bits --model my_net:net --weights net.pt --data my_data:images validation \\
        --objective bytes --budget 500kB --out bits.json

my_net.net() returns the net; my_data.images("validation") returns images (N, ...), a pair of images and labels
(N, ...), a data set, or a DataLoader.
"""
NOTES = (
    """
A search keeps its answers in OUT.state. After Ctrl-C or a kill the same command with --resume finishes with the same
result. docs/bit-config.md describes OUT; `infer --bits` and convert_model(bits=...) read it.
"""
    + RANKS
)
_PAID = {
    "bits": "of the bits of all comparisons",
    "bytes": "sent by comparing layers, per party and image",
    "seconds": "on the wire for comparing layers, per batch",
}


def add_parser(commands: Any) -> None:
    """Add the command `find-bits`, with its options, to the command line."""
    sub = add_command(commands, "find-bits", HELP, __doc__, _EPILOG + NOTES)
    add_arguments(sub)
    add_subject_arguments(sub, "--data", "images on which the windows are chosen, with labels for the accuracy")
    sub.set_defaults(run=lambda args: main(args, lambda: subject_of(args), command_of("hummingbird", args.words)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options of `find-bits` but those that name the net and its images."""
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="file for the windows")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the windows to a file (.png, .pdf)")
    parser.add_argument(
        "--cut",
        action="store_true",
        help="windows for gc-server, two parties without a dealer, evaluated in its integer arithmetic; needs a budget "
        "of bits",
    )
    parser.add_argument(
        "--rows",
        action="store_true",
        help="also write the ranges of the rows of softmaxes and norms on these images, plus a quarter: both layers "
        "then cost a fraction, and rows beyond give noise (docs/bit-config.md)",
    )
    add_search_arguments(parser)
    group = parser.add_argument_group("budget")
    group.add_argument(
        "--budget",
        metavar="B",
        help="bits: a fraction, 8/64; bytes: per party and image, 120kB; seconds: per batch, 0.05. Default: none, eco",
    )
    group.add_argument("--objective", choices=OBJECTIVES, default="bits", help="unit of cost (default: %(default)s)")
    group.add_argument(
        "--bandwidth", type=float, default=1e10, metavar="BPS", help="seconds: bits per second (default: %(default)g)"
    )
    group.add_argument(
        "--rtt", type=float, default=0.0, metavar="S", help="seconds: round-trip time (default: %(default)g)"
    )
    group.add_argument(
        "--batch-images",
        type=int,
        default=1,
        metavar="N",
        help="bytes, seconds: images that share rounds and headers (default: %(default)s)",
    )


def wire(args: argparse.Namespace, net: nn.Module, config: BitConfig, shape: Sequence[int]) -> str:
    """Return, as text, how many bytes one image through the whole net costs on the wire.

    config: the windows. shape: of one image. With --cut, the bytes are those of two parties without a dealer, offline
    and online; otherwise those that a party sends online, with and without windows.
    """
    if args.cut:
        plan = make_plan(net, shape, config).plan
        offline, online_ = (sum(found(plan).values()) / 1e6 for found in (prices.offline, prices.online))
        return f"{online_:,.2f} MB, offline {offline:,.2f} MB (both ways, one image, whole net)"
    costs = online(net, BitConfig(), args, shape), online(net, config, args, shape)
    exact, cheap = (f"{cost.bits / 8e3:,.2f} kB in {cost.rounds} rounds" for cost in costs)
    return f"exact {exact}, with windows {cheap} (per party, one image, whole net)"


def summary(config: BitConfig, objective: Objective, wire: str, source: str) -> str:
    """Return the result of a search as lines of text: accuracies, budget and cost, price on the wire, effort.

    config: the windows found. objective: what the search counts as cost. wire: the price on the wire, as text. source:
    the origin of the images.
    """
    said = config.provenance
    budget = "none (eco)" if said["budget"] is None else shown(objective.name, said["budget"])
    lines = [
        ("answers", said["answers"]),
        ("accuracy", _accuracies(said)),
        ("", f"of {said['samples']} images of {source}, which chose the windows{_agreeing(said)}"),
        ("distance", f"{100 * said['distance']:.2f} % of the outputs' spread from the exact net's"),
        ("budget", f"{budget}, cost {shown(objective.name, said['cost'])} {_PAID[objective.name]}"),
        ("online", wire),
        ("search", f"{said['seconds']:.1f} s, {said['evaluations']} windows tried"),
    ]
    if uniform := said.get("uniform"):
        kept = f"{100 * uniform['accuracy']:.2f} % by the same criterion"
        lines.append(("uniform", f"[{uniform['k']}:{uniform['m']}), the best window for all layers: {kept}"))
    if rounding := said.get("rounding"):
        lines += [("in all", _in_all(rounding)), ("", _rounded(rounding))]
    if below := said["below_range"]:
        why = "no windows found that hold all values seen keep as many answers as the best uniform window"
        lines.append(("forced", f"k below the largest |x| in {', '.join(below)}: within the budget, {why}"))
    return "\n".join(f"{what:10}{text}" for what, text in lines)


def _accuracies(said: Mapping[str, Any]) -> str:
    if said["exact_accuracy"] is None:
        return "not known: no labels for these answers"
    return f"exact {100 * said['exact_accuracy']:.2f} %, with windows {100 * said['accuracy']:.2f} %"


def _agreeing(said: Mapping[str, Any]) -> str:
    return f"; {100 * said['agreement']:.2f} % of the answers are the exact net's" if "agreement" in said else ""


def _in_all(rounding: Mapping[str, Any]) -> str:
    costs = (f"{rounding[key] / 1e3:,.2f} kB" for key in ("bytes_in_all_without", "bytes_in_all"))
    kept = f"{100 * rounding['kept_without']:.2f} %"
    return "without q {}, with q {}; without q {} by the same criterion".format(*costs, kept)


def _rounded(rounding: Mapping[str, Any]) -> str:
    groups = ", ".join(f"{name} {q}" for name, q in rounding["q"].items())
    return f"from all parties and the dealer, one image, whole net, aim throughput; q: {groups}"


def in_all_table(study: Study, config: BitConfig) -> str:
    """Return a text table of the kB that all parties and the dealer send together for an image, by layer and in all.

    config: windows, some of which round results by q bits (`BitWindow`). One column is for these windows, another one
    for the same windows with q = 0.
    """
    costs = [study.searched.in_all(each, study.parties) for each in (without_q(config), config)]
    rows = []
    for layer in study.layers:
        window = config.window(layer.name)
        numbers = (str(number) for number in (window.k, window.m, window.q))
        rows.append((layer.name, *numbers, *(f"{cost[layer.name] / 8e3:,.2f}" for cost in costs)))
    rows.append(("whole net", "", "", "", *(f"{sum(cost.values()) / 8e3:,.2f}" for cost in costs)))
    return text_table(("layer", "k", "m", "q", "in all kB without q", "with q"), rows, total=True)


def run(args: argparse.Namespace, load: Callable[[], Subject], command: str) -> None:
    """Search windows, write them, and print the result.

    load: returns net and images, after the options are checked. command: the command line, for the provenance.
    """
    limit = None if args.budget is None else read_budget(args.budget, args.objective, "--budget")
    if args.cut and args.knobs:
        hint = "leave out one of them: two parties without a dealer take windows without q"
        raise ConfigError(f"--knobs {args.knobs} with --cut", where="--knobs", hint=hint)
    if args.cut and args.rows:
        raise ConfigError("--rows with --cut", where="--rows", hint="leave out one of them: gc-server takes no rows")
    agree_on(args)
    state = state_of(args.out)
    if ranks.first():
        check_writable(args.out, "--out")
        if args.plot:
            output.check(args.plot, "--plot")
        check_states([state], args.resume)
    subject = load().settled()
    study = study_of(args, subject, cut=args.cut)
    link = {"bandwidth": args.bandwidth, "rtt": args.rtt, "images": args.batch_images}
    objective = study.objective(args.objective, **link)
    try:
        config = find_windows(
            study,
            limit,
            objective,
            what=args.budget or "eco",
            state=state,
            provenance={**subject.names, "command": command},
            **search_options(args),
        )
    except ConfigError as problem:
        if problem.where == "budget" and not args.resume and ranks.first():
            state.unlink(missing_ok=True)  # the search has ended, without windows
        raise
    if not ranks.first():
        return
    config = config.with_rows((find_rows if args.rows else ranges)(subject.net, subject.images))
    write_together({args.out: config.to_json().encode()})
    state.unlink()
    if args.plot:
        output.draw_windows(study.layers, config, args.plot)
    shape = study.searched.image_shape
    sent = wire(args, subject.net, config, shape)
    tables = [layer_table(study.layers, config), *([in_all_table(study, config)] if args.knobs else [])]
    print("\n\n".join([*tables, summary(config, objective, sent, subject.source)]))
    print(f"saved {args.out}" + (f" and {args.plot}" if args.plot else ""))


def main(args: argparse.Namespace, load: Callable[[], Subject], command: str) -> int:
    """Run the command `find-bits`; return the exit code: 0 on success, 1 after an `error:` line, 130 after Ctrl-C.

    load: returns net and images, after the options are checked. command: the command line, for the provenance.
    """
    return end_ranked(lambda: run(args, load, command), lambda: interrupted([state_of(args.out)]))
