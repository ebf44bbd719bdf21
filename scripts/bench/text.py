"""Compare a GPT in private with plain torch on WikiText-2: perplexity, and the most likely next pieces.

The test text is cut into parts of all places of the net. Every place has the same text before it in private as in
plain, so the most likely next piece agrees unless the two best logits are closer than the error of both: a place where
it differs is *explained* if its gap in plain torch is at most twice the largest error of all logits. Logits come from
two parties with a dealer on this host, or from the twin, which follows the same law (`hummingbird.simulate`).

With --new, the net writes: each text's first 64 pieces are the prompt of a conversation of two parties, which then read
the pieces that plain torch finds most likely, one by one. So both have the same text before every piece. Softmaxes,
norms and GELUs have the ranges that `hummingbird.find_rows` finds on four texts of the validation split. Seconds of a
word are from its vector's shares to its shared logits, the dealer at work on the same host.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hummingbird
from hummingbird import convert
from hummingbird.bits import BitConfig
from hummingbird.crypten import tensors
from hummingbird.errors import InputError
from hummingbird.mpc.session.session import Session
from models.gpt import Gpt, gpt_small
from models.pieces import Pieces
from scripts.bench.contest import Sample
from scripts.program import add_json, main_of, new_parser, write_rows
from scripts.train.text_data import load_text, pieced

_EPILOG = """examples:
  2,048 pieces, as two parties compute them by the twin's law (half a minute on one CPU core):
    python -m scripts.bench.text --weights checkpoints/wikitext2-gpt.pt --data DATA --twin --texts 8
  100 pieces that follow a prompt of 64, in private:
    python -m scripts.bench.text --weights checkpoints/wikitext2-gpt.pt --data DATA --texts 1 --new 100
"""

PROMPT = 64


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser(__doc__, "scripts.bench.text", _EPILOG)
    made.add_argument("--weights", required=True, type=Path, metavar="FILE", help="of models.gpt:gpt_small")
    made.add_argument("--data", metavar="FOLDER", help="folder that holds wikitext-2/ (default: HUMMINGBIRD_DATA)")
    made.add_argument("--texts", type=int, default=8, help="parts of the test text (default: %(default)s)")
    made.add_argument("--twin", action="store_true", help="compute the logits by the twin, without parties")
    made.add_argument("--new", type=int, metavar="N", help="pieces to write after a prompt of each text, from 2")
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


def written(net: Gpt, prompts: Tensor, new: int) -> tuple[Tensor, Tensor]:
    """Return what plain torch writes after prompts, int64 (texts, prompt + new), and the logits of each piece of it."""
    rows = list[Tensor]()
    with torch.no_grad():
        for _ in range(new):
            rows.append(net(net.words(prompts))[:, -1])
            prompts = torch.cat([prompts, rows[-1].argmax(-1, keepdim=True)], -1)
    return prompts, torch.stack(rows, 1)


def _talk(session: Session, net: Gpt, bits: BitConfig, prompt: int, x: Tensor) -> list[dict[str, Any]]:
    """Let the parties read each text of x, (texts, prompt + new - 1, width); return a row for each step of each."""
    private, rows = convert.convert_decoder(net, torch.zeros(1, *net.places.shape), prompt, bits), []
    for text in x.split(1):
        talk = private.conversation(session)
        for part in text.split([prompt, *[1] * (x.shape[1] - prompt)], 1):
            shared = tensors.shared(hummingbird.cryptensor(part if session.rank == 0 else None, src=0))
            with hummingbird.meter() as meter:
                started, used = time.perf_counter(), time.process_time()
                result = talk.read(shared)
                seconds, used = time.perf_counter() - started, time.process_time() - used
            sample = Sample.of(seconds, meter)  # raises if it was priced otherwise
            logits = tensors.tensor(result).get_plain_text(dst=0)
            rows.append({"seconds": seconds, "cpu_seconds": used, "rounds": sample.rounds, "logits": logits})
            rows[-1] |= {"bits": sample.online_bits, "offline_bits": meter.total.offline_bits_predicted}
        talk.close()
    return rows


def converse(net: Gpt, bits: BitConfig, prompts: Tensor, new: int) -> dict[str, Any]:
    """Return the figures of conversations about prompts, int64 (texts, prompt): `compared`, and what a word takes.

    new: the words of each, from 2: the prompt's step gives the first. Bits are those that a party sends, and those that
    the dealer sends to both.
    """
    numbers, plain = written(net, prompts, new)
    with torch.no_grad():
        x = net.words(numbers[:, :-1])
    rows = hummingbird.launch(_talk, net, bits, prompts.shape[1], x)[0]
    found = torch.cat([row["logits"] for row in rows], 1).view_as(plain)
    row = compared(plain, found, numbers[:, prompts.shape[1] :])
    read = {False: [each for at, each in enumerate(rows) if at % new], True: rows[::new]}
    for first, what in ((True, "prompt"), (False, "word")):
        for name, unit in (("seconds", 1), ("cpu_seconds", 1), ("rounds", 1), ("bits", 8e6), ("offline_bits", 8e6)):
            median = statistics.median(each[name] for each in read[first])
            row[f"{what}_{name.replace('bits', 'megabytes')}"] = median / unit
    return {name: value for name, value in row.items() if "perplexity" not in name}


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
    text, pieces, length = (
        load_text(args.data, ("test", "validation")),
        Pieces.of_table(net.pieces),
        len(net.places) + 1,
    )
    numbers = pieced(text, "test", pieces)
    if not 1 <= args.texts <= len(numbers) // length:
        hint = f"1 to {len(numbers) // length}, of {length} pieces each"
        raise InputError(f"{args.texts} texts", where="--texts", hint=hint)
    if args.new is not None and not 2 <= args.new <= length - PROMPT:
        hint = f"2 to {length - PROMPT}, which are what {length - 1} places leave beside a prompt of {PROMPT}"
        raise InputError(f"{args.new} new pieces", where="--new", hint=hint)
    texts = numbers[: args.texts * length].view(-1, length)
    if args.new is None:
        row = measure(net, texts, args.twin)
    else:
        known = pieced(text, "validation", pieces)[: 4 * (length - 1)].view(4, -1)
        rows = hummingbird.find_rows(net, net.words(known).detach())
        row = converse(net, BitConfig().with_rows(rows), texts[:, :PROMPT], args.new)
    for name, value in row.items():
        print(f"{name.replace('_', ' ')}: {value:.6g}")
    write_rows(args.json, [row])


main = main_of(parser, _run)

if __name__ == "__main__":
    sys.exit(main())
