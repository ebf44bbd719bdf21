"""Compare a net of text in private with plain torch on WikiText-2: a GPT's perplexity, or a BERT's accuracy.

For a GPT the test text is cut into parts of all places of the net. Every place has the same text before it in private
as in plain. A BERT says which word is hidden in the middle of 32 words (scripts/train/text_data.py). The most likely
piece or word agrees unless the two best logits are closer than the error of both: one that differs is *explained* if
its gap in plain torch is at most twice the largest error of all logits. Logits come from two parties with a dealer on
this host, or from the twin (`hummingbird.simulate`): "exact" computes the integers of both parties, "fast" runs in
floating point.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hummingbird
from hummingbird.errors import InputError
from hummingbird.mpc.session.session import Session
from hummingbird.simulation.simulate import MODES
from models import load_checkpoint
from models.bert import bert_tiny
from models.gpt import Gpt, gpt_small
from models.pieces import Pieces
from scripts.program import add_json, main_of, new_parser, write_rows
from scripts.train.text_data import load_text, pieced, questions, vectors

_EPILOG = """examples:
  2,048 pieces, as two parties compute them by the twin's law (half a minute on one CPU core):
    python -m scripts.bench.text --weights checkpoints/wikitext2-gpt.pt --data DATA --twin --texts 8

  every hidden word of the test text, by the fast twin (seven minutes):
    python -m scripts.bench.text --net bert --weights checkpoints/wikitext2-bert.pt --twin fast --texts 107467
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser(__doc__, "scripts.bench.text", _EPILOG)
    text = "gpt: models.gpt:gpt_small; bert: models.bert:bert_tiny (default: %(default)s)"
    made.add_argument("--net", choices=("gpt", "bert"), default="gpt", help=text)
    made.add_argument("--weights", required=True, type=Path, metavar="FILE", help="of the net")
    made.add_argument("--data", metavar="FOLDER", help="folder that holds wikitext-2/ (default: HUMMINGBIRD_DATA)")
    text = "parts of the test text of a GPT, hidden words from all over it of a BERT (default: %(default)s)"
    made.add_argument("--texts", type=int, default=8, help=text)
    text = "compute the logits by the twin, without parties (default mode: exact)"
    made.add_argument("--twin", nargs="?", choices=MODES, const="exact", help=text)
    add_json(made)
    return made


def agreement(plain: Tensor, found: Tensor) -> dict[str, Any]:
    """Return how logits (..., choices) agree with those of plain torch: the most likely choice, and the error."""
    error = float((found - plain).abs().max())
    differs = found.argmax(-1) != plain.argmax(-1)
    best = plain.topk(2, -1).values
    gaps = best[..., 0] - best[..., 1]
    return {
        "agreeing_percent": 100 * (1 - float(differs.double().mean())),
        "unexplained": int((gaps[differs] > 2 * error).sum()),
        "largest_gap_of_others": float(gaps[differs].max()) if differs.any() else 0.0,
        "within_twice_the_error": int((gaps <= 2 * error).sum()),
        "largest_logit_error": error,
        "largest_logit": float(plain.abs().max()),
    }


def answered(plain: Tensor, found: Tensor, answers: Tensor) -> dict[str, Any]:
    """Return how logits (N, choices) agree with those of plain torch, and both accuracies. answers: int64 (N,)."""
    one, other = (100 * float((x.argmax(-1) == answers).double().mean()) for x in (plain, found))
    return {
        "hidden_words": len(answers),
        "accuracy_plain_percent": one,
        "accuracy_percent": other,
        **agreement(plain, found),
    }


def compared(plain: Tensor, found: Tensor, following: Tensor) -> dict[str, Any]:
    """Return how logits (texts, places, words) agree with those of plain torch, before the pieces `following`.

    following: int64 (texts, places).
    """
    one, other = (float(F.cross_entropy(x.double().flatten(0, 1), following.flatten())) for x in (plain, found))
    return {
        "pieces": following.numel(),
        **agreement(plain, found),
        "perplexity_of_a_piece": math.exp(one),
        "perplexity_change_percent": 100 * (math.exp(other - one) - 1),
    }


def _private(session: Session, net: nn.Module, x: Tensor, batch: int) -> Tensor | None:
    private = hummingbird.convert_model(net, example=x[:1])
    found = []
    for part in x.split(batch):
        shared = hummingbird.cryptensor(part if session.rank == 0 else None, src=0)
        found.append(private(shared).get_plain_text(dst=0))
    return torch.cat(found) if session.rank == 0 else None


def logits(net: nn.Module, x: Tensor, twin: str | None, batch: int) -> tuple[Tensor, Tensor]:
    """Return the net's logits for x in plain torch, and those of a twin (its mode) or, for None, of two parties."""
    with torch.no_grad():
        plain = torch.cat([net(part) for part in x.split(batch)])
        if twin is None:
            found = hummingbird.launch(_private, net, x, batch)[0]
            assert found is not None
            return plain, found
        simulated = hummingbird.simulate(net, mode=twin, example=x[:1])
        return plain, torch.cat([simulated(part) for part in x.split(batch)])


def measure(net: Gpt, numbers: Tensor, twin: str | None) -> dict[str, Any]:
    """Return the figures of a GPT for texts, int64 (texts, places + 1), by a twin or by two parties (`compared`)."""
    with torch.no_grad():
        x = net.words(numbers[:, :-1])
    return {"twin": twin, **compared(*logits(net, x, twin, 1), numbers[:, 1:])}


def _count(texts: int, most: int, what: str) -> int:
    if not 1 <= texts <= most:
        raise InputError(f"{texts} texts", where="--texts", hint=f"1 to {most}{what}")
    return texts


def _gpt(args: argparse.Namespace) -> dict[str, Any]:
    net = load_checkpoint(args.weights, gpt_small()).eval()
    assert net.pieces is not None
    numbers, length = pieced(load_text(args.data, ("test",)), "test", Pieces.of_table(net.pieces)), len(net.places) + 1
    texts = _count(args.texts, len(numbers) // length, f", of {length} pieces each")
    return measure(net, numbers[: texts * length].view(-1, length), args.twin)


def _bert(args: argparse.Namespace) -> dict[str, Any]:
    net = load_checkpoint(args.weights, bert_tiny()).eval()
    texts = _count(args.texts, len(questions(load_text(args.data, ("test",)), "test")[0]), " hidden words")
    x, answers = vectors(args.weights, "test", texts, args.data)
    return {"twin": args.twin, **answered(*logits(net, x, args.twin, 64), answers)}


def _run(args: argparse.Namespace) -> None:
    row = _gpt(args) if args.net == "gpt" else _bert(args)
    for name, value in row.items():
        shown = f"{value:.6g}" if isinstance(value, (int, float)) else value or "none: two parties"
        print(f"{name.replace('_', ' ')}: {shown}")
    write_rows(args.json, [row])


main = main_of(parser, _run)

if __name__ == "__main__":
    sys.exit(main())
