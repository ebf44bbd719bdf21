"""`dealer`: the dealer of other runs, which needs no CrypTen; hummingbird/mpc/dealer/command.py is the program."""

from __future__ import annotations

from typing import Any

from hummingbird.mpc.dealer import command

HELP = "Deal correlated randomness to the parties of other runs; sees no input."
_DESCRIPTION = (
    "The trusted third party of the offline phase: it sends random numbers and sees no input, no weight and no result. "
    "It must not collude with any party: together they could read that run's secrets."
)


def add_parser(commands: Any) -> None:
    """Add the command `dealer`, with its options, to the command line."""
    sub = commands.add_parser("dealer", help=HELP, description=_DESCRIPTION)
    command.add_arguments(sub)
    sub.set_defaults(run=command.main)
