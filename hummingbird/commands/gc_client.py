"""`gc-client`: the data's side of two-party inference online; hummingbird/hybrid/command.py is the program."""

from __future__ import annotations

from hummingbird.hybrid.command import add_client as add_parser

__all__ = ["add_parser"]
