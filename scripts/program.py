"""Parts of all programs here: options, exit codes, rows of figures, environments of processes, and timing.

It imports torch only where that is used: some of the processes here must start in a moment.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hummingbird.errors import EnvironmentProblem
from hummingbird.table import text_table

ROOT = Path(__file__).resolve().parents[1]
NOTHING = "interrupted: nothing was written"


def new_parser(text: str | None, program: str | None = None, epilog: str | None = None) -> argparse.ArgumentParser:
    """A parser that prints these texts as they are. program: the module's name, for its usage line."""
    raw = argparse.RawDescriptionHelpFormatter
    name = None if program is None else f"python -m {program}"
    return argparse.ArgumentParser(prog=name, description=text, epilog=epilog, formatter_class=raw)


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json: the file of rows."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file")


def main_of(
    parser: Callable[[], argparse.ArgumentParser], run: Callable[[Any], None], interrupted: str = NOTHING
) -> Callable[..., int]:
    """A `main(arguments=None)` that runs a program: 0 on success, 1 after an `error:` line, 130 after Ctrl-C.

    interrupted: the line to print after Ctrl-C.
    """

    def main(arguments: Sequence[str] | None = None) -> int:
        from hummingbird.commands.program import end

        args = parser().parse_args(arguments)
        return end(lambda: run(args), lambda: interrupted)

    return main


def columns(
    rows: Iterable[Mapping[str, Any]], shown: Sequence[tuple[str, str | Callable[[Any], str]]], left: int = 1
) -> str:
    """Rows as a text table. shown: each column's heading, and the format of its cells, such as "{seconds:.2f} s".

    left: columns that are aligned left.
    """
    cells = [[cell.format(**row) if isinstance(cell, str) else cell(row) for _, cell in shown] for row in rows]
    return text_table([heading for heading, _ in shown], cells, left)


def maybe(key: str, form: str, scale: float = 1.0, nothing: str = "") -> Callable[[Any], str]:
    """The cell of a number that a row may lack, or have as None. form: as ",.2f"; scale: times the number."""
    return lambda row: nothing if row.get(key) is None else f"{scale * row[key]:{form}}"


def write_rows(path: Path | None, rows: Any) -> None:
    """Write figures to the file of --json, if there is one."""
    from hummingbird.commands.output import write_json

    if path is not None:
        write_json(path, rows)


def single_threaded(**variables: str) -> dict[str, str]:
    """Variables of a process that computes on one thread and finds this checkout; and these."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}


def alone() -> None:
    """Compute on one thread, and keep freed memory as services do. EnvironmentProblem without the C++ kernels."""
    import torch

    from hummingbird.kernels import devices
    from hummingbird.kernels.cpu import library

    if not library.available():
        raise EnvironmentProblem("the native kernels are not built", where="kernels", hint="see CONTRIBUTING.md")
    devices.keep_freed_memory()
    torch.set_num_threads(1)


def taken(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of a call."""
    started = clock()
    run()
    return clock() - started


def best(run: Callable[[], object], budget: float = 0.3) -> float:
    """The least time of a call, in seconds, of those that fit into `budget` seconds; at least three."""
    times: list[float] = []
    while len(times) < 3 or (sum(times) < budget and len(times) < 200):
        times.append(taken(run))
    return min(times)


def median(run: Callable[[], object], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """The median time of a call in seconds, after one that is not counted."""
    run()
    return statistics.median(taken(run, clock) for _ in range(repeats))
