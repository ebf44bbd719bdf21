"""`he-server`: a net on ciphertexts for clients; hummingbird/he/service/command.py is the program."""

from __future__ import annotations

from typing import Any

from hummingbird.commands.sources import add_model_arguments, net_of
from hummingbird.he.service import command


def add_parser(commands: Any) -> None:
    """Add the command `he-server`, with its options, to the command line."""
    command.add_server(commands, add_model_arguments, net_of)
