"""Train the word-level LSTM of models/lstm.py on WikiText-2, print its perplexity and save its weights.

Truncated backpropagation through time: the text is cut into `batch` columns that are read side by side, `window` words
a step, and the state of one step starts the next. AdamW with one learning-rate cycle (Smith and Topin, 2018), gradients
clipped at norm 0.5; forward and backward run in bfloat16 with --amp. Perplexity is exp of the mean of -log p over every
word but the first, on one pass through the text with the state carried along.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird.commands.checkpoint import weights_file
from hummingbird.commands.files import check_writable, write_together
from hummingbird.commands.program import end
from hummingbird.errors import InputError
from models import load_checkpoint
from models.lstm import WordLSTM
from scripts.text_data import load_text
from scripts.train import interrupted, read_state, state_of, train

_EPILOG = """examples:
  the language model of this repository (about a quarter of an hour on one CPU core):
    python -m scripts.train_lstm --data DATA --epochs 3 --dropout 0.1 --amp --out checkpoints/wikitext2-lstm.pt

A training that was interrupted goes on from the last whole epoch with the same command and --resume.
"""
WINDOW = 35  # words that are looked up together
_CLIP = 0.5


@dataclass(frozen=True)
class Recipe:
    """How to train; InputError for numbers that cannot be meant."""

    epochs: int
    batch: int
    window: int
    rate: float
    weight_decay: float
    dropout: float
    dim: int
    layers: int
    amp: bool
    seed: int

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch, self.window, self.dim, self.layers) < 1:
            raise InputError("a number below 1", where="--epochs to --layers", hint="all are 1 or more")
        if not (0 < self.rate < 1 and 0 <= self.dropout < 1 and 0 <= self.weight_decay < 1):
            hint = "0.003, 0.2 and 0.01 are good starts"
            raise InputError("a rate beyond (0, 1)", where="--rate, --dropout, --weight-decay", hint=hint)


class Training:
    """A language model with its optimizer and schedule, trained in place epoch by epoch; as `training.Training`."""

    def __init__(self, model: WordLSTM, text: Tensor, recipe: Recipe) -> None:
        self.model, self.recipe, self.epoch = model, recipe, 0
        self.columns = text[: len(text) // recipe.batch * recipe.batch].view(recipe.batch, -1).t().contiguous()
        self.steps = -(-(len(self.columns) - 1) // recipe.window)
        self.optimizer = torch.optim.AdamW(model.parameters(), recipe.rate, weight_decay=recipe.weight_decay)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, recipe.rate, total_steps=recipe.epochs * self.steps, pct_start=0.1
        )

    def run_epoch(self, after_step: Callable[[], object] = lambda: None) -> float:
        """Train for one epoch and give the mean loss of its steps; InputError if it is not finite."""
        self.model.train()
        total, state = torch.zeros(()), None
        for words, following in windows(self.columns, self.recipe.window):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.recipe.amp):
                hidden, state = self.model(words, state)
                loss = -self.model.log_probability(hidden.flatten(0, 1), following.flatten()).mean()
            state = (state[0].detach(), state[1].detach())
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), _CLIP)
            self.optimizer.step()
            self.schedule.step()
            total += loss.detach()
            after_step()
        if not torch.isfinite(total):
            raise InputError("training diverged", where="--rate", hint=f"try less than {self.recipe.rate}")
        self.epoch += 1
        return float(total) / self.steps

    def finish(self) -> None:
        """Nothing is left to do after the last epoch."""

    def state(self) -> dict[str, Any]:
        """All that the epochs to come depend on but the text and the recipe."""
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}
        states = {name: part.state_dict() for name, part in parts.items()}
        return {"epoch": self.epoch, "torch": torch.get_rng_state(), **states}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.epoch = state["epoch"]
        for name, part in {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}.items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["torch"])


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
    made = argparse.ArgumentParser(
        prog="python -m scripts.train_lstm",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--out", required=True, type=Path, metavar="FILE", help="where to write the weights, float16")
    made.add_argument("--data", metavar="FOLDER", help="folder that holds wikitext-2/ (default: HUMMINGBIRD_DATA)")
    made.add_argument("--epochs", type=int, default=12, help="passes over the text (default: %(default)s)")
    made.add_argument("--batch", type=int, default=32, help="columns of text (default: %(default)s)")
    made.add_argument("--window", type=int, default=WINDOW, help="words of a column in a step (default: %(default)s)")
    made.add_argument("--rate", type=float, default=4e-3, help="largest learning rate (default: %(default)s)")
    made.add_argument("--weight-decay", type=float, default=0.01, help="default: %(default)s")
    made.add_argument("--dropout", type=float, default=0.2, help="default: %(default)s")
    made.add_argument("--dim", type=int, default=192, help="of rows and hidden states (default: %(default)s)")
    made.add_argument("--layers", type=int, default=2, help="of the LSTM (default: %(default)s)")
    made.add_argument("--amp", action="store_true", help="compute in bfloat16")
    made.add_argument("--seed", type=int, default=0, help="of weights and dropout (default: %(default)s)")
    made.add_argument("--resume", action="store_true", help="go on from the last whole epoch of an interrupted run")
    return made


def run(options: argparse.Namespace) -> None:
    """Train, save, and report the perplexity of the file that was saved."""
    names = [name for name in Recipe.__dataclass_fields__]
    recipe = Recipe(**{name: getattr(options, name) for name in names})
    check_writable(options.out, "--out")
    state, command = state_of(options.out), {"program": "train_lstm", **asdict(recipe)}
    if state.exists() and not options.resume:
        hint = "go on with it by --resume, or remove it"
        raise InputError("there is the state of an interrupted training", where=str(state), hint=hint)
    kept = read_state(state, command) if options.resume else None
    text = load_text(options.data)
    torch.manual_seed(recipe.seed)
    model = WordLSTM(len(text.words), recipe.dim, recipe.layers, recipe.dropout)
    training = Training(model, text.numbers["train"], recipe)
    if kept is not None:
        training.restore(kept)
    train(training, state, command)
    write_together({options.out: weights_file(model, half=True)})
    state.unlink(missing_ok=True)
    load_checkpoint(options.out, model)
    for split in ("validation", "test"):
        print(f"{split} perplexity {perplexity(model, text.numbers[split]):.2f} of {len(text.numbers[split])} words")
    print(f"saved {options.out} sha256 {hashlib.sha256(options.out.read_bytes()).hexdigest()}")


def main(arguments: list[str] | None = None) -> int:
    """Run the program; 0 on success, 1 after an `error:` line, 130 after Ctrl-C."""
    options = parser().parse_args(arguments)
    return end(lambda: run(options), lambda: interrupted(options.out))


if __name__ == "__main__":
    sys.exit(main())
