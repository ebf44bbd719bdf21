"""Accuracy against online bytes for the nets of `models`, as `python -m hummingbird frontier` shows it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hummingbird.commands import frontier
from hummingbird.commands.program import command_of
from search.options import add_net_arguments, subject_of

_EPILOG = """examples:
  the digits net, which holds no images out, so that training images choose:
    python -m search.frontier --model digits --weights checkpoints/digits.pt --dataset digits --split train \\
        --group layer --uniform --out-folder windows --plot frontier.png

  ResNet-18 on CIFAR-10:
    python -m search.frontier --model resnet18 --weights resnet18.pt --dataset cifar10 --data DATA \\
        --budgets exact eco 8/64 6/64 --uniform --out-folder windows --json frontier.json --plot frontier.png
"""


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m search.frontier",
        description=frontier.__doc__,
        epilog=_EPILOG + frontier.NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    frontier.add_arguments(made)
    add_net_arguments(made)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns 0 on success, 1 after an `error:` line, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    args = parser().parse_args(words)
    return frontier.main(args, lambda: subject_of(args), command_of("search.frontier", words))


if __name__ == "__main__":
    sys.exit(main())
