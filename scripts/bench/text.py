"""Compare a GPT in private with plain torch on WikiText-2: perplexity, and the most likely next pieces.

The test text is cut into parts of all places of the net. Every place has the same text before it in private as in
plain, so the most likely next piece agrees unless the two best logits are closer than the error of both: a place where
it differs is *explained* if its gap in plain torch is at most twice the largest error of all logits. Logits come from
two parties with a dealer on this host, or from the twin, which follows the same law (`hummingbird.simulate`).
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
from models.gpt import Gpt, gpt_small
from models.pieces import Pieces
from scripts.program import add_json, main_of, new_parser, write_rows
from scripts.train.text_data import load_text, pieced

_EPILOG = """examples:
  2,048 pieces, as two parties compute them by the twin's law (half a minute on one CPU core):
    python -m scripts.bench.text --weights checkpoints/wikitext2-gpt.pt --data DATA --twin --texts 8
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser(__doc__, "scripts.bench.text", _EPILOG)
    made.add_argument("--weights", required=True, type=Path, metavar="FILE", help="of models.gpt:gpt_small")
    made.add_argument("--data", metavar="FOLDER", help="folder that holds wikitext-2/ (default: HUMMINGBIRD_DATA)")
    made.add_argument("--texts", type=int, default=8, help="parts of the test text (default: %(default)s)")
    made.add_argument("--twin", action="store_true", help="compute the logits by the twin, without parties")
    add_json(made)
    return made


def compared(plain: Tensor, found: Tensor, following: Tensor) -> dict[str, Any]:
    """Return how logits (texts, places, words) agree with those of plain torch, before the pieces `following`.

    following: int64 (texts, places).
    """
    error = float((found - plain).abs().max())
    differs = found.argmax(-1) != plain.argmax(-1)
    best = plain.topk(2, -1).values
    gaps = (best[..., 0] - best[..., 1])[differs]
    one, other = (float(F.cross_entropy(x.double().flatten(0, 1), following.flatten())) for x in (plain, found))
    return {
        "pieces": differs.numel(),
        "agreeing_percent": 100 * (1 - float(differs.double().mean())),
        "unexplained": int((gaps > 2 * error).sum()),
        "largest_gap_of_others": float(gaps.max()) if len(gaps) else 0.0,
        "largest_logit_error": error,
        "largest_logit": float(plain.abs().max()),
        "perplexity_of_a_piece": math.exp(one),
        "perplexity_change_percent": 100 * (math.exp(other - one) - 1),
    }


def _private(session: Session, net: nn.Module, x: Tensor) -> Tensor | None:
    private = hummingbird.convert_model(net, example=x[:1])
    found = []
    for text in x.split(1):
        shared = hummingbird.cryptensor(text if session.rank == 0 else None, src=0)
        found.append(private(shared).get_plain_text(dst=0))
    return torch.cat(found) if session.rank == 0 else None


def measure(net: Gpt, numbers: Tensor, twin: bool) -> dict[str, Any]:
    """Return the figures for texts, int64 (texts, places + 1), by the twin or by two parties (`compared`)."""
    with torch.no_grad():
        x = net.words(numbers[:, :-1])
        plain = net(x)
        if twin:
            simulated = hummingbird.simulate(net, mode="exact", example=x[:1])
            found = torch.cat([simulated(text) for text in x.split(1)])
        else:
            found = hummingbird.launch(_private, net, x)[0]
    return {"twin": twin, **compared(plain, found, numbers[:, 1:])}


def _run(args: argparse.Namespace) -> None:
    from models import load_checkpoint

    net = load_checkpoint(args.weights, gpt_small()).eval()
    assert net.pieces is not None
    numbers, length = pieced(load_text(args.data, ("test",)), "test", Pieces.of_table(net.pieces)), len(net.places) + 1
    if not 1 <= args.texts <= len(numbers) // length:
        hint = f"1 to {len(numbers) // length}, of {length} pieces each"
        raise InputError(f"{args.texts} texts", where="--texts", hint=hint)
    row = measure(net, numbers[: args.texts * length].view(-1, length), args.twin)
    for name, value in row.items():
        print(f"{name.replace('_', ' ')}: {value:.6g}")
    write_rows(args.json, [row])


main = main_of(parser, _run)

if __name__ == "__main__":
    sys.exit(main())
