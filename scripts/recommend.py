"""A recommender that learns neither what its user has watched nor what it recommends: private lookups, a private net.

Two parties hold the table of movies and the net of models/recommender.py, and run `hummingbird serve` with the function
`net` of this file. This program is a user: the candidates, the movies of a history and their ratings leave it only as
keys and shares, and it adds up shares of the two scores of each candidate. Every question takes 64 lookups, whatever
the history's length.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch

from hummingbird.errors import HummingbirdError, InputError, PeerError
from hummingbird.lookup import LookedUp
from hummingbird.rpc.options import add_caller, caller_of, positive
from hummingbird.serving.client import Client
from hummingbird.table import text_table
from models import load_checkpoint
from models.recommender import PADDING, Recommender
from scripts.program import ROOT, new_parser
from scripts.train.movielens_data import HISTORY, Questions, load_questions

MOVIES = 9742  # of ml-latest-small
BAGS = (1, HISTORY)  # a question: the candidate's row, and the weighted sum of the history's
_SYNTHETIC = 500  # movies
_CHECKPOINT = ROOT / "checkpoints" / "movielens-mlp.pt"
_SERVE = "python -m hummingbird run --parties 2 -- -m hummingbird serve --listen 127.0.0.1:910{rank}"

_EPILOG = f"""examples:
  both parties on this host, then a user in another terminal:
    {_SERVE} --model scripts.recommend:net
    python -m scripts.recommend --data DATA --question 100 --count 3
  without data, on a made-up table:
    {_SERVE} --model scripts.recommend:synthetic
    python -m scripts.recommend --synthetic
  on several hosts, with certificates or tokens: docs/serving.md

trust: the two parties must not collude, nor the dealer with either. They see when a user asks, and how many questions.
A user who asks again and again learns about the net.
"""


def net(checkpoint: str = str(_CHECKPOINT)) -> LookedUp:
    """The trained recommender, for `serve --model scripts.recommend:net`."""
    return _served(load_checkpoint(Path(checkpoint), Recommender(MOVIES)))


def synthetic() -> LookedUp:
    """A small one of random weights with a fixed seed."""
    torch.manual_seed(0)
    return _served(Recommender(_SYNTHETIC))


def _served(recommender: Recommender) -> LookedUp:
    return LookedUp(recommender.items, recommender.mlp, BAGS).eval()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser(__doc__, "scripts.recommend", _EPILOG)
    made.add_argument(
        "--parties",
        nargs=2,
        metavar="ADDRESS",
        default=["127.0.0.1:9100", "127.0.0.1:9101"],
        help="both parties' HOST:PORT or unix:PATH (default: %(default)s)",
    )
    made.add_argument("--synthetic", action="store_true", help="the parties serve the made-up table")
    made.add_argument("--question", type=int, default=0, help="first question of MovieLens's test users (default 0)")
    made.add_argument("--count", type=int, default=1, help="questions to ask at once (default 1)")
    made.add_argument(
        "--data", metavar="FOLDER", help="holds ml-latest-small/ (or HUMMINGBIRD_DATA); without: a made-up history"
    )
    made.add_argument("--timeout", type=positive, default=10.0, help="seconds for the answer (default: %(default)s)")
    add_caller(made)
    return made


def questions(args: argparse.Namespace, movies: int) -> Questions:
    """Questions of users: of MovieLens where it is there, else made up, the same for the same --question."""
    if not args.synthetic and (args.data or os.environ.get("HUMMINGBIRD_DATA")):
        asked = load_questions("test", args.data)
        chosen = slice(args.question, args.question + args.count)
        if len(asked.likes[chosen]) < args.count:
            hint = f"there are {len(asked.likes)} questions"
            raise InputError(f"no {args.count} questions from {args.question} on", where="--question", hint=hint)
        return Questions(asked.movies, asked.wanted[chosen], asked.weights[chosen], asked.likes[chosen])
    seeded = torch.Generator().manual_seed(args.question)
    wanted = torch.randint(1, movies + 1, (args.count, 1 + HISTORY), generator=seeded)
    weights = torch.randint(-6, 4, (args.count, HISTORY), generator=seeded) / 10
    ended = torch.arange(HISTORY) >= torch.randint(5, HISTORY, (args.count, 1), generator=seeded)
    wanted[:, 1:][ended] = PADDING
    return Questions(movies, wanted, weights.masked_fill(ended, 0.0), torch.full((args.count,), -1))


def ask(args: argparse.Namespace) -> None:
    """Ask both parties, print private scores beside those of the net in clear."""
    if args.count < 1 or args.question < 0:
        raise InputError("questions count from 0, and at least one is asked", where="--question, --count")
    made = synthetic if args.synthetic else net
    plain_net = made()
    asked = questions(args, plain_net.table.num_embeddings - 1)
    weights = torch.cat([torch.ones(args.count, 1), asked.weights], 1)  # the candidate counts once
    started = time.perf_counter()
    try:
        client = Client(args.parties, timeout=args.timeout, **caller_of(args))
    except PeerError as error:
        hint = f"start both parties first: {_SERVE} --model scripts.recommend:{made.__name__}"
        raise PeerError(error.what, where=error.where, hint=hint) from None
    with client, torch.no_grad():
        connected = time.perf_counter()
        logits = client(asked.wanted, weights)
        ended = time.perf_counter()
        plain = plain_net(asked.wanted, weights)
    known = {1: "yes", 0: "no", -1: "made up"}
    lines = [
        (
            str(int(movies[0])),
            known[int(like)],
            str(int((movies[1:] != PADDING).sum())),
            f"{float(score[1] - score[0]):+.5f}",
            f"{float(clear[1] - clear[0]):+.5f}",
        )
        for movies, like, score, clear in zip(asked.wanted, asked.likes, logits, plain, strict=True)
    ]
    print(text_table(("movie", "liked", "history", "private score", "plain score"), lines, left=2))
    difference, sent = float((logits - plain).abs().max()), client.sent_bytes / args.count
    print(f"largest difference of a logit: {difference:.2g}")
    print(
        f"{asked.wanted.numel()} lookups and the net: {ended - connected:.3f} s, {sent / 1e3:.1f} kB up per question; "
        f"to connect: {connected - started:.3f} s"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the program; 0 on success, 1 after an `error:` line."""
    args = parser().parse_args(arguments)
    try:
        ask(args)
    except (HummingbirdError, ValueError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
