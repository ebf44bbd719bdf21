"""Evidence: commands whose figures the pages show, and the record that each measurement leaves in docs/evidence.

A record has the command, the commit, the date, the machine, the versions, the load and all rows of figures. It says
which code it measured by a digest of that code without its comments, docstrings and empty lines: prose may change after
a measurement, code may not.
"""

from __future__ import annotations

import ast
import datetime
import functools
import hashlib
import io
import json
import os
import re
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hummingbird import disk
from hummingbird.commands.program import machine
from hummingbird.errors import EnvironmentProblem, HummingbirdError, InputError
from scripts.program import ROOT, single_threaded

FOLDER = ROOT / "docs/evidence"
MOST_OTHERS = 0.15  # cores that other programs may use while a run is measured
_LONGER = 20  # times the expected minutes after which a command is stopped
_COMMENTS = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")', re.DOTALL)
_KERNELS = ROOT / "hummingbird" / "kernels" / "cpu" / "csrc"
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_TICK = os.sysconf("SC_CLK_TCK")

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A command that measures, and the code that it measures.

    name: names the record. command: starts with `python -m`, and takes --json. code: glob patterns of the measured
    files, from the repository's root; the command's own file belongs to them, and so do the headers that a file in C++
    includes. minutes: roughly, on two cores. repeats: how often it is run; figures are the medians.
    """

    name: str
    command: str
    code: tuple[str, ...]
    minutes: float
    repeats: int = 3

    @property
    def path(self) -> Path:
        """File of the record."""
        return FOLDER / f"{self.name}.json"

    def digest(self) -> str:
        """Compute the digest of the measured code, 16 hexadecimal digits.

        Raises InputError for a pattern that matches no file.
        """
        digest = hashlib.sha256()
        for path in self.files():
            digest.update(f"{path.relative_to(ROOT).as_posix()}\n{essence(path)}\n".encode())
        return digest.hexdigest()[:16]

    def files(self) -> list[Path]:
        """Return the measured files, sorted. Raises InputError for a pattern that matches none."""
        module, found = self.command.split()[2].replace(".", "/"), set[Path]()
        for pattern in (f"{module}.py", *self.code):
            matching = {path for path in ROOT.glob(pattern) if path.suffix in (".py", ".cpp", ".h")}
            if not matching:
                raise InputError(f"no file matches {pattern}", where=self.name, hint="mend the run's list of code")
            found |= matching
        return sorted(found.union(*map(headers, found)))


def headers(path: Path) -> set[Path]:
    """Return the kernels' headers that a file in C++ includes, and those that they include. path: of any file."""
    if path.suffix not in (".cpp", ".h"):
        return set()
    own = {_KERNELS / name for name in _INCLUDE.findall(path.read_text(encoding="utf-8"))}
    return own.union(*map(headers, own))


def essence(path: Path) -> str:
    """Return a source file's text without comments, docstrings and empty lines. path: of a .py, .cpp or .h file."""
    return _essence(path.read_text(encoding="utf-8"), path.suffix)


