"""Train the GPT of models/gpt.py on WikiText-2, print its perplexity and save its weights, with the pieces of words.

The pieces are learned from the words of the training text. The text is cut into parts of 256 pieces, elsewhere in every
epoch. Perplexity is per word, so that it compares with nets that read whole words: exp of the sum of -log p of all
pieces but the first, over the number of words. The text is read in steps of 128 pieces, each after up to 128 before.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from models.gpt import Gpt, gpt_small
from models.pieces import Pieces
from scripts.program import new_parser
from scripts.train.text_data import Text, learned_pieces, pieced
from scripts.train.text_training import TextRecipe, TextTraining, add_text_arguments, train_text

_EPILOG = """examples:
  the net of this repository (a quarter of an hour on one CPU core for each epoch):
    python -m scripts.train.gpt --data DATA --epochs 3 --amp --out checkpoints/wikitext2-gpt.pt

A training that was interrupted goes on from the last whole epoch with the same command and --resume.
"""


@dataclass(frozen=True)
class Recipe(TextRecipe):
    """How to train the GPT."""


class Training(TextTraining):
    """The GPT at its text."""

    model: Gpt
    stored = torch.int8

    def __init__(self, text: Text, recipe: Recipe) -> None:
        net = gpt_small()
        pieces = learned_pieces(text, net.words.num_embeddings)
        net.pieces = pieces.table()
        self.numbers, self.length = pieced(text, "train", pieces), len(net.places)
        self.parts = (len(self.numbers) - 1) // self.length - 1  # one less: they begin up to 255 pieces later
        super().__init__(net, -(-self.parts // recipe.batch), recipe)

    def losses(self) -> Iterator[Tensor]:
        """Losses of every part of the text, once."""
        start = int(torch.randint(self.length, ()))
        parts = self.numbers[start:].unfold(0, self.length + 1, self.length)[: self.parts]
        for chosen in torch.randperm(self.parts).split(self.recipe.batch):
            part = parts[chosen]
            with torch.autocast("cpu", torch.bfloat16, enabled=self.recipe.amp):
                logits = self.model(self.model.words(part[:, :-1]))
            yield F.cross_entropy(logits.float().flatten(0, 1), part[:, 1:].flatten())


def surprise(net: Gpt, numbers: Tensor, *, batch: int = 16) -> float:
    """Sum of -log p (natural) of all pieces of a text but the first: int64 (N,), read in steps of half the places."""
    net.eval()
    length, step = len(net.places), len(net.places) // 2
    with torch.inference_mode():
        total = _scored(net, numbers[None, : length + 1], 0)
        later = numbers[step:]
        whole = later.unfold(0, length + 1, step) if len(later) > length else later.new_empty(0, length + 1)
        rest = later[len(whole) * step :]
        parts = [*whole.split(batch), *([rest[None]] if len(rest) > step + 1 else [])]
        return total + sum(_scored(net, part, step) for part in parts)


def _scored(net: Gpt, texts: Tensor, start: int) -> float:
    logits = net(net.words(texts[:, :-1]))[:, start:]
    return float(F.cross_entropy(logits.double().flatten(0, 1), texts[:, start + 1 :].flatten(), reduction="sum"))


def quality(net: Gpt, text: Text, split: str) -> str:
    """The perplexity per word of a split, in words."""
    assert net.pieces is not None
    words = len(text.numbers[split])
    total = surprise(net, pieced(text, split, Pieces.of_table(net.pieces)))
    return f"perplexity {math.exp(total / (words - 1)):.2f} of {words} words"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser(__doc__, "scripts.train.gpt", _EPILOG)
    add_text_arguments(made, epochs=3, batch=4, rate=3e-3)
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the program; 0 on success, 1 after an `error:` line, 130 after Ctrl-C."""
    return train_text("train_gpt", parser().parse_args(arguments), Recipe, Training, quality)


if __name__ == "__main__":
    sys.exit(main())
