"""All ways to compute a net in private, beside each other: who is trusted, and what an image takes.

    python -m scripts.bench.ways --json ways.json
    python -m scripts.bench.ways --only mnist --ways pair hybrid

Four nets of `checkpoints/`: MNIST and CIFAR-10 by Impala's nets, ResNet-18 for CIFAR-10, and BERT-tiny, which reads 32
words. Bytes are those of all messages, offline and online, of all who send. Seconds are of the clock, with all programs
on this host, one thread each. Parties make their material while they compute, for two batches; `hybrid` computes one
image at a time; `encrypted` as many as its ciphertexts hold, client and server in turns. Its ResNet-18 is not run, as
that takes a quarter of an hour: bytes of ciphertexts are exact without. A way that does not take a net says why.

Set-ups are not counted: the start of programs, the first transfers of a connection, encoded weights.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import hummingbird
from hummingbird import he, hybrid
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.commands.output import check_outputs, write_json
from hummingbird.commands.program import machine
from hummingbird.errors import HummingbirdError, ModelError
from models import load_checkpoint, trained
from models.bert import bert_tiny
from scripts.bench.he_nets import Net as EncryptedNet
from scripts.bench.he_nets import in_process
from scripts.bench.hybrid_nets import SHIPPED, Served, measure
from scripts.bench.party import on_this_host, rows_of
from scripts.program import ROOT, add_json, alone, columns, main_of, maybe, new_parser, write_rows
from scripts.train.data import load

BATCHES = 2  # of parties, in one call: the second one's material is made while the first one computes
_BERT, _BERT_INPUT = "bert", (32, 128)


@dataclass(frozen=True)
class Case:
    """A net of `checkpoints/`. batch: images of a slice. bits: windows of parties that share images.

    run: whether `encrypted` runs it, or only counts its bytes.
    """

    model: str
    weights: str
    batch: int
    bits: BitConfig
    run: bool = True

    def net(self) -> nn.Module:
        if self.model == _BERT:
            return load_checkpoint(ROOT / "checkpoints" / self.weights, bert_tiny()).eval()
        return trained(self.model, 10, str(ROOT / "checkpoints" / self.weights))

    def images(self, data: str | None, count: int) -> Tensor:
        """Test images, or the word vectors of random words."""
        if self.model == _BERT:
            words: nn.Module = self.net().words
            numbers = torch.randint(0, 4002, (count, 32), generator=torch.Generator().manual_seed(0))
            return words(numbers).detach()
        images = load("mnist" if "mnist" in self.model else "cifar10", "test", data)[0]
        return images.repeat(-(-count // len(images)), 1, 1, 1)[:count]


CASES = {
    "mnist": Case("impala-mnist", "impala-mnist.pt", 50, BitConfig(BitWindow(22, 12))),
    "cifar10": Case("impala-cifar10", "impala-cifar10.pt", 8, BitConfig(BitWindow(21, 12))),
    "resnet18": Case("resnet18", "resnet18-cifar10.pt", 4, BitConfig(BitWindow(20, 12)), run=False),
    "bert-tiny": Case(_BERT, "wikitext2-bert.pt", 4, BitConfig(BitWindow(22, 8))),
}


@dataclass(frozen=True)
class Way:
    """A way to compute a net.

    trusts: who is trusted. weights: who has the weights. dealer: as in `init`; None for a way without one. owner: the
    party that has the weights, or "public". weight_bits: their bits of fraction, as in BitConfig.
    """

    trusts: str
    weights: str
    dealer: str | None = None
    owner: str | int = "public"
    weight_bits: int | None = None


_NEITHER = "neither deviates"
_OWNED = {"trusts": _NEITHER, "weights": "party 0's", "dealer": "pair:silent", "owner": 0}
WAYS = {
    "dealer": Way("the dealer colludes with none", "public"),
    "pair": Way(_NEITHER, "public", "pair"),
    "pair:silent": Way(_NEITHER, "public", "pair:silent"),
    "private weights": Way(**_OWNED),  # type: ignore[arg-type]
    "private, 8 bits": Way(**_OWNED, weight_bits=8),  # type: ignore[arg-type]
    "hybrid": Way(_NEITHER, "the server's"),
    "encrypted": Way("the server follows", "the server's; the client sees layers"),
}
_ALONE = ("hybrid", "encrypted")  # which no two parties of `run` compute


def shared(case: Case, way: Way, data: str | None) -> dict[str, Any] | None:
    """The figures of two parties that share images, at party 0: this is the program of each.

    Raises HummingbirdError if other bits are sent than are priced.
    """
    alone()
    session = hummingbird.init(dealer=way.dealer)
    net, images = case.net(), case.images(data, BATCHES * case.batch)
    bits = replace(case.bits, weight_bits=way.weight_bits)
    example = images[:1] if case.model == _BERT else None
    private = hummingbird.convert_model(net, bits, way.owner, example=example)
    private.images_per_slice = case.batch
    given = hummingbird.cryptensor(images if session.rank == 0 else None, src=0)
    session.channel.exchange_text("ready")
    started = time.perf_counter()
    with hummingbird.meter() as meter:
        out = private(given).get_plain_text(dst=0)
    seconds, total = time.perf_counter() - started, meter.total
    counted = total.bits_sent, total.rounds, total.offline_bits
    if counted != (total.bits_predicted, total.rounds_predicted, total.offline_bits_predicted):
        raise HummingbirdError(f"other bits or rounds than are priced: {counted}", where="scripts.bench.ways")
    sent = sum(int(text) for text in session.channel.exchange_text(str(total.bits_sent)).values())
    hummingbird.uninit()
    if session.rank:
        return None
    with torch.no_grad():
        same = float((out.argmax(1) == net(images).argmax(1)).float().mean())
    return {
        "seconds": seconds / len(images),
        "megabytes": (sent + total.bits_sent + total.offline_bits) / 8e6 / len(images),
        "online_megabytes": (sent + total.bits_sent) / 8e6 / len(images),
        "rounds": total.rounds // BATCHES,
        "together": case.batch,
        "same_answers": same,
    }


def by_hybrid(case: Case, data: str | None) -> dict[str, Any]:
    """The figures of `hybrid`, over a socket, for one image at a time."""
    torch.set_num_threads(1)
    images = case.images(data, 1)
    found = [shipped for shipped in SHIPPED if shipped.model == case.model]
    if not found:
        return {"refused": _reason(lambda: hybrid.convert_model(case.net(), _BERT_INPUT))}
    words = ["models:trained", case.model, "10", f"checkpoints/{case.weights}"]
    bits = BitConfig.load(ROOT / "checkpoints" / found[0].bits)
    with Served(words, tuple(images.shape[1:]), bits).net() as (net, folder):
        taken = measure(net, folder, images, 3)
        rounds = len(net.plan.gates) + 1
    both = {unit: taken[f"offline_{unit}"] + taken[f"online_{unit}"] for unit in ("seconds", "megabytes")}
    return {**both, "online_megabytes": taken["online_megabytes"], "rounds": rounds, "together": 1}


def encrypted(case: Case, data: str | None) -> dict[str, Any]:
    """The figures of `hummingbird.he` in client-aided mode, with ciphertexts full of images, in one process."""
    net, image = case.net(), case.images(data, 1)
    public = he.convert_model(net, tuple(image.shape[1:])).public
    moved = sum(public.up_bytes(turn.sent) for turn in public.turns)
    moved += sum(public.down_bytes(back, back.count) for turn in public.turns for back in turn.returns)
    megabytes = moved / public.slots / 1e6
    found = {"megabytes": megabytes, "online_megabytes": megabytes, "rounds": len(public.turns)}
    found["together"] = public.slots
    if case.run:
        given = EncryptedNet(net, "client-aided", case.images(data, public.slots))
        row = in_process(case.model, given, lambda done: None)
        found |= {"seconds": row["milliseconds_per_image"] / 1e3}
        found |= {"same_answers": 1 - row["other_answers"] / len(given.images)}
    return found | {"refused_polynomial": _reason(lambda: he.convert_model(net, tuple(image.shape[1:]), "polynomial"))}


def _reason(convert: Callable[[], object]) -> str:
    """Why a net is refused: the first of its problems; "" if it is not."""
    try:
        convert()
    except ModelError as error:
        first = error.problems[0]
        return f"{first.name}: {first.what}"
    return ""


def work(args: argparse.Namespace) -> None:
    """A job, in this process, or at each of two parties."""
    name, _, way = args.worker.partition("/")
    case = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if way in _ALONE:
            row: dict[str, Any] | None = (by_hybrid if way == "hybrid" else encrypted)(case, args.data)
        else:
            row = shared(case, WAYS[way], args.data)
    if row is not None:
        write_json(args.json, [row])


def measured(job: str, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of a job, by processes of its own."""
    if job.partition("/")[2] in _ALONE:
        return rows_of("scripts.bench.ways", job, args, ("data",))[0]
    more = ["--data", args.data] if args.data else []
    row: dict[str, Any] = on_this_host(2, "scripts.bench.ways", ["--worker", job, *more])[0]
    return row


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table for each net."""
    for name in CASES:
        if here := [row for row in rows if row["net"] == name]:
            print(f"\n{name}, an image ({here[0]['cpu']})\n")
            print(columns(here, _SHOWN, 3))


def _note(row: dict[str, Any]) -> str:
    if row.get("refused"):
        return f"refused: {row['refused']}"
    if why := row.get("refused_polynomial"):
        return f"without the client's help refused: {why}"
    return ""


_SHOWN: list[tuple[str, str | Callable[[Any], str]]] = [
    *(("way", "{way}"), ("trust", "{trusts}"), ("weights", "{weights}")),
    *(("MB", maybe("megabytes", ",.2f", nothing="-")), ("MB online", maybe("online_megabytes", ",.2f", nothing="-"))),
    *(("s", maybe("seconds", ",.3f", nothing="-")), ("rounds", maybe("rounds", ".0f", nothing="-"))),
    *(
        ("at a time", maybe("together", ",.0f", nothing="-")),
        ("same answers", maybe("same_answers", ".1%", nothing="-")),
    ),
    ("", _note),
]


def run(args: argparse.Namespace) -> None:
    """Run all jobs, print the tables, write the rows."""
    if args.worker:
        work(args)
        return
    check_outputs(args)
    rows: list[dict[str, Any]] = []
    jobs = [(name, way) for name in args.only for way in args.ways]
    for number, (name, way) in enumerate(jobs, 1):
        print(f"{number} of {len(jobs)}: {name}, {way}", file=sys.stderr)
        how = {"net": name, "way": way, "trusts": WAYS[way].trusts, "weights": WAYS[way].weights}
        rows.append({**how, **measured(f"{name}/{way}", args), **machine()})
        write_rows(args.json, rows)  # after each: a later one may be interrupted
    show(rows)


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = new_parser(__doc__)
    p.add_argument("--only", nargs="+", choices=tuple(CASES), default=list(CASES), help="nets (default: all)")
    p.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=list(WAYS), metavar="WAY", help="default: all")
    p.add_argument("--data", metavar="FOLDER", help="data folder (default: HUMMINGBIRD_DATA, else a download)")
    add_json(p)
    p.add_argument("--worker", metavar="NET/WAY", help=argparse.SUPPRESS)
    return p


main = main_of(parser, run, "interrupted: rows of jobs that ended are in the file")


if __name__ == "__main__":
    sys.exit(main())
