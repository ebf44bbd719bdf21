"""WikiText-2 as questions: which of the 64 most frequent words stands in the middle of 32 words, where it is hidden?

44 of 100 words of the test text are one of the 64; <unk> and the end of a line are none of them. Who always says "the"
is right for 13 of 100. The 4,000 most frequent words have rows of their own in the table of word vectors; then comes
the row of all rarer ones, and that of a hidden word.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from models import load_checkpoint
from models.bert import bert_tiny
from scripts.train.text_data import Text, load_text

CHOICES, LENGTH = 64, 32
_RARE, HIDDEN = 4000, 4001  # rows of the table
_NOT_ASKED = ("<unk>", "<eos>")


def choices(text: Text) -> tuple[str, ...]:
    """The words that may be hidden, the most frequent first; fewer than CHOICES of a text of few words."""
    return tuple(word for word in text.words if word not in _NOT_ASKED)[:CHOICES]


def numbered(text: Text, split: str) -> tuple[Tensor, Tensor]:
    """For every word of a split its row in the table, and its place among the choices or -1: int64 (N,) each."""
    places = {word: place for place, word in enumerate(choices(text))}
    asked = torch.tensor([places.get(word, -1) for word in text.words])
    numbers = text.numbers[split]
    return numbers.clamp(max=_RARE), asked[numbers]


def questions(text: Text, split: str) -> tuple[Tensor, Tensor]:
    """Every question of a split, in order: rows int64 (N, LENGTH), of views, and places among the choices (N,)."""
    rows, asked = numbered(text, split)
    windows, middle = rows.unfold(0, LENGTH, 1), asked[LENGTH // 2 :][: len(rows) - LENGTH + 1]
    return windows[middle >= 0], middle[middle >= 0]


def hidden(rows: Tensor) -> Tensor:
    """Rows (N, LENGTH) of text with the word in the middle hidden."""
    return rows.index_fill(1, torch.tensor([LENGTH // 2]), HIDDEN)


def vectors(
    weights: str, split: str = "test", count: int = 500, data: str | Path | None = None
) -> tuple[Tensor, Tensor]:
    """The word vectors float32 (count, LENGTH, width) of questions from all over a split, and their answers int64.

    weights: of BERT-tiny, whose table they are from. Raises InputError for data or weights that are not there.

        x, answers = vectors("checkpoints/wikitext2-bert.pt", count=100)
    """
    rows, answers = questions(load_text(data, (split,)), split)
    chosen = torch.arange(count) * len(rows) // count
    with torch.no_grad():
        return load_checkpoint(weights, bert_tiny()).words(hidden(rows[chosen])), answers[chosen]
