"""Train the word-level LSTM of models/lstm.py on WikiText-2, print its perplexity and save its weights.

Truncated backpropagation through time: the text is cut into `batch` columns that are read side by side, `window` words
a step, and the state of one step starts the next. Perplexity is exp of the mean of -log p over every word but the
first, on one pass through the text with the state carried along.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hummingbird.errors import InputError
from models.lstm import WordLSTM
from scripts.program import new_parser
from scripts.train.text_data import Text
from scripts.train.text_training import TextRecipe, TextTraining, add_text_arguments, train_text

_EPILOG = """examples:
  the language model of this repository (about a quarter of an hour on one CPU core):
    python -m scripts.train.lstm --data DATA --epochs 3 --dropout 0.1 --amp --out checkpoints/wikitext2-lstm.pt

A training that was interrupted goes on from the last whole epoch with the same command and --resume.
"""
WINDOW = 35  # words that are looked up together


@dataclass(frozen=True)
class Recipe(TextRecipe):
    """How to train the language model; InputError for numbers that cannot be meant."""

    window: int
    dropout: float
    dim: int
    layers: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.window, self.dim, self.layers) < 1:
            raise InputError("a number below 1", where="--window, --dim, --layers", hint="all are 1 or more")
        if not 0 <= self.dropout < 1:
            raise InputError(f"a dropout of {self.dropout}", where="--dropout", hint="0.2 is a good start")


class Training(TextTraining):
    """The language model, which reads `batch` columns of the text side by side."""

    model: WordLSTM
    recipe: Recipe
    stored = torch.int8

    def __init__(self, text: Text, recipe: Recipe) -> None:
        words = text.numbers["train"]
        self.columns = words[: len(words) // recipe.batch * recipe.batch].view(recipe.batch, -1).t().contiguous()
        model = WordLSTM(len(text.words), recipe.dim, recipe.layers, recipe.dropout)
        super().__init__(model, -(-(len(self.columns) - 1) // recipe.window), recipe)

    def losses(self) -> Iterator[Tensor]:
        """Losses of all windows in their order, each with the state of the one before."""
        state = None
        for words, following in windows(self.columns, self.recipe.window):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.recipe.amp):
                hidden, state = self.model(words, state)
                loss = -self.model.log_probability(hidden.flatten(0, 1), following.flatten()).mean()
            yield loss
            state = (state[0].detach(), state[1].detach())


def windows(columns: Tensor, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Words int64 (length, B) of columns (T, B) and those that follow them, until the columns end."""
    for start in range(0, len(columns) - 1, length):
        end = min(start + length, len(columns) - 1)
        yield columns[start:end], columns[start + 1 : end + 1]


def perplexity(
    model: WordLSTM, text: Tensor, *, columns: int = 16, lookup: Callable[[Tensor], Tensor] | None = None
) -> float:
    """exp(mean(-log p)) over the text int64 (N,), read in `columns` side by side (each starts without a past).

    lookup: as in `WordLSTM.forward`; it gets windows of WINDOW words, int64 (WINDOW, columns).
    """
    model.eval()
    total, count, state = 0.0, 0, None
    side = text[: len(text) // columns * columns].view(columns, -1).t()
    with torch.inference_mode():
        for words, following in windows(side, WINDOW):
            hidden, state = model(words, state, lookup)
            total -= float(model.log_probability(hidden.flatten(0, 1), following.flatten()).double().sum())
            count += following.numel()
    return float(torch.tensor(total / count).exp())


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser(__doc__, "scripts.train.lstm", _EPILOG)
    add_text_arguments(made, epochs=12, batch=32, rate=4e-3)
    made.add_argument("--window", type=int, default=WINDOW, help="words of a column in a step (default: %(default)s)")
    made.add_argument("--dropout", type=float, default=0.2, help="default: %(default)s")
    made.add_argument("--dim", type=int, default=192, help="of rows and hidden states (default: %(default)s)")
    made.add_argument("--layers", type=int, default=2, help="of the LSTM (default: %(default)s)")
    return made


def quality(model: WordLSTM, text: Text, split: str) -> str:
    """The perplexity on a split, in words."""
    words = text.numbers[split]
    return f"perplexity {perplexity(model, words):.2f} of {len(words)} words"


def main(arguments: list[str] | None = None) -> int:
    """Run the program; 0 on success, 1 after an `error:` line, 130 after Ctrl-C."""
    return train_text("train_lstm", parser().parse_args(arguments), Recipe, Training, quality)


if __name__ == "__main__":
    sys.exit(main())