@functools.cache  # many runs measure the same files
def _essence(text: str, suffix: str) -> str:
    if suffix != ".py":
        return _lines(_COMMENTS.sub(lambda match: match[1] or "", text))
    rows = text.splitlines()
    lines = [row.encode() for row in rows]  # positions of ast are bytes, those of tokenize characters
    cut: list[tuple[int, int, int, int]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and ast.get_docstring(node):
                last = (first.end_lineno or first.lineno, first.end_col_offset or 0)
                cut.append((first.lineno, first.col_offset, *last))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            at = len(rows[line - 1][:column].encode())
            cut.append((line, at, line, len(lines[line - 1])))
    for first_line, start, last_line, end in sorted(cut, reverse=True):
        kept = lines[first_line - 1][:start] + lines[last_line - 1][end:]
        lines[first_line - 1 : last_line] = [kept, *[b""] * (last_line - first_line)]
    return _lines(b"\n".join(lines).decode())


def _lines(text: str) -> str:
    stripped = (line.rstrip() for line in text.splitlines())  # what a line begins with has a meaning in Python
    return "\n".join(line for line in stripped if line)


@dataclass(frozen=True)
class Record:
    """The outcome of a run.

    others: cores that other programs used meanwhile. date: of its end. code: digest of the measured code. repeats: the
    rows of each repetition, in one order. machine: processor and versions.
    """

    command: str
    commit: str
    date: str
    code: str
    seconds: float
    others: float
    machine: Mapping[str, str]
    repeats: Sequence[Sequence[Row]]

    def rows(self) -> list[Row]:
        """Return the rows with the median of each figure."""
        return [
            {key: _median([row.get(key) for row in same]) for key in same[0]}
            for same in zip(*self.repeats, strict=True)
        ]

    def figure(self, where: Mapping[str, Any], key: str) -> list[float]:
        """Return a figure as each repetition measured it.

        where: fields and values of the one row that has it. key: the figure's field. Raises InputError unless there is
        one such row in each repetition, with that field.
        """
        out = []
        for rows in self.repeats:
            found = [row for row in rows if all(row.get(name) == value for name, value in where.items())]
            if len(found) != 1 or not isinstance(found[0].get(key), (int, float)):
                what = f"{len(found)} rows with {dict(where)} and the figure {key!r}, expected one"
                raise InputError(what, where=self.command, hint="mend the row of scripts/papers/register")
            out.append(float(found[0][key]))
        return out

    def problem(self, run: Run) -> str | None:
        """Return why the record is no evidence for a run as it is now; None if it is."""
        if self.command != run.command:
            return f"measured by another command: {self.command}"
        if self.code != run.digest():
            return "older than the code that it measures"
        if self.others > MOST_OTHERS:
            return f"measured on a busy machine: other programs used {self.others:.2f} cores"
        return None


def _median(values: Sequence[Any]) -> Any:
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    return statistics.median(values) if numbers and len(set(values)) > 1 else values[0]


def load(run: Run) -> Record | None:
    """Read the record of a run; None if there is none. Raises InputError for a file that `save` has not written."""
    if not run.path.exists():
        return None
    try:
        read = json.loads(run.path.read_text(encoding="utf-8"))
        common = read.pop("common")
        read["repeats"] = [[{**common, **row} for row in rows] for rows in read["repeats"]]
        return Record(**read)
    except (ValueError, TypeError, KeyError, AttributeError):
        hint = f"measure again: python -m scripts.papers {run.name}"
        raise InputError("no record of a measurement", where=str(run.path.relative_to(ROOT)), hint=hint) from None


def save(run: Run, record: Record) -> None:
    """Write the record of a run; fields that are the same in all rows are written once."""
    every = [row for rows in record.repeats for row in rows]
    common = {key: value for key, value in every[0].items() if all(key in row and row[key] == value for row in every)}
    brief = [[{key: row[key] for key in row if key not in common} for row in rows] for rows in record.repeats]
    head = {name: getattr(record, name) for name in Record.__dataclass_fields__ if name != "repeats"}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in {**head, "common": common}.items()]
    repeats = ",\n".join("  [" + ",\n   ".join(json.dumps(row) for row in rows) + "]" for rows in brief)
    text = "\n".join(["{", *lines, ' "repeats": [', repeats, " ]", "}", ""])
    run.path.parent.mkdir(parents=True, exist_ok=True)
    disk.save(run.path, [text.encode()])


def measure(run: Run) -> Record:
    """Run a command, and return its figures with what is to be known about them.

    Raises EnvironmentProblem outside of a git repository, InputError for measured code that is not committed, and
    HummingbirdError if the command fails.
    """
    changed = _git("status", "--porcelain", "--", *(str(path.relative_to(ROOT)) for path in run.files()))
    if changed:
        what = f"code that is not committed: {changed.splitlines()[0].split(maxsplit=1)[1]}"
        raise InputError(what, where=run.name, hint="commit first, so that the figures can be traced to the code")
    commit, code = _git("rev-parse", "HEAD")[:12], run.digest()
    started, busy, own = time.monotonic(), _busy(), _children()
    repeats = [_rows(run) for _ in range(run.repeats)]
    seconds = time.monotonic() - started
    others = max(0.0, _busy() - busy - (_children() - own)) / seconds
    shapes = {tuple(tuple(row) for row in rows) for rows in repeats}
    if len(shapes) != 1 or not repeats[0]:
        raise HummingbirdError("no rows, or other rows each time", where=run.command)
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    facts = (round(seconds, 1), round(others, 3), machine())
    return Record(run.command, commit, date, code, *facts, repeats)


def _rows(run: Run) -> list[Row]:
    words = shlex.split(run.command)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = [sys.executable, *words[1:], "--json", str(path)]
        try:
            limit = 60 * _LONGER * run.minutes
            ended = subprocess.run(command, cwd=ROOT, env=single_threaded(), stdin=subprocess.DEVNULL, timeout=limit)
        except subprocess.TimeoutExpired:
            what = f"the command has not ended after {limit:.0f} s, and takes {run.minutes:g} minutes"
            raise HummingbirdError(what, where=run.command, hint="is the machine busy, or much slower?") from None
        if ended.returncode or not path.exists():
            raise HummingbirdError(f"the command ended with code {ended.returncode}", where=run.command)
        return list(json.loads(path.read_text(encoding="utf-8")))


def _git(*words: str) -> str:
    try:
        said = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as problem:
        hint = "measure in a clone of the repository: a record names its commit"
        raise EnvironmentProblem("git knows no commit here", where=str(ROOT), hint=hint) from problem
    return said.stdout.strip()


def _busy() -> float:
    """Return the seconds that all cores have worked, or were taken by the host's other guests, since the start."""
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        raise EnvironmentProblem("no /proc/stat", where="load", hint="records are made on Linux") from None
    user, nice, system, _, _, interrupts, soft, stolen, *_ = map(int, line.split()[1:])
    return (user + nice + system + interrupts + soft + stolen) / _TICK


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def spread(values: Iterable[float], form: str) -> str:
    """Format a figure: its median, and the least and the largest value where they differ as printed.

    form: a format such as "{:.2f}".
    """
    values = sorted(values)
    middle, least, most = (form.format(value) for value in (statistics.median(values), values[0], values[-1]))
    return middle if least == most else f"{middle} ({least} to {most})"
