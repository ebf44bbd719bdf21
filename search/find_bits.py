"""Find windows for the nets of `models` on the published data sets, as `python -m hummingbird find-bits` does."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hummingbird.commands import find_bits
from hummingbird.commands.program import command_of
from search.options import add_net_arguments, subject_of

_EPILOG = """examples:
  the digits net, which holds no images out, so that training images choose; then 6 bits of 64 on average:
    python -m search.find_bits --model digits --weights checkpoints/digits.pt --dataset digits --split train \\
        --out eco.json
    python -m search.find_bits --model digits --weights checkpoints/digits.pt --dataset digits --split train \\
        --budget 6/64 --out 6-64.json --plot 6-64.png

  ResNet-18 on CIFAR-10, at most 500 kB sent by each party for an image:
    python -m search.find_bits --model resnet18 --weights resnet18.pt --dataset cifar10 --data DATA \\
        --objective bytes --budget 500kB --out bits.json
"""


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m search.find_bits",
        description=find_bits.__doc__,
        epilog=_EPILOG + find_bits.NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    find_bits.add_arguments(made)
    add_net_arguments(made)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns 0 on success, 1 after an `error:` line, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    args = parser().parse_args(words)
    return find_bits.main(args, lambda: subject_of(args), command_of("search.find_bits", words))


if __name__ == "__main__":
    sys.exit(main())
