"""Every answer of the evaluator, in a file of JSON lines that a restarted search replays.

    {"format": "hummingbird-search", "version": 1, "problem": "<fingerprint>"}
    {"before": [[20, 12]], "windows": [[18, 10], [17, 9]], "floor": 0.91, "accuracy": [0.925, 0.0]}

The search is deterministic: with the same answers it asks the same questions, in the same order. So the state of a
search is the list of answers so far, one line after each, and whatever kills it costs one question at most. A last
line without its end is that question.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hummingbird.bits import BitWindow
from hummingbird.errors import ConfigError

FORMAT = "hummingbird-search"
VERSION = 1


class Journal:
    """Answers on file, then new ones, which are added to it; `path` None: nothing is kept.

    Raises ConfigError for a file that is no journal, or that of another problem.
    """

    def __init__(self, path: str | Path | None, fingerprint: str) -> None:
        self.path = None if path is None else Path(path)
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

    @staticmethod
    def _begin(path: Path, fingerprint: str) -> None:
        """Through a second file: a journal has its first line from its first moment."""
        head = {"format": FORMAT, "version": VERSION, "problem": fingerprint}
        draft = path.with_name(path.name + ".new")
        draft.write_text(json.dumps(head) + "\n", encoding="utf-8")
        os.replace(draft, path)

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

    def ask(
        self,
        before: Sequence[BitWindow],
        windows: Sequence[BitWindow],
        floor: float,
        evaluate: Callable[[], list[float]],
    ) -> list[float]:
        """The next answer: from the file as long as it has one, else evaluated and written down."""
        question = {"before": _pairs(before), "windows": _pairs(windows), "floor": floor}
        if self.replayed < len(self._answers):
            answer = self._answers[self.replayed]
            if {key: answer.get(key) for key in question} != question:
                hint = "the file was changed, or written by another release: start again with another one"
                raise ConfigError(f"answer {self.replayed + 1} is to another question", where=str(self.path), hint=hint)
            self.replayed += 1
            return answer.get("accuracy", [])
        accuracies = evaluate()
        if self.path is not None:
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({**question, "accuracy": accuracies}) + "\n")
            except OSError as error:
                raise _unkept(self.path, error) from None
        return accuracies


def _unkept(path: Path, error: OSError) -> ConfigError:
    hint = "name a file in a folder that can be written"
    return ConfigError(f"cannot keep the search's state: {error.strerror}", where=str(path), hint=hint)


def _pairs(windows: Sequence[BitWindow]) -> list[list[int]]:
    return [[window.k, window.m] for window in windows]


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        hint = "name the file that the search has written"
        raise ConfigError("not a line of a search's state", where=where, hint=hint)
    return value
