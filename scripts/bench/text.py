"""Compare a net of text in private with plain torch on WikiText-2: a GPT's perplexity, or a BERT's accuracy.

For a GPT the test text is cut into parts of all places of the net. Every place has the same text before it in private
as in plain. A BERT says which word is hidden in the middle of 32 words (scripts/train/text_data.py). The most likely
piece or word agrees unless the two best logits are closer than the error of both: one that differs is *explained* if
its gap in plain torch is at most twice the largest error of all logits. Logits come from two parties with a dealer on
this host, or from the twin (`hummingbird.simulate`): "exact" computes the integers of both parties, "fast" runs in
floating point.

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
from hummingbird.simulation.simulate import MODES
from models import load_checkpoint
from models.bert import bert_tiny
from models.gpt import Gpt, gpt_small
from models.pieces import Pieces
from scripts.bench.contest import Sample
from scripts.program import add_json, main_of, new_parser, write_rows
from scripts.train.text_data import load_text, pieced, questions, vectors

_EPILOG = """examples:
  2,048 pieces, as two parties compute them by the twin's law (half a minute on one CPU core):
    python -m scripts.bench.text --weights checkpoints/wikitext2-gpt.pt --data DATA --twin --texts 8

  every hidden word of the test text, by the fast twin (seven minutes):
    python -m scripts.bench.text --net bert --weights checkpoints/wikitext2-bert.pt --twin fast --texts 107467

  100 pieces that follow a prompt of 64, in private:
    python -m scripts.bench.text --weights checkpoints/wikitext2-gpt.pt --data DATA --texts 1 --new 100
"""

PROMPT = 64


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
    made.add_argument(
        "--new", type=int, metavar="N", help="pieces that a GPT writes after a prompt of each text, from 2"
    )
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
    text, pieces, length = (
        load_text(args.data, ("test", "validation")),
        Pieces.of_table(net.pieces),
        len(net.places) + 1,
    )
    numbers = pieced(text, "test", pieces)
    texts = _count(args.texts, len(numbers) // length, f", of {length} pieces each")
    chosen = numbers[: texts * length].view(-1, length)
    if args.new is None:
        return measure(net, chosen, args.twin)
    if not 2 <= args.new <= length - PROMPT:
        hint = f"2 to {length - PROMPT}, which are what {length - 1} places leave beside a prompt of {PROMPT}"
        raise InputError(f"{args.new} new pieces", where="--new", hint=hint)
    known = pieced(text, "validation", pieces)[: 4 * (length - 1)].view(4, -1)
    rows = hummingbird.find_rows(net, net.words(known).detach())
    return converse(net, BitConfig().with_rows(rows), chosen[:, :PROMPT], args.new)


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
