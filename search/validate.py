"""Compare a net of `models` with and without windows on a data set, as `python -m hummingbird validate` does."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hummingbird.commands import validate
from search.options import add_net_arguments, subject_of

_EPILOG = """example:
    python -m search.validate --model digits --weights checkpoints/digits.pt --bits checkpoints/digits.bits.json \\
        --dataset digits --split test
"""


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m search.validate",
        description=validate.HELP,
        epilog=_EPILOG + validate.NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    validate.add_arguments(made)
    add_net_arguments(made)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns 0 on success, also with warnings, 1 after an `error:` line, 130 after Ctrl-C."""
    args = parser().parse_args(arguments)
    return validate.main(args, lambda: subject_of(args))


if __name__ == "__main__":
    sys.exit(main())
