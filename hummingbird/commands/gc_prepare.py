"""`gc-prepare`: the data's side of two-party inference in advance; hummingbird/hybrid/command.py is the program."""

from __future__ import annotations

from hummingbird.hybrid.command import add_prepare as add_parser

__all__ = ["add_parser"]
