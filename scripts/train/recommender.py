"""Train the recommender of models/recommender.py on MovieLens, print its AUC on users new to it, save its weights.

AdamW with one learning-rate cycle (Smith and Topin, 2018) on the questions of scripts/train/movielens_data.py. AUC is
the probability that a liked movie scores above one that is not, ties counted as a half.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird.commands.output import check_writable, write_together
from hummingbird.commands.sources import weights_file
from hummingbird.errors import InputError
from hummingbird.progress import progress_line
from models import load_checkpoint
from models.recommender import Recommender
from scripts.program import main_of, new_parser
from scripts.train.movielens_data import Questions, load_questions

_EPILOG = """example:
  the recommender of this repository (half a minute on one CPU core):
    python -m scripts.train.recommender --data DATA --out checkpoints/movielens-mlp.pt
"""


def train(net: Recommender, questions: Questions, *, epochs: int, batch: int, rate: float, weight_decay: float) -> None:
    """Train in place; the order is torch's global generator's."""
    net.train()
    steps = len(questions.likes) // batch  # the last, smaller batch of each shuffle is left out
    optimizer = torch.optim.AdamW(net.parameters(), rate, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * steps)
    with progress_line(total=epochs * steps, desc=f"{epochs} epochs", unit="step") as progress:
        for _ in range(epochs):
            for chosen in torch.randperm(len(questions.likes))[: steps * batch].split(batch):
                logits = net(questions.wanted[chosen], questions.weights[chosen])
                loss = F.cross_entropy(logits, questions.likes[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                progress.update()
    if not torch.isfinite(loss):
        raise InputError("training diverged", where="--rate", hint=f"try less than {rate}")


def scores(net: Recommender, questions: Questions, batch: int = 4096) -> Tensor:
    """How much each candidate is liked: the difference of the logits, float32 (N,)."""
    net.eval()
    with torch.inference_mode():
        parts = zip(questions.wanted.split(batch), questions.weights.split(batch), strict=True)
        logits = torch.cat([net(*part) for part in parts])
    return logits[:, 1] - logits[:, 0]


def auc(values: Tensor, likes: Tensor) -> float:
    """The area under the ROC curve of scores float (N,) for labels int64 (N,) of 0 and 1 (Mann and Whitney, 1947).

    InputError where one of the labels is missing.
    """
    positive = int(likes.sum())
    negative = len(likes) - positive
    if not positive or not negative:
        raise InputError("the labels are all the same", where="likes", hint="AUC needs both kinds")
    _, place, counts = values.unique(return_inverse=True, return_counts=True)
    above = counts.cumsum(0).double() - (counts - 1) / 2.0  # mean rank, from 1, of each value
    ranks = above[place][likes == 1].sum()
    return float((ranks - positive * (positive + 1) / 2) / (positive * negative))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser(__doc__, "scripts.train.recommender", _EPILOG)
    made.add_argument("--out", required=True, type=Path, metavar="FILE", help="where to write the weights, float16")
    made.add_argument("--data", metavar="FOLDER", help="folder that holds ml-latest-small/ (default: HUMMINGBIRD_DATA)")
    made.add_argument("--epochs", type=int, default=2, help="passes over the questions (default: %(default)s)")
    made.add_argument("--batch", type=int, default=256, help="questions per step (default: %(default)s)")
    made.add_argument("--rate", type=float, default=3e-3, help="largest learning rate (default: %(default)s)")
    made.add_argument("--weight-decay", type=float, default=0.01, help="default: %(default)s")
    made.add_argument("--dropout", type=float, default=0.4, help="default: %(default)s")
    made.add_argument("--seed", type=int, default=0, help="of weights, order and dropout (default: %(default)s)")
    return made


def run(options: argparse.Namespace) -> None:
    """Train, save, and report the AUC of the file that was saved."""
    if min(options.epochs, options.batch) < 1 or not 0 < options.rate < 1 or not 0 <= options.dropout < 1:
        hint = "at least 1 epoch and question, a rate and a dropout below 1"
        raise InputError("a number that cannot be meant", where="--epochs, --batch, --rate, --dropout", hint=hint)
    check_writable(options.out, "--out")
    questions = {split: load_questions(split, options.data) for split in ("train", "validation", "test")}
    torch.manual_seed(options.seed)
    net = Recommender(questions["train"].movies, dropout=options.dropout)
    chosen = {key: getattr(options, key) for key in ("epochs", "batch", "rate", "weight_decay")}
    train(net, questions["train"], **chosen)
    write_together({options.out: weights_file(net, torch.float16)})
    load_checkpoint(options.out, net)
    for split in ("validation", "test"):
        asked = questions[split]
        print(f"{split} AUC {auc(scores(net, asked), asked.likes):.4f} of {len(asked.likes)} questions")
    print(f"saved {options.out} sha256 {hashlib.sha256(options.out.read_bytes()).hexdigest()}")


main = main_of(parser, run, "interrupted: nothing was saved")


if __name__ == "__main__":
    sys.exit(main())
