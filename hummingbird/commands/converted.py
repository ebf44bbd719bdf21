"""A party's net and its private form, in a session, from options of the command line, for `infer` and `serve`."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from hummingbird.bits import BitWindow
from hummingbird.commands.sources import add_aim_argument, add_net_arguments, net_of, saved_of
from hummingbird.convert import convert_model
from hummingbird.errors import InputError
from hummingbird.graph.example_shapes import settled
from hummingbird.lookup import LookedUp
from hummingbird.mpc.plan.builders import CUSTOM
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.saving import read_net
from hummingbird.saving.folder import description


def add_converted_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options from --model to --aim, which `nets_of` reads."""
    add_net_arguments(parser, "owner", "bits", "window", "protocol")
    text = "the party that owns private weights (default: weights are public, and every party has them)"
    parser.add_argument("--owner", type=int, metavar="RANK", help=text)
    windows = parser.add_mutually_exclusive_group()
    text = "windows per layer (docs/bit-config.md); default: exact comparisons"
    windows.add_argument("--bits", type=Path, metavar="FILE", help=text)
    windows.add_argument("--window", metavar="K:M[:Q]", help="one window for all layers, such as 20:12")
    parser.add_argument(
        "--protocol",
        help="masked (default): one opening of k bits under a mask that the dealer knows; gmw: the reduced ring",
    )
    add_aim_argument(parser, "throughput with a dealer, latency with a store")


def nets_of(args: argparse.Namespace, rank: int, *image: Tensor) -> tuple[nn.Module, PrivateNet]:
    """Return the net that --saved or --model names, and its private form.

    With --saved, also sets `owner` and `protocol` in `args` to those of the saved net. rank: of this party. image: for
    each input of the net one tensor with the shape of a batch of one, (1, ...); no tensor for a net that begins with
    lookups, of which only the part after them (`LookedUp.after`) is converted. Raises InputError for images with such a
    net, and for none with another net.
    """
    folder = saved_of(args, rank)
    if folder is not None:
        saved = description(folder)
        args.owner, args.protocol, args.model = saved.owner, saved.protocol, [str(folder)]
        saved_net = read_net(folder, saved, weights=saved.owner in (None, rank))
        return saved_net, convert_model(saved_net, *saved.arguments, aim=args.aim)
    torch.manual_seed(0)  # a net without trained weights must be the same at every party
    net = net_of(args, weights=args.owner in (None, rank))
    args.protocol = args.protocol or "masked"
    owner = "public" if args.owner is None else args.owner
    if isinstance(net, LookedUp):
        if image:
            hint = "serve it, without --input: its clients bring row numbers and weights"
            raise InputError("a net of private lookups takes no images", where="--model", hint=hint)
        return net, convert_model(net.after, _windows(args), owner, args.protocol, net.example(), args.aim)
    if not image:
        raise InputError("the shape of one image is needed", where="--input", hint="such as --input 3x32x32")
    if len(image) > 1:
        return net, convert_model(net, _windows(args), owner, args.protocol, image, args.aim)
    taken = settled(net, image[0], custom=tuple(CUSTOM))
    return net, convert_model(taken, _windows(args), owner, args.protocol, aim=args.aim)


def _windows(args: argparse.Namespace) -> Path | BitWindow | None:
    """Return the windows that --bits or --window describes, None without either."""
    if args.window is None:
        bits: Path | None = args.bits
        return bits
    numbers = args.window.split(":")
    if len(numbers) not in (2, 3) or not all(number.isdigit() for number in numbers):
        hint = "two or three numbers, K:M or K:M:Q, such as 20:12"
        raise InputError(f"{args.window!r} is not a window", where="--window", hint=hint)
    return BitWindow(*map(int, numbers))
