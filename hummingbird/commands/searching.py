"""Shared parts of `find-bits` and `frontier`: options of a search, its state, and the price of windows."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

import hummingbird
from hummingbird.bits import BitConfig
from hummingbird.commands.subject import Subject
from hummingbird.cost import FREE, Cost
from hummingbird.errors import ConfigError
from hummingbird.window_search.answers import KINDS
from hummingbird.window_search.rounding import KNOBS
from hummingbird.window_search.study import CRITERIA, Study, open_study

# Options of a search for windows -------------------------------------------------------------------------------------


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a search for windows, from --group to --resume, which `search_options` and `grouping` read."""
    group = parser.add_argument_group("search")
    group.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="GROUPING",
        help="which layers share a window: layer, block, stage (default), or NAME=PATTERN,PATTERN for every group, as "
        "in --group early='relu1,layer1.*' --group late='layer[234].*'",
    )
    group.add_argument(
        "--answers",
        choices=KINDS,
        help="how to judge the net's answers, docs/bit-config.md (default: by labels and outputs; it is printed)",
    )
    group.add_argument(
        "--criterion",
        choices=CRITERIA,
        default=CRITERIA[0],
        help="choose windows by agreement with the exact net's answers (default), which needs fewer images, or by "
        "accuracy, as the paper does",
    )
    group.add_argument(
        "--margin",
        type=float,
        default=0.05,
        help="largest loss by the criterion that a budget may cause, as a fraction (default: %(default)s)",
    )
    group.add_argument(
        "--spare",
        type=int,
        default=1,
        metavar="BITS",
        help="eco: bits kept above the largest magnitude (default: %(default)s)",
    )
    group.add_argument(
        "--headroom",
        type=float,
        default=0.25,
        metavar="PART",
        help="budget: margin of a window's range above the largest value seen, as a fraction, unless the budget forces "
        "k down (default: %(default)s)",
    )
    group.add_argument(
        "--reach",
        type=int,
        default=2,
        metavar="BITS",
        help="how far below the range seen a budget may force k (default: %(default)s)",
    )
    group.add_argument(
        "--widths",
        type=int,
        nargs="+",
        metavar="BITS",
        help="widths that the widest window of a group may have, 0 for no ReLU (default: all)",
    )
    group.add_argument(
        "--trials",
        type=int,
        default=4,
        metavar="N",
        help="number of candidate configurations to evaluate on all images (default: %(default)s)",
    )
    group.add_argument("--thrifty", action="store_true", help="do not widen windows with the rest of a budget")
    group.add_argument(
        "--knobs",
        choices=KNOBS,
        help="q: also choose q for each group, for fewer bytes in all (of all parties and the dealer) at the accuracy "
        "of k and m alone (default: q = 0)",
    )
    group.add_argument("--resume", action="store_true", help="continue a search that was interrupted or killed")


def search_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options from --margin to --knobs as arguments of `Study.search`, by name."""
    names = ("margin", "spare", "headroom", "reach", "widths", "trials", "thrifty", "knobs")
    return {key: getattr(args, key) for key in names}


def grouping(words: Sequence[str]) -> str | dict[str, list[str]]:
    """Parse the words of the option --group; return the argument `by` of `group_layers`, which says how to form groups.

    words: one word, such as "layer", "block" or "stage" (the result is this word, unchecked; "stage" for no words), or
    NAME=PATTERN,PATTERN for each group (the result is a dict of patterns by name). Raises ConfigError for several
    words, or one with "=", that are not all of the second form.
    """
    if len(words) < 2 and "=" not in "".join(words):
        return words[0] if words else "stage"
    found: dict[str, list[str]] = {}
    for word in words:
        name, equals, patterns = word.partition("=")
        if not (name and equals and patterns):
            hint = "NAME=PATTERN,PATTERN for every group, or one of layer, block and stage alone"
            raise ConfigError(f"{word!r} names no patterns", where="--group", hint=hint)
        found.setdefault(name, []).extend(patterns.split(","))
    return found


# The study, its state, and prices ------------------------------------------------------------------------------------


def state_of(out: Path) -> Path:
    """Return the path of the file with the progress of an unfinished search, which --resume reads.

    out: the file for the windows, beside which it stands.
    """
    return out.with_name(f"{out.name}.state")


def check_states(states: Sequence[Path], resume: bool) -> None:
    """Raise ConfigError if searches were interrupted and --resume is not set, or if it is set without such a search.

    states: the paths of the state files that searches keep until they end. resume: whether --resume is set.
    """
    there = [state for state in states if state.exists()]
    if there and not resume:
        hint = "go on with it by --resume, or remove it"
        raise ConfigError("there is the state of an unfinished search", where=str(there[0]), hint=hint)
    if resume and not there:
        hint = "leave out --resume: no search was begun, or it has ended"
        raise ConfigError("there is no search to resume", where=str(states[0]), hint=hint)


def interrupted(states: Sequence[Path]) -> str:
    """Return the line to print after Ctrl-C, which says whether --resume can continue from one of these state files."""
    kept = any(state.exists() for state in states)
    return f"interrupted: {'go on with the same command and --resume' if kept else 'no search was begun'}"


def study_of(args: argparse.Namespace, subject: Subject, *, cut: bool = False) -> Study:
    """Make the `Study` (hummingbird/window_search/study.py) in which windows are searched, as the options describe.

    subject: the net, images and labels. cut: whether the windows are for `hummingbird.hybrid`, two parties without a
    dealer. Raises errors of `Study`.
    """
    return open_study(
        subject.net,
        subject.images,
        subject.labels,
        answers=args.answers,
        criterion=args.criterion,
        by=grouping(args.group),
        protocol=args.protocol,
        parties=args.parties,
        seed=args.seed,
        cut=cut,
    )


def online(net: nn.Module, config: BitConfig, args: argparse.Namespace, shape: Sequence[int]) -> Cost:
    """Return what one image through the whole net costs a party online: rounds and bits.

    config: the windows. shape: of one image.
    """
    private = hummingbird.convert_model(net, config, protocol=args.protocol)
    return sum((planned.cost for planned in private.costs((1, *shape), args.parties)), FREE)
