"""`gc-server`: a private net for clients that have the images; hummingbird/hybrid/command.py is the program."""

from __future__ import annotations

from typing import Any

from hummingbird.commands.sources import add_model_arguments, net_of
from hummingbird.hybrid import command


def add_parser(commands: Any) -> None:
    """Add the command `gc-server`, with its options, to the command line."""
    command.add_server(commands, add_model_arguments, net_of)
