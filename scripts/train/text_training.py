"""Training of nets on text: AdamW with one learning-rate cycle (Smith and Topin, 2018), gradients clipped at norm 0.5.

A program says what its net is, the loss of every step, and how good it is; options, interruption, the file of weights
and its state are those of all such programs.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird.commands.output import check_writable, write_together
from hummingbird.commands.program import end
from hummingbird.commands.sources import weights_file
from hummingbird.errors import InputError
from models import load_checkpoint
from scripts.train.images import interrupted, read_state, state_of, train
from scripts.train.text_data import Text, load_text

_CLIP = 0.5


@dataclass(frozen=True)
class TextRecipe:
    """How to train on text; InputError for numbers that cannot be meant."""

    epochs: int
    batch: int
    rate: float
    weight_decay: float
    amp: bool
    seed: int

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch) < 1:
            raise InputError("a number below 1", where="--epochs, --batch", hint="both are 1 or more")
        if not (0 < self.rate < 1 and 0 <= self.weight_decay < 1):
            raise InputError("a rate beyond (0, 1)", where="--rate, --weight-decay", hint="0.003, 0.01 are good starts")


class TextTraining:
    """A net with its optimizer and schedule, trained in place epoch by epoch; as `training.Training`.

    steps: of an epoch. stored: how the weights are stored, as in `commands.sources.weights_file`.
    """

    stored = torch.float16

    def __init__(self, model: nn.Module, steps: int, recipe: TextRecipe) -> None:
        self.model, self.steps, self.recipe, self.epoch = model, steps, recipe, 0
        self.optimizer = torch.optim.AdamW(model.parameters(), recipe.rate, weight_decay=recipe.weight_decay)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, recipe.rate, total_steps=recipe.epochs * steps, pct_start=0.1
        )

    def losses(self) -> Iterator[Tensor]:
        """The loss of each step of an epoch, computed when the step before has changed the net."""
        raise NotImplementedError

    def run_epoch(self, after_step: Callable[[], object] = lambda: None) -> float:
        """Train for one epoch and give the mean loss of its steps; InputError if it is not finite."""
        self.model.train()
        total = torch.zeros(())
        for loss in self.losses():
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


def add_text_arguments(parser: argparse.ArgumentParser, *, epochs: int, batch: int, rate: float) -> None:
    """The options of every such program, with these defaults."""
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="where to write the weights")
    parser.add_argument("--data", metavar="FOLDER", help="folder that holds wikitext-2/ (default: HUMMINGBIRD_DATA)")
    text = "passes over the text (default: %(default)s)"
    parser.add_argument("--epochs", type=int, default=epochs, help=text)
    parser.add_argument("--batch", type=int, default=batch, help="pieces of text in a step (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=rate, help="largest learning rate (default: %(default)s)")
    parser.add_argument("--weight-decay", type=float, default=0.01, help="default: %(default)s")
    parser.add_argument("--amp", action="store_true", help="compute in bfloat16")
    parser.add_argument("--seed", type=int, default=0, help="of weights and chance (default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on from the last whole epoch of an interrupted run")


def train_text(
    program: str,
    options: argparse.Namespace,
    recipe: type[TextRecipe],
    training: Callable[[Text, Any], TextTraining],
    quality: Callable[[Any, Text, str], str],
) -> int:
    """Train as the options say, save, and print the quality of the file that was saved; an exit status.

    training: makes it of a text and a recipe. quality: says how good a net is on a split of a text.
    """

    def run() -> None:
        chosen = recipe(**{name: getattr(options, name) for name in recipe.__dataclass_fields__})
        check_writable(options.out, "--out")
        state, command = state_of(options.out), {"program": program, **asdict(chosen)}
        if state.exists() and not options.resume:
            hint = "go on with it by --resume, or remove it"
            raise InputError("there is the state of an interrupted training", where=str(state), hint=hint)
        kept = read_state(state, command) if options.resume else None
        text = load_text(options.data)
        torch.manual_seed(chosen.seed)
        made = training(text, chosen)
        if kept is not None:
            made.restore(kept)
        train(made, state, command)
        write_together({options.out: weights_file(made.model, made.stored)})
        state.unlink(missing_ok=True)
        load_checkpoint(options.out, made.model)
        for split in ("validation", "test"):
            print(f"{split} {quality(made.model, text, split)}")
        print(f"saved {options.out} sha256 {hashlib.sha256(options.out.read_bytes()).hexdigest()}")

    return end(run, lambda: interrupted(options.out))
