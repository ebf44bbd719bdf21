"""What the programs of the search share: net, weights and images by option, how they search, and how they end."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird.errors import ConfigError, InputError
from hummingbird.mpc.protocols.registry import PROTOCOLS
from hummingbird.search.study import CRITERIA
from scripts.data import SPLITS, load
from scripts.net import add_model_arguments, build, place, read_weights


def add_net_arguments(parser: argparse.ArgumentParser) -> None:
    """--model to --seed."""
    group = parser.add_argument_group("net and images")
    add_model_arguments(group)
    group.add_argument("--weights", required=True, type=Path, metavar="FILE", help="its trained weights")
    group.add_argument(
        "--split",
        choices=SPLITS,
        default="validation",
        help="which images: windows chosen on the test split say nothing about it (default: %(default)s)",
    )
    group.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help="the first N images of the split (default: all)",
    )
    group.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="default: %(default)s")
    group = parser.add_argument_group("private inference")
    group.add_argument("--protocol", choices=PROTOCOLS, default=PROTOCOLS[0], help="default: %(default)s")
    group.add_argument("--parties", type=int, default=2, metavar="N", help="default: %(default)s")
    group.add_argument("--seed", type=int, default=0, help="of the randomness in the windows (default: %(default)s)")


def load_net_and_images(args: argparse.Namespace) -> tuple[nn.Module, Tensor, Tensor]:
    """The net in eval mode on --device, images float32 (N, C, H, W) and labels int64 (N,), N <= --samples.

    Raises InputError for images that the net does not take, for options, weights or a split that do not fit or are not
    there, and for numbers out of range; what `scripts.data.load` raises.
    """
    if args.samples is not None and args.samples < 1:
        raise InputError(f"{args.samples} images", where="--samples", hint="1 or more")
    if args.parties < 2 or not 0 <= args.seed < 2**63:
        hint = "2 parties or more, and a seed from 0 to 2^63 - 1"
        raise InputError(f"--parties {args.parties} --seed {args.seed}", where="private inference", hint=hint)
    net = build(args)
    read_weights(net, args.weights, "--weights")
    net = place(net.eval(), args.device)
    images, labels = load(args.dataset, args.split, args.data)
    return net, images[: args.samples], labels[: args.samples]


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
    group.add_argument("--resume", action="store_true", help="go on with a search that was interrupted or killed")


def search_options(args: argparse.Namespace) -> dict[str, Any]:
    """The values of --margin to --thrifty as `Study.search` takes them."""
    names = ("margin", "spare", "headroom", "reach", "widths", "trials", "thrifty")
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
