"""WikiText-2 (Merity et al., 2016) as word numbers: the text of one split, and the words by falling frequency.

The folder given by --data or HUMMINGBIRD_DATA holds wikitext-2/{train,valid,test}.txt.xz: words separated by blanks,
<unk> for rare ones; the end of a line is the word <eos>. Word 0 is the most frequent of the training text.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from hummingbird.errors import InputError
from scripts.train.data import SPLITS
from scripts.train.data_folder import read_text

_FILES = {"train": "train", "validation": "valid", "test": "test"}


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
