"""WikiText-2 (Merity et al., 2016) as word numbers: the text of one split, and the words by falling frequency.

The folder given by --data or HUMMINGBIRD_DATA holds wikitext-2/{train,valid,test}.txt.xz: words separated by blanks,
<unk> for rare ones; the end of a line is the word <eos>. Word 0 is the most frequent of the training text.

It is also asked as questions: which of the 64 most frequent words stands in the middle of 32 words, where it is hidden?
44 of 100 words of the test text are one of the 64; <unk> and the end of a line are none of them. Who always says "the"
is right for 13 of 100. The 4,000 most frequent words have rows of their own in the table of word vectors; then comes
the row of all rarer ones, and that of a hidden word.

A GPT reads it as pieces of words (models/pieces.py), each word with a blank before it; <eos> is the end of a line.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hummingbird.errors import InputError
from models import load_checkpoint
from models.bert import bert_tiny
from models.pieces import Pieces
from scripts.train.data import SPLITS, read_text

_FILES = {"train": "train", "validation": "valid", "test": "test"}
CHOICES, LENGTH = 64, 32
_RARE, HIDDEN = 4000, 4001  # rows of the table
_NOT_ASKED = ("<unk>", "<eos>")


@dataclass(frozen=True)
class Text:
    """words: of the training text, the most frequent first; counts: how often each is there; numbers: of every word of
    a split, int64 (N,).
    """

    words: tuple[str, ...]
    counts: tuple[int, ...]
    numbers: dict[str, torch.Tensor]


def load_text(data: str | Path | None = None, splits: tuple[str, ...] = SPLITS) -> Text:
    """Read the splits and number their words by the training text; about 2 s for all of them.

    Raises InputError for an unknown split, a missing or damaged file, and a word that the training text has not.

        text = load_text()
        text.numbers["test"].shape, len(text.words)             # (245569,), 33278
    """
    if unknown := [split for split in splits if split not in SPLITS]:
        hint = f"the splits are {', '.join(SPLITS)}"
        raise InputError(f"there is no split {unknown[0]!r}", where="splits", hint=hint)
    texts = {split: _words(split, data) for split in {"train": None, **dict.fromkeys(splits)}}
    common = Counter(texts["train"]).most_common()  # words equally frequent keep the order of the text
    number = {word: place for place, (word, _) in enumerate(common)}
    try:
        numbers = {split: torch.tensor([number[word] for word in texts[split]]) for split in splits}
    except KeyError as problem:
        hint = "the three files of WikiText-2 have one vocabulary: are they of one version?"
        raise InputError(f"the word {problem} is not in the training text", where="wikitext-2", hint=hint) from None
    words, counts = zip(*common, strict=True)
    return Text(words, counts, numbers)


def _words(split: str, data: str | Path | None) -> list[str]:
    return read_text(f"wikitext-2/{_FILES[split]}.txt.xz", data).replace("\n", " <eos> ").split()


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


def learned_pieces(text: Text, size: int) -> Pieces:
    """Learn `size` pieces of the words of the training text; about 10 s.

    Raises InputError for a text that has fewer.
    """
    pieces = Pieces.learn({_spelled(word): count for word, count in zip(text.words, text.counts, strict=True)}, size)
    if len(pieces.all) < size:
        hint = "the training text of WikiText-2 is larger: is the file whole?"
        raise InputError(f"{len(pieces.all)} pieces in the text, {size} expected", where="wikitext-2", hint=hint)
    return pieces


def pieced(text: Text, split: str, pieces: Pieces) -> Tensor:
    """The numbers of the pieces of a split, int64 (N,)."""
    parts = [torch.tensor(pieces.numbers(_spelled(word))) for word in text.words]
    return torch.cat([parts[number] for number in text.numbers[split].tolist()])


def _spelled(word: str) -> str:
    return "\n" if word == "<eos>" else f" {word}"
