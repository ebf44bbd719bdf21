"""`token`: makes a caller's token, and its line in a service's token file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hummingbird import disk
from hummingbird.errors import InputError
from hummingbird.rpc.security import check_name, line_of, new_token

HELP = "Make a caller's token for a service (he-server, gc-server and others with --tokens)."
_DESCRIPTION = """Make a token of 256 random bits, and write it to the caller's file, --out. The service's file,
--tokens, gets a line of the caller's name and the token's hash. Both files are for their owner alone (mode 600). A
service reads its file again when it changes: removing a line revokes the token."""
_EPILOG = """example:
  python -m hummingbird token alice --tokens tokens.txt --out alice.token
"""


def add_parser(commands: Any) -> None:
    """Add the command `token`, with its options, to the command line."""
    form = argparse.RawDescriptionHelpFormatter
    sub = commands.add_parser("token", help=HELP, description=_DESCRIPTION, epilog=_EPILOG, formatter_class=form)
    sub.add_argument("name", metavar="NAME", help="the caller's name: 1 to 64 letters, digits and . _ @ -")
    text = "the service's token file, to which a line is added; created if missing"
    sub.add_argument("--tokens", required=True, type=Path, metavar="FILE", help=text)
    sub.add_argument("--out", required=True, type=Path, metavar="FILE", help="the caller's new file")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make a token; write it to a file for the caller, and its line to the service's token file."""
    check_name(args.name)
    token = new_token()
    try:
        disk.create(args.out, [f"{token}\n".encode()], mode=disk.PRIVATE)
        disk.sync(args.out.parent)
    except FileExistsError:
        raise InputError(f"{args.out} is there already", where="--out", hint="name another file") from None
    except OSError as error:
        raise InputError(f"cannot write {args.out}: {error.strerror}", where="--out") from None
    try:
        _add_line(args.tokens, line_of(args.name, token).encode())
    except OSError as error:
        args.out.unlink()  # no service knows this token
        raise InputError(f"cannot write {args.tokens}: {error.strerror}", where="--tokens") from None
    print(f"{args.tokens} knows {args.name}: give {args.out} to it, over a channel that nobody else reads")
    return 0


def _add_line(path: Path, line: bytes) -> None:
    """Add a line to a file, on the disk when this returns. If the file's last line has no end, end it first."""
    ended = not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")
    disk.append(path, [line if ended else b"\n" + line], mode=disk.PRIVATE)
    disk.sync(path.parent)
