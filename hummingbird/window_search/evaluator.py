"""Evaluators, which score windows for a search; the search's questions to them, and the journal of their answers.

An evaluator is a plain function, or an object that also has a cheap coarse score.

An answer is either kept or not. With good windows few answers change, and on a few thousand images their number is
mostly noise. So a score has a second, finer part that changes before any answer does (cached.py).
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from hummingbird import disk, ranks, records
from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError

# Journal of a search --------------------------------------------------------------------------------------------------
#
# It has every answer of the evaluator, in a file of JSON lines that a restarted search replays.
#
#     {"format": "hummingbird-search", "version": 2, "problem": "<fingerprint>"}
#     {"asked": "coarse", "windows": [[20, 12], [20, 12, 6]], "floor": 0.0, "answer": [0.925], "seconds": 12.5}
#
# The search is deterministic: with the same answers it asks the same questions, in the same order. So the list of
# answers is the state of a search. One line is written after each answer: a kill costs one question at most, and an
# incomplete last line is dropped. `seconds` is the time of the search so far, with earlier sessions.
#
# Of several ranks, rank 0 has the file, and sends its answers to the others at the start.

FORMAT = "hummingbird-search"
VERSION = 2
_LINE = records.mapping(records.anything(), 64)
_NUMBERS = {"coarse": 1, "full": 2}  # length of an answer


class Journal:
    """A file of an evaluator's answers, from which an interrupted search goes on.

    A resumed search asks the same questions in the same order: it gets the answers in the file first; after that each
    answer is computed, and appended to the file.
    path: the file; None: nothing is kept. fingerprint: a hash of all that determines the search. before: seconds spent
    on the search before the journal was opened. Raises ConfigError for a file that is no journal, or that belongs to
    another search.
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
        """Return the answer to a search's next question: from the file if it has one more, else from `evaluate`.

        question: what is asked: the kind of score, the windows and the floor. evaluate: computes the answer, one number
        or two. Such an answer is appended to the file, with the question. Raises ConfigError if the file's answer is to
        another question.
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


# Evaluators -----------------------------------------------------------------------------------------------------------


class Score(NamedTuple):
    """A score of windows, both parts from 0 to 1; higher is better.

    answers: the proportion of answers that are right, or equal to the exact net's. fine: a finer score, which changes
    before any answer does, and by which windows are ranked.
    """

    answers: float
    fine: float


@runtime_checkable
class Evaluator(Protocol):
    """Interface of an object that scores windows, which a search asks.

    A score depends on the windows alone: randomness comes from a seed.
    """

    def coarse(self, config: BitConfig) -> float:
        """Return a quick score, such as `Score.fine` on a few images, by which a search ranks windows.

        Only the best of these windows are then scored by `full`.
        """

    def full(self, config: BitConfig, floor: float) -> Score:
        """Return the score of windows on all images, by which a search decides between windows.

        floor: the lowest proportion of right answers that matters to the search. If the score's is lower, any number
        below `floor` may be returned in its place.
        """


class FunctionEvaluator:
    """An evaluator made of a function: evaluate(config) returns the accuracy, 0 to 1, with these windows.

    The accuracy is the coarse and the full score. Nothing is cached.
    """

    def __init__(self, evaluate: Callable[[BitConfig], float]) -> None:
        self.evaluate = evaluate

    def coarse(self, config: BitConfig) -> float:
        return self.evaluate(config)

    def full(self, config: BitConfig, floor: float) -> Score:
        accuracy = self.evaluate(config)
        return Score(accuracy, accuracy)


def checked(value: Any, where: str) -> float:
    """Convert a score to float. Raises InputError, naming `where`, unless it is a number from 0 to 1."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or math.isnan(value) or not 0 <= value <= 1:
        hint = "the fraction of right answers, from 0 to 1, not percent"
        raise InputError(f"evaluate gave an accuracy of {value!r}", where=where, hint=hint)
    return float(value)


# The search's questions to an evaluator -------------------------------------------------------------------------------


class Progress(NamedTuple):
    """The progress of a search, for a progress bar.

    evaluations: number of answers so far. accuracy: the proportion of right answers of the best windows so far. price:
    that of these windows, in units of the objective. accuracy and price are None until windows have been scored.
    """

    evaluations: int
    accuracy: float | None
    price: float | None


class Questions:
    """Asks an evaluator for the scores that a search needs; checks and counts the answers, and keeps a journal of them.

    names: names of all layers, in order; a layer without a window in a question compares exactly. `watch`: a function
    without arguments, which is called after every answer.
    """

    def __init__(self, names: Sequence[str], evaluator: Evaluator, journal: Journal) -> None:
        self.names, self.evaluator, self.journal = names, evaluator, journal
        self.evaluations = 0
        self.watch: Callable[[], None] = lambda: None

    def config(self, windows: Mapping[str, BitWindow]) -> BitConfig:
        """Return a configuration that names a window for every layer; a layer that is not in `windows` is exact.

        Without names for all layers, the second call of a layer (relu#1) would take the window of the first (relu).
        """
        return BitConfig(EXACT, {**dict.fromkeys(self.names, EXACT), **windows})

    def coarse(self, windows: Mapping[str, BitWindow]) -> float:
        """Return the quick score of these windows, by which a search ranks windows (`Evaluator.coarse`).

        windows: by the layers' names.
        """
        config = self.config(windows)
        return self._ask("coarse", config, 0.0, lambda: [self.evaluator.coarse(config)])[0]

    def full(self, windows: Mapping[str, BitWindow], floor: float = 0.0) -> Score:
        """Return the score of these windows on all images, by which a search decides (`Evaluator.full`).

        windows: by the layers' names. floor: the lowest proportion of right answers that matters; if the score's is
        certain to be lower, any lower number may come instead.
        """
        config = self.config(windows)
        return Score(*self._ask("full", config, floor, lambda: list(self.evaluator.full(config, floor))))

    def _ask(self, what: str, config: BitConfig, floor: float, evaluate: Callable[[], list[float]]) -> list[float]:
        asked = [config.layers[name] for name in self.names]
        windows = [[w.k, w.m] + ([w.q] if w.q else []) for w in asked]
        question = {"asked": what, "windows": windows, "floor": floor}

        def answer() -> list[float]:
            return [checked(value, what) for value in evaluate()]

        found = [checked(value, "the search's state") for value in self.journal.ask(question, answer)]
        self.evaluations += 1
        self.watch()
        return found
