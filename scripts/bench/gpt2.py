"""A word of GPT-2 small's shape between two parties on this host, from a store: seconds, bytes, rounds, memory, error.

    python -m scripts.bench.gpt2 --folder /dev/shm --json gpt2.json

The net is `models.gpt.gpt2(256)` with random weights, 50,257 words. Its windows are [20:14); its ranges are those that
`hummingbird.find_rows` finds on two random inputs, with `error=0.006` for every GELU. A conversation reads a prompt of
one word, then one word after the other by the plan of a cache of all places, each word with a random vector. A row of
the table is one word: from the shares of its vector to the shares of its logits. The error is that of the largest
logit, in parts of it. Memory is the most that a party holds in pages of its own (RssAnon), as scripts/bench/bert.py has
it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hummingbird
from hummingbird.bits import BitConfig, BitWindow, Rows
from hummingbird.commands.party import run_party
from hummingbird.commands.program import machine
from hummingbird.convert import convert_decoder
from hummingbird.crypten import tensors
from hummingbird.errors import InputError
from hummingbird.mpc.dealer.deal import deal
from hummingbird.mpc.dealer.store import material_facts
from hummingbird.mpc.plan.decoder import PrivateDecoder
from hummingbird.mpc.session.conversation import Conversation
from hummingbird.mpc.session.sharing import Shared
from hummingbird.prg import cipher_of
from models.gpt import Gpt, gpt2
from scripts.bench.bert import error_percent, timed
from scripts.bench.link import Link, places
from scripts.bench.party import launch, rows_of
from scripts.program import columns, main_of, new_parser, write_rows

MODULE, WIDTH = "scripts.bench.gpt2", 768
SHOWN = [
    ("word", "{word}"),
    ("s", "{seconds:.3f}"),
    ("CPU s", "{cpu_seconds:.3f}"),
    ("s waiting", "{wire_seconds:.3f}"),
    ("s for material", "{offline_seconds:.3f}"),
    ("MB sent", "{online_megabytes:.3f}"),
    ("rounds", "{rounds}"),
    ("MB offline", "{offline_megabytes:,.1f}"),
    ("GB of a party", "{own_gigabytes:.2f}"),
    ("error", "{error_percent:.3f} %"),
]


def net(args: argparse.Namespace) -> Gpt:
    """The net, with the same weights in every process, or only its first blocks."""
    torch.manual_seed(0)
    made = gpt2(args.places).eval()
    made.blocks = made.blocks[: args.layers]
    return made


def inputs(seed: int, count: int, length: int) -> Tensor:
    """Random word vectors, (count, length, WIDTH)."""
    return torch.randn(count, length, WIDTH, generator=torch.Generator().manual_seed(seed))


def private(args: argparse.Namespace, plain: Gpt) -> PrivateDecoder:
    """The net's private form, for conversations that begin with one word."""
    return convert_decoder(plain, torch.zeros(1, args.places, WIDTH), prompt=1, bits=args.bits)


def write_bits(args: argparse.Namespace) -> None:
    """Find the ranges, and write windows and ranges to a file."""
    found = hummingbird.find_rows(net(args), inputs(0, 2, args.places))
    rows: dict[str, Rows] = {name: replace(x, error=0.006) if "gelu" in name else x for name, x in found.items()}
    BitConfig(BitWindow(20, 14)).with_rows(rows).save(args.bits)


def steps(decoder: PrivateDecoder, words: int, parties: int = 2, rank: int = 0) -> list[Any]:
    """The requests of a conversation's steps: the prompt, then words that read a cache of all places."""
    kinds = decoder.requests(parties, rank)
    return [kinds[0], *[kinds[-1]] * words]


def write_store(args: argparse.Namespace) -> None:
    """Deal the material of one conversation."""
    decoder = private(args, net(args))
    facts, shape = material_facts(decoder.facts), decoder.shape(0)
    what = steps(decoder, args.repeats + 1)
    deal(args.store, setup=[], steps=what, shape=shape, slots=1, parties=2, facts=facts, cipher=cipher_of("cpu"))


