"""`estimate`: prints rounds, bits and wire time of every layer of a net, before anything runs."""

from __future__ import annotations

import argparse
from typing import Any

from hummingbird.commands.planned import add_arguments, planned
from hummingbird.commands.program import add_command
from hummingbird.report import BANDWIDTH, RTT, estimate
from hummingbird.rpc.options import count, positive

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
    text = "bandwidth of each party's link (default 10e9)"
    sub.add_argument("--bandwidth", type=positive, default=BANDWIDTH, metavar="BITS/S", help=text)
    sub.add_argument("--rtt", type=positive, default=RTT, metavar="SECONDS", help="round-trip time (default 0.0002)")
    text = "bandwidth of the dealer's link (default 10e9)"
    sub.add_argument("--dealer-bandwidth", type=positive, default=BANDWIDTH, metavar="BITS/S", help=text)
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table of what a net costs: rounds, bits and time on the wire of every layer."""
    net, bits, weights, protocol = planned(args)
    found = estimate(
        net,
        args.input,
        bits,
        weights=weights,
        protocol=protocol,
        parties=args.parties,
        bandwidth=args.bandwidth,
        rtt=args.rtt,
        lanes=args.lanes,
        aim=args.aim,
        dealer_bandwidth=args.dealer_bandwidth,
    )
    print(found)
    return 0
