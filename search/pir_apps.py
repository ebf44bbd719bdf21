"""The two applications of private lookups: what an inference wants, and what the net is worth without some of it.

    movielens    the recommender of models/recommender.py; an inference looks up a candidate and up to 63 movies rated
    wikitext2    the language model of models/lstm.py; an inference looks up the next 35 words of a text

As Lam et al. (ASPLOS 2024, section 5) have them. A dropped row is a vector of zeros. What is wanted in the training
split makes the profile; the validation split chooses plans, and the test split says what they are worth. The language
model's output matrix is its table, so a device that scores every word holds the table anyway: it stands here for nets
that read text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from hummingbird.commands.sources import read_weights
from models import recommender
from models.lstm import WordLSTM
from scripts.train.lstm import WINDOW, perplexity, windows
from scripts.train.movielens_data import Questions, load_questions
from scripts.train.recommender import auc, scores
from scripts.train.text_data import load_text

APPLICATIONS = ("movielens", "wikitext2")
_COLUMNS = 16  # texts read side by side


class Evaluation(Protocol):
    """Some inferences of a split, on which a net's quality is measured.

    wanted: for each inference the numbers of the rows that it wants, int64 (n,), those that matter most first.
    """

    wanted: Sequence[Tensor]

    def quality(self, found: Sequence[Tensor]) -> float:
        """Measure the net's quality if lookups find only a part of the wanted rows.

        found: for each inference, which of its wanted rows are found, bool (n,).
        """


@dataclass(frozen=True)
class Application:
    """An application of private lookups: a trained net, and data on which its quality is measured.

    measure: name of the quality, such as "AUC". higher: whether higher numbers are better. table: the rows that are
    looked up, (rows, dim), as the servers store them. accesses: for each inference of the training split, the numbers
    of the rows that it wants, int64 (n,). evaluation: called with the name of a split and a number of inferences, it
    returns an `Evaluation` of at most so many of them; None: of all.
    """

    name: str
    measure: str
    higher: bool
    table: Tensor
    accesses: Sequence[Tensor]
    evaluation: Callable[[str, int | None], Evaluation]

    @property
    def rows(self) -> int:
        """Number of rows of the table."""
        return len(self.table)

    @property
    def row_bytes(self) -> int:
        """Size of a row in bytes."""
        return self.table.shape[1] * self.table.element_size()

    def loss(self, quality: float, exact: float) -> float:
        """Return how much worse `quality` is than `exact`, that with all rows found, as a fraction of `exact`."""
        return (exact - quality if self.higher else quality - exact) / exact


def load_application(name: str, weights: Path, data: str | None) -> Application:
    """Load an application, one of APPLICATIONS, with its trained net.

    weights: the file of the net's weights. data: the data folder; None: HUMMINGBIRD_DATA. Raises InputError for weights
    and data that are missing or do not fit.
    """
    return {"movielens": _movielens, "wikitext2": _wikitext2}[name](weights, data)


def _stored(layer: nn.Embedding) -> Tensor:
    """Return the rows of an embedding in half precision, as the shipped nets have them."""
    return layer.weight.detach().half()


class _Answers:
    """An `Evaluation` of the recommender: its answers to at most `count` questions, spread over all users."""

    def __init__(self, net: recommender.Recommender, questions: Questions, count: int | None) -> None:
        step = 1 if count is None else -(-len(questions.likes) // count)  # spread over all users
        parts = questions.wanted[::step], questions.weights[::step], questions.likes[::step]
        self._net, self._questions = net, Questions(questions.movies, *parts)
        self._there = self._questions.wanted != recommender.PADDING
        self.wanted = [line[there] for line, there in zip(self._questions.wanted, self._there, strict=True)]

    def quality(self, found: Sequence[Tensor]) -> float:
        asked, kept = self._questions, torch.zeros_like(self._there)
        kept[self._there] = torch.cat(list(found))
        left = asked.wanted.masked_fill(~kept, recommender.PADDING)  # whose row is zeros
        return auc(scores(self._net, Questions(asked.movies, left, asked.weights, asked.likes)), asked.likes)


def _movielens(weights: Path, data: str | None) -> Application:
    train = load_questions("train", data)
    net = recommender.Recommender(train.movies)
    read_weights(net, weights, "--weights")
    accesses = [line[line != recommender.PADDING] for line in train.wanted]
    return Application(
        "movielens",
        "AUC",
        True,
        _stored(net.items),
        accesses,
        lambda split, count: _Answers(net, load_questions(split, data), count),
    )


class _Reading:
    """An `Evaluation` of the language model: its perplexity on a text.

    count: most inferences, rounded to whole windows of all columns (texts that are read side by side); None: the whole
    text.
    """

    def __init__(self, net: WordLSTM, text: Tensor, count: int | None) -> None:
        most = len(text) if count is None else _COLUMNS * (max(1, count // _COLUMNS) * WINDOW + 1)
        self._net, self._text = net, text[:most]
        side = self._text[: len(self._text) // _COLUMNS * _COLUMNS].view(_COLUMNS, -1).t()
        self.wanted = [column for words, _ in windows(side, WINDOW) for column in words.t()]

    def quality(self, found: Sequence[Tensor]) -> float:
        steps = iter(found)

        def lookup(words: Tensor) -> Tensor:
            kept = torch.stack([next(steps) for _ in range(words.shape[1])], 1)
            return self._net.words(words) * kept[..., None]

        return perplexity(self._net, self._text, columns=_COLUMNS, lookup=lookup)


def _wikitext2(weights: Path, data: str | None) -> Application:
    text = load_text(data)
    net = WordLSTM(len(text.words))
    read_weights(net, weights, "--weights")
    return Application(
        "wikitext2",
        "perplexity",
        False,
        _stored(net.words),
        text.numbers["train"].split(WINDOW),
        lambda split, count: _Reading(net, text.numbers[split], count),
    )
