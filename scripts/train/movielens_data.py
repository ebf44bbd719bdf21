"""MovieLens (ml-latest-small; Harper and Konstan, 2015) as questions: does a user like the next movie, given a history?

The folder given by --data or HUMMINGBIRD_DATA holds ml-latest-small/{ratings,movies}.csv.gz. Users are split, not
ratings: those of the validation and test splits are new to the net. Every rating of a user but the first few asks one
question: the movie rated, and the movies that the user rated before it, the latest first, with those ratings. A rating
of 4 or more is a like.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hummingbird.errors import InputError
from scripts.train.data import SPLITS, read_text

HISTORY = 63  # movies: with the candidate, 64 lookups
_FIRST = 5  # ratings of each user that ask nothing
_LIKE = 4.0
_MIDDLE, _SPREAD = 3.5, 5.0  # a rating's weight is its distance from the mean one, in fifths
_SHARES = (70, 10, 20)  # per cent of users


@dataclass(frozen=True)
class Questions:
    """wanted: int64 (N, 1 + HISTORY), the candidate, then the history, latest first, ended by zeros; weights: float32
    (N, HISTORY), (rating - 3.5) / 5, 0 where there is none; likes: int64 (N,), 0 or 1. Movies count from 1 to `movies`.
    """

    movies: int
    wanted: torch.Tensor
    weights: torch.Tensor
    likes: torch.Tensor


def load_questions(split: str, data: str | Path | None = None) -> Questions:
    """The questions of the "train", "validation" or "test" users; about a second.

    Raises InputError for an unknown split and a missing or damaged file.

        questions = load_questions("test")
        net(questions.wanted, questions.weights)                # (N, 2)
    """
    if split not in SPLITS:
        raise InputError(f"there is no split {split!r}", where="split", hint=f"the splits are {', '.join(SPLITS)}")
    try:
        movies = [int(line[0]) for line in _lines("movies", data)]
        table = np.array([line for line in _lines("ratings", data)], dtype=np.float64)
        user, movie, rating, when = table.T
    except (ValueError, IndexError) as problem:
        raise InputError(f"no MovieLens table: {problem}", where="ml-latest-small") from None
    number = {movie: place for place, movie in enumerate(sorted(movies), 1)}
    if unknown := set(movie.astype(int).tolist()) - number.keys():
        raise InputError(f"movie {min(unknown)} is rated but not listed", where="ml-latest-small")
    item = np.array([number[one] for one in movie.astype(int).tolist()])
    wanted, weights, likes = [], [], []
    for person in _people(np.unique(user), split):
        chosen = np.nonzero(user == person)[0]
        chosen = chosen[np.lexsort((movie[chosen], when[chosen]))]
        wanted.append(_latest_first(item[chosen]))
        weights.append(_latest_first((rating[chosen] - _MIDDLE) / _SPREAD)[:, 1:])
        likes.append(rating[chosen[_FIRST:]] >= _LIKE)
    return Questions(
        len(movies),
        torch.from_numpy(np.concatenate(wanted).astype(np.int64)),
        torch.from_numpy(np.concatenate(weights).astype(np.float32)),
        torch.from_numpy(np.concatenate(likes).astype(np.int64)),
    )


def _latest_first(values: np.ndarray) -> np.ndarray:
    """Each of the values (n,) but the first few, and those before it, ended by zeros: (n - _FIRST, 1 + HISTORY)."""
    padded = np.concatenate([np.zeros(HISTORY, values.dtype), values])
    return np.lib.stride_tricks.sliding_window_view(padded, 1 + HISTORY)[_FIRST:, ::-1]


def _lines(name: str, data: str | Path | None) -> list[list[str]]:
    """The lines of a table, without its heading."""
    return list(csv.reader(read_text(f"ml-latest-small/{name}.csv.gz", data).splitlines()))[1:]


def _people(users: np.ndarray, split: str) -> np.ndarray:
    # RandomState's stream is frozen by numpy's compatibility policy, so the split is the same everywhere.
    order = users[np.random.RandomState(0).permutation(len(users))]
    ends = np.cumsum(_SHARES) * len(users) // 100
    place = SPLITS.index(split)
    return order[ends[place - 1] if place else 0 : ends[place]]
