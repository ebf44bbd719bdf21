"""What every program does at its end, and the command line that it tells of itself."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hummingbird.errors import HummingbirdError


def command_of(program: str, words: Sequence[str]) -> str:
    """The command line for provenance: as typed, but absolute paths lose their folders, which are of one machine."""
    shown = []
    for word in words:
        key, equals, value = word.rpartition("=")
        shown.append(f"{key}{equals}{Path(value).name}" if Path(value).is_absolute() else word)
    return shlex.join(["python", "-m", program, *(word for word in shown if word != "--resume")])


def end(run: Callable[[], None], interrupted: Callable[[], str]) -> int:
    """The exit code of `run`: 0; 1 after an `error:` line; 130 after Ctrl-C and the line that `interrupted` gives."""
    try:
        run()
    except HummingbirdError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{interrupted()}", file=sys.stderr)
        return 130
    return 0
