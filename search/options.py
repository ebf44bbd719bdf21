"""The published experiments' nets and images by name: `--model resnet18 --dataset cifar10` as a command's subject."""

from __future__ import annotations

import argparse
from pathlib import Path

from hummingbird.commands.sources import place, read_weights
from hummingbird.commands.subject import Subject, add_inference_arguments, check_numbers
from scripts.train.data import SPLITS, load
from scripts.train.images import WEIGHTS_HINT, add_model_arguments, build


def add_net_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a net and images, from --model to --seed, to a parser."""
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
    add_inference_arguments(parser)


def subject_of(args: argparse.Namespace) -> Subject:
    """Load the net onto --device, and the first --samples images of --split.

    Raises InputError for images that the net does not take, for options, weights or a split that do not fit or are not
    there, and for numbers out of range; and the errors of `scripts.train.data.load`.
    """
    check_numbers(args)
    net = build(args)
    read_weights(net, args.weights, "--weights", WEIGHTS_HINT)
    net = place(net.eval(), args.device)
    images, labels = load(args.dataset, args.split, args.data)
    names = {key: getattr(args, key) for key in ("model", "dataset", "split")}
    return Subject(net, images[: args.samples], labels[: args.samples], names, f"the {args.split} split")
