"""`pir-server`: one half of private lookups; hummingbird/pir/serving/command.py is the program."""

from __future__ import annotations

from typing import Any

from hummingbird.pir.serving import command

HELP = "Serve one half of private lookups in a table; must not collude with the other server."


def add_parser(commands: Any) -> None:
    """Add the command `pir-server`, with its options, to the command line."""
    sub = commands.add_parser("pir-server", help=HELP, description=command.DESCRIPTION)
    command.add_arguments(sub)
    sub.set_defaults(run=command.main)
