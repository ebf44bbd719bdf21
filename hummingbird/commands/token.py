"""`token`: a caller's token, and its line in a service's file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from hummingbird.errors import InputError
from hummingbird.rpc.security import check_name, line_of, new_token

HELP = "Make a caller's token for a service (he-server, gc-server and others with --tokens)."
_DESCRIPTION = """Make a token of 256 random bits. The caller's file, --out, holds it; the service's file, --tokens,
gets a line of the caller's name and the token's hash. Both are for their owner alone (mode 600). A service reads its
file again when it changes: remove a line, and that token opens nothing more."""
_EPILOG = """example:
  python -m hummingbird token alice --tokens tokens.txt --out alice.token
"""


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    form = argparse.RawDescriptionHelpFormatter
    sub = commands.add_parser("token", help=HELP, description=_DESCRIPTION, epilog=_EPILOG, formatter_class=form)
    sub.add_argument("name", metavar="NAME", help="the caller's: 1 to 64 letters, digits and . _ @ -")
    text = "the service's file, to which a line is added; made if not there"
    sub.add_argument("--tokens", required=True, type=Path, metavar="FILE", help=text)
    sub.add_argument("--out", required=True, type=Path, metavar="FILE", help="the caller's file, a new one")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write both files."""
    check_name(args.name)
    token = new_token()
    _write(args.out, os.O_CREAT | os.O_EXCL, token + "\n", "--out")
    try:
        _write(args.tokens, os.O_CREAT | os.O_APPEND, line_of(args.name, token), "--tokens")
    except InputError:
        args.out.unlink()  # which nobody knows
        raise
    print(f"{args.tokens} knows {args.name}: give {args.out} to it, over a channel that nobody else reads")
    return 0


def _write(path: Path, flags: int, text: str, where: str) -> None:
    """Write a new file, or add a line to one, behind the end of its last one, which an editor may have left out."""
    try:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600), "ab+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            ended = file.read(1) in (b"", b"\n")
            file.write(("" if ended else "\n").encode() + text.encode())
    except FileExistsError:
        raise InputError(f"{path} is there already", where=where, hint="name another file") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", where=where) from None