def step(talk: Conversation, plan: Any, x: Shared, word: int) -> Shared:
    """Run the step that reads a word's vector, with this plan; return the shared logits."""
    with talk.step() as session:
        result: Shared = plan.steps(session, x, [torch.tensor([0, word])])
    return result


def party(args: argparse.Namespace) -> None:
    """One party: party 0 writes a row for each word."""
    session = hummingbird.init(store=args.store)
    plain, length = net(args), args.repeats + 2
    x = inputs(1, 1, length)
    decoder, rows = private(args, plain), list[dict[str, Any]]()
    with torch.no_grad():
        expected = plain(x) if session.rank == 0 else torch.empty(0)
    del plain
    talk = Conversation(session, decoder.facts, steps(decoder, args.repeats + 1, rank=session.rank))
    for word in range(length):
        shared = tensors.shared(hummingbird.cryptensor(x[:, word : word + 1] if session.rank == 0 else None, src=0))
        plan = decoder.nets[-1 if word else 0]
        result, row = timed(session, partial(step, talk, plan, shared, word))
        opened = tensors.tensor(result).get_plain_text()
        if session.rank == 0:
            rows.append({"word": word, **row, "error_percent": error_percent(opened, expected[:, word])})
    talk.close()
    hummingbird.uninit()
    if args.result is not None and session.rank == 0:
        args.result.write_text(json.dumps(rows))


def job(args: argparse.Namespace) -> None:
    """A process of the benchmark other than the first: it finds the ranges, deals, or is a party."""
    torch.set_num_threads(1)
    if args.worker == "party":
        run_party(lambda: party(args))
    elif args.worker == "bits":
        write_bits(args)
    else:
        write_store(args)
    write_rows(args.json, [])


def measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows, one for each word."""
    own = ["bits", "repeats", "layers", "places"]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder, places(Link(), 2) as where:
        args.bits, args.store = Path(folder) / "bits.json", Path(folder) / "store"
        rows_of(MODULE, "bits", args, own)
        rows_of(MODULE, "deal", args, [*own, "store"])
        words = [word for name in [*own, "store"] for word in (f"--{name}", str(getattr(args, name)))]
        return [{**row, **machine()} for row in launch(where, MODULE, ["--worker", "party", *words])]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser(__doc__, MODULE)
    made.add_argument("--repeats", type=int, default=8, metavar="N", help="words after two first ones (default 8)")
    made.add_argument("--layers", type=int, default=12, metavar="N", help="of the net's 12 blocks, from the first on")
    made.add_argument("--places", type=int, default=256, metavar="N", help="of a conversation (default 256)")
    text = "where the store is dealt, 24 MB a word and party; default: the folder for temporary files"
    made.add_argument("--folder", type=Path, metavar="DIR", help=text)
    made.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file")
    for hidden in ("--bits", "--store", "--result"):
        made.add_argument(hidden, type=Path, help=argparse.SUPPRESS)
    made.add_argument("--worker", choices=("bits", "deal", "party"), help=argparse.SUPPRESS)
    return made


def run(args: argparse.Namespace) -> None:
    """Measure, and print the table and the medians."""
    if args.repeats < 1 or args.repeats + 2 > args.places:
        hint = f"from 1 to {args.places - 2}, what --places leaves beside two first words"
        raise InputError(f"{args.repeats} words", where="--repeats", hint=hint)
    if args.worker:
        job(args)
        return
    rows = measured(args)
    print(columns(rows, SHOWN))
    print(f"{statistics.median(row['seconds'] for row in rows[2:]):.3f} s a word, the median of all but the first two")
    write_rows(args.json, rows)


main = main_of(parser, run)


if __name__ == "__main__":
    sys.exit(main())
