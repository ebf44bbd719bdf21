"""Output and exit codes of a program that torchrun has started at several ranks.

Rank 0 prints, shows progress bars and writes files. The others print only an error that rank 0 could not print.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from hummingbird import ranks
from hummingbird.commands.program import end
from hummingbird.errors import HummingbirdError
from hummingbird.version import VERSION

NOTES = """
On several devices: torchrun --nproc_per_node=4 --master_port=29500 -m PROGRAM ... runs one process for each, with GPU i
for process i. They split the images, with the same result as one process (docs/commands.md, "Several devices").
"""


def end_ranked(run: Callable[[], None], interrupted: Callable[[], str], timeout: float = ranks.TIMEOUT) -> int:
    """Call `run` on several ranks (hummingbird/ranks), and return the exit code, as `program.end` does for one process.

    timeout: seconds for which ranks wait for each other.
    """

    def joined() -> None:
        job = None
        try:
            with ranks.job(timeout) as job, _hushed(not ranks.first()):
                run()
        except (HummingbirdError, KeyboardInterrupt) as error:
            if job is not None and job.rank:
                if isinstance(error, KeyboardInterrupt):
                    raise SystemExit(130) from None
                if job.has_said(0):
                    raise SystemExit(1) from None
                print(f"rank {job.rank} of {job.size}:", file=sys.stderr)
            raise

    return end(joined, interrupted)


@contextlib.contextmanager
def _hushed(hush: bool) -> Any:
    """Drop, if `hush`, all that is printed within a `with` block, also progress bars and warnings."""
    if not hush:
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield


def agree_on(args: argparse.Namespace) -> None:
    """Raise AgreementError unless all ranks have the same versions and options; names of files may differ."""

    def facts() -> dict[str, Any]:
        kinds = (str, int, float, bool, list, tuple)
        options = {name: value for name, value in vars(args).items() if isinstance(value, kinds) and name != "words"}
        return {"hummingbird": VERSION, "torch": torch.__version__, **{f"--{name}": x for name, x in options.items()}}

    ranks.agree(facts)
