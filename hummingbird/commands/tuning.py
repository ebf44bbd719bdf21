"""Fine-tuning: a net in training with its windows in place, who judges its epochs, and what is saved.

The forward pass is what private inference computes, y = bit z (mpc/protocols/law.py): small values become 0 by
chance, and values beyond the window pass with a wrong sign. The backward pass goes where values passed,
dL/dv = bit dL/dy. So the net learns to live with both (Maeng and Suh, "HummingBird", 2023, finetuning).

The accuracy of an epoch is that of its weights as they would be saved, with windows, on images held out from training;
the best epoch is kept.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

import hummingbird
from hummingbird import graph
from hummingbird.bits import BitConfig
from hummingbird.commands.accuracy import evaluate
from hummingbird.commands.checkpoint import load_weights, weights_file
from hummingbird.commands.files import write_together
from hummingbird.commands.subject import Subject
from hummingbird.commands.training import Recipe, Training
from hummingbird.simulation.windows import traced
from hummingbird.version import VERSION


@dataclass(frozen=True)
class Epoch:
    """An epoch's number, accuracy on the images that judge it, and weights as a file's content."""

    number: int
    accuracy: float
    weights: bytes


class Judge:
    """The accuracy of weights with windows (`bits`; None: exact), in a net of its own: in eval mode, in float32.

    Windows alone: the weights are no longer those that they were found for. The same seed for all: differences are
    those of the weights.
    """

    def __init__(self, net: nn.Module, args: argparse.Namespace, example: Tensor | None = None) -> None:
        self._net, self._args, self._example = copy.deepcopy(net), args, example

    def accuracy(self, weights: bytes, bits: BitConfig | None, images: Tensor, labels: Tensor) -> float:
        """The share of images (N, C, H, W) that weights, the content of a file, put at labels (N,)."""
        args = self._args
        self._load(weights)
        if bits is None:
            return evaluate(self._net, images, labels)
        twin = hummingbird.simulate(
            self._net, bits.windows, args.protocol, args.parties, seed=args.seed, example=self._example
        )
        return evaluate(twin, images, labels)

    def fingerprint(self, weights: bytes) -> str:
        """The fingerprint of the net with these weights, as `BitConfig.check_use` compares it."""
        self._load(weights)
        return graph.fingerprint(traced(self._net, self._example))

    def _load(self, weights: bytes) -> None:
        load_weights(weights, self._net)


class Tuning:
    """A net in training with its windows in place: epoch 0, the net as it was given, and the best epoch so far."""

    def __init__(self, subject: Subject, config: BitConfig, args: argparse.Namespace) -> None:
        self.args, self.config, self.source, self._net = args, config, subject.source, subject.net
        self.held = subject.images, subject.labelled
        self.judge = Judge(subject.net, args, subject.example)
        self.first = self.best = self._epoch(0)

    def _epoch(self, number: int) -> Epoch:
        weights = weights_file(self._net, half=self.args.half)
        return Epoch(number, self.judge.accuracy(weights, self.config, *self.held), weights)

    def run(self, training: Training) -> None:
        """All epochs of the recipe, or until --patience of them were no better than the best; a line for each."""
        print("epoch    loss  accuracy")
        _row(self.first, None)
        with tqdm(total=training.recipe.epochs * training.steps, desc="fine-tuning", unit="step", mininterval=1) as bar:
            while training.epoch < min(training.recipe.epochs, self.best.number + self.args.patience):
                loss = training.run_epoch(bar.update)
                epoch = self._epoch(training.epoch)
                if epoch.accuracy > self.best.accuracy:
                    self.best = epoch
                with bar.external_write_mode():
                    _row(epoch, loss)

    def save(self, recipe: Recipe, dataset: str, command: str) -> str:
        """Write the best epoch's weights and the windows that they were trained with; the line that says so."""
        args, best = self.args, self.best
        digest = _digest(best.weights)
        finetuning: dict[str, Any] = {
            "from_net": self.config.provenance.get("net"),
            "from_weights_sha256": None if args.weights is None else _digest(args.weights.read_bytes()),
            "weights_sha256": digest,
            "epochs": best.number,
            "rate": recipe.rate,
            "clamp": args.clamp,
            "dataset": dataset,
            "judged_by": f"{len(self.held[1])} images of {self.source}",
            "accuracy_before_percent": 100 * self.first.accuracy,
            "accuracy_after_percent": 100 * best.accuracy,
            "protocol": args.protocol,
            "parties": args.parties,
            "seed": args.seed,
            "command": command,
            "versions": {"hummingbird": VERSION, "torch": torch.__version__},
        }
        trained_with = {"net": self.judge.fingerprint(best.weights), "protocol": args.protocol, "parties": args.parties}
        provenance = {**self.config.provenance, **trained_with, "finetuning": finetuning}
        windows = replace(self.config, provenance=provenance)
        write_together({args.out: best.weights, windows_beside(args.out): windows.to_json().encode()})
        return f"saved epoch {best.number}: {args.out} sha256 {digest} and {windows_beside(args.out)}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def windows_beside(weights: Path) -> Path:
    """X.bits.json for X.pt."""
    return weights.with_suffix(".bits.json")


def _row(epoch: Epoch, loss: float | None) -> None:
    print(f"{epoch.number:5}  {'' if loss is None else f'{loss:.4f}':>6}  {100 * epoch.accuracy:6.2f} %", flush=True)
