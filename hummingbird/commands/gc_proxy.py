"""`gc-proxy`: the data's side of two-party inference; hummingbird/hybrid/command.py is the program."""

from __future__ import annotations

from hummingbird.hybrid.command import add_proxy as add_parser

__all__ = ["add_parser"]
