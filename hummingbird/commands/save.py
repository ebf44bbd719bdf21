"""`save`: writes a net as data to a folder, for parties without the net's code."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hummingbird.commands.program import add_command
from hummingbird.commands.sources import add_example_argument, add_model_arguments, example_of, net_of
from hummingbird.saving import save
from hummingbird.saving.folder import NET, check_free
from hummingbird.saving.weights import name_of

HELP = "Write a net as data to a folder, for parties without the net's code."
_DESCRIPTION = """Write a net as data to a new folder, with its windows, its protocol and the owner of its weights, for
parties without the net's code. net.json is for every party. Public weights are in weights.safetensors, also for every
party; with --owner the weights are in party-RANK.safetensors, for that party alone."""
_EPILOG = """example, with my_net.py in the current folder:
  python -m hummingbird save --model my_net:net --weights net.pt --bits bits.json --out saved
  python -m hummingbird run --parties 2 -- -m hummingbird infer --saved saved --data my_data:images test
"""


def add_parser(commands: Any) -> None:
    """Add the command `save`, with its options, to the command line."""
    sub = add_command(commands, "save", HELP, _DESCRIPTION, _EPILOG)
    add_model_arguments(sub)
    add_example_argument(sub)
    text = "windows per layer (docs/bit-config.md); default: exact comparisons"
    sub.add_argument("--bits", type=Path, metavar="FILE", help=text)
    text = "the party that owns private weights (default: weights are public, and every party has them)"
    sub.add_argument("--owner", type=int, metavar="RANK", help=text)
    sub.add_argument("--protocol", default="masked", help="masked (default) or gmw")
    sub.add_argument("--out", required=True, type=Path, metavar="DIR", help="a new folder")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Save the net that the options describe in a new folder, as data without code; return the exit code 0."""
    check_free(args.out)
    owner = "public" if args.owner is None else args.owner
    save(net_of(args), args.out, args.bits, owner, args.protocol, example_of(args))
    weights = name_of(args.owner)
    if args.owner is None:
        print(f"saved: give every party {args.out}, with {NET} and {weights}")
    else:
        print(f"saved: give {args.out / NET} to every party, and {weights} to party {args.owner} alone")
    return 0
