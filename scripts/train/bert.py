"""Train the BERT-tiny of models/bert.py to find hidden words of WikiText-2, print its accuracy and save its weights.

The text is cut into pieces of 32 words, elsewhere in every epoch; of the words that may be hidden, 3 in 10 are, all
places alike, and the net says which they were. The accuracy is of the questions of scripts/train/text_data.py,
where one word is hidden, in the middle.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from models.bert import Bert, bert_tiny
from scripts.program import new_parser
from scripts.train.text_data import HIDDEN, LENGTH, Text, hidden, numbered, questions
from scripts.train.text_training import TextRecipe, TextTraining, add_text_arguments, train_text

_EPILOG = """examples:
  the net of this repository (about a quarter of an hour on one CPU core):
    python -m scripts.train.bert --data DATA --epochs 6 --amp --out checkpoints/wikitext2-bert.pt

A training that was interrupted goes on from the last whole epoch with the same command and --resume.
"""
_SHARE = 0.3  # of the words that may be hidden: 13 of 100 words, near BERT's 15


@dataclass(frozen=True)
class Recipe(TextRecipe):
    """How to train BERT-tiny."""


class Training(TextTraining):
    """BERT-tiny at its text."""

    model: Bert

    def __init__(self, text: Text, recipe: Recipe) -> None:
        self.rows, self.asked = numbered(text, "train")
        self.pieces = len(self.rows) // LENGTH - 1  # one less: they begin up to 31 words later
        super().__init__(bert_tiny(), -(-self.pieces // recipe.batch), recipe)

    def losses(self) -> Iterator[Tensor]:
        """Losses of every piece of the text, once."""
        start = int(torch.randint(LENGTH, ()))
        rows, asked = (x[start:][: self.pieces * LENGTH].view(-1, LENGTH) for x in (self.rows, self.asked))
        for chosen in torch.randperm(self.pieces).split(self.recipe.batch):
            hides = (asked[chosen] >= 0) & (torch.rand(len(chosen), LENGTH) < _SHARE)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.recipe.amp):
                read = self.model.read(self.model.words(rows[chosen].masked_fill(hides, HIDDEN)))
                logits = self.model.fc(read[hides])
            yield F.cross_entropy(logits.float(), asked[chosen][hides])


def accuracy(model: Bert, text: Text, split: str) -> str:
    """The share of all questions of a split that the net answers right."""
    model.eval()
    rows, answers = questions(text, split)
    with torch.inference_mode():
        found = torch.cat([model(model.words(hidden(part))).argmax(1) for part in rows.split(512)])
    return f"accuracy {100 * float((found == answers).double().mean()):.2f} % of {len(answers)} hidden words"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser(__doc__, "scripts.train.bert", _EPILOG)
    add_text_arguments(made, epochs=6, batch=128, rate=2e-3)
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the program; 0 on success, 1 after an `error:` line, 130 after Ctrl-C."""
    return train_text("train_bert", parser().parse_args(arguments), Recipe, Training, accuracy)


if __name__ == "__main__":
    sys.exit(main())
