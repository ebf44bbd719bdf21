"""`estimate`: prints rounds, bits and wire time of every layer of a net, before anything runs.

`deal` and `plan` too take a net without parties and images, by the options that are here.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hummingbird import he
from hummingbird.bits import BitConfig
from hummingbird.commands.program import add_command
from hummingbird.commands.sources import (
    add_aim_argument,
    add_example_argument,
    add_net_arguments,
    example_of,
    net_of,
    saved_of,
)
from hummingbird.convert import convert_model
from hummingbird.errors import InputError
from hummingbird.graph.example_shapes import batch_of, saved, settled
from hummingbird.he import HEModel
from hummingbird.he.runtime.client_spec import MODES
from hummingbird.mpc.pair.dealer import link_of
from hummingbird.mpc.plan.builders import CUSTOM
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.protocols.step_tables import Link
from hummingbird.report import BANDWIDTH, RTT, estimate
from hummingbird.rpc.options import count, positive, shape
from hummingbird.saving import read_net
from hummingbird.saving.folder import description

# A private net from the command line, without parties and images -----------------------------------------------------


def add_arguments(
    parser: argparse.ArgumentParser,
    shape_help: str,
    *,
    required: bool = True,
    encrypted: bool = False,
    aim: str = "latency",
) -> None:
    """Add the options that describe a private net, which `private_net` reads: --model, --input, --bits, --aim, ...

    shape_help: help of --input. required: whether there must be a net and inputs. encrypted: whether to add --mode,
    which `encrypted_net` reads. aim: the default of --aim.
    """
    add_net_arguments(parser, "bits", "private_weights", "protocol", required=required)
    given = parser.add_mutually_exclusive_group(required=required)
    given.add_argument("--input", type=shape, metavar="BxCxHxW", help=shape_help)
    add_example_argument(given)
    parser.add_argument("--bits", type=Path, help="bit configuration (JSON); default: exact comparisons")
    parser.add_argument("--parties", type=count, default=2, help="number of parties (default 2)")
    parser.add_argument("--private-weights", action="store_true", help="one party keeps the weights secret")
    parser.add_argument("--protocol", help=f"masked (default){', gmw, crypten or he' if encrypted else ' or gmw'}")
    add_aim_argument(parser, aim)
    if encrypted:
        text = f"mode of he: {MODES[0]} (default), or {MODES[1]}, for nets of sums and products"
        parser.add_argument("--mode", choices=MODES, help=text)


Planned = tuple[nn.Module, BitConfig | None, str | int, str]


def planned(
    args: argparse.Namespace, settle: bool = True, owner: int | None = None, rank: int | None = None
) -> Planned:
    """Return the net that the options describe, and the arguments with which `convert_model` converts it.

    The arguments are the windows (None: exact comparisons), the owner of the weights ("public", or a rank) and the
    protocol. With --example, sets `args.input` to the shape of the example.
    settle: whether numbers that follow from shapes become constants, as `convert_model` needs it.
    owner: the party that owns private weights; None for --private-weights, or the owner of a saved net.
    rank: the party that calls this, and reads its own private weights; None: they are not read, as for prices.
    Raises errors of `net_of` and of `BitConfig.load`.
    """
    example = example_of(args)
    if folder := saved_of(args, rank or 0):
        found = description(folder)
        net: nn.Module = read_net(folder, found, weights=found.owner in (None, rank))
        if example is not None:
            args.input, _ = batch_of(net, example)
        return net, *found.arguments
    # Without their provenance, as the net may be untrained: windows of another net are no error.
    bits = BitConfig.load(args.bits).windows if args.bits else None
    net = net_of(args, weights=owner in (None, rank))
    private = args.private_weights or owner is not None
    if example is None and settle:
        net = settled(net, torch.empty(args.input), any_batch=False, custom=tuple(CUSTOM))
    elif example is not None:
        args.input, _ = batch_of(net, example)
        net = saved(net, example, custom=tuple(CUSTOM), secret=private)
    return net, bits, owner or 0 if private else "public", args.protocol or "masked"


def encrypted_net(args: argparse.Namespace) -> HEModel:
    """Convert the net that the options describe for inference on ciphertexts.

    Raises errors of `net_of` and `he.convert_model`, and InputError if --saved, --example, --bits or --private-weights
    is set, which only a net on shares takes.
    """
    for option in ("saved", "example", "bits", "private_weights"):
        if getattr(args, option):
            name = "--" + option.replace("_", "-")
            what = f"{name} beside a net on ciphertexts"
            raise InputError(what, where=name, hint="name the net by --model, and its mode by --mode")
    return he.convert_model(net_of(args), args.input[1:], args.mode or MODES[0])


def private_net(args: argparse.Namespace) -> PrivateNet:
    """Convert the net that the options describe to its private form. Raises errors of `planned` and `convert_model`."""
    return convert_model(*planned(args), aim=args.aim)


# The command ---------------------------------------------------------------------------------------------------------

HELP = "Print rounds and bits of every layer of a net, and wire time, before anything runs."
_EPILOG = """examples:
  python -m hummingbird estimate --model models:get_model resnet18 10 --input 8x3x32x32
  python -m hummingbird estimate --model torchvision.models:resnet50 --input 1x3x224x224 --bits bits.json \\
      --bandwidth 352e6 --rtt 0.02
"""


def add_parser(commands: Any) -> None:
    """Add the command `estimate`, with its options, to the command line."""
    sub = add_command(commands, "estimate", HELP, HELP, _EPILOG)
    add_arguments(sub, "shape of the batch of each lane")
    sub.add_argument("--lanes", type=count, default=1, metavar="G", help="lanes of each party (default 1)")
    text = "bandwidth of each party's link (default: that of --dealer pair:RTT:BANDWIDTH, else 10e9)"
    sub.add_argument("--bandwidth", type=positive, metavar="BITS/S", help=text)
    text = "round-trip time (default: that of --dealer pair:RTT:BANDWIDTH, else 0.0002)"
    sub.add_argument("--rtt", type=positive, metavar="SECONDS", help=text)
    text = "pair: no dealer, two parties make the material with each other, with the aim pair; pair:silent: with fewer "
    text += "bytes and more work; pair:RTT:BANDWIDTH: in the fastest way on this link, such as pair:0.02:100e6"
    sub.add_argument("--dealer", metavar="pair[:HOW]", help=text)
    text = "bandwidth of the dealer's link (default 10e9)"
    sub.add_argument("--dealer-bandwidth", type=positive, default=BANDWIDTH, metavar="BITS/S", help=text)
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table of what a net costs: rounds, bits and time on the wire of every layer."""
    net, bits, weights, protocol = planned(args)
    link = link_of(args.dealer) or Link(RTT, BANDWIDTH)
    found = estimate(
        net,
        args.input,
        bits,
        weights=weights,
        protocol=protocol,
        parties=args.parties,
        bandwidth=args.bandwidth or link.bandwidth,
        rtt=link.rtt if args.rtt is None else args.rtt,
        lanes=args.lanes,
        aim=args.aim,
        dealer=args.dealer,
        dealer_bandwidth=args.dealer_bandwidth,
    )
    print(found)
    return 0
