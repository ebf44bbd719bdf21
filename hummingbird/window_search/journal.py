"""Journal of a search: every answer of the evaluator, in a file of JSON lines that a restarted search replays.

    {"format": "hummingbird-search", "version": 2, "problem": "<fingerprint>"}
    {"asked": "coarse", "windows": [[20, 12], [20, 12, 6]], "floor": 0.0, "answer": [0.925], "seconds": 12.5}

The search is deterministic: with the same answers it asks the same questions, in the same order. So the list of answers
is the state of a search. One line is written after each answer: a kill costs one question at most, and an incomplete
last line is dropped. `seconds` is the time of the search so far, with earlier sessions.

Of several ranks, rank 0 has the file, and sends its answers to the others at the start.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hummingbird import disk, ranks, records
from hummingbird.errors import ConfigError

FORMAT = "hummingbird-search"
VERSION = 2
_LINE = records.mapping(records.anything(), 64)
_NUMBERS = {"coarse": 1, "full": 2}  # length of an answer


class Journal:
    """A file of an evaluator's answers, from which an interrupted search goes on.

    A search takes its answers from the file first; then each new answer is computed, and appended to the file.
    path: the file; None: nothing is kept. fingerprint: identifies the problem. before: seconds spent on the search
        before the journal was opened. Raises ConfigError for a file that is no journal, or that belongs to another
        problem.
    """

    def __init__(self, path: str | Path | None, fingerprint: str, before: float = 0.0) -> None:
        self.path = None if path is None or not ranks.first() else Path(path)
        self._started = time.perf_counter() - before
        self.replayed = 0
        self._answers: list[dict[str, Any]] = []
        if self.path is not None:
            try:
                if self.path.exists():
                    self._read(self.path, fingerprint)
                else:
                    self._begin(self.path, fingerprint)
            except OSError as error:
                raise _unkept(self.path, error) from None
        told = ranks.told(lambda: json.dumps(self._answers).encode())
        self._answers = [*records.read(told, records.many(_LINE, 1 << 30), name="answers", most=1 << 32)]

    @staticmethod
    def _begin(path: Path, fingerprint: str) -> None:
        """Create the file with its first line, completely or not at all."""
        head = {"format": FORMAT, "version": VERSION, "problem": fingerprint}
        disk.save(path, [f"{json.dumps(head)}\n".encode()])

    def _read(self, path: Path, fingerprint: str) -> None:
        text = path.read_bytes()
        whole, _, torn = text.rpartition(b"\n")
        lines = [_parse(line, f"{path}, line {number}") for number, line in enumerate(whole.split(b"\n"), start=1)]
        head = lines[0]
        if head.get("format") != FORMAT:
            raise ConfigError(f"not a {FORMAT} file", where=str(path), hint="name the file that the search has written")
        if head.get("version") != VERSION:
            what = f"state of version {head.get('version')!r}, this release reads version {VERSION}"
            raise ConfigError(what, where=str(path), hint="start again with another file")
        if head.get("problem") != fingerprint:
            hint = "resume with the same net, data, groups, objective, budget and seed, or name another file"
            raise ConfigError("the state of another search", where=str(path), hint=hint)
        self._answers = lines[1:]
        if torn:
            os.truncate(path, len(text) - len(torn))

    @property
    def seconds(self) -> float:
        """The search's seconds so far; earlier runs that were interrupted count up to their last answer."""
        earlier = self._answers[-1].get("seconds", 0.0) if self._answers else 0.0
        if not isinstance(earlier, (int, float)) or not earlier >= 0:
            raise ConfigError(f"{earlier!r} seconds", where=str(self.path), hint="start again with another file")
        return earlier + time.perf_counter() - self._started

    def ask(self, question: Mapping[str, Any], evaluate: Callable[[], list[float]]) -> list[float]:
        """Return the answer to the next question: from the file while it has one, else from `evaluate`.

        An answer from `evaluate` is appended to the file, with the question. Raises ConfigError if the file's answer is
        to another question.
        """
        if self.replayed < len(self._answers):
            answer = self._answers[self.replayed]
            if {key: answer.get(key) for key in question} != question:
                hint = "the file was changed, or written by another release: start again with another one"
                raise ConfigError(f"answer {self.replayed + 1} is to another question", where=str(self.path), hint=hint)
            self.replayed += 1
            found = answer.get("answer")
            if not isinstance(found, list) or len(found) != _NUMBERS[question["asked"]]:
                raise ConfigError(f"answer {self.replayed} is none", where=str(self.path), hint="start again")
            return found
        found = evaluate()
        if self.path is not None:
            line = json.dumps({**question, "answer": found, "seconds": round(self.seconds, 3)})
            try:
                disk.append(self.path, [f"{line}\n".encode()])
            except OSError as error:
                raise _unkept(self.path, error) from None
        return found


def _unkept(path: Path, error: OSError) -> ConfigError:
    hint = "name a file in a folder that can be written"
    return ConfigError(f"cannot keep the search's state: {error.strerror}", where=str(path), hint=hint)


def _parse(line: bytes, where: str) -> dict[str, Any]:
    hint = "name the file that the search has written"
    value: dict[str, Any] = records.read(
        line, _LINE, name="line of a search's state", most=64 << 20, where=where, hint=hint, error=ConfigError
    )
    return value
