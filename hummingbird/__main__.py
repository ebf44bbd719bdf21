"""The command line: python -m hummingbird COMMAND, or hummingbird COMMAND once the package is installed. A command is
the module of that name in hummingbird/commands, or a function of services.py there.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from hummingbird.errors import HummingbirdError, refuse_namesake

COMMANDS = (
    *("info", "check", "run", "estimate", "save", "infer", "deal", "keys", "dealer"),
    *("serve", "ask", "plan"),
    *("find-bits", "frontier", "finetune", "validate"),
    *("he-server", "he-client", "pir-server", "pir-owner"),
    *("he-convert", "he-keygen", "he-encrypt", "he-evaluate", "he-decrypt"),
    *("gc-server", "gc-prepare", "gc-client", "gc-proxy", "token", "health"),
)
# Commands that hummingbird/commands/services.py has together, each as a function `add_NAME`.
_SERVICES = {
    *("dealer", "pir-server", "he-server", "he-client"),
    *("he-convert", "he-keygen", "he-encrypt", "he-evaluate", "he-decrypt"),
    *("gc-server", "gc-prepare", "gc-client", "gc-proxy", "token", "health"),
}


class _OneLineEach(argparse.HelpFormatter):
    """A formatter of argparse's help that shows each command on one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=20, width=120)
        self._action_max_length = 14  # without the indentation, which argparse forgets


def parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the argparse parser of the program `hummingbird`, with the commands `names`.

    Imports only the modules of these commands, so that a dealer needs no CrypTen.
    """
    top = argparse.ArgumentParser(
        prog="python -m hummingbird",
        description="Private inference of PyTorch nets between servers.",
        formatter_class=_OneLineEach,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        word = name.replace("-", "_")
        module, function = ("services", f"add_{word}") if name in _SERVICES else (word, "add_parser")
        getattr(importlib.import_module(f"hummingbird.commands.{module}"), function)(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names, or print the list of commands if it names none; return the exit code.

    argv: the words after the program's name; None: those of this process. A HummingbirdError is printed as an error
    line, and a line with its hint if it has one, with exit code 1; Ctrl-C as the line "interrupted", with exit code
    130.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        refuse_namesake()  # here too, for that package may have put its __init__.py in the place of this package's
        if not words:
            parser().print_help()
            return 0
        args = parser(words[:1] if words[:1] and words[0] in COMMANDS else COMMANDS).parse_args(words)
        args.words = words
        return int(args.run(args) or 0)
    except HummingbirdError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
