"""How windows are searched for: the options that `find-bits` and `frontier` share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from hummingbird.errors import ConfigError
from hummingbird.window_search.answers import KINDS
from hummingbird.window_search.rounding import KNOBS
from hummingbird.window_search.study import CRITERIA


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """--group to --resume: how windows are searched for, and that a search goes on."""
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
        help="how the net's answers are judged, docs/bit-config.md (default: as labels and outputs say; it is printed)",
    )
    group.add_argument(
        "--criterion",
        choices=CRITERIA,
        default=CRITERIA[0],
        help="choose by agreement with the exact net's answers (default), which needs fewer images, or by accuracy, as "
        "the paper does",
    )
    group.add_argument(
        "--margin",
        type=float,
        default=0.05,
        help="how much of it a budget may cost, as a fraction (default: %(default)s)",
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
        help="budget: how much larger than the largest value seen the values may be that a window holds, unless the "
        "budget forces k down (default: %(default)s)",
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
        help="numbers of bits that the widest window of a group may keep, 0 for no ReLU (default: all)",
    )
    group.add_argument(
        "--trials",
        type=int,
        default=4,
        metavar="N",
        help="how many assignments are tried with all images (default: %(default)s)",
    )
    group.add_argument(
        "--thrifty", action="store_true", help="keep what is left of a budget instead of widening windows with it"
    )
    group.add_argument(
        "--knobs",
        choices=KNOBS,
        help="q: choose it too, for each group, so that bytes in all (of all parties and the dealer) fall and the "
        "accuracy holds as with k and m alone (default: q = 0)",
    )
    group.add_argument("--resume", action="store_true", help="go on with a search that was interrupted or killed")


def search_options(args: argparse.Namespace) -> dict[str, Any]:
    """The values of --margin to --knobs as `Study.search` takes them."""
    names = ("margin", "spare", "headroom", "reach", "widths", "trials", "thrifty", "knobs")
    return {key: getattr(args, key) for key in names}


def grouping(words: Sequence[str]) -> str | dict[str, list[str]]:
    """The values of --group as `group_layers` takes them. ConfigError for patterns beside a word, or without a name."""
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
