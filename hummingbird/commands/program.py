"""Shared parts of programs: parsers, output and exit codes, and descriptions of the command line and the machine.

Of a program that torchrun has started at several ranks, rank 0 prints, shows progress bars and writes files. The others
print only an error that rank 0 could not print.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from hummingbird import kernels, ranks
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.version import VERSION

# One process ---------------------------------------------------------------------------------------------------------


def add_command(commands: Any, name: str, line: str, description: str | None, epilog: str) -> argparse.ArgumentParser:
    """Add a command to the command line, and return its parser.

    commands: argparse's object for commands. name: the command. line: the text in the list of commands. description,
    epilog: the texts above and below the options in the command's help, printed as written.
    """
    raw = argparse.RawDescriptionHelpFormatter
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=line, description=description, epilog=epilog, formatter_class=raw
    )
    return made


def command_of(program: str, words: Sequence[str]) -> str:
    """Return a command line as text for provenance: `python -m PROGRAM WORDS`.

    Among the words, --resume is left out, as it changes no result. Absolute paths are reduced to file names.
    """
    return shlex.join(["python", "-m", program, *(word for word in without_folders(words) if word != "--resume")])


def without_folders(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, with absolute paths reduced to file names.

    The folders mean nothing on another machine.
    """
    shown = []
    for word in words:
        key, equals, value = word.rpartition("=")
        shown.append(f"{key}{equals}{Path(value).name}" if Path(value).is_absolute() else word)
    return shown


def end(run: Callable[[], None], interrupted: Callable[[], str]) -> int:
    """Call `run`; return the exit code: 0, 1 after an `error:` line, or 130 after Ctrl-C.

    interrupted: returns the line to print after Ctrl-C.
    """
    try:
        run()
    except HummingbirdError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{interrupted()}", file=sys.stderr)
        return 130
    return 0


def machine() -> dict[str, str]:
    """Return a dict that describes this machine, to be stored beside measurements.

    "cpu": the processor's name. "torch", "hummingbird": versions. "kernels": which kernels are in use.
    """
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = f"{names[0]}, {len(names)} cores" if names else platform.processor() or platform.machine()
    return {"hummingbird": VERSION, "torch": torch.__version__, "kernels": kernels.active(), "cpu": cpu}


def device_name(device: str) -> str:
    """Return the name of a device for rows of figures, "cpu" or the GPU's name.

    Raises InputError for a missing device.
    """
    try:
        found = torch.device(device)
        return torch.cuda.get_device_name(found) if found.type == "cuda" else str(torch.empty(0, device=found).device)
    except (RuntimeError, AssertionError) as problem:
        what = str(problem).partition("\n")[0]
        raise InputError(what, where=f"--device {device}", hint="cpu always works") from problem


# Several ranks -------------------------------------------------------------------------------------------------------

NOTES = """
On several devices: torchrun --nproc_per_node=4 --master_port=29500 -m PROGRAM ... runs one process for each, with GPU i
for process i. They split the images, with the same result as one process (docs/commands.md, "Several devices").
"""


def end_ranked(run: Callable[[], None], interrupted: Callable[[], str], timeout: float = ranks.TIMEOUT) -> int:
    """Call `run` on several ranks (hummingbird/ranks.py); return the exit code: 0, 1 after an error, or 130 after
    Ctrl-C.

    Only the first rank prints, but for another rank's error that the first does not know. interrupted: returns the line
    to print after Ctrl-C. timeout: seconds for which ranks wait for each other.
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
