"""`keys`: makes a pair of keys of a party or a dealer, for material in an object store."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hummingbird.commands.program import add_command
from hummingbird.mpc.dealer.sealing import new_key, read_public

HELP = "Make the keys with which a dealer seals material for a party in an object store."
_DESCRIPTION = """Make a pair of keys: FILE has the private key, which only this user can read, and FILE.pub the public
key. A dealer makes one, and hands its FILE.pub to the parties. Each party makes one with --dealer, and hands its
FILE.pub to the dealer. Public keys need no secrecy, but must arrive unchanged.

Trust: whoever has a party's private key can open all material that was sealed to it, before and after. Whoever has a
dealer's private key and may write to the parties' object stores can deal material that it knows."""
_EPILOG = """examples:
  python -m hummingbird keys dealer.key
  python -m hummingbird keys party-0.key --dealer dealer.key.pub
"""


def add_parser(commands: Any) -> None:
    """Add the command `keys`, with its options, to the command line."""
    sub = add_command(commands, "keys", HELP, _DESCRIPTION, _EPILOG)
    sub.add_argument("file", type=Path, metavar="FILE", help="a new file for the private key")
    text = "at a party: public keys of the dealers from which it accepts material"
    sub.add_argument("--dealer", nargs="+", default=[], metavar="PUB", help=text)
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Make a pair of keys, and print where they are."""
    new_key(args.file, [read_public(path) for path in args.dealer])
    print(f"private key: {args.file}, public key: {args.file}.pub")
