"""`he-client`: encrypted images to a server; hummingbird/he/service/command.py is the program."""

from __future__ import annotations

from hummingbird.he.service.command import add_client as add_parser

__all__ = ["add_parser"]
