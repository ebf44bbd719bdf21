"""A recommender that learns neither what its user has watched nor what it recommends: private lookups, a private net.

Two parties hold the table of movies and the net of models/recommender.py. Each is a server of private lookups and a
party of one session. A user asks both: the candidates, the movies of a history and their ratings leave the user only as
keys and shares, the two scores of each candidate come back as shares, which the user adds. Every question takes 64
lookups, whatever the history's length.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

if not __package__:  # run as a file, `torchrun scripts/recommend.py`: the project's folder must be importable
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import hummingbird
from hummingbird.commands.party import add_session_arguments, run_party, session_options
from hummingbird.errors import ConfigError, HummingbirdError, InputError, PeerError
from hummingbird.lookup import Lookups
from hummingbird.mpc import launch
from hummingbird.pir import Client, Server, Service, Source
from hummingbird.table import text_table
from models import load_checkpoint
from models.recommender import PADDING, Recommender
from scripts.movielens_data import HISTORY, Questions, load_questions
from scripts.party import ROOT

MOVIES = 9742  # of ml-latest-small
BAGS = (1, HISTORY)  # a question: the candidate's row, and the weighted sum of the history's
_SYNTHETIC = 500  # movies
_SETTLE = 10.0  # seconds for the last answers to be collected
_PATIENCE = 10.0  # seconds that a user waits for each answer, where --timeout says nothing

_EPILOG = """examples:
  both parties on this host, then a user in another terminal:
    torchrun --standalone --nproc_per_node=2 scripts/recommend.py
    python scripts/recommend.py --user --data DATA --question 100 --count 3
  without data, on a made-up table:
    torchrun --standalone --nproc_per_node=2 scripts/recommend.py --synthetic --deposits 1
    python scripts/recommend.py --user --synthetic
  on two hosts, party 0's side (a dealer on a third; a certificate names both party-RANK and the party's host):
    torchrun --nnodes=2 --node_rank=0 --nproc_per_node=1 --master_addr=HOST0 --master_port=29500 \\
        scripts/recommend.py --servers HOST0:7070 HOST1:7070 --dealer HOST2:7000 \\
        --tls-cert party-{rank}.pem --tls-key party-{rank}.key --tls-ca ca.pem

trust: the two parties must not collude, nor the dealer with either. They see when a user asks, and how many questions.
A user who asks again and again learns about the net.
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="torchrun --standalone --nproc_per_node=2 scripts/recommend.py",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--servers",
        nargs=2,
        metavar="ADDRESS",
        default=["127.0.0.1:7070", "127.0.0.1:7071"],
        help="where party 0 and party 1 listen for users, HOST:PORT or unix:PATH (default: %(default)s)",
    )
    made.add_argument(
        "--checkpoint",
        type=Path,
        default=ROOT / "checkpoints" / "movielens-mlp.pt",
        help="the recommender's weights; the user's program needs them only to compare (default: the one shipped)",
    )
    made.add_argument(
        "--synthetic", action="store_true", help="a small net of random weights with a fixed seed instead"
    )
    made.add_argument("--deposits", type=int, metavar="N", help="parties end when N requests are answered")
    user = made.add_argument_group("user")
    user.add_argument(
        "--user", action="store_true", help="be the user, not a party; without torchrun, with a timeout of 10 s"
    )
    user.add_argument("--question", type=int, default=0, help="first question of MovieLens's test users (default 0)")
    user.add_argument("--count", type=int, default=1, help="questions to ask at once (default 1)")
    user.add_argument(
        "--data", metavar="FOLDER", help="holds ml-latest-small/ (or HUMMINGBIRD_DATA); without: a made-up history"
    )
    add_session_arguments(made)
    made.set_defaults(timeout=None)
    return made


def build(args: argparse.Namespace) -> Recommender:
    """The net, the same at both parties."""
    if args.synthetic:
        torch.manual_seed(0)
        return Recommender(_SYNTHETIC).eval()
    return load_checkpoint(args.checkpoint, Recommender(MOVIES)).eval()


def serve(args: argparse.Namespace) -> None:
    """One party: a server of lookups, and the net."""
    if args.store is not None:
        hint = "material in a store is dealt for a net's slices only: use a dealer"
        raise ConfigError("lookups need a dealer online", where="--store", hint=hint)
    options = session_options(args) | {"timeout": args.timeout or launch.DEFAULT_TIMEOUT}
    session = launch.init(**options)
    if session.parties != 2:
        raise ConfigError(f"{session.parties} parties", where="recommend", hint="torchrun --nproc_per_node=2")
    if session.lanes > 1:
        hint = "a party's lookups come to one process: leave --lanes"
        raise ConfigError(f"{session.lanes} lanes", where="recommend", hint=hint)
    net = build(args)
    private = hummingbird.convert_model(net.mlp)
    private.costs((1, len(BAGS) * net.items.embedding_dim), session.parties)  # prices it before the first user waits
    server = Server(Source.of(net.items).for_shares(), session.rank)
    lookups = Lookups(server, BAGS, weighted=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: lookups.stop())
    service = Service(server, args.servers[session.rank], options["tls"])
    try:
        print(f"party {session.rank} listens on {args.servers[session.rank]}: {server.facts.text()}", flush=True)
        with hummingbird.meter() as meter:
            lookups.serve(private, args.deposits)
        server.settle(_SETTLE)
    finally:
        service.stop(1.0)
    if session.rank == 0:
        print(meter.table())


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
    """The user: ask both servers, print private scores beside those of the net in clear."""
    if args.count < 1 or args.question < 0:
        raise InputError("questions count from 0, and at least one is asked", where="--question, --count")
    net = build(args)
    asked = questions(args, net.items.num_embeddings - 1)
    started = time.perf_counter()
    try:
        client = Client(args.servers, tls=session_options(args)["tls"], timeout=args.timeout or _PATIENCE)
    except PeerError as error:
        synthetic = " --synthetic" if args.synthetic else ""
        hint = f"start both parties first: torchrun --standalone --nproc_per_node=2 scripts/recommend.py{synthetic}"
        raise PeerError(error.what, where=error.where, hint=hint) from None
    try:
        weights = torch.cat([torch.ones(args.count, 1), asked.weights], 1)  # the candidate counts once
        connected = time.perf_counter()
        logits = client.collect(client.deposit(asked.wanted.flatten(), weights.flatten()))
    finally:
        client.close()
    ended = time.perf_counter()
    with torch.no_grad():
        plain = net(asked.wanted, asked.weights)
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
    difference, seconds = float((logits - plain).abs().max()), ended - connected
    print(f"largest difference of a logit: {difference:.2g}")
    print(f"{asked.wanted.numel()} lookups and the net: {seconds:.3f} s; to connect: {connected - started:.3f} s")


def main(arguments: list[str] | None = None) -> int:
    """Run the program; 0 on success, 1 after an `error:` line."""
    args = parser().parse_args(arguments)
    if not args.user:
        run_party(lambda: serve(args))
        return 0
    try:
        ask(args)
    except (HummingbirdError, ValueError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
